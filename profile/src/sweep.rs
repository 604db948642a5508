//! A sweep: idle power at each clock, then each point of the design, then the file.
//!
//! Rule: rows are made in the plan's order and kept in a journal (`OUTPUT.journal`) as they are made. When all are
//! there the output appears whole, and the journal goes. A sweep that was stopped or cut off goes on behind the last
//! row that the journal holds.
//! Cases: points that cannot fit are left out before anything runs, and the plan says so; points that fail are rows
//! that are not valid, and several failures after each other end the sweep; a stop is heeded between rows; an output
//! that exists already is not touched.
//! Not done here: measuring points again that an earlier sweep found invalid.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use gpumon_core::profile::{IDLE_CONTEXT, ProfileRow};
use gpumon_core::profile_io::{self, ProfileError};
use gpumon_core::units::{Megahertz, MonoUs, US_PER_S};

use crate::design::Design;
use crate::journal::{Entry, Heading, Journal, JournalError, path_of};
use crate::protocol::{Bench, MeasureError};
use crate::space::{Point, Space};
use crate::workload::Workload;

/// So many points that fail one after another end a sweep: something is wrong with more than the points.
const FAILURES_IN_A_ROW: usize = 5;

/// What a sweep will measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Clocks at which idle power is measured, without and with a context.
    pub idle: Vec<Megahertz>,
    /// Points, in order.
    pub points: Vec<Point>,
    /// Points of the space that cannot run, and why.
    pub left_out: Vec<(Point, String)>,
}

impl Plan {
    /// The points of a design over those of `space` that fit.
    pub fn new(space: &Space, design: Design, seed: u64, workload: &dyn Workload) -> Self {
        let mut left_out = Vec::new();
        let fits = |point: &Point| {
            let answer = workload.fits(point);
            left_out.extend(answer.err().map(|why| (*point, why)));
            left_out.last().is_none_or(|(last, _)| last != point)
        };
        let points = design.points(space, seed, fits);
        let idle = space.clocks().iter().copied().filter(|c| points.iter().any(|p| p.clock == *c)).collect();
        Self { idle, points, left_out }
    }

    /// Rows that it makes.
    pub fn rows(&self) -> usize {
        2 * self.idle.len() + self.points.len()
    }

    fn steps(&self) -> impl Iterator<Item = Step> + '_ {
        let idle = self.idle.iter().flat_map(|&clock| [Step::Idle(clock, false), Step::Idle(clock, true)]);
        idle.chain(self.points.iter().copied().map(Step::Point))
    }
}

/// What one row measures.
#[derive(Clone, Copy, Debug)]
enum Step {
    Idle(Megahertz, bool),
    Point(Point),
}

/// What a sweep will cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Rows of idle power.
    pub idle_rows: usize,
    /// Time of each, s.
    pub idle_row_s: f64,
    /// Points.
    pub points: usize,
    /// Time of each, s; batches of many seconds take longer.
    pub point_s: f64,
    /// All of it, s.
    pub total_s: f64,
}

/// How far a sweep is.
#[derive(Clone, Debug)]
pub struct Progress<'a> {
    /// Rows made, those of earlier runs included.
    pub done: usize,
    /// Rows that there will be.
    pub total: usize,
    /// The row just made.
    pub row: &'a ProfileRow,
    /// Time left, s, at the pace so far.
    pub remaining_s: f64,
}

/// How a sweep ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The output is written.
    Done {
        /// Its rows.
        rows: Vec<ProfileRow>,
        /// How many of them came from the journal.
        resumed: usize,
    },
    /// It was told to stop; the journal holds what was made.
    Stopped {
        /// Rows made so far.
        done: usize,
        /// Rows that there will be.
        total: usize,
        /// Where they are kept.
        journal: PathBuf,
    },
}

/// Why a sweep did not end well.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// The output is there already.
    #[error("`{}` exists already; remove it, or name another output", .0.display())]
    Exists(PathBuf),
    /// No point of the space can run.
    #[error("no point can run: {0}")]
    NoPoints(String),
    /// The journal cannot be used.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The output cannot be written.
    #[error(transparent)]
    Output(#[from] ProfileError),
    /// Nothing can be measured any more; what was made is in the journal.
    #[error("{source}; the {done} rows made so far are in `{}`, and the same command goes on from there", journal.display())]
    Measure {
        /// Why.
        source: MeasureError,
        /// Rows made so far.
        done: usize,
        /// Where they are kept.
        journal: PathBuf,
    },
    /// Too many points failed one after another.
    #[error("{FAILURES_IN_A_ROW} points failed one after another, the last with: {reason}; they are in `{}`: remove its last \
             lines to measure them again", journal.display())]
    KeepsFailing {
        /// Why the last one failed.
        reason: String,
        /// Where the rows are kept.
        journal: PathBuf,
    },
}

/// A sweep, ready to run.
pub struct Sweep<'a> {
    /// What measures.
    pub bench: Bench<'a>,
    /// What runs.
    pub workload: &'a mut dyn Workload,
    /// What is measured.
    pub plan: &'a Plan,
    /// The file to make, `.parquet` or `.csv`.
    pub output: &'a Path,
    /// Set from elsewhere to stop between two rows.
    pub stop: &'a AtomicBool,
    /// On resuming, wait until as much time has passed as in the run before. For simulated GPUs on a virtual clock, whose
    /// readings depend on it: a resumed sweep then gives the same file as one that was not stopped.
    pub same_time: bool,
}

impl Sweep<'_> {
    /// What it will cost, without a journal.
    pub fn estimate(&self) -> Estimate {
        let (idle_rows, points) = (2 * self.plan.idle.len(), self.plan.points.len());
        let (idle_row_s, point_s) = (self.bench.protocol.idle_row_s(), self.bench.protocol.point_s());
        let total_s = idle_rows as f64 * idle_row_s + points as f64 * point_s;
        Estimate { idle_rows, idle_row_s, points, point_s, total_s }
    }

    /// Runs it to its end or until it is stopped. `progress` is called after each row.
    pub fn run(mut self, progress: &mut dyn FnMut(&Progress)) -> Result<Outcome, SweepError> {
        if self.output.exists() {
            return Err(SweepError::Exists(self.output.into()));
        }
        if !profile_io::is_writable_name(self.output) {
            profile_io::write(self.output, &[])?;
        }
        if self.plan.points.is_empty() {
            let why = self.plan.left_out.first().map_or("the space is empty", |(_, why)| why.as_str());
            return Err(SweepError::NoPoints(why.into()));
        }
        let journal_path = path_of(self.output);
        let (mut journal, entries) = Journal::open(journal_path.clone(), &self.heading())?;
        let began = self.bench.clock.mono();
        if let Some(last) = entries.last().filter(|_| self.same_time) {
            self.bench.clock.sleep_until(began.plus_us(last.at_us));
        }
        let resumed = entries.len().min(self.plan.rows());
        let mut rows: Vec<ProfileRow> = entries.into_iter().take(resumed).map(|entry| entry.row).collect();
        let measured = self.measure_rest(&mut journal, began, &mut rows, progress);
        // The GPU is given back whatever happened; what happened matters more than a failure to do so.
        let _ = self.workload.quit();
        if measured? {
            profile_io::write(self.output, &rows)?;
            journal.remove()?;
            return Ok(Outcome::Done { rows, resumed });
        }
        Ok(Outcome::Stopped { done: rows.len(), total: self.plan.rows(), journal: journal_path })
    }

    /// Makes the rows that are not there yet; false if it was stopped.
    fn measure_rest(
        &mut self,
        journal: &mut Journal,
        began: MonoUs,
        rows: &mut Vec<ProfileRow>,
        progress: &mut dyn FnMut(&Progress),
    ) -> Result<bool, SweepError> {
        let total = self.plan.rows();
        let mut idle_w: BTreeMap<i32, f64> = rows.iter().filter_map(idle_power).collect();
        let (resumed, resumed_at, mut failures) = (rows.len(), self.bench.clock.mono(), 0);
        let plan = self.plan;
        for step in plan.steps().skip(resumed) {
            if self.stop.load(Ordering::SeqCst) {
                return Ok(false);
            }
            let done = rows.len();
            let row = self.measure(step, &idle_w).map_err(|source| SweepError::Measure {
                source,
                done,
                journal: path_of(self.output),
            })?;
            idle_w.extend(idle_power(&row));
            let at_us = self.bench.clock.mono().since_us(began);
            let entry = Entry { at_us, row };
            journal.append(&entry)?;
            rows.push(entry.row.clone());
            let elapsed_s = self.bench.clock.mono().since_us(resumed_at) as f64 / US_PER_S as f64;
            let remaining_s = elapsed_s / (done + 1 - resumed) as f64 * (total - done - 1) as f64;
            progress(&Progress { done: done + 1, total, row: &entry.row, remaining_s });
            failures = if entry.row.latency.is_none() && !entry.row.valid { failures + 1 } else { 0 };
            if failures >= FAILURES_IN_A_ROW {
                let reason = entry.row.reason.unwrap_or_default();
                return Err(SweepError::KeepsFailing { reason, journal: path_of(self.output) });
            }
        }
        Ok(true)
    }

    fn measure(&mut self, step: Step, idle_w: &BTreeMap<i32, f64>) -> Result<ProfileRow, MeasureError> {
        match step {
            Step::Idle(clock, context) => self.bench.idle(self.workload, clock, context),
            Step::Point(point) => {
                let idle_w = idle_w.get(&(point.clock.0 as i32)).copied();
                self.bench.point(self.workload, &point, idle_w)
            }
        }
    }

    fn heading(&self) -> Heading {
        Heading {
            gpumon: env!("CARGO_PKG_VERSION").into(),
            gpu_uuid: self.bench.device.identity().uuid.clone(),
            model: self.workload.name().into(),
            protocol: self.bench.protocol.clone(),
            idle: self.plan.idle.clone(),
            points: self.plan.points.clone(),
        }
    }
}

/// Clock and power, W, of a valid row of idling with a context.
fn idle_power(row: &ProfileRow) -> Option<(i32, f64)> {
    let usable = row.valid && row.model == IDLE_CONTEXT;
    row.avg_power_draw.filter(|_| usable).map(|w| (row.frequency, w))
}
