//! The driver's ring of power readings.
//!
//! Rule: reading k is taken at `phase + k × spacing + jitter(k)`, k being any integer, and shows power as
//! smoothed by a filter of two stages up to then, so that trapezoids over the readings add up to the true
//! energy. A drain sees the last `capacity` readings up to its time.
//! Stamps: every few seconds the driver stamps the whole ring anew, so the same reading may carry
//! another time stamp, a fraction of a millisecond off, in a later drain.
//! Cases: the ring is full when the GPU is opened, with readings from before time zero.
//! Source: spacing, jitter, capacity, smoothing and restamping were measured on an H200
//! (docs/simulated-gpu.md).
//! Not done here: the readings that a real ring leaves out under load, about three in a hundred.

use gpumon_core::units::{Milliwatts, MonoUs};

use crate::hash;
use crate::spec::RingSpec;
use crate::timeline::Timeline;

const STREAM_PHASE: u64 = 0x20;
const STREAM_JITTER: u64 = 0x21;
const STREAM_RESTAMP: u64 = 0x22;

/// The filter's second stage, as a share of the first's time constant: it rounds the start of a rise.
const SECOND_STAGE: f64 = 0.3;
/// The filter's memory is cut into slices of this share of its time constant …
const SLICE: f64 = 0.3;
/// … and this many of them, which hold all but a hundredth of it.
const SLICES: usize = 16;

/// One reading of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingReading {
    /// The driver's time stamp, in simulated time.
    pub at: MonoUs,
    /// Power, smoothed.
    pub power: Milliwatts,
}

/// When readings are taken.
#[derive(Clone, Debug)]
pub(crate) struct Ring {
    seed: u64,
    phase_us: i64,
    spacing_us: i64,
    jitter_us: f64,
    capacity: i64,
    slice_us: i64,
    /// Share of each slice of the past, latest first, in a reading.
    weights: [f64; SLICES],
    restamp_every_us: i64,
    restamp_us: f64,
}

impl Ring {
    pub(crate) fn new(spec: &RingSpec, seed: u64) -> Self {
        let spacing_us = ((spec.spacing_ms * 1e3).round() as i64).max(1);
        Self {
            seed,
            phase_us: (hash::bits(seed, STREAM_PHASE, 0) % spacing_us as u64) as i64,
            spacing_us,
            jitter_us: spec.jitter_ms * 1e3,
            capacity: i64::from(spec.capacity),
            slice_us: (spec.smoothing_ms * 1e3 * SLICE).round() as i64,
            weights: weights(),
            restamp_every_us: ((spec.restamp_every_ms * 1e3).round() as i64).max(1),
            restamp_us: spec.restamp_ms * 1e3,
        }
    }

    /// Mean distance of readings, µs.
    pub(crate) fn spacing_us(&self) -> i64 {
        self.spacing_us
    }

    /// Readings that are in the ring at `now` and stamped later than `since`, oldest first, each with the
    /// stamp that it carries now.
    pub(crate) fn drain(&self, now: MonoUs, since: Option<MonoUs>) -> impl Iterator<Item = (i64, MonoUs)> {
        let shift_us = self.shift_us(now);
        let last = self.last_until(now);
        let oldest = last - self.capacity + 1;
        let first = since.map_or(oldest, |since| oldest.max(self.last_until(since.plus_us(-shift_us)) + 1));
        (first..=last).map(move |k| (k, MonoUs(self.time_us(k) + shift_us)))
    }

    /// Power as reading `k` shows it, without noise, mW.
    pub(crate) fn smoothed_mw(&self, line: &Timeline, k: i64) -> f64 {
        let at = MonoUs(self.time_us(k));
        if self.slice_us == 0 {
            return f64::from(line.state(at).power.0);
        }
        let mut end = line.totals(at);
        let mut sum = 0.0;
        for (slice, weight) in (1..).zip(self.weights) {
            let start = line.totals(at.plus_us(-self.slice_us * slice));
            sum += weight * end.since(&start).energy_nj as f64 / self.slice_us as f64;
            end = start;
        }
        sum
    }

    /// The same readings at the times at which they were taken, without noise and without a limit to
    /// their number, newer than `from`.
    pub(crate) fn truth(&self, line: &Timeline, from: MonoUs, to: MonoUs) -> Vec<RingReading> {
        (self.last_until(from) + 1..=self.last_until(to))
            .map(|k| {
                let power = Milliwatts(self.smoothed_mw(line, k).round() as u32);
                RingReading { at: MonoUs(self.time_us(k)), power }
            })
            .collect()
    }

    /// By how much the driver's stamps are off at `now`.
    fn shift_us(&self, now: MonoUs) -> i64 {
        let turn = now.0.div_euclid(self.restamp_every_us);
        (self.restamp_us * (2.0 * hash::uniform(hash::bits(self.seed, STREAM_RESTAMP, turn)) - 1.0)).round()
            as i64
    }

    fn time_us(&self, k: i64) -> i64 {
        let jitter = self.jitter_us * (2.0 * hash::uniform(hash::bits(self.seed, STREAM_JITTER, k)) - 1.0);
        self.phase_us + k * self.spacing_us + jitter.round() as i64
    }

    /// The last reading at or before `at`.
    fn last_until(&self, at: MonoUs) -> i64 {
        // Jitter is less than half a spacing, so the answer is the place on the grid or a neighbour.
        let near = (at.0 - self.phase_us).div_euclid(self.spacing_us);
        [near + 1, near].into_iter().find(|&k| self.time_us(k) <= at.0).unwrap_or(near - 1)
    }
}

/// The response of two first-order stages in a row, which is `exp(-t) - exp(-t / SECOND_STAGE)` with time
/// in units of the first's constant, gathered into slices.
fn weights() -> [f64; SLICES] {
    let so_far = |t: f64| (1.0 - (-t).exp()) - SECOND_STAGE * (1.0 - (-t / SECOND_STAGE).exp());
    let whole = so_far(SLICE * SLICES as f64);
    std::array::from_fn(|i| (so_far(SLICE * (i + 1) as f64) - so_far(SLICE * i as f64)) / whole)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Spec;

    fn ring() -> Ring {
        Ring::new(&Spec::builtin("h200").unwrap().sensors.ring, 42)
    }

    #[test]
    fn readings_are_13_to_27_ms_apart() {
        let ring = ring();
        let spacing: Vec<i64> = (-5_000..5_000).map(|k| ring.time_us(k) - ring.time_us(k - 1)).collect();
        assert!(spacing.iter().all(|us| (13_000..=27_000).contains(us)));
        assert!(spacing.iter().any(|us| *us < 15_000) && spacing.iter().any(|us| *us > 25_000));
        let mean = spacing.iter().sum::<i64>() as f64 / spacing.len() as f64;
        assert!((mean - 20_000.0).abs() < 5.0, "{mean}");
    }

    #[test]
    fn the_last_reading_is_the_last() {
        let ring = ring();
        for at in (-200_000..200_000).step_by(97) {
            let k = ring.last_until(MonoUs(at));
            assert!(ring.time_us(k) <= at && at < ring.time_us(k + 1));
        }
    }

    #[test]
    fn full_drains_hold_the_same_readings_under_stamps_that_move_every_five_seconds() {
        let ring = ring();
        let mut stamps = std::collections::BTreeMap::<i64, Vec<i64>>::new();
        for now in (0..60_000_000).step_by(700_000) {
            for (k, at) in ring.drain(MonoUs(now), None) {
                assert!((at.0 - ring.time_us(k)).abs() <= 400 && ring.time_us(k) <= now);
                stamps.entry(k).or_default().push(at.0);
            }
        }
        let first = *stamps.keys().next().unwrap();
        assert!(stamps.keys().zip(first..).all(|(k, expected)| *k == expected), "none is left out");
        let moved = stamps.values().filter(|s| s.iter().any(|at| *at != s[0])).count();
        // Between drains 0.7 s apart, 1.66 s of readings stay in the ring, which are 83.
        assert!(moved > 11 * 80, "each of eleven restampings meets what stayed in the ring: {moved}");
    }

    #[test]
    fn a_late_drain_gets_what_the_ring_still_holds() {
        let ring = ring();
        let late: Vec<_> = ring.drain(MonoUs(10_000_000), Some(MonoUs(0))).collect();
        assert_eq!(late.len(), 119);
        assert!(late[0].1 > MonoUs(7_500_000));
    }
}
