//! How one point is measured, and what makes it valid.
//!
//! ```text
//! load ─ warm up: blocks of batches until two blocks' medians agree ─ settle ─ measure
//! ```
//!
//! Rule: power is that of the whole GPU over the measuring span; dynamic power is what of it lies above the GPU idling
//! with a context at the clock that was asked for ([`IDLE_CONTEXT`] row). Throughput is items over the time of the
//! batches.
//!
//! | what happened | the row |
//! |---|---|
//! | the point does not fit, or failed | not valid |
//! | too few batches in the longest span allowed | not valid |
//! | no power reading | not valid |
//! | a clock other than asked for, with the power cap as the reason | valid, noted |
//! | a clock other than asked for, without that reason | not valid |
//! | thermal or hardware slowdown seen | not valid |
//! | latency still moved when warm-up was over | valid, noted |
//! | power at or below idle | valid, dynamic power 0, noted |
//!
//! Not done here: repeating a point. Sources: two agreeing blocks and the spans are choices; the published sweep took
//! 20 s a point.

use gpumon_core::clock::Clock;
use gpumon_core::profile::{IDLE, IDLE_CONTEXT, ProfileRow};
use gpumon_core::units::{Megahertz, US_PER_S};
use gpumon_monitor::device::{Device, ReadError};
use gpumon_monitor::summary::reasons;
use serde::{Deserialize, Serialize};

use crate::meter::{Measured, Meter};
use crate::space::Point;
use crate::workload::{Workload, WorkloadError};

/// SW power cap.
const POWER_CAP: u64 = 0x4;
/// HW slowdown, SW and HW thermal slowdown, HW power brake.
const SLOWDOWNS: u64 = 0x8 | 0x20 | 0x40 | 0x80;
/// One step of the clocks of data-centre GPUs, MHz.
const CLOCK_STEP_MHZ: f64 = 15.0;

/// Times and bounds of a measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Protocol {
    /// Length of a warm-up block, s.
    pub block_s: f64,
    /// Two blocks agree when their medians differ by no more than this, relative.
    pub agreement: f64,
    /// Longest warm-up, s.
    pub warmup_max_s: f64,
    /// Under load before measuring, s.
    pub settle_s: f64,
    /// Measuring, s.
    pub measure_s: f64,
    /// Batches that a valid point has; measuring is made longer for them.
    pub min_batches: usize,
    /// Longest measuring, s.
    pub measure_max_s: f64,
    /// Idle before and during the measurement of idle power, s each.
    pub idle_s: f64,
    /// What loading is assumed to take when the cost is estimated, s.
    pub load_s: f64,
}

impl Default for Protocol {
    fn default() -> Self {
        Self {
            block_s: 0.5,
            agreement: 0.02,
            warmup_max_s: 5.0,
            settle_s: 1.0,
            measure_s: 10.0,
            min_batches: 10,
            measure_max_s: 60.0,
            idle_s: 5.0,
            load_s: 2.0,
        }
    }
}

/// Why nothing can be measured any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MeasureError {
    /// The GPU is gone.
    #[error(transparent)]
    Gpu(#[from] ReadError),
    /// The workload is.
    #[error("workload `{model}` {error}")]
    Workload {
        /// The model.
        model: String,
        /// Why.
        error: WorkloadError,
    },
}

/// What measures: the protocol, the GPU's sensors, and time.
pub struct Bench<'a> {
    /// Times and bounds.
    pub protocol: &'a Protocol,
    /// The GPU.
    pub device: &'a dyn Device,
    /// Time.
    pub clock: &'a dyn Clock,
}

/// A point's batches and what the sensors said of them.
struct Run {
    times_ms: Vec<f64>,
    measured: Measured,
    mem_bytes: Option<u64>,
    settled: bool,
}

impl Protocol {
    /// What a point is expected to take, s.
    pub fn point_s(&self) -> f64 {
        self.load_s + 2.0 * self.block_s + self.settle_s + self.measure_s
    }

    /// What an idle row takes, s.
    pub fn idle_row_s(&self) -> f64 {
        2.0 * self.idle_s
    }
}

impl Bench<'_> {
    /// Measures a point. `idle_w`: power of the GPU idling with a context at the point's clock, W. A point that could
    /// not be measured is a row that says why; an error means that no other can be measured either.
    pub fn point(
        &self,
        workload: &mut dyn Workload,
        point: &Point,
        idle_w: Option<f64>,
    ) -> Result<ProfileRow, MeasureError> {
        let row = self.row(workload.name(), point);
        match self.run(workload, point) {
            Ok(run) => Ok(self.judge(row, point, run?, idle_w)),
            Err(WorkloadError::Lost(why)) => {
                Err(MeasureError::Workload { model: row.model, error: WorkloadError::Lost(why) })
            }
            Err(error) => Ok(ProfileRow { valid: false, reason: Some(error.to_string()), ..row }),
        }
    }

    /// Measures the GPU without work at a clock, with or without a context.
    pub fn idle(
        &self,
        workload: &mut dyn Workload,
        sm: Megahertz,
        context: bool,
    ) -> Result<ProfileRow, MeasureError> {
        let model = if context { IDLE_CONTEXT } else { IDLE };
        let mut row = self.identified(ProfileRow::new(model, 0, 1.0, sm.0 as i32));
        if let Err(error) = workload.idle(sm, context) {
            return match error {
                WorkloadError::Lost(_) => Err(MeasureError::Workload { model: model.into(), error }),
                error => Ok(ProfileRow { valid: false, reason: Some(error.to_string()), ..row }),
            };
        }
        let idle_us = us(self.protocol.idle_s);
        self.clock.sleep_until(self.clock.mono().plus_us(idle_us));
        let mut meter = Meter::start(self.device, self.clock);
        let (tick_us, start) = (meter.tick_us(), self.clock.mono());
        for tick in 1..=(idle_us / tick_us).max(1) {
            self.clock.sleep_until(start.plus_us(tick * tick_us));
            meter.tick();
        }
        let measured = meter.finish()?;
        row.sm_mhz_achieved = measured.sm_mhz;
        row.avg_power_draw = measured.power_w;
        if measured.power_w.is_none() {
            row.valid = false;
            row.reason = Some("no power reading".into());
        }
        Ok(row)
    }

    fn run(
        &self,
        workload: &mut dyn Workload,
        point: &Point,
    ) -> Result<Result<Run, ReadError>, WorkloadError> {
        let p = self.protocol;
        workload.load(point)?;
        let (settled, typical_ms) = self.warm_up(workload)?;
        workload.run_for(us(p.settle_s), i64::MAX, &mut || ())?;
        let for_batches_s = p.min_batches as f64 * typical_ms * 1.02 / 1e3;
        let span_s = p.measure_s.max(for_batches_s).min(p.measure_max_s.max(p.measure_s));
        let mut meter = Meter::start(self.device, self.clock);
        let tick_us = meter.tick_us();
        let times_ms = workload.run_for(us(span_s), tick_us, &mut || meter.tick())?;
        let mem_bytes = workload.memory_bytes();
        Ok(meter.finish().map(|measured| Run { times_ms, measured, mem_bytes, settled }))
    }

    /// Runs blocks until two agree; whether they did, and the last block's median, ms.
    fn warm_up(&self, workload: &mut dyn Workload) -> Result<(bool, f64), WorkloadError> {
        let p = self.protocol;
        let end = self.clock.mono().plus_us(us(p.warmup_max_s));
        let mut block = || Ok(percentile(&workload.run_for(us(p.block_s), i64::MAX, &mut || ())?, 0.5));
        let mut before_ms: f64 = block()?;
        loop {
            let ms = block()?;
            if (ms - before_ms).abs() <= p.agreement * before_ms {
                return Ok((true, ms));
            }
            if self.clock.mono() >= end {
                return Ok((false, ms));
            }
            before_ms = ms;
        }
    }

    fn judge(&self, mut row: ProfileRow, point: &Point, run: Run, idle_w: Option<f64>) -> ProfileRow {
        let Run { times_ms, measured, mem_bytes, settled } = run;
        let (mut wrong, mut notes) = (Vec::new(), Vec::new());
        let total_s = times_ms.iter().sum::<f64>() / 1e3;
        let items = times_ms.len() as f64 * f64::from(point.batch);
        row.latency = Some(total_s * 1e3 / times_ms.len() as f64);
        row.latency_p50 = Some(percentile(&times_ms, 0.5));
        row.latency_p99 = Some(percentile(&times_ms, 0.99));
        row.throughput = Some(items / total_s);
        row.n_samples = Some(times_ms.len() as i64);
        row.mem_bytes = mem_bytes.and_then(|bytes| i64::try_from(bytes).ok());
        row.sm_mhz_achieved = measured.sm_mhz;
        row.avg_power_draw = measured.power_w;
        row.energy_per_item = measured.power_w.map(|w| w * total_s / items);
        if let Some(activity) = measured.activity {
            row.sm_util_pct = activity.sm_util_pct;
            row.sm_occupancy_pct = activity.sm_occupancy_pct;
            row.tensor_util_pct = activity.tensor_util_pct;
            row.dram_util_pct = activity.dram_util_pct;
        }
        match (measured.power_w, idle_w) {
            (None, _) => wrong.push("no power reading".to_owned()),
            (_, None) => notes.push("no idle power at this clock, so no dynamic power".into()),
            (Some(w), Some(idle)) if w > idle => row.dynamic_power_draw = Some(w - idle),
            (Some(w), Some(idle)) => {
                row.dynamic_power_draw = Some(0.0);
                notes.push(format!("drew {w:.2} W, not more than the {idle:.2} W of idling"));
            }
        }
        if times_ms.len() < self.protocol.min_batches {
            let needed = self.protocol.min_batches;
            wrong.push(format!("{} batches in {total_s:.1} s, {needed} are needed", times_ms.len()));
        }
        if !settled {
            notes.push(format!("latency still moved after {} s of warm-up", self.protocol.warmup_max_s));
        }
        let asked_mhz = f64::from(point.clock.0);
        if let Some(mhz) = measured.sm_mhz.filter(|mhz| (mhz - asked_mhz).abs() > CLOCK_STEP_MHZ / 2.0) {
            match measured.reasons & POWER_CAP != 0 && mhz < asked_mhz {
                true => notes.push(format!("power cap: ran at {mhz:.0} MHz")),
                false => wrong.push(format!("ran at {mhz:.0} MHz")),
            }
        }
        if measured.reasons & SLOWDOWNS != 0 {
            wrong.extend(reasons::limits(measured.reasons & SLOWDOWNS).map(str::to_owned));
        }
        row.valid = wrong.is_empty();
        wrong.extend(notes);
        row.reason = (!wrong.is_empty()).then(|| wrong.join("; "));
        row
    }

    fn row(&self, model: &str, point: &Point) -> ProfileRow {
        // Sizes and clocks above 2³¹ are refused where spaces are made.
        let mut row =
            ProfileRow::new(model, point.batch as i32, point.share.fraction(), point.clock.0 as i32);
        row.share_kind = Some(point.share.kind().into());
        row.mig_slices = point.share.slices().map(i32::from);
        self.identified(row)
    }

    fn identified(&self, row: ProfileRow) -> ProfileRow {
        let identity = self.device.identity();
        ProfileRow {
            gpu_name: Some(identity.name.clone()),
            gpu_uuid: Some(identity.uuid.clone()),
            simulated: Some(identity.simulated),
            ..row
        }
    }
}

/// The smallest value that at least this share of the values does not exceed; NaN of none.
fn percentile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = ((share * sorted.len() as f64).ceil() as usize).max(1);
    sorted.get(rank - 1).copied().unwrap_or(f64::NAN)
}

fn us(seconds: f64) -> i64 {
    (seconds * US_PER_S as f64).round() as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!((percentile(&values, 0.5), percentile(&values, 0.99)), (50.0, 99.0));
        assert_eq!(percentile(&[3.0], 0.99), 3.0);
    }
}
