//! What is known of a model's surfaces after some of its points.
//!
//! Rule: with prior mean m and covariance C of [`super::prior`], noise N and figures y at the points, the mean is
//! m(x) + C(x, X) (C + N)⁻¹ (y − m(X)), and the variance C(x, x) − C(x, X) (C + N)⁻¹ C(X, x). The variance is scaled by how far the
//! figures were from what was expected of them, with [`EXPECTED_WEIGHT`] figures as expected counted in.
//!
//! Cases: of more than [`MOST`] points, evenly taken ones are used. What the others make of a figure follows from the
//! inverse, without another fit.
//!
//! Source: Rasmussen and Williams, *Gaussian Processes for Machine Learning*, 2.2 and 5.4.2 (leaving one out).

use nalgebra::{DMatrix, DVector};

use super::EXPECTED_WEIGHT;
use super::figures::{Figures, NOISE};
use super::function::Function;
use super::kernel::Places;
use super::prior::Expectation;
use crate::base::median;
use crate::cholesky::{Lower, cholesky};
use crate::point::{Observation, Point};

/// Points of one model that are used.
const MOST: usize = 240;

/// After some points.
pub(crate) struct Posterior<'a> {
    expected: &'a Expectation,
    places: Places,
    /// Which figure of which place each row of the system is: figure · places + place.
    rows: Vec<usize>,
    /// Ways of the expectation at the places, one a column.
    ways: DMatrix<f64>,
    own: Lower,
    weights: DVector<f64>,
    /// What variances are to be multiplied with.
    scale: f64,
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
        let ways = expected.ways_on(&places);
        let mut own = expected.covariance_along(&ways, &places).select_rows(&rows).select_columns(&rows);
        for (i, row) in rows.iter().enumerate() {
            let noise = NOISE[row / points.len()];
            own[(i, i)] += noise * noise;
        }
        let own = cholesky(own)?;
        let weights = own.solve(&apart);
        let surprise = DVector::from_vec(apart).dot(&weights);
        let scale = (EXPECTED_WEIGHT + surprise) / (EXPECTED_WEIGHT + rows.len() as f64);
        Some(Self { expected, places, rows, ways, own, weights, scale })
    }

    /// The mean as a function.
    pub(crate) fn surface(&self) -> Function {
        let mut all = DVector::zeros(2 * self.places.len());
        self.rows.iter().zip(self.weights.iter()).for_each(|(row, w)| all[*row] = *w);
        let mut surface = self.expected.mean.clone();
        surface.add(self.expected.own, &Function::of_weights(&self.places, &all));
        let along = self.ways.tr_mul(&all);
        self.expected.ways.iter().zip(along.iter()).for_each(|(way, amount)| surface.add(*amount, way));
        surface.compact().shortened()
    }

    /// Standard deviations of ln(time) and ln(power) at points, noise of a measurement included.
    pub(crate) fn deviations(&self, points: &[Point]) -> Option<Vec<[f64; 2]>> {
        let there = Places::new(points)?;
        let n = points.len();
        let ways = self.expected.ways_on(&there);
        let across = self.expected.own * self.places.covariance(&there) + &self.ways * ways.transpose();
        let across = across.select_rows(&self.rows);
        let solved = self.own.inverse() * &across;
        let own = there.variances(self.expected.own);
        let deviation = |figure: usize, i: usize| {
            let j = figure * n + i;
            let before = own[j] + ways.row(j).norm_squared();
            let left = (before - across.column(j).dot(&solved.column(j))).max(0.0);
            (self.scale * (left + NOISE[figure] * NOISE[figure])).sqrt()
        };
        Some((0..n).map(|i| [deviation(0, i), deviation(1, i)]).collect())
    }

    /// Figures (number of the observation, 0 for time or 1 for power) that are off what the others make of them by more than `far`
    /// times what is usual and by more than `least` in ln, found one after another; at most a share of `most` of all.
    pub(crate) fn outliers(&self, far: f64, least: f64, most: f64) -> Vec<(usize, usize)> {
        let (n, places) = (self.rows.len(), self.places.len());
        let (mut inverse, mut weights) = (self.own.inverse(), self.weights.clone());
        let mut alive = vec![true; n];
        let mut found = Vec::new();
        while (found.len() as f64) < most * n as f64 {
            // In standard deviations: what the others say, from the inverse alone.
            let apart = |i: usize| weights[i] / inverse[(i, i)].max(f64::MIN_POSITIVE).sqrt();
            let usual = [0, 1].map(|figure| {
                let of_figure = (0..n).filter(|i| alive[*i] && self.rows[*i] / places == figure);
                let mut all: Vec<f64> = of_figure.map(|i| apart(i).abs()).collect();
                (1.4826 * median(&mut all)).max(1.0)
            });
            let ratio = |i: usize| apart(i).abs() / usual[self.rows[i] / places];
            let off = |i: usize| (weights[i] / inverse[(i, i)].max(f64::MIN_POSITIVE)).abs();
            let gross = (0..n).filter(|i| alive[*i] && ratio(*i) > far && off(*i) > least);
            let Some(worst) = gross.max_by(|a, b| ratio(*a).total_cmp(&ratio(*b))) else { break };
            let precision = inverse[(worst, worst)];
            found.push((self.rows[worst] % places, self.rows[worst] / places));
            alive[worst] = false;
            let column = inverse.column(worst).into_owned();
            weights.axpy(-weights[worst] / precision, &column, 1.0);
            inverse.ger(-1.0 / precision, &column, &column, 1.0);
        }
        found
    }
}
