//! Step 5: two GPUs are merged by force.
//!
//! Rule: all models of both are configured anew, in at most [`CAP`] slices each, at a clock that is not below either's: either the first
//! pair from the bottom of the list at the lowest clock where one fits together, as published, or the pair and clock that add the
//! least cost ([`Force`]). The merged GPU takes the upper one's place among those of its clock.
//! Speed: what fits is known from the least that each GPU takes, and clocks below the last merge's hold no pair any more. The
//! cheapest pair is looked for among all pairs in short lists, in longer ones by [`Market`].
//! Cases: no pair fits, which ends the merging.
//!
//! Source: EnerTune (SOSP'26), the planner of its published artifact; the cheapest pair is this project's.

use std::rc::Rc;

use super::gpu::{CAP, Gpu};
use super::market::Market;
use super::pack::{Bin, Packer};

/// What rounding may make of a cost, relative.
const ROUNDING: f64 = 1e-9;

/// Which pair is merged by force.
#[derive(Clone, Copy, Debug)]
pub enum Force {
    /// At the lowest clock, the first from the bottom, as published.
    First,
    /// The one that adds least cost.
    Cheapest,
}

/// What is known between merges of one list.
pub struct Forcing<'a, 'p> {
    packer: &'a Packer<'p>,
    force: Force,
    /// Below this clock no pair fits.
    from_clock: usize,
    /// Longest list whose pairs are all looked at.
    few: usize,
    market: Option<Market<'a, 'p>>,
}

/// A pair by its places in the list, and the clock to merge at.
type Pair = (usize, usize, usize);

impl<'a, 'p> Forcing<'a, 'p> {
    /// Of a list to which nothing was done yet.
    pub fn new(packer: &'a Packer<'p>, force: Force, gpus: &[Rc<Gpu>], few: usize) -> Self {
        let many = matches!(force, Force::Cheapest) && gpus.len() > few;
        let market = many.then(|| Market::new(packer, gpus));
        Self { packer, force, from_clock: 0, few, market }
    }

    /// Merges two GPUs of the list; whether there was a pair.
    pub fn merge(&mut self, gpus: &mut Vec<Rc<Gpu>>) -> bool {
        if gpus.len() <= self.few {
            self.market = None;
        }
        let found = match (self.force, &mut self.market) {
            (Force::First, _) => self.first(gpus),
            (Force::Cheapest, None) => self.cheapest(gpus),
            (Force::Cheapest, Some(market)) => market.cheapest(gpus),
        };
        let Some((low, high, clock)) = found else { return false };
        let Some(bin) = merged(self.packer, &gpus[low], &gpus[high], clock) else { return false };
        self.from_clock = clock;
        let gpu = Rc::new(Gpu::new(self.packer, bin));
        if let Some(market) = &mut self.market {
            market.replace(&gpus[low], &gpus[high], &gpu);
        }
        gpus[high] = gpu;
        gpus.remove(low);
        by_clock(gpus);
        true
    }

    fn first(&self, gpus: &[Rc<Gpu>]) -> Option<Pair> {
        let room = &self.packer.room;
        (self.from_clock..self.packer.terms.len()).find_map(|clock| {
            let state = |gpu: &Gpu| gpu.least[clock].filter(|_| gpu.bin.clock <= clock);
            // By state the first and the last place in the list.
            let mut ends: Vec<Option<(usize, usize)>> = vec![None; room.states()];
            for (at, gpu) in gpus.iter().enumerate() {
                let Some(state) = state(gpu) else { continue };
                let (_, last) = ends[state as usize].get_or_insert((at, at));
                *last = at;
            }
            let fitting = |a: usize| (0..ends.len()).filter(move |&b| room.together(a as u32, b as u32));
            let has_partner = |of: usize, low: usize| {
                fitting(of).any(|other| ends[other].is_some_and(|(first, _)| first < low))
            };
            let lows = (0..ends.len()).filter_map(|of| Some((of, ends[of]?.1)));
            let (of, low) = lows.filter(|(of, low)| has_partner(*of, *low)).max_by_key(|(_, low)| *low)?;
            let fits = |gpu: &Gpu| state(gpu).is_some_and(|s| room.together(s, of as u32));
            let high = (0..low).rev().find(|&high| fits(&gpus[high]))?;
            Some((low, high, clock))
        })
    }

    /// The cheapest of all pairs, of equals the first from the bottom at the lowest clock.
    fn cheapest(&self, gpus: &[Rc<Gpu>]) -> Option<Pair> {
        let mut best: Option<(f64, Pair)> = None;
        for clock in 0..self.packer.terms.len() {
            for low in (0..gpus.len()).rev() {
                for high in (0..low).rev() {
                    let (a, b) = (&gpus[low], &gpus[high]);
                    let apart = a.bin.cost + b.bin.cost;
                    let most = best.map_or(f64::INFINITY, |(added, _)| apart + added + ROUNDING * apart);
                    if clock < a.bin.clock.max(b.bin.clock) || least(self.packer, a, b, clock) > most {
                        continue;
                    }
                    let Some(bin) = merged(self.packer, a, b, clock) else { continue };
                    let added = bin.cost - a.bin.cost - b.bin.cost;
                    if best.is_none_or(|(least, _)| added < least) {
                        best = Some((added, (low, high, clock)));
                    }
                }
            }
        }
        best.map(|(_, pair)| pair)
    }
}

/// All models of both at this clock.
fn merged(packer: &Packer, low: &Gpu, high: &Gpu, clock: usize) -> Option<Bin> {
    let models: Vec<usize> = low.bin.items.iter().chain(&high.bin.items).map(|i| i.model).collect();
    packer.cheapest(clock, &[], &models, CAP)
}

/// What both cost together at this clock, but for rounding; infinite if they do not fit.
fn least(packer: &Packer, a: &Gpu, b: &Gpu, clock: usize) -> f64 {
    let terms = packer.terms[clock];
    let mut least = f64::INFINITY;
    for one in a.ways(packer, clock) {
        for other in b.ways(packer, clock) {
            if packer.room.together(one.state, other.state) {
                let wait = terms.per_latency * one.longest_ms.max(other.longest_ms);
                least = least.min(wait + one.weight + other.weight);
            }
        }
    }
    terms.fixed + least
}

/// Step 3: by clock, highest first; those of one clock stay in their order.
pub fn by_clock(gpus: &mut [Rc<Gpu>]) {
    gpus.sort_by_key(|g| std::cmp::Reverse(g.bin.clock));
}
