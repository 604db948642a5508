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

use super::ensemble::Ensemble;
use super::kernel::Places;
use super::{NOISE, figures};
use crate::base::BasePower;
use crate::point::{Observations, Point};

/// Known models have at least this many usable points.
pub const FEWEST: usize = 15;
/// Points of a known model that are used; of more, evenly taken ones.
const MOST: usize = 450;
/// Weight of the imagined models' mean, in models.
const KAPPA: f64 = 0.3;
/// Weight of their covariance, in models.
const NU: f64 = 3.0;

/// Mean and covariance of a surface over a grid: ln(ms) at each point, then ln(W) at each.
#[derive(Clone, Debug)]
pub(super) struct Expectation {
    pub(super) mean: DVector<f64>,
    pub(super) covariance: DMatrix<f64>,
    /// How many known models it rests on.
    pub(super) models: usize,
}

/// `None` if a point of the grid is of a MIG instance that does not exist.
pub(super) fn expect(
    grid: &[Point],
    known: &[Observations],
    base: Option<&BasePower>,
    cap_w: Option<f64>,
) -> Option<Expectation> {
    let ensemble = Ensemble::new();
    let places = Places::new(&ensemble, grid)?;
    let alone = places.covariance(&places);
    let surfaces: Vec<DVector<f64>> =
        known.iter().filter_map(|model| surface(&ensemble, &places, model, base, cap_w)).collect();
    let mean = places.mean();
    if surfaces.is_empty() {
        return Some(Expectation { mean: mean.clone(), covariance: alone, models: 0 });
    }
    let count = surfaces.len() as f64;
    let centre = surfaces.iter().fold(DVector::zeros(mean.len()), |sum, y| sum + y) / count;
    let mut covariance = NU * alone;
    for y in &surfaces {
        let apart = y - &centre;
        covariance.ger(1.0, &apart, &apart, 1.0);
    }
    let shift = &centre - mean;
    covariance.ger(KAPPA * count / (KAPPA + count), &shift, &shift, 1.0);
    covariance /= NU + count - 1.0;
    Some(Expectation {
        mean: (KAPPA * mean + count * centre) / (KAPPA + count),
        covariance,
        models: surfaces.len(),
    })
}

/// The surface of a known model at the places; `None` with too few points.
fn surface(
    ensemble: &Ensemble,
    places: &Places,
    model: &Observations,
    base: Option<&BasePower>,
    cap_w: Option<f64>,
) -> Option<DVector<f64>> {
    let step = model.points.len().div_ceil(MOST).max(1);
    let seen: Vec<_> = model.points.iter().step_by(step).collect();
    let points: Vec<Point> = seen.iter().map(|o| o.point).collect();
    let there = Places::new(ensemble, &points)?;
    let (mut rows, mut values, mut noises) = (vec![], vec![], vec![]);
    for (i, observation) in seen.iter().enumerate() {
        for (figure, value) in figures(observation, base, cap_w).into_iter().enumerate() {
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
    let weights = own.cholesky()?.solve(&DVector::from_vec(values));
    Some(places.mean() + places.covariance(&there).select_columns(&rows) * weights)
}
