//! EnerTune's planner, without its artifact's faults.
//!
//! Rule, step by step:
//!
//! 0. each model takes the configuration of least cost alone (never a whole GPU, unless nothing less serves it);
//! 1. models are grouped by the clock of that configuration;
//! 2. within a clock each model goes to the first GPU where it fits and is cheaper than apart, else to a new one;
//! 3. GPUs are ordered by clock, highest first;
//! 4. GPUs are emptied into others that keep clock and configurations, where that is cheaper: top-down in order,
//!    then by swing (dynamic power at the highest clock less that at the lowest) with receivers from the top;
//! 5. two GPUs are merged by force on the list as it was before step 4, at the lowest clock that is not below either
//!    of theirs, at most 4 slices a model; then steps 3 and 4 again.
//!
//! Cases: step 5 goes on until nothing can be merged, and of the plans after each step 4 that use no more GPUs than
//! there are, the cheapest is taken, of equals the first; so every count is tried, whether the count is bound or free.
//! Beyond the published order of trying (the list `VARIANTS`), the planner also starts from other orders of the models and
//! forces the merge of least cost instead of the first; of all, the cheapest plan is taken.
//! Speed: what GPUs are worth elsewhere is kept with them (`gpu.rs`), so that steps 4 and 5 do not try all pairs. With up to 100 GPUs after
//! step 3 every count is tried; with more, 100 of them and those near the bound. Where more than 32 GPUs are in the list, the forced merge of
//! least cost may be another one of several that add the same, or, where the longest batch costs, add a few per cent of a batch's cost more
//! (`market.rs`). [`EnerTune::thorough`] does without both.
//! Not done: moving single models between GPUs, which is left to `optimal`.
//!
//! Source: EnerTune (SOSP'26), the planner of its published artifact. Differences: an emptied GPU is taken off the
//! list after the walk, not during it; sets must have legal MIG starts; forced merges stop where none is possible.

mod empty;
mod force;
mod gpu;
mod market;
mod pack;
#[cfg(test)]
mod tests;

use std::rc::Rc;

use self::empty::Emptying;
use self::force::{Force, Forcing, by_clock};
use self::gpu::Gpu;
use self::pack::{Bin, Packer};
use super::hardest::hardest;
use super::sizes::Slices;
use super::{PlaceError, Policy, Solution};
use crate::problem::Problem;

/// The policy `enertune`; what it does beyond the published steps can be left out, to see what each part is worth.
#[derive(Clone, Copy, Debug)]
pub struct EnerTune {
    /// Merge by force as long as that is possible and keep the cheapest, instead of stopping at the first plan that
    /// needs no more GPUs than there are.
    pub every_count: bool,
    /// Try every order of models and kind of forced merge, instead of the published one.
    pub every_order: bool,
    /// Look at every pair and every count however many GPUs there are. Takes minutes for hundreds of models, and is there to see
    /// what is lost without.
    pub thorough: bool,
}

impl EnerTune {
    /// As registered.
    pub const WHOLE: Self = Self { every_count: true, every_order: true, thorough: false };
    /// The published steps alone.
    pub const STEPS: Self = Self { every_count: false, every_order: false, thorough: false };
}

/// How many GPU counts are tried at most, but for those about the bound.
const COUNTS: usize = 100;
/// Longest list whose pairs are all looked at.
const FEW: usize = 32;
/// From this many models on the variants run side by side.
const MANY: usize = 64;

/// In which order models are packed.
#[derive(Clone, Copy, Debug)]
enum Order {
    /// The workload's, as published.
    Input,
    /// The workload's, last first.
    Reversed,
    /// Costliest alone first.
    Costliest,
}

/// What is tried; the first is the published way.
const VARIANTS: &[(Order, Force)] = &[
    (Order::Input, Force::First),
    (Order::Input, Force::Cheapest),
    (Order::Costliest, Force::Cheapest),
    (Order::Reversed, Force::Cheapest),
];

impl Policy for EnerTune {
    fn name(&self) -> &'static str {
        "enertune"
    }

    fn about(&self) -> &'static str {
        "packs models by clock into MIG slices, then empties and merges GPUs where that costs less (EnerTune, SOSP'26)"
    }

    fn solve(&self, problem: &Problem) -> Result<Solution, PlaceError> {
        let slices = Slices::of(problem);
        slices.given_back(self.in_slices(&slices))
    }
}

impl EnerTune {
    fn in_slices(&self, slices: &Slices) -> Result<Solution, PlaceError> {
        let problem: &Problem = &slices.problem;
        let packer = Packer::new(slices);
        let alone: Vec<Bin> = (0..problem.models.len()).filter_map(|m| packer.alone(m)).collect();
        let variants = if self.every_order { VARIANTS } else { &VARIANTS[..1] };
        let run = |&variant| self.run(&packer, &alone, variant);
        let found: Vec<Found> = if problem.models.len() < MANY {
            variants.iter().map(run).collect()
        } else {
            std::thread::scope(|scope| {
                let started: Vec<_> = variants.iter().map(|v| scope.spawn(move || run(v))).collect();
                started.into_iter().filter_map(|thread| thread.join().ok()).collect()
            })
        };
        let nearest = found.iter().map(|f| f.nearest).min();
        // Of equals the first.
        let best = found.into_iter().filter_map(|f| f.best).min_by(|a, b| a.0.total_cmp(&b.0));
        let (_, best) = best.ok_or_else(|| PlaceError::TooFewGpus {
            system: self.name(),
            gpus: problem.gpus.unwrap_or(0),
            nearest: nearest.unwrap_or(0),
            hardest: hardest(problem),
            rates_that_fit: None,
        })?;
        Ok(packer.placed(&best).into())
    }
}

/// What came of a variant.
struct Found {
    /// The cheapest plan within the bound, with its cost.
    best: Option<(f64, Vec<Bin>)>,
    /// The fewest GPUs of any plan.
    nearest: usize,
}

impl EnerTune {
    /// Steps 1 to 5 until nothing can be merged, or enough was tried.
    fn run(&self, packer: &Packer, alone: &[Bin], (order, force): (Order, Force)) -> Found {
        let bound = packer.problem.gpus.map_or(usize::MAX, |n| n as usize);
        let mut gpus = packed(packer, alone, order);
        let few = if self.thorough { usize::MAX } else { FEW };
        let mut forcing = Forcing::new(packer, force, &gpus, few);
        let stride = if self.thorough { 1 } else { gpus.len().div_ceil(COUNTS).max(1) };
        let mut emptying = Emptying::new(packer);
        let mut found = Found { best: None, nearest: usize::MAX };
        loop {
            let plan = emptying.emptied(&gpus);
            let cost = plan.iter().map(|gpu| gpu.bin.cost).sum();
            found.nearest = found.nearest.min(plan.len());
            if plan.len() <= bound && found.best.as_ref().is_none_or(|(least, _)| cost < *least) {
                found.best = Some((cost, plan.iter().map(|gpu| gpu.bin.clone()).collect()));
            }
            if plan.len() <= bound && !self.every_count {
                return found;
            }
            // Step by step where the bound is near.
            let above = plan.len().saturating_sub(bound);
            let merges = if above == 0 { stride } else { (above / 2).clamp(1, stride) };
            let merged = (0..merges).take_while(|_| forcing.merge(&mut gpus)).count();
            if merged == 0 {
                return found;
            }
        }
    }
}

/// Steps 1 to 3.
fn packed(packer: &Packer, alone: &[Bin], order: Order) -> Vec<Rc<Gpu>> {
    let mut models: Vec<&Bin> = alone.iter().collect();
    match order {
        Order::Input => {}
        Order::Reversed => models.reverse(),
        Order::Costliest => models.sort_by(|a, b| b.cost.total_cmp(&a.cost)),
    }
    let mut bins: Vec<Bin> = Vec::new();
    // By clock the GPUs that have room for something.
    let mut open: Vec<Vec<usize>> = vec![Vec::new(); packer.terms.len()];
    for model in models {
        let open = &mut open[model.clock];
        let joined = open.iter().enumerate().find_map(|(nth, &at)| {
            if !packer.room.together(bins[at].state, model.state) {
                return None;
            }
            let bin = packer.joined(&bins[at], model)?;
            (bin.cost < bins[at].cost + model.cost).then_some((nth, at, bin))
        });
        match joined {
            Some((nth, at, bin)) => {
                if packer.room.is_full(bin.state) {
                    open.remove(nth);
                }
                bins[at] = bin;
            }
            None => {
                if !packer.room.is_full(model.state) {
                    open.push(bins.len());
                }
                bins.push(model.clone());
            }
        }
    }
    let mut gpus: Vec<Rc<Gpu>> = bins.into_iter().map(|bin| Rc::new(Gpu::new(packer, bin))).collect();
    by_clock(&mut gpus);
    gpus
}
