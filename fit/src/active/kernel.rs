//! Covariance of surfaces before any model was measured.
//!
//! Rule: a surface is ln(time of a batch, ms) at each point and, behind these, ln(dynamic power, W) at each point. Its mean is
//! that of the imagined models ([`super::ensemble`]); its covariance is one and a half times theirs, plus a free level of each
//! figure, plus a smooth remainder: variance · exp(−½ Σ ((x − x′) / length)²) over ln b, ln s, ln m, ln f and ln n, the
//! number of processes.
//!
//! Source: Rasmussen and Williams, *Gaussian Processes for Machine Learning*, 2.7 (explicit basis functions with a Gaussian
//! prior on their weights) and 4.2. Lengths and variances are choices; `docs/fitting.md` says how much they matter.

use nalgebra::{DMatrix, DVector};

use super::ensemble::{Ensemble, MODELS};
use crate::bumps::Levels;
use crate::point::Point;
use crate::variables::{Variables, variables};

/// Variance of the level of ln(time) and ln(power).
pub(super) const LEVEL: [f64; 2] = [4.0, 1.0];
/// Variance of the smooth remainder of ln(time) and ln(power): 7 and 8 %.
pub(super) const REMAINDER: [f64; 2] = [0.07 * 0.07, 0.08 * 0.08];
/// Its lengths over ln b, ln s, ln m, ln f, ln n.
pub(super) const LENGTHS: Variables = [1.5, 0.8, 0.9, 0.5, 1.0];

/// Points with what the covariance needs of them.
pub(super) struct Places {
    pub(super) variables: Vec<Variables>,
    levels: Levels,
    mean: DVector<f64>,
    /// Imagined models' scaled deviations from the mean, one a row, so that covariance is a product of columns.
    pub(super) features: DMatrix<f64>,
}

impl Places {
    /// `None` if a point is of a MIG instance that does not exist.
    pub(super) fn new(points: &[Point]) -> Option<Self> {
        let n = points.len();
        let mut features = DMatrix::zeros(MODELS, 2 * n);
        let mut mean = DVector::zeros(2 * n);
        let mut all = Vec::with_capacity(n);
        for (i, point) in points.iter().enumerate() {
            all.push(variables(point)?);
            let at = Ensemble::shared().at(point)?;
            (mean[i], mean[n + i]) = (at.mean[0], at.mean[1]);
            for (k, [time, power]) in at.deviations.iter().enumerate() {
                features[(k, i)] = *time;
                features[(k, n + i)] = *power;
            }
        }
        Some(Self { levels: Levels::new(&all), variables: all, mean, features })
    }

    pub(super) fn len(&self) -> usize {
        self.variables.len()
    }

    /// Mean of a surface at these points.
    pub(super) fn mean(&self) -> &DVector<f64> {
        &self.mean
    }

    /// Variance of each figure at each point, times `factor`.
    pub(super) fn variances(&self, factor: f64) -> DVector<f64> {
        let n = self.len();
        DVector::from_fn(2 * n, |j, _| {
            let figure = j / n.max(1);
            factor * (self.features.column(j).norm_squared() + LEVEL[figure] + REMAINDER[figure])
        })
    }

    /// Covariance of the surface here (rows) with that at other points (columns).
    pub(super) fn covariance(&self, other: &Self) -> DMatrix<f64> {
        // The product of two matrices is fast, that of a transposed one is not.
        let mut k = self.features.transpose() * &other.features;
        let near = self.levels.bumps(&other.levels, &LENGTHS);
        let (n, m) = (self.len(), other.len());
        for (figure, (level, remainder)) in LEVEL.into_iter().zip(REMAINDER).enumerate() {
            let mut block = k.view_mut((figure * n, figure * m), (n, m));
            block.zip_apply(&near, |k, near| *k += level + remainder * near);
        }
        k
    }
}
