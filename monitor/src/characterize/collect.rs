//! Reads one GPU's sensors while a load goes on and off.
//!
//! Rule: power is polled on a grid that is uneven on purpose, because on an even one an update of a whole number of polls would
//! always fall at the same place between two of them, and its time be off by up to half a poll. Of each sensor only new values are kept, with the poll before and
//! the poll that showed them; a reading that failed breaks the chain, so that the value after it is not taken for new. The
//! ring is drained by the recorder's own lane beside it. The energy counter, which takes milliseconds and holds up others,
//! is read only where nothing else is.
//! Times are ms since the collection's origin; a call counts as its middle.

use std::sync::Arc;

use gpumon_core::clock::Clock;
use gpumon_core::rows::Record;
use gpumon_core::units::{Milliwatts, MonoUs, WallUs};

use super::calls::Calls;
use super::counter::Step;
use super::fit::Seen;
use super::load::Switched;
use super::wave::Edge;
use super::{Error, Interrupted};
use crate::device::{ACTIVITY_MIN_US, Device, ReadError, Sensors};
use crate::lane::{Lane, Presence, RingLane};

/// A change that was seen by polls further apart than this is not used, ms.
const WIDEST_MS: f64 = 40.0;
/// By how much polls vary in distance, as a share of it, along the golden section.
const VARIED_BY: f64 = 0.5;
const GOLDEN: f64 = 0.618_033_988_749_895;
/// How often a running collection looks whether it is to end, µs.
const LOOK_US: i64 = 100_000;

/// New values of one sensor.
#[derive(Debug, Default)]
struct Track {
    last: Option<(f64, u32)>,
    seen: Vec<Seen>,
}

impl Track {
    fn add(&mut self, at_ms: f64, value: Option<Milliwatts>) {
        let Some(Milliwatts(mw)) = value else {
            self.last = None;
            return;
        };
        if let Some((from_ms, last_mw)) = self.last
            && last_mw != mw
            && at_ms - from_ms <= WIDEST_MS
        {
            self.seen.push(Seen { from_ms, to_ms: at_ms, watts: f64::from(mw) / 1e3 });
        }
        self.last = Some((at_ms, mw));
    }
}

/// What a run of polls has seen.
#[derive(Debug, Default)]
pub(super) struct Run {
    pub(super) instant: Vec<Seen>,
    pub(super) average: Vec<Seen>,
    pub(super) ring: Vec<Seen>,
}

/// Reads one GPU.
pub(super) struct Collector<'a> {
    pub(super) device: Arc<dyn Device>,
    pub(super) sensors: Sensors,
    pub(super) clock: &'a dyn Clock,
    pub(super) origin: MonoUs,
    pub(super) interrupted: Interrupted<'a>,
    pub(super) calls: Calls,
    edges: Vec<Edge>,
}

impl<'a> Collector<'a> {
    pub(super) fn new(
        device: Arc<dyn Device>,
        clock: &'a dyn Clock,
        interrupted: Interrupted<'a>,
    ) -> Result<Self, Error> {
        let sensors = Sensors::probe(device.as_ref())?;
        let (origin, calls) = (clock.mono(), Calls::default());
        Ok(Self { device, sensors, origin, clock, interrupted, calls, edges: Vec::new() })
    }

    fn now_ms(&self) -> f64 {
        self.clock.mono_ns() as f64 / 1e6 - self.origin.0 as f64 / 1e3
    }

    /// All edges up to these, in this collection's time.
    pub(super) fn edges_with(&mut self, switched: &[Switched]) -> Vec<Edge> {
        let edge = |s: &Switched| Edge { at_ms: s.at.since_us(self.origin) as f64 / 1e3, on: s.on };
        self.edges.extend(switched.iter().map(edge));
        self.edges.clone()
    }

    fn go_on(&self) -> Result<(), Error> {
        if (self.interrupted)() { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// Polls power every `every_us` until a moment; the ring is drained on the way.
    pub(super) fn poll(&mut self, until: MonoUs, every_us: i64) -> Result<Run, Error> {
        let (mut instant, mut average) = (Track::default(), Track::default());
        let mut records: Vec<Record> = Vec::new();
        let mut ring = self.sensors.power_samples.then(|| {
            // The lane counts from its origin, so it is given this collection's.
            let start_wall = WallUs(self.clock.wall().0 - self.clock.mono().since_us(self.origin));
            let live = Arc::default();
            let presence = Presence::of(self.device.as_ref());
            RingLane::new(self.device.clone(), 0, self.origin, start_wall, live, presence)
        });
        let began_us = self.clock.mono().since_us(self.origin);
        let (mut due, mut look) = (self.clock.mono(), self.clock.mono());
        let mut turn = 0.0f64;
        while due < until {
            self.clock.sleep_until(due);
            let before_ms = self.now_ms();
            let device = &self.device;
            let power = match self.calls.time(self.clock, "power", || device.power()) {
                Err(lost @ ReadError::Lost(_)) => return Err(lost.into()),
                power => power.unwrap_or_default(),
            };
            let at_ms = (before_ms + self.now_ms()) / 2.0;
            instant.add(at_ms, power.instant);
            average.add(at_ms, power.average);
            if let Some(lane) = &mut ring
                && lane.due() <= self.clock.mono()
            {
                lane.tick(self.clock, &mut records);
            }
            let now = self.clock.mono();
            if now > look {
                self.go_on()?;
                look = now.plus_us(LOOK_US);
            }
            turn += GOLDEN;
            let varied_us = (every_us as f64 * VARIED_BY * (turn.fract() - 0.5)) as i64;
            due = due.plus_us(every_us + varied_us);
            if due < now {
                due = now.plus_us(every_us + varied_us);
            }
        }
        if let Some(lane) = &mut ring {
            lane.finish(self.clock, self.clock.mono(), &mut records);
        }
        let readings = records.into_iter().filter_map(|record| match record {
            Record::Ring(row) if row.mono_us >= began_us => {
                let at_ms = row.mono_us as f64 / 1e3;
                Some(Seen { from_ms: at_ms, to_ms: at_ms, watts: f64::from(row.power_mw) / 1e3 })
            }
            _ => None,
        });
        Ok(Run { instant: instant.seen, average: average.seen, ring: readings.collect() })
    }

    /// Reads the counter again and again until a moment: new values in J, and the smallest difference of two, mJ.
    pub(super) fn poll_counter(&mut self, until: MonoUs) -> Result<(Vec<Seen>, u64), Error> {
        let mut seen = Vec::new();
        let mut smallest = u64::MAX;
        let mut last: Option<(f64, u64)> = None;
        let mut first_mj = None;
        while self.clock.mono() < until {
            self.go_on()?;
            if let Some((at_ms, mj)) = self.counter()? {
                let base_mj = *first_mj.get_or_insert(mj);
                if let Some((from_ms, last_mj)) = last
                    && mj > last_mj
                {
                    smallest = smallest.min(mj - last_mj);
                    seen.push(Seen { from_ms, to_ms: at_ms, watts: mj.saturating_sub(base_mj) as f64 / 1e3 });
                }
                last = Some((at_ms, mj));
            }
            self.clock.sleep_until(self.clock.mono().plus_us(1_000));
        }
        Ok((seen, if smallest == u64::MAX { 0 } else { smallest }))
    }

    /// Waits for the counter's next step, a second at most.
    pub(super) fn next_step(&mut self) -> Result<Option<Step>, Error> {
        let until = self.clock.mono().plus_us(1_000_000);
        let mut last: Option<(f64, u64)> = None;
        while self.clock.mono() < until {
            if let Some((at_ms, mj)) = self.counter()? {
                if let Some((from_ms, last_mj)) = last
                    && last_mj != mj
                {
                    return Ok(Some(Step { at_ms: (from_ms + at_ms) / 2.0, mj }));
                }
                last = Some((at_ms, mj));
            }
            self.clock.sleep_until(self.clock.mono().plus_us(1_000));
        }
        Ok(None)
    }

    fn counter(&mut self) -> Result<Option<(f64, u64)>, Error> {
        if !self.sensors.energy_counter {
            return Ok(None);
        }
        let before_ms = self.now_ms();
        let device = &self.device;
        match self.calls.time(self.clock, "energy_counter", || device.energy_counter()) {
            Err(lost @ ReadError::Lost(_)) => Err(lost.into()),
            Err(_) => Ok(None),
            Ok(energy) => Ok(Some(((before_ms + self.now_ms()) / 2.0, energy.0))),
        }
    }

    /// How many readings the ring holds.
    pub(super) fn ring_capacity(&mut self) -> usize {
        let mut readings = Vec::new();
        // A ring that fails now is found out by the lane.
        let _ = self.device.power_samples(WallUs(0), &mut readings);
        readings.len()
    }

    /// Calls each sensor a number of times, for its cost.
    pub(super) fn call_each(&mut self) -> Result<(), Error> {
        const TIMES: usize = 200;
        const GPM_TIMES: usize = 20;
        const EVERY_US: i64 = 2_000;
        let slow = self.sensors.slow.clone();
        let mut samples = Vec::new();
        for _ in 0..TIMES {
            self.go_on()?;
            let device = &self.device;
            if self.sensors.sm_clock {
                lost(self.calls.time(self.clock, "sm_clock", || device.sm_clock()))?;
            }
            if self.sensors.power_samples {
                samples.clear();
                lost(self.calls.time(self.clock, "ring", || device.power_samples(WallUs(0), &mut samples)))?;
            }
            for &sensor in &slow {
                lost(self.calls.time(self.clock, sensor.name(), || device.slow(sensor)))?;
            }
            self.clock.sleep_until(self.clock.mono().plus_us(EVERY_US));
        }
        for _ in 0..if self.sensors.activity { GPM_TIMES } else { 0 } {
            self.go_on()?;
            let device = &self.device;
            lost(self.calls.time(self.clock, "gpm", || device.activity()))?;
            // Closer together they mean nothing, and may cost less.
            self.clock.sleep_until(self.clock.mono().plus_us(ACTIVITY_MIN_US));
        }
        Ok(())
    }
}

/// Only a lost GPU ends a characterisation.
fn lost<T>(read: Result<T, ReadError>) -> Result<(), Error> {
    match read {
        Err(lost @ ReadError::Lost(_)) => Err(lost.into()),
        _ => Ok(()),
    }
}
