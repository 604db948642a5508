//! How NVML is loaded, and which GPUs are opened.
//!
//! Rule: NVML is initialised once in a process and never shut down: loops of both leak descriptors, and a handle must
//! outlive any call that hangs. A GPU that PCI runtime power management has put to sleep is not opened, because opening
//! wakes it, unless the caller wants that.
//! Cases: one GPU that fails or does not answer costs itself alone, however many there are; all are opened at the same
//! time. A process that forked after initialising refuses to read in the child, where the driver's descriptors are the
//! parent's. A library that cannot be loaded is told with the loader's own reason.
//! Not done here: closing anything.
//! Source: NVML API reference, `nvmlInit_v2` (initialises no GPU) and `nvmlDeviceGetHandleBy…` (initialises the one).

use std::ffi::OsStr;
use std::process;
use std::sync::{Arc, OnceLock};

use gpumon_core::clock::Clock;
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use super::nvml::NvmlDevice;
use super::{Access, Device, OpenError, patience, power_state};

/// How a GPU is found for the first time.
#[derive(Clone, Debug)]
pub(super) enum Place {
    /// NVML's own number.
    Index(u32),
    /// PCI address.
    Pci(String),
}

/// All NVIDIA GPUs of this machine that are awake, or all. `rest` must be empty.
pub(super) fn open(
    rest: &str,
    clock: Arc<dyn Clock>,
    access: Access,
) -> Result<Vec<Arc<dyn Device>>, OpenError> {
    if !rest.is_empty() {
        return Err(OpenError::UnknownSpec(format!("nvml:{rest}")));
    }
    let awake = if access.wake { None } else { awake()? };
    let opened = patience::answer(|| {
        let nvml = library()?;
        let count = nvml.device_count().map_err(driver_error)?;
        Ok((nvml, count, nvml.sys_driver_version().unwrap_or_default()))
    });
    let (nvml, count, driver) = opened.ok_or_else(|| OpenError::Driver(patience::no_answer()))??;
    let places: Vec<Place> = awake.unwrap_or_else(|| (0..count).map(Place::Index).collect());
    let asks = places.iter().cloned().map(|place| {
        let (driver, clock) = (driver.clone(), clock.clone());
        move || NvmlDevice::open(nvml, &place, &driver, clock)
    });
    let mut devices: Vec<Arc<dyn Device>> = Vec::new();
    for (answer, place) in patience::answers(asks).into_iter().zip(places) {
        let why = match answer {
            Some(Ok(device)) => {
                devices.push(Arc::new(device));
                continue;
            }
            Some(Err(e)) => e.to_string(),
            None => patience::no_answer(),
        };
        match place {
            Place::Index(index) => tracing::warn!("GPU {index} cannot be read and is left out: {why}"),
            Place::Pci(address) => tracing::warn!("GPU {address} cannot be read and is left out: {why}"),
        }
    }
    Ok(devices)
}

/// Where the GPUs are that are awake; `None` if none sleeps, an error if all do.
fn awake() -> Result<Option<Vec<Place>>, OpenError> {
    let gpus = power_state::gpus();
    let (asleep, awake): (Vec<_>, Vec<_>) = gpus.into_iter().partition(|gpu| gpu.suspended);
    if asleep.is_empty() {
        return Ok(None);
    }
    let names: Vec<_> = asleep.into_iter().map(|gpu| gpu.address).collect();
    let names = names.join(", ");
    if awake.is_empty() {
        return Err(OpenError::Asleep(names));
    }
    tracing::warn!("GPU {names} is asleep to save power and is left out; `--wake` reads it all the same");
    Ok(Some(awake.into_iter().map(|gpu| Place::Pci(gpu.address)).collect()))
}

struct Loaded {
    nvml: Nvml,
    /// The process that initialised it.
    pid: u32,
}

static LIBRARY: OnceLock<Loaded> = OnceLock::new();

/// Whether this process was forked off one that had initialised NVML.
pub(super) fn is_fork() -> bool {
    LIBRARY.get().is_some_and(|loaded| loaded.pid != process::id())
}

/// What a fork cannot do.
pub(super) const FORKED: &str =
    "NVML was initialised before this process was forked off; only a program started anew can read GPUs";

/// The library, loaded and initialised at the first call.
pub(crate) fn library() -> Result<&'static Nvml, OpenError> {
    if is_fork() {
        return Err(OpenError::Driver(FORKED.into()));
    }
    if let Some(loaded) = LIBRARY.get() {
        return Ok(&loaded.nvml);
    }
    // The name that the driver installs; the plain one belongs to development packages.
    let load = |name: &str| Nvml::builder().lib_path(OsStr::new(name)).init();
    let nvml = match load(NAME) {
        Err(NvmlError::LibloadingError(first)) => {
            load("libnvidia-ml.so").map_err(|e| match e {
                // The first reason is about the name that counts.
                NvmlError::LibloadingError(_) => NvmlError::LibloadingError(first),
                other => other,
            })
        }
        other => other,
    };
    let nvml = nvml.map_err(driver_error)?;
    Ok(&LIBRARY.get_or_init(|| Loaded { nvml, pid: process::id() }).nvml)
}

const NAME: &str = "libnvidia-ml.so.1";

fn driver_error(e: NvmlError) -> OpenError {
    match e {
        NvmlError::LibloadingError(e) => not_loaded(&e.to_string()),
        NvmlError::LibraryNotFound => OpenError::NoDriver("libnvidia-ml.so.1 is not found".into()),
        NvmlError::DriverNotLoaded => OpenError::NoDriver("the nvidia kernel module is not loaded".into()),
        NvmlError::LibRmVersionMismatch => OpenError::VersionMismatch,
        NvmlError::NotFound => OpenError::NoGpu,
        other => OpenError::Driver(other.to_string()),
    }
}

/// By what the loader says: the library is not there, or it is and something is wrong with it.
fn not_loaded(reason: &str) -> OpenError {
    let absent = reason.strip_prefix(NAME).is_some_and(|rest| rest.contains("No such file or directory"));
    if absent {
        OpenError::NoDriver("libnvidia-ml.so.1 is not found".into())
    } else {
        OpenError::BrokenLibrary(reason.to_owned())
    }
}
