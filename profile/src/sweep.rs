//! A sweep: idle power at each clock, then each model's points, then the file.
//!
//! Rule: rows are made in the plan's order and kept in a journal (`OUTPUT.journal`) as they are made. When all are
//! there the output appears whole, and the journal goes. A sweep that was stopped or cut off goes on behind the last
//! row that the journal holds.
//! A card that has cooled is heated before what is measured with a context ([`crate::Heated`]), and idle power is looked at again behind
//! the last point ([`crate::Drift`]).
//! Cases: points that cannot fit are left out before anything runs, and the plan says so; points that fail are rows
//! that are not valid, and several failures after each other, but for what does not fit, end the sweep; a stop is heeded between rows; an output
//! that exists already is not touched.
//! Not done here: measuring points again that an earlier sweep found invalid.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use gpumon_core::profile::{IDLE_CONTEXT, ProfileRow};
use gpumon_core::profile_io;
use gpumon_core::share::Share;
use gpumon_core::units::{MonoUs, US_PER_S};

use crate::choose::{Chooser, InOrder};
use crate::course::Course;
use crate::drift::{Drift, is_first};
use crate::heat::{Heat, Heated, joules_between};
use crate::journal::{Entry, Heading, Journal, JournalError, path_of};
pub use crate::outcome::{Estimate, Outcome, Progress, SweepError};
use crate::plan::{ModelPlan, Plan, Step};
use crate::protocol::{Bench, MeasureError};
use crate::stage::{Seat, Stage};
use crate::workload::{DOES_NOT_FIT, Workload, WorkloadError};

/// So many points that fail one after another end a sweep: something is wrong with more than the points.
pub(crate) const FAILURES_IN_A_ROW: usize = 5;

/// No sweep takes longer, µs.
const MAX_US: i64 = 100 * 365 * 86_400 * US_PER_S;

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
    /// Longest heating of a card that has cooled, s; 0 for none.
    pub heat_s: f64,
    /// Whether idle power is measured again at the end.
    pub closing: bool,
}

/// What a run of a sweep has made.
struct Made {
    rows: Vec<ProfileRow>,
    heated: Vec<Heated>,
    drift: Option<Drift>,
    notices: Vec<String>,
    /// Energy so far, J; `None` once some of it is not known.
    joules: Option<f64>,
}

impl Made {
    fn spent(&mut self, joules: Option<f64>) {
        self.joules = self.joules.zip(joules).map(|(before, more)| before + more);
    }
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
        let closing_s = if self.closing { idle_row_s } else { 0.0 };
        let total_s = self.heat_s + idle_rows as f64 * idle_row_s + points as f64 * point_s + closing_s;
        Estimate { idle_rows, idle_row_s, points, point_s, heat_s: self.heat_s, total_s }
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
        let rows: Vec<ProfileRow> = entries.into_iter().map(|entry| entry.row).collect();
        let resumed = rows.len();
        let mut made = Made { rows, heated: vec![], drift: None, notices: vec![], joules: Some(0.0) };
        let run_began = self.bench.clock.mono();
        let measured = self.measure_rest(&mut journal, began, &mut made, &mut course, chooser, progress);
        let seconds = self.bench.clock.mono().since_us(run_began) as f64 / US_PER_S as f64;
        let ends = course.ends();
        let not_ended = self.workloads.iter_mut().filter_map(|workload| {
            let error = workload.quit().err()?;
            Some(format!("`{}` did not end as it should: it {error}", workload.name()))
        });
        made.notices.extend(not_ended);
        made.notices.extend(
            self.bench.stage.restore().err().map(|e| format!("the GPU was not given back as it was: {e}")),
        );
        let Made { mut rows, heated, drift, notices, joules } = made;
        let mut left = Some(path);
        if measured? {
            drift.iter().for_each(|drift| drift.note(&mut rows));
            profile_io::write(self.output, &rows)?;
            journal.remove()?;
            left = None;
        }
        Ok(Outcome { rows, resumed, journal: left, ends, notices, heated, drift, seconds, joules })
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
                let rests_on = chooser.rests_on().map_or_else(String::new, |what| {
                    format!("; which points follow depends on {what}: give those that it began with, or")
                });
                let what = format!("a row of another point than the sweep's, which is {wanted}{rests_on}");
                return broken(i, what);
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
        made: &mut Made,
        course: &mut Course,
        chooser: &mut dyn Chooser,
        progress: &mut dyn FnMut(&Progress),
    ) -> Result<bool, SweepError> {
        let total = self.plan.rows_by(chooser);
        let mut idle_w: BTreeMap<i32, f64> = made.rows.iter().filter_map(idle_power).collect();
        let (resumed, resumed_at, mut failures) = (made.rows.len(), self.bench.clock.mono(), 0);
        let (mut place, mut heat) = (None, Heat::new(self.heat_s));
        while let Some(step) = course.next(&made.rows, chooser) {
            if self.stop.load(Ordering::SeqCst) {
                return Ok(false);
            }
            let done = made.rows.len();
            let lost = |source| SweepError::Measure { source, done, journal: path_of(self.output) };
            self.leave(step, place);
            if !matches!(step, Step::Idle(_, false)) {
                self.heat(step, &mut heat, made).map_err(lost)?;
                if self.stop.load(Ordering::SeqCst) {
                    return Ok(false);
                }
            }
            let (row_began, joules) = (self.bench.clock.mono(), self.bench.device.energy_counter().ok());
            let mut row = self.measure(step, place, &idle_w).map_err(lost)?;
            if matches!(step, Step::Point(..)) {
                place = Some(step.place());
                heat.worked(self.bench.clock.mono());
            }
            row.wall_s = Some(self.bench.clock.mono().since_us(row_began) as f64 / US_PER_S as f64);
            let joules_after = self.bench.device.energy_counter().ok();
            row.wall_energy_j = joules_after.zip(joules).and_then(joules_between);
            made.spent(row.wall_energy_j);
            idle_w.extend(idle_power(&row));
            let at_us = self.bench.clock.mono().since_us(began);
            let entry = Entry { at_us, row };
            journal.append(&entry)?;
            made.rows.push(entry.row.clone());
            let elapsed_s = self.bench.clock.mono().since_us(resumed_at) as f64 / US_PER_S as f64;
            let remaining_s = elapsed_s / (done + 1 - resumed) as f64 * total.saturating_sub(done + 1) as f64;
            progress(&Progress { done: done + 1, total, row: &entry.row, remaining_s });
            failures = if failed(&entry.row) { failures + 1 } else { 0 };
            if failures >= FAILURES_IN_A_ROW {
                let reason = entry.row.reason.unwrap_or_default();
                return Err(SweepError::KeepsFailing { reason, journal: path_of(self.output) });
            }
        }
        if self.closing && !self.stop.load(Ordering::SeqCst) {
            self.close(place, made);
        }
        Ok(true)
    }

    /// Ends a model that is done, before another one is taken up.
    fn leave(&mut self, step: Step, before: Option<usize>) {
        if let Some(other) = before.filter(|b| *b != step.place()).and_then(|b| self.workloads.get_mut(b)) {
            // What is wrong with it shows in the next one's rows, or when all quit.
            let _ = other.quit();
        }
    }

    /// Heats the card with the model that is due, if it has cooled.
    fn heat(&mut self, step: Step, heat: &mut Heat, made: &mut Made) -> Result<(), MeasureError> {
        let workload = workload_at(self.workloads, step.place())?;
        let points = self.plan.models.get(step.place()).map_or(&[][..], |m| &m.points);
        match heat.apply(&mut self.bench, workload, points, self.stop)? {
            Some(Ok(heated)) => {
                made.spent(heated.joules);
                made.heated.push(heated);
            }
            Some(Err(why)) => made.notices.push(why),
            None => {}
        }
        Ok(())
    }

    /// Looks at idle power again, where the whole GPU can still be had. All rows are there, so what fails is only told.
    fn close(&mut self, place: Option<usize>, made: &mut Made) {
        let Some(&clock) = self.plan.idle.last().filter(|_| self.bench.stage.seats_coexist()) else { return };
        let Some(first) = made.rows.iter().find(|row| is_first(row, clock.0 as i32)) else { return };
        let Some(workload) = self.workloads.get_mut(place.unwrap_or(0)) else { return };
        let before = self.bench.device.energy_counter().ok();
        match self.bench.idle(workload.as_mut(), clock, true) {
            Ok(last) => made.drift = Drift::between(first, &last),
            Err(error) => made.notices.push(format!("idle power could not be measured at the end: {error}")),
        }
        made.spent(self.bench.device.energy_counter().ok().zip(before).and_then(joules_between));
    }

    fn measure(
        &mut self,
        step: Step,
        before: Option<usize>,
        idle_w: &BTreeMap<i32, f64>,
    ) -> Result<ProfileRow, MeasureError> {
        let place = step.place();
        let workload = workload_at(self.workloads, place)?;
        if before != Some(place) && matches!(step, Step::Point(..)) {
            prepare(self.bench.stage, workload, self.plan.models.get(place))?;
        }
        match step {
            Step::Idle(clock, context) => self.bench.idle(workload, clock, context),
            Step::Point(_, point) => {
                let idle_w = idle_w.get(&(point.clock.0 as i32)).copied();
                self.bench.point(workload, &point, idle_w)
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

/// The workload at a place. Places come from the plan, which was compared with the workloads.
fn workload_at(workloads: &mut [Box<dyn Workload>], place: usize) -> Result<&mut dyn Workload, MeasureError> {
    match workloads.get_mut(place) {
        Some(workload) => Ok(workload.as_mut()),
        None => {
            let error = WorkloadError::Lost("is not there".into());
            Err(MeasureError::Workload { model: place.to_string(), error })
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
