//! Sizes of partitions for systems that were written for the other kind of sharing than the one they run on.
//!
//! Rule: n MIG slices stand for n / 7 of the SMs, and a percent of the SMs for the smallest size of the profile that is at
//! least as large. Whether partitions fit on a GPU is never taken from these percents: MIG instances fit where they have legal
//! starts together, MPS shares where their percents sum to at most 100.
//! Not done: memory of a share; an instance's is part of its geometry, and MPS shares have none of their own.
//!
//! Source: NVIDIA MIG User Guide for the seven compute slices; the mapping is this project's.

use crate::candidate::Share;
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

/// Memory of a GPU of this kind, bytes; of an A100 and an H100 the larger and more common model's.
pub fn memory_bytes(gpu: &str) -> f64 {
    if gpu == "h200" { 141e9 } else { 80e9 }
}

/// Whether partitions of these sizes fit on one GPU.
pub fn fit_together(problem: &Problem, shares: &[Share]) -> bool {
    if shares.iter().map(|s| percent(problem, *s)).sum::<f64>() > 100.0 + ROUNDING {
        return false;
    }
    match shares.iter().map(Share::slices).collect::<Option<Vec<u8>>>() {
        Some(sizes) => problem.geometry.place(&sizes).is_some(),
        None => true,
    }
}
