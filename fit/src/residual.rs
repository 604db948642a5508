//! What a form leaves over, as a smooth correction in ln(batch), ln(share), ln(memory), ln(clock) and ln(processes).
//!
//! Rule: a Gaussian process with mean 0 on y = ln(measured / form). The covariance of two points is
//! v · exp(−½ Σ ((x − x′) / length)²) over scaled variables, and noise · v on the diagonal. Lengths and noise have the greatest
//! marginal likelihood on the points of the fit, found by coordinate search over fixed steps; v follows from them.
//!
//! Cases: far from all points the correction fades to none. A constant variable takes no part. Lengths and noise
//! are chosen on at most [`CHOOSE_ON`] points, evenly taken, because the search costs their cube.
//!
//! Source: Rasmussen and Williams, *Gaussian Processes for Machine Learning*, 2.2 (prediction), 5.4.1 (marginal
//! likelihood), with the scale v integrated out.

use std::collections::HashMap;

use nalgebra::DMatrix;
use serde::{Deserialize, Serialize};

use crate::bumps::{Bumps, Levels, bump};
use crate::cholesky::{Lower, cholesky};
use crate::once::Once;
use crate::point::Point;
use crate::variables::{COUNT, Variables, variables};

/// Names of the variables, in order.
pub const VARIABLES: [&str; COUNT] = ["ln_batch", "ln_share", "ln_memory", "ln_clock_ghz", "ln_processes"];
/// Which of them is that of the processes.
const PROCESSES: usize = COUNT - 1;
/// Points that lengths and noise are chosen on at most.
pub const CHOOSE_ON: usize = 120;
const LENGTHS: [f64; 8] = [0.25, 0.4, 0.65, 1.0, 1.6, 2.5, 5.0, 20.0];
const NOISES: [f64; 7] = [1e-3, 1e-2, 0.03, 0.1, 0.3, 1.0, 10.0];

/// A fitted correction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Residual {
    /// Length over which the correction changes, each variable, in the variable's own unit.
    #[serde(with = "crate::variables::lengths")]
    lengths: Variables,
    /// Noise over variance.
    noise: f64,
    /// The points of the fit, each with its variables.
    #[serde(with = "crate::compact")]
    points: Vec<Variables>,
    /// One weight a point.
    weights: Vec<f64>,
    /// The sum over the points, made ready; `None` where it has to be taken one by one.
    #[serde(skip)]
    sum: Once<Option<Bumps<1>>>,
}

/// Nine significant digits, so that files stay small.
pub(crate) fn shortened(weight: f64) -> f64 {
    if weight == 0.0 || !weight.is_finite() {
        return weight;
    }
    let scale = 10_f64.powi(8 - weight.abs().log10().floor() as i32);
    if scale.is_finite() && scale > 0.0 { (weight * scale).round() / scale } else { weight }
}

impl Residual {
    /// Fits (point, ln of measured over predicted); `None` with fewer than five points or without a finite answer.
    pub(crate) fn fit(rows: &[(Point, f64)]) -> Option<Self> {
        if rows.len() < 5 {
            return None;
        }
        let points: Vec<Variables> = rows.iter().map(|(p, _)| variables(p)).collect::<Option<_>>()?;
        let y: Vec<f64> = rows.iter().map(|r| r.1).collect();
        let n = points.len();
        let spread: Variables = std::array::from_fn(|j| {
            let mean = points.iter().map(|p| p[j]).sum::<f64>() / n as f64;
            let spread = (points.iter().map(|p| (p[j] - mean).powi(2)).sum::<f64>() / n as f64).sqrt();
            if spread > 1e-9 { spread } else { 1.0 }
        });
        let step = n.div_ceil(CHOOSE_ON);
        let some: Vec<Variables> = points.iter().copied().step_by(step).collect();
        let some_y: Vec<f64> = y.iter().copied().step_by(step).collect();
        let several = points.iter().any(|p| p[PROCESSES] != points[0][PROCESSES]);
        let (lengths, noise) = chosen(&Levels::new(&some), &some_y, &spread, several);
        let weights = decompose(&Levels::new(&points), &lengths, noise)?.solve(&y);
        let weights = weights.iter().map(|w| shortened(*w)).collect();
        let fitted = Self { lengths, noise, points, weights, sum: Once::default() };
        fitted.is_sound().then_some(fitted)
    }

    /// Factor on the form's value at a point; `None` for a MIG instance that does not exist.
    pub fn factor(&self, point: &Point) -> Option<f64> {
        Some(self.factor_at(&variables(point)?))
    }

    /// The same at a point's place.
    pub(crate) fn factor_at(&self, at: &Variables) -> f64 {
        let one_by_one =
            || self.points.iter().zip(&self.weights).map(|(p, w)| w * bump(p, at, &self.lengths)).sum();
        let ready = self.sum.get(|| Bumps::new(&self.points, [&self.weights], &self.lengths));
        let sum: f64 = ready.as_ref().map_or_else(one_by_one, |sum| sum.at(at)[0]);
        // A correction beyond e^±1 says that the form does not fit, not how.
        sum.clamp(-1.0, 1.0).exp()
    }

    pub(crate) fn is_sound(&self) -> bool {
        self.points.len() == self.weights.len()
            && self.lengths.iter().all(|l| *l > 0.0)
            && self.lengths[..PROCESSES].iter().all(|l| l.is_finite())
            && self.points.iter().flatten().chain(&self.weights).all(|v| v.is_finite())
    }
}

/// Lengths and noise with the greatest marginal likelihood, by coordinate search.
fn chosen(points: &Levels, y: &[f64], spread: &Variables, several: bool) -> (Variables, f64) {
    let at = |place: &[usize; COUNT + 1]| -> (Variables, f64) {
        let mut lengths: Variables = std::array::from_fn(|j| LENGTHS[place[j]] * spread[j]);
        if !several {
            lengths[PROCESSES] = f64::INFINITY;
        }
        (lengths, NOISES[place[COUNT]])
    };
    // Rounds come back to the same places.
    let mut known = HashMap::<[usize; COUNT + 1], f64>::new();
    let mut likelihood = |place: &[usize; COUNT + 1]| {
        *known.entry(*place).or_insert_with(|| {
            let (lengths, noise) = at(place);
            log_likelihood(points, y, &lengths, noise).unwrap_or(f64::NEG_INFINITY)
        })
    };
    let mut place = [4, 4, 4, 4, 4, 3];
    let mut best = likelihood(&place);
    for _ in 0..6 {
        let before = place;
        for axis in (0..=COUNT).filter(|axis| several || *axis != PROCESSES) {
            for value in 0..if axis < COUNT { LENGTHS.len() } else { NOISES.len() } {
                let mut other = place;
                other[axis] = value;
                let found = likelihood(&other);
                if found > best + 1e-9 {
                    (best, place) = (found, other);
                }
            }
        }
        if place == before {
            break;
        }
    }
    at(&place)
}

fn decompose(points: &Levels, lengths: &Variables, noise: f64) -> Option<Lower> {
    let mut k: DMatrix<f64> = points.own_bumps(lengths);
    (0..k.nrows()).for_each(|i| k[(i, i)] = 1.0 + noise);
    cholesky(k)
}

/// Up to a constant, with the variance at its best value.
fn log_likelihood(points: &Levels, y: &[f64], lengths: &Variables, noise: f64) -> Option<f64> {
    let n = y.len() as f64;
    let cholesky = decompose(points, lengths, noise)?;
    let variance = cholesky.forward(y).iter().map(|v| v * v).sum::<f64>() / n;
    Some(-0.5 * n * variance.max(1e-30).ln() - 0.5 * cholesky.ln_determinant())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch_time::tests::grid;

    fn bump(point: &Point) -> f64 {
        0.1 * point.batch_items().ln().sin() + 0.05 * point.ghz().ln()
    }

    #[test]
    fn a_smooth_remainder_is_found_between_the_points() {
        let all = grid();
        let kept = all.iter().enumerate().filter(|(i, _)| i % 5 < 3);
        let rows: Vec<_> = kept.map(|(_, p)| (*p, bump(p))).collect();
        let fitted = Residual::fit(&rows).unwrap();
        for point in &all {
            assert!((fitted.factor(point).unwrap().ln() - bump(point)).abs() < 0.02, "{point:?}");
        }
    }

    #[test]
    fn noise_alone_is_hardly_corrected() {
        // Low-discrepancy values have no neighbours that agree.
        let noise = |i: usize| 0.1 * ((i as f64 * 0.618_034).fract() - 0.5);
        let (odd, even): (Vec<_>, Vec<_>) = grid()
            .into_iter()
            .enumerate()
            .map(|(i, p)| (i, (p, noise(i * i))))
            .partition(|(i, _)| i % 2 == 1);
        let rows: Vec<_> = odd.into_iter().map(|(_, r)| r).collect();
        let fitted = Residual::fit(&rows).unwrap();
        assert!(even.iter().all(|(_, (p, _))| fitted.factor(p).unwrap().ln().abs() < 0.05));
    }

    #[test]
    fn few_points_and_constant_variables_are_no_trouble() {
        let one_clock: Vec<_> =
            grid().into_iter().filter(|p| p.frequency.0 == 810).map(|p| (p, 0.01)).collect();
        assert!(Residual::fit(&one_clock).is_some());
        assert!(Residual::fit(&one_clock[..4]).is_none());
        let zero: Vec<_> = one_clock.iter().map(|(p, _)| (*p, 0.0)).collect();
        assert!(Residual::fit(&zero).unwrap().factor(&grid()[0]).unwrap() == 1.0);
    }
}
