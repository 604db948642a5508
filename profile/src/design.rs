//! Which points of a space are measured.
//!
//! | design | measures |
//! |---|---|
//! | `full` | every point |
//! | `lhs:F` | a Latin hypercube of exactly round(F × points) different points, at least one |
//! | `optimal:F` | round(F × points) points of least expected variance, chosen before anything is measured ([`crate::choose`]) |
//! | `adaptive:F` | up to round(F × points) points, each chosen after the ones before it ([`crate::choose`]) |
//! | `adaptive:err=E` | the same until the error at the other points is expected to be E or less, at most a fifth of the points |
//! | `adaptive:F,err=E` | whichever comes first |
//!
//! Rule of the hypercube: each axis is divided evenly over the points, by level number, and the axes are shuffled
//! against each other; so each level is used equally often, give or take one. Points that coincide, or that do not fit
//! into the memory, exchange one level with another point; if none can, the nearest free point is taken, so no point
//! is lost.
//! Cases: F of 1 is the full design. The same seed gives the same points, on every machine and in every version.
//! Not done here: choosing points by what is known of models; for `optimal` and `adaptive` all points are candidates.
//! Source: McKay, Beckman and Conover, "A Comparison of Three Methods for Selecting Values of Input Variables",
//! Technometrics 1979. The published sweep of EnerTune rounds points drawn in MHz and drops those that coincide.

use std::collections::HashSet;
use std::str::FromStr;

use crate::space::{AXES, Point, Space};

/// How points are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Design {
    /// All of them.
    Full,
    /// A Latin hypercube of this share of them, above 0, up to 1.
    Lhs(f64),
    /// This share of them, above 0, up to 1: those from which a fit is expected to know most.
    Optimal(f64),
    /// One after another, by what was measured before.
    Adaptive(Goal),
}

/// When an adaptive design ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Goal {
    /// Largest share of the points, above 0, up to 1.
    pub most: f64,
    /// Median relative error of batch time and of total power that is expected at the other points and is good enough.
    pub error: Option<f64>,
}

impl Goal {
    /// Share of the points where only an error is given.
    pub const MOST: f64 = 0.2;

    /// Largest number of points of so many.
    pub fn cap(&self, of: usize) -> usize {
        part(self.most, of)
    }

    fn parse(text: &str) -> Option<Self> {
        let (mut most, mut error) = (None, None);
        for part in text.split(',').map(str::trim) {
            let (target, number) = match part.strip_prefix("err=") {
                Some(number) => (&mut error, number),
                None => (&mut most, part),
            };
            if target.replace(fraction_of(number)?).is_some() {
                return None;
            }
        }
        Some(Self { most: most.unwrap_or(Self::MOST), error })
    }
}

/// Why a text is no design.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no design; give `full`, or `lhs:F` or `optimal:F` with F above 0 and up to 1, such as `lhs:0.2`, or \
     `adaptive:F`, `adaptive:err=E` or `adaptive:F,err=E`, such as `adaptive:0.05,err=0.02`"
)]
pub struct DesignError(String);

impl FromStr for Design {
    type Err = DesignError;

    fn from_str(text: &str) -> Result<Self, DesignError> {
        let error = || DesignError(text.into());
        match text.split_once(':') {
            None if text == "full" => Ok(Self::Full),
            Some(("lhs", fraction)) => fraction_of(fraction).map(Self::Lhs).ok_or_else(error),
            Some(("optimal", fraction)) => fraction_of(fraction).map(Self::Optimal).ok_or_else(error),
            Some(("adaptive", goal)) => Goal::parse(goal).map(Self::Adaptive).ok_or_else(error),
            _ => Err(error()),
        }
    }
}

/// A number above 0, up to 1.
fn fraction_of(text: &str) -> Option<f64> {
    text.trim().parse().ok().filter(|f| *f > 0.0 && *f <= 1.0)
}

/// So many points are this share of so many, at least one.
pub fn part(fraction: f64, of: usize) -> usize {
    ((fraction * of as f64).round() as usize).clamp(1, of.max(1))
}

impl Design {
    /// Whether its points depend on what is known of models, in this sweep or before it.
    pub fn learns(self) -> bool {
        matches!(self, Self::Optimal(_) | Self::Adaptive(_))
    }

    /// The points of `space` to measure, in the space's order, among those that `fits`.
    pub fn points(self, space: &Space, seed: u64, mut fits: impl FnMut(&Point) -> bool) -> Vec<Point> {
        let [shares, batches, clocks, limits] = space.levels();
        let cells = (0..shares)
            .flat_map(|s| (0..batches).map(move |b| (s, b)))
            .flat_map(|(s, b)| (0..clocks).flat_map(move |c| (0..limits).map(move |l| [s, b, c, l])))
            .filter(|&cell| space.point(cell).is_some_and(|p| fits(&p)))
            .collect::<Vec<Cell>>();
        let chosen = match self {
            Self::Full | Self::Optimal(_) | Self::Adaptive(_) => cells,
            Self::Lhs(fraction) => hypercube(&cells, space.levels(), fraction, seed),
        };
        chosen.into_iter().filter_map(|cell| space.point(cell)).collect()
    }
}

/// Level numbers of share, batch size, clock and power limit.
type Cell = [usize; AXES];

/// How often a point that coincides with another looks for one to exchange a level with.
const EXCHANGES: usize = 200;

fn hypercube(cells: &[Cell], levels: [usize; AXES], fraction: f64, seed: u64) -> Vec<Cell> {
    let count = part(fraction, cells.len());
    if count >= cells.len() {
        return cells.to_vec();
    }
    let mut random = SplitMix(seed);
    // A power limit that is not swept draws no random number, so that a seed stays the same design without that axis.
    let swept = if levels[AXES - 1] > 1 { AXES } else { AXES - 1 };
    let axes: [Vec<usize>; AXES] = std::array::from_fn(|i| match i < swept {
        true => axis(levels[i], count, &mut random),
        false => vec![0; count],
    });
    let mut points: Vec<Cell> = (0..count).map(|i| axes.each_ref().map(|axis| axis[i])).collect();
    let possible: HashSet<Cell> = cells.iter().copied().collect();
    let mut taken = HashSet::new();
    let homeless: Vec<usize> =
        (0..count).filter(|&i| !(possible.contains(&points[i]) && taken.insert(points[i]))).collect();
    let mut settled = vec![true; count];
    homeless.iter().for_each(|&i| settled[i] = false);
    for i in homeless {
        let exchanged = (0..EXCHANGES).any(|_| {
            let (j, axis) = (random.below(count), random.below(swept));
            let (mut a, mut b) = (points[i], points[j]);
            std::mem::swap(&mut a[axis], &mut b[axis]);
            let free = |cell: &Cell| possible.contains(cell) && (!taken.contains(cell) || *cell == points[j]);
            if !settled[j] || a == b || !free(&a) || !free(&b) {
                return false;
            }
            taken.remove(&points[j]);
            taken.extend([a, b]);
            (points[i], points[j]) = (a, b);
            true
        });
        if !exchanged {
            let far = |cell: &Cell| -> f64 {
                (0..AXES).map(|d| cell[d].abs_diff(points[i][d]) as f64 / levels[d] as f64).sum()
            };
            let free = cells.iter().filter(|cell| !taken.contains(*cell));
            if let Some(&nearest) = free.min_by(|a, b| far(a).total_cmp(&far(b))) {
                taken.insert(nearest);
                points[i] = nearest;
            }
        }
        settled[i] = true;
    }
    points.sort_unstable();
    points
}

/// One axis: `count` level numbers, spread evenly over `levels`, shuffled.
fn axis(levels: usize, count: usize, random: &mut SplitMix) -> Vec<usize> {
    let stratum =
        |i: usize, u: f64| (((i as f64 + u) * levels as f64 / count as f64) as usize).min(levels - 1);
    // With more points than levels the strata are the levels themselves, so that each is used equally often.
    let mut axis: Vec<usize> = (0..count)
        .map(|i| if count >= levels { i * levels / count } else { stratum(i, random.unit()) })
        .collect();
    for i in (1..count).rev() {
        axis.swap(i, random.below(i + 1));
    }
    axis
}

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): a design must not change with a library's version.
pub(crate) struct SplitMix(pub(crate) u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.next()) * end as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use gpumon_core::share::Share;
    use gpumon_core::units::Megahertz;
    use proptest::prelude::*;

    use super::*;

    fn space(shares: usize, batches: u32, clocks: u32) -> Space {
        let shares: Vec<_> = [1, 2, 3, 4, 7].into_iter().take(shares).map(Share::Mig).collect();
        let clocks: Vec<_> = (1..=clocks).map(Megahertz).collect();
        Space::new(&shares, &(1..=batches).collect::<Vec<_>>(), &clocks, &clocks).unwrap()
    }

    #[test]
    fn designs_are_read() {
        assert_eq!("full".parse(), Ok(Design::Full));
        assert_eq!("lhs:0.2".parse(), Ok(Design::Lhs(0.2)));
        assert_eq!("optimal:0.2".parse(), Ok(Design::Optimal(0.2)));
        let adaptive = |most, error| Ok(Design::Adaptive(Goal { most, error }));
        assert_eq!("adaptive:0.05".parse(), adaptive(0.05, None));
        assert_eq!("adaptive:err=0.02".parse(), adaptive(Goal::MOST, Some(0.02)));
        assert_eq!("adaptive:0.1, err=0.02".parse(), adaptive(0.1, Some(0.02)));
        for wrong in [
            "",
            "lhs",
            "lhs:",
            "lhs:0",
            "lhs:1.1",
            "lhs:nan",
            "lhs:-1",
            "full:1",
            "optimal",
            "optimal:0",
            "optimal:2",
            "optimal:0.2,err=0.1",
            "adaptive",
            "adaptive:",
            "adaptive:err=0",
            "adaptive:0.1,0.2",
            "adaptive:err=x",
        ] {
            let error = wrong.parse::<Design>().unwrap_err().to_string();
            assert!(error.contains("give `full`, or `lhs:F` or `optimal:F`"), "{error}");
        }
    }

    #[test]
    fn levels_are_used_evenly() {
        let space = space(5, 6, 15);
        let points = Design::Lhs(0.2).points(&space, 7, |_| true);
        assert_eq!(points.len(), 90);
        for slices in [1, 2, 3, 4, 7] {
            let count = points.iter().filter(|p| p.share == Share::Mig(slices)).count();
            assert!((17..=19).contains(&count), "{slices} slices: {count}");
        }
        for mhz in 1..=15 {
            let count = points.iter().filter(|p| p.clock == Megahertz(mhz)).count();
            assert!((5..=7).contains(&count), "{mhz}: {count}");
        }
    }

    #[test]
    fn a_seed_is_a_design_for_ever() {
        let points = Design::Lhs(0.05).points(&space(5, 6, 15), 1, |_| true);
        assert_eq!(points, Design::Lhs(0.05).points(&space(5, 6, 15), 1, |_| true));
        assert_ne!(points, Design::Lhs(0.05).points(&space(5, 6, 15), 2, |_| true));
        let text: Vec<_> = points.iter().take(3).map(|p| (p.share.slices(), p.batch, p.clock.0)).collect();
        assert_eq!(text, FIRST_OF_SEED_1);
    }

    const FIRST_OF_SEED_1: [(Option<u8>, u32, u32); 3] = [(Some(1), 1, 8), (Some(1), 2, 6), (Some(1), 3, 3)];

    proptest! {
        #[test]
        fn sizes_are_exact_and_no_point_repeats(
            (s, b, c) in (1usize..6, 1u32..8, 1u32..20), fraction in 0.001f64..=1.0, seed in any::<u64>(), hole in 0u32..5,
        ) {
            let space = space(s, b, c);
            let fits = |p: &Point| hole == 0 || !(p.batch + p.clock.0).is_multiple_of(hole + 1);
            let possible = Design::Full.points(&space, 0, fits);
            let points = Design::Lhs(fraction).points(&space, seed, fits);
            let wanted = ((fraction * possible.len() as f64).round() as usize).max(1).min(possible.len());
            prop_assert_eq!(points.len(), wanted);
            prop_assert!(points.windows(2).all(|w| w[0] < w[1]), "ordered, without repeats");
            prop_assert!(points.iter().all(fits));
        }
    }
}
