//! The ring lane: the driver's own power readings, 50 a second on Hopper, each once.
//!
//! Rule: every half second ask for what is newer than the reading *before* the last one known. The last
//! one must come back; if it does not, the ring has overwritten readings and the loss is an event. What
//! comes back is told apart by the driver's time stamp alone.
//!
//! The driver stamps with the wall clock. Its offset to the monotonic clock is taken at each drain; a
//! step of the wall clock moves what is asked for by as much, and is an event.

use std::sync::Arc;

use gpumon_core::clock::Clock;
use gpumon_core::rows::{EventKind, EventRow, Record, RingRow};
use gpumon_core::units::{Milliwatts, MonoUs, WallUs};

use super::trouble::Trouble;
use super::{Flow, Grid, Lane, Live, Outbox, plausible_ceiling};
use crate::device::{Device, PowerSample, ReadError};

/// Drains a second; the ring holds over two seconds.
const RATE_HZ: f64 = 2.0;
/// A wall clock that moved against the monotonic clock by more than this between two drains was stepped.
const STEP_US: i64 = 5_000;

/// Collects one GPU's ring readings.
pub struct RingLane {
    device: Arc<dyn Device>,
    gpu: i32,
    origin: MonoUs,
    grid: Grid,
    live: Arc<Live>,
    ceiling: Milliwatts,
    /// Wall-clock minus monotonic time at the drain before.
    offset_us: Option<i64>,
    /// The last two time stamps known, older first; both the start of the recording at first.
    known: [WallUs; 2],
    seen_any: bool,
    buffer: Vec<PowerSample>,
    trouble: Trouble,
}

impl RingLane {
    /// A lane that keeps readings from `origin` on; `start_wall` is the wall-clock time at `origin`.
    pub fn new(
        device: Arc<dyn Device>,
        gpu: i32,
        origin: MonoUs,
        start_wall: WallUs,
        live: Arc<Live>,
    ) -> Self {
        Self {
            ceiling: plausible_ceiling(device.identity().power_limit),
            device,
            gpu,
            origin,
            grid: Grid::new(origin.plus_us((1e6 / RATE_HZ) as i64), RATE_HZ),
            live,
            offset_us: None,
            known: [start_wall.plus_us(-1); 2],
            seen_any: false,
            buffer: Vec::with_capacity(128),
            trouble: Trouble::new(gpu, "ring"),
        }
    }

    fn event(&self, now_us: i64, kind: EventKind) -> EventRow {
        EventRow { name: Some(self.name().into()), ..EventRow::new(now_us, Some(self.gpu), kind) }
    }

    fn follow_wall_clock(&mut self, clock: &dyn Clock, now_us: i64, out: &mut dyn Outbox) -> i64 {
        let offset_us = clock.wall().0 - clock.mono().0;
        let step_us = offset_us - self.offset_us.unwrap_or(offset_us);
        self.offset_us = Some(offset_us);
        if step_us.abs() > STEP_US {
            self.known = self.known.map(|t| t.plus_us(step_us));
            let detail = format!("the wall clock moved by {step_us} µs against the monotonic clock");
            let event = EventRow {
                count: Some(step_us),
                detail: Some(detail),
                ..self.event(now_us, EventKind::ClockStep)
            };
            out.put(event.into());
        }
        offset_us
    }

    fn drain(
        &mut self,
        clock: &dyn Clock,
        end: Option<MonoUs>,
        out: &mut dyn Outbox,
    ) -> Result<(), ReadError> {
        let now_us = clock.mono().since_us(self.origin);
        let offset_us = self.follow_wall_clock(clock, now_us, out);
        self.buffer.clear();
        self.device.power_samples(self.known[0], &mut self.buffer)?;
        let [_, last] = self.known;
        let overlaps = self.buffer.iter().any(|s| s.time == last);
        let mut new = std::mem::take(&mut self.buffer);
        new.retain(|s| s.time > last);
        new.dedup_by_key(|s| s.time);
        if self.seen_any
            && !overlaps
            && let Some(first) = new.first()
        {
            let to_mono = |t: WallUs| t.0 - offset_us - self.origin.0;
            let event = EventRow {
                from_us: Some(to_mono(last)),
                to_us: Some(to_mono(first.time)),
                detail: Some("the driver's ring no longer held the last reading known".into()),
                ..self.event(now_us, EventKind::RingLost)
            };
            out.put(event.into());
        }
        for sample in &new {
            let mono_us = sample.time.0 - offset_us - self.origin.0;
            if end.is_some_and(|end| mono_us >= end.since_us(self.origin)) {
                break;
            }
            self.known = [self.known[1], sample.time];
            self.seen_any = true;
            if sample.power > self.ceiling {
                self.trouble.failed(now_us, EventKind::Implausible, sample.power.to_string(), out);
                continue;
            }
            Live::add(&self.live.ring_rows, 1);
            out.put(Record::Ring(RingRow {
                gpu: self.gpu,
                time: sample.time,
                mono_us,
                power_mw: sample.power.0 as i32,
            }));
        }
        self.buffer = new;
        Ok(())
    }
}

impl Lane for RingLane {
    fn name(&self) -> &'static str {
        "ring"
    }

    fn due(&self) -> MonoUs {
        self.grid.due()
    }

    fn tick(&mut self, clock: &dyn Clock, out: &mut dyn Outbox) -> Flow {
        if self.grid.arrive(clock.mono()).is_none() {
            return Flow::Continue;
        }
        match self.drain(clock, None, out) {
            Ok(()) => self.trouble.over(out),
            Err(ReadError::Lost(_)) => return Flow::Stop,
            Err(e) => {
                let now_us = clock.mono().since_us(self.origin);
                self.trouble.failed(now_us, EventKind::ReadFailed, e.to_string(), out);
            }
        }
        Flow::Continue
    }

    /// Readings up to the end arrive after it, so this waits for the sensor to catch up.
    fn finish(&mut self, clock: &dyn Clock, end: MonoUs, out: &mut dyn Outbox) {
        const PUBLISHED_WITHIN_US: i64 = 130_000;
        clock.sleep_until(end.plus_us(PUBLISHED_WITHIN_US));
        if let Err(e) = self.drain(clock, Some(end), out) {
            let now_us = clock.mono().since_us(self.origin);
            self.trouble.failed(now_us, EventKind::ReadFailed, e.to_string(), out);
        }
        self.trouble.over(out);
    }
}
