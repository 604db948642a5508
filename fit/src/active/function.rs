//! A surface as a sum over the imagined models and over smooth remainders around points.
//!
//! Rule: with μ and φₖ the mean and the scaled deviations of the imagined models ([`super::kernel`]), and R the smooth
//! remainder's covariance, each figure is
//!
//! ```text
//! ln(value) = μ(x) + Σ aₖ φₖ(x) + level + Σ cⱼ R(x, xⱼ)          aₖ are shared by both figures
//! ```
//!
//! Every posterior mean of the process is of this kind, so it is kept as these numbers and known at any point. Without μ it
//! is a way in which surfaces differ.
//!
//! Cases: sums of functions share their places; of more than [`MOST_PLACES`] places, evenly taken ones are kept, and
//! their weights are solved for again.
//!
//! Source: Rasmussen and Williams, *Gaussian Processes for Machine Learning*, 2.2 (the mean as a sum of kernels).

use nalgebra::DVector;
use serde::{Deserialize, Serialize};

use super::ensemble::{Ensemble, MODELS};
use super::kernel::{LENGTHS, LEVEL, Places, REMAINDER};
use crate::bumps::{Bumps, Levels, bump};
use crate::cholesky::cholesky;
use crate::once::Once;
use crate::point::Point;
use crate::residual::shortened;
use crate::variables::{Variables, variables};

/// Places of one function at most; more would make model files large.
const MOST_PLACES: usize = 450;
/// Relative to the diagonal, where weights are solved for again.
const JITTER: f64 = 1e-6;

/// A function of both figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Function {
    /// Weight of each imagined model.
    imagined: Vec<f64>,
    /// Level of ln(time of a batch) and ln(power).
    level: [f64; 2],
    /// ln(batch), ln(share), ln(memory), ln(clock in GHz), ln(processes) of each place.
    #[serde(with = "crate::compact")]
    places: Vec<Variables>,
    /// Weight of the remainder of ln(time of a batch) around each place.
    time: Vec<f64>,
    /// Weight of the remainder of ln(power) around each place.
    power: Vec<f64>,
    /// The sum over the places, made ready; `None` where it has to be taken one by one.
    #[serde(skip)]
    sum: Once<Option<Bumps<2>>>,
}

impl Function {
    /// No weights at all: the imagined models' mean, or nothing.
    pub(super) fn zero() -> Self {
        Self {
            imagined: vec![0.0; MODELS],
            level: [0.0; 2],
            places: vec![],
            time: vec![],
            power: vec![],
            sum: Once::default(),
        }
    }

    /// K(x, places) · weights, K the covariance before any model was measured; one weight a figure and place.
    pub(super) fn of_weights(places: &Places, weights: &DVector<f64>) -> Self {
        let n = places.len();
        let sum = |from: usize| weights.rows(from, n).sum();
        let scaled =
            |from: usize, variance: f64| weights.rows(from, n).iter().map(|w| w * variance).collect();
        Self {
            imagined: (&places.features * weights).iter().copied().collect(),
            level: [LEVEL[0] * sum(0), LEVEL[1] * sum(n)],
            places: places.variables.clone(),
            time: scaled(0, REMAINDER[0]),
            power: scaled(n, REMAINDER[1]),
            sum: Once::default(),
        }
    }

    /// Adds `factor` times another.
    pub(super) fn add(&mut self, factor: f64, other: &Self) {
        self.sum = Once::default();
        self.imagined.iter_mut().zip(&other.imagined).for_each(|(a, b)| *a += factor * b);
        self.level.iter_mut().zip(&other.level).for_each(|(a, b)| *a += factor * b);
        for (i, place) in other.places.iter().enumerate() {
            let (time, power) = (factor * other.time[i], factor * other.power[i]);
            // Functions mostly share their places in the same order.
            let here = self.places.get(i).is_some_and(|p| p == place).then_some(i);
            match here.or_else(|| self.places.iter().position(|p| p == place)) {
                Some(j) => {
                    self.time[j] += time;
                    self.power[j] += power;
                }
                None => {
                    self.places.push(*place);
                    self.time.push(time);
                    self.power.push(power);
                }
            }
        }
    }

    /// The sum over places, without μ: ln(time) at each, then ln(power) at each.
    pub(super) fn on(&self, places: &Places) -> DVector<f64> {
        let n = places.len();
        let mut values = places.features.tr_mul(&DVector::from_column_slice(&self.imagined));
        for (i, at) in places.variables.iter().enumerate() {
            let [time, power] = self.remainder(at);
            values[i] += self.level[0] + time;
            values[n + i] += self.level[1] + power;
        }
        values
    }

    fn remainder(&self, at: &Variables) -> [f64; 2] {
        let ready = self.sum.get(|| Bumps::new(&self.places, [&self.time, &self.power], &LENGTHS));
        if let Some(sum) = ready {
            return sum.at(at);
        }
        let mut sum = [0.0; 2];
        for ((place, time), power) in self.places.iter().zip(&self.time).zip(&self.power) {
            let near = bump(place, at, &LENGTHS);
            sum[0] += time * near;
            sum[1] += power * near;
        }
        sum
    }

    /// ln(time of a batch in ms) and ln(power in W) at a point, μ included; `None` for a MIG instance that does not exist.
    pub(crate) fn at(&self, point: &Point) -> Option<[f64; 2]> {
        self.at_place(point, &variables(point)?)
    }

    /// The same where the point's place is known.
    pub(crate) fn at_place(&self, point: &Point, place: &Variables) -> Option<[f64; 2]> {
        let [time, power] = self.remainder(place);
        let imagined = Ensemble::shared().at(point)?.weighted(&self.imagined);
        Some([imagined[0] + self.level[0] + time, imagined[1] + self.level[1] + power])
    }

    /// The same with shorter numbers.
    pub(super) fn shortened(mut self) -> Self {
        self.sum = Once::default();
        let all =
            self.imagined.iter_mut().chain(&mut self.level).chain(&mut self.time).chain(&mut self.power);
        all.for_each(|v| *v = shortened(*v));
        self
    }

    /// The same function, as nearly as can be, with no more than [`MOST_PLACES`] places.
    pub(super) fn compact(self) -> Self {
        let n = self.places.len();
        if n <= MOST_PLACES {
            return self;
        }
        let places: Vec<Variables> = (0..MOST_PLACES).map(|i| self.places[i * n / MOST_PLACES]).collect();
        let mut gram = Levels::new(&places).own_bumps(&LENGTHS);
        (0..MOST_PLACES).for_each(|i| gram[(i, i)] += JITTER);
        let values: Vec<[f64; 2]> = places.iter().map(|at| self.remainder(at)).collect();
        let Some(cholesky) = cholesky(gram) else { return self };
        let weights = |figure: usize| {
            let values: Vec<f64> = values.iter().map(|v| v[figure]).collect();
            cholesky.solve(&values).iter().copied().collect()
        };
        let (time, power) = (weights(0), weights(1));
        Self { places, time, power, sum: Once::default(), ..self }
    }

    /// Whether every number is one, and there are as many as there have to be.
    pub(crate) fn is_sound(&self) -> bool {
        let all = self.imagined.iter().chain(&self.level).chain(&self.time).chain(&self.power);
        self.imagined.len() == MODELS
            && self.time.len() == self.places.len()
            && self.power.len() == self.places.len()
            && all.chain(self.places.iter().flatten()).all(|v| v.is_finite())
    }
}
