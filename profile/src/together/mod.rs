//! Sets: several models at work on one GPU at the same time, each on its share.
//!
//! ```text
//! choose   which sets: models, shares that fit together, batch sizes
//!    ↓
//! run      for each set: the GPU is set, and rows are made of what the members did
//!    ├─ crew     who works: threads that follow processes, or sim: simulated models, which disturb each other in the simulation
//!    └─ watch    warm up, settle, measure members and GPU over the same span
//!    ↓
//! gpumon_core::set   a row a member
//! ```
//!
//! Rule: a set that was measured is in the file of partial results at once; a stopped run goes on behind it. When all are
//! there, the output appears.
//! Cases: on a simulated GPU a run that goes on waits until as much time has passed as before, and gives the same rows.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use gpumon_core::profile::ProfileRow;
use gpumon_core::profile_io::ProfileError;
use gpumon_core::set::{self, SetRow};
use gpumon_core::units::US_PER_S;
use gpumon_monitor::device::sim::SimDevice;

use crate::heat::{Heat, Heated, joules_between};
use crate::protocol::{Bench, MeasureError};
use crate::space::Point;
use crate::workload::Workload;

mod choose;
mod crew;
mod run;
mod sim;
mod threads;
mod watch;

pub use choose::{ChooseError, Wish, choose};

/// One model of a set, by its place among the workloads, and its point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Place of the workload.
    pub place: usize,
    /// Its point.
    pub point: Point,
}

/// Models that run together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// The members, at most one of each workload.
    pub members: Vec<Member>,
}

/// Why sets were not measured to the end.
#[derive(Debug, thiserror::Error)]
pub enum SetsError {
    /// The output is there already.
    #[error("`{}` exists already; remove it, or name another output", .0.display())]
    Exists(PathBuf),
    /// The partial results are of other sets.
    #[error("`{}` holds other sets than these ({what}); give the arguments of that run to finish it, or remove the file", path.display())]
    Other {
        /// The file.
        path: PathBuf,
        /// In what it differs.
        what: String,
    },
    /// Nothing can be measured any more.
    #[error("{source}; the sets made so far are in `{}`", partial.display())]
    Measure {
        /// Why.
        source: MeasureError,
        /// Where the results are.
        partial: PathBuf,
    },
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] ProfileError),
}

/// How it ended.
#[derive(Clone, Debug, PartialEq)]
pub struct SetsOutcome {
    /// All rows, those of earlier runs included.
    pub rows: Vec<SetRow>,
    /// Sets that were taken up from before.
    pub resumed: usize,
    /// Whether all are there and the output is written.
    pub finished: bool,
    /// What the user should know.
    pub notices: Vec<String>,
    /// How the card was heated.
    pub heated: Option<Heated>,
}

/// Measures sets.
pub struct Sets<'a> {
    /// What measures.
    pub bench: Bench<'a>,
    /// The models.
    pub workloads: &'a mut [Box<dyn Workload>],
    /// What is measured, in order.
    pub sets: &'a [Set],
    /// The models' points alone, for slowdowns; and idle rows, for dynamic power.
    pub alone: &'a [ProfileRow],
    /// The output.
    pub output: &'a Path,
    /// Set from elsewhere to stop between two sets.
    pub stop: &'a AtomicBool,
    /// The simulated GPU, if it is one: members run in its simulation.
    pub sim: Option<&'a SimDevice>,
    /// Longest heating before the first set of a run, s; 0 for none.
    pub heat_s: f64,
}

/// Where partial results are.
pub fn partial_of(output: &Path) -> PathBuf {
    let name = output.file_name().unwrap_or_default().to_string_lossy();
    output.with_file_name(format!("{name}.partial.csv"))
}

impl Sets<'_> {
    /// Runs to the end or until it is stopped. `progress` is called after each set with its number and rows.
    pub fn run(mut self, progress: &mut dyn FnMut(usize, &[SetRow])) -> Result<SetsOutcome, SetsError> {
        if self.output.exists() {
            return Err(SetsError::Exists(self.output.into()));
        }
        let partial = partial_of(self.output);
        let mut rows = if partial.exists() { set::read(&partial)? } else { Vec::new() };
        let resumed = self.taken_up(&rows, &partial)?;
        let (mut notices, mut heated) = (Vec::new(), None);
        let measured = match self.heat(resumed, &partial) {
            Ok(warm) => {
                match warm {
                    Some(Ok(warm)) => heated = Some(warm),
                    Some(Err(why)) => notices.push(why),
                    None => {}
                }
                self.measure_rest(resumed, &partial, &mut rows, progress)
            }
            Err(error) => Err(error),
        };
        for workload in self.workloads.iter_mut() {
            if let Err(e) = workload.quit() {
                notices.push(format!("`{}` did not end as it should: it {e}", workload.name()));
            }
        }
        let restored = self.bench.stage.restore();
        notices.extend(restored.err().map(|e| format!("the GPU was not given back as it was: {e}")));
        let finished = measured?;
        if finished {
            set::write(self.output, &rows)?;
            // The rows are in the output; what is left of the partial results does no harm.
            let _ = std::fs::remove_file(&partial);
        }
        Ok(SetsOutcome { rows, resumed, finished, notices, heated })
    }

    /// Heats the card with the first member of the first set that is due.
    fn heat(&mut self, resumed: usize, partial: &Path) -> Result<Option<Result<Heated, String>>, SetsError> {
        let member = self.sets.get(resumed).and_then(|set| set.members.first());
        let Some((place, workload)) = member.and_then(|m| Some((m.place, self.workloads.get_mut(m.place)?)))
        else {
            return Ok(None);
        };
        let members = self.sets.iter().flat_map(|set| &set.members).filter(|m| m.place == place);
        let points: Vec<Point> = members.map(|m| m.point).collect();
        let heated = Heat::new(self.heat_s).apply(&mut self.bench, workload.as_mut(), &points, self.stop);
        if !self.bench.stage.seats_coexist() {
            // What sits on the whole GPU has to go before it is cut up.
            let _ = workload.quit();
        }
        heated.map_err(|source| SetsError::Measure { source, partial: partial.into() })
    }

    fn measure_rest(
        &mut self,
        resumed: usize,
        partial: &Path,
        rows: &mut Vec<SetRow>,
        progress: &mut dyn FnMut(usize, &[SetRow]),
    ) -> Result<bool, SetsError> {
        let lost = |source| SetsError::Measure { source, partial: partial.into() };
        if self.sim.is_some() {
            // What a simulated GPU shows depends on the time.
            let by_set = self.sets.iter().zip(0i32..).take(resumed);
            let past_us = by_set.filter_map(|(_, set)| rows.iter().find(|row| row.set == set)?.wall_s);
            let past_us = past_us.map(|s| (s * US_PER_S as f64).round() as i64).sum();
            self.bench.clock.sleep_until(self.bench.clock.mono().plus_us(past_us));
        }
        if resumed < self.sets.len() {
            run::prepare(&mut self.bench, self.workloads, self.sets.get(resumed..).unwrap_or_default())
                .map_err(lost)?;
        }
        for (number, set) in self.sets.iter().enumerate().skip(resumed) {
            if self.stop.load(Ordering::SeqCst) {
                return Ok(false);
            }
            let (began, joules) = (self.bench.clock.mono(), self.bench.device.energy_counter().ok());
            let measured = run::measure(&mut self.bench, self.workloads, self.sim, set, self.alone);
            let measured = measured.map_err(lost)?;
            let joules_after = self.bench.device.energy_counter().ok();
            let wall_s = self.bench.clock.mono().since_us(began) as f64 / US_PER_S as f64;
            let spent = joules_after.zip(joules).and_then(joules_between);
            let members = set.members.len() as i32;
            let of = |mut row: ProfileRow| {
                (row.wall_s, row.wall_energy_j) = (Some(wall_s), spent);
                let alone = alone(self.alone, &row).and_then(|r| r.latency);
                SetRow::of(number as i32, members, row, alone)
            };
            let before = rows.len();
            rows.extend(measured.into_iter().map(of));
            set::write(partial, rows)?;
            progress(number + 1, rows.get(before..).unwrap_or_default());
        }
        Ok(true)
    }

    /// How many sets the partial results hold, if they are the first of these.
    fn taken_up(&self, rows: &[SetRow], partial: &Path) -> Result<usize, SetsError> {
        let other = |what: String| SetsError::Other { path: partial.into(), what };
        let uuid = &self.bench.device.identity().uuid;
        if let Some(row) = rows.iter().find(|row| row.gpu_uuid.as_ref() != Some(uuid)) {
            let found = row.gpu_uuid.as_deref().unwrap_or("an unnamed GPU");
            return Err(other(format!("they were measured on {found}, this is {uuid}")));
        }
        let mut wanted =
            self.sets.iter().enumerate().flat_map(|(n, set)| set.members.iter().map(move |m| (n, m)));
        let mut last = None;
        for row in rows {
            let same = wanted.next().is_some_and(|(n, member)| {
                last = Some(n);
                let name = self.workloads.get(member.place).map(|w| w.name());
                (row.set == n as i32)
                    && name == Some(row.model.as_str())
                    && i64::from(row.batch_size) == i64::from(member.point.batch)
                    && (row.share - member.point.share.fraction()).abs() < 1e-6
                    && i64::from(row.frequency) == i64::from(member.point.clock.0)
            });
            if !same {
                return Err(other(format!(
                    "set {} with `{}` is not among these in that place",
                    row.set, row.model
                )));
            }
        }
        let done = last.map_or(0, |n| n + 1);
        let rows_of_done: usize = self.sets.iter().take(done).map(|set| set.members.len()).sum();
        match rows_of_done == rows.len() {
            true => Ok(done),
            false => Err(other("its last set lacks members".into())),
        }
    }
}

/// The row of the same point alone.
fn alone<'a>(rows: &'a [ProfileRow], row: &ProfileRow) -> Option<&'a ProfileRow> {
    rows.iter().find(|r| {
        r.valid
            && r.model == row.model
            && r.batch_size == row.batch_size
            && (r.share - row.share).abs() < 1e-6
            && r.mig_slices == row.mig_slices
            && r.frequency == row.frequency
            && r.power_limit_w == row.power_limit_w
    })
}

#[cfg(test)]
mod tests;
