//! Sizes of partitions for systems that were written for the other kind of sharing than the one they run on.
//!
//! Rule: n MIG slices stand for n / 7 of the SMs, and a percent of the SMs for the smallest size of the profile that is at
//! least as large. Whether partitions fit on a GPU is never taken from these percents: MIG instances fit where they have legal
//! starts together, MPS shares where their percents sum to at most 100. Systems that place MIG instances see MPS shares as
//! slices ([`Slices`]): a percent stands for the MIG size n whose n / 7 it is within one percentage point, as 29 % for 2; any other for the
//! next larger one. A size then counts as the largest of its percents.
//! Not done: memory of a share; an instance's is part of its geometry, and MPS shares have none of their own.
//!
//! Source: NVIDIA MIG User Guide for the seven compute slices; the mapping is this project's.

use std::borrow::Cow;

use gpumon_core::geometry::MigGeometry;
use gpumon_core::workload::Sharing;

use super::hardest::hardest;
use super::room::Room;
use super::{PlaceError, Solution};
use crate::candidate::{Candidate, Share};
use crate::problem::{Demand, Problem};

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

/// How far a percent may be from n / 7 to stand for n slices, percentage points: profiles have whole percents.
const NEAR: f64 = 1.0;
/// Slices of a GPU.
const WHOLE: usize = 7;

/// How much of the SMs each number of slices has, %.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Percents([f64; WHOLE + 1]);

impl Percents {
    /// Whether a GPU has as much as these sizes have together.
    pub fn fit(&self, sizes: impl IntoIterator<Item = u8>) -> bool {
        sizes.into_iter().map(|n| self.0[usize::from(n)]).sum::<f64>() <= 100.0 + ROUNDING
    }
}

impl Default for Percents {
    /// Those of MIG instances.
    fn default() -> Self {
        Self(std::array::from_fn(|n| 100.0 * n as f64 / WHOLE as f64))
    }
}

/// A problem as systems see it that place MIG instances.
pub struct Slices<'p> {
    /// The problem in slices; its candidates are in the order of the given one's.
    pub problem: Cow<'p, Problem>,
    /// The largest share of each size.
    pub percents: Percents,
    given: &'p Problem,
}

impl<'p> Slices<'p> {
    /// The problem itself under MIG; under MPS with slices in place of percents.
    pub fn of(given: &'p Problem) -> Self {
        if given.sharing == Sharing::Mig {
            return Self { problem: Cow::Borrowed(given), percents: Percents::default(), given };
        }
        let mut percents = [0f64; WHOLE + 1];
        let mut in_slices = |c: &Candidate| {
            let Share::Percent(pct) = c.share else { return *c };
            let slices = slices_of(pct, &given.geometry);
            let largest = &mut percents[usize::from(slices)];
            *largest = largest.max(pct);
            Candidate { share: Share::Slices(slices), ..*c }
        };
        let mut model = |m: &Demand| Demand {
            candidates: m.candidates.iter().map(&mut in_slices).collect(),
            ..m.clone()
        };
        let models = given.models.iter().map(&mut model).collect();
        // Sizes that nothing runs in count as MIG's.
        let Percents(of_mig) = Percents::default();
        let percents = std::array::from_fn(|n| if percents[n] > 0.0 { percents[n] } else { of_mig[n] });
        let problem = Problem { sharing: Sharing::Mig, models, ..given.clone() };
        Self { problem: Cow::Owned(problem), percents: Percents(percents), given }
    }

    /// Whether partitions of these sizes fit on one GPU.
    pub fn fit(&self, sizes: &[u8]) -> bool {
        match self.given.sharing {
            Sharing::Mig => self.given.geometry.place(sizes).is_some(),
            Sharing::Mps | Sharing::Green => self.percents.fit(sizes.iter().copied()),
        }
    }

    /// What fits together.
    pub fn room(&self) -> Room {
        let sizes: Vec<u8> = self.given.geometry.profiles.iter().map(|p| p.slices).collect();
        Room::of_sizes(&sizes, |set| self.fit(set))
    }

    /// What was decided in slices, in the given problem's shares.
    pub fn given_back(&self, decided: Result<Solution, PlaceError>) -> Result<Solution, PlaceError> {
        if self.given.sharing == Sharing::Mig {
            return decided;
        }
        match decided {
            Ok(mut solution) => {
                for item in solution.placed.iter_mut().flat_map(|gpu| &mut gpu.items) {
                    let candidates = &self.problem.models[item.model].candidates;
                    let known = candidates.iter().position(|c| *c == item.candidate);
                    let given = known.and_then(|at| self.given.models[item.model].candidates.get(at));
                    item.candidate = given.copied().unwrap_or(item.candidate);
                }
                Ok(solution)
            }
            Err(PlaceError::TooFewGpus { system, gpus, nearest, rates_that_fit, .. }) => {
                let hardest = hardest(self.given);
                Err(PlaceError::TooFewGpus { system, gpus, nearest, hardest, rates_that_fit })
            }
            Err(other) => Err(other),
        }
    }
}

/// The MIG size that a percent of the SMs stands for.
pub fn slices_of(pct: f64, geometry: &MigGeometry) -> u8 {
    let percent = |n: u8| 100.0 * f64::from(n) / f64::from(geometry.compute_slices);
    let sizes = || geometry.profiles.iter().map(|p| p.slices);
    let near = sizes().find(|&n| (pct - percent(n)).abs() <= NEAR);
    near.or_else(|| sizes().find(|&n| percent(n) >= pct)).unwrap_or(geometry.compute_slices)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpumon_core::geometry::SEVEN_SLICES;

    #[test]
    fn a_gpu_has_a_hundred_percent() {
        let fit = |sizes: &[u8]| {
            Percents([0.0, 14.0, 29.0, 43.0, 57.0, 0.0, 0.0, 100.0]).fit(sizes.iter().copied())
        };
        assert!(fit(&[4, 3]) && fit(&[3, 3, 1]) && fit(&[1; 7]) && fit(&[4, 2, 1]));
        assert!(!fit(&[2, 2, 3]), "29 + 29 + 43 is 101");
        assert!(Percents::default().fit([1; 7]) && !Percents::default().fit([1; 8]));
    }

    #[test]
    fn percents_stand_for_the_nearest_sevenths() {
        let of = |pct: f64| slices_of(pct, &SEVEN_SLICES);
        assert_eq!([14.0, 29.0, 43.0, 57.0, 100.0].map(of), [1, 2, 3, 4, 7]);
        assert_eq!([100.0 / 7.0, 5.0, 16.0, 30.0, 50.0, 71.0].map(of), [1, 1, 2, 3, 4, 7]);
    }
}
