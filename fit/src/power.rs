//! Power above the base, from how fast the GPU works and at which clock.
//!
//! Rule: ln(power) is a quadratic in ln(items a second), ln s, ln f and max(0, f − knee), with a ridge. Below the knee
//! the supply voltage is at its least; above it voltage rises with the clock, so power rises faster. Ridge and knee
//! are those with the least leave-one-out error on the points of the fit, and no others. Total power is clipped at
//! the cap, if one is given; points at the cap say only that power would be at least that and are left out.
//!
//! Cases: without a base power the same form is fitted to average power ([`PowerOf::Average`]), and dynamic power is
//! not predicted.
//!
//! Not done: power below the cap at the clock that the cap leaves.
//!
//! Source: the form in `docs/fitting.md`; dynamic power grows with activity × V² × f, so its logarithm is a smooth
//! function of the logarithms of rate, share and clock, with a kink where V begins to rise.

use serde::{Deserialize, Serialize};

use crate::point::Point;
use crate::surface::{Design, Surface};

/// Names of the variables, in order.
pub const VARIABLES: [&str; 4] = ["ln_items_per_s", "ln_share", "ln_clock_ghz", "clock_above_knee_ghz"];
/// Ridges that the fit tries, in squares of scaled variables.
const RIDGES: [f64; 7] = [1e-4, 1e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0];
/// Points above this share of the cap are left out.
pub(crate) const AT_CAP: f64 = 0.985;

/// What the surface gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PowerOf {
    /// Power above the base.
    Dynamic,
    /// Power of the whole GPU.
    Average,
}

/// A fitted power model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Power {
    /// What the surface gives.
    pub of: PowerOf,
    /// Clock above which the voltage rises, MHz; absent where no knee explains the points better than none.
    pub knee_mhz: Option<f64>,
    /// ln(power in W) over [`VARIABLES`].
    pub ln_watts: Surface,
}

/// One point of a power fit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PowerPoint {
    pub(crate) point: Point,
    /// Time of a batch, ms.
    pub(crate) batch_time_ms: f64,
    /// Power to fit, W.
    pub(crate) power_w: f64,
    /// Power of the whole GPU, W.
    pub(crate) total_w: f64,
}

impl Power {
    /// Fits the points; `None` if there are none or they give no finite answer.
    pub(crate) fn fit(points: &[PowerPoint], of: PowerOf, cap_w: Option<f64>) -> Option<Self> {
        let mut used: Vec<&PowerPoint> = points.iter().filter(|p| below_cap(p, cap_w)).collect();
        if used.len() < 3 {
            used = points.iter().collect();
        }
        let y: Vec<f64> = used.iter().map(|p| p.power_w.ln()).collect();
        let mut clocks: Vec<f64> = used.iter().map(|p| f64::from(p.point.frequency.0)).collect();
        clocks.sort_by(f64::total_cmp);
        clocks.dedup();
        // A knee needs points on both sides to be seen.
        let inner = clocks.get(2..clocks.len().saturating_sub(2)).unwrap_or_default();
        let knees = std::iter::once(None).chain(inner.iter().copied().map(Some));
        let mut best: Option<(f64, f64, Option<f64>, Design)> = None;
        for knee in knees {
            let x: Vec<Vec<f64>> =
                used.iter().map(|p| variables(&p.point, p.batch_time_ms, knee).to_vec()).collect();
            let Some(design) = Design::new(&VARIABLES, &x, 2) else { continue };
            let cost = |ridge: f64| design.left_out(&y, ridge).norm_squared();
            let costs = RIDGES.map(|ridge| (cost(ridge), ridge)).into_iter().filter(|c| c.0.is_finite());
            let Some((cost, ridge)) = costs.reduce(|best, c| if c.0 < best.0 { c } else { best }) else {
                continue;
            };
            if best.as_ref().is_none_or(|b| cost < b.0) {
                best = Some((cost, ridge, knee, design));
            }
        }
        best.map(|(_, ridge, knee_mhz, design)| Self { of, knee_mhz, ln_watts: design.solve(&y, ridge) })
    }

    /// Power, W, at a point where a batch takes `batch_time_ms`.
    pub fn at_w(&self, point: &Point, batch_time_ms: f64) -> f64 {
        // Beyond e^±20 W the surface says nothing; the bound keeps the answer finite.
        self.ln_watts.at(&variables(point, batch_time_ms, self.knee_mhz)).clamp(-20.0, 20.0).exp()
    }
}

/// Whether the cap did not hold this point's power down.
pub(crate) fn below_cap(point: &PowerPoint, cap_w: Option<f64>) -> bool {
    cap_w.is_none_or(|cap| point.total_w < AT_CAP * cap)
}

/// Average and dynamic power, W, of what a surface gives, at most the cap.
pub(crate) fn both_w(
    power_w: Option<(PowerOf, f64)>,
    base_w: Option<f64>,
    cap_w: Option<f64>,
) -> (Option<f64>, Option<f64>) {
    let cap = cap_w.unwrap_or(f64::INFINITY);
    match (power_w, base_w) {
        (Some((PowerOf::Dynamic, w)), Some(base)) => {
            let w = w.min((cap - base).max(0.0));
            (Some(base + w), Some(w))
        }
        (Some((PowerOf::Dynamic, w)), None) => (None, Some(w)),
        (Some((PowerOf::Average, w)), _) => (Some(w.min(cap)), None),
        (None, _) => (None, None),
    }
}

fn variables(point: &Point, batch_time_ms: f64, knee_mhz: Option<f64>) -> [f64; 4] {
    let above = knee_mhz.map_or(0.0, |knee| (point.ghz() - knee / 1e3).max(0.0));
    [(1e3 * point.batch_items() / batch_time_ms).ln(), point.share.sms().ln(), point.ghz().ln(), above]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch_time::tests::{grid, truth};

    fn points(watts: impl Fn(&Point, f64) -> f64) -> Vec<PowerPoint> {
        let with = |point: Point| {
            let batch_time_ms = truth().at_ms(&point).unwrap();
            let power_w = watts(&point, batch_time_ms);
            PowerPoint { point, batch_time_ms, power_w, total_w: power_w + 50.0 }
        };
        grid().into_iter().map(with).collect()
    }

    fn law(point: &Point, ms: f64) -> f64 {
        let rate = point.batch_items() / ms;
        40.0 * rate.powf(0.6) * point.share.sms().powf(0.4) * (0.9 * (point.ghz() - 0.81).max(0.0)).exp()
    }

    #[test]
    fn a_known_law_with_a_knee_is_recovered() {
        let fitted = Power::fit(&points(law), PowerOf::Dynamic, None).unwrap();
        assert_eq!(fitted.knee_mhz, Some(810.0));
        for p in points(law) {
            assert!((fitted.at_w(&p.point, p.batch_time_ms) / p.power_w - 1.0).abs() < 0.01);
        }
    }

    #[test]
    fn points_at_the_cap_do_not_bend_the_surface() {
        let capped: Vec<_> = points(law)
            .into_iter()
            .map(|p| PowerPoint { power_w: p.power_w.min(60.0), total_w: p.total_w.min(110.0), ..p })
            .collect();
        let fitted = Power::fit(&capped, PowerOf::Dynamic, Some(110.0)).unwrap();
        let high = points(law).into_iter().max_by(|a, b| a.power_w.total_cmp(&b.power_w)).unwrap();
        assert!(high.power_w > 70.0 && fitted.at_w(&high.point, high.batch_time_ms) > 60.0);
    }

    #[test]
    fn one_clock_has_no_knee() {
        let one: Vec<_> = points(law).into_iter().filter(|p| p.point.frequency.0 == 510).collect();
        let fitted = Power::fit(&one, PowerOf::Average, None).unwrap();
        assert_eq!(fitted.knee_mhz, None);
        assert!(Power::fit(&[], PowerOf::Average, None).is_none());
    }
}
