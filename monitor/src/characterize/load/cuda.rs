//! gpumon's own load on an NVIDIA GPU: FMAs on every SM, through the CUDA driver API.
//!
//! Rule: while on, kernels of a millisecond follow each other, two of them queued, so that an end comes within one; each
//! measures its own time by the GPU's clock. An on edge is the moment before the first launch, an off edge the moment at
//! which the driver has said that the last kernel is done.
//! Cases: cudarc panics where there is no library, so it is looked for first. The kernel comes as PTX for compute
//! capability 8.0, which the driver compiles for any newer GPU (see `scripts/make_ptx.py`).
//! Not done here: power up to the limit. FMAs without tensor cores stay below it on data-centre GPUs, and that is wanted:
//! at the limit power overshoots and the clock follows, which is no square.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use cudarc::driver::result::device as cuda_device;
use cudarc::driver::{
    CudaContext, CudaEvent, CudaFunction, CudaStream, DriverError, LaunchConfig, PushKernelArg,
};
use cudarc::driver::{result, sys};
use cudarc::nvrtc::Ptx;
use gpumon_core::clock::{Clock, use_precise_wakeups};
use gpumon_core::units::MonoUs;

use super::{LoadError, SquareLoad, Switched, edges};
use crate::characterize::phases::Phase;

const PTX: &str = include_str!("../cuda/burn.ptx");
const KERNEL: &str = "burn";

/// One kernel's length, and the shortest that is worth a launch, µs.
const CHUNK_US: i64 = 1_000;
const LEAST_US: i64 = 60;
const QUEUED: usize = 2;
/// Threads: half of what an SM holds.
const BLOCK: u32 = 256;
const BLOCKS_PER_SM: u32 = 4;
/// How long the GPU is warmed up, µs.
const WARM_UP_US: i64 = 1_500_000;

fn failed(doing: &'static str) -> impl FnOnce(DriverError) -> LoadError {
    move |e| LoadError::Cuda { doing, message: e.to_string() }
}

/// FMAs on every SM.
pub struct CudaLoad {
    uuid: String,
    clock: Arc<dyn Clock>,
    burner: Option<Burner>,
    stop: Arc<AtomicBool>,
    running: Option<JoinHandle<Result<Vec<Switched>, LoadError>>>,
}

impl CudaLoad {
    /// A load for the GPU with this UUID as NVML gives it.
    pub fn new(uuid: &str, clock: Arc<dyn Clock>) -> Self {
        Self { uuid: uuid.into(), clock, burner: None, stop: Arc::default(), running: None }
    }
}

impl SquareLoad for CudaLoad {
    fn name(&self) -> String {
        "FMAs on every SM (CUDA)".into()
    }

    fn prepare(&mut self) -> Result<(), LoadError> {
        let burner = Burner::open(&self.uuid)?;
        burner.burn_until(self.clock.as_ref(), self.clock.mono().plus_us(WARM_UP_US), &self.stop)?;
        self.burner = Some(burner);
        Ok(())
    }

    fn start(&mut self, at: MonoUs, phases: &[Phase]) -> Result<(), LoadError> {
        let not_ready = || LoadError::Thread("was started before it was prepared".into());
        let burner = self.burner.clone().ok_or_else(not_ready)?;
        let (clock, stop) = (self.clock.clone(), self.stop.clone());
        let (edges, end) = edges(at, phases);
        let thread = thread::Builder::new().name("load".into());
        let running = thread.spawn(move || burner.run(clock.as_ref(), &edges, end, &stop));
        self.running = Some(running.map_err(|e| LoadError::Thread(format!("does not start: {e}")))?);
        Ok(())
    }

    fn finish(&mut self) -> Result<Vec<Switched>, LoadError> {
        match self.running.take().map(JoinHandle::join) {
            None => Ok(Vec::new()),
            Some(Ok(ended)) => ended,
            Some(Err(_)) => Err(LoadError::Thread("panicked".into())),
        }
    }

    fn stop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // What it would have told is not wanted any more.
        let _ = self.finish();
        self.burner = None;
        self.stop.store(false, Ordering::SeqCst);
    }
}

impl Drop for CudaLoad {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A context with the kernel loaded.
#[derive(Clone)]
struct Burner {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    kernel: CudaFunction,
    blocks: u32,
}

impl Burner {
    fn open(uuid: &str) -> Result<Self, LoadError> {
        // SAFETY: loads and unloads the library; its initialisers are the driver's own.
        if !unsafe { sys::is_culib_present() } {
            return Err(LoadError::NoLibrary);
        }
        let ordinal = ordinal(uuid)?;
        let context = CudaContext::new(ordinal).map_err(failed("making a CUDA context"))?;
        let sm_count = context
            .attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
            .map_err(failed("counting SMs"))?;
        let module = context
            .load_module(Ptx::from_src(PTX))
            .map_err(failed("loading its kernel (PTX 8.1, driver 530 or newer)"))?;
        let kernel = module.load_function(KERNEL).map_err(failed("looking for its kernel"))?;
        let stream = context.new_stream().map_err(failed("making a stream"))?;
        let blocks = u32::try_from(sm_count).unwrap_or(1) * BLOCKS_PER_SM;
        Ok(Self { context, stream, kernel, blocks })
    }

    fn run(
        &self,
        clock: &dyn Clock,
        edges: &[Switched],
        end: MonoUs,
        stop: &AtomicBool,
    ) -> Result<Vec<Switched>, LoadError> {
        use_precise_wakeups();
        self.context.bind_to_thread().map_err(failed("entering its CUDA context"))?;
        let mut switched = Vec::with_capacity(edges.len());
        let ends = edges.iter().skip(1).map(|edge| edge.at).chain([end]);
        for (edge, until) in edges.iter().zip(ends) {
            if stop.load(Ordering::SeqCst) {
                break;
            }
            clock.sleep_until(edge.at);
            if edge.on {
                switched.push(Switched { at: clock.mono(), on: true });
                self.burn_until(clock, until, stop)?;
                switched.push(Switched { at: clock.mono(), on: false });
            }
        }
        Ok(switched)
    }

    /// Keeps the GPU busy until a moment, and returns when it is not any more.
    fn burn_until(&self, clock: &dyn Clock, until: MonoUs, stop: &AtomicBool) -> Result<(), LoadError> {
        let mut queue: VecDeque<CudaEvent> = VecDeque::with_capacity(QUEUED);
        // When the GPU will be done with what it has been given.
        let mut busy_until = clock.mono();
        while !stop.load(Ordering::SeqCst) {
            busy_until = busy_until.max(clock.mono());
            let chunk_us = until.since_us(busy_until).min(CHUNK_US);
            if chunk_us < LEAST_US {
                break;
            }
            self.launch(chunk_us)?;
            busy_until = busy_until.plus_us(chunk_us);
            queue.push_back(self.stream.record_event(None).map_err(failed("recording an event"))?);
            if queue.len() >= QUEUED
                && let Some(oldest) = queue.pop_front()
            {
                oldest.synchronize().map_err(failed("waiting for a kernel"))?;
            }
        }
        self.stream.synchronize().map_err(failed("waiting for its last kernel"))
    }

    fn launch(&self, for_us: i64) -> Result<(), LoadError> {
        let config =
            LaunchConfig { grid_dim: (self.blocks, 1, 1), block_dim: (BLOCK, 1, 1), shared_mem_bytes: 0 };
        let for_ns = u64::try_from(for_us * 1_000).unwrap_or(0);
        let nowhere = 0u64;
        let mut launch = self.stream.launch_builder(&self.kernel);
        launch.arg(&for_ns).arg(&nowhere);
        // SAFETY: the kernel takes two 64-bit values, a duration and a pointer that it never follows (see burn.cu), and
        // both outlive this call, which copies them.
        unsafe { launch.launch(config) }.map(|_| ()).map_err(failed("launching a kernel"))
    }
}

/// CUDA's number of the GPU with this UUID.
fn ordinal(uuid: &str) -> Result<usize, LoadError> {
    result::init().map_err(failed("initialising CUDA"))?;
    let count = cuda_device::get_count().map_err(failed("counting GPUs"))?;
    let mut shown = Vec::new();
    for index in 0..count {
        let device = cuda_device::get(index).map_err(failed("looking for its GPU"))?;
        let found = text_of(&cuda_device::get_uuid(device).map_err(failed("reading a GPU's UUID"))?.bytes);
        if found.eq_ignore_ascii_case(uuid) {
            return Ok(usize::try_from(index).unwrap_or(0));
        }
        shown.push(found);
    }
    let shown = if shown.is_empty() { "none".into() } else { shown.join(", ") };
    Err(LoadError::NotVisible { wanted: uuid.into(), shown })
}

/// A UUID in NVML's form.
fn text_of(bytes: &[std::ffi::c_char; 16]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{:02x}", *byte as u8)).collect();
    format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

#[cfg(test)]
mod tests {
    use gpumon_core::clock::RealClock;

    use super::*;

    #[test]
    fn uuids_are_written_as_nvml_writes_them() {
        let bytes = std::array::from_fn(|i| (i * 16 + 7) as std::ffi::c_char);
        assert_eq!(text_of(&bytes), "GPU-07172737-4757-6777-8797-a7b7c7d7e7f7");
    }

    #[test]
    fn a_missing_driver_is_said_and_no_panic() {
        // SAFETY: as above.
        if unsafe { sys::is_culib_present() } {
            return;
        }
        let mut load = CudaLoad::new("GPU-0", Arc::new(RealClock));
        assert_eq!(load.prepare(), Err(LoadError::NoLibrary));
        assert!(load.start(MonoUs(0), &[]).is_err());
    }

    #[test]
    fn the_kernel_is_there_and_ends_by_its_clock() {
        assert!(PTX.contains(&format!(".visible .entry {KERNEL}(")) && PTX.contains("%globaltimer"));
        assert!(PTX.contains(".target sm_80") && PTX.contains(".version 8.1"));
    }
}
