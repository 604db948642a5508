//! The ring lane: the driver's own power readings, 50 a second on Hopper, each once.
//!
//! Rule: every 0.6 s ask for what is newer than a few readings before the last one known. Those
//! few must come back, and what follows them is new. If they do not, the ring has overwritten readings,
//! and the loss is an event. Readings are recognised by their power *and* roughly by their time, because
//! every five seconds the driver stamps the whole ring anew, by up to half a millisecond (measured on an
//! H200): a stamp alone does not identify a reading.
//!
//! The driver stamps with the wall clock, so each drain takes the wall clock's offset to the monotonic
//! clock. A step of the wall clock is an event; in the drain after it, stamps are read by the offset of
//! after or of before the step, whichever puts the reading after what is known and not into the future.
//! Where both do (a step of less than 0.6 s), the later offset counts, so readings just before
//! such a step may be moved by as much as the step.

use std::collections::VecDeque;
use std::sync::Arc;

use gpumon_core::clock::Clock;
use gpumon_core::rows::{EventKind, EventRow, Record, RingRow};
use gpumon_core::units::{Milliwatts, MonoUs, WallUs};

use super::trouble::Trouble;
use super::{Flow, Grid, Lane, Live, Outbox, Presence, plausible_ceiling};
use crate::device::{Device, PowerSample, ReadError};

/// Drains a second; the ring holds over two seconds, and what is not drained a kill loses.
const RATE_HZ: f64 = 1.0 / 0.6;
/// How many known readings must come back.
const OVERLAP: usize = 6;
/// The driver moves stamps by less than this when it stamps the ring anew, µs; readings lie at least 8 ms
/// apart.
const RESTAMP_US: i64 = 3_000;
/// A wall clock that moved against the monotonic clock by more than this between two drains was stepped.
const STEP_US: i64 = 5_000;

/// Collects one GPU's ring readings.
pub struct RingLane {
    device: Arc<dyn Device>,
    gpu: i32,
    origin: MonoUs,
    grid: Grid,
    live: Arc<Live>,
    presence: Arc<Presence>,
    ceiling: Milliwatts,
    /// Wall-clock minus monotonic time at the drain before.
    offset_us: Option<i64>,
    /// The last readings known and when they were taken, µs since the start of the recording, oldest
    /// first; none before the first drain.
    known: VecDeque<(i64, PowerSample)>,
    /// Nothing from before this is wanted: just before the start of the recording.
    start: WallUs,
    /// The last reading known, µs since the start of the recording.
    last_us: i64,
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
        presence: Arc<Presence>,
    ) -> Self {
        Self {
            ceiling: plausible_ceiling(device.identity().power_limit),
            device,
            gpu,
            origin,
            grid: Grid::new(origin.plus_us((1e6 / RATE_HZ) as i64), RATE_HZ),
            live,
            presence,
            offset_us: None,
            known: VecDeque::with_capacity(OVERLAP + 1),
            start: start_wall.plus_us(-1),
            last_us: -1,
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
        let (offset_us, before_us) = self.follow_wall_clock(clock, now_us, out);
        let stepped_us = before_us.map_or(0, |before_us| offset_us - before_us);
        // As stamped then, or as it would be stamped now.
        let stamps = self.known.iter().flat_map(|(at_us, s)| [s.time, WallUs(at_us + offset_us)]);
        let since = stamps.min().map_or(self.start, |oldest| oldest.plus_us(-RESTAMP_US));
        let mut ring = std::mem::take(&mut self.buffer);
        ring.clear();
        let drained = self.device.power_samples(since, &mut ring);
        if drained.is_ok() {
            let first_new = self.first_new(&ring, stepped_us);
            let mut lost = first_new.is_none() && !self.known.is_empty();
            for sample in ring.iter().skip(first_new.unwrap_or(0)) {
                let ways =
                    [Some(offset_us), before_us].into_iter().flatten().map(|offset| sample.time.0 - offset);
                let fits = |at_us: &i64| *at_us > self.last_us && *at_us <= now_us + RESTAMP_US;
                let Some(at_us) = ways.into_iter().find(fits) else { continue };
                if end.is_some_and(|end| at_us >= end.since_us(self.origin)) {
                    break;
                }
                if std::mem::take(&mut lost) {
                    self.lost(at_us, now_us, out);
                }
                self.keep(at_us, *sample, now_us, out);
            }
        }
        self.buffer = ring;
        drained
    }

    /// Where in `ring` the readings begin that follow the known ones; `None` if those are not there.
    fn first_new(&self, ring: &[PowerSample], stepped_us: i64) -> Option<usize> {
        let (_, last) = self.known.back()?;
        let moved_us = |at: usize| ring[at].time.since_us(last.time);
        let same_time = |at: usize| {
            moved_us(at).abs() <= RESTAMP_US
                || (stepped_us != 0 && (moved_us(at) - stepped_us).abs() <= RESTAMP_US)
        };
        let same_power = |at: usize| {
            let before = ring[..=at].iter().rev().map(|s| s.power);
            before.zip(self.known.iter().rev().map(|(_, s)| s.power)).all(|(a, b)| a == b)
        };
        let candidates = (0..ring.len()).filter(|&at| same_time(at) && same_power(at));
        candidates.min_by_key(|&at| moved_us(at).abs()).map(|at| at + 1)
    }

    fn lost(&self, first_us: i64, now_us: i64, out: &mut dyn Outbox) {
        let event = EventRow {
            from_us: Some(self.last_us),
            to_us: Some(first_us),
            detail: Some("the driver's ring no longer held the last readings known".into()),
            ..self.event(now_us, EventKind::RingLost)
        };
        out.put(event.into());
    }

    fn keep(&mut self, at_us: i64, sample: PowerSample, now_us: i64, out: &mut dyn Outbox) {
        self.known.push_back((at_us, sample));
        if self.known.len() > OVERLAP {
            self.known.pop_front();
        }
        self.last_us = at_us;
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
        if self.presence.is_away() {
            self.trouble.over(out);
            return Flow::Continue;
        }
        match self.drain(clock, None, out) {
            Ok(()) => self.trouble.over(out),
            Err(e @ ReadError::Lost(_)) => return self.presence.suspect(e.to_string()),
            Err(e) => {
                let now_us = clock.mono().since_us(self.origin);
                self.trouble.failed(now_us, EventKind::ReadFailed, e.to_string(), out);
            }
        }
        Flow::Continue
    }

    /// Readings up to the end arrive after it, so this waits for the sensor to catch up.
    fn finish(&mut self, clock: &dyn Clock, end: MonoUs, out: &mut dyn Outbox) {
        if self.presence.is_away() {
            self.trouble.over(out);
            return;
        }
        const PUBLISHED_WITHIN_US: i64 = 130_000;
        clock.sleep_until(end.plus_us(PUBLISHED_WITHIN_US));
        if let Err(e) = self.drain(clock, Some(end), out) {
            let now_us = clock.mono().since_us(self.origin);
            self.trouble.failed(now_us, EventKind::ReadFailed, e.to_string(), out);
        }
        self.trouble.over(out);
    }
}
