//! The latest readings of each GPU, for whoever shows them and keeps none.
//!
//! Rule: the same lanes on the same threads as in a recording, but rows replace those before them. Whoever looks copies
//! what is there and never waits for the driver. A reading is shown for as long as it stays true of the GPU: three
//! periods of its lane and at least [`SHOWN_US`]; then it is absent. So a call that hangs lets its GPU's readings fade.
//! Cases: a GPU that is lost shows nothing at once, and again when it is back. Energy is the sum of the counter's
//! differences within an epoch, so it never falls; what the counter missed between two epochs is missing.
//! Not done here: keeping rows; telling stalls apart from silence.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use gpumon_core::clock::{Clock, use_precise_wakeups};
use gpumon_core::rows::{CounterRow, EventKind, EventRow, FastRow, Record, SlowRow};
use gpumon_core::units::{Millijoules, MonoUs};

use super::drive::{self, EndTime};
use super::watch::Beat;
use super::{Pace, Session};
use crate::lane::{COUNTER_PERIOD_US, Outbox};

/// A reading is shown at least so long, µs.
const SHOWN_US: i64 = 3_000_000;

/// Losses that are counted for each GPU, whether they have happened or not.
pub const LOSSES: &[EventKind] = &[
    EventKind::MissedTicks,
    EventKind::RingLost,
    EventKind::ReadFailed,
    EventKind::Implausible,
    EventKind::GpuLost,
    EventKind::CounterReset,
];

/// What can be said of a GPU at this moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Latest {
    /// Whether the GPU answers.
    pub up: bool,
    /// The last tick of the fast lane.
    pub fast: Option<FastRow>,
    /// The last tick of the slow lane.
    pub slow: Option<SlowRow>,
    /// The last tick of the slow lane that read performance counters.
    pub activity: Option<SlowRow>,
    /// Energy since the first reading of the counter.
    pub energy: Option<Millijoules>,
    /// Readings of the fast lane since the start.
    pub fast_readings: u64,
    /// Readings out of the driver's ring since the start.
    pub ring_readings: u64,
    /// How often each of [`LOSSES`] happened, by its name.
    pub losses: BTreeMap<String, u64>,
}

/// All that is kept of one GPU.
#[derive(Debug, Default)]
struct Kept {
    away: bool,
    fast: Option<FastRow>,
    slow: Option<SlowRow>,
    activity: Option<SlowRow>,
    counter: Option<CounterRow>,
    energy_mj: u64,
    fast_readings: u64,
    ring_readings: u64,
    losses: BTreeMap<String, u64>,
}

/// How long readings are shown, µs.
#[derive(Clone, Copy, Debug)]
struct Shown {
    fast_us: i64,
    slow_us: i64,
}

fn has_activity(row: &SlowRow) -> bool {
    let counters = [
        row.sm_util_pct,
        row.sm_occupancy_pct,
        row.tensor_util_pct,
        row.dram_util_pct,
        row.pcie_tx_mib_per_s,
        row.pcie_rx_mib_per_s,
    ];
    counters.iter().any(Option::is_some)
}

fn has_slow(row: &SlowRow) -> bool {
    let small = [row.mem_mhz, row.temp_c, row.mem_temp_c, row.util_gpu_pct, row.util_mem_pct, row.pstate];
    small.iter().chain(&[row.fan_pct, row.mem_power_mw]).any(Option::is_some)
        || row.mem_used_bytes.or(row.event_reasons).is_some()
}

impl Kept {
    fn new() -> Self {
        let losses = LOSSES.iter().map(|kind| (kind.as_str().to_owned(), 0)).collect();
        Self { losses, ..Self::default() }
    }

    fn take(&mut self, record: Record) {
        match record {
            Record::Fast(row) => {
                self.fast_readings += 1;
                self.fast = Some(row);
            }
            Record::Slow(row) => {
                if has_activity(&row) {
                    self.activity = Some((*row).clone());
                }
                self.slow = Some(*row);
            }
            Record::Counter(row) => self.count(row),
            Record::Ring(_) => self.ring_readings += 1,
            Record::Event(event) => self.happened(&event),
            Record::Process(_) => {}
        }
    }

    fn count(&mut self, row: CounterRow) {
        let before = self.counter.take().filter(|before| before.epoch == row.epoch);
        let drawn_mj = before.map_or(0, |before| row.energy_mj.saturating_sub(before.energy_mj));
        self.energy_mj = self.energy_mj.saturating_add(u64::try_from(drawn_mj).unwrap_or(0));
        self.counter = Some(row);
    }

    fn happened(&mut self, event: &EventRow) {
        match event.kind {
            EventKind::GpuLost => {
                self.away = true;
                (self.fast, self.slow, self.activity) = (None, None, None);
            }
            EventKind::Gap => self.away = false,
            _ => {}
        }
        if let Some(count) = self.losses.get_mut(event.kind.as_str()) {
            *count += event.count.and_then(|n| u64::try_from(n).ok()).unwrap_or(1);
        }
    }

    /// What is true at `now_us`.
    fn at(&self, now_us: i64, shown: Shown) -> Latest {
        let young = |row_us: i64, limit_us: i64| now_us - row_us <= limit_us;
        let fast = self.fast.as_ref().filter(|r| young(r.mono_us, shown.fast_us));
        let slow = self.slow.as_ref().filter(|r| young(r.mono_us, shown.slow_us));
        let activity = self.activity.as_ref().filter(|r| young(r.mono_us, shown.slow_us));
        let fast_read =
            fast.is_some_and(|r| r.power_instant_mw.or(r.power_average_mw).or(r.sm_mhz).is_some());
        let up = !self.away && fast.is_some() && (fast_read || slow.is_some_and(has_slow));
        let counters = Latest {
            fast_readings: self.fast_readings,
            ring_readings: self.ring_readings,
            losses: self.losses.clone(),
            ..Latest::default()
        };
        if !up {
            return counters;
        }
        let counter = self.counter.as_ref().filter(|r| young(r.mono_us, 3 * COUNTER_PERIOD_US));
        Latest {
            up,
            fast: fast.cloned(),
            slow: slow.cloned(),
            activity: activity.cloned(),
            energy: counter.map(|_| Millijoules(self.energy_mj)),
            ..counters
        }
    }
}

/// A lane's way to the readings of its GPU.
struct Keep(Arc<Mutex<Kept>>);

fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Outbox for Keep {
    fn put(&mut self, record: Record) {
        lock(&self.0).take(record);
    }
}

/// Sampling that goes on until this is dropped. Threads whose call into the driver hangs are left behind.
pub struct Observer {
    clock: Arc<dyn Clock>,
    origin: MonoUs,
    end: Arc<EndTime>,
    shown: Shown,
    kept: Vec<Arc<Mutex<Kept>>>,
}

impl Observer {
    /// Starts the threads of a session that was prepared at this pace.
    pub fn start(session: Session, clock: Arc<dyn Clock>, pace: Pace) -> std::io::Result<Self> {
        let period_us = |rate_hz: f64| SHOWN_US.max((3e6 / rate_hz) as i64);
        let shown =
            Shown { fast_us: period_us(session.header.rate_hz), slow_us: period_us(pace.slow_hz.min(1.0)) };
        let kept: Vec<_> = session.live.iter().map(|_| Arc::new(Mutex::new(Kept::new()))).collect();
        let end = Arc::new(EndTime::open());
        for mut group in session.lanes {
            let Some(own) = usize::try_from(group.gpu).ok().and_then(|gpu| kept.get(gpu)) else { continue };
            let (mut outbox, clock, end) = (Keep(own.clone()), clock.clone(), end.clone());
            let beat = Beat::new(&group.label, group.gpu);
            thread::Builder::new().name(group.label.clone()).spawn(move || {
                use_precise_wakeups();
                drive::run(&mut group, clock.as_ref(), &end, &beat, &mut outbox);
            })?;
        }
        Ok(Self { clock, origin: session.origin, end, shown, kept })
    }

    /// What can be said of each GPU now, in the order of the session's header.
    pub fn look(&self) -> Vec<Latest> {
        let now_us = self.clock.mono().since_us(self.origin);
        self.kept.iter().map(|kept| lock(kept).at(now_us, self.shown)).collect()
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.end.set(self.clock.mono());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHOWN: Shown = Shown { fast_us: SHOWN_US, slow_us: SHOWN_US };

    fn fast(mono_us: i64, power_instant_mw: Option<i32>) -> Record {
        Record::Fast(FastRow {
            gpu: 0,
            mono_us,
            lateness_us: 0,
            power_instant_mw,
            power_average_mw: None,
            sm_mhz: None,
            fresh: true,
        })
    }

    fn counter(mono_us: i64, energy_mj: i64, epoch: i32) -> Record {
        Record::Counter(CounterRow { gpu: 0, mono_us, call_us: 0, energy_mj, epoch })
    }

    #[test]
    fn energy_never_falls_and_skips_what_lies_between_epochs() {
        let mut kept = Kept::new();
        kept.take(fast(0, Some(1)));
        assert_eq!(kept.at(0, SHOWN).energy, None, "nothing was read");
        for (mj, epoch, total) in [(5_000, 0, 0), (7_000, 0, 2_000), (100, 1, 2_000), (150, 1, 2_050)] {
            kept.take(counter(0, mj, epoch));
            assert_eq!(kept.at(0, SHOWN).energy, Some(Millijoules(total)));
        }
    }

    #[test]
    fn readings_fade_and_a_lost_gpu_shows_none() {
        let mut kept = Kept::new();
        assert!(!kept.at(0, SHOWN).up);
        kept.take(fast(1_000_000, Some(70_000)));
        assert!(kept.at(1_000_000 + SHOWN_US, SHOWN).up);
        let faded = kept.at(1_000_001 + SHOWN_US, SHOWN);
        assert!(!faded.up && faded.fast.is_none());
        kept.take(EventRow::new(5_000_000, Some(0), EventKind::GpuLost).into());
        let lost = kept.at(1_000_000, SHOWN);
        assert!(!lost.up && lost.fast.is_none() && lost.losses["gpu_lost"] == 1);
        kept.take(EventRow::new(6_000_000, Some(0), EventKind::Gap).into());
        kept.take(fast(6_000_000, Some(70_000)));
        assert!(kept.at(6_000_000, SHOWN).up);
        kept.take(fast(6_100_000, None));
        assert!(!kept.at(6_100_000, SHOWN).up, "ticks at which nothing could be read");
    }
}
