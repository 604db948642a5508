//! NVIDIA GPUs through libnvidia-ml.so.
//!
//! A GPU that is lost, or that a container no longer sees, is looked for by its UUID when the caller asks: the new handle
//! takes the place of the old one, and calls that still hang on that one are left to themselves. How NVML is loaded and
//! GPUs are found at first is `nvml_open`'s.
//!
//! Power is asked at GPU scope; where that does not answer (GH200, GB200), at module scope, and the identity says which.
//!
//! Not read here: anything that sets clocks, limits or modes.

use std::sync::{Arc, Mutex, PoisonError};

use gpumon_core::clock::Clock;
use gpumon_core::units::{Megahertz, Millijoules, Milliwatts, WallUs};
use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::{Clock as ClockKind, TemperatureSensor};
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::{GpmSample, gpm_metrics_get};
use nvml_wrapper_sys::bindings::nvmlSample_t;

use super::nvml_ext::{self, Field, Numbering};
use super::nvml_open::{self, Place};
use super::nvml_process::ProcessReader;
use super::{
    ACTIVITY_MIN_US, Activity, Device, Identity, Power, PowerSample, Processes, ReadError, SlowSensor,
};

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

pub(super) struct NvmlDevice {
    nvml: &'static Nvml,
    /// Replaced when the GPU comes back after it was lost.
    device: Mutex<Arc<nvml_wrapper::Device<'static>>>,
    identity: Identity,
    clock: Arc<dyn Clock>,
    numbering: Numbering,
    /// The power fields that this GPU answers, found once.
    instant: Option<Field>,
    average: Option<Field>,
    samples: Mutex<Vec<nvmlSample_t>>,
    activity: Mutex<Option<(i64, GpmSample<'static>)>>,
    /// Replaced with the GPU, because its MIG devices are.
    processes: Mutex<Arc<ProcessReader>>,
}

impl NvmlDevice {
    /// Opens one GPU and finds out over what its power is measured.
    pub(super) fn open(
        nvml: &'static Nvml,
        place: &Place,
        driver: &str,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, NvmlError> {
        let (index, device) = match place {
            Place::Index(index) => (*index, nvml.device_by_index(*index)?),
            Place::Pci(address) => {
                let device = nvml.device_by_pci_bus_id(address.as_str())?;
                (device.index()?, device)
            }
        };
        let numbering = Numbering::of(driver);
        let mut identity = identify(&device, index, driver)?;
        let [instant, average] = power_fields(&device, numbering);
        let processes = ProcessReader::new(&device, identity.mig == Some(true));
        identity.mig_instances = processes.instances();
        identity.power_scope = instant.or(average).map(|field| field.scope_name());
        Ok(Self {
            nvml,
            identity,
            clock,
            numbering,
            instant,
            average,
            samples: Mutex::default(),
            activity: Mutex::default(),
            processes: Mutex::new(Arc::new(processes)),
            device: Mutex::new(Arc::new(device)),
        })
    }

    /// The present handle. Nobody waits for a call of another thread here, which may never return.
    fn device(&self) -> Result<Arc<nvml_wrapper::Device<'static>>, ReadError> {
        if nvml_open::is_fork() {
            return Err(ReadError::Lost(nvml_open::FORKED.into()));
        }
        Ok(self.device.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    fn ask<T>(
        &self,
        ask: impl FnOnce(&nvml_wrapper::Device<'static>) -> Result<T, NvmlError>,
    ) -> Result<T, ReadError> {
        ask(self.device()?.as_ref()).map_err(read_error)
    }

    fn fields<const N: usize>(&self, wanted: [Field; N]) -> Result<[Result<i64, NvmlError>; N], ReadError> {
        self.ask(|device| nvml_ext::fields(device, self.numbering, wanted))
    }

    fn one_field(&self, field: Field) -> Result<i64, ReadError> {
        let [value] = self.fields([field])?;
        value.map_err(read_error)
    }
}

/// The fields of instant and average power at the first scope where either answers, each absent where the GPU lacks it.
/// A failure that may pass does not cost the sensor; one that will not does.
fn power_fields(device: &nvml_wrapper::Device<'static>, numbering: Numbering) -> [Option<Field>; 2] {
    type Scope = fn(u32) -> Field;
    let tried = [Field::gpu as Scope, Field::module as Scope].map(|scope| {
        [nvml_ext::POWER_INSTANT, nvml_ext::POWER_AVERAGE].map(scope).map(|field| {
            let value = nvml_ext::fields(device, numbering, [field]).and_then(|[value]| value);
            (field, value.map_err(read_error))
        })
    });
    let kept = |at_scope: &[(Field, Result<i64, ReadError>); 2]| {
        [0, 1].map(|i| {
            let (field, value) = &at_scope[i];
            value.as_ref().map_or_else(|e| !e.is_final(), |_| true).then_some(*field)
        })
    };
    let answers = tried.iter().find(|at_scope| at_scope.iter().any(|(_, value)| value.is_ok()));
    answers
        .map(kept)
        .or_else(|| tried.iter().map(kept).find(|kept| kept.iter().any(Option::is_some)))
        .unwrap_or_default()
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
        power_scope: None,
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

/// Why one of the two power fields gave nothing while the other answered.
fn why(e: &NvmlError) -> &'static str {
    match e {
        NvmlError::UnexpectedVariant(_) => "its value is of a type that NVML does not define",
        _ => "it gave nothing",
    }
}

fn milliwatts(value: &Result<i64, NvmlError>) -> Result<Milliwatts, ReadError> {
    let mw = match value {
        Ok(mw) => *mw,
        Err(NvmlError::NotSupported) => return Err(ReadError::Unsupported),
        Err(NvmlError::NoPermission) => return Err(ReadError::NoPermission),
        Err(e @ (NvmlError::GpuLost | NvmlError::ResetRequired)) => {
            return Err(ReadError::Lost(e.to_string()));
        }
        Err(e) => return Err(ReadError::Transient(e.to_string())),
    };
    u32::try_from(mw).map(Milliwatts).map_err(|_| ReadError::Transient(format!("power of {mw} mW")))
}

impl Device for NvmlDevice {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn power(&self) -> Result<Power, ReadError> {
        match (self.instant, self.average) {
            (Some(instant), Some(average)) => {
                let [i, a] = self.fields([instant, average])?;
                match (milliwatts(&i), milliwatts(&a)) {
                    (Err(e), Err(_)) => Err(e),
                    (mw_i, mw_a) => Ok(Power {
                        instant: mw_i.ok(),
                        average: mw_a.ok(),
                        instant_failed: i.err().map(|e| why(&e)),
                        average_failed: a.err().map(|e| why(&e)),
                    }),
                }
            }
            (Some(instant), None) => {
                let [i] = self.fields([instant])?;
                Ok(Power { instant: Some(milliwatts(&i)?), ..Power::default() })
            }
            (None, Some(average)) => {
                let [a] = self.fields([average])?;
                Ok(Power { average: Some(milliwatts(&a)?), ..Power::default() })
            }
            // Before the fields existed (driver 525) the plain call was the only one. Its window depends on
            // the architecture, so it goes where nothing is promised about the window.
            (None, None) => {
                let usage = self.ask(|device| device.power_usage())?;
                Ok(Power { average: Some(Milliwatts(usage)), ..Power::default() })
            }
        }
    }

    fn sm_clock(&self) -> Result<Megahertz, ReadError> {
        self.ask(|device| device.clock_info(ClockKind::SM)).map(Megahertz)
    }

    fn power_samples(&self, newer_than: WallUs, into: &mut Vec<PowerSample>) -> Result<(), ReadError> {
        let mut buffer = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        self.ask(|device| nvml_ext::power_samples(device, newer_than, &mut buffer, into))
    }

    fn energy_counter(&self) -> Result<Millijoules, ReadError> {
        self.ask(|device| device.total_energy_consumption()).map(Millijoules)
    }

    fn slow(&self, sensor: SlowSensor) -> Result<i64, ReadError> {
        let device = self.device()?;
        let d = device.as_ref();
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
        let utils = both_utils.then(|| self.ask(|device| device.utilization_rates()));
        let fields = both_fields.then(|| {
            let wanted = [Field::gpu(nvml_ext::MEMORY_TEMP), Field::memory(nvml_ext::POWER_AVERAGE)];
            self.fields(wanted)
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
        if before.is_none() && !self.ask(|device| device.gpm_support())? {
            return Err(ReadError::Unsupported);
        }
        let sample = self.ask(|device| device.gpm_sample())?;
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
        let reader = self.processes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.ask(|device| reader.read(device, self.clock.wall()))
    }

    fn can_return(&self) -> bool {
        true
    }

    fn attach_again(&self) -> Result<(), ReadError> {
        if nvml_open::is_fork() {
            return Err(ReadError::Lost(nvml_open::FORKED.into()));
        }
        let found = self.nvml.device_by_uuid(self.identity.uuid.as_str()).map_err(read_error)?;
        // A handle to a GPU that does not answer is no better than the old one.
        found.clock_info(ClockKind::SM).map(drop).or_else(|e| match read_error(e) {
            e if e.is_final() => Ok(()),
            e => Err(e),
        })?;
        // Counters of before mean nothing; whoever hangs in a call for them keeps them.
        if let Ok(mut activity) = self.activity.try_lock() {
            *activity = None;
        }
        let processes = ProcessReader::new(&found, self.identity.mig == Some(true));
        *self.processes.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(processes);
        *self.device.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(found);
        Ok(())
    }
}
