//! Handles: GPUs, MIG devices, instances, performance-counter samples.
//!
//! Rule: a handle is a number in the shape of a pointer, made of a mark, its kind, the GPU and the
//! instances; it is never followed, and one that does not stand for something that exists is
//! INVALID_ARGUMENT. GPUs have the same handles in every process, and others after they vanished: one from before answers
//! the code of the fault `vanish`.
//! Assumed: calls that are about a whole GPU answer NOT_SUPPORTED to a MIG device's handle.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use gpumon_core::units::MonoUs;
use nvml_wrapper_sys::bindings as sys;

use crate::codes::{Answer, Code};
use crate::edge::Arg;
use crate::world::World;

/// A GPU by its number.
pub(crate) struct Index(pub(crate) u32);

impl Arg for Index {
    type Raw = u32;
    unsafe fn take(raw: u32, world: &World) -> Answer<Self> {
        if raw < world.gpu_count() { Ok(Self(raw)) } else { Err(Code::INVALID_ARGUMENT) }
    }
    fn gpu(&self) -> Option<u32> {
        Some(self.0)
    }
}

/// What a handle stands for: a mark of its kind, the GPU, and its instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Handle {
    kind: u8,
    /// How often the GPU had vanished when the handle was made; 0 for all but whole GPUs.
    generation: u8,
    gpu: u32,
    gi: u8,
    ci: u8,
}

const MARK: u64 = 0x4E56;
const GPU: u8 = 1;
const MIG: u8 = 2;
const GPU_INSTANCE: u8 = 3;
const COMPUTE_INSTANCE: u8 = 4;

impl Handle {
    fn pointer<T>(self) -> *mut T {
        let number = MARK << 48
            | u64::from(self.kind) << 40
            | u64::from(self.generation) << 32
            | u64::from(self.gpu & 0xFFFF) << 16
            | u64::from(self.gi) << 8
            | u64::from(self.ci);
        std::ptr::without_provenance_mut(number as usize)
    }

    fn of<T>(pointer: *mut T, kind: u8, world: &World) -> Option<Self> {
        let number = pointer.addr() as u64;
        let gpu = (number >> 16 & 0xFFFF) as u32;
        let generation = (number >> 32) as u8;
        let handle = Self { kind, generation, gpu, gi: (number >> 8) as u8, ci: number as u8 };
        (handle.pointer::<T>() == pointer && gpu < world.gpu_count()).then_some(handle)
    }
}

/// A whole GPU. A MIG device is none, which is NOT_SUPPORTED (assumed).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gpu(pub(crate) u32);

/// A GPU, or a MIG device: compute instance `ci` in GPU instance `gi`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Device {
    Gpu(u32),
    Mig { gpu: u32, gi: u32, ci: u32 },
}

impl Device {
    pub(crate) fn handle(self, world: &World) -> sys::nvmlDevice_t {
        match self {
            Self::Gpu(gpu) => {
                Handle { kind: GPU, generation: world.generation(gpu).0, gpu, gi: 0, ci: 0 }.pointer()
            }
            Self::Mig { gpu, gi, ci } => {
                Handle { kind: MIG, generation: 0, gpu, gi: gi as u8, ci: ci as u8 }.pointer()
            }
        }
    }

    pub(crate) fn physical(self) -> u32 {
        match self {
            Self::Gpu(gpu) | Self::Mig { gpu, .. } => gpu,
        }
    }
}

impl Arg for Device {
    type Raw = sys::nvmlDevice_t;
    unsafe fn take(raw: Self::Raw, world: &World) -> Answer<Self> {
        if let Some(handle) = Handle::of(raw, GPU, world) {
            let (generation, code, _) = world.generation(handle.gpu);
            if let (true, Some(code)) = (handle.generation < generation, code) {
                return Err(code);
            }
            return Ok(Self::Gpu(handle.gpu));
        }
        let Handle { gpu, gi, ci, .. } = Handle::of(raw, MIG, world).ok_or(Code::INVALID_ARGUMENT)?;
        let (gi, ci) = (u32::from(gi), u32::from(ci));
        match world.look(gpu, |model, _| model.mig.instance(gi).and_then(|i| i.compute(ci)).is_ok())? {
            true => Ok(Self::Mig { gpu, gi, ci }),
            false => Err(Code::INVALID_ARGUMENT),
        }
    }
    fn gpu(&self) -> Option<u32> {
        Some(self.physical())
    }
}

impl Arg for Gpu {
    type Raw = sys::nvmlDevice_t;
    unsafe fn take(raw: Self::Raw, world: &World) -> Answer<Self> {
        // SAFETY: the same promise.
        match unsafe { Device::take(raw, world) }? {
            Device::Gpu(gpu) => Ok(Self(gpu)),
            Device::Mig { .. } => Err(Code::NOT_SUPPORTED),
        }
    }
    fn gpu(&self) -> Option<u32> {
        Some(self.0)
    }
}

/// A GPU instance.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gi {
    pub(crate) gpu: u32,
    pub(crate) id: u32,
}

impl Gi {
    pub(crate) fn handle(self) -> sys::nvmlGpuInstance_t {
        Handle { kind: GPU_INSTANCE, generation: 0, gpu: self.gpu, gi: self.id as u8, ci: 0 }.pointer()
    }
}

impl Arg for Gi {
    type Raw = sys::nvmlGpuInstance_t;
    unsafe fn take(raw: Self::Raw, world: &World) -> Answer<Self> {
        let handle = Handle::of(raw, GPU_INSTANCE, world).ok_or(Code::INVALID_ARGUMENT)?;
        let (gpu, id) = (handle.gpu, u32::from(handle.gi));
        world.look(gpu, |model, _| model.mig.instance(id).map(drop))?.map_err(|_| Code::INVALID_ARGUMENT)?;
        Ok(Self { gpu, id })
    }
    fn gpu(&self) -> Option<u32> {
        Some(self.gpu)
    }
}

/// A compute instance.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ci {
    pub(crate) gi: Gi,
    pub(crate) id: u32,
}

impl Ci {
    pub(crate) fn handle(self) -> sys::nvmlComputeInstance_t {
        let (gi, ci) = (self.gi.id as u8, self.id as u8);
        Handle { kind: COMPUTE_INSTANCE, generation: 0, gpu: self.gi.gpu, gi, ci }.pointer()
    }
}

impl Arg for Ci {
    type Raw = sys::nvmlComputeInstance_t;
    unsafe fn take(raw: Self::Raw, world: &World) -> Answer<Self> {
        let handle = Handle::of(raw, COMPUTE_INSTANCE, world).ok_or(Code::INVALID_ARGUMENT)?;
        let (gpu, gi, id) = (handle.gpu, u32::from(handle.gi), u32::from(handle.ci));
        let exists = world.look(gpu, |model, _| model.mig.instance(gi).and_then(|i| i.compute(id)).is_ok());
        if exists? { Ok(Self { gi: Gi { gpu, id: gi }, id }) } else { Err(Code::INVALID_ARGUMENT) }
    }
    fn gpu(&self) -> Option<u32> {
        Some(self.gi.gpu)
    }
}

/// A performance-counter sample: when it was taken of which GPU, if it was.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample(u64);

/// What a sample holds.
pub(crate) type Taken = Option<(u32, MonoUs)>;

struct Samples {
    next: u64,
    taken: BTreeMap<u64, Taken>,
}

static SAMPLES: Mutex<Samples> = Mutex::new(Samples { next: 1, taken: BTreeMap::new() });

fn samples() -> MutexGuard<'static, Samples> {
    SAMPLES.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sample {
    /// An empty sample.
    pub(crate) fn alloc() -> sys::nvmlGpmSample_t {
        let mut samples = samples();
        let id = samples.next;
        samples.next += 1;
        samples.taken.insert(id, None);
        std::ptr::without_provenance_mut((SAMPLE_MARK << 48 | id) as usize)
    }

    /// Forgets it.
    pub(crate) fn free(self) {
        samples().taken.remove(&self.0);
    }

    /// Fills it.
    pub(crate) fn fill(self, gpu: u32, at: MonoUs) {
        samples().taken.insert(self.0, Some((gpu, at)));
    }

    /// What it holds.
    pub(crate) fn taken(self) -> Answer<(u32, MonoUs)> {
        samples().taken.get(&self.0).copied().flatten().ok_or(Code::INVALID_ARGUMENT)
    }

    /// The sample of a handle.
    pub(crate) fn of(raw: sys::nvmlGpmSample_t) -> Answer<Self> {
        let id = raw.addr() as u64 ^ SAMPLE_MARK << 48;
        samples().taken.contains_key(&id).then_some(Self(id)).ok_or(Code::INVALID_ARGUMENT)
    }
}

const SAMPLE_MARK: u64 = 0x4E57;

impl Arg for Sample {
    type Raw = sys::nvmlGpmSample_t;
    unsafe fn take(raw: Self::Raw, _: &World) -> Answer<Self> {
        Self::of(raw)
    }
    fn gpu(&self) -> Option<u32> {
        self.taken().ok().map(|(gpu, _)| gpu)
    }
}
