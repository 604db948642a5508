//! Which point to measure next, and what is known so far of those that were not measured.
//!
//! ```text
//! ensemble   imagined models: the surfaces a model can have
//!    ↓
//! kernel     their mean and covariance, a free level, a smooth remainder
//!    ↓
//! prior      the same after models that were measured
//!    ↓
//! Posterior  after points of this model, anywhere: the form `shared` ([`crate::shared`])
//! Belief     the same over a grid: estimates, expected error, the best next point, the best set of points ([`design`])
//! ```
//!
//! Rule: time of a batch and dynamic power are one Gaussian process over both, in logarithms, so each measured point tells
//! about both figures everywhere. The best next point is the one after which the sum over the grid of the variances of
//! batch time and of total power falls most per second that it takes. Total power is base plus dynamic power, so its
//! relative variance is that of dynamic power times (dynamic / total)².
//!
//! Expected errors are medians over the grid of what |measured / estimated − 1| is expected to be at a point that was not
//! measured, noise of the measurement included. The process's variance is scaled by how far the points were from what was
//! expected of them, so a model unlike the known ones has larger expected errors and gets more points.
//!
//! Cases: points at the power cap tell their time only; a model without any power has only times, and the expected error of
//! power stays what it was. Grids above [`MOST`] points are too large; take some of them.
//!
//! Not done: latency ([`crate::shared`] has it).
//!
//! Source: Rasmussen and Williams, *Gaussian Processes for Machine Learning*, 2.2; choosing by the fall of the total variance:
//! Cohn, Ghahramani and Jordan, "Active Learning with Statistical Models", JAIR 4 (1996), 129.

mod design;
mod ensemble;
mod figures;
mod function;
mod kernel;
mod normal;
mod posterior;
mod prior;

use nalgebra::{DMatrix, DVector};

use crate::base::BasePower;
use crate::point::{Observation, Observations, Point};
use crate::power::PowerOf;
pub(crate) use figures::Figures;
use figures::NOISE;
pub use function::Function;
use kernel::Places;
pub(crate) use normal::quantile_of_normals;
pub(crate) use posterior::Posterior;
pub(crate) use prior::Expectation;
pub use prior::{FEWEST, Known};

/// Largest grid.
pub const MOST: usize = 600;
/// Weight of the variance as it was expected, in figures seen.
const EXPECTED_WEIGHT: f64 = 10.0;

/// What is believed of one model over a grid.
#[derive(Clone, Debug)]
pub struct Belief {
    grid: Vec<Point>,
    figures: Figures,
    mean: DVector<f64>,
    covariance: DMatrix<f64>,
    models: usize,
    measured: Vec<bool>,
    /// Squared deviations from what was expected, in variances, and how many.
    surprise: (f64, f64),
}

/// What is believed at a point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Time of a batch, ms.
    pub batch_time_ms: f64,
    /// Its relative standard deviation, without the noise of a measurement.
    pub batch_time_sd: f64,
    /// Power above the base, W.
    pub dynamic_w: f64,
    /// Its relative standard deviation, without the noise of a measurement.
    pub dynamic_sd: f64,
    /// Power of the whole GPU, W; `None` without a base.
    pub average_w: Option<f64>,
}

/// Median relative errors that are expected at points that were not measured; 0.02 is 2 %.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpectedError {
    /// Of the time of a batch.
    pub batch_time: f64,
    /// Of the power of the whole GPU; of dynamic power where no base is known.
    pub power: f64,
}

impl ExpectedError {
    /// The larger one.
    pub fn larger(&self) -> f64 {
        self.batch_time.max(self.power)
    }
}

impl Belief {
    /// Before anything was measured of a model. `known`: models of the same kind of GPU; `base`: its base power; `cap_w`:
    /// its power limit, W. `None` if the grid is empty, above [`MOST`] points, or has a MIG instance that does not exist.
    pub fn new(
        grid: &[Point],
        known: &[Observations],
        base: Option<&BasePower>,
        cap_w: Option<f64>,
    ) -> Option<Self> {
        if grid.is_empty() || grid.len() > MOST {
            return None;
        }
        let figures = Figures { power: PowerOf::Dynamic, ..Figures::new(base, cap_w) };
        let known: Vec<Known> = known.iter().filter_map(|model| Known::of(model, &figures)).collect();
        let expected = Expectation::after(&known);
        let places = Places::new(grid)?;
        Some(Self {
            grid: grid.to_vec(),
            figures,
            mean: expected.mean_on(&places),
            covariance: expected.covariance_on(&places),
            models: known.len(),
            measured: vec![false; grid.len()],
            surprise: (0.0, 0.0),
        })
    }

    /// How many known models it rests on.
    pub fn known_models(&self) -> usize {
        self.models
    }

    /// Takes up what was measured at a point; false if the grid does not have that point.
    pub fn see(&mut self, seen: &Observation) -> bool {
        let Some(place) = self.grid.iter().position(|p| same(p, &seen.point)) else { return false };
        self.measured[place] = true;
        for (figure, value) in self.figures.of(seen).into_iter().enumerate() {
            let Some(value) = value else { continue };
            let i = figure * self.grid.len() + place;
            let variance = self.covariance[(i, i)] + NOISE[figure] * NOISE[figure];
            let apart = value - self.mean[i];
            self.surprise.0 += apart * apart / variance;
            self.surprise.1 += 1.0;
            let column = self.covariance.column(i).into_owned();
            self.mean.axpy(apart / variance, &column, 1.0);
            self.covariance.ger(-1.0 / variance, &column, &column, 1.0);
        }
        true
    }

    /// What is believed at the grid's point of this number.
    pub fn at(&self, place: usize) -> Option<Estimate> {
        let point = self.grid.get(place)?;
        let n = self.grid.len();
        let base_w = self.figures.base.as_ref().map(|b| b.at_w(point.frequency));
        let most = self.figures.cap_w.map_or(f64::INFINITY, |cap| (cap - base_w.unwrap_or(0.0)).max(0.0));
        let dynamic_w = self.mean[n + place].exp().min(most);
        let sd = |i: usize| (self.scale() * self.covariance[(i, i)].max(0.0)).sqrt();
        Some(Estimate {
            batch_time_ms: self.mean[place].exp(),
            batch_time_sd: sd(place),
            dynamic_w,
            dynamic_sd: sd(n + place),
            average_w: base_w.map(|base| base + dynamic_w),
        })
    }

    /// Errors expected at the points that were not measured; of all where every one was.
    pub fn expected_error(&self) -> ExpectedError {
        let all = self.measured.iter().all(|m| *m);
        let places = || (0..self.grid.len()).filter(move |i| all || !self.measured[*i]);
        let with_noise = |sd: f64, figure: usize| sd.hypot(NOISE[figure]);
        let estimates: Vec<(f64, Estimate)> =
            places().filter_map(|i| Some((self.dynamic_share(i), self.at(i)?))).collect();
        let time = estimates.iter().map(|(_, e)| with_noise(e.batch_time_sd, 0)).collect::<Vec<_>>();
        let power =
            estimates.iter().map(|(share, e)| share * with_noise(e.dynamic_sd, 1)).collect::<Vec<_>>();
        ExpectedError { batch_time: quantile_of_normals(&time, 0.5), power: quantile_of_normals(&power, 0.5) }
    }

    /// Of `left` (numbers in the grid, with the seconds that each takes), the one with the largest fall of variance per
    /// second; the first of equals. `None` if there is none.
    pub fn best(&self, left: &[(usize, f64)]) -> Option<usize> {
        let n = self.grid.len();
        let weights: Vec<f64> = (0..n).map(|i| self.dynamic_share(i).powi(2)).collect();
        let gain = |place: usize| fall_of_variance(&self.covariance, &weights, place);
        let mut best: Option<(f64, usize)> = None;
        for &(place, seconds) in left.iter().filter(|(place, _)| *place < n) {
            let rate = gain(place) / seconds.max(1e-3);
            if best.is_none_or(|(most, _)| rate > most) {
                best = Some((rate, place));
            }
        }
        best.map(|(_, place)| place)
    }

    /// What share of total power is dynamic; 1 without a base.
    fn dynamic_share(&self, place: usize) -> f64 {
        self.at(place).and_then(|e| Some(e.dynamic_w / e.average_w?)).unwrap_or(1.0)
    }

    /// What variances are to be multiplied with.
    fn scale(&self) -> f64 {
        (EXPECTED_WEIGHT + self.surprise.0) / (EXPECTED_WEIGHT + self.surprise.1)
    }
}

/// By how much the sum over the grid of the variances of ln(time) and, weighted, of ln(power) falls when both are measured at a place.
fn fall_of_variance(covariance: &DMatrix<f64>, weights: &[f64], place: usize) -> f64 {
    let n = weights.len();
    let (time, power) = (covariance.column(place), covariance.column(n + place));
    // Sums over the grid of products of both figures' covariances with the candidate's time and power.
    let (mut tt, mut tp, mut pp) = (0.0, 0.0, 0.0);
    for i in 0..2 * n {
        let weight = if i < n { 1.0 } else { weights[i - n] };
        tt += weight * time[i] * time[i];
        tp += weight * time[i] * power[i];
        pp += weight * power[i] * power[i];
    }
    let a = time[place] + NOISE[0] * NOISE[0];
    let (b, c) = (power[place], power[n + place] + NOISE[1] * NOISE[1]);
    (tt * c - 2.0 * tp * b + pp * a) / (a * c - b * b)
}

fn same(a: &Point, b: &Point) -> bool {
    let shares = match (a.share, b.share) {
        (crate::point::Share::Sms(a), crate::point::Share::Sms(b)) => (a - b).abs() < 1e-6,
        (a, b) => a == b,
    };
    shares && a.batch == b.batch && a.frequency == b.frequency && a.processes == b.processes
}

#[cfg(test)]
mod tests;
