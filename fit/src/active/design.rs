//! Points that tell most of a model before any of it is measured.
//!
//! Rule: of all sets of so many points, one after which the sum over the grid of the variances of ln(time of a batch) and of
//! ln(power above the base) is expected to be least. Both figures count alike: what share of total power will lie above the base is
//! not known beforehand, and where it is small its relative error still is what a plan of several models adds up. What
//! the figures will be changes no variance of a Gaussian process, so the set is known before the first measurement.
//!
//! The set is found by exchanges: from points chosen one after another, and from random sets, each point in turn is taken out and
//! the one that lowers the sum most is put in, until a whole round changes nothing; the best of the ends is taken.
//!
//! Cases: a set that is as large as the grid is the grid. Large sets are begun from fewer random ones ([`STARTS`]): they have many
//! exchanges each, and their ends differ little.
//!
//! Not done: seconds that a point takes, and points that will turn out to be at the power cap.
//!
//! Source: least integrated variance (I-optimality, also V- or Q-optimality): Box and Draper, JASA 54 (1959), 622; for Gaussian processes Sacks, Welch,
//! Mitchell and Wynn, "Design and Analysis of Computer Experiments", Statistical Science 4 (1989), 409. Exchanges: Fedorov, *Theory of Optimal
//! Experiments* (1972), a point at a time as in Johnson and Nachtsheim, Technometrics 25 (1983), 271.

use nalgebra::DMatrix;

use super::figures::NOISE;
use super::{Belief, fall_of_variance};
use crate::sample::{shuffled, stream};

/// Points of all beginnings together, at least one beginning and at most [`MOST_STARTS`].
const STARTS: usize = 120;
const MOST_STARTS: usize = 8;
/// Rounds of exchanges from one beginning at most; two to five are usual.
const ROUNDS: usize = 20;
/// An exchange counts where it is better by this part.
const BETTER: f64 = 1e-6;

impl Belief {
    /// Numbers in the grid, ascending, of `count` points to measure before anything else is known. The same seed gives the same.
    pub fn optimal(&self, count: usize, seed: u64) -> Vec<usize> {
        let n = self.grid.len();
        if count >= n {
            return (0..n).collect();
        }
        let mut random = stream(seed);
        let starts = (STARTS / count.max(1)).clamp(1, MOST_STARTS);
        let mut best: Option<(f64, Vec<usize>)> = None;
        for start in 0..starts {
            let mut set = match start {
                0 => Set::one_by_one(&self.covariance, n, count),
                _ => Set::of(&self.covariance, n, shuffled(n, &mut random).into_iter().take(count)),
            };
            set.exchange(&self.covariance);
            let left = set.variance();
            if best.as_ref().is_none_or(|(least, _)| left < *least * (1.0 - BETTER)) {
                best = Some((left, set.chosen));
            }
        }
        let mut chosen = best.map_or(vec![], |(_, chosen)| chosen);
        chosen.sort_unstable();
        chosen
    }
}

/// Points, and the covariance of both figures over the grid after them.
struct Set {
    n: usize,
    weights: Vec<f64>,
    chosen: Vec<usize>,
    covariance: DMatrix<f64>,
}

impl Set {
    fn of(before: &DMatrix<f64>, n: usize, points: impl IntoIterator<Item = usize>) -> Self {
        let mut set = Self { n, weights: vec![1.0; n], chosen: vec![], covariance: before.clone() };
        for point in points {
            set.chosen.push(point);
            set.take(point);
        }
        set
    }

    /// Each point the best after those before it.
    fn one_by_one(before: &DMatrix<f64>, n: usize, count: usize) -> Self {
        let mut set = Self::of(before, n, []);
        for _ in 0..count {
            let Some((_, next)) = set.best() else { break };
            set.chosen.push(next);
            set.take(next);
        }
        set
    }

    fn variance(&self) -> f64 {
        self.covariance.diagonal().sum()
    }

    /// The point not chosen after which the variance falls most, and by how much; the first of equals.
    fn best(&self) -> Option<(f64, usize)> {
        let mut best: Option<(f64, usize)> = None;
        for point in (0..self.n).filter(|i| !self.chosen.contains(i)) {
            let fall = fall_of_variance(&self.covariance, &self.weights, point);
            if best.is_none_or(|(most, _)| fall > most) {
                best = Some((fall, point));
            }
        }
        best
    }

    /// Exchanges points until a round changes none.
    fn exchange(&mut self, before: &DMatrix<f64>) {
        for _ in 0..ROUNDS {
            let mut changed = false;
            for k in 0..self.chosen.len() {
                let old = self.chosen[k];
                self.give_back(old);
                let least = fall_of_variance(&self.covariance, &self.weights, old) * (1.0 + BETTER);
                match self.best().filter(|(fall, _)| *fall > least) {
                    Some((_, new)) => {
                        self.chosen[k] = new;
                        self.take(new);
                        changed = true;
                    }
                    None => self.take(old),
                }
            }
            if !changed {
                break;
            }
            // Taking and giving back rounds; each round begins anew.
            *self = Self::of(before, self.n, std::mem::take(&mut self.chosen));
        }
    }

    /// Both figures of a point become known.
    fn take(&mut self, point: usize) {
        for (i, noise) in [(point, NOISE[0]), (self.n + point, NOISE[1])] {
            let column = self.covariance.column(i).into_owned();
            let variance = column[i] + noise * noise;
            self.covariance.ger(-1.0 / variance, &column, &column, 1.0);
        }
    }

    /// As if they never had been.
    fn give_back(&mut self, point: usize) {
        for (i, noise) in [(self.n + point, NOISE[1]), (point, NOISE[0])] {
            let column = self.covariance.column(i).into_owned();
            // Above 0, because what was measured with this noise is known better than the noise.
            let variance = (noise * noise - column[i]).max(f64::MIN_POSITIVE);
            self.covariance.ger(1.0 / variance, &column, &column, 1.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{base, model, observed};
    use super::*;
    use crate::batch_time::tests::grid;

    #[test]
    fn what_was_given_back_was_never_taken() {
        let belief = Belief::new(&grid(), &[], None, None).unwrap();
        let n = grid().len();
        let mut set = Set::of(&belief.covariance, n, [3, 40, 77]);
        let before = set.covariance.clone();
        set.take(12);
        assert!(set.variance() < before.diagonal().sum());
        set.give_back(12);
        assert!((set.covariance - before).amax() < 1e-6);
    }

    #[test]
    fn no_single_exchange_betters_it_and_random_sets_are_worse() {
        let belief = Belief::new(&grid(), &[model(2.0, 2.0)], Some(&base()), None).unwrap();
        let n = grid().len();
        let variance = |points: &[usize]| Set::of(&belief.covariance, n, points.iter().copied()).variance();
        let found = belief.optimal(6, 1);
        let least = variance(&found);
        assert!(found.len() == 6 && found.windows(2).all(|w| w[0] < w[1]), "{found:?}");
        assert_eq!(found, belief.optimal(6, 1));
        for k in 0..6 {
            for other in (0..n).filter(|i| !found.contains(i)) {
                let mut exchanged = found.clone();
                exchanged[k] = other;
                assert!(variance(&exchanged) > least * (1.0 - 1e-5), "{k} {other}");
            }
        }
        for seed in 0..20 {
            let random: Vec<usize> = shuffled(n, &mut stream(seed)).into_iter().take(6).collect();
            assert!(variance(&random) > 1.05 * least, "{seed}");
        }
    }

    #[test]
    fn a_set_as_large_as_the_grid_is_the_grid() {
        let belief = Belief::new(&grid()[..4], &[], None, None).unwrap();
        assert_eq!(belief.optimal(4, 1), [0, 1, 2, 3]);
        assert_eq!(belief.optimal(9, 1), [0, 1, 2, 3]);
        assert_eq!(belief.optimal(0, 1), [0; 0]);
    }

    #[test]
    fn its_points_tell_more_than_as_many_at_hand() {
        let of = model(1.7, 0.6);
        let start = Belief::new(&grid(), &[], Some(&base()), None).unwrap();
        let after = |points: &[usize]| {
            let mut belief = start.clone();
            points.iter().for_each(|i| assert!(belief.see(&observed(grid()[*i], 1.7, 0.6))));
            super::super::tests::errors(&belief, &of)
        };
        let (designed, first) = (after(&start.optimal(8, 1)), after(&[0, 1, 2, 3, 4, 5, 6, 7]));
        assert!(designed[0] < first[0] && designed[1] < first[1], "{designed:?} {first:?}");
    }
}
