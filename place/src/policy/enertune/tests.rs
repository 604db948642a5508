//! Steps 4 and 5 beside their definitions, walked one receiver and one pair at a time.

use std::rc::Rc;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::super::sizes::Slices;
use super::empty::Emptying;
use super::force::{Force, Forcing};
use super::gpu::{CAP, Gpu};
use super::market::Market;
use super::pack::{Bin, Packer};
use super::{Order, packed};
use crate::policy::made_up::problem;

fn is_full(bin: &Bin) -> bool {
    bin.items.iter().map(|i| i.slices).sum::<u8>() >= 7
}

/// Step 4 as it is told.
fn walked(packer: &Packer, gpus: &[Rc<Gpu>]) -> Vec<Bin> {
    let mut bins: Vec<Option<Bin>> = gpus.iter().map(|g| Some(g.bin.clone())).collect();
    let down: Vec<usize> = (0..bins.len()).collect();
    let up: Vec<usize> = (0..bins.len()).rev().collect();
    walk(packer, &mut bins, &down, &up);
    let mut bins: Vec<Option<Bin>> = bins.into_iter().filter(Option::is_some).collect();
    let swing = |b: &Option<Bin>| b.iter().flat_map(|b| &b.items).map(|i| i.swing_w).sum::<f64>();
    let mut by_swing: Vec<usize> = (0..bins.len()).collect();
    by_swing.sort_by(|&a, &b| swing(&bins[b]).total_cmp(&swing(&bins[a])));
    let down: Vec<usize> = (0..bins.len()).collect();
    walk(packer, &mut bins, &by_swing, &down);
    bins.into_iter().flatten().collect()
}

fn walk(packer: &Packer, bins: &mut [Option<Bin>], current: &[usize], working: &[usize]) {
    for &from in current {
        let Some(moved) = bins[from].clone() else { continue };
        for &into in working {
            let Some(receiver) = bins[into].clone().filter(|b| into != from && !is_full(b)) else { continue };
            let bin = packer.cheapest(receiver.clock, &receiver.items, &moved.models(), u8::MAX);
            if let Some(bin) = bin.filter(|b| b.cost < receiver.cost + moved.cost) {
                bins[into] = Some(bin);
                bins[from] = None;
                break;
            }
        }
    }
}

/// Every pair that fits, in the order of step 5: what it adds, its lower and upper place, and the clock.
fn pairs(packer: &Packer, gpus: &[Rc<Gpu>]) -> Vec<(f64, (usize, usize, usize))> {
    let mut found = Vec::new();
    for clock in 0..packer.terms.len() {
        for low in (0..gpus.len()).rev() {
            for high in (0..low).rev() {
                let (a, b) = (&gpus[low].bin, &gpus[high].bin);
                let models: Vec<usize> = a.models().into_iter().chain(b.models()).collect();
                if clock < a.clock.max(b.clock) {
                    continue;
                }
                if let Some(bin) = packer.cheapest(clock, &[], &models, CAP) {
                    found.push((bin.cost - a.cost - b.cost, (low, high, clock)));
                }
            }
        }
    }
    found
}

fn least(pairs: &[(f64, (usize, usize, usize))]) -> Option<(f64, (usize, usize, usize))> {
    pairs.iter().copied().min_by(|a, b| a.0.total_cmp(&b.0))
}

fn costs<'b>(bins: impl Iterator<Item = &'b Bin>) -> Vec<f64> {
    bins.map(|b| b.cost).collect()
}

#[test]
fn each_step_is_what_the_walk_of_all_receivers_and_pairs_gives() {
    let mut rng = StdRng::seed_from_u64(11);
    let (mut emptied_some, mut merges) = (0, 0);
    for _ in 0..150 {
        let models = rng.random_range(2..=18);
        let problem = problem(&mut rng, models);
        let slices = Slices::of(&problem);
        let packer = Packer::new(&slices);
        let alone: Vec<Bin> = (0..models).filter_map(|m| packer.alone(m)).collect();
        let first = packed(&packer, &alone, Order::Input);
        for force in [Force::First, Force::Cheapest] {
            let mut gpus = first.clone();
            let mut forcing = Forcing::new(&packer, force, &gpus, usize::MAX);
            let mut emptying = Emptying::new(&packer);
            loop {
                let found = emptying.emptied(&gpus);
                let wanted = walked(&packer, &gpus);
                assert_eq!(costs(found.iter().map(|g| &g.bin)), costs(wanted.iter()));
                emptied_some += usize::from(found.len() < gpus.len());
                let pairs = pairs(&packer, &gpus);
                let wanted = match force {
                    Force::First => pairs.first().copied(),
                    Force::Cheapest => least(&pairs),
                };
                let before: f64 = costs(gpus.iter().map(|g| &g.bin)).iter().sum();
                assert_eq!(forcing.merge(&mut gpus), wanted.is_some());
                let Some((added, _)) = wanted else { break };
                let after: f64 = costs(gpus.iter().map(|g| &g.bin)).iter().sum();
                assert!((after - before - added).abs() <= 1e-9 * before, "{added} {}", after - before);
                merges += 1;
            }
        }
    }
    assert!(emptied_some > 20 && merges > 500, "{emptied_some} {merges}");
}

#[test]
fn the_market_finds_the_cheapest_pair_or_one_nearly_as_cheap() {
    let mut rng = StdRng::seed_from_u64(12);
    let (mut found_pairs, mut worst) = (0, 0.0f64);
    for _ in 0..200 {
        let models = rng.random_range(2..=18);
        let problem = problem(&mut rng, models);
        let slices = Slices::of(&problem);
        let packer = Packer::new(&slices);
        let alone: Vec<Bin> = (0..models).filter_map(|m| packer.alone(m)).collect();
        let mut gpus = packed(&packer, &alone, Order::Input);
        let mut forcing = Forcing::new(&packer, Force::Cheapest, &gpus, 0);
        loop {
            let pairs = pairs(&packer, &gpus);
            let found = Market::new(&packer, &gpus).cheapest(&gpus);
            let Some((added, _)) = least(&pairs) else {
                assert_eq!(found, None);
                break;
            };
            let of_market = pairs.iter().find(|(_, pair)| Some(*pair) == found).unwrap().0;
            let (_, _, clock) = found.unwrap();
            // Batches last 1 to 10 ms, in 96 classes.
            let width = packer.terms[clock].per_latency * 10.0 * (10f64.powf(1.0 / 95.0) - 1.0);
            assert!(of_market <= added + width + 1e-9 * added.abs(), "{of_market} {added} {width}");
            worst = worst.max(if width > 0.0 { (of_market - added) / width } else { 0.0 });
            found_pairs += 1;
            // The market that is kept over merges finds what a fresh one does.
            let before: f64 = costs(gpus.iter().map(|g| &g.bin)).iter().sum();
            assert!(forcing.merge(&mut gpus));
            let after: f64 = costs(gpus.iter().map(|g| &g.bin)).iter().sum();
            assert!((after - before - of_market).abs() <= 1e-9 * before + width, "{of_market}");
        }
    }
    assert!(found_pairs > 200 && worst <= 1.0, "{found_pairs} {worst}");
}
