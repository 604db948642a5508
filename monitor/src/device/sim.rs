//! Simulated GPUs: the built-in ones by name, others from a TOML file.
//!
//! Time zero of a simulated GPU is the moment at which it is opened. A call takes as long here as it
//! would on the real GPU: it sleeps on the clock it was given until the simulation says that it
//! returns. Ring readings carry the wall-clock time at which they were taken, steps of that clock
//! included.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gpumon_core::clock::Clock;
use gpumon_core::units::{Megahertz, Millijoules, Milliwatts, MonoUs, WallUs};
use gpumon_simgpu::{Reading, Sensor, SimGpu, Spec};

use super::{
    Access, Activity, Device, Identity, OpenError, Power, PowerSample, Process, Processes, ReadError,
    SlowSensor,
};

/// The GPUs that `rest`, a built-in name or the path of a TOML file, describes.
pub(super) fn open(rest: &str, clock: Arc<dyn Clock>, _: Access) -> Result<Vec<Arc<dyn Device>>, OpenError> {
    let devices = named(rest, &clock)?;
    Ok(devices.into_iter().map(|d| d as Arc<dyn Device>).collect())
}

/// The GPUs of a built-in name or of a TOML file, as simulations that can be changed.
pub fn named(name: &str, clock: &Arc<dyn Clock>) -> Result<Vec<Arc<SimDevice>>, OpenError> {
    Ok(fleet(&read_spec(name)?, clock))
}

/// All GPUs of a description, opened now.
pub fn fleet(spec: &Spec, clock: &Arc<dyn Clock>) -> Vec<Arc<SimDevice>> {
    SimGpu::fleet(spec).into_iter().map(|gpu| Arc::new(SimDevice::new(gpu, clock.clone()))).collect()
}

fn read_spec(name: &str) -> Result<Spec, OpenError> {
    if let Some(spec) = Spec::builtin(name) {
        return Ok(spec);
    }
    let path = Path::new(name);
    if path.extension().is_none_or(|e| e != "toml") {
        return Err(OpenError::UnknownSpec(format!("sim:{name}")));
    }
    let read = |path: PathBuf| std::fs::read_to_string(path).map_err(|e| e.to_string());
    let text = read(path.to_owned())
        .map_err(|e| OpenError::Spec(format!("cannot read `{}`: {e}", path.display())))?;
    // A trace is looked for beside the file that names it.
    let folder = path.parent().unwrap_or(Path::new("."));
    let spec = Spec::parse(&text, &mut |file| read(folder.join(file)));
    spec.map_err(|e| OpenError::Spec(format!("`{}`: {e}", path.display())))
}

/// One simulated GPU on a clock.
pub struct SimDevice {
    gpu: Mutex<SimGpu>,
    identity: Identity,
    clock: Arc<dyn Clock>,
    opened: MonoUs,
    /// Wall-clock time of simulated time zero, from which moment on.
    wall_at_zero: Mutex<Vec<(MonoUs, i64)>>,
    /// When processes were asked for last.
    processes_at: Mutex<Option<MonoUs>>,
}

impl SimDevice {
    /// Opens `gpu` at the clock's present.
    pub fn new(gpu: SimGpu, clock: Arc<dyn Clock>) -> Self {
        let spec = gpu.spec();
        let identity = Identity {
            index: gpu.index(),
            name: spec.name.clone(),
            uuid: gpu.uuid(),
            pci_id: gpu.pci_id(),
            driver: spec.driver.clone(),
            power_limit: Some(gpu.settings().limit),
            mem_total_bytes: Some(spec.mem_total_bytes),
            sm_clocks: gpu.graphics_clocks(),
            mig: None,
            mig_uuids: Vec::new(),
            mig_instances: Vec::new(),
            power_scope: Some("gpu"),
            simulated: true,
        };
        let opened = clock.mono();
        Self {
            gpu: Mutex::new(gpu),
            identity,
            opened,
            wall_at_zero: Mutex::default(),
            processes_at: Mutex::default(),
            clock,
        }
    }

    /// When the GPU was opened: simulated time zero.
    pub fn opened(&self) -> MonoUs {
        self.opened
    }

    /// The simulation, for its truth.
    pub fn gpu(&self) -> MutexGuard<'_, SimGpu> {
        self.gpu.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call<T>(&self, read: impl FnOnce(&mut SimGpu, MonoUs) -> Reading<T>) -> Result<T, ReadError> {
        let now = MonoUs(self.clock.mono().since_us(self.opened));
        let reading = read(&mut self.gpu(), now);
        self.clock.sleep_until(self.opened.plus_us(reading.done.0));
        reading.value.map_err(|_| ReadError::Unsupported)
    }

    /// Wall-clock time of simulated time zero for each span of simulated time, oldest first.
    fn wall_offsets(&self) -> Vec<(MonoUs, i64)> {
        let now = self.clock.mono();
        let zero_us = self.clock.wall().0 - now.0 + self.opened.0;
        let mut offsets = self.wall_at_zero.lock().unwrap_or_else(PoisonError::into_inner);
        const JITTER_US: i64 = 1_000;
        if offsets.last().is_none_or(|(_, known_us)| (zero_us - known_us).abs() > JITTER_US) {
            let from = if offsets.is_empty() { i64::MIN } else { now.since_us(self.opened) };
            offsets.push((MonoUs(from), zero_us));
        }
        offsets.clone()
    }
}

impl Device for SimDevice {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn power(&self) -> Result<Power, ReadError> {
        let has_average = self.gpu().supports(Sensor::PowerAverage);
        let instant = self.call(|gpu, now| gpu.power_instant(now));
        let average = if has_average {
            self.call(|gpu, now| gpu.power_average(now))
        } else if instant.is_err() {
            // The same order of preference as on a real GPU.
            self.call(|gpu, now| gpu.power_usage(now))
        } else {
            Err(ReadError::Unsupported)
        };
        match (instant, average) {
            (Err(e), Err(_)) => Err(e),
            (instant, average) => {
                Ok(Power { instant: instant.ok(), average: average.ok(), ..Power::default() })
            }
        }
    }

    fn sm_clock(&self) -> Result<Megahertz, ReadError> {
        self.call(|gpu, now| gpu.sm_clock(now))
    }

    fn power_samples(&self, newer_than: WallUs, into: &mut Vec<PowerSample>) -> Result<(), ReadError> {
        let offsets = self.wall_offsets();
        let since = offsets.iter().map(|(_, zero_us)| newer_than.0.saturating_sub(*zero_us)).min();
        let readings = self.call(|gpu, now| gpu.ring(now, since.map(MonoUs)))?;
        let stamped = readings.into_iter().map(|r| {
            let zero_us =
                offsets.iter().rev().find(|(from, _)| *from <= r.at).map_or(0, |(_, zero_us)| *zero_us);
            PowerSample { time: WallUs(r.at.0 + zero_us), power: r.power }
        });
        into.extend(stamped.filter(|s| s.time > newer_than));
        Ok(())
    }

    fn energy_counter(&self) -> Result<Millijoules, ReadError> {
        self.call(|gpu, now| gpu.energy_counter(now))
    }

    fn slow(&self, sensor: SlowSensor) -> Result<i64, ReadError> {
        match sensor {
            SlowSensor::MemClock => self.call(|gpu, now| gpu.mem_clock(now)).map(|m| i64::from(m.0)),
            SlowSensor::Temperature => self.call(|gpu, now| gpu.temperature(now)).map(i64::from),
            SlowSensor::MemTemperature => self.call(|gpu, now| gpu.mem_temperature(now)).map(i64::from),
            SlowSensor::UtilGpu => self.call(|gpu, now| gpu.utilization(now)).map(|u| i64::from(u.gpu_pct)),
            SlowSensor::UtilMem => self.call(|gpu, now| gpu.utilization(now)).map(|u| i64::from(u.mem_pct)),
            SlowSensor::MemUsed => self.call(|gpu, now| gpu.mem_used(now)).map(|b| b as i64),
            SlowSensor::Pstate => self.call(|gpu, now| gpu.pstate(now)).map(i64::from),
            SlowSensor::EventReasons => self.call(|gpu, now| gpu.event_reasons(now)).map(|bits| bits as i64),
            SlowSensor::Fan => self.call(|gpu, now| gpu.fan(now)).map(i64::from),
            SlowSensor::MemPower => {
                self.call(|gpu, now| gpu.mem_power(now)).map(|Milliwatts(mw)| i64::from(mw))
            }
        }
    }

    fn activity(&self) -> Result<Activity, ReadError> {
        let m = self.call(|gpu, now| gpu.gpm(now))?;
        let known = |value: f64| value.is_finite().then_some(value);
        Ok(Activity {
            sm_util_pct: known(m.sm_util_pct),
            sm_occupancy_pct: known(m.sm_occupancy_pct),
            tensor_util_pct: known(m.tensor_util_pct),
            dram_util_pct: known(m.dram_util_pct),
            pcie_tx_mib_per_s: known(m.pcie_tx_mib_per_s),
            pcie_rx_mib_per_s: known(m.pcie_rx_mib_per_s),
        })
    }

    fn processes(&self) -> Result<Processes, ReadError> {
        const FIRST_US: i64 = 1_000_000;
        let mut asked = self.processes_at.lock().unwrap_or_else(PoisonError::into_inner);
        let did = self.call(|gpu, now| {
            let from = asked.replace(now).unwrap_or(now.plus_us(-FIRST_US));
            gpu.processes(from, now)
        })?;
        let list = did.into_iter().map(|p| Process {
            pid: p.process.pid,
            name: Some(p.process.name),
            mig_instance: p.process.mig_instance,
            sm_util_pct: p.sm_util_pct.map(f64::from),
            mem_util_pct: p.mem_util_pct.map(f64::from),
            mem_used_bytes: p.lives.then_some(p.process.mem_bytes),
        });
        let list = list.collect();
        Ok(Processes { list, has_utilisation: self.gpu().supports(Sensor::ProcessUtilization) })
    }
}
