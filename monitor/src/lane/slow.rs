//! The slow lane: clocks, temperatures, utilisation, memory, reasons; ten times a second in a recording, on its own
//! thread because these calls wait behind the energy counter. Performance counters once a second.

use std::sync::Arc;

use gpumon_core::clock::Clock;
use gpumon_core::rows::{EventKind, Record, SlowRow};
use gpumon_core::units::MonoUs;

use super::trouble::Trouble;
use super::{Flow, Grid, Lane, Outbox, Presence};
use crate::device::{ACTIVITY_MIN_US, Device, ReadError, Sensors, SlowSensor};

/// Span of one reading of the performance counters, µs.
const ACTIVITY_SPAN_US: i64 = 1_000_000;
const _: () = assert!(ACTIVITY_SPAN_US > ACTIVITY_MIN_US);

/// Samples one GPU's slow sensors.
pub struct SlowLane {
    device: Arc<dyn Device>,
    sensors: Vec<SlowSensor>,
    troubles: Vec<Trouble>,
    activity: Option<Trouble>,
    activity_due: MonoUs,
    /// Whether the next reading of the counters only opens a span: the first one, and the first after an absence.
    activity_opens: bool,
    gpu: i32,
    origin: MonoUs,
    grid: Grid,
    presence: Arc<Presence>,
}

impl SlowLane {
    /// A lane whose first tick is due at `origin`.
    pub fn new(
        device: Arc<dyn Device>,
        sensors: &Sensors,
        gpu: i32,
        origin: MonoUs,
        rate_hz: f64,
        presence: Arc<Presence>,
    ) -> Self {
        Self {
            device,
            sensors: sensors.slow.clone(),
            troubles: sensors.slow.iter().map(|s| Trouble::new(gpu, s.name())).collect(),
            activity: sensors.activity.then(|| Trouble::new(gpu, "gpm")),
            activity_due: origin,
            activity_opens: true,
            gpu,
            origin,
            grid: Grid::new(origin, rate_hz),
            presence,
        }
    }

    fn sample(&mut self, clock: &dyn Clock, out: &mut dyn Outbox) -> Result<SlowRow, ReadError> {
        let now = clock.mono();
        let now_us = now.since_us(self.origin);
        let mut row = empty_row(self.gpu, now_us);
        let values = self.device.slow_set(&self.sensors);
        for ((&sensor, trouble), value) in self.sensors.iter().zip(&mut self.troubles).zip(values) {
            match value {
                Ok(value) => {
                    trouble.over(out);
                    set(&mut row, sensor, value);
                }
                Err(lost @ ReadError::Lost(_)) => return Err(lost),
                Err(e) => trouble.failed(now_us, EventKind::ReadFailed, e.to_string(), out),
            }
        }
        if let Some(trouble) = &mut self.activity
            && now >= self.activity_due
        {
            let first = std::mem::take(&mut self.activity_opens);
            self.activity_due = now.plus_us(ACTIVITY_SPAN_US);
            match self.device.activity() {
                Ok(activity) => {
                    trouble.over(out);
                    row.sm_util_pct = activity.sm_util_pct;
                    row.sm_occupancy_pct = activity.sm_occupancy_pct;
                    row.tensor_util_pct = activity.tensor_util_pct;
                    row.dram_util_pct = activity.dram_util_pct;
                    row.pcie_tx_mib_per_s = activity.pcie_tx_mib_per_s;
                    row.pcie_rx_mib_per_s = activity.pcie_rx_mib_per_s;
                }
                Err(lost @ ReadError::Lost(_)) => return Err(lost),
                // The first reading only opens the span.
                Err(ReadError::Transient(_)) if first => {}
                Err(e) => trouble.failed(now_us, EventKind::ReadFailed, e.to_string(), out),
            }
        }
        Ok(row)
    }
}

impl SlowLane {
    fn quiet(&mut self, out: &mut dyn Outbox) {
        for trouble in self.troubles.iter_mut().chain(&mut self.activity) {
            trouble.over(out);
        }
    }
}

fn empty_row(gpu: i32, mono_us: i64) -> SlowRow {
    SlowRow {
        gpu,
        mono_us,
        mem_mhz: None,
        temp_c: None,
        mem_temp_c: None,
        util_gpu_pct: None,
        util_mem_pct: None,
        mem_used_bytes: None,
        pstate: None,
        event_reasons: None,
        fan_pct: None,
        mem_power_mw: None,
        sm_util_pct: None,
        sm_occupancy_pct: None,
        tensor_util_pct: None,
        dram_util_pct: None,
        pcie_tx_mib_per_s: None,
        pcie_rx_mib_per_s: None,
    }
}

/// A value that does not fit its column is absent, as an implausible one is.
fn set(row: &mut SlowRow, sensor: SlowSensor, value: i64) {
    let small = i32::try_from(value).ok();
    match sensor {
        SlowSensor::MemClock => row.mem_mhz = small,
        SlowSensor::Temperature => row.temp_c = small,
        SlowSensor::MemTemperature => row.mem_temp_c = small,
        SlowSensor::UtilGpu => row.util_gpu_pct = small,
        SlowSensor::UtilMem => row.util_mem_pct = small,
        SlowSensor::MemUsed => row.mem_used_bytes = Some(value),
        SlowSensor::Pstate => row.pstate = small,
        SlowSensor::EventReasons => row.event_reasons = Some(value),
        SlowSensor::Fan => row.fan_pct = small,
        SlowSensor::MemPower => row.mem_power_mw = small,
    }
}

impl Lane for SlowLane {
    fn name(&self) -> &'static str {
        "slow"
    }

    fn due(&self) -> MonoUs {
        self.grid.due()
    }

    fn tick(&mut self, clock: &dyn Clock, out: &mut dyn Outbox) -> Flow {
        if self.grid.arrive(clock.mono()).is_none() {
            return Flow::Continue;
        }
        if self.presence.is_away() {
            self.quiet(out);
            self.activity_opens = true;
            return Flow::Continue;
        }
        match self.sample(clock, out) {
            Ok(row) => {
                out.put(Record::Slow(Box::new(row)));
                Flow::Continue
            }
            Err(e) => self.presence.suspect(e.to_string()),
        }
    }

    fn finish(&mut self, _clock: &dyn Clock, _end: MonoUs, out: &mut dyn Outbox) {
        self.quiet(out);
    }
}
