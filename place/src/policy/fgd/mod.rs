//! FGD: models as tasks that ask for shares of GPUs, each where fragmentation grows least.
//!
//! Rule: at the highest clock at which something serves each model, a model asks for its smallest feasible share, with the
//! candidate of that share that costs least. Models arrive in the workload's order and are placed by the [`scheduler`]; the
//! expected workload is that of the problem itself. The cluster is an input to FGD, so the fewest GPUs are taken on which each
//! model finds room.
//! Cases: under MIG a share is an instance, a GPU has room for it when it and those that are there have legal starts
//! together (starts are chosen at the end), and free slices count a seventh of a GPU each; under MPS a share is a percent of the SMs. CPU and memory do
//! not bind. Too few GPUs is an error with the count that it takes.
//! Neither power nor the objective is looked at beyond the choice between candidates of one share.
//! Not done: one model on several GPUs.
//!
//! Source: FGD (ATC'23), its rules and published scoring; the way from models to shares is this project's.

mod alike;
pub mod cluster;
pub mod fragmentation;
pub mod scheduler;

use std::hash::{Hash, Hasher};

use gpumon_core::geometry::MigGeometry;
use gpumon_core::workload::Sharing;

use self::alike::Alike;
use self::cluster::Device;
use self::scheduler::Scorer;
use super::hardest::hardest;
use super::{PlaceError, Policy, Solution, one_clock};
use crate::candidate::Candidate;
use crate::plan::{Placed, PlacedItem};
use crate::problem::{Demand, Problem};

/// The policy `fgd`.
#[derive(Clone, Copy, Debug)]
pub struct Fgd {
    /// How falls of fragmentation are compared.
    pub scorer: Scorer,
}

impl Fgd {
    /// As registered: with the published scorer.
    pub const PUBLISHED: Self = Self { scorer: Scorer::Published };
}

impl Policy for Fgd {
    fn name(&self) -> &'static str {
        "fgd"
    }

    fn about(&self) -> &'static str {
        "gives each model its smallest share at the highest clock, where that leaves the least unusable (FGD, ATC'23)"
    }

    fn solve(&self, problem: &Problem) -> Result<Solution, PlaceError> {
        let (frequency_mhz, chosen) = chosen(problem)?;
        let groups = match problem.sharing {
            Sharing::Mig => {
                let whole = MigGpu { geometry: problem.geometry, sizes: Vec::new() };
                let sizes: Vec<u8> = chosen.iter().map(|c| c.share.slices().unwrap_or(0)).collect();
                let slots =
                    |size: &u8| problem.geometry.profile(*size).map_or(0, |p| u64::from(p.memory_slots));
                let least =
                    sizes.iter().map(slots).sum::<u64>().div_ceil(problem.geometry.memory_slots.into());
                grouped(self.scorer, &whole, &sizes, least as usize)
            }
            Sharing::Mps | Sharing::Green => {
                let shares: Vec<u64> =
                    chosen.iter().map(|c| (c.share.amount() * PER_PERCENT) as u64).collect();
                let whole = (100.0 * PER_PERCENT) as u64;
                let least = shares.iter().sum::<u64>().div_ceil(whole);
                grouped(self.scorer, &Percents(whole), &shares, least as usize)
            }
        };
        if let Some(gpus) = problem.gpus.filter(|&gpus| groups.len() > gpus as usize) {
            return Err(PlaceError::TooFewGpus {
                system: self.name(),
                gpus,
                nearest: groups.len(),
                hardest: hardest(problem),
                rates_that_fit: None,
            });
        }
        let item = |model: usize| PlacedItem {
            model,
            candidate: chosen[model],
            rate_rps: problem.models[model].rate_rps,
            turn: None,
        };
        let placed =
            |models: Vec<usize>| Placed { frequency_mhz, items: models.into_iter().map(item).collect() };
        Ok(groups.into_iter().map(placed).collect::<Vec<_>>().into())
    }
}

/// The clock, and what each model asks for.
fn chosen(problem: &Problem) -> Result<(u32, Vec<Candidate>), PlaceError> {
    let of_model = |mhz, model: usize| smallest(problem, &problem.models[model], mhz);
    one_clock::highest(problem, of_model).map_err(|_| PlaceError::NoConfiguration {
        system: Fgd::PUBLISHED.name(),
        why: "no clock has feasible rows of all models; profile them at the same clocks".into(),
    })
}

/// The smallest feasible share at a clock, with the candidate that costs least in it.
fn smallest(problem: &Problem, demand: &Demand, mhz: u32) -> Option<Candidate> {
    let base_w = problem.base_w(mhz)?;
    let feasible = || demand.feasible.iter().map(|&i| demand.candidates[i]);
    let at_clock = || feasible().filter(|c| c.frequency_mhz == mhz);
    let least = at_clock().map(|c| c.share.amount()).min_by(f64::total_cmp)?;
    let cost = |c: &Candidate| problem.cost.gpu(base_w, &[demand.load(c, demand.rate_rps)]);
    at_clock().filter(|c| c.share.amount() <= least).min_by(|a, b| cost(a).total_cmp(&cost(b)))
}

/// The models on each of the fewest GPUs on which each share finds room; fewer than `least` have none, whatever is placed where.
fn grouped<D>(scorer: Scorer, whole: &D, shares: &[D::Share], least: usize) -> Vec<Vec<usize>>
where
    D: Device + Eq + Hash,
{
    let mut gpus = Alike::new(whole, scorer, shares);
    // With a GPU for each, one is always empty.
    let found = (least.max(1)..=shares.len()).find_map(|count| gpus.place(count));
    found.unwrap_or_default().into_iter().filter(|g| !g.is_empty()).collect()
}

/// A GPU in MIG mode: the sizes of the instances that it has.
#[derive(Clone, Debug, PartialEq, Eq)]
struct MigGpu {
    geometry: MigGeometry,
    sizes: Vec<u8>,
}

impl Hash for MigGpu {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.sizes.hash(state);
    }
}

impl Device for MigGpu {
    type Share = u8;

    fn free_milli(&self) -> f64 {
        let free = self.geometry.compute_slices.saturating_sub(self.sizes.iter().sum());
        f64::from(free) * 1000.0 / f64::from(self.geometry.compute_slices)
    }

    fn fits(&self, share: u8) -> bool {
        let sizes: Vec<u8> = self.sizes.iter().copied().chain([share]).collect();
        self.geometry.place(&sizes).is_some()
    }

    fn take(&mut self, share: u8) {
        self.sizes.push(share);
        self.sizes.sort_unstable();
    }
}

/// How finely percents are counted: to less than the checker sees.
const PER_PERCENT: f64 = 1e7;

/// A GPU under MPS: what is free of it, in ten-millionths of a percent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Percents(u64);

impl Device for Percents {
    type Share = u64;

    fn free_milli(&self) -> f64 {
        self.0 as f64 / PER_PERCENT * 10.0
    }

    fn fits(&self, share: u64) -> bool {
        self.0 >= share
    }

    fn take(&mut self, share: u64) {
        self.0 = self.0.saturating_sub(share);
    }
}
