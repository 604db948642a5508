//! What each model could run as, as the search sees it.
//!
//! Rule: at each clock a model's offers are its feasible candidates that no other beats in size, latency and weight together.
//! Every objective is fixed + per_latency × max latency + Σ weights ([`crate::cost::Terms`]).
//! Cases: where an objective does not look at the longest batch, latencies count as 0, so that fewer offers remain.
//! Not done: choosing.
//!
//! Source: the colocation model of EnerTune (SOSP'26): the base is paid once.

use crate::cost::Terms;
use crate::plan::{Placed, PlacedItem};
use crate::policy::room::Room;
use crate::problem::Problem;

/// One way to run a model at one clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Offer {
    /// Size in the terms of [`Room`].
    pub size: u32,
    /// Index into the model's candidates.
    pub candidate: u32,
    /// Time of a batch, ms; 0 where that does not matter.
    pub latency_ms: f64,
    /// What it adds to the cost.
    pub weight: f64,
}

/// A model on a GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Item {
    /// Index of the model.
    pub model: usize,
    /// What it runs as.
    pub offer: Offer,
}

/// A GPU with models.
#[derive(Clone, Debug, PartialEq)]
pub struct Bin {
    /// Index of the clock.
    pub clock: usize,
    /// What runs there.
    pub items: Vec<Item>,
    /// What it costs.
    pub cost: f64,
}

/// A problem made ready for the search.
#[derive(Debug)]
pub struct Offers<'p> {
    /// The problem.
    pub problem: &'p Problem,
    /// What fits together.
    pub room: Room,
    /// By clock.
    pub terms: Vec<Terms>,
    /// By clock and model.
    by_clock: Vec<Vec<Vec<Offer>>>,
}

impl<'p> Offers<'p> {
    /// The problem's offers.
    pub fn new(problem: &'p Problem) -> Self {
        let room = Room::new(problem.sharing, &problem.geometry);
        let terms: Vec<Terms> =
            problem.clocks.iter().map(|(_, base_w)| problem.cost.terms(*base_w)).collect();
        let waits = terms.iter().any(|t| t.per_latency > 0.0);
        let mut by_clock = vec![vec![Vec::new(); problem.models.len()]; problem.clocks.len()];
        for (model, demand) in problem.models.iter().enumerate() {
            for &candidate in &demand.feasible {
                let c = &demand.candidates[candidate];
                let clock = problem.clocks.iter().position(|(mhz, _)| *mhz == c.frequency_mhz);
                let (Some(clock), Some(size)) = (clock, room.size(c.share)) else { continue };
                by_clock[clock][model].push(Offer {
                    size,
                    candidate: candidate as u32,
                    latency_ms: if waits { c.latency_ms } else { 0.0 },
                    weight: problem.cost.weight(&demand.load(c, demand.rate_rps)),
                });
            }
        }
        by_clock.iter_mut().flatten().for_each(|offers| unbeaten(&room, offers));
        Self { problem, room, terms, by_clock }
    }

    /// What a model could run as at a clock.
    pub fn of(&self, clock: usize, model: usize) -> &[Offer] {
        &self.by_clock[clock][model]
    }

    /// What a GPU at this clock costs with these items.
    pub fn cost(&self, clock: usize, items: &[Item]) -> f64 {
        let Terms { fixed, per_latency } = self.terms[clock];
        let longest_ms = items.iter().map(|i| i.offer.latency_ms).fold(0.0, f64::max);
        fixed + per_latency * longest_ms + items.iter().map(|i| i.offer.weight).sum::<f64>()
    }

    /// What the policy hands back for these GPUs.
    pub fn placed(&self, bins: &[Bin]) -> Vec<Placed> {
        let item = |i: &Item| {
            let demand = &self.problem.models[i.model];
            let candidate = demand.candidates[i.offer.candidate as usize];
            PlacedItem { model: i.model, candidate, rate_rps: demand.rate_rps, turn: None }
        };
        let placed = |bin: &Bin| Placed {
            frequency_mhz: self.problem.clocks[bin.clock].0,
            items: bin.items.iter().map(item).collect(),
        };
        bins.iter().map(placed).collect()
    }
}

/// Takes out what another is at least as good as in everything.
fn unbeaten(room: &Room, offers: &mut Vec<Offer>) {
    offers.sort_by(|a, b| {
        (a.size.cmp(&b.size)).then(a.latency_ms.total_cmp(&b.latency_ms)).then(a.weight.total_cmp(&b.weight))
    });
    let mut kept: Vec<Offer> = Vec::new();
    for offer in offers.drain(..) {
        let beats = |k: &Offer| {
            k.latency_ms <= offer.latency_ms && k.weight <= offer.weight && room.replaces(k.size, offer.size)
        };
        if !kept.iter().any(beats) {
            kept.push(offer);
        }
    }
    *offers = kept;
}
