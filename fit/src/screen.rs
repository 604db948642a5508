//! Gross errors among the points of a model, left out before anything is fitted.
//!
//! Rule: each figure is compared with what the others make of it by the process that knows no other model
//! ([`crate::active`]). The one that is farthest off in standard deviations is left out, then the rest is looked at again, until none
//! is both [`FAR`] times as far off as is usual for this model and off by more than [`LEAST`] in ln. Latency is compared with the time
//! of a batch in the same way, by its ratio to it.
//!
//! Cases: below [`FEWEST`] points nothing is left out, because nothing can be told apart. Of more than
//! [`GROUP`] points, groups of every second (third, …) are looked at by themselves. At most a share of [`MOST`] of the figures is left
//! out; what is more than that is no error but the model.
//!
//! Not done: mending; a figure that is left out is missing.
//!
//! Source: Rousseeuw and Leroy, *Robust Regression and Outlier Detection*, 1 and 6 (medians of absolute deviations as the
//! scale; one at a time, because outliers hide each other).

use crate::active::{Expectation, Figures, Posterior};
use crate::base::{BasePower, median};
use crate::point::{Observation, Observations};

/// Points that tell outliers apart.
const FEWEST: usize = 10;
/// Times the usual deviation.
const FAR: f64 = 5.0;
/// And at least this in ln: 20 %.
const LEAST: f64 = 0.182;
/// Latency is a tail, and noisier: a factor of 2.
const LEAST_LATENCY: f64 = 0.693;
/// Share of the figures.
const MOST: f64 = 0.15;
/// Points looked at together.
const GROUP: usize = 240;
/// Median absolute deviation to standard deviation of normal values.
const TO_SD: f64 = 1.4826;

/// The observations without gross errors; what was left out is said in [`Observations::dropped`].
pub(crate) fn screened(seen: &Observations, base: Option<&BasePower>, cap_w: Option<f64>) -> Observations {
    let mut clean = seen.clone();
    if seen.points.len() < FEWEST {
        return clean;
    }
    let (expected, figures) = (Expectation::after([]), Figures::new(base, cap_w));
    let groups = seen.points.len().div_ceil(GROUP);
    let mut counts = [0; 3];
    for group in 0..groups {
        let numbers: Vec<usize> = (group..seen.points.len()).step_by(groups).collect();
        let some: Vec<Observation> = numbers.iter().filter_map(|i| seen.points.get(*i).cloned()).collect();
        let Some(posterior) = Posterior::new(&expected, &some, &figures) else { continue };
        for (place, figure) in posterior.outliers(FAR, LEAST, MOST) {
            let Some(o) = numbers.get(place).and_then(|i| clean.points.get_mut(*i)) else { continue };
            counts[figure] += 1;
            if figure == 0 {
                (o.throughput, o.latency_ms, o.tail) = (None, None, None);
            } else {
                (o.average_w, o.dynamic_w) = (None, None);
            }
        }
    }
    counts[2] = latencies(&mut clean);
    for (count, what) in counts.into_iter().zip(["throughput", "power", "latency"]) {
        if count > 0 {
            clean.dropped.push(format!("{count} × {what} far off what the other points say"));
        }
    }
    clean.points.retain(|o| o.throughput.is_some() || o.average_w.is_some() || o.dynamic_w.is_some());
    clean
}

fn latencies(clean: &mut Observations) -> usize {
    let ratio = |o: &Observation| Some((o.latency_ms? / o.own_time_ms()?).ln());
    let mut all: Vec<f64> = clean.points.iter().filter_map(ratio).collect();
    let middle = median(&mut all);
    let mut apart: Vec<f64> = all.iter().map(|r| (r - middle).abs()).collect();
    let limit = (FAR * TO_SD * median(&mut apart)).max(LEAST_LATENCY);
    let mut count = 0;
    for o in &mut clean.points {
        if ratio(o).is_some_and(|r| (r - middle).abs() > limit) {
            o.latency_ms = None;
            count += 1;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch_time::tests::{grid, truth};
    use gpumon_core::units::Megahertz;

    fn lawful() -> Observations {
        let of = |point| {
            let ms = truth().at_ms(&point).unwrap();
            let dynamic_w = 20.0 + 100.0 * point.share.sms() * point.ghz();
            Observation {
                average_w: Some(50.0 + dynamic_w),
                dynamic_w: Some(dynamic_w),
                throughput: Some(1e3 * point.batch_items() / ms),
                latency_ms: Some(ms),
                tail: None,
                point,
            }
        };
        let points = grid().into_iter().map(of).collect();
        Observations { model: "m".into(), points, dropped: vec![], remarks: vec![], dynamic_refused: None }
    }

    fn clean(seen: &Observations) -> Observations {
        let base = BasePower::of_table(&[(Megahertz(210), 50.0, 0.0, 0.0)]).unwrap();
        screened(seen, Some(&base), None)
    }

    #[test]
    fn what_is_lawful_stays() {
        assert_eq!(clean(&lawful()), lawful());
    }

    #[test]
    fn gross_errors_go_and_are_counted_and_nothing_else_goes() {
        let mut seen = lawful();
        for (i, factor) in [(3, 3.0), (40, 0.2), (77, 1.6), (120, 1e3)] {
            seen.points[i].throughput = seen.points[i].throughput.map(|t| t * factor);
        }
        for (i, factor) in [(10, 0.3), (95, 2.0)] {
            seen.points[i].dynamic_w = seen.points[i].dynamic_w.map(|w| w * factor);
        }
        seen.points[60].latency_ms = Some(1e4);
        let clean = clean(&seen);
        let missing = |value: fn(&Observation) -> Option<f64>| -> Vec<usize> {
            (0..clean.points.len()).filter(|i| value(&clean.points[*i]).is_none()).collect()
        };
        assert_eq!(missing(|o| o.throughput), [3, 40, 77, 120]);
        assert_eq!(missing(|o| o.dynamic_w), [10, 95]);
        assert_eq!(missing(|o| o.latency_ms), [3, 40, 60, 77, 120]);
        let said = clean.dropped.join("; ");
        assert!(said.contains("4 × throughput far off") && said.contains("2 × power"), "{said}");
    }

    #[test]
    fn few_points_are_left_alone() {
        let mut seen = lawful();
        seen.points.truncate(9);
        seen.points[0].throughput = Some(1e6);
        assert_eq!(clean(&seen), seen);
    }
}
