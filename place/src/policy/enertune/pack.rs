//! The cheapest way to run given models on one GPU at one clock.
//!
//! Rule: among all combinations of feasible candidates whose instances stand together with what is already there,
//! the one of least cost. Every objective is fixed + per_latency × max latency + Σ weights ([`crate::cost::Terms`]),
//! so per model and size only candidates on the front of latency against weight matter, and for a given longest
//! latency each model takes its least weight within it.
//! Cases: models never take the whole GPU unless nothing smaller serves them. Where the longest batch does not cost, only the
//! least weight of a size matters.
//! Not done: MPS.
//!
//! Source: the colocation model of EnerTune (SOSP'26): the base is paid once.

use std::collections::HashMap;

use crate::candidate::{Candidate, Share};
use crate::cost::Terms;
use crate::plan::{Placed, PlacedItem};
use crate::policy::room::{Room, State};
use crate::policy::sizes::Slices;
use crate::problem::Problem;

/// One candidate of a model as the search sees it.
#[derive(Clone, Copy, Debug)]
pub struct Item {
    /// Index of the model.
    pub model: usize,
    /// Index into the model's candidates.
    pub candidate: u32,
    /// Compute slices.
    pub slices: u8,
    /// Time of a batch, ms.
    pub latency_ms: f64,
    /// What it adds to the cost.
    pub weight: f64,
    /// How much dynamic power this batch and size differ by between their highest and lowest clock, W.
    pub swing_w: f64,
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
    /// What is taken of it.
    pub state: State,
}

impl Bin {
    /// Indices of the models.
    pub fn models(&self) -> Vec<usize> {
        self.items.iter().map(|i| i.model).collect()
    }
}

/// Candidates of one size, latency ascending, weight descending.
pub type Front = Vec<Item>;

/// A problem made ready for searching.
pub struct Packer<'p> {
    /// The problem.
    pub problem: &'p Problem,
    /// By clock.
    pub terms: Vec<Terms>,
    /// What fits together.
    pub room: Room,
    /// By model, clock, size ascending.
    fronts: Vec<Vec<Vec<Front>>>,
}

impl<'p> Packer<'p> {
    /// The fronts of a problem in slices.
    pub fn new(slices: &'p Slices) -> Self {
        let problem: &Problem = &slices.problem;
        let terms: Vec<Terms> =
            problem.clocks.iter().map(|(_, base_w)| problem.cost.terms(*base_w)).collect();
        let waits = terms.iter().any(|t| t.per_latency > 0.0);
        Self {
            problem,
            terms,
            room: slices.room(),
            fronts: (0..problem.models.len()).map(|m| fronts(problem, m, waits)).collect(),
        }
    }

    /// What a model could run as at a clock, by size ascending; no front is empty.
    pub fn fronts(&self, model: usize, clock: usize) -> &[Front] {
        &self.fronts[model][clock]
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

    /// A GPU with the items of two, as they are; `None` if they do not fit.
    pub fn joined(&self, a: &Bin, b: &Bin) -> Option<Bin> {
        let items: Vec<Item> = a.items.iter().chain(&b.items).copied().collect();
        Some(Bin { clock: a.clock, cost: self.cost(a.clock, &items), state: self.state(&items)?, items })
    }

    fn state(&self, items: &[Item]) -> Option<State> {
        items.iter().try_fold(self.room.start(), |state, item| self.room.next(state, item.slices.into()))
    }

    /// The cheapest GPU at `clock` that keeps `fixed` as it is and runs `moved` too, each in at most `cap` slices.
    pub fn cheapest(&self, clock: usize, fixed: &[Item], moved: &[usize], cap: u8) -> Option<Bin> {
        let mut search = Search {
            packer: self,
            clock,
            cap,
            fixed_weight: fixed.iter().map(|i| i.weight).sum(),
            fixed_ms: fixed.iter().map(|i| i.latency_ms).fold(0.0, f64::max),
            chosen: Vec::with_capacity(moved.len()),
            best: None,
        };
        search.descend(moved, self.state(fixed)?);
        let (_, items) = search.best?;
        let items: Vec<Item> = fixed.iter().copied().chain(items).collect();
        Some(Bin { clock, cost: self.cost(clock, &items), state: self.state(&items)?, items })
    }

    /// What the policy hands back for these GPUs.
    pub fn placed(&self, bins: &[Bin]) -> Vec<Placed> {
        let item = |i: &Item| PlacedItem {
            model: i.model,
            candidate: self.problem.models[i.model].candidates[i.candidate as usize],
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
    fn descend(&mut self, moved: &[usize], state: State) {
        let packer = self.packer;
        let Some((&model, rest)) = moved.split_first() else { return self.weigh() };
        for front in packer.fronts(model, self.clock) {
            let slices = front[0].slices;
            if slices > self.cap {
                break;
            }
            let Some(after) = packer.room.next(state, slices.into()) else { continue };
            if packer.room.is_full(after) && !rest.is_empty() {
                continue;
            }
            self.chosen.push(front);
            self.descend(rest, after);
            self.chosen.pop();
        }
    }

    /// The cheapest candidates of the chosen sizes.
    fn weigh(&mut self) {
        let Terms { fixed, per_latency } = self.packer.terms[self.clock];
        let least_ms = self.chosen.iter().map(|f| f[0].latency_ms).fold(self.fixed_ms, f64::max);
        let later = self.chosen.iter().flat_map(|f| f.iter()).map(|i| i.latency_ms).filter(|l| *l > least_ms);
        let longest = std::iter::once(least_ms).chain(later.filter(|_| per_latency > 0.0));
        for within_ms in longest {
            let pick = |f: &&'a Front| {
                let within = f.iter().rev().find(|i| per_latency <= 0.0 || i.latency_ms <= within_ms);
                within.unwrap_or(&f[0])
            };
            let weights: f64 = self.chosen.iter().map(|f| pick(f).weight).sum();
            let cost = fixed + per_latency * within_ms + self.fixed_weight + weights;
            if self.best.as_ref().is_none_or(|(least, _)| cost < *least) {
                self.best = Some((cost, self.chosen.iter().map(|f| *pick(f)).collect()));
            }
        }
    }
}

fn fronts(problem: &Problem, model: usize, waits: bool) -> Vec<Vec<Front>> {
    let demand = &problem.models[model];
    let whole = problem.geometry.compute_slices;
    let sizes: Vec<u8> = problem.geometry.profiles.iter().map(|p| p.slices).collect();
    let feasible = || demand.feasible.iter().map(|&i| (i as u32, &demand.candidates[i]));
    let only_whole = feasible().all(|(_, c)| c.share.slices() == Some(whole));
    let swings = swings_w(&demand.candidates);
    let mut fronts = vec![vec![Front::new(); sizes.len()]; problem.clocks.len()];
    for (candidate, c) in feasible() {
        let Share::Slices(slices) = c.share else { continue };
        let clock = problem.clocks.binary_search_by_key(&c.frequency_mhz, |(mhz, _)| *mhz);
        let size = sizes.binary_search(&slices);
        let (Ok(clock), Ok(size)) = (clock, size) else { continue };
        if slices == whole && !only_whole {
            continue;
        }
        fronts[clock][size].push(Item {
            model,
            candidate,
            slices,
            latency_ms: c.latency_ms,
            weight: problem.cost.weight(&demand.load(c, demand.rate_rps)),
            swing_w: swings.get(&(c.batch, slices)).copied().unwrap_or(0.0),
        });
    }
    for of_clock in &mut fronts {
        for front in of_clock.iter_mut() {
            front.sort_by(|a, b| a.latency_ms.total_cmp(&b.latency_ms).then(a.weight.total_cmp(&b.weight)));
            let mut least = f64::INFINITY;
            front.retain(|item| {
                item.weight < least && {
                    least = item.weight;
                    true
                }
            });
            if !waits {
                front.drain(..front.len().saturating_sub(1));
            }
            front.shrink_to_fit();
        }
        of_clock.retain(|front| !front.is_empty());
    }
    fronts
}

/// By batch and size how much dynamic power differs between the highest and the lowest clock, W; of equal clocks the last and the
/// first count.
fn swings_w(candidates: &[Candidate]) -> HashMap<(u32, u8), f64> {
    let mut ends: HashMap<(u32, u8), [&Candidate; 2]> = HashMap::new();
    for c in candidates {
        let Share::Slices(slices) = c.share else { continue };
        let [lowest, highest] = ends.entry((c.batch, slices)).or_insert([c, c]);
        if c.frequency_mhz < lowest.frequency_mhz {
            *lowest = c;
        }
        if c.frequency_mhz >= highest.frequency_mhz {
            *highest = c;
        }
    }
    ends.into_iter().map(|(key, [lowest, highest])| (key, highest.dynamic_w - lowest.dynamic_w)).collect()
}
