//! The ring lane: the driver's own power readings, 50 a second on Hopper, each once.
//!
//! Rule: every half second ask for what is newer than the reading *before* the last one known. The last
//! one must come back; if it does not, the ring has overwritten readings and the loss is an event. What
//! comes back is told apart by the driver's time stamp alone.
//!
//! The driver stamps with the wall clock, so each drain takes the wall clock's offset to the monotonic
//! clock. A step of the wall clock is an event; in the drain after it, readings carry stamps of before
//! and of after the step, and each is read in whichever way puts it after what is known and not into the
//! future. Where both ways do (a step of less than half a second), the later offset counts, so the
//! readings just before such a step are moved by as much as the step.

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
    /// The last two time stamps known, older first; both just before the start of the recording at first.
    known: [WallUs; 2],
    /// The last reading known, µs since the start of the recording.
    last_us: i64,
    /// Whether `known` are stamps of readings, which must come back.
    seen_any: bool,
    /// Stamps of before the last step of the wall clock that have been read.
    stale: Vec<WallUs>,
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
            last_us: -1,
            seen_any: false,
            stale: Vec::new(),
            buffer: Vec::with_capacity(128),
            trouble: Trouble::new(gpu, "ring"),
        }
    }

    fn event(&self, now_us: i64, kind: EventKind) -> EventRow {
        EventRow { name: Some(self.name().into()), ..EventRow::new(now_us, Some(self.gpu), kind) }
    }

    /// The wall clock's offset now, and before if it was stepped since the last drain.
    fn follow_wall_clock(
        &mut self,
        clock: &dyn Clock,
        now_us: i64,
        out: &mut dyn Outbox,
    ) -> (i64, Option<i64>) {
        let offset_us = clock.wall().0 - clock.mono().0 + self.origin.0;
        let before_us = self.offset_us.replace(offset_us).unwrap_or(offset_us);
        let step_us = offset_us - before_us;
        if step_us.abs() <= STEP_US {
            return (offset_us, None);
        }
        let detail = format!("the wall clock moved by {step_us} µs against the monotonic clock");
        let event = EventRow {
            count: Some(step_us),
            detail: Some(detail),
            ..self.event(now_us, EventKind::ClockStep)
        };
        out.put(event.into());
        (offset_us, Some(before_us))
    }

    fn drain(
        &mut self,
        clock: &dyn Clock,
        end: Option<MonoUs>,
        out: &mut dyn Outbox,
    ) -> Result<(), ReadError> {
        let now_us = clock.mono().since_us(self.origin);
        let (offset_us, offset_before_us) = self.follow_wall_clock(clock, now_us, out);
        let [since, last] = self.known;
        let since =
            offset_before_us.map_or(since, |before_us| since.min(since.plus_us(offset_us - before_us)));
        self.buffer.clear();
        self.device.power_samples(since, &mut self.buffer)?;
        let overlaps = self.buffer.iter().any(|s| s.time == last);

        let mut new: Vec<(i64, PowerSample)> = Vec::with_capacity(self.buffer.len());
        for sample in &self.buffer {
            let at_us = |offset_us: i64| sample.time.0 - offset_us;
            let is_new = |at_us: &i64| *at_us > self.last_us && *at_us <= clock.mono().since_us(self.origin);
            let ways = [Some(at_us(offset_us)), offset_before_us.map(at_us)];
            let is_known = match offset_before_us {
                None => sample.time <= last || self.stale.contains(&sample.time),
                Some(_) => false,
            };
            if let Some(at_us) = ways.into_iter().flatten().find(is_new).filter(|_| !is_known) {
                new.push((at_us, *sample));
            }
        }
        new.sort_by_key(|(at_us, _)| *at_us);
        new.dedup_by_key(|(at_us, _)| *at_us);

        if self.seen_any
            && !overlaps
            && offset_before_us.is_none()
            && let Some((first_us, _)) = new.first()
        {
            let event = EventRow {
                from_us: Some(self.last_us),
                to_us: Some(*first_us),
                detail: Some("the driver's ring no longer held the last reading known".into()),
                ..self.event(now_us, EventKind::RingLost)
            };
            out.put(event.into());
        }
        for (at_us, sample) in &new {
            if end.is_some_and(|end| *at_us >= end.since_us(self.origin)) {
                break;
            }
            self.keep(*at_us, *sample, now_us, out);
        }
        if offset_before_us.is_some() {
            // Stamps of before the step must neither come back nor hide those of after it.
            self.known = [WallUs(self.last_us + offset_us); 2];
            self.seen_any = false;
            self.stale = new.iter().map(|(_, sample)| sample.time).collect();
        }
        Ok(())
    }

    fn keep(&mut self, at_us: i64, sample: PowerSample, now_us: i64, out: &mut dyn Outbox) {
        self.known = [self.known[1], sample.time];
        self.last_us = at_us;
        self.seen_any = true;
        if sample.power > self.ceiling {
            self.trouble.failed(now_us, EventKind::Implausible, sample.power.to_string(), out);
            return;
        }
        Live::add(&self.live.ring_rows, 1);
        out.put(Record::Ring(RingRow {
            gpu: self.gpu,
            time: sample.time,
            mono_us: at_us,
            power_mw: sample.power.0 as i32,
        }));
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
