//! Which sets are measured.
//!
//! Rule: candidates are drawn at random: two to four models, those used least so far first, shares of the space that fit on
//! one GPU together (legal placements for MIG, a sum of at most 100 % under MPS), batch sizes and clock of the space. Of
//! them as many as wished are kept, so that they are far from each other in what is known beforehand: members, the sum of
//! shares, and, where the models were measured alone, the sums of their dynamic power and of their DRAM activity. The next
//! set is always the candidate whose nearest neighbour among those kept is farthest away (farthest-point design).
//! Cases: the same seed gives the same sets. Power limits stay as found. Under MIG, sets of the same sizes follow each other, because
//! their instances are made once.
//! Not done here: choosing by a fitted model of interference.
//! Source: Johnson, Moore and Ylvisaker, "Minimax and maximin distance designs", J. Statistical Planning and Inference 26,
//! 1990.

use gpumon_core::geometry::SEVEN_SLICES;
use gpumon_core::profile::ProfileRow;
use gpumon_core::share::Share;

use super::{Member, Set};
use crate::design::SplitMix;
use crate::space::{Point, Space};

/// Candidates for each set that is wished for.
const CANDIDATES: usize = 40;
/// Tries to find shares that fit together, for each candidate.
const TRIES: usize = 200;
/// Smallest and largest set.
const SIZES: [usize; 3] = [2, 3, 4];

/// What is wished for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// Number of sets.
    pub sets: usize,
    /// Seed.
    pub seed: u64,
}

/// Why there are no such sets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChooseError {
    /// A set has at least two models.
    #[error("a set takes at least two models, and {0} is swept")]
    Models(usize),
    /// No two shares fit on one GPU.
    #[error("no two of the shares fit on one GPU together; give smaller ones")]
    Shares,
}

/// Sets of the models with these names over a space.
pub fn choose(
    space: &Space,
    names: &[&str],
    alone: &[ProfileRow],
    wish: Wish,
) -> Result<Vec<Set>, ChooseError> {
    if names.len() < 2 {
        return Err(ChooseError::Models(names.len()));
    }
    let mut random = SplitMix(wish.seed);
    let mut used = vec![0usize; names.len()];
    let mut candidates: Vec<Set> = Vec::new();
    for i in 0..wish.sets.saturating_mul(CANDIDATES) {
        let size = SIZES[i % SIZES.len()].min(names.len());
        let drawn = (2..=size).rev().find_map(|size| draw(space, &mut used, size, &mut random));
        candidates.extend(drawn.filter(|set| !candidates.contains(set)));
    }
    if candidates.is_empty() {
        return Err(ChooseError::Shares);
    }
    let features: Vec<Vec<f64>> = scaled(candidates.iter().map(|set| features(set, names, alone)).collect());
    let mut kept: Vec<usize> = vec![0];
    let mut nearest: Vec<f64> = features.iter().map(|f| distance(f, &features[0])).collect();
    while kept.len() < wish.sets.min(candidates.len()) {
        let far = (0..candidates.len())
            .filter(|i| !kept.contains(i))
            .max_by(|a, b| nearest[*a].total_cmp(&nearest[*b]));
        let Some(next) = far else { break };
        kept.push(next);
        for (near, f) in nearest.iter_mut().zip(&features) {
            *near = near.min(distance(f, &features[next]));
        }
    }
    let mut sets: Vec<Set> = kept.into_iter().filter_map(|i| candidates.get(i).cloned()).collect();
    sets.sort_by_key(Set::sizes);
    Ok(sets)
}

/// A random set of this size, if shares that fit together are found.
fn draw(space: &Space, used: &mut [usize], size: usize, random: &mut SplitMix) -> Option<Set> {
    let [shares, batches, clocks, _] = space.levels();
    let chosen = (0..TRIES).find_map(|_| {
        let chosen: Option<Vec<Share>> =
            (0..size).map(|_| space.shares().get(random.below(shares)).copied()).collect();
        chosen.filter(|chosen| fit(chosen))
    })?;
    let mut places: Vec<(usize, usize, usize)> =
        used.iter().enumerate().map(|(place, n)| (*n, random.below(1 << 20), place)).collect();
    places.sort_unstable();
    let clock = random.below(clocks);
    let mut members: Vec<Member> = Vec::new();
    for ((_, _, place), share) in places.into_iter().zip(chosen) {
        let level = space.shares().iter().position(|s| *s == share)?;
        let point: Point = space.point([level, random.below(batches), clock, 0])?;
        members.push(Member { place, point: Point { limit_w: None, ..point } });
        used[place] += 1;
    }
    members.sort_by_key(|m| m.place);
    Some(Set { members })
}

/// Whether shares fit on one GPU together.
fn fit(shares: &[Share]) -> bool {
    let sizes: Vec<u8> = shares.iter().filter_map(|s| s.slices()).collect();
    match sizes.len() == shares.len() {
        true => SEVEN_SLICES.place_beside(&[], &sizes).is_some(),
        false => sizes.is_empty() && shares.iter().map(|s| s.fraction()).sum::<f64>() <= 1.0 + 1e-9,
    }
}

/// What is known of a set beforehand.
fn features(set: &Set, names: &[&str], alone: &[ProfileRow]) -> Vec<f64> {
    let rows = set.members.iter().filter_map(|m| {
        let name = names.get(m.place)?;
        alone.iter().find(|r| {
            r.valid
                && r.model == *name
                && i64::from(r.batch_size) == i64::from(m.point.batch)
                && (r.share - m.point.share.fraction()).abs() < 1e-6
                && i64::from(r.frequency) == i64::from(m.point.clock.0)
        })
    });
    let (mut watts, mut dram) = (0.0, 0.0);
    for row in rows {
        watts += row.dynamic_power_draw.unwrap_or(0.0);
        dram += row.dram_util_pct.unwrap_or(0.0);
    }
    let share: f64 = set.members.iter().map(|m| m.point.share.fraction()).sum();
    vec![set.members.len() as f64, share, watts, dram]
}

/// Each feature from 0 to 1.
fn scaled(mut features: Vec<Vec<f64>>) -> Vec<Vec<f64>> {
    for k in 0..features.first().map_or(0, Vec::len) {
        let (low, high) = features
            .iter()
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), f| (low.min(f[k]), high.max(f[k])));
        let span = if high > low { high - low } else { 1.0 };
        features.iter_mut().for_each(|f| f[k] = (f[k] - low) / span);
    }
    features
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum()
}

#[cfg(test)]
mod tests {
    use gpumon_core::units::Megahertz;
    use proptest::prelude::*;

    use super::*;

    fn space(shares: &[Share]) -> Space {
        let clocks = [Megahertz(1980)];
        Space::new(shares, &[1, 8, 32], &clocks, &clocks).unwrap()
    }

    #[test]
    fn too_few_models_or_too_large_shares_are_explained() {
        let wish = Wish { sets: 3, seed: 1 };
        let small = space(&[Share::Mps(29)]);
        assert_eq!(choose(&small, &["a"], &[], wish), Err(ChooseError::Models(1)));
        assert_eq!(choose(&space(&[Share::Mps(100)]), &["a", "b"], &[], wish), Err(ChooseError::Shares));
        assert_eq!(
            choose(&space(&[Share::Mig(4), Share::Mig(7)]), &["a", "b"], &[], wish),
            Err(ChooseError::Shares)
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn sets_fit_are_different_and_use_models_evenly(seed in any::<u64>(), models in 2usize..9, sets in 1usize..24, mig in any::<bool>()) {
            let shares: Vec<Share> = match mig {
                true => [1, 2, 3, 4].map(Share::Mig).to_vec(),
                false => [14, 29, 43, 57].map(Share::Mps).to_vec(),
            };
            let names = &["a", "b", "c", "d", "e", "f", "g", "h"][..models];
            let wish = Wish { sets, seed };
            let chosen = choose(&space(&shares), names, &[], wish).unwrap();
            prop_assert_eq!(&chosen, &choose(&space(&shares), names, &[], wish).unwrap());
            prop_assert_eq!(chosen.len(), sets);
            for (i, set) in chosen.iter().enumerate() {
                let of: Vec<Share> = set.members.iter().map(|m| m.point.share).collect();
                prop_assert!((2..=4).contains(&of.len()) && fit(&of), "{:?}", of);
                prop_assert!(set.members.windows(2).all(|w| w[0].place < w[1].place));
                prop_assert!(!chosen[..i].contains(set));
            }
        }
    }
}
