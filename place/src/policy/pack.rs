//! The cheapest way to run given models on one GPU at one clock.
//!
//! Rule: among all combinations of feasible candidates whose instances stand together with what is already there,
//! the one of least cost. Every objective is fixed + per_latency × max latency + Σ weights ([`crate::cost::Terms`]),
//! so per model and size only candidates on the front of latency against weight matter, and for a given longest
//! latency each model takes its least weight within it.
//! Cases: models never take the whole GPU unless nothing smaller serves them.
//! Not done: MPS.
//!
//! Source: the colocation model of EnerTune (SOSP'26): the base is paid once.

use gpumon_core::geometry::MigGeometry;

use crate::candidate::Candidate;
use crate::cost::Terms;
use crate::plan::{Placed, PlacedItem};
use crate::problem::Problem;

/// One candidate of a model as the search sees it.
#[derive(Clone, Copy, Debug)]
pub struct Item {
    /// Index of the model.
    pub model: usize,
    /// Index into the model's candidates.
    pub candidate: usize,
    /// Compute slices.
    pub slices: u8,
    /// Time of a batch, ms.
    pub latency_ms: f64,
    /// What it adds to the cost.
    pub weight: f64,
}

/// A GPU with models.
#[derive(Clone, Debug)]
pub struct Bin {
    /// Index of the clock.
    pub clock: usize,
    /// What runs there.
    pub items: Vec<Item>,
    /// What it costs.
    pub cost: f64,
}

impl Bin {
    /// Slices in use.
    pub fn slices(&self) -> u8 {
        self.items.iter().map(|i| i.slices).sum()
    }

    /// Indices of the models.
    pub fn models(&self) -> Vec<usize> {
        self.items.iter().map(|i| i.model).collect()
    }
}

/// Candidates of one size, latency ascending, weight descending.
type Front = Vec<Item>;

/// A problem made ready for searching.
pub struct Packer<'p> {
    /// The problem.
    pub problem: &'p Problem,
    terms: Vec<Terms>,
    /// By model, clock, size ascending.
    fronts: Vec<Vec<Vec<Front>>>,
    placeable: Vec<u32>,
}

impl<'p> Packer<'p> {
    /// The problem's fronts.
    pub fn new(problem: &'p Problem) -> Self {
        Self {
            problem,
            terms: problem.clocks.iter().map(|(_, base_w)| problem.cost.terms(*base_w)).collect(),
            fronts: (0..problem.models.len()).map(|m| fronts(problem, m)).collect(),
            placeable: placeable(&problem.geometry),
        }
    }

    /// The configuration of a model that costs least alone on a GPU.
    pub fn alone(&self, model: usize) -> Option<Bin> {
        let clocks = 0..self.terms.len();
        let bins = clocks.filter_map(|clock| self.cheapest(clock, &[], &[model], u8::MAX));
        bins.min_by(|a, b| a.cost.total_cmp(&b.cost))
    }

    /// What a GPU at this clock costs with these items.
    pub fn cost(&self, clock: usize, items: &[Item]) -> f64 {
        let Terms { fixed, per_latency } = self.terms[clock];
        let longest_ms = items.iter().map(|i| i.latency_ms).fold(0.0, f64::max);
        fixed + per_latency * longest_ms + items.iter().map(|i| i.weight).sum::<f64>()
    }

    /// Whether instances of these items fit on one GPU.
    pub fn fits(&self, items: &[Item]) -> bool {
        items.iter().map(|i| i.slices).sum::<u8>() <= self.problem.geometry.compute_slices
            && self.placeable.binary_search(&items.iter().map(|i| code(i.slices)).sum()).is_ok()
    }

    /// The cheapest GPU at `clock` that keeps `fixed` as it is and runs `moved` too, each in at most `cap` slices.
    pub fn cheapest(&self, clock: usize, fixed: &[Item], moved: &[usize], cap: u8) -> Option<Bin> {
        let used: u8 = fixed.iter().map(|i| i.slices).sum();
        let mut search = Search {
            packer: self,
            clock,
            cap,
            fixed_weight: fixed.iter().map(|i| i.weight).sum(),
            fixed_ms: fixed.iter().map(|i| i.latency_ms).fold(0.0, f64::max),
            chosen: Vec::with_capacity(moved.len()),
            best: None,
        };
        search.descend(moved, used, fixed.iter().map(|i| code(i.slices)).sum());
        let (_, items) = search.best?;
        let items: Vec<Item> = fixed.iter().copied().chain(items).collect();
        Some(Bin { clock, cost: self.cost(clock, &items), items })
    }

    /// What the policy hands back for these GPUs.
    pub fn placed(&self, bins: &[Bin]) -> Vec<Placed> {
        let item = |i: &Item| PlacedItem {
            model: i.model,
            candidate: self.problem.models[i.model].candidates[i.candidate],
            rate_rps: self.problem.models[i.model].rate_rps,
            turn: None,
        };
        let placed = |bin: &Bin| Placed {
            frequency_mhz: self.problem.clocks[bin.clock].0,
            items: bin.items.iter().map(item).collect(),
        };
        bins.iter().map(placed).collect()
    }
}

struct Search<'a, 'p> {
    packer: &'a Packer<'p>,
    clock: usize,
    cap: u8,
    fixed_weight: f64,
    fixed_ms: f64,
    chosen: Vec<&'a Front>,
    best: Option<(f64, Vec<Item>)>,
}

impl<'a> Search<'a, '_> {
    fn descend(&mut self, moved: &[usize], used: u8, key: u32) {
        let packer = self.packer;
        let Some((&model, rest)) = moved.split_first() else { return self.weigh() };
        let free = packer.problem.geometry.compute_slices.saturating_sub(used);
        for front in &packer.fronts[model][self.clock] {
            let slices = front[0].slices;
            // Each of the rest takes a slice at least.
            if slices > self.cap || usize::from(slices) + rest.len() > usize::from(free) {
                continue;
            }
            let key = key + code(slices);
            if packer.placeable.binary_search(&key).is_err() {
                continue;
            }
            self.chosen.push(front);
            self.descend(rest, used + slices, key);
            self.chosen.pop();
        }
    }

    /// The cheapest candidates of the chosen sizes.
    fn weigh(&mut self) {
        let Terms { fixed, per_latency } = self.packer.terms[self.clock];
        let least_ms = self.chosen.iter().map(|f| f[0].latency_ms).fold(self.fixed_ms, f64::max);
        let later = self.chosen.iter().flat_map(|f| f.iter()).map(|i| i.latency_ms).filter(|l| *l > least_ms);
        let longest: Vec<f64> = if per_latency > 0.0 {
            std::iter::once(least_ms).chain(later).collect()
        } else {
            vec![f64::INFINITY]
        };
        for within_ms in longest {
            let pick = |f: &&'a Front| f.iter().rev().find(|i| i.latency_ms <= within_ms).unwrap_or(&f[0]);
            let weights: f64 = self.chosen.iter().map(|f| pick(f).weight).sum();
            let wait = if per_latency > 0.0 { per_latency * within_ms } else { 0.0 };
            let cost = fixed + wait + self.fixed_weight + weights;
            if self.best.as_ref().is_none_or(|(least, _)| cost < *least) {
                self.best = Some((cost, self.chosen.iter().map(|f| *pick(f)).collect()));
            }
        }
    }
}

fn fronts(problem: &Problem, model: usize) -> Vec<Vec<Front>> {
    let demand = &problem.models[model];
    let whole = problem.geometry.compute_slices;
    let size = |c: &Candidate| c.share.slices();
    let only_whole = demand.feasible.iter().all(|&i| size(&demand.candidates[i]) == Some(whole));
    let at = |clock: u32, slices: u8| {
        let mut front: Front = Vec::new();
        let mut items: Vec<Item> = demand
            .feasible
            .iter()
            .map(|&i| (i, &demand.candidates[i]))
            .filter(|(_, c)| c.frequency_mhz == clock && size(c) == Some(slices))
            .map(|(candidate, c)| {
                let weight = problem.cost.weight(&demand.load(c, demand.rate_rps));
                Item { model, candidate, slices, latency_ms: c.latency_ms, weight }
            })
            .collect();
        items.sort_by(|a, b| a.latency_ms.total_cmp(&b.latency_ms).then(a.weight.total_cmp(&b.weight)));
        for item in items {
            if front.last().is_none_or(|last| item.weight < last.weight) {
                front.push(item);
            }
        }
        front
    };
    let sizes = problem.geometry.profiles.iter().map(|p| p.slices).filter(|s| *s != whole || only_whole);
    let sizes: Vec<u8> = sizes.collect();
    let of_clock = |(mhz, _): &(u32, f64)| {
        sizes.iter().map(|&s| at(*mhz, s)).filter(|f: &Front| !f.is_empty()).collect()
    };
    problem.clocks.iter().map(of_clock).collect()
}

/// A multiset of sizes as a number: one octal digit a size, which no GPU fills.
fn code(slices: u8) -> u32 {
    1 << (3 * u32::from(slices))
}

/// Codes of the multisets that can stand together, ascending.
fn placeable(geometry: &MigGeometry) -> Vec<u32> {
    let sizes: Vec<u8> = geometry.profiles.iter().map(|p| p.slices).collect();
    let mut found = Vec::new();
    let mut open = vec![Vec::new()];
    while let Some(set) = open.pop() {
        found.push(set.iter().map(|s| code(*s)).sum());
        let least = set.last().copied().unwrap_or(0);
        for &size in sizes.iter().filter(|s| **s >= least) {
            let larger: Vec<u8> = set.iter().copied().chain([size]).collect();
            if geometry.place(&larger).is_some() {
                open.push(larger);
            }
        }
    }
    found.sort_unstable();
    found
}
