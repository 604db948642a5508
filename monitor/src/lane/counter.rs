//! The energy counter: at the start, at the end, at window edges and every ten seconds between.
//!
//! The call takes 3 to 17 ms and makes others wait, so it is rare. A counter that went backwards, or
//! forwards by more than the GPU can draw, was reset (driver reload, power gating): a new epoch begins,
//! and differences across epochs are missing, never negative and never 2⁶⁴.

use std::sync::{Arc, Mutex, PoisonError};

use gpumon_core::clock::Clock;
use gpumon_core::rows::{CounterRow, EventKind, EventRow, Record};
use gpumon_core::units::MonoUs;

use super::trouble::Trouble;
use super::{Flow, Grid, Lane, Outbox, Presence, plausible_ceiling};
use crate::device::{Device, ReadError};

/// Between two readings, µs.
pub(crate) const COUNTER_PERIOD_US: i64 = 10_000_000;
const RATE_HZ: f64 = 1e6 / COUNTER_PERIOD_US as f64;

/// Reads one GPU's counter, from whichever thread needs a value.
pub struct CounterReader {
    device: Arc<dyn Device>,
    gpu: i32,
    origin: MonoUs,
    state: Mutex<State>,
    presence: Arc<Presence>,
}

struct State {
    epoch: i32,
    /// The reading before: when, µs, and mJ.
    last: Option<(i64, u64)>,
    trouble: Trouble,
}

impl CounterReader {
    /// A reader whose times count from `origin`.
    pub fn new(device: Arc<dyn Device>, gpu: i32, origin: MonoUs, presence: Arc<Presence>) -> Self {
        let state = State { epoch: 0, last: None, trouble: Trouble::new(gpu, "counter") };
        Self { device, gpu, origin, state: Mutex::new(state), presence }
    }

    /// Reads the counter now.
    pub fn read(&self, clock: &dyn Clock, out: &mut dyn Outbox) -> Flow {
        if self.presence.is_away() {
            return Flow::Continue;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let called = clock.mono();
        let value = self.device.energy_counter();
        let returned = clock.mono();
        let now_us = returned.since_us(self.origin);
        let energy = match value {
            Ok(energy) => energy,
            Err(e @ ReadError::Lost(_)) => return self.presence.suspect(e.to_string()),
            Err(e) => {
                state.trouble.failed(now_us, EventKind::ReadFailed, e.to_string(), out);
                return Flow::Continue;
            }
        };
        state.trouble.over(out);
        if let Some((last_us, last_mj)) = state.last.replace((now_us, energy.0))
            && !self.can_follow(last_mj, energy.0, now_us - last_us)
        {
            state.epoch += 1;
            let detail = format!("the energy counter went from {last_mj} to {} mJ", energy.0);
            let event = EventRow {
                name: Some("counter".into()),
                detail: Some(detail),
                ..EventRow::new(now_us, Some(self.gpu), EventKind::CounterReset)
            };
            out.put(event.into());
        }
        out.put(Record::Counter(CounterRow {
            gpu: self.gpu,
            mono_us: now_us,
            call_us: i32::try_from(returned.since_us(called)).unwrap_or(i32::MAX),
            energy_mj: i64::try_from(energy.0).unwrap_or(i64::MAX),
            epoch: state.epoch,
        }));
        Flow::Continue
    }
}

impl CounterReader {
    /// Whether the GPU can have drawn the difference in that time, give or take a step of the counter.
    fn can_follow(&self, before_mj: u64, after_mj: u64, time_us: i64) -> bool {
        const STEP_US: f64 = 200_000.0;
        let ceiling_mw = f64::from(plausible_ceiling(self.device.identity().power_limit).0);
        let most_mj = ceiling_mw * (time_us as f64 + STEP_US) / 1e6;
        after_mj.checked_sub(before_mj).is_some_and(|drawn_mj| drawn_mj as f64 <= most_mj)
    }
}

/// Reads one GPU's counter on a coarse grid.
pub struct CounterLane {
    reader: Arc<CounterReader>,
    grid: Grid,
}

impl CounterLane {
    /// A lane whose first reading is due at the reader's origin.
    pub fn new(reader: Arc<CounterReader>) -> Self {
        Self { grid: Grid::new(reader.origin, RATE_HZ), reader }
    }
}

impl Lane for CounterLane {
    fn name(&self) -> &'static str {
        "counter"
    }

    fn due(&self) -> MonoUs {
        self.grid.due()
    }

    fn tick(&mut self, clock: &dyn Clock, out: &mut dyn Outbox) -> Flow {
        match self.grid.arrive(clock.mono()) {
            Some(_) => self.reader.read(clock, out),
            None => Flow::Continue,
        }
    }

    fn finish(&mut self, clock: &dyn Clock, _end: MonoUs, out: &mut dyn Outbox) {
        self.reader.read(clock, out);
        self.reader.state.lock().unwrap_or_else(PoisonError::into_inner).trouble.over(out);
    }
}
