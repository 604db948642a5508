//! When a sensor changes, and how a new value weighs the past.
//!
//! Rule: update k lies at `phase + k × period + jitter(k)`, k being any integer. The value of a power update is the true
//! power, weighed by a window that ends `lag` before the update: a box weighs all of its length alike, a low-pass
//! weighs the past by `exp(−age / length)`.
//! Cases: without jitter, lag and low-pass this is the mean over a window that ends at an update on an even grid.
//! Accuracy: a low-pass is a sum of short means, a tenth of its time constant long each, so that its response to a step
//! is off by at most 0.13 % of the step, and late by 0.08 % of the time constant; what is older than nine time constants
//! (0.01 %) is left out.
//! Source: docs/simulated-gpu.md.

use gpumon_core::units::MonoUs;
use serde::Deserialize;

use crate::hash;
use crate::timeline::Timeline;

const STREAM_PHASE: u64 = 0x03;
const STREAM_JITTER: u64 = 0x07;

/// Length of a low-pass's short means, as a share of its time constant, and how many of them there are.
const SLICE: f64 = 0.1;
const SLICES: i64 = 90;

/// How a sensor weighs the past.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// All of the window alike.
    #[default]
    Box,
    /// The past fades exponentially; the window's length is the time constant.
    LowPass,
}

/// Moments at which a sensor changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    seed: u64,
    number: i64,
    phase_us: i64,
    pub(crate) period_us: i64,
    jitter_us: f64,
}

impl Grid {
    pub(crate) fn new(seed: u64, number: i64, period_us: i64) -> Self {
        let phase_us = (hash::bits(seed, STREAM_PHASE, number) % period_us as u64) as i64;
        Self { seed, number, phase_us, period_us, jitter_us: 0.0 }
    }

    /// The same grid, each update moved by up to `jitter_us`, which is less than half of a period.
    pub(crate) fn jittered(self, jitter_us: f64) -> Self {
        Self { jitter_us, ..self }
    }

    /// The last update at or before `now`.
    pub(crate) fn latest(self, now: MonoUs) -> MonoUs {
        let near = (now.0 - self.phase_us).div_euclid(self.period_us);
        if self.jitter_us == 0.0 {
            return MonoUs(self.time_us(near));
        }
        let last = [near + 1, near].into_iter().map(|k| self.time_us(k)).find(|at_us| *at_us <= now.0);
        MonoUs(last.unwrap_or_else(|| self.time_us(near - 1)))
    }

    fn time_us(self, k: i64) -> i64 {
        let even_us = self.phase_us + k * self.period_us;
        if self.jitter_us == 0.0 {
            return even_us;
        }
        let stream = STREAM_JITTER ^ ((self.number as u64) << 16);
        let share = 2.0 * hash::uniform(hash::bits(self.seed, stream, k)) - 1.0;
        even_us + (self.jitter_us * share).round() as i64
    }
}

/// How the value of an update comes about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) length_us: i64,
    pub(crate) shape: Shape,
    pub(crate) lag_us: i64,
}

impl Window {
    /// The value of the update at `update`, without noise, mW.
    pub(crate) fn mean_mw(self, line: &Timeline, update: MonoUs) -> f64 {
        let end = update.plus_us(-self.lag_us);
        match self.shape {
            Shape::Box => line.mean_mw(end, self.length_us),
            Shape::LowPass => low_pass_mw(line, end, self.length_us),
        }
    }
}

fn low_pass_mw(line: &Timeline, end: MonoUs, constant_us: i64) -> f64 {
    let slice_us = ((constant_us as f64 * SLICE).round() as i64).max(1);
    let fade = (-(slice_us as f64) / constant_us as f64).exp();
    let (mut weight, mut whole, mut sum) = (1.0, 0.0, 0.0);
    let mut later = line.totals(end);
    for slice in 1..=SLICES {
        let earlier = line.totals(end.plus_us(-slice * slice_us));
        sum += weight * later.since(&earlier).energy_nj as f64 / slice_us as f64;
        whole += weight;
        weight *= fade;
        later = earlier;
    }
    sum / whole
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gpumon_core::units::Milliwatts;

    use super::*;
    use crate::{PowerLaw, Programme, Settings, Spec};

    #[test]
    fn a_jittered_grid_keeps_its_order_and_its_period() {
        let grid = Grid::new(5, 0, 30_000).jittered(9_000.0);
        let times: Vec<i64> = (0..2_000).map(|k| grid.time_us(k)).collect();
        assert!(times.windows(2).all(|pair| (12_000..=48_000).contains(&(pair[1] - pair[0]))));
        for now in (times[0]..times[50]).step_by(701) {
            let latest = grid.latest(MonoUs(now)).0;
            assert!(latest <= now && times.iter().all(|at| *at <= latest || *at > now));
        }
        let even = Grid::new(5, 0, 30_000);
        assert!(times.iter().zip(0..).all(|(at, k)| (at - even.time_us(k)).abs() <= 9_000));
    }

    #[test]
    fn a_low_pass_answers_a_step_exponentially() {
        let law = PowerLaw::new(&Spec::builtin("a100").unwrap());
        let settings = Settings { locked: None, limit: Milliwatts(400_000) };
        let line = Timeline::new(Arc::new(law), Arc::new(Programme::constant(0.5).unwrap()), settings);
        let power = |at| f64::from(line.state(MonoUs(at)).power.0);
        let (off, on) = (power(-1), power(0));
        let window = Window { length_us: 40_000, shape: Shape::LowPass, lag_us: 7_000 };
        for after_us in [-5_000, 0, 5_000, 40_000, 100_000, 400_000] {
            let found = (window.mean_mw(&line, MonoUs(7_000 + after_us)) - off) / (on - off);
            let expected = 1.0 - (-(after_us.max(0) as f64) / 40_000.0).exp();
            assert!((found - expected).abs() < 1.5e-3, "{after_us}: {found} for {expected}");
        }
    }
}
