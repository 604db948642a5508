//! How one point is measured.
//!
//! ```text
//! stage: clock, limit, seat ─ load ─ run: warm up, settle, measure (phases) ─ what it is worth (judge)
//! ```
//!
//! Rule: the GPU is set, the workload is loaded and runs once; the same for the GPU without work, with a CUDA context or
//! without one ([`IDLE_CONTEXT`], [`IDLE`]), at the same clocks.
//! Not done here: repeating a point. Sources: two agreeing blocks and the spans are choices; the published sweep took
//! 20 s a point.

use gpumon_core::clock::Clock;
use gpumon_core::profile::{IDLE, IDLE_CONTEXT, ProfileRow};
use gpumon_core::units::Megahertz;
use gpumon_monitor::device::{Device, ReadError};
use serde::{Deserialize, Serialize};

use crate::judge::judge;
use crate::meter::Meter;
use crate::phases::{Phases, Run, us};
use crate::space::Point;
use crate::stage::{Stage, StageError};
use crate::workload::{Workload, WorkloadError};

/// Times and bounds of a measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Protocol {
    /// Length of a warm-up block, s.
    pub block_s: f64,
    /// Two blocks agree when their medians differ by no more than this, relative.
    pub agreement: f64,
    /// Longest warm-up, s.
    pub warmup_max_s: f64,
    /// Under load before measuring, s: longer than the power sensor looks back.
    pub settle_s: f64,
    /// Shortest measuring, s.
    pub measure_min_s: f64,
    /// Measuring ends when the 95 % intervals of mean power and mean batch time are within this of their means.
    pub precision: f64,
    /// Longest measuring for the sake of precision, s.
    pub measure_max_s: f64,
    /// Batches that a valid point has; measuring is made longer for them.
    pub min_batches: usize,
    /// Longest measuring for the sake of batches, s.
    pub stretch_max_s: f64,
    /// Idle before and during the measurement of idle power, s each.
    pub idle_s: f64,
    /// What loading is assumed to take when the cost is estimated, s.
    pub load_s: f64,
}

impl Default for Protocol {
    fn default() -> Self {
        Self {
            block_s: 0.2,
            agreement: 0.02,
            warmup_max_s: 5.0,
            settle_s: 0.5,
            measure_min_s: 1.0,
            precision: 0.01,
            measure_max_s: 10.0,
            min_batches: 10,
            stretch_max_s: 60.0,
            idle_s: 5.0,
            load_s: 1.0,
        }
    }
}

/// Why nothing can be measured any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MeasureError {
    /// The GPU is gone.
    #[error(transparent)]
    Gpu(#[from] ReadError),
    /// It cannot be set any more.
    #[error(transparent)]
    Stage(StageError),
    /// The workload is.
    #[error("workload `{model}` {error}")]
    Workload {
        /// The model.
        model: String,
        /// Why.
        error: WorkloadError,
    },
}

/// What measures: the protocol, the GPU's sensors, its settings, and time.
pub struct Bench<'a> {
    /// Times and bounds.
    pub protocol: &'a Protocol,
    /// The GPU.
    pub device: &'a dyn Device,
    /// Sets it.
    pub stage: &'a mut dyn Stage,
    /// Time.
    pub clock: &'a dyn Clock,
}

/// Why a row could not be measured.
enum Failure {
    /// This one.
    Row(String),
    /// Nor any other.
    All(MeasureError),
}

impl Protocol {
    /// What a point is expected to take at least, s.
    pub fn point_s(&self) -> f64 {
        self.load_s + 2.0 * self.block_s + self.settle_s + self.measure_min_s
    }

    /// What it takes longer, s, where a batch takes so long, s: two of them end the warm-up, and some are measured.
    pub fn longer_s(&self, batch_s: f64) -> f64 {
        let measured_s = batch_s * self.min_batches as f64 - self.measure_min_s;
        (2.0 * (batch_s - self.block_s)).max(0.0) + measured_s.clamp(0.0, self.stretch_max_s)
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
        &mut self,
        workload: &mut dyn Workload,
        point: &Point,
        idle_w: Option<f64>,
    ) -> Result<ProfileRow, MeasureError> {
        let mut row = self.row(workload.name(), point);
        let run = match self.run(workload, point, &mut row) {
            Ok(run) => run,
            Err(Failure::Row(why)) => return Ok(ProfileRow { valid: false, reason: Some(why), ..row }),
            Err(Failure::All(error)) => return Err(error),
        };
        row.mem_bytes = workload.memory_bytes().and_then(|bytes| i64::try_from(bytes).ok());
        row.reason = workload.note().map(str::to_owned);
        Ok(judge(self.protocol, row, &run, idle_w))
    }

    /// Measures the GPU without work at a clock, with or without a context.
    pub fn idle(
        &mut self,
        workload: &mut dyn Workload,
        sm: Megahertz,
        context: bool,
    ) -> Result<ProfileRow, MeasureError> {
        let model = if context { IDLE_CONTEXT } else { IDLE };
        let mut row = self.identified(ProfileRow::new(model, 0, 1.0, sm.0 as i32));
        match self.rest(workload, sm, context) {
            Ok(locked) => row.clock_locked = Some(locked),
            Err(Failure::Row(why)) => return Ok(ProfileRow { valid: false, reason: Some(why), ..row }),
            Err(Failure::All(error)) => return Err(error),
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
        row.temp_c = measured.temp_c;
        row.avg_power_draw = measured.power.map(|w| w.mean);
        row.power_ci95 = measured.power.and_then(|w| w.half_width);
        if measured.power.is_none() {
            row.valid = false;
            row.reason = Some("no power reading".into());
        }
        Ok(row)
    }

    fn rest(&mut self, workload: &mut dyn Workload, sm: Megahertz, context: bool) -> Result<bool, Failure> {
        let locked = self.stage.clock(sm).map_err(Failure::stage)?;
        self.stage.limit(None).map_err(Failure::stage)?;
        let seat = self.stage.whole().map_err(Failure::stage)?;
        let name = if context { IDLE_CONTEXT } else { IDLE };
        workload.idle(&seat, context).map_err(|e| Failure::workload(name, e))?;
        Ok(locked)
    }

    fn run(
        &mut self,
        workload: &mut dyn Workload,
        point: &Point,
        row: &mut ProfileRow,
    ) -> Result<Run, Failure> {
        row.clock_locked = Some(self.stage.clock(point.clock).map_err(Failure::stage)?);
        self.stage.limit(point.limit_w).map_err(Failure::stage)?;
        let name = workload.name().to_owned();
        let failed = |error| Failure::workload(&name, error);
        if !self.stage.stays(&[point.share]) {
            workload.quit().map_err(failed)?;
        }
        let seat = self.stage.seat(point.share).map_err(Failure::stage)?;
        workload.load(point, &seat).map_err(failed)?;
        let mut phases = Phases::new(self.protocol, self.device, self.clock);
        let (limit_us, tick_us) = (phases.limit_us(), us(self.protocol.block_s / 4.0));
        let times_ms = workload.run(limit_us, tick_us, &mut |times| phases.tick(times)).map_err(failed)?;
        phases.finish(&times_ms).map_err(|lost| Failure::All(lost.into()))
    }

    pub(crate) fn row(&self, model: &str, point: &Point) -> ProfileRow {
        // Sizes and clocks above 2³¹ are refused where spaces are made.
        let mut row =
            ProfileRow::new(model, point.batch as i32, point.share.fraction(), point.clock.0 as i32);
        row.share_kind = Some(point.share.kind().into());
        row.mig_slices = point.share.slices().map(i32::from);
        row.power_limit_w = point.limit_w.map(|w| w as i32);
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

impl Failure {
    fn stage(error: StageError) -> Self {
        match error {
            StageError::Point(_) => Self::Row(error.to_string()),
            StageError::Lost(_) => Self::All(MeasureError::Stage(error)),
        }
    }

    fn workload(model: &str, error: WorkloadError) -> Self {
        match error {
            WorkloadError::Lost(_) => Self::All(MeasureError::Workload { model: model.into(), error }),
            _ => Self::Row(error.to_string()),
        }
    }
}
