//! What a sweep will cost, how far it is, how it ended, and why it did not.

use std::path::PathBuf;

use gpumon_core::profile::ProfileRow;
use gpumon_core::profile_io::ProfileError;

use crate::choose::End;
use crate::drift::Drift;
use crate::heat::Heated;
use crate::journal::JournalError;
use crate::protocol::MeasureError;
use crate::sweep::FAILURES_IN_A_ROW;

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
    /// Heating at most, where nothing makes it necessary again, s.
    pub heat_s: f64,
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
    /// How the card was heated in this run.
    pub heated: Vec<Heated>,
    /// What idle power did.
    pub drift: Option<Drift>,
    /// Time of this run, heating included, s.
    pub seconds: f64,
    /// Energy of the GPU for what was done in that time, J, by its counter.
    pub joules: Option<f64>,
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
