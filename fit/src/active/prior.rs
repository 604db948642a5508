//! What is expected of a model that was not measured, from those that were.
//!
//! Rule: each known model's surface over the grid is its posterior mean under [`super::kernel`], given its points. With M of
//! them, mean ȳ and scatter S = Σ (y − ȳ)(y − ȳ)ᵀ, the next model's surface has
//!
//! ```text
//! mean        (κ μ + M ȳ) / (κ + M)
//! covariance  (ν K + S + κ M / (κ + M) (ȳ − μ)(ȳ − μ)ᵀ) / (ν + M − 1)        K and μ without known models
//! ```
//!
//! so that the directions in which models differed (the principal components of S) are free and all others are kept to what
//! imagined models and a smooth remainder do.
//!
//! Cases: no known model leaves K and μ. Known models with fewer than [`FEWEST`] usable points are left out.
//!
//! Source: the conjugate update of a normal distribution with unknown mean and covariance (Gelman et al., *Bayesian Data
//! Analysis*, 3rd ed., 3.6), its mean taken as if it were known. κ and ν are choices.

use nalgebra::{DMatrix, DVector};

use super::figures::{Figures, NOISE};
use super::function::Function;
use super::kernel::Places;
use crate::cholesky::cholesky;
use crate::point::{Observations, Point};

/// Known models have at least this many usable figures.
pub const FEWEST: usize = 15;
/// Points of a known model that are used; of more, evenly taken ones.
const MOST: usize = 240;
/// Weight of the imagined models' mean, in models.
const KAPPA: f64 = 0.3;
/// Weight of their covariance, in models.
const NU: f64 = 2.0;

/// A model that was measured, as the process knows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Known {
    /// Its name.
    pub model: String,
    /// Where it was measured.
    pub(crate) points: Vec<Point>,
    surface: Function,
}

impl Known {
    /// The surface of a model; `None` with too few points.
    pub(crate) fn of(model: &Observations, figures: &Figures) -> Option<Self> {
        let step = model.points.len().div_ceil(MOST).max(1);
        let seen: Vec<_> = model.points.iter().step_by(step).collect();
        let points: Vec<Point> = seen.iter().map(|o| o.point).collect();
        let there = Places::new(&points)?;
        let (mut rows, mut values, mut noises) = (vec![], vec![], vec![]);
        for (i, observation) in seen.iter().enumerate() {
            for (figure, value) in figures.of(observation).into_iter().enumerate() {
                let Some(value) = value else { continue };
                let row = figure * points.len() + i;
                rows.push(row);
                values.push(value - there.mean()[row]);
                noises.push(NOISE[figure] * NOISE[figure]);
            }
        }
        if rows.len() < FEWEST {
            return None;
        }
        let mut own = there.covariance(&there).select_rows(&rows).select_columns(&rows);
        noises.iter().enumerate().for_each(|(i, noise)| own[(i, i)] += noise);
        let solved = cholesky(own)?.solve(&values);
        let mut weights = DVector::zeros(2 * points.len());
        rows.iter().zip(solved.iter()).for_each(|(row, w)| weights[*row] = *w);
        Some(Self { model: model.model.clone(), surface: Function::of_weights(&there, &weights), points })
    }
}

/// What is expected of a surface: its mean, and the covariance around it.
#[derive(Clone, Debug)]
pub(crate) struct Expectation {
    /// Without the imagined models' mean.
    pub(super) mean: Function,
    /// Directions in which the known models differed, scaled.
    pub(super) ways: Vec<Function>,
    /// What the covariance before any model was measured is multiplied with.
    pub(super) own: f64,
}

impl Expectation {
    /// After these models.
    pub(crate) fn after<'a>(known: impl IntoIterator<Item = &'a Known>) -> Self {
        let surfaces: Vec<&Function> = known.into_iter().map(|k| &k.surface).collect();
        if surfaces.is_empty() {
            return Self { mean: Function::zero(), ways: vec![], own: 1.0 };
        }
        let count = surfaces.len() as f64;
        let mut centre = Function::zero();
        surfaces.iter().for_each(|surface| centre.add(1.0 / count, surface));
        let weight = NU + count - 1.0;
        let scaled = |from: &Function, minus: Option<&Function>, factor: f64| {
            let mut way = Function::zero();
            way.add(factor.sqrt(), from);
            minus.iter().for_each(|minus| way.add(-factor.sqrt(), minus));
            way
        };
        let mut ways: Vec<Function> =
            surfaces.iter().map(|surface| scaled(surface, Some(&centre), 1.0 / weight)).collect();
        // The imagined models' mean lies where all weights are 0.
        ways.push(scaled(&centre, None, KAPPA * count / (KAPPA + count) / weight));
        let mut mean = Function::zero();
        mean.add(count / (KAPPA + count), &centre);
        Self { mean, ways, own: NU / weight }
    }

    /// Mean at places: ln(ms) at each point, then ln(W) at each.
    pub(super) fn mean_on(&self, places: &Places) -> DVector<f64> {
        places.mean() + self.mean.on(places)
    }

    /// The ways at places, one a column.
    pub(super) fn ways_on(&self, places: &Places) -> DMatrix<f64> {
        let columns: Vec<DVector<f64>> = self.ways.iter().map(|way| way.on(places)).collect();
        if columns.is_empty() { DMatrix::zeros(2 * places.len(), 0) } else { DMatrix::from_columns(&columns) }
    }

    /// Covariance among places.
    pub(super) fn covariance_on(&self, places: &Places) -> DMatrix<f64> {
        self.covariance_along(&self.ways_on(places), places)
    }

    /// The same where the ways at the places are known.
    pub(super) fn covariance_along(&self, ways: &DMatrix<f64>, places: &Places) -> DMatrix<f64> {
        self.own * places.covariance(places) + ways * ways.transpose()
    }
}
