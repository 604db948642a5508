//! NVIDIA GPUs through libnvidia-ml.so.
//!
//! NVML is initialised once per process and never shut down: loops of both leak descriptors, and a
//! handle must outlive any call that hangs. GPUs are found by UUID again after the driver was
//! reloaded; that is the caller's affair, this file only says that a GPU is lost.
//!
//! Power is asked at GPU scope; where that does not answer (GH200, GB200), at module scope, and the
//! sensor list says so.
//!
//! Not read here: anything that sets clocks, limits or modes.

use std::ffi::OsStr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use gpumon_core::clock::Clock;
use gpumon_core::units::{Megahertz, Millijoules, Milliwatts, WallUs};
use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::{Clock as ClockKind, TemperatureSensor};
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::{GpmSample, gpm_metrics_get};
use nvml_wrapper_sys::bindings::nvmlSample_t;

use super::nvml_ext::{self, Field};
use super::nvml_process::ProcessReader;
use super::patience;
use super::{
    ACTIVITY_MIN_US, Activity, Device, Identity, OpenError, Power, PowerSample, Processes, ReadError,
    SlowSensor,
};

/// All NVIDIA GPUs of this machine. `rest` must be empty.
pub(super) fn open(rest: &str, clock: Arc<dyn Clock>) -> Result<Vec<Arc<dyn Device>>, OpenError> {
    if !rest.is_empty() {
        return Err(OpenError::UnknownSpec(format!("nvml:{rest}")));
    }
    let opened = patience::answer(|| {
        let nvml = library()?;
        let count = nvml.device_count().map_err(driver_error)?;
        Ok((nvml, count, nvml.sys_driver_version().unwrap_or_default()))
    });
    let (nvml, count, driver) = opened.ok_or_else(|| OpenError::Driver(patience::no_answer()))??;
    let mut devices: Vec<Arc<dyn Device>> = Vec::new();
    for index in 0..count {
        let (driver, clock) = (driver.clone(), clock.clone());
        // One failing GPU never hides the others.
        match patience::answer(move || NvmlDevice::open(nvml, index, &driver, clock)) {
            Some(Ok(device)) => devices.push(Arc::new(device)),
            Some(Err(e)) => tracing::warn!("GPU {index} cannot be read and is left out: {e}"),
            None => tracing::warn!("GPU {index} cannot be read and is left out: {}", patience::no_answer()),
        }
    }
    Ok(devices)
}

/// The library, loaded and initialised at the first call.
fn library() -> Result<&'static Nvml, OpenError> {
    static LIBRARY: OnceLock<Nvml> = OnceLock::new();
    if let Some(nvml) = LIBRARY.get() {
        return Ok(nvml);
    }
    // The name that the driver installs; the plain one belongs to development packages.
    let load = |name: &str| Nvml::builder().lib_path(OsStr::new(name)).init();
    let nvml = match load("libnvidia-ml.so.1") {
        Err(NvmlError::LibloadingError(_)) => load("libnvidia-ml.so"),
        other => other,
    };
    let nvml = nvml.map_err(driver_error)?;
    Ok(LIBRARY.get_or_init(|| nvml))
}

fn driver_error(e: NvmlError) -> OpenError {
    match e {
        NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound => {
            OpenError::NoDriver("libnvidia-ml.so.1 is not found".into())
        }
        NvmlError::DriverNotLoaded => OpenError::NoDriver("the nvidia kernel module is not loaded".into()),
        NvmlError::LibRmVersionMismatch => OpenError::VersionMismatch,
        NvmlError::NotFound => OpenError::NoGpu,
        other => OpenError::Driver(other.to_string()),
    }
}

fn read_error(e: NvmlError) -> ReadError {
    match e {
        NvmlError::NotSupported
        | NvmlError::FunctionNotFound
        | NvmlError::FailedToLoadSymbol(_)
        | NvmlError::InvalidArg => ReadError::Unsupported,
        NvmlError::NoPermission => ReadError::NoPermission,
        NvmlError::GpuLost | NvmlError::ResetRequired => ReadError::Lost(e.to_string()),
        other => ReadError::Transient(other.to_string()),
    }
}

struct NvmlDevice {
    nvml: &'static Nvml,
    device: nvml_wrapper::Device<'static>,
    identity: Identity,
    clock: Arc<dyn Clock>,
    /// The power fields that this GPU answers, found once.
    instant: Option<Field>,
    average: Option<Field>,
    samples: Mutex<Vec<nvmlSample_t>>,
    activity: Mutex<Option<(i64, GpmSample<'static>)>>,
    processes: ProcessReader,
}

impl NvmlDevice {
    fn open(nvml: &'static Nvml, index: u32, driver: &str, clock: Arc<dyn Clock>) -> Result<Self, NvmlError> {
        let device = nvml.device_by_index(index)?;
        let mut identity = identify(&device, index, driver)?;
        let mig_devices = if identity.mig == Some(true) { device.mig_device_count().unwrap_or(0) } else { 0 };
        let processes = ProcessReader::new(&device, mig_devices);
        identity.mig_instances = processes.instances();
        // A failure that may pass does not cost the sensor; one that will not does.
        let first_that_answers = |id| {
            let tried = [Field::gpu(id), Field::module(id)].map(|field| {
                let value = nvml_ext::fields(&device, [field]).and_then(|[value]| value);
                (field, value.map_err(read_error))
            });
            let answers = tried.iter().find(|(_, value)| value.is_ok());
            let may = || tried.iter().find(|(_, value)| value.as_ref().is_err_and(|e| !e.is_final()));
            answers.or_else(may).map(|&(field, _)| field)
        };
        let instant = first_that_answers(nvml_ext::POWER_INSTANT);
        let average = first_that_answers(nvml_ext::POWER_AVERAGE);
        Ok(Self {
            nvml,
            identity,
            clock,
            instant,
            average,
            samples: Mutex::default(),
            activity: Mutex::default(),
            processes,
            device,
        })
    }

    fn one_field(&self, field: Field) -> Result<i64, ReadError> {
        let [value] = nvml_ext::fields(&self.device, [field]).map_err(read_error)?;
        value.map_err(read_error)
    }
}

fn identify(device: &nvml_wrapper::Device<'static>, index: u32, driver: &str) -> Result<Identity, NvmlError> {
    let mig = device.mig_mode().ok().map(|m| m.current != 0);
    let mig_count = if mig == Some(true) { device.mig_device_count().unwrap_or(0) } else { 0 };
    let mem_clock = device.supported_memory_clocks().ok().and_then(|c| c.into_iter().max());
    let mut sm_clocks: Vec<_> = mem_clock
        .and_then(|c| device.supported_graphics_clocks(c).ok())
        .unwrap_or_default()
        .into_iter()
        .map(Megahertz)
        .collect();
    sm_clocks.sort_unstable();
    let name = device.name()?;
    Ok(Identity {
        index,
        // A library over simulated GPUs names them so, and what is recorded from it says so too.
        simulated: name.contains("(simulated)"),
        name,
        uuid: device.uuid()?,
        pci_id: device.pci_info()?.bus_id.to_uppercase(),
        driver: driver.into(),
        power_limit: device.enforced_power_limit().ok().map(Milliwatts),
        mem_total_bytes: device.memory_info().ok().map(|m| m.total),
        sm_clocks,
        mig,
        mig_instances: Vec::new(),
        mig_uuids: (0..mig_count).filter_map(|i| device.mig_device_by_index(i).ok()?.uuid().ok()).collect(),
    })
}

/// One field of a call for two.
fn field_of(fields: &Result<[Result<i64, NvmlError>; 2], ReadError>, index: usize) -> Result<i64, ReadError> {
    match fields {
        Ok(values) => match &values[index] {
            Ok(value) => Ok(*value),
            Err(NvmlError::NotSupported) => Err(ReadError::Unsupported),
            Err(e) => Err(ReadError::Transient(e.to_string())),
        },
        Err(e) => Err(e.clone()),
    }
}

fn milliwatts(value: Result<i64, NvmlError>) -> Result<Milliwatts, ReadError> {
    let mw = value.map_err(read_error)?;
    u32::try_from(mw).map(Milliwatts).map_err(|_| ReadError::Transient(format!("power of {mw} mW")))
}

impl Device for NvmlDevice {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn power(&self) -> Result<Power, ReadError> {
        match (self.instant, self.average) {
            (Some(instant), Some(average)) => {
                let [i, a] = nvml_ext::fields(&self.device, [instant, average]).map_err(read_error)?;
                match (milliwatts(i), milliwatts(a)) {
                    (Err(e), Err(_)) => Err(e),
                    (i, a) => Ok(Power { instant: i.ok(), average: a.ok() }),
                }
            }
            (Some(instant), None) => {
                let [i] = nvml_ext::fields(&self.device, [instant]).map_err(read_error)?;
                Ok(Power { instant: Some(milliwatts(i)?), average: None })
            }
            // Before the fields existed (driver 525) the plain call was the only one. Its window depends on
            // the architecture, so it goes where nothing is promised about the window.
            (None, _) => {
                let usage = self.device.power_usage().map_err(read_error)?;
                Ok(Power { instant: None, average: Some(Milliwatts(usage)) })
            }
        }
    }

    fn sm_clock(&self) -> Result<Megahertz, ReadError> {
        self.device.clock_info(ClockKind::SM).map(Megahertz).map_err(read_error)
    }

    fn power_samples(&self, newer_than: WallUs, into: &mut Vec<PowerSample>) -> Result<(), ReadError> {
        let mut buffer = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        nvml_ext::power_samples(&self.device, newer_than, &mut buffer, into).map_err(read_error)
    }

    fn energy_counter(&self) -> Result<Millijoules, ReadError> {
        self.device.total_energy_consumption().map(Millijoules).map_err(read_error)
    }

    fn slow(&self, sensor: SlowSensor) -> Result<i64, ReadError> {
        let d = &self.device;
        match sensor {
            SlowSensor::MemClock => d.clock_info(ClockKind::Memory).map(i64::from),
            SlowSensor::Temperature => d.temperature(TemperatureSensor::Gpu).map(i64::from),
            SlowSensor::MemTemperature => return self.one_field(Field::gpu(nvml_ext::MEMORY_TEMP)),
            SlowSensor::UtilGpu => d.utilization_rates().map(|u| i64::from(u.gpu)),
            SlowSensor::UtilMem => d.utilization_rates().map(|u| i64::from(u.memory)),
            SlowSensor::MemUsed => d.memory_info().map(|m| m.used as i64),
            SlowSensor::Pstate => d.performance_state().map(|p| i64::from(p.as_c())),
            SlowSensor::EventReasons => nvml_ext::event_reasons(d).map(|bits| bits as i64),
            SlowSensor::Fan => d.fan_speed(0).map(i64::from),
            SlowSensor::MemPower => return self.one_field(Field::memory(nvml_ext::POWER_AVERAGE)),
        }
        .map_err(read_error)
    }

    /// Both utilisations come from one call, and so do the two that are fields.
    fn slow_set(&self, sensors: &[SlowSensor]) -> Vec<Result<i64, ReadError>> {
        let wants = |sensor| sensors.contains(&sensor);
        let both_utils = wants(SlowSensor::UtilGpu) && wants(SlowSensor::UtilMem);
        let both_fields = wants(SlowSensor::MemTemperature) && wants(SlowSensor::MemPower);
        let utils = both_utils.then(|| self.device.utilization_rates().map_err(read_error));
        let fields = both_fields.then(|| {
            let wanted = [Field::gpu(nvml_ext::MEMORY_TEMP), Field::memory(nvml_ext::POWER_AVERAGE)];
            nvml_ext::fields(&self.device, wanted).map_err(read_error)
        });
        let value = |&sensor: &SlowSensor| match (sensor, &utils, &fields) {
            (SlowSensor::UtilGpu, Some(utils), _) => {
                utils.as_ref().map(|u| i64::from(u.gpu)).map_err(Clone::clone)
            }
            (SlowSensor::UtilMem, Some(utils), _) => {
                utils.as_ref().map(|u| i64::from(u.memory)).map_err(Clone::clone)
            }
            (SlowSensor::MemTemperature, _, Some(fields)) => field_of(fields, 0),
            (SlowSensor::MemPower, _, Some(fields)) => field_of(fields, 1),
            _ => self.slow(sensor),
        };
        sensors.iter().map(value).collect()
    }

    fn activity(&self) -> Result<Activity, ReadError> {
        const METRICS: [GpmMetricId; 6] = [
            GpmMetricId::SmUtil,
            GpmMetricId::SmOccupancy,
            GpmMetricId::AnyTensorUtil,
            GpmMetricId::DramBwUtil,
            GpmMetricId::PcieTxPerSec,
            GpmMetricId::PcieRxPerSec,
        ];
        let mut before = self.activity.lock().unwrap_or_else(PoisonError::into_inner);
        let now_us = self.clock.mono().0;
        if before.as_ref().is_some_and(|(at_us, _)| now_us - at_us < ACTIVITY_MIN_US) {
            return Err(ReadError::Transient("performance counters were read less than 100 ms ago".into()));
        }
        if before.is_none() && !self.device.gpm_support().map_err(read_error)? {
            return Err(ReadError::Unsupported);
        }
        let sample = self.device.gpm_sample().map_err(read_error)?;
        let Some((_, first)) = before.replace((now_us, sample)) else {
            return Err(ReadError::Transient("the first reading of performance counters".into()));
        };
        let Some((_, second)) = before.as_ref() else { return Err(ReadError::Unsupported) };
        let metrics = gpm_metrics_get(self.nvml, &first, second, &METRICS).map_err(read_error)?;
        let value = |i: usize| metrics.get(i)?.as_ref().ok().map(|m| m.value).filter(|v| v.is_finite());
        Ok(Activity {
            sm_util_pct: value(0),
            sm_occupancy_pct: value(1),
            tensor_util_pct: value(2),
            dram_util_pct: value(3),
            pcie_tx_mib_per_s: value(4),
            pcie_rx_mib_per_s: value(5),
        })
    }

    fn processes(&self) -> Result<Processes, ReadError> {
        self.processes.read(&self.device, self.clock.wall()).map_err(read_error)
    }
}
