//! Sizes of partitions for systems that were written for the other kind of sharing than the one they run on.
//!
//! Rule: n MIG slices stand for n / 7 of the SMs, and a percent of the SMs for the smallest size of the profile that is at
//! least as large. Whether partitions fit on a GPU is never taken from these percents: MIG instances fit where they have legal
//! starts together, MPS shares where their percents sum to at most 100.
//! Cases: what a partition leaves free ([`left_over`]) is the largest size of the profile that still fits beside it.
//! Not done: memory; an instance's memory is part of its geometry, and MPS shares have none of their own.
//!
//! Source: NVIDIA MIG User Guide for the seven compute slices; the mapping is this project's.

use crate::candidate::{Candidate, Share};
use crate::problem::Problem;

/// What rounding in a profile's shares may make, percentage points.
const ROUNDING: f64 = 1e-6;

/// How much of the SMs a partition has, %.
pub fn percent(problem: &Problem, share: Share) -> f64 {
    match share {
        Share::Slices(n) => 100.0 * f64::from(n) / f64::from(problem.geometry.compute_slices),
        Share::Percent(pct) => pct,
    }
}

/// Whether partitions of these sizes fit on one GPU.
pub fn fit_together(problem: &Problem, shares: &[Share]) -> bool {
    if shares.iter().map(|s| percent(problem, *s)).sum::<f64>() > 100.0 + ROUNDING {
        return false;
    }
    let slices = |s: &Share| if let Share::Slices(n) = s { Some(*n) } else { None };
    match shares.iter().map(slices).collect::<Option<Vec<u8>>>() {
        Some(sizes) => problem.geometry.place(&sizes).is_some(),
        None => true,
    }
}

/// The sizes that the profile has, ascending.
pub fn of_profile(problem: &Problem) -> Vec<Share> {
    let mut sizes: Vec<Share> = Vec::new();
    for candidate in problem.models.iter().flat_map(|m| &m.candidates) {
        if !sizes.iter().any(|s| same(problem, *s, candidate.share)) {
            sizes.push(candidate.share);
        }
    }
    sizes.sort_by(|a, b| percent(problem, *a).total_cmp(&percent(problem, *b)));
    sizes
}

/// Whether two sizes are the same but for rounding.
pub fn same(problem: &Problem, a: Share, b: Share) -> bool {
    (percent(problem, a) - percent(problem, b)).abs() < 1e-3
}

/// The largest of `sizes` that fits beside a partition of this size.
pub fn left_over(problem: &Problem, sizes: &[Share], taken: Share) -> Option<Share> {
    sizes.iter().rev().copied().find(|s| fit_together(problem, &[taken, *s]))
}

/// The candidates of a model at this clock, those with the fewest processes a share.
pub fn at_clock(problem: &Problem, model: usize, mhz: u32) -> Vec<Candidate> {
    let all = || problem.models[model].candidates.iter().filter(|c| c.frequency_mhz == mhz);
    let fewest = all().map(|c| c.processes).min();
    all().filter(|c| Some(c.processes) == fewest).copied().collect()
}

/// The highest clock at which `of` finds something for each model, with what it finds.
pub fn at_highest_clock<T>(
    problem: &Problem,
    of: impl Fn(usize, &[Candidate]) -> Option<T>,
) -> Result<(u32, Vec<T>), Option<usize>> {
    let models = 0..problem.models.len();
    let at = |mhz: u32, model: usize| of(model, &at_clock(problem, model, mhz));
    let clocks = || problem.clocks.iter().rev().map(|(mhz, _)| *mhz);
    let all_at = |mhz: u32| models.clone().map(|model| at(mhz, model)).collect::<Option<Vec<T>>>();
    clocks()
        .find_map(|mhz| Some((mhz, all_at(mhz)?)))
        .ok_or_else(|| models.clone().find(|&model| clocks().all(|mhz| at(mhz, model).is_none())))
}
