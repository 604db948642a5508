//! The clock of systems that run every GPU at one clock.
//!
//! Rule: the highest clock at which something can be run for each model.
//! Cases: where there is none, the model that has nothing at any clock, if it is a model's fault.
//! Not done: choosing what is run.
//!
//! Source: this project's way to run systems that were written without clocks.

use crate::problem::Problem;

/// The highest clock (MHz) at which `of` finds something for each model, with what it finds, in the problem's order; else the
/// model for which it finds nothing at any clock, if there is one.
pub fn highest<T>(
    problem: &Problem,
    of: impl Fn(u32, usize) -> Option<T>,
) -> Result<(u32, Vec<T>), Option<usize>> {
    let models = 0..problem.models.len();
    let clocks = || problem.clocks.iter().rev().map(|(mhz, _)| *mhz);
    let all_at = |mhz: u32| models.clone().map(|model| of(mhz, model)).collect::<Option<Vec<T>>>();
    clocks()
        .find_map(|mhz| Some((mhz, all_at(mhz)?)))
        .ok_or_else(|| models.clone().find(|&model| clocks().all(|mhz| of(mhz, model).is_none())))
}
