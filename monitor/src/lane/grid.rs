//! Deadlines on an absolute grid.
//!
//! Rule: tick k is due at start + k / rate, for ever; what happens to one tick never moves another.
//! Whoever arrives late takes the latest tick that is due, and those before it are missed. So ticks
//! taken plus ticks missed is always the number of deadlines that have passed.

use gpumon_core::units::MonoUs;

/// A grid of deadlines and how far it has been used.
#[derive(Clone, Debug)]
pub struct Grid {
    start: MonoUs,
    rate_hz: f64,
    next: u64,
}

/// A tick that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tick {
    /// How long after its deadline, µs.
    pub lateness_us: i64,
    /// Ticks missed before it.
    pub missed: u64,
    /// Deadline of the first missed tick, if any.
    pub missed_from: MonoUs,
}

impl Grid {
    /// A grid whose first tick is due at `start`.
    pub fn new(start: MonoUs, rate_hz: f64) -> Self {
        Self { start, rate_hz, next: 0 }
    }

    /// When the next tick is due.
    pub fn due(&self) -> MonoUs {
        self.deadline(self.next)
    }

    /// Takes the latest tick due at `now`; `None` when none is.
    pub fn arrive(&mut self, now: MonoUs) -> Option<Tick> {
        let missed_from = self.due();
        if now < missed_from {
            return None;
        }
        let current = self.latest_due(now);
        let missed = current - self.next;
        self.next = current + 1;
        Some(Tick { lateness_us: now.since_us(self.deadline(current)), missed, missed_from })
    }

    /// Gives up the ticks due before `end`: how many there were, and when the first was due.
    pub fn finish(&mut self, end: MonoUs) -> (u64, MonoUs) {
        let from = self.due();
        if from >= end {
            return (0, from);
        }
        let last = self.latest_due(end.plus_us(-1));
        let missed = last + 1 - self.next;
        self.next = last + 1;
        (missed, from)
    }

    fn deadline(&self, k: u64) -> MonoUs {
        self.start.plus_us((k as f64 * 1e6 / self.rate_hz).round() as i64)
    }

    /// The last tick due at or before `now`, which is not before the next one's deadline.
    fn latest_due(&self, now: MonoUs) -> u64 {
        let estimate = (now.since_us(self.start) as f64 * self.rate_hz / 1e6) as u64;
        let mut k = estimate.max(self.next);
        while self.deadline(k + 1) <= now {
            k += 1;
        }
        while k > self.next && self.deadline(k) > now {
            k -= 1;
        }
        k
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn late_arrivals_skip_and_never_burst() {
        let mut grid = Grid::new(MonoUs(1_000), 1_000.0);
        assert_eq!(grid.arrive(MonoUs(999)), None);
        let tick = |g: &mut Grid, t| g.arrive(MonoUs(t)).map(|t| (t.lateness_us, t.missed));
        assert_eq!(tick(&mut grid, 1_050), Some((50, 0)));
        assert_eq!(tick(&mut grid, 5_100), Some((100, 3)), "ticks at 2, 3 and 4 ms are gone");
        assert_eq!(tick(&mut grid, 5_200), None, "no burst");
        assert_eq!(grid.due(), MonoUs(6_000), "the grid has not moved");
    }

    proptest! {
        #[test]
        fn taken_and_missed_add_up(rate in 0.5f64..1000.0, steps in proptest::collection::vec(0i64..50_000, 1..200)) {
            let mut grid = Grid::new(MonoUs(0), rate);
            let (mut now, mut taken, mut missed) = (0, 0, 0);
            for step in steps {
                now += step;
                if let Some(tick) = grid.arrive(MonoUs(now)) {
                    prop_assert!(tick.lateness_us >= 0 && tick.lateness_us as f64 <= 1e6 / rate + 1.0);
                    taken += 1;
                    missed += tick.missed;
                }
            }
            missed += grid.finish(MonoUs(now + 1)).0;
            let passed = (0..).take_while(|&k| (f64::from(k) * 1e6 / rate).round() as i64 <= now).count() as u64;
            prop_assert_eq!(taken + missed, passed);
        }
    }
}
