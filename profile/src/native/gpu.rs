//! One GPU through the CUDA driver API: a context, whole or green, and the kernels of [`super::net`]'s layers.
//!
//! Rule: everything happens in one stream of one context, from one thread. Kernels come as PTX for compute capability 8.0,
//! which the driver compiles for any newer GPU (see `scripts/make_ptx.py`). Matrix products are cuBLAS's where it can be loaded,
//! else gpumon's own.
//! Cases: cudarc panics where there is no library, so it is looked for first.
//! Not done here: which layers there are ([`super::model`]).
#![allow(unsafe_code, reason = "the driver's functions are C")]

use std::ffi::{CString, c_void};

use cudarc::driver::sys::CUdevice_attribute as Attribute;
use cudarc::driver::{DriverError, result, sys};

use super::blas::{Blas, BlasError};
use super::green::Green;
use super::net::{Im2col, Multiplier};

const PTX: &str = include_str!("cuda/net.ptx");
const BLOCK: u32 = 256;
/// Side of a tile of gpumon's own matrix product.
const TILE: u64 = 128;
/// Blocks for each SM where a kernel goes through memory by itself.
const BLOCKS_PER_SM: u64 = 16;

/// What went wrong, sorted by what to do next.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// The memory does not suffice: try less.
    #[error("out of memory while {0}")]
    Memory(&'static str),
    /// Such a thing cannot be done on this GPU or with this driver.
    #[error("{0}")]
    Cannot(String),
    /// CUDA says no; whether it will say yes later is not known.
    #[error("CUDA, {doing}: {message}")]
    Failed {
        /// What was done.
        doing: &'static str,
        /// What CUDA says.
        message: String,
    },
}

/// Says what was done when it failed.
pub(super) trait Doing<T> {
    fn doing(self, doing: &'static str) -> Result<T, CudaError>;
}

impl<T> Doing<T> for Result<T, DriverError> {
    fn doing(self, doing: &'static str) -> Result<T, CudaError> {
        self.map_err(|e| match e.0 {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => CudaError::Memory(doing),
            _ => CudaError::Failed { doing, message: e.to_string() },
        })
    }
}

impl<T> Doing<T> for Result<T, BlasError> {
    fn doing(self, doing: &'static str) -> Result<T, CudaError> {
        self.map_err(|e| CudaError::Failed { doing, message: e.to_string() })
    }
}

/// SMs and compute capability (major) of the GPU with this UUID, as NVML gives it. Makes no context.
pub fn sms_of(uuid: &str) -> Result<(u16, i32), CudaError> {
    library()?;
    for index in 0..result::device::get_count().doing("counting GPUs")? {
        let device = result::device::get(index).doing("looking for a GPU")?;
        let bytes = result::device::get_uuid(device).doing("reading a UUID")?.bytes.map(|b| b as u8);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        if uuid.to_ascii_lowercase().replace('-', "").ends_with(&hex) {
            return Ok((
                attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u16,
                attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            ));
        }
    }
    Err(CudaError::Cannot(format!("CUDA does not see the GPU {uuid}; look at CUDA_VISIBLE_DEVICES")))
}

fn library() -> Result<(), CudaError> {
    // SAFETY: loads and unloads the library; its initialisers are the driver's own.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaError::Cannot("libcuda.so is not there; native nets need an NVIDIA driver".into()));
    }
    result::init().doing("initialising")
}

fn attribute(device: sys::CUdevice, which: Attribute) -> Result<i32, CudaError> {
    // SAFETY: the device was given by the driver.
    unsafe { result::device::get_attribute(device, which) }.doing("reading an attribute")
}

/// A GPU, ready for kernels.
pub struct Gpu {
    kernels: Kernels,
    stream: sys::CUstream,
    blas: Option<Blas>,
    sms: u64,
    // Dropped last, and in this order.
    _green: Option<Green>,
    _primary: Primary,
}

struct Kernels {
    fill: sys::CUfunction,
    im2col: sys::CUfunction,
    elementwise: sys::CUfunction,
    gemm: sys::CUfunction,
}

struct Primary(sys::CUdevice);

impl Drop for Primary {
    fn drop(&mut self) {
        // SAFETY: it was retained once.
        let _ = unsafe { result::primary_ctx::release(self.0) };
    }
}

/// Device memory, given back when dropped.
pub struct Buffer {
    at: sys::CUdeviceptr,
    bytes: usize,
}

impl Buffer {
    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: it was allocated by `Gpu::memory` and freed by nobody else.
        let _ = unsafe { result::free_sync(self.at) };
    }
}

impl Gpu {
    /// The first GPU that this process sees; with `green` on so many of its SMs.
    pub fn open(green: Option<u16>, multiplier: Multiplier) -> Result<Self, CudaError> {
        library()?;
        let device = result::device::get(0).doing("looking for a GPU")?;
        if attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)? < 8 {
            return Err(CudaError::Cannot(
                "native nets need a GPU of compute capability 8.0 (Ampere) or newer".into(),
            ));
        }
        let all = attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        // SAFETY: the device is the driver's; the context is current before anything needs one.
        let context = unsafe { result::primary_ctx::retain(device) }.doing("making a context")?;
        let primary = Primary(device);
        // SAFETY: as above.
        unsafe { result::ctx::set_current(context) }.doing("entering it")?;
        let green = green.map(|sms| Green::new(device, sms).map(|green| (green, sms))).transpose()?;
        let stream = match &green {
            Some((green, _)) => {
                // SAFETY: the green context lives as long as the result of this.
                unsafe { result::ctx::set_current(green.context()?) }.doing("entering the green context")?;
                green.stream()?
            }
            None => {
                result::stream::create(result::stream::StreamKind::NonBlocking).doing("making a stream")?
            }
        };
        let kernels = Kernels::load()?;
        let blas = match multiplier {
            Multiplier::Own => None,
            wanted => match Blas::open(stream).doing("opening cuBLAS")? {
                None if wanted == Multiplier::Cublas => {
                    return Err(CudaError::Cannot(
                        "the net wants cuBLAS, which is not there; add its folder to LD_LIBRARY_PATH".into(),
                    ));
                }
                found => found,
            },
        };
        let sms = green.as_ref().map_or(all as u64, |(_, sms)| u64::from(*sms));
        Ok(Self { kernels, stream, blas, sms, _green: green.map(|(green, _)| green), _primary: primary })
    }

    /// Who multiplies matrices, in words.
    pub fn multiplier(&self) -> String {
        self.blas.as_ref().map_or("gpumon's own kernel".into(), |blas| format!("cuBLAS {}", blas.version()))
    }

    /// So much device memory, of unknown content.
    pub fn memory(&self, bytes: u64) -> Result<Buffer, CudaError> {
        // CUDA gives no empty piece.
        let bytes = (bytes as usize).max(16).next_multiple_of(16);
        // SAFETY: a context is current.
        let at = unsafe { result::malloc_sync(bytes) }.doing("allocating")?;
        Ok(Buffer { at, bytes })
    }

    /// Free and all device memory, bytes.
    pub fn free_memory(&self) -> Result<(u64, u64), CudaError> {
        let (free, all) = result::mem_get_info().doing("asking for free memory")?;
        Ok((free as u64, all as u64))
    }

    /// Values for a buffer; both have to be as long.
    pub fn write(&self, to: &Buffer, values: &[u16]) -> Result<(), CudaError> {
        let fits = values.get(..(to.bytes / 2).min(values.len())).unwrap_or_default();
        // SAFETY: not more than the buffer holds.
        unsafe { result::memcpy_htod_sync(to.at, fits) }.doing("copying to the GPU")
    }

    /// The first values of a buffer.
    pub fn read(&self, from: &Buffer, values: usize) -> Result<Vec<u16>, CudaError> {
        let mut read = vec![0; values.min(from.bytes / 2)];
        // SAFETY: not more than the buffer holds.
        unsafe { result::memcpy_dtoh_sync(&mut read, from.at) }.doing("copying from the GPU")?;
        Ok(read)
    }

    /// Random values, evenly spread over ±`limit`.
    pub fn fill(&self, buffer: &Buffer, limit: f32, seed: u64) -> Result<(), CudaError> {
        let (at, pairs) = (buffer.at, buffer.bytes as u64 / 4);
        let mut values = [pointer(&at), pointer(&pairs), pointer(&limit), pointer(&seed)];
        self.launch(self.kernels.fill, (self.blocks(pairs), 1), &mut values)
    }

    /// A leaky ReLU of so many values of `x`, or of (`y` − `x`) / √2, where `y` is read from its `shift`-th eight values on, and then
    /// from its beginning.
    pub fn elementwise(
        &self,
        (x, y): (&Buffer, Option<&Buffer>),
        out: &Buffer,
        (elements, shift): (u64, u64),
    ) -> Result<(), CudaError> {
        let (groups, inputs) = (elements.div_ceil(8).max(1), if y.is_some() { 2 } else { 1 });
        let shift = shift % groups;
        holds(&[Some(x), y, Some(out)], groups * 16)?;
        let (x, y, out) = (x.at, y.map_or(0, |y| y.at), out.at);
        let mut values: [_; 6] = [
            pointer(&x),
            pointer(&y),
            pointer(&out),
            pointer(&groups),
            pointer::<i32>(&inputs),
            pointer(&shift),
        ];
        self.launch(self.kernels.elementwise, (self.blocks(groups), 1), &mut values)
    }

    /// The patches of a convolution, as rows of a matrix.
    pub fn im2col(&self, input: &Buffer, out: &Buffer, op: &Im2col) -> Result<(), CudaError> {
        let images = op.rows / (u64::from(op.out_height) * u64::from(op.out_width)).max(1);
        holds(
            &[Some(input)],
            images * u64::from(op.height) * u64::from(op.width) * u64::from(op.channels) * 2,
        )?;
        holds(&[Some(out)], op.rows * u64::from(op.row_length) * 2)?;
        let sizes = [
            op.height,
            op.width,
            op.channels,
            op.kernel,
            op.stride,
            op.out_height,
            op.out_width,
            op.row_length,
        ];
        let (input, out, rows) = (input.at, out.at, op.rows);
        let mut values: Vec<*mut c_void> = vec![pointer(&input), pointer(&out), pointer(&rows)];
        values.extend(sizes.iter().map(pointer));
        let groups = op.rows * u64::from(op.row_length) / 8;
        self.launch(self.kernels.im2col, (self.blocks(groups), 1), &mut values)
    }

    /// `c[m][n] = Σ a[m][k] · w[n][k]`, rows behind each other; `n` and `k` multiples of eight.
    pub fn gemm(
        &self,
        (a, w, c): (&Buffer, &Buffer, &Buffer),
        (m, n, k): (u64, u32, u32),
    ) -> Result<(), CudaError> {
        holds(&[Some(a)], m * u64::from(k) * 2)?;
        holds(&[Some(w)], u64::from(n) * u64::from(k) * 2)?;
        holds(&[Some(c)], m * u64::from(n) * 2)?;
        if let Some(blas) = &self.blas {
            return blas.gemm((a.at, w.at, c.at), (m, n, k)).doing("multiplying with cuBLAS");
        }
        let (a, w, c, m32) = (a.at, w.at, c.at, m as u32);
        let mut values = [pointer(&a), pointer(&w), pointer(&c), pointer(&m32), pointer(&n), pointer(&k)];
        let grid = (m.div_ceil(TILE) as u32, u64::from(n).div_ceil(TILE) as u32);
        self.launch(self.kernels.gemm, grid, &mut values)
    }

    /// Waits until all that was launched is done.
    pub fn wait(&self) -> Result<(), CudaError> {
        // SAFETY: the stream lives as long as this.
        unsafe { result::stream::synchronize(self.stream) }.doing("waiting for a batch")
    }

    /// What `launch` launches, as one graph.
    pub fn capture(&self, launch: impl FnOnce() -> Result<(), CudaError>) -> Result<Graph, CudaError> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives as long as this.
        unsafe { result::stream::begin_capture(self.stream, mode) }.doing("beginning a graph")?;
        let launched = launch();
        // SAFETY: as above; a graph that was begun has to be ended.
        let graph = unsafe { result::stream::end_capture(self.stream) }.doing("ending a graph");
        launched?;
        let graph = graph?;
        // SAFETY: the graph is valid, and given back whatever comes out.
        let exec = unsafe {
            let none = sys::CUgraphInstantiate_flags(0);
            let exec = result::graph::instantiate(graph, none).doing("making a graph ready");
            let _ = result::graph::destroy(graph);
            exec?
        };
        Ok(Graph(exec))
    }

    /// Launches a graph.
    pub fn replay(&self, graph: &Graph) -> Result<(), CudaError> {
        // SAFETY: both live as long as these.
        unsafe { result::graph::launch(graph.0, self.stream) }.doing("launching a graph")
    }

    fn blocks(&self, threads: u64) -> u32 {
        threads.div_ceil(u64::from(BLOCK)).clamp(1, self.sms * BLOCKS_PER_SM) as u32
    }

    fn launch(
        &self,
        kernel: sys::CUfunction,
        (x, y): (u32, u32),
        values: &mut [*mut c_void],
    ) -> Result<(), CudaError> {
        // SAFETY: each caller gives what its kernel takes (see net.cu) and has seen that the buffers hold it; values are
        // copied by this call.
        unsafe { result::launch_kernel(kernel, (x, y, 1), (BLOCK, 1, 1), 0, self.stream, values) }
            .doing("launching a kernel")
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        self.blas = None;
        // SAFETY: nothing uses the stream any more.
        let _ = unsafe { result::stream::destroy(self.stream) };
    }
}

/// Kernels that run one after another at one launch.
pub struct Graph(sys::CUgraphExec);

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: it was made by `capture` and is destroyed once.
        let _ = unsafe { result::graph::exec_destroy(self.0) };
    }
}

impl Kernels {
    fn load() -> Result<Self, CudaError> {
        let text = CString::new(PTX).map_err(|e| CudaError::Cannot(e.to_string()))?;
        // SAFETY: the text ends with a zero. The module lives as long as its context.
        let module = unsafe { result::module::load_data(text.as_ptr().cast()) }
            .doing("loading kernels (PTX 8.1, driver 530 or newer)")?;
        let kernel = |name: &str| {
            let name = CString::new(name).map_err(|e| CudaError::Cannot(e.to_string()))?;
            // SAFETY: the module was just loaded.
            unsafe { result::module::get_function(module, name) }.doing("looking for a kernel")
        };
        Ok(Self {
            fill: kernel("fill")?,
            im2col: kernel("im2col")?,
            elementwise: kernel("elementwise")?,
            gemm: kernel("gemm")?,
        })
    }
}

/// Whether each buffer holds so many bytes.
fn holds(buffers: &[Option<&Buffer>], bytes: u64) -> Result<(), CudaError> {
    match buffers.iter().flatten().find(|b| b.bytes() < bytes) {
        Some(small) => {
            Err(CudaError::Cannot(format!("a tensor of {bytes} bytes in {} bytes of memory", small.bytes())))
        }
        None => Ok(()),
    }
}

fn pointer<T>(value: &T) -> *mut c_void {
    std::ptr::from_ref(value).cast_mut().cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_are_there() {
        for kernel in ["fill", "im2col", "elementwise", "gemm"] {
            assert!(PTX.contains(&format!(".visible .entry {kernel}(")), "{kernel}");
        }
        assert!(PTX.contains(".target sm_80") && PTX.contains(".version 8.1"));
    }

    #[test]
    fn a_missing_driver_is_said_and_no_panic() {
        // SAFETY: as in `library`.
        if unsafe { sys::is_culib_present() } {
            return;
        }
        let error = Gpu::open(None, Multiplier::Any).err().unwrap().to_string();
        assert!(error.contains("libcuda.so is not there"), "{error}");
        assert!(sms_of("GPU-0").is_err());
    }
}
