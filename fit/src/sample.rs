//! Which points of a grid a fit is trained on: a Latin hypercube, mapped to the grid in one of two ways.
//!
//! Rule: the share, frequency and batch (and number of processes, where they differ) of a hypercube of n points each take every one of n equal strata once.
//! `physical` lays the strata over the physical range and rounds each coordinate to the nearest value of the grid;
//! what coincides or was not measured is dropped, so fewer than n points remain, and large batches are favoured.
//! `level` lays them over the level index and moves a point that is taken or was not measured to the nearest free
//! one, so that exactly n distinct points remain.
//!
//! Cases: fraction 1 takes every point in `level`; at least one point is taken. The same points, fraction and seed
//! give the same answer on every machine and version: the stream is ChaCha8, and the draws from it are made here.
//!
//! Not done: designs that adapt to what was measured.
//!
//! Source: McKay, Beckman and Conover, Technometrics 21 (1979), 239 (Latin hypercube); the physical mapping is that
//! of EnerTune's artifact (SOSP'26).

use std::collections::BTreeSet;

use rand::Rng;
use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::error::FitError;

/// How hypercube points become grid points.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mapping {
    /// Rounded in physical units, duplicates dropped.
    Physical,
    /// By level index, without loss.
    Level,
}

/// Draws round(`fraction` × points) of `points` (share, frequency, batch, perhaps processes; any units) and gives their indices,
/// ascending and distinct. With [`Mapping::Physical`] fewer may come back.
///
/// # Errors
///
/// [`FitError::BadOption`] if the fraction is not within (0, 1], [`FitError::NoPoints`] if there are none.
pub fn sample<const N: usize>(
    points: &[[f64; N]],
    mapping: Mapping,
    fraction: f64,
    seed: u64,
) -> Result<Vec<usize>, FitError> {
    if !(fraction > 0.0 && fraction <= 1.0) {
        return Err(FitError::BadOption {
            option: "fraction",
            found: fraction.to_string(),
            expected: "more than 0 and at most 1, such as 0.2",
        });
    }
    if points.is_empty() {
        return Err(FitError::NoPoints { model: "sample".into() });
    }
    let levels = std::array::from_fn(|axis| levels(points, axis));
    let count = ((fraction * points.len() as f64).round() as usize).clamp(1, points.len());
    let cube = hypercube(count, &mut stream(seed));
    Ok(match mapping {
        Mapping::Physical => physical(points, &levels, &cube),
        Mapping::Level => level(points, &levels, &cube),
    })
}

/// The distinct values of one coordinate, ascending.
fn levels<const N: usize>(points: &[[f64; N]], axis: usize) -> Vec<f64> {
    let mut values: Vec<f64> = points.iter().map(|p| p[axis]).collect();
    values.sort_by(f64::total_cmp);
    values.dedup();
    values
}

fn physical<const N: usize>(points: &[[f64; N]], levels: &[Vec<f64>; N], cube: &[[f64; N]]) -> Vec<usize> {
    let mut taken = BTreeSet::new();
    for u in cube {
        let wanted = std::array::from_fn(|axis| {
            let values: &[f64] = &levels[axis];
            let (low, high) = (values[0], values[values.len() - 1]);
            nearest(values, low + u[axis] * (high - low))
        });
        taken.extend(points.iter().position(|p| *p == wanted));
    }
    taken.into_iter().collect()
}

fn level<const N: usize>(points: &[[f64; N]], levels: &[Vec<f64>; N], cube: &[[f64; N]]) -> Vec<usize> {
    // Coordinates of each point in levels, as the middle of its stratum within 0 to 1.
    let place = |p: &[f64; N]| {
        std::array::from_fn(|axis| {
            let index = levels[axis].iter().position(|v| *v == p[axis]).unwrap_or(0);
            (index as f64 + 0.5) / levels[axis].len() as f64
        })
    };
    let places: Vec<[f64; N]> = points.iter().map(place).collect();
    let mut free: BTreeSet<usize> = (0..points.len()).collect();
    let mut taken = BTreeSet::new();
    for u in cube {
        let distance = |i: &usize| (0..N).map(|axis| (places[*i][axis] - u[axis]).powi(2)).sum::<f64>();
        let Some(best) = free.iter().copied().min_by(|a, b| distance(a).total_cmp(&distance(b))) else {
            break;
        };
        free.remove(&best);
        taken.insert(best);
    }
    taken.into_iter().collect()
}

fn nearest(values: &[f64], wanted: f64) -> f64 {
    let by_distance = |a: &&f64, b: &&f64| (**a - wanted).abs().total_cmp(&(**b - wanted).abs());
    values.iter().min_by(by_distance).copied().unwrap_or(wanted)
}

/// `count` points of the unit cube, each coordinate of which meets each of `count` strata once.
fn hypercube<const N: usize>(count: usize, rng: &mut ChaCha8Rng) -> Vec<[f64; N]> {
    let mut cube = vec![[0.0; N]; count];
    for axis in 0..N {
        let order = shuffled(count, rng);
        for (point, stratum) in cube.iter_mut().zip(order) {
            point[axis] = (stratum as f64 + unit(rng)) / count as f64;
        }
    }
    cube
}

/// 0 … `count` − 1 in random order (Fisher and Yates).
pub(crate) fn shuffled(count: usize, rng: &mut ChaCha8Rng) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    for i in (1..count).rev() {
        order.swap(i, (unit(rng) * (i + 1) as f64) as usize);
    }
    order
}

/// The stream of one seed, whose bytes begin the key; no library decides how.
pub(crate) fn stream(seed: u64) -> ChaCha8Rng {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    ChaCha8Rng::from_seed(key)
}

/// Uniform in [0, 1), from the upper 53 bits of one draw.
pub(crate) fn unit(rng: &mut ChaCha8Rng) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn grid() -> Vec<[f64; 3]> {
        let mut points = Vec::new();
        for share in [1.0, 2.0, 3.0, 4.0, 7.0] {
            for mhz in [210.0, 510.0, 810.0, 1110.0, 1410.0] {
                points.extend([1.0, 2.0, 4.0, 8.0, 16.0, 32.0].map(|batch| [share, mhz, batch]));
            }
        }
        points
    }

    #[test]
    fn level_loses_nothing_and_physical_does() {
        let (level, physical): (Vec<usize>, Vec<usize>) = (0..20)
            .map(|seed| {
                let count = |mapping| sample(&grid(), mapping, 0.2, seed).unwrap().len();
                (count(Mapping::Level), count(Mapping::Physical))
            })
            .unzip();
        assert!(level.iter().all(|&n| n == 30));
        assert!(physical.iter().all(|&n| n <= 30) && physical.iter().any(|&n| n < 30));
    }

    #[test]
    fn physical_favours_large_batches_and_level_none() {
        let largest = |mapping| {
            let taken = (0..20).flat_map(|seed| sample(&grid(), mapping, 0.2, seed).unwrap());
            let batches: Vec<f64> = taken.map(|i| grid()[i][2]).collect();
            batches.iter().filter(|b| **b >= 16.0).count() as f64 / batches.len() as f64
        };
        assert!(largest(Mapping::Physical) > 0.55);
        assert!((largest(Mapping::Level) - 1.0 / 3.0).abs() < 0.05);
    }

    #[test]
    fn a_seed_always_draws_the_same_points() {
        assert_eq!(sample(&grid(), Mapping::Level, 0.05, 1).unwrap(), GOLDEN);
        assert_ne!(sample(&grid(), Mapping::Level, 0.05, 2).unwrap(), GOLDEN);
    }
    const GOLDEN: [usize; 8] = [9, 29, 53, 58, 67, 102, 120, 134];

    #[test]
    fn bad_fractions_are_named() {
        for fraction in [0.0, -1.0, 1.1, f64::NAN] {
            let error = sample(&grid(), Mapping::Level, fraction, 0).unwrap_err();
            assert!(error.to_string().contains("fraction"));
        }
        assert!(sample::<3>(&[], Mapping::Level, 0.5, 0).is_err());
        assert_eq!(sample(&grid(), Mapping::Level, 1.0, 0).unwrap().len(), 150);
    }

    proptest! {
        #[test]
        fn indices_are_distinct_and_inside(
            keep in proptest::collection::vec(any::<bool>(), 150), fraction in 0.01..1.0f64, seed: u64,
        ) {
            let points: Vec<_> = grid().into_iter().zip(keep).filter(|(_, k)| *k).map(|(p, _)| p).collect();
            prop_assume!(!points.is_empty());
            for mapping in [Mapping::Level, Mapping::Physical] {
                let taken = sample(&points, mapping, fraction, seed).unwrap();
                prop_assert!(taken.windows(2).all(|w| w[0] < w[1]));
                prop_assert!(taken.iter().all(|&i| i < points.len()));
                let wanted = ((fraction * points.len() as f64).round() as usize).max(1);
                prop_assert!(mapping == Mapping::Physical || taken.len() == wanted);
            }
        }
    }
}
