//! Finds what a GPU's power sensors show, how often and how late, under a load of its own.
//!
//! ```text
//! load     on and off at known times: simulated, CUDA, or a command        phases   when
//!    ↓ edges
//! collect  new values of every sensor meanwhile, and what calls cost (calls)
//!    ↓ values and the polls between which they appeared
//! period   how often, how evenly
//! fit      window, its shape and lag, by least squares against the load as a sensor sees it (wave)
//! ring, counter, own    the driver's ring; the energy counter and its truth; gpumon's own cost
//!    ↓
//! Characterisation (core::timing), which saved keeps for later recordings
//! ```
//!
//! Estimation is pure: it knows values, times and edges, and neither devices nor clocks. What could not be found is
//! absent, and a note says why. Definitions: `gpumon_core::timing`; method, sources and limits: docs/characterize.md.

use std::sync::Arc;

use gpumon_core::clock::{Clock, use_precise_wakeups};
use gpumon_core::timing::{Characterisation, PowerTiming, TIMING_SCHEMA, WindowShape};
use gpumon_core::units::MonoUs;

use crate::device::{Device, ReadError};
use collect::{Collector, Run};
use counter::Step;
use fit::{Fit, NoFit, Seen};
use load::{LoadError, SquareLoad};
use phases::Phase;
use wave::Edge;

mod calls;
mod collect;
pub mod counter;
pub mod fit;
pub mod load;
pub mod own;
pub mod period;
pub mod phases;
mod ring;
pub mod saved;
pub mod wave;

/// Whether the user wants to stop.
pub type Interrupted<'a> = &'a dyn Fn() -> bool;

/// Why a characterisation ended without a result.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The GPU cannot be read.
    #[error("the GPU cannot be read: {0}")]
    Read(#[from] ReadError),
    /// The load does not run.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// It was interrupted.
    #[error("interrupted; nothing was kept")]
    Interrupted,
    /// Nothing under load: there is no power to characterise.
    #[error("this GPU gives no power readings, so there is nothing to characterise")]
    NoPower,
    /// Its own cost could not be measured.
    #[error("the recording that measures gpumon's own cost failed: {0}")]
    Recording(String),
}

/// How to go about it.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Length of the square waves, µs.
    pub squares_us: i64,
    /// Length of the energy counter's run, µs.
    pub counter_us: i64,
    /// How long gpumon's own cost is measured, µs; `None` leaves it out.
    pub own_cost_us: Option<i64>,
}

impl Plan {
    /// The parts of a characterisation of this length; `real` says whether its own cost is measured.
    pub fn of(total_us: i64, real: bool) -> Self {
        let own_us = if real { total_us / 3 } else { 0 };
        let counter_us = total_us / 8;
        Self { squares_us: total_us - own_us - counter_us, counter_us, own_cost_us: real.then_some(own_us) }
    }
}

/// Before the update period is known, polls are this far apart, µs.
const PROBE_POLL_US: i64 = 1_000;
/// Polls between two updates, and the bounds of their distance, µs.
const POLLS_PER_UPDATE: f64 = 80.0;
const POLL_US: [i64; 2] = [250, 1_000];
/// From a start's announcement to the first phase, µs.
const LEAD_US: i64 = 50_000;
/// From the load's preparation to its first phase, µs.
const SETTLE_US: i64 = 2_000_000;
/// The update period where none was found, ms.
const USUAL_UPDATE_MS: f64 = 100.0;

/// Characterises one GPU under a load. `told` is given a word on each step.
pub fn characterise(
    device: Arc<dyn Device>,
    load: &mut dyn SquareLoad,
    clock: &dyn Clock,
    plan: &Plan,
    interrupted: Interrupted<'_>,
    told: &dyn Fn(&str),
) -> Result<Characterisation, Error> {
    use_precise_wakeups();
    let mut collector = Collector::new(device, clock, interrupted)?;
    if !collector.sensors.power_instant
        && !collector.sensors.power_average
        && !collector.sensors.power_samples
    {
        return Err(Error::NoPower);
    }
    told("preparing the load");
    load.prepare()?;
    // What warming up drew is to be out of long windows.
    clock.sleep_until(clock.mono().plus_us(SETTLE_US));
    let found = under_load(&mut collector, load, plan, told);
    load.stop();
    let mut found = found?;
    if let Some(total_us) = plan.own_cost_us {
        told("gpumon's own cost, at idle");
        clock.sleep_until(clock.mono().plus_us(SETTLE_US));
        found.own_cost = Some(own::overhead(&mut collector, total_us)?);
        found.calls = collector.calls.costs();
    }
    Ok(found)
}

fn under_load(
    collector: &mut Collector<'_>,
    load: &mut dyn SquareLoad,
    plan: &Plan,
    told: &dyn Fn(&str),
) -> Result<Characterisation, Error> {
    told("how often sensors change");
    let (probe, _) = run(collector, load, &phases::probe(), |c, until| c.poll(until, PROBE_POLL_US))?;
    let periods = [&probe.instant, &probe.average].into_iter().filter_map(|seen| period::of(seen));
    let update_ms = periods.map(|p| p.update_ms).fold(f64::INFINITY, f64::min);
    let update_ms = if update_ms.is_finite() { update_ms } else { USUAL_UPDATE_MS };
    let poll_us = ((update_ms * 1e3 / POLLS_PER_UPDATE) as i64).clamp(POLL_US[0], POLL_US[1]);

    told("windows and lags, under square loads");
    let begin = collector.next_step()?;
    let squares = phases::squares(update_ms, plan.squares_us);
    let (seen, edges) = run(collector, load, &squares, |c, until| c.poll(until, poll_us))?;
    let end = collector.next_step()?;

    told("the energy counter");
    let counter_phases = phases::for_counter(plan.counter_us);
    let (counted, counter_edges) = match collector.sensors.energy_counter {
        true => run(collector, load, &counter_phases, |c, until| c.poll_counter(until))?,
        false => Default::default(),
    };
    told("what calls cost");
    let capacity = collector.ring_capacity();
    collector.call_each()?;

    let mut found = empty(collector, load.name());
    found.calls = collector.calls.costs();
    estimate(&mut found, &edges, &seen, capacity);
    if collector.sensors.energy_counter {
        let ratio = begin.zip(end).and_then(|(begin, end)| ratio(begin, end, &seen));
        found.counter = counter::timing(&counter_edges, &counted.0, counted.1, ratio);
        match &found.counter {
            None => found.notes.push("energy counter: too few steps were seen".into()),
            Some(timing) if timing.lag_ms.is_none() => {
                found.notes.push("energy counter: no lag fits clearly better than others".into());
            }
            Some(_) => {}
        }
    } else {
        found.notes.push("energy counter: not supported by this GPU".into());
    }
    Ok(found)
}

/// Runs phases of the load while `read` reads until their end. The edges are all that there have been so far: long windows
/// still see what ran before.
fn run<T>(
    collector: &mut Collector<'_>,
    load: &mut dyn SquareLoad,
    phases: &[Phase],
    read: impl FnOnce(&mut Collector<'_>, MonoUs) -> Result<T, Error>,
) -> Result<(T, Vec<Edge>), Error> {
    let at = collector.clock.mono().plus_us(LEAD_US);
    load.start(at, phases)?;
    let seen = read(collector, at.plus_us(phases::length_us(phases)))?;
    let switched = load.finish()?;
    Ok((seen, collector.edges_with(&switched)))
}

/// Fills in timings of power sensors and the ring, and notes on what is not there.
fn estimate(found: &mut Characterisation, edges: &[Edge], seen: &Run, capacity: usize) {
    let sensors = [seen.instant.clone(), seen.average.clone(), seen.ring.clone()];
    let (fits, rise_ms) = fit::fit_all(edges, &sensors);
    if rise_ms > 0.0 {
        found.notes.push(format!(
            "load: its power follows with a time constant of about {rise_ms} ms, which the windows leave out"
        ));
    }
    let [instant, average, ring] = &fits[..] else { return };
    found.instant = polled("instant power", &seen.instant, instant, &mut found.notes);
    found.average = polled("average power", &seen.average, average, &mut found.notes);
    if found.instant.is_none() && found.average.is_some() {
        found
            .notes
            .push("average power: where a driver has neither field, this is the legacy power call".into());
    }
    found.ring = match ring {
        Ok(fit) => ring::timing(&seen.ring, capacity, fit),
        Err(_) if seen.ring.is_empty() => {
            found.notes.push("ring: not supported by this GPU, or empty".into());
            None
        }
        Err(e) => {
            found.notes.push(format!("ring: {e}"));
            None
        }
    };
    for (name, fit) in [("instant power", instant), ("average power", average), ("ring", ring)] {
        if let Ok(fit) = fit {
            found.notes.extend(doubts(name, fit));
        }
    }
}

/// Timing of a polled sensor, or a note.
fn polled(
    name: &str,
    seen: &[Seen],
    fit: &Result<Fit, NoFit>,
    notes: &mut Vec<String>,
) -> Option<PowerTiming> {
    if seen.is_empty() {
        notes.push(format!("{name}: not supported by this GPU"));
        return None;
    }
    let period = period::of(seen);
    match (fit, period) {
        (Ok(fit), Some(period)) => Some(PowerTiming {
            update_ms: period.update_ms,
            update_jitter_ms: period.jitter_ms,
            shape: fit.shape,
            window_ms: fit.window_ms,
            lag_ms: fit.lag_ms,
            coverage: match fit.shape {
                WindowShape::Box => (fit.window_ms / period.update_ms).min(1.0),
                WindowShape::LowPass => 1.0,
            },
            residual_w: fit.residual_w,
        }),
        (Err(e), Some(period)) => {
            notes.push(format!("{name}: changes each {:.1} ms, but {e}", period.update_ms));
            None
        }
        (_, None) => {
            notes.push(format!("{name}: {} new values are too few", seen.len()));
            None
        }
    }
}

/// What makes a fit less sure than it looks.
fn doubts(name: &str, fit: &Fit) -> Vec<String> {
    const POOR: f64 = 0.1;
    const ALIKE: f64 = 1.05;
    let mut doubts = Vec::new();
    if fit.residual_w > POOR * fit.swing_w {
        let share = 100.0 * fit.residual_w / fit.swing_w;
        doubts.push(format!(
            "{name}: the fit leaves {share:.0} % of the load's {:.0} W unexplained",
            fit.swing_w
        ));
    }
    if fit.other_shape < ALIKE {
        doubts.push(format!("{name}: the other shape of window fits almost as well"));
    }
    doubts
}

/// Counter over the integral of the best readings: the ring, else the instant power, else the average.
fn ratio(begin: Step, end: Step, seen: &Run) -> Option<f64> {
    let best = [&seen.ring, &seen.instant, &seen.average].into_iter().find(|seen| !seen.is_empty())?;
    let power: Vec<_> = best.iter().map(|s| ((s.from_ms + s.to_ms) / 2.0, s.watts)).collect();
    counter::ratio(begin, end, &power)
}

fn empty(collector: &Collector<'_>, load: String) -> Characterisation {
    let id = collector.device.identity();
    Characterisation {
        schema: TIMING_SCHEMA,
        gpumon: env!("CARGO_PKG_VERSION").into(),
        simulated: id.simulated,
        uuid: id.uuid.clone(),
        gpu_name: id.name.clone(),
        driver: id.driver.clone(),
        made_wall_us: collector.clock.wall(),
        load,
        instant: None,
        average: None,
        ring: None,
        counter: None,
        calls: Vec::new(),
        own_cost: None,
        notes: Vec::new(),
    }
}
