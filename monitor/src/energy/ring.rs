//! A window's energy from the ring of readings, one reading at a time.
//!
//! Rule: the sensor's smoothing is undone by [`Filter`]; how restless power is between two readings is taken from
//! what cubics through two readings on each side do not explain (`noise::cubic_residual_w`), beyond noise: to lines a slow
//! bend, which costs next to no energy, looks like jumps. Readings from 0.4 s before the window to 0.3 s after it count,
//! nothing else is looked at, and nothing is kept but nine of them.
//!
//! Cases: a window that begins with the recording has no readings before it, one that ends with it none after it:
//! the filter starts, or ends, with what it has, and the variance says so; a reading without two on each side is held
//! against the line through its neighbours. Where two readings lie more than
//! [`GAP_S`] apart, power between them may have been anything that the window shows elsewhere: the time beyond
//! counts with the variance of the window's readings. Readings that a busy driver leaves out are left out where
//! load is, not at random: the share of time that is missing adds an error that does not average out over a window.
//!
//! Not done here: combining with the counter, quantiles (`mod`).
//! Sources: 20 ms spacing, 13 to 27 ms apart, 47 ms where a reading is left out; smoothing; ring against counter
//! within −0.90 to +0.28 % where 2.4 to 3.1 % were missing (data/runs/2026-11-30-h200-recorder).

use std::collections::VecDeque;

use super::filter::{Filter, Stretch, Variances};
use super::noise::{cubic_residual_w, residual_w};
use super::timing::RingDelay;
use super::{Reading, Shown};

/// Readings count from this long before the window …
const LEAD_S: f64 = 0.4;
/// … to this long after it.
const TRAIL_S: f64 = 0.3;
/// Readings that must follow one before it is taken in, for what they say about the restlessness there.
const AHEAD: usize = 4;
/// This close to an edge, time counts as the edge's.
const EDGE_S: f64 = 0.03;
/// Readings further apart leave a gap.
const GAP_S: f64 = 0.06;
/// Time without readings that a window may have, s.
const UNCOVERED_S: f64 = 0.25;
/// Readings further apart than this share of the usual distance have one missing between them.
const MISSING: f64 = 1.6;
/// Restlessness within the window, and at its edges, for the mean square of residuals, times the readings' distance.
const RESTLESS: f64 = 20.0;
const RESTLESS_AT_EDGES: f64 = 30.0;
/// Noise is taken off residuals this many times, because a mean of few squares exceeds its expectation.
const NOISE_TIMES: f64 = 1.3;
/// Error (deviation) that missing readings leave, as a share of missing time × deviation of power: 0.9 % of the mean
/// where 3 % were missing and power deviated by 0.8 of its mean was the worst of six.
const MISSING_BIAS: f64 = 0.25;

#[derive(Clone, Copy, Debug)]
struct Item {
    reading: Reading,
    residual_w2: Option<f64>,
}

/// What the ring says about a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RingEstimate {
    /// Energy, J.
    pub(super) j: f64,
    /// Variances of what the filter does.
    pub(super) variances: Variances,
    /// Variance of gaps and missing readings, J².
    pub(super) gaps: f64,
    /// Deviation from how well the sensor's delay is known, J.
    pub(super) lag_j: f64,
    /// Power about the window, as the sensor shows it.
    pub(super) power: Shown,
}

/// Integrates the ring over one window.
#[derive(Clone, Debug)]
pub(super) struct RingEnergy {
    from_us: i64,
    length_s: f64,
    delay: RingDelay,
    noise_w2: f64,
    recent: VecDeque<Item>,
    /// How many of `recent` are taken in.
    taken: usize,
    filter: Option<Filter>,
    now_s: f64,
    edges_w: [Option<f64>; 2],
    sum_w: f64,
    sum_w2: f64,
    count: f64,
    covered_s: f64,
    usual_s: f64,
    missing_s: f64,
    gap_s2: f64,
}

impl RingEnergy {
    pub(super) fn new(from_us: i64, to_us: i64, delay: RingDelay, noise_w: f64) -> Self {
        Self {
            from_us,
            length_s: (to_us - from_us) as f64 / 1e6,
            delay,
            noise_w2: noise_w * noise_w,
            recent: VecDeque::with_capacity(2 * AHEAD + 2),
            taken: 0,
            filter: None,
            now_s: 0.0,
            edges_w: [None; 2],
            sum_w: 0.0,
            sum_w2: 0.0,
            count: 0.0,
            covered_s: 0.0,
            usual_s: 0.02,
            missing_s: 0.0,
            gap_s2: 0.0,
        }
    }

    /// Adds a reading, in order of time.
    pub(super) fn add(&mut self, at_us: i64, power_mw: f64) {
        let at_s = (at_us - self.from_us) as f64 / 1e6 - self.delay.shift_s;
        if at_s < -LEAD_S || at_s > self.length_s + TRAIL_S {
            return;
        }
        let reading = Reading { at_s, power_w: power_mw / 1e3 };
        let known = self.recent.len();
        if known > 0 && self.recent[known - 1].reading.at_s >= at_s {
            return;
        }
        if known >= 2 {
            let (before, last) = (self.recent[known - 2].reading, self.recent[known - 1].reading);
            self.recent[known - 1].residual_w2 = residual_w(before, last, reading).map(|r| r * r);
        }
        if known >= 4 {
            let at = |back: usize| self.recent[known - back].reading;
            let residual_w = cubic_residual_w([at(4), at(3), at(2), at(1), reading]);
            self.recent[known - 2].residual_w2 = residual_w.map(|r| r * r);
        }
        self.recent.push_back(Item { reading, residual_w2: None });
        while self.recent.len() - self.taken > AHEAD {
            self.take();
        }
    }

    /// The estimate; absent if readings cover less than nine tenths of the window, or all but a quarter of a second.
    pub(super) fn finish(mut self) -> Option<RingEstimate> {
        while self.taken < self.recent.len() {
            self.take();
        }
        let uncovered_s = self.length_s - self.covered_s;
        if self.covered_s <= 0.0 || uncovered_s > (0.1 * self.length_s).max(UNCOVERED_S) {
            return None;
        }
        let last = self.recent.back()?.reading;
        let restless = self.restless(self.recent.len() - 1);
        self.pass(self.length_s, restless);
        let filter = self.filter?;
        let mean_w = self.sum_w / self.count;
        // Before the first reading and after the last, power may have been anything too.
        let outside_s = (uncovered_s - GAP_S).max(0.0);
        let power_w2 = (self.sum_w2 / self.count - mean_w * mean_w).max(0.0);
        let bias_s = MISSING_BIAS * self.missing_s;
        let edges_w = self.edges_w.map(|edge| edge.unwrap_or(last.power_w));
        Some(RingEstimate {
            j: filter.energy_j(),
            variances: filter.variances(),
            gaps: power_w2 * (self.gap_s2 + bias_s * bias_s + outside_s * outside_s),
            lag_j: self.delay.off_s * (edges_w[1] - edges_w[0]).abs(),
            power: Shown { edges_w, variance_w2: power_w2 },
        })
    }

    /// Takes in the next reading.
    fn take(&mut self) {
        let index = self.taken;
        let Reading { at_s, power_w } = self.recent[index].reading;
        let restless = self.restless(index);
        if self.filter.is_none() {
            // Before the first reading power may have been anything near; the time to the window's start settles it.
            let off_w2 = self.noise_w2 + RESTLESS_AT_EDGES * restless * self.delay.total_s();
            self.filter = Some(Filter::new(self.delay.tau_s, power_w, off_w2));
            self.now_s = at_s.min(0.0);
        }
        self.pass(at_s, restless);
        if let Some(filter) = &mut self.filter {
            filter.observe(power_w, self.noise_w2);
        }
        if index > 0 {
            self.look_between(self.recent[index - 1].reading, self.recent[index].reading);
        }
        self.taken += 1;
        if self.taken > AHEAD {
            self.recent.pop_front();
            self.taken -= 1;
        }
    }

    /// Lets time pass up to `until_s`.
    fn pass(&mut self, until_s: f64, restless: f64) {
        let Some(filter) = &mut self.filter else { return };
        let cuts = [0.0, EDGE_S, self.length_s - EDGE_S, self.length_s, until_s];
        while self.now_s < until_s {
            let next_s = cuts.into_iter().filter(|cut| *cut > self.now_s).fold(until_s, f64::min);
            let middle_s = (self.now_s + next_s) / 2.0;
            let counts = (0.0..self.length_s).contains(&middle_s);
            let inside = (EDGE_S..self.length_s - EDGE_S).contains(&middle_s);
            let (stretch, times) =
                if inside { (Stretch::Inside, RESTLESS) } else { (Stretch::Edge, RESTLESS_AT_EDGES) };
            filter.advance(next_s - self.now_s, counts, times * restless, stretch);
            self.now_s = next_s;
        }
    }

    /// How restless power is before the reading at `index`, W²/s.
    fn restless(&self, index: usize) -> f64 {
        const WEIGHTS: [(isize, f64); 6] = [(-3, 0.5), (-2, 1.0), (-1, 2.0), (0, 2.0), (1, 1.0), (2, 0.5)];
        let residual = |offset: isize| self.recent.get(index.checked_add_signed(offset)?)?.residual_w2;
        let (sum, weight) = WEIGHTS
            .iter()
            .filter_map(|(offset, weight)| Some((residual(*offset)? * weight, *weight)))
            .fold((0.0, 0.0), |(sum, all), (square, weight)| (sum + square, all + weight));
        if weight == 0.0 {
            return 0.0;
        }
        (sum / weight - NOISE_TIMES * self.noise_w2).max(0.0) / self.usual_s
    }

    /// Keeps account of the time between two readings.
    fn look_between(&mut self, before: Reading, after: Reading) {
        let apart_s = after.at_s - before.at_s;
        let delay_s = self.delay.tau_s[0] + self.delay.tau_s[1];
        for (edge, known) in [0.0, self.length_s].into_iter().zip(&mut self.edges_w) {
            let share = (edge + delay_s - before.at_s) / apart_s;
            if (0.0..=1.0).contains(&share) || (known.is_none() && share < 0.0) {
                *known = Some(before.power_w + share.max(0.0) * (after.power_w - before.power_w));
            }
        }
        let held_s = after.at_s.min(self.length_s) - before.at_s.max(0.0);
        self.count += 1.0;
        self.sum_w += after.power_w;
        self.sum_w2 += after.power_w * after.power_w;
        if held_s > 0.0 {
            self.covered_s += held_s;
            if apart_s > MISSING * self.usual_s {
                self.missing_s += held_s * (1.0 - self.usual_s / apart_s);
            }
            if apart_s > GAP_S {
                self.gap_s2 += held_s * held_s * (1.0 - GAP_S / apart_s);
            }
        }
        if apart_s < 2.0 * self.usual_s {
            self.usual_s += 0.05 * (apart_s - self.usual_s);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::timing::Timing;
    use super::*;

    fn estimate(
        from_us: i64,
        to_us: i64,
        readings: impl IntoIterator<Item = (i64, f64)>,
    ) -> Option<RingEstimate> {
        let mut ring = RingEnergy::new(from_us, to_us, Timing::default().ring, 1.0);
        readings.into_iter().for_each(|(at_us, mw)| ring.add(at_us, mw));
        ring.finish()
    }

    fn half(e: &RingEstimate) -> f64 {
        (e.variances.noise + e.variances.inside + e.variances.edge + e.gaps + e.lag_j * e.lag_j).sqrt()
    }

    /// 37 ms at 700 W, 61 ms at 120 W, smoothed by both stages, read each 17 to 23 ms; and the true energy of a span.
    fn square(from_us: i64, to_us: i64) -> (Vec<(i64, f64)>, f64) {
        let (mut first, mut second, mut true_nj, mut next) = (120_000.0, 120_000.0, 0.0, 0);
        let mut readings = Vec::new();
        for t in (0..62_000_000i64).step_by(100) {
            if t >= next {
                next += 20_000 + (t / 100 * 7_919) % 6_000 - 3_000;
                readings.push((t, second));
            }
            let power = if t % 98_000 < 37_000 { 700_000.0 } else { 120_000.0 };
            first += (power - first) * (1.0 - (-0.1f64 / 14.0).exp());
            second += (first - second) * (1.0 - (-0.1f64 / 4.2).exp());
            true_nj += if (from_us..to_us).contains(&t) { power * 100.0 } else { 0.0 };
        }
        (readings, true_nj / 1e9)
    }

    #[test]
    fn a_smoothed_square_wave_keeps_its_energy() {
        for (from_us, to_us, within) in [(1_000_000, 61_000_000, 5e-4), (1_030_000, 1_530_000, 0.01)] {
            let (readings, truth_j) = square(from_us, to_us);
            let found = estimate(from_us, to_us, readings).unwrap();
            assert!((found.j / truth_j - 1.0).abs() < within, "{} for {truth_j}", found.j);
            assert!((found.j - truth_j).abs() < 2.0 * half(&found), "{found:?} for {truth_j}");
        }
    }

    #[test]
    fn constant_power_is_exact_and_a_step_widens_its_surroundings() {
        let step = |t: i64| if t < 1_000_000 { 100e3 } else { 300e3 };
        let readings = || (0..200).map(|k| (k * 20_000, step(k * 20_000)));
        let calm = estimate(200_000, 700_000, readings()).unwrap();
        assert!((calm.j - 50.0).abs() < 1e-6 && half(&calm) < 0.3, "{calm:?}");
        let near = estimate(500_000, 1_000_000, readings()).unwrap();
        assert!(half(&near) > 4.0 * half(&calm), "{near:?}");
    }

    #[test]
    fn a_span_that_readings_do_not_cover_has_no_energy() {
        let flat = || (0..100).map(|k| (k * 20_000, 1e5));
        assert!(estimate(0, 10_000_000, flat()).is_none());
        assert!(estimate(0, 1_000_000, []).is_none());
        assert!(estimate(0, 1_000_000, [(0, 1e5)]).is_none());
        let whole = estimate(0, 2_000_000, flat()).unwrap();
        assert!((whole.j - 200.0).abs() < 0.1, "{whole:?}");
    }

    #[test]
    fn a_gap_is_bridged_and_shown() {
        let power = |t: i64| if t < 1_000_000 { 100e3 } else { 300e3 };
        let readings = (0..=100).map(|k| k * 20_000).filter(|t| !(500_000..1_500_000).contains(t));
        let found = estimate(0, 2_000_000, readings.map(|t| (t, power(t)))).unwrap();
        assert!((found.j - 400.0).abs() < 20.0, "{found:?}");
        assert!(found.gaps.sqrt() > 50.0, "100 W of deviation over a second of nothing: {found:?}");
    }
}
