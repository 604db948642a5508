//! What is known of a model's surfaces after some of its points.
//!
//! Rule: with prior mean m and covariance C of [`super::prior`], noise N and figures y at the points, the mean is
//! m(x) + C(x, X) (C + N)⁻¹ (y − m(X)), and the variance C(x, x) − C(x, X) (C + N)⁻¹ C(X, x). The variance is scaled by how far the
//! figures were from what was expected of them, with [`EXPECTED_WEIGHT`] figures as expected counted in.
//!
//! Cases: of more than [`MOST`] points, evenly taken ones are used. What a figure would have been expected to be
//! without it follows from the inverse, without another fit.
//!
//! Source: Rasmussen and Williams, *Gaussian Processes for Machine Learning*, 2.2 and 5.4.2 (leaving one out).

use nalgebra::{DMatrix, DVector};

use super::EXPECTED_WEIGHT;
use super::figures::{Figures, NOISE};
use super::function::Function;
use super::kernel::Places;
use super::prior::Expectation;
use crate::point::{Observation, Point};

/// Points of one model that are used.
const MOST: usize = 240;

/// After some points.
pub(crate) struct Posterior<'a> {
    expected: &'a Expectation,
    places: Places,
    /// Which figure of which place each row of the system is: figure · places + place.
    rows: Vec<usize>,
    inverse: DMatrix<f64>,
    weights: DVector<f64>,
    /// What variances are to be multiplied with.
    scale: f64,
}

/// A figure and what the others make of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeftOut {
    /// Number of the observation.
    pub(crate) place: usize,
    /// 0 for time, 1 for power.
    pub(crate) figure: usize,
    /// ln(measured) minus what would be expected without it.
    pub(crate) apart: f64,
    /// Its standard deviation, noise included, without the scale.
    pub(crate) sd: f64,
}

impl<'a> Posterior<'a> {
    /// After these observations; `None` if they hold no figure or a MIG instance that does not exist.
    pub(crate) fn new(expected: &'a Expectation, seen: &[Observation], figures: &Figures) -> Option<Self> {
        let step = seen.len().div_ceil(MOST).max(1);
        let used: Vec<&Observation> = seen.iter().step_by(step).collect();
        let points: Vec<Point> = used.iter().map(|o| o.point).collect();
        let places = Places::new(&points)?;
        let mean = expected.mean_on(&places);
        let (mut rows, mut apart) = (vec![], vec![]);
        for (i, observation) in used.iter().enumerate() {
            for (figure, value) in figures.of(observation).into_iter().enumerate() {
                let Some(value) = value else { continue };
                let row = figure * points.len() + i;
                rows.push(row);
                apart.push(value - mean[row]);
            }
        }
        if rows.is_empty() {
            return None;
        }
        let mut own = expected.covariance_on(&places).select_rows(&rows).select_columns(&rows);
        for (i, row) in rows.iter().enumerate() {
            let noise = NOISE[row / points.len()];
            own[(i, i)] += noise * noise;
        }
        let inverse = own.cholesky()?.inverse();
        let apart = DVector::from_vec(apart);
        let weights = &inverse * &apart;
        let surprise = apart.dot(&weights);
        let scale = (EXPECTED_WEIGHT + surprise) / (EXPECTED_WEIGHT + rows.len() as f64);
        Some(Self { expected, places, rows, inverse, weights, scale })
    }

    /// The mean as a function.
    pub(crate) fn surface(&self) -> Function {
        let mut all = DVector::zeros(2 * self.places.len());
        self.rows.iter().zip(self.weights.iter()).for_each(|(row, w)| all[*row] = *w);
        let mut surface = self.expected.mean.clone();
        surface.add(self.expected.own, &Function::of_weights(&self.places, &all));
        let along = self.expected.ways_on(&self.places).tr_mul(&all);
        self.expected.ways.iter().zip(along.iter()).for_each(|(way, amount)| surface.add(*amount, way));
        surface.compact()
    }

    /// Standard deviations of ln(time) and ln(power) at points, noise of a measurement included.
    pub(crate) fn deviations(&self, points: &[Point]) -> Option<Vec<[f64; 2]>> {
        let there = Places::new(points)?;
        let (n, here) = (points.len(), self.expected.ways_on(&self.places));
        let ways = self.expected.ways_on(&there);
        let across = self.expected.own * self.places.covariance(&there) + here * ways.transpose();
        let across = across.select_rows(&self.rows);
        let solved = &self.inverse * &across;
        let own = there.variances(self.expected.own);
        let deviation = |figure: usize, i: usize| {
            let j = figure * n + i;
            let before = own[j] + ways.row(j).norm_squared();
            let left = (before - across.column(j).dot(&solved.column(j))).max(0.0);
            (self.scale * (left + NOISE[figure] * NOISE[figure])).sqrt()
        };
        Some((0..n).map(|i| [deviation(0, i), deviation(1, i)]).collect())
    }

    /// Each figure as the others would have it.
    pub(crate) fn left_out(&self) -> Vec<LeftOut> {
        let n = self.places.len();
        let of = |(i, row): (usize, &usize)| {
            let precision = self.inverse[(i, i)].max(f64::MIN_POSITIVE);
            LeftOut {
                place: row % n,
                figure: row / n,
                apart: self.weights[i] / precision,
                sd: 1.0 / precision.sqrt(),
            }
        };
        self.rows.iter().enumerate().map(of).collect()
    }
}
