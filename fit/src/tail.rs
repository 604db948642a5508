//! How much longer the slowest batches take than most: the 99th percentile of the time of a batch over its median.
//!
//! Rule: the ratio is its median over the points, from `SMOOTH_FROM` points on times a smooth correction
//! ([`crate::residual`]); the 99th percentile is the ratio times the predicted latency. The interval has the factors of
//! [`crate::intervals`], over points that neither the ratio nor the latency was fitted on.
//!
//! Cases: absent where the profile has no `latency_p50` and `latency_p99`. No answer is below the latency itself.
//!
//! Not done: other percentiles; what waiting in a queue adds.

use serde::{Deserialize, Serialize};

use crate::base::median;
use crate::intervals::factors;
use crate::point::{Observations, Point};
use crate::residual::Residual;
use crate::validate::Compared;

/// Fewest points for a ratio.
const FEWEST: usize = 3;
/// Fewest points for a smooth correction.
const SMOOTH_FROM: usize = 20;
/// Folds that give the interval.
const FOLDS: usize = 5;

/// The ratio of one model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tail {
    /// Median of the ratio, at least 1.
    pub factor: f64,
    /// Correction of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub residual: Option<Residual>,
    /// What the 99th percentile is multiplied with for its 90 % interval.
    pub interval: Option<[f64; 2]>,
}

impl Tail {
    /// Fits the points that have a ratio; `None` if they are too few. `compared` are the points as fits without them
    /// predict them.
    pub(crate) fn fit(seen: &Observations, compared: &[Compared]) -> Option<Self> {
        let rows: Vec<(Point, f64)> = seen.points.iter().filter_map(|o| Some((o.point, o.tail?))).collect();
        let mut fitted = Self::of(&rows)?;
        let mut ratios = Vec::new();
        for fold in 0..FOLDS {
            let rest: Vec<_> =
                rows.iter().enumerate().filter(|(i, _)| i % FOLDS != fold).map(|(_, r)| *r).collect();
            let Some(without) = Self::of(&rest) else { continue };
            for (point, tail) in rows.iter().skip(fold).step_by(FOLDS) {
                let latency = compared.iter().find(|c| c.point == *point).and_then(|c| c.ratios[3]);
                ratios.extend(latency.zip(without.at(point)).map(|(latency, at)| latency * tail / at));
            }
        }
        fitted.interval = factors(ratios, None);
        Some(fitted)
    }

    fn of(rows: &[(Point, f64)]) -> Option<Self> {
        if rows.len() < FEWEST {
            return None;
        }
        let factor = median(&mut rows.iter().map(|r| r.1).collect::<Vec<_>>());
        let logs: Vec<_> = rows.iter().map(|(point, ratio)| (*point, (ratio / factor).ln())).collect();
        let residual = if rows.len() < SMOOTH_FROM { None } else { Residual::fit(&logs) };
        Some(Self { factor, residual, interval: None })
    }

    /// The ratio at a point; `None` for a MIG instance that does not exist.
    pub fn at(&self, point: &Point) -> Option<f64> {
        let correction = self.residual.as_ref().map_or(Some(1.0), |r| r.factor(point))?;
        Some((self.factor * correction).max(1.0))
    }

    pub(crate) fn is_sound(&self) -> bool {
        let around_one = |[low, high]: [f64; 2]| low > 0.0 && low <= 1.0 && high >= 1.0 && high.is_finite();
        self.factor.is_finite()
            && self.factor >= 1.0
            && self.residual.as_ref().is_none_or(Residual::is_sound)
            && self.interval.is_none_or(around_one)
    }
}
