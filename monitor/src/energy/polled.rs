//! A window's energy from power that is polled: the short window, or the driver's average.
//!
//! Rule: a value holds for the middle of its window, and between two of them power changes evenly. A value appears at
//! an unknown moment between two polls, so it is half a polling period, at most half an update, older than it looks.
//! Values are told apart by their difference or, polled more slowly than they change, each poll is one.
//!
//! How far off that is: each value speaks for an update period of which its window saw only a share, so what a line
//! through the neighbours does not explain of a value is taken as the deviation of what was not seen, independent from
//! one value to the next. A load whose period divides the update period breaks that, and nothing in the values shows it.
//!
//! Cases: a smooth load is near its line and has a narrow interval. Fewer than three values: no estimate.
//! Sources: sampling variance of a systematic sample by differences of neighbours: K. M. Wolter, "Introduction to
//! Variance Estimation" (2007), 8.2; windows and periods: "Part-time Power Measurements" (SC'24).

use std::collections::VecDeque;

use super::noise::residual_w;
use super::timing::PolledDelay;
use super::{Reading, Shown};

/// Values count from this many update periods before the window to as many after it.
const AROUND: f64 = 6.0;

/// What polled power says about a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PolledEstimate {
    /// Energy, J.
    pub(super) j: f64,
    /// Variance of what no window saw, J².
    pub(super) unseen: f64,
    /// Deviation from not knowing when values were taken, J.
    pub(super) lag_j: f64,
    /// Power about the window.
    pub(super) power: Shown,
}

/// Integrates polled values over one window.
#[derive(Clone, Debug)]
pub(super) struct PolledEnergy {
    from_us: i64,
    length_s: f64,
    delay: PolledDelay,
    recent: VecDeque<Reading>,
    last_poll_s: Option<f64>,
    polled_s: f64,
    energy_j: f64,
    covered_s: f64,
    edges_w: [Option<f64>; 2],
    residual_w2: f64,
    residuals: f64,
    sum_w: f64,
    sum_w2: f64,
    count: f64,
}

impl PolledEnergy {
    pub(super) fn new(from_us: i64, to_us: i64, delay: PolledDelay) -> Self {
        Self {
            from_us,
            length_s: (to_us - from_us) as f64 / 1e6,
            delay,
            recent: VecDeque::with_capacity(4),
            last_poll_s: None,
            polled_s: delay.update_s,
            energy_j: 0.0,
            covered_s: 0.0,
            edges_w: [None; 2],
            residual_w2: 0.0,
            residuals: 0.0,
            sum_w: 0.0,
            sum_w2: 0.0,
            count: 0.0,
        }
    }

    /// Adds a poll, in order of time.
    pub(super) fn add(&mut self, at_us: i64, power_mw: f64) {
        let around_s = AROUND * self.delay.update_s;
        let polled_s = (at_us - self.from_us) as f64 / 1e6;
        if polled_s < -around_s - self.delay.update_s || polled_s > self.length_s + around_s {
            return;
        }
        if let Some(last_s) = self.last_poll_s.replace(polled_s) {
            self.polled_s = polled_s - last_s;
        }
        let unseen_s = self.polled_s.min(self.delay.update_s);
        let power_w = power_mw / 1e3;
        let repeated = self.recent.back().is_some_and(|last| last.power_w == power_w);
        if repeated && self.polled_s < 0.9 * self.delay.update_s {
            return;
        }
        let reading = Reading { at_s: polled_s - unseen_s / 2.0 - self.delay.centre_s, power_w };
        if let Some(&before) = self.recent.back()
            && reading.at_s > before.at_s
        {
            self.between(before, reading);
        }
        self.count += 1.0;
        self.sum_w += power_w;
        self.sum_w2 += power_w * power_w;
        if self.recent.len() >= 2 {
            let at = self.recent.len() - 1;
            if let Some(residual) = residual_w(self.recent[at - 1], self.recent[at], reading) {
                self.residual_w2 += residual * residual;
                self.residuals += 1.0;
            }
        }
        self.recent.push_back(reading);
        if self.recent.len() > 2 {
            self.recent.pop_front();
        }
    }

    fn between(&mut self, before: Reading, after: Reading) {
        let apart_s = after.at_s - before.at_s;
        let power =
            |at_s: f64| before.power_w + (at_s - before.at_s) / apart_s * (after.power_w - before.power_w);
        for (edge_s, known) in [0.0, self.length_s].into_iter().zip(&mut self.edges_w) {
            if (before.at_s..=after.at_s).contains(&edge_s) {
                *known = Some(power(edge_s));
            }
        }
        let (start_s, stop_s) = (before.at_s.max(0.0), after.at_s.min(self.length_s));
        if stop_s > start_s {
            self.energy_j += (power(start_s) + power(stop_s)) / 2.0 * (stop_s - start_s);
            self.covered_s += stop_s - start_s;
        }
    }

    /// The estimate; absent if values do not cover nearly all of the window.
    pub(super) fn finish(self) -> Option<PolledEstimate> {
        let left_s = self.length_s - self.covered_s;
        if self.covered_s <= 0.0 || self.residuals < 1.0 || left_s > (0.1 * self.length_s).max(0.25) {
            return None;
        }
        let mean_w = self.energy_j / self.covered_s;
        let update_s = self.delay.update_s.max(self.polled_s);
        let deviation_w2 = self.residual_w2 / self.residuals;
        // One value short of the window, and one beyond it, count in part.
        let values = self.length_s / update_s + 1.0;
        let seen = self.delay.coverage * self.delay.update_s / update_s;
        let unseen = deviation_w2 * self.length_s * self.length_s / values * (1.0 - seen).max(0.05);
        let about_w = self.sum_w / self.count;
        let edges_w = self.edges_w.map(|edge| edge.unwrap_or(mean_w));
        let age_s = self.polled_s.min(self.delay.update_s) / 12f64.sqrt();
        let left = deviation_w2.sqrt() * left_s;
        Some(PolledEstimate {
            j: self.energy_j + mean_w * left_s,
            unseen: unseen + left * left,
            lag_j: self.delay.off_s.hypot(age_s) * (edges_w[1] - edges_w[0]).abs(),
            power: Shown { edges_w, variance_w2: (self.sum_w2 / self.count - about_w * about_w).max(0.0) },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::timing::Timing;
    use super::*;

    /// Polls each `every_us` of a sensor that shows power as it was 62.5 ms before (on average, at 10 Hz).
    fn estimate(every_us: i64, length_us: i64, power_w: impl Fn(f64) -> f64) -> Option<PolledEstimate> {
        let mut polled = PolledEnergy::new(0, length_us, Timing::default().instant);
        for k in -2_000_000 / every_us..(length_us + 2_000_000) / every_us {
            polled.add(k * every_us, 1e3 * power_w((k * every_us) as f64 / 1e6 - 0.0625));
        }
        polled.finish()
    }

    #[test]
    fn a_ramp_is_exact_and_has_little_unseen() {
        let found = estimate(100_000, 2_000_000, |t| 100.0 + 50.0 * t).unwrap();
        assert!((found.j - 300.0).abs() < 1e-6, "{found:?}");
        assert!(found.unseen < 1e-12);
        // The moment of each update is known to a polling period: 100 ms / √12 and 5 ms, times 100 W.
        assert!((found.lag_j - 100.0 * (0.1 / 12f64.sqrt()).hypot(5e-3)).abs() < 1e-6, "{found:?}");
    }

    #[test]
    fn restless_values_have_the_variance_of_a_sample_of_a_quarter() {
        let even = |t: f64| ((t * 10.0).round() as i64).rem_euclid(2) == 0;
        let found = estimate(100_000, 2_000_000, |t| if even(t) { 100.0 } else { 300.0 }).unwrap();
        assert!((found.j - 400.0).abs() < 10.0);
        // Each value is 200 W off the line through its neighbours: 200² / 1.5, over 21 values, of 2 s, but a quarter.
        let expected = 200.0 * 200.0 / 1.5 * 4.0 / 21.0 * 0.75;
        assert!((found.unseen / expected - 1.0).abs() < 0.01, "{found:?} for {expected}");
    }

    #[test]
    fn values_that_do_not_cover_the_window_say_nothing() {
        let mut few = PolledEnergy::new(0, 2_000_000, Timing::default().instant);
        (0..8).for_each(|k| few.add(k * 100_000, 1e5));
        assert!(few.finish().is_none());
        assert!(PolledEnergy::new(0, 2_000_000, Timing::default().instant).finish().is_none());
    }
}
