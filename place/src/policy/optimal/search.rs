//! A good plan for many models, within a time.
//!
//! Rule: models begin where the rents of the bound send them, packed first fit, those of the longest batches first. Then, again and
//! again, a few neighbouring GPUs are emptied and their models placed anew by the exact method; what costs no more is kept.
//! Neighbours are GPUs of like clocks and longest batches, or any.
//! Cases: with a bound on GPUs each GPU costs more, and ever more while too many are in use. Threads work on GPUs of their own and meet now and then.
//! Not done: a proof.
//!
//! Source: large neighbourhood search (Shaw 1998).

use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use super::offers::{Bin, Item, Offers};
use super::rent::Rents;
use super::subsets::{self, Exact};

/// Models that are placed anew together, at most.
const TOGETHER: usize = 9;
/// How long threads work apart, as a part of all the time.
const ROUNDS: u32 = 24;

/// The best plan that was found; `Err` with the fewest GPUs where none keeps the bound by the time `give_up`.
pub fn search(
    offers: &Offers,
    rents: &Rents,
    gpus: Option<u32>,
    threads: usize,
    give_up: Instant,
    until: Instant,
) -> Result<Vec<Bin>, usize> {
    let bound = gpus.map_or(usize::MAX, |n| n as usize);
    let mut bins = first(offers, rents);
    let mut per_gpu = rents.per_gpu;
    let mut best: Option<(f64, Vec<Bin>)> = None;
    let mut nearest = usize::MAX;
    let round = until.saturating_duration_since(Instant::now()) / ROUNDS;
    let mut rng = StdRng::seed_from_u64(1);
    loop {
        let cost = bins.iter().map(|b| b.cost).sum();
        nearest = nearest.min(bins.len());
        if bins.len() <= bound && best.as_ref().is_none_or(|(least, _)| cost < *least) {
            best = Some((cost, bins.clone()));
        }
        let end = if best.is_some() { until } else { give_up };
        if Instant::now() >= end {
            return best.map(|(_, bins)| bins).ok_or(nearest);
        }
        if bins.len() > bound {
            // A tenth of an average GPU more.
            per_gpu += 0.1 * cost / bins.len() as f64;
        }
        bins = apart(offers, bins, per_gpu, threads, &mut rng, round.max(Duration::from_millis(5)), until);
    }
}

/// Where the rents send the models.
fn first(offers: &Offers, rents: &Rents) -> Vec<Bin> {
    let mut order: Vec<usize> = (0..rents.choices.len()).collect();
    let key = |m: usize| {
        let choice = rents.choices[m];
        let offer = offers.of(choice.clock, m)[choice.offer];
        (choice.clock, std::cmp::Reverse(choice.class), std::cmp::Reverse(offer.size))
    };
    order.sort_by_key(|&m| key(m));
    let mut bins: Vec<Bin> = Vec::new();
    let mut open: Vec<(usize, u32)> = Vec::new();
    for model in order {
        let choice = rents.choices[model];
        let offer = offers.of(choice.clock, model)[choice.offer];
        let item = Item { model, offer };
        open.retain(|(at, _)| bins[*at].clock == choice.clock);
        let found = open.iter_mut().find_map(|(at, state)| {
            *state = offers.room.next(*state, offer.size)?;
            Some(*at)
        });
        match found {
            Some(at) => bins[at].items.push(item),
            None => {
                open.extend(offers.room.next(offers.room.start(), offer.size).map(|s| (bins.len(), s)));
                bins.push(Bin { clock: choice.clock, items: vec![item], cost: 0.0 });
            }
        }
        open.retain(|(_, state)| !offers.room.is_full(*state));
    }
    for bin in &mut bins {
        bin.cost = offers.cost(bin.clock, &bin.items);
    }
    bins
}

/// Each thread mends GPUs of its own for a while.
fn apart(
    offers: &Offers,
    mut bins: Vec<Bin>,
    per_gpu: f64,
    threads: usize,
    rng: &mut StdRng,
    round: Duration,
    until: Instant,
) -> Vec<Bin> {
    let until = until.min(Instant::now() + round);
    bins.shuffle(rng);
    let mut parts: Vec<(Vec<Bin>, u64)> = (0..threads).map(|_| (Vec::new(), rng.random())).collect();
    for (at, bin) in bins.into_iter().enumerate() {
        parts[at % threads].0.push(bin);
    }
    std::thread::scope(|scope| {
        for (bins, seed) in &mut parts {
            scope.spawn(|| mend(offers, bins, per_gpu, &mut StdRng::seed_from_u64(*seed), until));
        }
    });
    parts.into_iter().flat_map(|(bins, _)| bins).collect()
}

fn mend(offers: &Offers, bins: &mut Vec<Bin>, per_gpu: f64, rng: &mut StdRng, until: Instant) {
    while Instant::now() < until && bins.len() > 1 {
        if rng.random_bool(0.5) {
            bins.shuffle(rng);
        } else {
            by_likeness(offers, bins);
        }
        // Several turns to one order, since ordering many takes longer than a turn.
        for _ in 0..bins.len().div_ceil(4) {
            if Instant::now() >= until || bins.len() < 2 {
                break;
            }
            let from = rng.random_range(0..bins.len() - 1);
            let mut models: Vec<usize> = Vec::new();
            let mut to = from;
            while to < bins.len() && models.len() + bins[to].items.len() <= TOGETHER {
                models.extend(bins[to].items.iter().map(|i| i.model));
                to += 1;
            }
            if to < from + 2 {
                continue;
            }
            let before: f64 = bins[from..to].iter().map(|b| b.cost + per_gpu).sum();
            let found = subsets::solve(offers, &models, to - from, per_gpu, 1, until);
            let Exact::Cheapest(new) = found else { continue };
            let after: f64 = new.iter().map(|b| b.cost + per_gpu).sum();
            if after < before {
                bins.splice(from..to, new);
            }
        }
    }
}

/// Neighbours in this order have like clocks and longest batches.
fn by_likeness(offers: &Offers, bins: &mut [Bin]) {
    let longest = |b: &Bin| b.items.iter().map(|i| i.offer.latency_ms).fold(0.0, f64::max);
    let waits = offers.terms.iter().any(|t| t.per_latency > 0.0);
    bins.sort_by(|a, b| {
        let by_length = if waits { longest(a).total_cmp(&longest(b)) } else { std::cmp::Ordering::Equal };
        by_length.then(a.clock.cmp(&b.clock))
    });
}
