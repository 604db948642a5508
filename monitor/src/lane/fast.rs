//! The fast lane: power over the short window, the driver's average, SM clock; 10 Hz unless asked for
//! more, up to 1000.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use gpumon_core::clock::Clock;
use gpumon_core::rows::{EventKind, EventRow, FastRow, Record};
use gpumon_core::units::{Milliwatts, MonoUs};

use super::presence::{Keeper, Presence};
use super::trouble::Trouble;
use super::{Flow, Grid, Lane, Live, Outbox, plausible_ceiling};
use crate::device::{Device, Power, ReadError, Sensors};

/// Samples one GPU's power and SM clock.
pub struct FastLane {
    device: Arc<dyn Device>,
    sensors: Sensors,
    gpu: i32,
    origin: MonoUs,
    grid: Grid,
    live: Arc<Live>,
    ceiling: Milliwatts,
    last: Power,
    power_trouble: Trouble,
    clock_trouble: Trouble,
    keeper: Keeper,
}

impl FastLane {
    /// A lane whose first tick is due at `origin`.
    pub fn new(
        device: Arc<dyn Device>,
        sensors: &Sensors,
        gpu: i32,
        origin: MonoUs,
        rate_hz: f64,
        live: Arc<Live>,
        presence: Arc<Presence>,
    ) -> Self {
        Self {
            ceiling: plausible_ceiling(device.identity().power_limit),
            keeper: Keeper::new(device.clone(), gpu, presence),
            device,
            sensors: sensors.clone(),
            gpu,
            origin,
            grid: Grid::new(origin, rate_hz),
            live,
            last: Power::default(),
            power_trouble: Trouble::new(gpu, "power"),
            clock_trouble: Trouble::new(gpu, "sm_mhz"),
        }
    }

    fn missed(&self, now_us: i64, count: u64, from: MonoUs, out: &mut dyn Outbox) {
        if count > 0 {
            Live::add(&self.live.missed_ticks, count);
            let event = EventRow {
                name: Some(self.name().into()),
                from_us: Some(from.since_us(self.origin)),
                to_us: Some(now_us),
                count: Some(count as i64),
                ..EventRow::new(now_us, Some(self.gpu), EventKind::MissedTicks)
            };
            out.put(event.into());
        }
    }

    /// Power, or why there is none.
    fn read_power(&mut self, now_us: i64, out: &mut dyn Outbox) -> Result<Power, ReadError> {
        match self.device.power() {
            Err(lost @ ReadError::Lost(_)) => Err(lost),
            Err(e) => {
                self.power_trouble.failed(now_us, EventKind::ReadFailed, e.to_string(), out);
                Err(e)
            }
            Ok(power) => {
                let beyond = [power.instant, power.average].into_iter().flatten().find(|p| *p > self.ceiling);
                match (beyond, self.silent(power)) {
                    (Some(p), _) => {
                        self.power_trouble.failed(now_us, EventKind::Implausible, p.to_string(), out);
                    }
                    (None, Some(detail)) => {
                        self.power_trouble.failed(now_us, EventKind::ReadFailed, detail, out);
                    }
                    (None, None) => self.power_trouble.over(out),
                }
                let keep = |p: Option<Milliwatts>| p.filter(|p| *p <= self.ceiling);
                Ok(Power { instant: keep(power.instant), average: keep(power.average), ..Power::default() })
            }
        }
    }

    /// The sensor that answered when it was tried and is absent from a reading.
    fn silent(&self, power: Power) -> Option<String> {
        let is = |works, value: Option<Milliwatts>, why: Option<&str>, name| {
            (works && value.is_none()).then(|| format!("{name}: {}", why.unwrap_or("it gave nothing")))
        };
        let (instant, average) = (self.sensors.power_instant, self.sensors.power_average);
        is(instant, power.instant, power.instant_failed, "power_instant_mw")
            .or_else(|| is(average, power.average, power.average_failed, "power_average_mw"))
    }

    /// The clock, or why there is none.
    fn read_clock(&mut self, now_us: i64, out: &mut dyn Outbox) -> Result<Option<i32>, ReadError> {
        match self.device.sm_clock() {
            Err(lost @ ReadError::Lost(_)) => Err(lost),
            Err(e) => {
                self.clock_trouble.failed(now_us, EventKind::ReadFailed, e.to_string(), out);
                Err(e)
            }
            Ok(clock) => {
                self.clock_trouble.over(out);
                Ok(i32::try_from(clock.0).ok())
            }
        }
    }

    fn sample(&mut self, now: MonoUs, lateness_us: i64, out: &mut dyn Outbox) -> Result<(), ReadError> {
        let now_us = now.since_us(self.origin);
        let has_power = self.sensors.power_instant || self.sensors.power_average;
        let power = if has_power { Some(self.read_power(now_us, out)) } else { None };
        if let Some(Err(lost @ ReadError::Lost(_))) = power {
            return Err(lost);
        }
        let clock = if self.sensors.sm_clock { Some(self.read_clock(now_us, out)) } else { None };
        if let Some(Err(lost @ ReadError::Lost(_))) = clock {
            return Err(lost);
        }
        let any = matches!(power, Some(Ok(_))) || matches!(clock, Some(Ok(_)));
        let failure =
            [power.as_ref().and_then(|p| p.as_ref().err()), clock.as_ref().and_then(|c| c.as_ref().err())]
                .into_iter()
                .flatten()
                .next()
                .filter(|_| !any)
                .map(ReadError::to_string);
        let power = power.and_then(Result::ok).unwrap_or_default();
        let sm_mhz = clock.and_then(Result::ok).flatten();
        let fresh = power != self.last && power != Power::default();
        self.last = power;
        if let Some(p) = power.instant.or(power.average) {
            self.live.power_mw.store(i64::from(p.0), Ordering::Relaxed);
        }
        if let Ok(mut lateness) = self.live.lateness_us.lock() {
            // An auto-resizing histogram takes every value.
            let _ = lateness.record(lateness_us.unsigned_abs());
        }
        Live::add(&self.live.fast_rows, 1);
        self.live.last_us.store(now_us, Ordering::Relaxed);
        out.put(Record::Fast(FastRow {
            gpu: self.gpu,
            mono_us: now_us,
            lateness_us: i32::try_from(lateness_us).unwrap_or(i32::MAX),
            power_instant_mw: power.instant.map(|p| p.0 as i32),
            power_average_mw: power.average.map(|p| p.0 as i32),
            sm_mhz,
            fresh,
        }));
        self.keeper.tick(now, now_us, failure, out);
        if self.keeper.is_away() {
            self.quiet(out);
        }
        Ok(())
    }
}

impl FastLane {
    /// Ends what is told of single sensors: the whole GPU is away.
    fn quiet(&mut self, out: &mut dyn Outbox) {
        self.power_trouble.over(out);
        self.clock_trouble.over(out);
        self.live.power_mw.store(-1, Ordering::Relaxed);
        self.last = Power::default();
    }
}

impl Lane for FastLane {
    fn name(&self) -> &'static str {
        "fast"
    }

    fn due(&self) -> MonoUs {
        self.grid.due()
    }

    fn tick(&mut self, clock: &dyn Clock, out: &mut dyn Outbox) -> Flow {
        let now = clock.mono();
        let Some(tick) = self.grid.arrive(now) else { return Flow::Continue };
        let now_us = now.since_us(self.origin);
        if self.keeper.is_away() {
            self.keeper.pass(tick.missed);
            if !self.keeper.look(now, now_us, out) {
                self.keeper.pass(1);
                return Flow::Continue;
            }
        } else {
            self.missed(now_us, tick.missed, tick.missed_from, out);
        }
        match self.sample(now, tick.lateness_us, out) {
            Ok(()) => Flow::Continue,
            Err(e) => {
                self.quiet(out);
                self.keeper.lost(now, now_us, e.to_string(), out)
            }
        }
    }

    fn finish(&mut self, _clock: &dyn Clock, end: MonoUs, out: &mut dyn Outbox) {
        let (missed, from) = self.grid.finish(end);
        let end_us = end.since_us(self.origin);
        if self.keeper.is_away() {
            self.keeper.pass(missed);
            self.keeper.finish(end_us, out);
        } else {
            self.missed(end_us, missed, from, out);
        }
        self.power_trouble.over(out);
        self.clock_trouble.over(out);
    }
}
