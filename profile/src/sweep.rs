//! A sweep: idle power at each clock, then each model's points, then the file.
//!
//! Rule: rows are made in the plan's order and kept in a journal (`OUTPUT.journal`) as they are made. When all are
//! there the output appears whole, and the journal goes. A sweep that was stopped or cut off goes on behind the last
//! row that the journal holds.
//! Cases: points that cannot fit are left out before anything runs, and the plan says so; points that fail are rows
//! that are not valid, and several failures after each other, but for what does not fit, end the sweep; a stop is heeded between rows; an output
//! that exists already is not touched.
//! Not done here: measuring points again that an earlier sweep found invalid.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use gpumon_core::profile::{IDLE_CONTEXT, ProfileRow};
use gpumon_core::profile_io::{self, ProfileError};
use gpumon_core::share::Share;
use gpumon_core::units::{MonoUs, US_PER_S};

use crate::choose::{Chooser, End, InOrder};
use crate::course::Course;
use crate::journal::{Entry, Heading, Journal, JournalError, path_of};
use crate::plan::{ModelPlan, Plan, Step};
use crate::protocol::{Bench, MeasureError};
use crate::stage::{Seat, Stage};
use crate::workload::{DOES_NOT_FIT, Workload, WorkloadError};

/// So many points that fail one after another end a sweep: something is wrong with more than the points.
const FAILURES_IN_A_ROW: usize = 5;

/// No sweep takes longer, µs.
const MAX_US: i64 = 100 * 365 * 86_400 * US_PER_S;

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
pub struct Outcome {
    /// All rows that were made, in this run and before.
    pub rows: Vec<ProfileRow>,
    /// How many of them came from the journal.
    pub resumed: usize,
    /// The journal that holds them, if the sweep was stopped; `None` if the output is written.
    pub journal: Option<PathBuf>,
    /// How the models that are done ended, in the plan's order.
    pub ends: Vec<End>,
    /// What the user should know: a GPU that could not be given back as it was found.
    pub notices: Vec<String>,
}

/// Why a sweep did not end well.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// The output is there already.
    #[error("`{}` exists already; remove it, or name another output", .0.display())]
    Exists(PathBuf),
    /// No point of the space can run.
    #[error("no point of `{model}` can run: {why}")]
    NoPoints {
        /// The model.
        model: String,
        /// Why the first of its points cannot.
        why: String,
    },
    /// The plan was made for other workloads.
    #[error("the plan was made for other workloads than those that are to run; make it anew")]
    OtherPlan,
    /// The journal cannot be used.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The output cannot be written.
    #[error(transparent)]
    Output(#[from] ProfileError),
    /// Nothing can be measured any more; what was made is in the journal.
    #[error("{source}; the {done} rows made so far are in `{}`, and the same sweep, without a recording, goes on from \
             there", journal.display())]
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
    /// What runs: the workloads that the plan was made for, in their order.
    pub workloads: &'a mut [Box<dyn Workload>],
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
        self.estimate_by(&InOrder)
    }

    /// What it will cost at most by a chooser, without a journal.
    pub fn estimate_by(&self, chooser: &dyn Chooser) -> Estimate {
        let (idle_rows, points) = (2 * self.plan.idle.len(), self.plan.points_by(chooser));
        let (idle_row_s, point_s) = (self.bench.protocol.idle_row_s(), self.bench.protocol.point_s());
        let total_s = idle_rows as f64 * idle_row_s + points as f64 * point_s;
        Estimate { idle_rows, idle_row_s, points, point_s, total_s }
    }

    /// Runs it to its end or until it is stopped. `progress` is called after each row.
    pub fn run(self, progress: &mut dyn FnMut(&Progress)) -> Result<Outcome, SweepError> {
        self.run_by(&mut InOrder, progress)
    }

    /// The same, with the points of each model in the order that `chooser` asks for, until it says that the model is
    /// done.
    pub fn run_by(
        mut self,
        chooser: &mut dyn Chooser,
        progress: &mut dyn FnMut(&Progress),
    ) -> Result<Outcome, SweepError> {
        if self.output.exists() {
            return Err(SweepError::Exists(self.output.into()));
        }
        if !profile_io::is_writable_name(self.output) {
            profile_io::write(self.output, &[])?;
        }
        let named = self.workloads.iter().map(|w| w.name());
        if !named.eq(self.plan.models.iter().map(|m| m.model.as_str())) {
            return Err(SweepError::OtherPlan);
        }
        if let Some(none) = self.plan.models.iter().find(|m| m.points.is_empty()) {
            let why = none.left_out.first().map_or("the space is empty", |(_, why)| why.as_str());
            return Err(SweepError::NoPoints { model: none.model.clone(), why: why.into() });
        }
        let path = path_of(self.output);
        let (mut journal, entries) = Journal::open(path.clone(), &self.heading())?;
        if self.output.exists() {
            // Another sweep finished since the first look.
            return Err(SweepError::Exists(self.output.into()));
        }
        let mut course = Course::new(self.plan, self.bench.protocol.point_s());
        self.check(&entries, &path, &mut course, chooser)?;
        let (now, past_us) = (self.bench.clock.mono(), entries.last().map_or(0, |last| last.at_us));
        // The journal's times count on from the last row of the run before.
        let began = if self.same_time { now } else { now.plus_us(-past_us) };
        if self.same_time && past_us > 0 {
            self.bench.clock.sleep_until(began.plus_us(past_us));
        }
        let mut rows: Vec<ProfileRow> = entries.into_iter().map(|entry| entry.row).collect();
        let resumed = rows.len();
        let measured = self.measure_rest(&mut journal, began, &mut rows, &mut course, chooser, progress);
        let ends = course.ends();
        let not_ended = self.workloads.iter_mut().filter_map(|workload| {
            let error = workload.quit().err()?;
            Some(format!("`{}` did not end as it should: it {error}", workload.name()))
        });
        let mut notices: Vec<String> = not_ended.collect();
        notices.extend(
            self.bench.stage.restore().err().map(|e| format!("the GPU was not given back as it was: {e}")),
        );
        if !measured? {
            return Ok(Outcome { rows, resumed, journal: Some(path), ends, notices });
        }
        profile_io::write(self.output, &rows)?;
        journal.remove()?;
        Ok(Outcome { rows, resumed, journal: None, ends, notices })
    }

    /// Whether the journal's rows are those that the plan begins with, in time's order.
    fn check(
        &self,
        entries: &[Entry],
        path: &Path,
        course: &mut Course,
        chooser: &mut dyn Chooser,
    ) -> Result<(), JournalError> {
        let broken = |i: usize, what: String| {
            // The heading is line 1.
            Err(JournalError::Broken { path: path.into(), line: i + 2, what })
        };
        let (mut rows, mut before_us) = (Vec::with_capacity(entries.len()), 0);
        for (i, Entry { at_us, row }) in entries.iter().enumerate() {
            let Some(step) = course.next(&rows, chooser) else {
                return broken(i, format!("a row more than the {i} of the sweep"));
            };
            if !step.is_of(self.plan, row) {
                let wanted = step.text(self.plan);
                return broken(i, format!("a row of another point than the sweep's, which is {wanted}"));
            }
            if !(before_us..=MAX_US).contains(at_us) {
                return broken(i, format!("done at {at_us} µs, before the row above or centuries late"));
            }
            before_us = *at_us;
            rows.push(row.clone());
        }
        Ok(())
    }

    /// Makes the rows that are not there yet; false if it was stopped.
    fn measure_rest(
        &mut self,
        journal: &mut Journal,
        began: MonoUs,
        rows: &mut Vec<ProfileRow>,
        course: &mut Course,
        chooser: &mut dyn Chooser,
        progress: &mut dyn FnMut(&Progress),
    ) -> Result<bool, SweepError> {
        let total = self.plan.rows_by(chooser);
        let mut idle_w: BTreeMap<i32, f64> = rows.iter().filter_map(idle_power).collect();
        let (resumed, resumed_at, mut failures) = (rows.len(), self.bench.clock.mono(), 0);
        let mut place = None;
        while let Some(step) = course.next(rows, chooser) {
            if self.stop.load(Ordering::SeqCst) {
                return Ok(false);
            }
            let done = rows.len();
            let (row_began, joules) = (self.bench.clock.mono(), self.bench.device.energy_counter().ok());
            let mut row = self.measure(step, place, &idle_w).map_err(|source| SweepError::Measure {
                source,
                done,
                journal: path_of(self.output),
            })?;
            place = matches!(step, Step::Point(..)).then(|| step.place());
            row.wall_s = Some(self.bench.clock.mono().since_us(row_began) as f64 / US_PER_S as f64);
            let joules_after = self.bench.device.energy_counter().ok();
            row.wall_energy_j = joules_after.zip(joules).and_then(|(after, before)| {
                let spent_mj = after.0.checked_sub(before.0)?;
                Some(spent_mj as f64 / 1e3)
            });
            idle_w.extend(idle_power(&row));
            let at_us = self.bench.clock.mono().since_us(began);
            let entry = Entry { at_us, row };
            journal.append(&entry)?;
            rows.push(entry.row.clone());
            let elapsed_s = self.bench.clock.mono().since_us(resumed_at) as f64 / US_PER_S as f64;
            let remaining_s = elapsed_s / (done + 1 - resumed) as f64 * total.saturating_sub(done + 1) as f64;
            progress(&Progress { done: done + 1, total, row: &entry.row, remaining_s });
            failures = if failed(&entry.row) { failures + 1 } else { 0 };
            if failures >= FAILURES_IN_A_ROW {
                let reason = entry.row.reason.unwrap_or_default();
                return Err(SweepError::KeepsFailing { reason, journal: path_of(self.output) });
            }
        }
        Ok(true)
    }

    fn measure(
        &mut self,
        step: Step,
        before: Option<usize>,
        idle_w: &BTreeMap<i32, f64>,
    ) -> Result<ProfileRow, MeasureError> {
        let place = step.place();
        if let Some(other) = before.filter(|b| *b != place).and_then(|b| self.workloads.get_mut(b)) {
            // What is wrong with a model that is done shows in the next one's rows, or when all quit.
            let _ = other.quit();
        }
        // Places come from the plan, which was compared with the workloads.
        let Some(workload) = self.workloads.get_mut(place) else {
            let error = WorkloadError::Lost("is not there".into());
            return Err(MeasureError::Workload { model: place.to_string(), error });
        };
        if before != Some(place) && matches!(step, Step::Point(..)) {
            prepare(self.bench.stage, workload.as_mut(), self.plan.models.get(place))?;
        }
        match step {
            Step::Idle(clock, context) => self.bench.idle(workload.as_mut(), clock, context),
            Step::Point(_, point) => {
                let idle_w = idle_w.get(&(point.clock.0 as i32)).copied();
                self.bench.point(workload.as_mut(), &point, idle_w)
            }
        }
    }

    fn heading(&self) -> Heading {
        Heading {
            gpumon: env!("CARGO_PKG_VERSION").into(),
            gpu_uuid: self.bench.device.identity().uuid.clone(),
            protocol: self.bench.protocol.clone(),
            idle: self.plan.idle.clone(),
            models: self.plan.models.iter().map(|m| (m.model.clone(), m.points.clone())).collect(),
        }
    }
}

/// Has the workload start what it needs for all of its seats, where they exist side by side.
fn prepare(
    stage: &mut dyn Stage,
    workload: &mut dyn Workload,
    plan: Option<&ModelPlan>,
) -> Result<(), MeasureError> {
    if !stage.seats_coexist() {
        return Ok(());
    }
    let mut shares: Vec<Share> = plan.iter().flat_map(|m| &m.points).map(|p| p.share).collect();
    shares.sort();
    shares.dedup();
    let seats: Result<Vec<Seat>, _> = shares.into_iter().map(|share| stage.seat(share)).collect();
    let Ok(seats) = seats else {
        // What is wrong with a seat shows at the first point that needs it.
        return Ok(());
    };
    let model = workload.name().to_owned();
    match workload.prepare(&seats) {
        Err(error @ WorkloadError::Lost(_)) => Err(MeasureError::Workload { model, error }),
        // A model that does not start fails at its points, each of which says why.
        _ => Ok(()),
    }
}

/// Whether a row failed for a reason that may spoil others too.
fn failed(row: &ProfileRow) -> bool {
    let impossible = row.reason.as_deref().is_some_and(|reason| reason.starts_with(DOES_NOT_FIT));
    row.latency.is_none() && !row.valid && !impossible
}

/// Clock and power, W, of a valid row of idling with a context.
fn idle_power(row: &ProfileRow) -> Option<(i32, f64)> {
    let usable = row.valid && row.model == IDLE_CONTEXT;
    row.avg_power_draw.filter(|_| usable).map(|w| (row.frequency, w))
}
