//! 90 % intervals: what central values are multiplied with.
//!
//! Rule: a figure's interval is a pair of factors around 1. From `MANY` held-out points on they are the 5 % and 95 % order
//! statistics of measured ÷ predicted. With fewer:
//!
//! - a figure with the shared form in it takes the process's own standard deviations: over the points that may be asked for
//!   (all combinations of the levels that were measured, and the points of known models within them) |ln(measured / predicted)| is below the
//!   factor's logarithm nine times of ten;
//! - every figure takes Student's t times the root mean square of ln(measured / predicted), n degrees of freedom.
//!
//! Where there are both they are pooled: squares of both, the first with the weight of five points (`PROCESS_WEIGHT`) and the second with
//! that of its n, and Student's t of as many degrees of freedom. The wider of the two would be too wide: with five points, leaving
//! one out is asking for more than the fit on all of them is asked for.
//!
//! Not done: factors that differ from point to point.
//!
//! Source: Vovk, Gammerman and Shafer, *Algorithmic Learning in a Random World*, 2nd ed., 4 (order statistics of
//! held-out residuals as prediction intervals); Gelman et al., *Bayesian Data Analysis*, 3rd ed., 2.6 and 3.2 (an expected variance and
//! a seen one pooled as a scaled inverse χ², predictions then as Student's t).

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, StudentsT};

use crate::active::{Figures, Posterior, quantile_of_normals};
use crate::auto::Mix;
use crate::fit::{Context, Form, Surfaces};
use crate::models::Ranges;
use crate::point::{Observations, Point};
use crate::shared;
use crate::validate::Compared;

/// From so many held-out points on their order statistics are taken.
const MANY: usize = 40;
/// Fewer say nothing.
const FEW: usize = 4;
/// Points that the process's own deviations count as: as many as the shared form needs.
const PROCESS_WEIGHT: f64 = shared::FEWEST as f64;
/// 95 % quantile of the standard normal distribution.
const NORMAL: f64 = 1.644_854;
/// Points that the process is asked at.
const ASKED: usize = 150;

/// Factors at the 5 % and 95 % quantiles; absent where the figure or held-out points are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Intervals {
    /// For average power.
    pub avg_power_draw: Option<[f64; 2]>,
    /// For dynamic power.
    pub dynamic_power_draw: Option<[f64; 2]>,
    /// For throughput.
    pub throughput: Option<[f64; 2]>,
    /// For latency.
    pub latency: Option<[f64; 2]>,
}

impl Intervals {
    /// Whether all factors are positive and around 1.
    pub(crate) fn are_sound(&self) -> bool {
        let all = [self.avg_power_draw, self.dynamic_power_draw, self.throughput, self.latency];
        all.into_iter()
            .flatten()
            .all(|[low, high]| low > 0.0 && low <= 1.0 && high >= 1.0 && high.is_finite())
    }

    /// Of a fit, by the points that were left out of it.
    pub(crate) fn of(
        surfaces: &Surfaces,
        compared: &[Compared],
        seen: &Observations,
        context: &Context<'_>,
    ) -> Self {
        let shared = |mix: &Mix| mix.contains_key(&Form::Shared);
        let shared = match surfaces {
            Surfaces::Auto(auto) => {
                [shared(&auto.power), shared(&auto.power), shared(&auto.batch_time), shared(&auto.latency)]
            }
            other => [other.form() == Form::Shared; 4],
        };
        let few = compared.len() < MANY && shared.contains(&true);
        let process = if few { Process::of(surfaces, seen, context) } else { None };
        let factors = |figure: usize| {
            let ratios: Vec<f64> = compared.iter().filter_map(|c| c.ratios[figure]).collect();
            let from_process = (shared[figure] && figure < 3)
                .then_some(process.as_ref())
                .flatten()
                .map(|process| process.deviations[figure].as_slice());
            factors(ratios, from_process)
        };
        Self {
            avg_power_draw: factors(0),
            dynamic_power_draw: factors(1),
            throughput: factors(2).map(|[low, high]| [1.0 / high, 1.0 / low]),
            latency: factors(3),
        }
    }
}

/// Standard deviations of ln(measured / predicted) over the points asked for: average power, dynamic power, time.
struct Process {
    deviations: [Vec<f64>; 3],
}

impl Process {
    fn of(surfaces: &Surfaces, seen: &Observations, context: &Context<'_>) -> Option<Self> {
        let figures = Figures::new(context.base, context.cap_w);
        let posterior = Posterior::new(context.expected(), &seen.points, &figures)?;
        let asked = asked(seen, context.grid());
        let mut all: [Vec<f64>; 3] = Default::default();
        for (point, [time, power]) in asked.iter().zip(posterior.deviations(&asked)?) {
            let central = surfaces.at(point, context.base)?;
            // Without a base the process is over average power itself.
            let share = central.dynamic_w.zip(central.average_w).map_or(1.0, |(d, a)| d / a);
            all[0].push(share * power);
            all[1].push(power);
            all[2].push(time);
        }
        Some(Self { deviations: all })
    }
}

/// Points that a model may be asked at: its own levels in all combinations, and where others were measured within its ranges.
fn asked(seen: &Observations, others: &[Point]) -> Vec<Point> {
    let share = |p: &Point| ((p.share.sms() * 1e6).round() as u64, p.share.is_slices());
    let key = |p: &Point| (p.batch, share(p), p.frequency.0, p.processes);
    let own: Vec<Point> = seen.points.iter().map(|o| o.point).collect();
    let measured: BTreeSet<_> = own.iter().map(key).collect();
    let mut shares = own.clone();
    shares.sort_by_key(share);
    shares.dedup_by_key(|p| share(p));
    let batches: BTreeSet<u32> = own.iter().map(|p| p.batch).collect();
    let clocks: BTreeSet<_> = own.iter().map(|p| p.frequency).collect();
    let processes: BTreeSet<u32> = own.iter().map(|p| p.processes).collect();
    let mut all: Vec<Point> = Vec::new();
    for share in shares.iter().map(|p| p.share) {
        for &batch in &batches {
            for &frequency in &clocks {
                all.extend(processes.iter().map(|&processes| Point { batch, share, frequency, processes }));
            }
        }
    }
    let ranges = Ranges::of(seen);
    all.extend(others.iter().filter(|p| ranges.contain(p)));
    all.sort_by_key(key);
    all.dedup_by_key(|p| key(p));
    let left: Vec<Point> = all.iter().filter(|p| !measured.contains(&key(p))).copied().collect();
    let from = if left.is_empty() { own } else { left };
    let count = from.len().min(ASKED);
    (0..count).map(|i| from[i * from.len() / count]).collect()
}

/// Factors that hold 90 % of the ratios; they always include 1.
pub(crate) fn factors(mut ratios: Vec<f64>, process: Option<&[f64]>) -> Option<[f64; 2]> {
    let n = ratios.len();
    if n >= MANY {
        ratios.sort_by(f64::total_cmp);
        let low = (0.05 * (n + 1) as f64).floor().max(1.0) as usize;
        let (low, high) = (ratios.get(low - 1)?, ratios.get(n - low)?);
        return Some([low.min(1.0), high.max(1.0)]);
    }
    let from_process = process.map(|deviations| quantile_of_normals(deviations, 0.9));
    let from_ratios = (n >= FEW).then(|| {
        let square = ratios.iter().map(|r| r.ln().powi(2)).sum::<f64>() / n as f64;
        NORMAL * square.sqrt()
    });
    let width = match (from_process, from_ratios) {
        (Some(expected), Some(seen)) => pooled(expected, seen, n as f64),
        (None, Some(seen)) => students_t(n as f64) / NORMAL * seen,
        (Some(expected), None) => expected,
        (None, None) => return None,
    };
    (width < 20.0).then(|| [(-width).exp(), width.exp()])
}

/// One width from the one expected and the one seen at n points, both as of normal errors.
fn pooled(expected: f64, seen: f64, n: f64) -> f64 {
    let all = PROCESS_WEIGHT + n;
    let square = (PROCESS_WEIGHT * expected.powi(2) + n * seen.powi(2)) / all;
    students_t(all) / NORMAL * square.sqrt()
}

/// 95 % quantile of Student's t, of one degree of freedom at least.
fn students_t(degrees: f64) -> f64 {
    StudentsT::new(0.0, 1.0, degrees.max(1.0)).map_or(f64::INFINITY, |t| t.inverse_cdf(0.95))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_points_they_are_order_statistics_around_one() {
        let ratios: Vec<f64> = (1..=99).map(|i| 0.5 + f64::from(i) / 100.0).collect();
        let [low, high] = factors(ratios, None).unwrap();
        assert!((low - 0.55).abs() < 1e-9 && (high - 1.45).abs() < 1e-9, "{low} {high}");
        assert_eq!(factors(vec![], None), None);
        let above: Vec<f64> = (0..50).map(|i| 1.1 + f64::from(i) / 100.0).collect();
        assert_eq!(factors(above, None).unwrap()[0], 1.0);
    }

    #[test]
    fn of_few_points_they_are_wider_than_what_was_seen() {
        let [low, high] = factors(vec![1.1, 1.0 / 1.1, 1.1, 1.0 / 1.1, 1.1], None).unwrap();
        assert!((students_t(10.0) - 1.812_461).abs() < 1e-6);
        assert!(high > 1.2 && (low * high - 1.0).abs() < 1e-9, "{low} {high}");
        let [low, high] = factors(vec![1.0; 3], Some(&[0.1; 9])).unwrap();
        assert!((high.ln() - 0.164_485).abs() < 1e-5 && low < 1.0);
    }

    #[test]
    fn what_was_expected_and_what_was_seen_are_pooled_by_their_weights() {
        // Five points that are off by twice what was expected: √((5 · 1 + 5 · 4) / 10) times that, at Student's t of ten.
        let seen = vec![0.2_f64.exp(), (-0.2_f64).exp(), 0.2_f64.exp(), (-0.2_f64).exp(), 0.2_f64.exp()];
        let [_, high] = factors(seen, Some(&[0.1; 9])).unwrap();
        assert!((high.ln() - 1.812_461 * 0.1 * 2.5_f64.sqrt()).abs() < 1e-5, "{high}");
    }
}
