//! Members that are at work at the same time: processes that are followed by threads, or simulated models.
//!
//! Rule: all members are loaded before any runs. They run until whoever looks at them has seen enough.
//! Cases: an inner error spoils the set, in words; an outer one ends the run.

use std::ops::ControlFlow;

use crate::protocol::MeasureError;
use crate::stage::Seat;
use crate::workload::WorkloadError;

use super::Set;

/// Looks at the times of all batches of each member so far, ms; the answer is whether to go on.
pub(super) type Look<'a> = dyn FnMut(&[Vec<f64>]) -> ControlFlow<()> + 'a;

/// What happened to a set.
pub(super) type Spoilt<T> = Result<Result<T, String>, MeasureError>;

/// Members of a set, in its order.
pub(super) trait Crew {
    /// Loads all of them, each in its seat.
    fn load(&mut self, set: &Set, seats: &[Seat]) -> Spoilt<()>;

    /// Runs all of them, and has them looked at about every [`super::watch::TICK_US`], until `look` breaks, one of them ends, or
    /// `limit_us` are over.
    fn run(&mut self, limit_us: i64, look: &mut Look<'_>) -> Spoilt<()>;

    /// Device memory of each, bytes.
    fn memory_bytes(&self) -> Vec<Option<u64>>;

    /// Stops them and gives their memory back.
    fn unload(&mut self);
}

/// Whether an error spoils the set, in words, or all that follow.
pub(super) fn sorted(model: &str, error: WorkloadError) -> Result<String, MeasureError> {
    match error {
        WorkloadError::Lost(_) => Err(MeasureError::Workload { model: model.into(), error }),
        error => Ok(format!("`{model}` {error}")),
    }
}
