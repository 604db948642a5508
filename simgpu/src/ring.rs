//! The driver's ring of power readings.
//!
//! Rule: reading k is taken at `phase + k × spacing + jitter(k)`, k being any integer, and is the mean
//! power since reading k − 1, so that the sum of reading × time since the reading before (right
//! rectangles) is the true energy. A drain sees the last `capacity` readings up to its time.
//! Cases: the ring is full when the GPU is opened, with readings from before time zero.
//! Source: spacing, jitter, capacity and the agreement with the energy counter were measured
//! (docs/simulated-gpu.md); that a reading is a mean and not a point is assumed from that agreement.
//! Not done here: the rare gap of two spacings that a real ring has.

use gpumon_core::units::{Milliwatts, MonoUs};

use crate::hash;
use crate::spec::RingSpec;
use crate::timeline::Timeline;

const STREAM_PHASE: u64 = 0x20;
const STREAM_JITTER: u64 = 0x21;

/// One reading of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingReading {
    /// The driver's time stamp, in simulated time.
    pub at: MonoUs,
    /// Mean power since the reading before.
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
        }
    }

    /// Readings that are in the ring at `now` and newer than `since`, oldest first, each with the
    /// span in µs that it stands for.
    pub(crate) fn drain(
        &self,
        now: MonoUs,
        since: Option<MonoUs>,
    ) -> impl Iterator<Item = (i64, MonoUs, i64)> {
        let last = self.last_until(now);
        let oldest = last - self.capacity + 1;
        let first = since.map_or(oldest, |since| oldest.max(self.last_until(since) + 1));
        (first..=last).map(|k| (k, MonoUs(self.time_us(k)), self.time_us(k) - self.time_us(k - 1)))
    }

    /// The same readings without noise and without a limit to their number, newer than `from`.
    pub(crate) fn truth(&self, line: &Timeline, from: MonoUs, to: MonoUs) -> Vec<RingReading> {
        (self.last_until(from) + 1..=self.last_until(to))
            .map(|k| {
                let at = MonoUs(self.time_us(k));
                let mean_mw = line.mean_mw(at, at.0 - self.time_us(k - 1));
                RingReading { at, power: Milliwatts(mean_mw.round() as u32) }
            })
            .collect()
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
    fn overlapping_drains_give_each_reading_once() {
        let ring = ring();
        let mut seen = Vec::new();
        let mut since = None;
        for now in (0..60_000_000).step_by(700_000) {
            for (k, at, _) in ring.drain(MonoUs(now), since) {
                assert!(at.0 <= now);
                seen.push(k);
                since = Some(at);
            }
        }
        let first = seen[0];
        assert!(seen.iter().zip(first..).all(|(k, expected)| *k == expected));
        assert_eq!(seen.len(), seen.last().map_or(0, |last| (last - first + 1) as usize));
        assert!(seen.len() > 3_000);
    }

    #[test]
    fn a_late_drain_gets_what_the_ring_still_holds() {
        let ring = ring();
        let late: Vec<_> = ring.drain(MonoUs(10_000_000), Some(MonoUs(0))).collect();
        assert_eq!(late.len(), 119);
        assert!(late[0].1 > MonoUs(7_500_000));
    }
}
