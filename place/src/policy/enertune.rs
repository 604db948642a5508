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
//! Not done: moving single models between GPUs, which is left to `optimal`.
//!
//! Source: EnerTune (SOSP'26), the planner of its published artifact. Differences: an emptied GPU is taken off the
//! list after the walk, not during it; sets must have legal MIG starts; forced merges stop where none is possible.

use gpumon_core::workload::Sharing;

use super::hardest::hardest;
use super::pack::{Bin, Item, Packer};
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
}

impl EnerTune {
    /// As registered.
    pub const WHOLE: Self = Self { every_count: true, every_order: true };
    /// The published steps alone.
    pub const STEPS: Self = Self { every_count: false, every_order: false };
}

/// Most slices of a model in a forced merge.
const FORCED_CAP: u8 = 4;

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

/// Which pair is merged by force.
#[derive(Clone, Copy, Debug)]
enum Force {
    /// At the lowest clock, the first from the bottom, as published.
    First,
    /// The one that adds least cost.
    Cheapest,
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
        if problem.sharing != Sharing::Mig {
            return Err(PlaceError::Sharing { system: self.name(), does: "MIG slices", asked: "mps" });
        }
        let packer = Packer::new(problem);
        let alone: Vec<Bin> = (0..problem.models.len()).filter_map(|m| packer.alone(m)).collect();
        let bound = problem.gpus.map_or(usize::MAX, |n| n as usize);
        let mut best: Option<Vec<Bin>> = None;
        let mut nearest = usize::MAX;
        let variants = if self.every_order { VARIANTS } else { &VARIANTS[..1] };
        for &(order, force) in variants {
            let mut bins = packed(&packer, &alone, order);
            loop {
                let plan = emptied(&packer, bins.clone());
                let plan_gpus = plan.len();
                nearest = nearest.min(plan_gpus);
                if plan_gpus <= bound && best.as_ref().is_none_or(|b| total(&plan) < total(b)) {
                    best = Some(plan);
                }
                let enough = !self.every_count && plan_gpus <= bound;
                if enough || !merged(&packer, &mut bins, force) {
                    break;
                }
            }
        }
        let best = best.ok_or_else(|| PlaceError::TooFewGpus {
            system: self.name(),
            gpus: problem.gpus.unwrap_or(0),
            nearest,
            hardest: hardest(problem),
            rates_that_fit: None,
        })?;
        Ok(packer.placed(&best).into())
    }
}

fn total(bins: &[Bin]) -> f64 {
    bins.iter().map(|b| b.cost).sum()
}

/// Steps 1 to 3.
fn packed(packer: &Packer, alone: &[Bin], order: Order) -> Vec<Bin> {
    let mut models: Vec<&Bin> = alone.iter().collect();
    match order {
        Order::Input => {}
        Order::Reversed => models.reverse(),
        Order::Costliest => models.sort_by(|a, b| b.cost.total_cmp(&a.cost)),
    }
    let mut bins: Vec<Bin> = Vec::new();
    for model in models {
        let joined = bins.iter().enumerate().filter(|(_, b)| b.clock == model.clock).find_map(|(at, bin)| {
            let items: Vec<Item> = bin.items.iter().chain(&model.items).copied().collect();
            let cost = packer.cost(bin.clock, &items);
            (packer.fits(&items) && cost < bin.cost + model.cost)
                .then_some((at, Bin { clock: bin.clock, items, cost }))
        });
        match joined {
            Some((at, bin)) => bins[at] = bin,
            None => bins.push(model.clone()),
        }
    }
    by_clock(&mut bins);
    bins
}

fn by_clock(bins: &mut [Bin]) {
    bins.sort_by_key(|b| std::cmp::Reverse(b.clock));
}

/// Step 4.
fn emptied(packer: &Packer, mut bins: Vec<Bin>) -> Vec<Bin> {
    let down: Vec<usize> = (0..bins.len()).collect();
    let up: Vec<usize> = (0..bins.len()).rev().collect();
    empty_into(packer, &mut bins, &down, &up);
    let mut by_swing: Vec<(f64, usize)> =
        bins.iter().enumerate().map(|(i, b)| (swing_w(packer.problem, b), i)).collect();
    by_swing.sort_by(|a, b| b.0.total_cmp(&a.0));
    let by_swing: Vec<usize> = by_swing.into_iter().map(|(_, i)| i).collect();
    let down: Vec<usize> = (0..bins.len()).collect();
    empty_into(packer, &mut bins, &by_swing, &down);
    bins
}

/// One pass: each of `current` in turn is emptied into the first of `working` where that is cheaper.
fn empty_into(packer: &Packer, bins: &mut Vec<Bin>, current: &[usize], working: &[usize]) {
    let whole = packer.problem.geometry.compute_slices;
    let mut gone = vec![false; bins.len()];
    for &from in current {
        let moved = bins[from].models();
        let receiver = working.iter().filter(|&&w| w != from && !gone[w] && bins[w].slices() < whole);
        let joined = receiver.copied().find_map(|into| {
            let bin = packer.cheapest(bins[into].clock, &bins[into].items, &moved, u8::MAX)?;
            (bin.cost < bins[into].cost + bins[from].cost).then_some((into, bin))
        });
        if let Some((into, bin)) = joined {
            bins[into] = bin;
            gone[from] = true;
        }
    }
    let mut index = 0..;
    bins.retain(|_| index.next().is_none_or(|i: usize| !gone[i]));
}

/// How much dynamic power the models of a GPU differ by between their highest and lowest clock, W.
fn swing_w(problem: &Problem, bin: &Bin) -> f64 {
    let of_item = |item: &Item| {
        let candidates = &problem.models[item.model].candidates;
        let chosen = &candidates[item.candidate];
        let same = || candidates.iter().filter(|c| c.batch == chosen.batch && c.share == chosen.share);
        let highest = same().max_by_key(|c| c.frequency_mhz).map_or(0.0, |c| c.dynamic_w);
        let lowest = same().min_by_key(|c| c.frequency_mhz).map_or(0.0, |c| c.dynamic_w);
        highest - lowest
    };
    bin.items.iter().map(of_item).sum()
}

/// Step 5: whether two GPUs could be merged by force.
fn merged(packer: &Packer, bins: &mut Vec<Bin>, force: Force) -> bool {
    let pairs = || (0..bins.len()).rev().flat_map(|low| (0..low).rev().map(move |high| (low, high)));
    let clocks = 0..packer.problem.clocks.len();
    let mut found =
        clocks.flat_map(|clock| pairs().map(move |pair| (clock, pair))).filter_map(|(clock, (low, high))| {
            if clock < bins[low].clock.max(bins[high].clock) {
                return None;
            }
            let moved: Vec<usize> =
                bins[low].items.iter().chain(&bins[high].items).map(|i| i.model).collect();
            let bin = packer.cheapest(clock, &[], &moved, FORCED_CAP)?;
            let added = bin.cost - bins[low].cost - bins[high].cost;
            Some((added, low, high, bin))
        });
    let chosen = match force {
        Force::First => found.next(),
        Force::Cheapest => found.min_by(|a, b| a.0.total_cmp(&b.0)),
    };
    let Some((_, low, high, bin)) = chosen else { return false };
    bins[high] = bin;
    bins.remove(low);
    by_clock(bins);
    true
}
