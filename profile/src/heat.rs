//! Brings a card to the temperature of work before anything is measured against its idle power.
//!
//! Rule: a warm card draws more, idle too (0.8 W for each kelvin on an H200), so idle power with a context and points are
//! measured on a card that has just worked: before each of them, unless the GPU was under load within the last minute, the model
//! that is due runs its largest batch that fits on the whole GPU at the highest clock of its points, until the mean temperature of ten
//! seconds is within half a kelvin of that of the ten before, or the longest time is over.
//! Cases: how a sweep that goes on knows whether the card has cooled: it does not ask; a card that is still warm is steady
//! after the shortest time, 20 s. A GPU that tells no temperature is heated for the longest time. Power without a
//! context is that of a GPU at rest, and is measured before. A model that cannot be loaded heats nothing, and that is told.
//! Not done here: holding a temperature.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use gpumon_core::units::{Millijoules, MonoUs, US_PER_S};
use gpumon_monitor::device::SlowSensor;

use crate::protocol::{Bench, MeasureError};
use crate::space::Point;
use crate::stage::StageError;
use crate::workload::{Workload, WorkloadError};

/// A card that was idle for longer has cooled, µs.
const COOLS_US: i64 = 60 * US_PER_S;
/// Time between readings of the temperature, µs.
const TICK_US: i64 = US_PER_S;
/// Half of the shortest heating, µs: the mean of the last one is compared with that of the one before.
const SPAN_US: i64 = 10 * US_PER_S;
/// Two spans' means that differ by less are the same temperature, K.
const SAME_K: f64 = 0.5;

/// A card that was heated.
#[derive(Clone, Debug, PartialEq)]
pub struct Heated {
    /// The model that ran.
    pub model: String,
    /// Its batch size.
    pub batch: u32,
    /// Temperature before, °C.
    pub from_c: Option<f64>,
    /// Temperature under load at the end, °C.
    pub to_c: Option<f64>,
    /// Time, loading included, s.
    pub seconds: f64,
    /// Energy of the GPU over that time, J, by its counter.
    pub joules: Option<f64>,
    /// Whether the temperature had become steady.
    pub steady: bool,
}

impl Heated {
    /// In words.
    pub fn text(&self) -> String {
        let celsius = |c: Option<f64>| c.map_or("unknown".to_owned(), |c| format!("{c:.0} °C"));
        let joules = self.joules.map_or(String::new(), |j| format!(", {:.1} kJ", j / 1e3));
        let moved = if self.steady { "" } else { ", which still moved" };
        format!(
            "heated for {:.0} s{joules} with `{}`, batch {}: from {} to {}{moved}",
            self.seconds,
            self.model,
            self.batch,
            celsius(self.from_c),
            celsius(self.to_c)
        )
    }
}

/// When a card is heated, and for how long at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heat {
    most_us: i64,
    worked: Option<MonoUs>,
}

impl Heat {
    /// At most `most_s`, s; 0 for not at all.
    pub(crate) fn new(most_s: f64) -> Self {
        Self { most_us: (most_s * US_PER_S as f64) as i64, worked: None }
    }

    /// The GPU was under load until now.
    pub(crate) fn worked(&mut self, now: MonoUs) {
        self.worked = Some(now);
    }

    /// Whether the card is to be heated before something is measured.
    fn is_due(&self, now: MonoUs) -> bool {
        self.most_us > 0 && self.worked.is_none_or(|until| now.since_us(until) > COOLS_US)
    }

    /// Heats the card if that is due, with one of these points of the workload. The inner error: it could not be heated.
    pub(crate) fn apply(
        &mut self,
        bench: &mut Bench,
        workload: &mut dyn Workload,
        points: &[Point],
        stop: &AtomicBool,
    ) -> Result<Option<Result<Heated, String>>, MeasureError> {
        if !self.is_due(bench.clock.mono()) {
            return Ok(None);
        }
        let heated = run(bench, workload, points, self.most_us, stop);
        self.worked(bench.clock.mono());
        heated.map(Some)
    }
}

fn run(
    bench: &mut Bench,
    workload: &mut dyn Workload,
    points: &[Point],
    most_us: i64,
    stop: &AtomicBool,
) -> Result<Result<Heated, String>, MeasureError> {
    let (device, clock) = (bench.device, bench.clock);
    let temperature = || device.slow(SlowSensor::Temperature).ok().map(|c| c as f64);
    let (began, from_c, joules) = (clock.mono(), temperature(), device.energy_counter().ok());
    let batch = match load(bench, workload, points)? {
        Ok(batch) => batch,
        Err(why) => return Ok(Err(format!("the card was not heated: `{}` {why}", workload.name()))),
    };
    let (start, mut readings, mut is_steady) = (clock.mono(), Vec::new(), false);
    let ran = workload.run(most_us, TICK_US, &mut |_| {
        readings.extend(temperature().map(|c| (clock.mono(), c)));
        is_steady = steady(start, &readings);
        if is_steady || stop.load(Ordering::SeqCst) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    if let Err(error) = ran {
        return sorted(workload, error);
    }
    // What does not give its memory back shows at the next row.
    let _ = workload.unload();
    let spent = device.energy_counter().ok().zip(joules).and_then(joules_between);
    Ok(Ok(Heated {
        model: workload.name().into(),
        batch,
        from_c,
        to_c: readings.last().map(|(_, c)| *c),
        seconds: clock.mono().since_us(began) as f64 / US_PER_S as f64,
        joules: spent,
        steady: is_steady,
    }))
}

/// Loads the largest batch that fits on the whole GPU; gives its size, or why there is none.
fn load(
    bench: &mut Bench,
    workload: &mut dyn Workload,
    points: &[Point],
) -> Result<Result<u32, String>, MeasureError> {
    let Some(clock) = points.iter().map(|p| p.clock).max() else {
        return Ok(Err("has no points".into()));
    };
    let stage = &mut bench.stage;
    let set = stage.clock(clock).and_then(|_| stage.limit(None)).and_then(|()| stage.whole());
    let seat = match set {
        Ok(seat) => seat,
        Err(why @ StageError::Point(_)) => return Ok(Err(why.to_string())),
        Err(lost @ StageError::Lost(_)) => return Err(MeasureError::Stage(lost)),
    };
    let mut batches: Vec<u32> = points.iter().map(|p| p.batch).collect();
    batches.sort_unstable_by(|a, b| b.cmp(a));
    batches.dedup();
    let mut why = String::new();
    for batch in batches {
        match workload.load(&Point { share: seat.share, batch, clock, limit_w: None }, &seat) {
            Ok(()) => return Ok(Ok(batch)),
            Err(error @ WorkloadError::DoesNotFit(_)) => why = error.to_string(),
            Err(error) => return sorted(workload, error),
        }
    }
    Ok(Err(why))
}

fn sorted<T>(workload: &dyn Workload, error: WorkloadError) -> Result<Result<T, String>, MeasureError> {
    match error {
        WorkloadError::Lost(_) => Err(MeasureError::Workload { model: workload.name().into(), error }),
        error => Ok(Err(error.to_string())),
    }
}

/// Whether a temperature, °C with its times, has stayed the same.
fn steady(start: MonoUs, readings: &[(MonoUs, f64)]) -> bool {
    let Some((end, _)) = readings.last().filter(|(end, _)| end.since_us(start) >= 2 * SPAN_US) else {
        return false;
    };
    let mean = |from_us: i64, to_us: i64| {
        let within = readings.iter().filter(|(at, _)| (from_us..to_us).contains(&end.since_us(*at)));
        let (sum, count) = within.fold((0.0, 0), |(sum, count), (_, c)| (sum + c, count + 1));
        (count > 0).then(|| sum / f64::from(count))
    };
    let (late, early) = (mean(0, SPAN_US), mean(SPAN_US, 2 * SPAN_US));
    late.zip(early).is_some_and(|(late, early)| (late - early).abs() < SAME_K)
}

/// J between two readings of the energy counter, the later one first; `None` if it was set back.
pub(crate) fn joules_between((after, before): (Millijoules, Millijoules)) -> Option<f64> {
    after.0.checked_sub(before.0).map(|mj| mj as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> MonoUs {
        MonoUs(second * US_PER_S)
    }

    #[test]
    fn a_temperature_is_steady_when_two_spans_agree() {
        // 37 °C rising to 60 °C with a time constant of 15 s, in whole degrees: 1 K in 20 s is left after 1.1 minutes.
        let rising: Vec<_> =
            (0..200).map(|s| (at(s), (60.0 - 23.0 * (-(s as f64) / 15.0).exp()).round())).collect();
        let first = (1..rising.len()).find(|n| steady(at(0), &rising[..*n])).unwrap();
        assert!((55..80).contains(&first), "{first}");
        let flickering: Vec<_> = (0..21).map(|s| (at(s), 44.0 + f64::from(s as u8 % 2))).collect();
        assert!(steady(at(0), &flickering) && !steady(at(0), &flickering[..20]));
        assert!(!steady(at(0), &[]));
    }

    #[test]
    fn a_card_is_heated_when_it_has_not_worked_for_a_minute() {
        let mut heat = Heat::new(120.0);
        assert!(heat.is_due(at(0)) && !Heat::new(0.0).is_due(at(0)));
        heat.worked(at(5));
        assert!(!heat.is_due(at(65)) && heat.is_due(at(66)));
    }
}
