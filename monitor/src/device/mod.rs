//! GPUs to read from: one read-only trait, one file a backend.
//!
//! ```text
//! --device nvml | sim:NAME | sim:FILE.toml | replay:RECORDING
//!     → open() → the GPUs that the backend offers → select() → those asked for → lanes
//! ```
//!
//! A backend answers for one sensor at a time and says why when it cannot ([`ReadError`], sorted by
//! what the caller does next). It neither smooths nor repeats: a reading that failed is an error, not
//! the reading before it. Nothing here changes a GPU's state.

use std::fmt;
use std::sync::Arc;

use gpumon_core::clock::Clock;
use gpumon_core::header::MigInstance;
use gpumon_core::units::{Megahertz, Millijoules, Milliwatts, WallUs};

pub mod nvml;
mod nvml_ext;
mod nvml_open;
mod nvml_process;
pub(crate) mod patience;
mod power_state;
mod process;
pub mod replay;
pub mod select;
pub mod sim;
pub mod visible;

/// The number that a field has in this driver; see `nvml_ext`.
pub fn field_id(driver: &str, id: u32) -> u32 {
    nvml_ext::Numbering::of(driver).translate(id)
}

pub(crate) use nvml_ext::gpu_instance_id;
pub(crate) use nvml_open::library as nvml_library;
pub use process::{Process, Processes};

/// A GPU that can be read. Calls may block for as long as the driver likes.
pub trait Device: Send + Sync {
    /// What is known of the GPU without reading a sensor.
    fn identity(&self) -> &Identity;
    /// Power now: the short window and the driver's average, each absent where the GPU lacks it.
    fn power(&self) -> Result<Power, ReadError>;
    /// SM clock.
    fn sm_clock(&self) -> Result<Megahertz, ReadError>;
    /// Appends the driver's power readings with time stamps later than `newer_than`, oldest first.
    fn power_samples(&self, newer_than: WallUs, into: &mut Vec<PowerSample>) -> Result<(), ReadError>;
    /// The cumulative energy counter. Slow: 3 ms and more.
    fn energy_counter(&self) -> Result<Millijoules, ReadError>;
    /// One of the sensors that change slowly, in the unit that [`SlowSensor`] states.
    fn slow(&self, sensor: SlowSensor) -> Result<i64, ReadError>;
    /// Several of them, in order. A backend that can fetch some of them together overrides this.
    fn slow_set(&self, sensors: &[SlowSensor]) -> Vec<Result<i64, ReadError>> {
        sensors.iter().map(|&sensor| self.slow(sensor)).collect()
    }
    /// What the GPU's units did since the call before; the first call gives [`ReadError::Transient`].
    fn activity(&self) -> Result<Activity, ReadError>;
    /// The processes on the GPU, and what each did since the call before.
    fn processes(&self) -> Result<Processes, ReadError> {
        Err(ReadError::Unsupported)
    }
    /// Whether the GPU can come back after it was lost, so that looking for it makes sense.
    fn can_return(&self) -> bool {
        false
    }
    /// Looks for a GPU that was lost, by its UUID, and reads from it again where it is found. One look, no waiting; what
    /// the driver takes for it is unknown.
    fn attach_again(&self) -> Result<(), ReadError> {
        Err(ReadError::Lost("this kind of GPU does not come back".into()))
    }
}

/// Which GPU this is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Position in the backend's own order.
    pub index: u32,
    /// Product name.
    pub name: String,
    /// The driver's UUID, `GPU-…`.
    pub uuid: String,
    /// PCI address, `domain:bus:device.function`, upper case.
    pub pci_id: String,
    /// Driver version.
    pub driver: String,
    /// Enforced power limit.
    pub power_limit: Option<Milliwatts>,
    /// Total memory, bytes.
    pub mem_total_bytes: Option<u64>,
    /// Clocks that the SMs can be set to, ascending.
    pub sm_clocks: Vec<Megahertz>,
    /// Whether MIG is on; `None` where the GPU has no MIG.
    pub mig: Option<bool>,
    /// UUIDs of the MIG instances on this GPU.
    pub mig_uuids: Vec<String>,
    /// GPU instances, if MIG is on.
    pub mig_instances: Vec<MigInstance>,
    /// What its power is measured over, `gpu` or `module`; `None` where that is not known.
    pub power_scope: Option<&'static str>,
    /// Whether this GPU is simulated.
    pub simulated: bool,
}

/// One reading of power.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Power {
    /// Over the sensor's short window.
    pub instant: Option<Milliwatts>,
    /// Averaged by the driver.
    pub average: Option<Milliwatts>,
    /// Why the short-window value is absent on a GPU that has it.
    pub instant_failed: Option<&'static str>,
    /// Why the average is absent on a GPU that has it.
    pub average_failed: Option<&'static str>,
}

/// One of the driver's own, time-stamped power readings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PowerSample {
    /// The driver's time stamp.
    pub time: WallUs,
    /// Power.
    pub power: Milliwatts,
}

/// What a GPU's units did over a span, from its performance counters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Activity {
    /// Share of SM time with at least one warp, %.
    pub sm_util_pct: Option<f64>,
    /// Resident over possible warps, %.
    pub sm_occupancy_pct: Option<f64>,
    /// Share of cycles with the tensor pipe active, %.
    pub tensor_util_pct: Option<f64>,
    /// Share of peak DRAM bandwidth, %.
    pub dram_util_pct: Option<f64>,
    /// PCIe sent, MiB/s.
    pub pcie_tx_mib_per_s: Option<f64>,
    /// PCIe received, MiB/s.
    pub pcie_rx_mib_per_s: Option<f64>,
}

/// The span below which performance counters give zeros and NaN with a success code, µs.
pub const ACTIVITY_MIN_US: i64 = 100_000;

macro_rules! slow_sensors {
    ($( $(#[doc = $doc:literal])* $sensor:ident = $name:literal, )*) => {
        /// Sensors that change slowly enough for ten readings a second.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum SlowSensor { $( $(#[doc = $doc])* $sensor, )* }

        impl SlowSensor {
            /// All of them, in the order of the slow table's columns.
            pub const ALL: &'static [Self] = &[$( Self::$sensor ),*];

            /// The sensor's column.
            pub fn name(self) -> &'static str {
                match self { $( Self::$sensor => $name ),* }
            }
        }
    };
}

slow_sensors! {
    /// Memory clock, MHz.
    MemClock = "mem_mhz",
    /// GPU temperature, °C.
    Temperature = "temp_c",
    /// Memory temperature, °C.
    MemTemperature = "mem_temp_c",
    /// Share of time with a kernel running, %.
    UtilGpu = "util_gpu_pct",
    /// Share of time with memory traffic, %.
    UtilMem = "util_mem_pct",
    /// Memory in use, bytes.
    MemUsed = "mem_used_bytes",
    /// Performance state, 0 to 15.
    Pstate = "pstate",
    /// NVML's clock-event reason bits.
    EventReasons = "event_reasons",
    /// Fan speed, %.
    Fan = "fan_pct",
    /// Power of the memory, averaged by the driver, mW.
    MemPower = "mem_power_mw",
}

/// Why a sensor gave nothing, sorted by what to do next.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// This GPU has no such sensor: do not ask again.
    #[error("not supported by this GPU")]
    Unsupported,
    /// The sensor exists but is closed to this user: do not ask again.
    #[error("no permission to read it")]
    NoPermission,
    /// It failed this time: ask again at the next tick.
    #[error("{0}")]
    Transient(String),
    /// The GPU is gone: stop reading it.
    #[error("the GPU is lost: {0}")]
    Lost(String),
}

impl ReadError {
    /// Whether asking again can help.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Unsupported | Self::NoPermission)
    }
}

/// Why no GPUs can be offered. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The text after `--device` names no backend.
    #[error(
        "unknown device `{0}`: expected `nvml`, `sim:h200`, `sim:a100`, `sim:FILE.toml` or `replay:RECORDING`"
    )]
    UnknownSpec(String),
    /// There is no NVIDIA driver here.
    #[error(
        "no NVIDIA driver on this machine ({0}); install one, or try `--device sim:h200`, a simulated GPU"
    )]
    NoDriver(String),
    /// The driver's kernel module and library do not fit.
    #[error(
        "the NVIDIA kernel module and libnvidia-ml.so are of different versions, as after an update without a \
         restart; restart the machine, or reload the nvidia modules (`rmmod nvidia_uvm nvidia; modprobe nvidia`)"
    )]
    VersionMismatch,
    /// The library is there and cannot be loaded.
    #[error(
        "the NVIDIA driver's library cannot be loaded ({0}); install the driver anew, or try `--device sim:h200`, a \
         simulated GPU"
    )]
    BrokenLibrary(String),
    /// Every GPU is suspended.
    #[error(
        "GPU {0} is asleep to save power (PCI runtime power management), and reading would wake it; give `--wake` to \
         read it all the same"
    )]
    Asleep(String),
    /// The driver answers, but there is nothing to read.
    #[error(
        "the NVIDIA driver finds no GPU; see whether `nvidia-smi -L` lists one, or try `--device sim:h200`"
    )]
    NoGpu,
    /// The driver refuses.
    #[error("the NVIDIA driver does not answer: {0}")]
    Driver(String),
    /// A simulated GPU's description is wrong.
    #[error("{0}")]
    Spec(String),
    /// A recording cannot be replayed.
    #[error("{0}")]
    Replay(String),
}

/// What opening a GPU may do to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Whether a GPU that is suspended to save power may be woken.
    pub wake: bool,
}

/// A way to get GPUs.
struct Backend {
    /// What stands before the colon of `--device`.
    scheme: &'static str,
    /// Opens all GPUs for what stands behind the colon.
    open: fn(rest: &str, clock: Arc<dyn Clock>, access: Access) -> Opened,
}

/// All GPUs of a backend.
type Opened = Result<Vec<Arc<dyn Device>>, OpenError>;

const BACKENDS: &[Backend] = &[
    Backend { scheme: "nvml", open: nvml_open::open },
    Backend { scheme: "sim", open: sim::open },
    Backend { scheme: "replay", open: replay::open },
];

/// All GPUs of a device specification such as `nvml` or `sim:h200`, but for those that sleep.
pub fn open(spec: &str, clock: Arc<dyn Clock>) -> Opened {
    open_as(spec, clock, Access::default())
}

/// The same, with a word on what opening may do.
pub fn open_as(spec: &str, clock: Arc<dyn Clock>, access: Access) -> Opened {
    let (scheme, rest) = spec.split_once(':').unwrap_or((spec, ""));
    let backend = BACKENDS.iter().find(|b| b.scheme == scheme);
    let devices = backend
        .map(|b| (b.open)(rest, clock, access))
        .ok_or_else(|| OpenError::UnknownSpec(spec.into()))??;
    if devices.is_empty() { Err(OpenError::NoGpu) } else { Ok(devices) }
}

/// What one GPU can be asked, found by asking each sensor once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sensors {
    /// Power over the short window.
    pub power_instant: bool,
    /// Power averaged by the driver.
    pub power_average: bool,
    /// SM clock.
    pub sm_clock: bool,
    /// The driver's ring of power readings.
    pub power_samples: bool,
    /// The energy counter.
    pub energy_counter: bool,
    /// The slow sensors that answer.
    pub slow: Vec<SlowSensor>,
    /// Performance counters.
    pub activity: bool,
    /// The list of processes.
    pub process: bool,
    /// What each process did.
    pub process_util: bool,
}

impl Sensors {
    /// Asks every sensor once. A transient failure counts as supported: the next tick may succeed.
    pub fn probe(device: &dyn Device) -> Result<Self, ReadError> {
        fn answers<T>(read: Result<T, ReadError>) -> Result<bool, ReadError> {
            match read {
                Err(lost @ ReadError::Lost(_)) => Err(lost),
                Err(e) => Ok(!e.is_final()),
                Ok(_) => Ok(true),
            }
        }
        let power = device.power();
        let known = power.as_ref().ok().copied();
        let has_power = answers(power)?;
        let mut slow = Vec::new();
        for &sensor in SlowSensor::ALL {
            if answers(device.slow(sensor))? {
                slow.push(sensor);
            }
        }
        let processes = device.processes();
        let process_util = processes.as_ref().is_ok_and(|p| p.has_utilisation);
        Ok(Self {
            power_instant: has_power
                && known.is_none_or(|p| p.instant.is_some() || p.instant_failed.is_some()),
            power_average: has_power
                && known.is_none_or(|p| p.average.is_some() || p.average_failed.is_some()),
            sm_clock: answers(device.sm_clock())?,
            power_samples: answers(device.power_samples(WallUs(i64::MAX), &mut Vec::new()))?,
            energy_counter: answers(device.energy_counter())?,
            slow,
            activity: answers(device.activity())?,
            process: answers(processes)?,
            process_util,
        })
    }

    /// The same for several GPUs at once; a driver that does not return from a call within a few seconds is an error.
    pub fn probe_patiently(devices: &[Arc<dyn Device>]) -> Vec<Result<Self, ReadError>> {
        let asks = devices.iter().cloned().map(|device| move || Self::probe(device.as_ref()));
        let no_answer = || Err(ReadError::Transient(patience::no_answer()));
        patience::answers(asks).into_iter().map(|answer| answer.unwrap_or_else(no_answer)).collect()
    }

    /// Names of the sensors that answer and of those that do not.
    pub fn names(&self) -> (Vec<String>, Vec<String>) {
        let fixed = [
            ("power_instant_mw", self.power_instant),
            ("power_average_mw", self.power_average),
            ("sm_mhz", self.sm_clock),
            ("ring", self.power_samples),
            ("energy_mj", self.energy_counter),
            ("gpm", self.activity),
            ("process", self.process),
            ("process_util", self.process_util),
        ];
        let slow = SlowSensor::ALL.iter().map(|s| (s.name(), self.slow.contains(s)));
        let (yes, no): (Vec<_>, Vec<_>) = fixed.into_iter().chain(slow).partition(|&(_, works)| works);
        let names = |list: Vec<(&str, bool)>| list.into_iter().map(|(name, _)| name.to_owned()).collect();
        (names(yes), names(no))
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GPU {} ({}, {})", self.index, self.name, self.uuid)
    }
}
