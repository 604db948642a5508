//! The exact method: every set of models that one GPU can run, and the cheapest way to divide all models into such sets.
//!
//! Rule: for each clock, sets are built model by model; what is known of a set is the front of (room taken, longest
//! batch, sum of weights), since of two ways to run the same models one that is no worse in all three can replace the
//! other. That gives each set's cheapest GPU. Then the cheapest division of the models into sets is found by dynamic
//! programming: the set with the first model is any, the rest is divided cheapest. With a bound on GPUs the number of sets is counted too.
//! Cases: a division into few enough sets may not exist; then the least number is told.
//! Not done: more models than [`MOST`]; 3^n divisions are looked at.
//!
//! Source: dynamic programming over subsets (Held and Karp 1962); the fronts are this project's.

use std::time::Instant;

use super::offers::{Bin, Item, Offers};
use crate::cost::Terms;
use crate::policy::room::State;

/// Most models that are solved exactly.
pub const MOST: usize = 17;

/// What came of it.
#[derive(Clone, Debug, PartialEq)]
pub enum Exact {
    /// The cheapest division.
    Cheapest(Vec<Bin>),
    /// There is none into so few GPUs; it takes this many.
    TooFew(usize),
    /// The time was up.
    OutOfTime,
}

/// The cheapest GPU of a set.
#[derive(Clone, Copy, Debug)]
struct Best {
    cost: f64,
    clock: usize,
}

const NONE: Best = Best { cost: f64::INFINITY, clock: 0 };

/// A way to run the models of a set.
#[derive(Clone, Copy, Debug)]
struct Label {
    room: State,
    longest_ms: f64,
    weight: f64,
}

/// The cheapest way to run `models` (at most [`MOST`]) on at most `gpus` GPUs, each costing `per_gpu` beyond its models.
/// Clocks are divided over `threads`.
pub fn solve(
    offers: &Offers,
    models: &[usize],
    gpus: usize,
    per_gpu: f64,
    threads: usize,
    until: Instant,
) -> Exact {
    let Some(best) = cheapest_sets(offers, models, threads, until) else { return Exact::OutOfTime };
    let sets = match divide(&best, models.len(), gpus, per_gpu, until) {
        Ok(sets) => sets,
        Err(other) => return other,
    };
    let bin = |set: usize| {
        let members: Vec<usize> =
            (0..models.len()).filter(|i| set >> i & 1 == 1).map(|i| models[i]).collect();
        cheapest_at(offers, best[set].clock, &members)
    };
    Exact::Cheapest(sets.into_iter().filter_map(bin).collect())
}

/// By set the cheapest GPU; `None` when the time is up.
fn cheapest_sets(offers: &Offers, models: &[usize], threads: usize, until: Instant) -> Option<Vec<Best>> {
    let clocks = offers.terms.len();
    let part = |first: usize, step: usize| {
        let mut search = Search {
            offers,
            models,
            clock: 0,
            until,
            late: false,
            best: vec![NONE; 1 << models.len()],
            spare: Vec::new(),
        };
        for clock in (first..clocks).step_by(step) {
            search.clock = clock;
            let start = Label { room: offers.room.start(), longest_ms: 0.0, weight: 0.0 };
            search.descend(0, 0, &[start]);
        }
        (!search.late).then_some(search.best)
    };
    if threads < 2 {
        return part(0, 1);
    }
    let parts: Vec<Option<Vec<Best>>> = std::thread::scope(|scope| {
        let started: Vec<_> = (1..threads).map(|t| scope.spawn(move || part(t, threads))).collect();
        let own = part(0, threads);
        std::iter::once(own).chain(started.into_iter().map(|t| t.join().unwrap_or(None))).collect()
    });
    parts.into_iter().collect::<Option<Vec<_>>>()?.into_iter().reduce(|mut all, part| {
        for (a, b) in all.iter_mut().zip(part) {
            // Of equals the lower clock, however the clocks were divided.
            if (b.cost, b.clock) < (a.cost, a.clock) {
                *a = b;
            }
        }
        all
    })
}

struct Search<'a> {
    offers: &'a Offers<'a>,
    models: &'a [usize],
    clock: usize,
    until: Instant,
    late: bool,
    best: Vec<Best>,
    /// Fronts to be used again.
    spare: Vec<Vec<Label>>,
}

impl Search<'_> {
    /// Adds each of the models from `from` on to a set whose front is given.
    fn descend(&mut self, from: usize, set: usize, labels: &[Label]) {
        let Terms { fixed, per_latency } = self.offers.terms[self.clock];
        for at in from..self.models.len() {
            if self.late {
                return;
            }
            let mut front = self.spare.pop().unwrap_or_default();
            extend(self.offers, self.clock, self.models[at], labels, &mut front);
            if !front.is_empty() {
                let larger = set | 1 << at;
                let cost = front.iter().map(|l| fixed + per_latency * l.longest_ms + l.weight);
                let cost = cost.fold(f64::INFINITY, f64::min);
                if cost < self.best[larger].cost {
                    self.best[larger] = Best { cost, clock: self.clock };
                }
                self.descend(at + 1, larger, &front);
            }
            self.spare.push(front);
        }
        if from < 3 {
            self.late |= Instant::now() > self.until;
        }
    }
}

/// The front of a set with one model more.
fn extend(offers: &Offers, clock: usize, model: usize, labels: &[Label], front: &mut Vec<Label>) {
    front.clear();
    for offer in offers.of(clock, model) {
        for label in labels {
            let Some(room) = offers.room.next(label.room, offer.size) else { continue };
            let longest_ms = label.longest_ms.max(offer.latency_ms);
            front.push(Label { room, longest_ms, weight: label.weight + offer.weight });
        }
    }
    front.sort_unstable_by(|a, b| a.weight.total_cmp(&b.weight).then(a.longest_ms.total_cmp(&b.longest_ms)));
    let mut kept = 0;
    for at in 0..front.len() {
        let label = front[at];
        let beaten = |k: &Label| k.longest_ms <= label.longest_ms && offers.room.roomier(k.room, label.room);
        if !front[..kept].iter().any(beaten) {
            front[kept] = label;
            kept += 1;
        }
    }
    front.truncate(kept);
}

/// The sets of the cheapest division into at most `gpus`.
fn divide(
    best: &[Best],
    models: usize,
    gpus: usize,
    per_gpu: f64,
    until: Instant,
) -> Result<Vec<usize>, Exact> {
    let all = (1 << models) - 1;
    let free = layer(best, per_gpu, None);
    let chosen = unrolled(&[free.as_slice()], all, true);
    if chosen.len() <= gpus {
        return Ok(chosen);
    }
    let mut layers: Vec<Vec<(f64, usize)>> = Vec::new();
    for count in 1..=models {
        if Instant::now() > until {
            return Err(Exact::OutOfTime);
        }
        layers.push(layer(best, per_gpu, Some(layers.last().map_or(&[], Vec::as_slice))));
        let found = layers[count - 1][all].0.is_finite();
        if found && count > gpus {
            return Err(Exact::TooFew(count));
        }
        if count == gpus && found {
            break;
        }
    }
    let layers: Vec<&[(f64, usize)]> = layers.iter().map(Vec::as_slice).collect();
    Ok(unrolled(&layers, all, false))
}

/// By set the cost of its cheapest division and the part of it that holds the first model. `below`: the same with one
/// part less, empty for none; absent where parts are not counted.
fn layer(best: &[Best], per_gpu: f64, below: Option<&[(f64, usize)]>) -> Vec<(f64, usize)> {
    let mut costs = vec![(f64::INFINITY, 0); best.len()];
    costs[0].0 = 0.0;
    for set in 1..best.len() {
        let first = set & set.wrapping_neg();
        let others = set ^ first;
        let mut cheapest = (f64::INFINITY, 0);
        let mut part = others;
        loop {
            let (with, rest) = (part | first, others ^ part);
            let of_rest = match below {
                None => costs[rest].0,
                Some([]) if rest == 0 => 0.0,
                Some([]) => f64::INFINITY,
                Some(below) => below[rest].0,
            };
            let cost = best[with].cost + per_gpu + of_rest;
            if cost < cheapest.0 {
                cheapest = (cost, with);
            }
            if part == 0 {
                break;
            }
            part = (part - 1) & others;
        }
        costs[set] = cheapest;
    }
    costs
}

/// The parts, from the layers' last to their first, or from the only one again and again.
fn unrolled(layers: &[&[(f64, usize)]], all: usize, again: bool) -> Vec<usize> {
    let (mut rest, mut parts) = (all, Vec::new());
    let mut layers = layers.iter().rev();
    let mut layer = layers.next();
    while let Some(costs) = layer.filter(|_| rest != 0) {
        let part = costs[rest].1;
        if part == 0 {
            return parts;
        }
        parts.push(part);
        rest ^= part;
        if !again {
            layer = layers.next();
        }
    }
    parts
}

/// The cheapest way to run all of these models on one GPU at this clock.
pub fn cheapest_at(offers: &Offers, clock: usize, members: &[usize]) -> Option<Bin> {
    // Fronts of the first models, then back from the cheapest of the last.
    let mut fronts = vec![vec![Label { room: offers.room.start(), longest_ms: 0.0, weight: 0.0 }]];
    for &model in members {
        let mut front = Vec::new();
        extend(offers, clock, model, &fronts[fronts.len() - 1], &mut front);
        fronts.push(front);
    }
    let per_latency = offers.terms[clock].per_latency;
    let cost = |l: &Label| per_latency * l.longest_ms + l.weight;
    let mut target = *fronts.last()?.iter().min_by(|a, b| cost(a).total_cmp(&cost(b)))?;
    let mut items = Vec::new();
    for (at, &model) in members.iter().enumerate().rev() {
        let (before, offer) = offers.of(clock, model).iter().find_map(|offer| {
            let leads = |l: &&Label| {
                offers.room.next(l.room, offer.size) == Some(target.room)
                    && l.weight + offer.weight == target.weight
                    && l.longest_ms.max(offer.latency_ms) == target.longest_ms
            };
            fronts[at].iter().find(leads).map(|l| (*l, *offer))
        })?;
        items.push(Item { model, offer });
        target = before;
    }
    items.reverse();
    Some(Bin { clock, cost: offers.cost(clock, &items), items })
}
