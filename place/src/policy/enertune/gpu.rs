//! A GPU of the planner's list, with what is known about running its models elsewhere.
//!
//! Rule: at each clock the models of a GPU have a front of ways to run them beside others: what they take, their longest batch and the
//! sum of their weights, since of two ways the one that is no worse in all three can replace the other. From it follows where the models could
//! be moved: a receiver at a clock with a state of room has to have a longest batch of so many ms at least for the move to be
//! cheaper. All is found when it is first asked for, and stays with the GPU as long as it is not changed.
//! Cases: where the longest batch does not cost, its time counts as 0, and each receiver of a clock and state is as good as another.
//! Ways that leave no room for anything are left out. So is the whole GPU as a size.
//! Not done: choosing; what is found here says where to look, and [`Packer::cheapest`] decides.

use std::cell::OnceCell;

use super::pack::{Bin, Packer};
use crate::policy::room::State;

/// Most slices of a model beside others.
pub const CAP: u8 = 4;
/// What rounding may make of a cost, relative.
const ROUNDING: f64 = 1e-9;

/// One way to run the models of a GPU at a clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Way {
    /// What they take.
    pub state: State,
    /// Longest batch, ms.
    pub longest_ms: f64,
    /// Sum of their weights.
    pub weight: f64,
}

/// A GPU of the list.
#[derive(Debug)]
pub struct Gpu {
    /// What runs there.
    pub bin: Bin,
    /// Longest batch, ms.
    pub longest_ms: f64,
    /// How much dynamic power its models differ by between their highest and lowest clock, W.
    pub swing_w: f64,
    /// By clock what its models take at least; `None` where one of them has nothing to run.
    pub least: Vec<Option<State>>,
    ways: Vec<OnceCell<Vec<Way>>>,
    takers: OnceCell<Option<Vec<f64>>>,
}

impl Gpu {
    /// This GPU, of which nothing else is known yet.
    pub fn new(packer: &Packer, bin: Bin) -> Self {
        let least_at = |clock: usize| {
            bin.items.iter().try_fold(packer.room.start(), |state, item| {
                let least = packer.fronts(item.model, clock).first()?[0].slices;
                packer.room.next(state, least.into()).filter(|_| least <= CAP)
            })
        };
        Self {
            longest_ms: bin.items.iter().map(|i| i.latency_ms).fold(0.0, f64::max),
            swing_w: bin.items.iter().map(|i| i.swing_w).sum(),
            least: (0..packer.terms.len()).map(least_at).collect(),
            ways: vec![OnceCell::new(); packer.terms.len()],
            takers: OnceCell::new(),
            bin,
        }
    }

    /// The ways to run its models at a clock beside others.
    pub fn ways(&self, packer: &Packer, clock: usize) -> &[Way] {
        self.ways[clock].get_or_init(|| match self.least[clock] {
            Some(least) if !packer.room.is_full(least) => ways(packer, clock, &self.bin),
            _ => Vec::new(),
        })
    }

    /// By clock and state of a receiver its longest batch, ms, from which on moving all models there is cheaper; `None` where it is
    /// nowhere.
    pub fn takers(&self, packer: &Packer) -> Option<&[f64]> {
        self.takers.get_or_init(|| takers(packer, self)).as_deref()
    }
}

fn ways(packer: &Packer, clock: usize, bin: &Bin) -> Vec<Way> {
    let waits = packer.terms[clock].per_latency > 0.0;
    let mut ways = vec![Way { state: packer.room.start(), longest_ms: 0.0, weight: 0.0 }];
    for model in bin.items.iter().map(|i| i.model) {
        let mut more = Vec::new();
        for item in packer.fronts(model, clock).iter().flatten().filter(|i| i.slices <= CAP) {
            for way in &ways {
                let Some(state) = packer.room.next(way.state, item.slices.into()) else { continue };
                let longest_ms = if waits { way.longest_ms.max(item.latency_ms) } else { 0.0 };
                let full = packer.room.is_full(state);
                more.extend((!full).then_some(Way { state, longest_ms, weight: way.weight + item.weight }));
            }
        }
        more.sort_unstable_by(|a, b| {
            a.weight.total_cmp(&b.weight).then(a.longest_ms.total_cmp(&b.longest_ms))
        });
        ways.clear();
        for way in more {
            let beats = |k: &Way| k.longest_ms <= way.longest_ms && packer.room.roomier(k.state, way.state);
            if !ways.iter().any(beats) {
                ways.push(way);
            }
        }
    }
    ways
}

fn takers(packer: &Packer, gpu: &Gpu) -> Option<Vec<f64>> {
    let cost = gpu.bin.cost * (1.0 + ROUNDING);
    let states = packer.room.states();
    let mut from_ms = vec![f64::INFINITY; packer.terms.len() * states];
    for (clock, terms) in packer.terms.iter().enumerate() {
        for way in gpu.ways(packer, clock).iter().filter(|w| w.weight < cost) {
            // per_latency × (max(longest, the receiver's) − the receiver's) + weight < cost
            let least_ms = if terms.per_latency > 0.0 {
                way.longest_ms - (cost - way.weight) / terms.per_latency
            } else {
                f64::NEG_INFINITY
            };
            for (state, from_ms) in from_ms[clock * states..][..states].iter_mut().enumerate() {
                if packer.room.together(way.state, state as State) {
                    *from_ms = from_ms.min(least_ms);
                }
            }
        }
    }
    from_ms.iter().any(|ms| ms.is_finite() || *ms < 0.0).then_some(from_ms)
}
