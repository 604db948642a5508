//! Period, step, lag and truth of the energy counter.
//!
//! Rule: the counter's values under a square wave are `E0 + off × t + swing × ∫ wave(t − lag)`; for each lag the three
//! unknowns follow by least squares, and the lag with the least is taken if 5 ms more or less fit clearly worse.
//! The ratio is the energy between two steps of the counter, before and after a whole load, over the trapezoids
//! of the power readings between them. At both ends nothing runs, so a lag of either moves next to nothing.
//! Resolution: a call takes 3 to 17 ms and whether the value is of its beginning or its end cannot be told, so the lag is
//! good to a few ms.

use gpumon_core::timing::CounterTiming;
use nalgebra::{Matrix3, Vector3};

use super::fit::Seen;
use super::period;
use super::wave::{Edge, Wave};

/// Lags that are tried, ms: from, to, step.
const LAGS_MS: [f64; 3] = [-20.0, 300.0, 1.0];
const TOLD_APART_MS: f64 = 5.0;
const CLEARLY: f64 = 1.3;

/// A value of the counter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// When it appeared, ms.
    pub at_ms: f64,
    /// The value, mJ.
    pub mj: u64,
}

/// What a run of new values (in J, under a square wave) and the energies of a whole load say.
pub fn timing(
    edges: &[Edge],
    seen: &[Seen],
    smallest_step_mj: u64,
    ratio: Option<f64>,
) -> Option<CounterTiming> {
    let period = period::of(seen)?;
    Some(CounterTiming {
        update_ms: period.update_ms,
        step_mj: smallest_step_mj as f64,
        ratio_to_integral: ratio,
        lag_ms: lag(edges, seen),
    })
}

/// Energy by the counter over that of the power readings (ms and W) between the same times.
pub fn ratio(begin: Step, end: Step, power: &[(f64, f64)]) -> Option<f64> {
    let integral_j = trapezoids(power, begin.at_ms, end.at_ms)?;
    let counted_j = end.mj.checked_sub(begin.mj)? as f64 / 1e3;
    (integral_j > 0.0 && counted_j > 0.0).then(|| counted_j / integral_j)
}

/// Integral of readings over a span, J; the first and last reading last until its ends. None if they leave more
/// than a second without any.
fn trapezoids(power: &[(f64, f64)], from_ms: f64, to_ms: f64) -> Option<f64> {
    const LONGEST_GAP_MS: f64 = 1_000.0;
    let inside: Vec<_> =
        power.iter().filter(|(at_ms, _)| (from_ms..=to_ms).contains(at_ms)).copied().collect();
    let (first, last) = (inside.first()?, inside.last()?);
    let gaps = inside.windows(2).map(|pair| pair[1].0 - pair[0].0);
    if gaps.chain([first.0 - from_ms, to_ms - last.0]).any(|gap| gap > LONGEST_GAP_MS) {
        return None;
    }
    let between: f64 = inside.windows(2).map(|p| (p[0].1 + p[1].1) / 2.0 * (p[1].0 - p[0].0)).sum();
    Some((between + first.1 * (first.0 - from_ms) + last.1 * (to_ms - last.0)) / 1e3)
}

fn lag(edges: &[Edge], seen: &[Seen]) -> Option<f64> {
    const LEAST_VALUES: usize = 20;
    if seen.len() < LEAST_VALUES {
        return None;
    }
    let wave = Wave::new(edges, 0.0, 0.0);
    let steps = ((LAGS_MS[1] - LAGS_MS[0]) / LAGS_MS[2]) as i32;
    let lags = (0..=steps).map(|i| LAGS_MS[0] + LAGS_MS[2] * f64::from(i));
    let tried: Vec<(f64, f64)> =
        lags.filter_map(|lag_ms| Some((lag_ms, left(&wave, seen, lag_ms)?))).collect();
    let &(best_ms, least) = tried.iter().min_by(|a, b| a.1.total_cmp(&b.1))?;
    let at_an_end = best_ms <= LAGS_MS[0] || best_ms >= LAGS_MS[1];
    let clear = [-TOLD_APART_MS, TOLD_APART_MS]
        .into_iter()
        .all(|d| left(&wave, seen, best_ms + d).is_some_and(|other| other > CLEARLY * least));
    (!at_an_end && clear).then_some(best_ms)
}

/// Mean square that a lag leaves, J².
fn left(wave: &Wave, seen: &[Seen], lag_ms: f64) -> Option<f64> {
    let first = seen.first()?;
    let rows = seen.iter().map(|s| {
        let wave_ms = wave.mean_integral(s.from_ms - lag_ms, s.to_ms - lag_ms);
        let time_ms = (s.from_ms + s.to_ms) / 2.0 - first.to_ms;
        (Vector3::new(1.0, time_ms / 1e3, wave_ms / 1e3), s.watts - first.watts)
    });
    let (mut normal, mut right, mut square) = (Matrix3::zeros(), Vector3::zeros(), 0.0);
    for (row, joules) in rows {
        normal += row * row.transpose();
        right += row * joules;
        square += joules * joules;
    }
    let found = normal.cholesky()?.solve(&right);
    Some(((square - found.dot(&right)) / seen.len() as f64).max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lag_and_ratio_of_a_known_counter_come_out() {
        let edges: Vec<Edge> =
            (0..60).map(|k| Edge { at_ms: 300.0 + 137.0 * f64::from(k), on: k % 2 == 0 }).collect();
        let wave = Wave::new(&edges, 0.0, 0.0);
        let energy_j = |t: f64| 1e6 + 0.1 * t + 0.5 * wave.at(t)[1];
        let seen: Vec<Seen> = (1..80)
            .map(|k| 103.0 * f64::from(k))
            .map(|t| Seen { from_ms: t - 2.0, to_ms: t + 2.0, watts: energy_j(t - 31.0) })
            .collect();
        let found = timing(&edges, &seen, 10_300, Some(1.0)).unwrap();
        assert!((found.update_ms - 103.0).abs() < 1e-6);
        assert!((found.lag_ms.unwrap() - 31.0).abs() <= 1.0, "{found:?}");

        let step = |at_ms: f64| Step { at_ms, mj: (energy_j(at_ms) * 1e3) as u64 };
        let power: Vec<_> =
            (0..9_000).map(|t| (f64::from(t), 100.0 + 500.0 * wave.at(f64::from(t))[0])).collect();
        let ratio = ratio(step(100.0), step(8_900.0), &power).unwrap();
        assert!((ratio - 1.0).abs() < 1e-3, "{ratio}");
    }

    #[test]
    fn an_idle_counter_has_no_lag_and_readings_with_gaps_no_integral() {
        let idle: Vec<Seen> = (0..50)
            .map(f64::from)
            .map(|k| Seen { from_ms: 100.0 * k, to_ms: 100.0 * k, watts: 12.0 * k })
            .collect();
        assert_eq!(timing(&[], &idle, 12_000, None).unwrap().lag_ms, None);
        let (begin, end) = (Step { at_ms: 0.0, mj: 0 }, Step { at_ms: 5_000.0, mj: 500_000 });
        assert_eq!(ratio(begin, end, &[(10.0, 100.0), (4_900.0, 100.0)]), None);
    }
}
