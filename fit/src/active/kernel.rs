//! Covariance of surfaces before any model was measured.
//!
//! Rule: a surface is ln(time of a batch, ms) at each point and, behind these, ln(dynamic power, W) at each point. Its mean is
//! that of the imagined models ([`super::ensemble`]); its covariance is theirs, widened by [`WIDER`], plus a free level of each
//! figure, plus a smooth remainder: variance · exp(−½ Σ ((x − x′) / length)²) over ln b, ln s, ln m and ln f.
//!
//! Source: Rasmussen and Williams, *Gaussian Processes for Machine Learning*, 2.7 (explicit basis functions with a Gaussian
//! prior on their weights) and 4.2. Lengths and variances are choices; `docs/fitting.md` says how much they matter.

use nalgebra::{DMatrix, DVector};

use super::ensemble::Ensemble;
use crate::point::Point;

/// The imagined models' covariance is taken times this.
const WIDER: f64 = 1.5;
/// Variance of the level of ln(time) and ln(power).
const LEVEL: [f64; 2] = [4.0, 1.0];
/// Variance of the smooth remainder of ln(time) and ln(power): 7 and 8 %.
const REMAINDER: [f64; 2] = [0.07 * 0.07, 0.08 * 0.08];
/// Its lengths over ln b, ln s, ln m, ln f.
const LENGTHS: [f64; 4] = [1.5, 0.8, 0.9, 0.5];

/// Points with what the covariance needs of them.
pub(super) struct Places {
    variables: Vec<[f64; 4]>,
    mean: DVector<f64>,
    /// Imagined models' deviations from the mean, one a row, so that covariance is a product of columns.
    features: DMatrix<f64>,
}

impl Places {
    /// `None` if a point is of a MIG instance that does not exist.
    pub(super) fn new(ensemble: &Ensemble, points: &[Point]) -> Option<Self> {
        let n = points.len();
        let models = ensemble.len();
        let mut features = DMatrix::zeros(models, 2 * n);
        let mut variables = Vec::with_capacity(n);
        for (i, point) in points.iter().enumerate() {
            let memory = point.share.memory()?.ln();
            variables.push([point.batch_items().ln(), point.share.sms().ln(), memory, point.ghz().ln()]);
            for (k, [time, power]) in ensemble.at(point)?.into_iter().enumerate() {
                features[(k, i)] = time;
                features[(k, n + i)] = power;
            }
        }
        let mean = DVector::from_fn(2 * n, |j, _| features.column(j).mean());
        let scale = (WIDER / models as f64).sqrt();
        for (j, mut column) in features.column_iter_mut().enumerate() {
            column.iter_mut().for_each(|v| *v = scale * (*v - mean[j]));
        }
        Some(Self { variables, mean, features })
    }

    /// Mean of a surface at these points.
    pub(super) fn mean(&self) -> &DVector<f64> {
        &self.mean
    }

    /// Covariance of the surface here (rows) with that at other points (columns).
    pub(super) fn covariance(&self, other: &Self) -> DMatrix<f64> {
        let mut k = self.features.tr_mul(&other.features);
        let (n, m) = (self.variables.len(), other.variables.len());
        for (i, a) in self.variables.iter().enumerate() {
            for (j, b) in other.variables.iter().enumerate() {
                let square: f64 = (0..4).map(|d| ((a[d] - b[d]) / LENGTHS[d]).powi(2)).sum();
                let near = (-0.5 * square).exp();
                k[(i, j)] += LEVEL[0] + REMAINDER[0] * near;
                k[(n + i, m + j)] += LEVEL[1] + REMAINDER[1] * near;
            }
        }
        k
    }
}
