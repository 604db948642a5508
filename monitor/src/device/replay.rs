//! A recording as a GPU: what was recorded at a time is read again at the same time after opening.
//!
//! Sensors keep their last recorded value until the next, the ring hands out its readings when their
//! time has come, with time stamps moved to the present. A reading that was null in the recording
//! fails here too. When the recording ends, the GPU is lost.
//!
//! Not done: call costs; a replayed call returns at once.

use std::path::Path;
use std::sync::Arc;

use gpumon_core::clock::Clock;
use gpumon_core::header::{self, Header};
use gpumon_core::rows::{CounterRow, FastRow, ProcessRow, RingRow, SlowRow};
use gpumon_core::table::Table;
use gpumon_core::units::{Megahertz, Millijoules, Milliwatts, MonoUs, WallUs};

use super::{
    Access, Activity, Device, Identity, OpenError, Power, PowerSample, Process, Processes, ReadError,
    SlowSensor,
};
use crate::store::{Reader, Row, StoreError};

/// How long after the end of the recording the ring can be fetched, µs: longer than between two drains.
const RING_KEPT_US: i64 = 1_000_000;
/// Rows of processes are about the second before them, and hold for the second after, µs.
const PROCESSES_HELD_US: i64 = 1_500_000;

/// The GPUs of the recording at the path `rest`.
pub(super) fn open(rest: &str, clock: Arc<dyn Clock>, _: Access) -> Result<Vec<Arc<dyn Device>>, OpenError> {
    if rest.is_empty() {
        return Err(OpenError::UnknownSpec("replay:".into()));
    }
    let devices = load(Path::new(rest), &clock).map_err(|e| OpenError::Replay(e.to_string()))?;
    Ok(devices.into_iter().map(|d| Arc::new(d) as Arc<dyn Device>).collect())
}

fn load(path: &Path, clock: &Arc<dyn Clock>) -> Result<Vec<ReplayDevice>, StoreError> {
    let reader = Reader::open(path)?;
    let header = reader.header();
    let (opened, wall) = (clock.mono(), clock.wall());
    let mut devices: Vec<_> = (0..)
        .zip(&header.gpus)
        .map(|(index, gpu)| ReplayDevice {
            identity: identity(index, gpu, header),
            clock: clock.clone(),
            opened,
            opened_wall: wall,
            end_us: header.duration_us.unwrap_or(0),
            unsupported: gpu.unsupported.clone(),
            lists_processes: gpu.sensors.iter().any(|name| name == ProcessRow::NAME),
            fast: Vec::new(),
            ring: Vec::new(),
            slow: Vec::new(),
            process: Vec::new(),
            counter: Vec::new(),
        })
        .collect();
    // Rows that repeat the one before say nothing that a held value does not say.
    each::<FastRow>(&reader, |row| {
        if let Some(d) = at(&mut devices, row.gpu) {
            d.end_us = d.end_us.max(row.mono_us);
            if row.fresh || d.fast.last().is_none_or(|last| last.sm_mhz != row.sm_mhz) {
                d.fast.push(row);
            }
        }
    })?;
    each::<RingRow>(&reader, |row| {
        at(&mut devices, row.gpu).into_iter().for_each(|d| d.ring.push(row.clone()))
    })?;
    each::<SlowRow>(&reader, |row| {
        at(&mut devices, row.gpu).into_iter().for_each(|d| d.slow.push(row.clone()))
    })?;
    each::<ProcessRow>(&reader, |row| {
        at(&mut devices, row.gpu).into_iter().for_each(|d| d.process.push(row.clone()));
    })?;
    each::<CounterRow>(&reader, |row| {
        at(&mut devices, row.gpu).into_iter().for_each(|d| d.counter.push(row.clone()));
    })?;
    Ok(devices)
}

fn at(devices: &mut [ReplayDevice], gpu: i32) -> Option<&mut ReplayDevice> {
    devices.get_mut(usize::try_from(gpu).ok()?)
}

fn each<T: Row>(reader: &Reader, mut take: impl FnMut(T)) -> Result<(), StoreError> {
    for batch in reader.batches::<T>() {
        batch?.into_iter().for_each(&mut take);
    }
    Ok(())
}

fn identity(index: u32, gpu: &header::Gpu, header: &Header) -> Identity {
    Identity {
        index,
        name: gpu.name.clone(),
        uuid: gpu.uuid.clone(),
        pci_id: gpu.pci_id.clone(),
        driver: gpu.driver.clone(),
        power_limit: gpu.power_limit_mw,
        mem_total_bytes: gpu.mem_total_bytes,
        sm_clocks: Vec::new(),
        mig: None,
        mig_uuids: Vec::new(),
        mig_instances: gpu.mig_instances.clone(),
        power_scope: gpu.power_scope.as_deref().and_then(|s| ["gpu", "module"].into_iter().find(|k| *k == s)),
        simulated: header.simulated,
    }
}

struct ReplayDevice {
    identity: Identity,
    clock: Arc<dyn Clock>,
    opened: MonoUs,
    opened_wall: WallUs,
    end_us: i64,
    /// Sensors that the recorded GPU did not have.
    unsupported: Vec<String>,
    /// Whether there may be rows of processes.
    lists_processes: bool,
    fast: Vec<FastRow>,
    ring: Vec<RingRow>,
    slow: Vec<SlowRow>,
    process: Vec<ProcessRow>,
    counter: Vec<CounterRow>,
}

impl ReplayDevice {
    /// The present in the recording's time.
    fn now_us(&self) -> Result<i64, ReadError> {
        let now_us = self.clock.mono().since_us(self.opened);
        if now_us > self.end_us { Err(ReadError::Lost("the recording ends here".into())) } else { Ok(now_us) }
    }

    /// The last row at or before the present; before the first row, the first.
    fn held<'a, T>(&self, rows: &'a [T], time_us: impl Fn(&T) -> i64) -> Result<&'a T, ReadError> {
        let now_us = self.now_us()?;
        let after = rows.partition_point(|row| time_us(row) <= now_us);
        rows.get(after.saturating_sub(1)).ok_or(ReadError::Unsupported)
    }
}

fn recorded<T>(value: Option<T>) -> Result<T, ReadError> {
    value.ok_or_else(|| ReadError::Transient("null in the recording".into()))
}

impl Device for ReplayDevice {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn power(&self) -> Result<Power, ReadError> {
        let row = self.held(&self.fast, |r| r.mono_us)?;
        let mw = |v: Option<i32>| v.and_then(|v| u32::try_from(v).ok()).map(Milliwatts);
        Ok(Power { instant: mw(row.power_instant_mw), average: mw(row.power_average_mw), ..Power::default() })
    }

    fn sm_clock(&self) -> Result<Megahertz, ReadError> {
        let row = self.held(&self.fast, |r| r.mono_us)?;
        recorded(row.sm_mhz.and_then(|v| u32::try_from(v).ok()).map(Megahertz))
    }

    fn power_samples(&self, newer_than: WallUs, into: &mut Vec<PowerSample>) -> Result<(), ReadError> {
        if self.ring.is_empty() {
            return Err(ReadError::Unsupported);
        }
        let now_us = self.clock.mono().since_us(self.opened);
        let first = self.ring.partition_point(|r| self.opened_wall.plus_us(r.mono_us) <= newer_than);
        let due = self.ring[first..].iter().take_while(|r| r.mono_us <= now_us);
        // What is left of the ring can still be fetched after the end of the recording, once.
        if now_us > self.end_us + RING_KEPT_US {
            return Err(ReadError::Lost("the recording ends here".into()));
        }
        into.extend(due.map(|r| PowerSample {
            time: self.opened_wall.plus_us(r.mono_us),
            power: Milliwatts(u32::try_from(r.power_mw).unwrap_or(0)),
        }));
        Ok(())
    }

    fn energy_counter(&self) -> Result<Millijoules, ReadError> {
        let row = self.held(&self.counter, |r| r.mono_us)?;
        recorded(u64::try_from(row.energy_mj).ok().map(Millijoules))
    }

    fn slow(&self, sensor: SlowSensor) -> Result<i64, ReadError> {
        let row = self.held(&self.slow, |r| r.mono_us)?;
        let value = match sensor {
            SlowSensor::MemClock => row.mem_mhz.map(i64::from),
            SlowSensor::Temperature => row.temp_c.map(i64::from),
            SlowSensor::MemTemperature => row.mem_temp_c.map(i64::from),
            SlowSensor::UtilGpu => row.util_gpu_pct.map(i64::from),
            SlowSensor::UtilMem => row.util_mem_pct.map(i64::from),
            SlowSensor::MemUsed => row.mem_used_bytes,
            SlowSensor::Pstate => row.pstate.map(i64::from),
            SlowSensor::EventReasons => row.event_reasons,
            SlowSensor::Fan => row.fan_pct.map(i64::from),
            SlowSensor::MemPower => row.mem_power_mw.map(i64::from),
        };
        if value.is_none() && self.unsupported.iter().any(|name| name == sensor.name()) {
            return Err(ReadError::Unsupported);
        }
        recorded(value)
    }

    fn activity(&self) -> Result<Activity, ReadError> {
        let now_us = self.now_us()?;
        let seen = self.slow.partition_point(|r| r.mono_us <= now_us);
        let row = self.slow[..seen].iter().rfind(|r| r.sm_util_pct.is_some());
        let row = match row {
            Some(row) => row,
            None if self.slow.iter().any(|r| r.sm_util_pct.is_some()) => return recorded(None),
            None => return Err(ReadError::Unsupported),
        };
        Ok(Activity {
            sm_util_pct: row.sm_util_pct,
            sm_occupancy_pct: row.sm_occupancy_pct,
            tensor_util_pct: row.tensor_util_pct,
            dram_util_pct: row.dram_util_pct,
            pcie_tx_mib_per_s: row.pcie_tx_mib_per_s,
            pcie_rx_mib_per_s: row.pcie_rx_mib_per_s,
        })
    }

    fn processes(&self) -> Result<Processes, ReadError> {
        if !self.lists_processes {
            return Err(ReadError::Unsupported);
        }
        let now_us = self.now_us()?;
        let seen = &self.process[..self.process.partition_point(|r| r.mono_us <= now_us)];
        let last_us = seen.last().map(|r| r.mono_us).filter(|at_us| now_us - at_us < PROCESSES_HELD_US);
        let rows = seen.iter().rev().take_while(|r| Some(r.mono_us) == last_us);
        let mut list: Vec<_> = rows.map(process).collect();
        list.reverse();
        let silent = self.unsupported.iter().any(|name| name == "process_util");
        Ok(Processes { list, has_utilisation: !silent })
    }
}

fn process(row: &ProcessRow) -> Process {
    Process {
        pid: row.pid.unsigned_abs(),
        name: row.name.clone(),
        mig_instance: row.mig_instance.and_then(|id| u32::try_from(id).ok()),
        sm_util_pct: row.sm_util_pct,
        mem_util_pct: row.mem_util_pct,
        mem_used_bytes: row.mem_used_bytes.and_then(|bytes| u64::try_from(bytes).ok()),
    }
}
