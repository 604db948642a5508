//! Energy of any window with a 90 % interval.
//!
//! ```text
//! ring readings    → RingEnergy    smoothing undone, restlessness between readings
//! instant readings → PolledEnergy  lines between values, sampling variance      → where the ring has gaps, or none
//! counter readings → CounterSpan   difference, steps at both edges              → combined with it, if they agree
//! ```
//!
//! Rule: each source gives an energy and variances by their origin. The ring counts wherever there is one, unless what
//! its gaps alone leave open is twice as wide as the interval of instant readings: they see a quarter of the time, and
//! where their updates are in step with the load they take it for calm. The counter is weighed in by inverse variance.
//! If the counter contradicts (by more than 3 deviations of the difference), it is not weighed in, and the interval is
//! widened by the contradiction.
//! The interval is the estimate ± its half width, the root of the sum of the squares of five parts:
//!
//! | part | what it is |
//! |---|---|
//! | `noise` | noise of readings |
//! | `coverage` | power between readings within the window, gaps, readings left out by the driver |
//! | `edge` | power between the readings at the window's edges, which may lie anywhere between two |
//! | `lag` | how well the sensor's delay, and the readings' stamps, are known |
//! | `counter` | steps of the counter as far as it was weighed in, or its contradiction |
//!
//! Cases: energy from the driver's average alone has no interval, because nothing shows what it smears.
//! Each estimator takes one reading at a time and keeps a few; a window costs nothing while readings are not near it.
//!
//! Not done here: the gain of the sensor, which scales everything alike (`calibration`). A load that is in step with
//! the updates of a polled sensor is not noticed.
//! Where the constants come from, and how often the interval holds: docs/energy.md.

use gpumon_core::rows::CounterRow;
use serde::Serialize;

mod counter;
mod filter;
mod noise;
mod polled;
mod ring;
mod timing;

use counter::{CounterEstimate, CounterSpan};
pub use noise::NoiseFloor;
use polled::PolledEnergy;
use ring::RingEnergy;
pub use timing::Timing;

/// The noise of ring readings is never taken to be more than this, W: beyond it, it is load.
const NOISE_MOST_W: f64 = 1.5;
/// Half of the interval that holds 90 % of a normal distribution, in deviations.
const Z90: f64 = 1.645;
/// Deviations of a difference from which on the counter contradicts.
const CONTRADICTS: f64 = 3.0;
/// Readings of the counter that are closer than this many of its steps say nothing beside power readings.
const FEWEST_STEPS: f64 = 4.5;
/// A window whose half width is more than this, %, is called too short.
const TOO_SHORT_PCT: f64 = 5.0;

#[derive(Clone, Copy, Debug, PartialEq)]
struct Reading {
    /// Since the window's start, s.
    at_s: f64,
    power_w: f64,
}

impl Reading {
    fn new(at_us: i64, power_mw: f64) -> Self {
        Self { at_s: at_us as f64 / 1e6, power_w: power_mw / 1e3 }
    }
}

/// Power about a window as a sensor shows it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Shown {
    /// At the window's edges, W.
    edges_w: [f64; 2],
    /// Variance of the readings in the window and near it, W².
    variance_w2: f64,
}

/// Where an energy comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// The driver's ring of readings.
    Ring,
    /// The energy counter.
    Counter,
    /// Readings of the short window.
    Instant,
    /// Readings of the driver's average.
    Average,
}

impl Method {
    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::Counter => "counter",
            Self::Instant => "instant",
            Self::Average => "average",
        }
    }
}

/// Half widths of the 90 % interval by their origin, J; the interval's is the root of the sum of their squares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Parts {
    /// Noise of readings.
    pub noise_j: f64,
    /// Power that lies between readings, in gaps, or in readings that the driver left out.
    pub coverage_j: f64,
    /// The window's edges lie between readings.
    pub edge_j: f64,
    /// The sensor's delay is known only so well.
    pub lag_j: f64,
    /// The energy counter's steps, or its contradiction.
    pub counter_j: f64,
}

impl Parts {
    /// The interval's half width, J.
    pub fn half_j(&self) -> f64 {
        let all = [self.noise_j, self.coverage_j, self.edge_j, self.lag_j, self.counter_j];
        all.iter().map(|part| part * part).sum::<f64>().sqrt()
    }

    pub(crate) fn times(self, factor: f64) -> Self {
        Self {
            noise_j: factor * self.noise_j,
            coverage_j: factor * self.coverage_j,
            edge_j: factor * self.edge_j,
            lag_j: factor * self.lag_j,
            counter_j: factor * self.counter_j,
        }
    }
}

/// What would make a window long enough.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TooShort {
    /// Half width that is aimed at, % of the energy.
    pub for_pct: f64,
    /// Half width now, % of the energy.
    pub now_pct: f64,
    /// Least length of a window over the same load, s.
    pub least_s: f64,
    /// Or how often such a window must be repeated, its energies added up, at phases that differ.
    pub repetitions: u64,
}

/// The energy of a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Energy, J.
    pub j: f64,
    /// The source with the most weight.
    pub method: Method,
    /// Weight of the counter, 0 to 1.
    pub counter_weight: f64,
    /// Half widths of the 90 % interval; absent where it cannot be told.
    pub parts: Option<Parts>,
    /// Set if the interval is wide for the energy.
    pub too_short: Option<TooShort>,
    /// The counter alone, J.
    pub counter_j: Option<f64>,
}

/// Estimates one GPU's energy over one window.
#[derive(Clone, Debug)]
pub struct Estimator {
    length_s: f64,
    ring: RingEnergy,
    instant: PolledEnergy,
    counter: CounterSpan,
}

impl Estimator {
    /// An estimator for a window in µs since the start of the recording; `noise_w` is the [`NoiseFloor`]'s.
    pub fn new(from_us: i64, to_us: i64, timing: &Timing, noise_w: f64) -> Self {
        Self {
            length_s: (to_us - from_us) as f64 / 1e6,
            ring: RingEnergy::new(from_us, to_us, timing.ring, noise_w),
            instant: PolledEnergy::new(from_us, to_us, timing.instant),
            counter: CounterSpan::new(from_us, to_us, timing),
        }
    }

    /// Adds a ring reading, in order of time.
    pub fn ring(&mut self, at_us: i64, power_mw: f64) {
        self.ring.add(at_us, power_mw);
    }

    /// Adds a poll of the short window, in order of time.
    pub fn instant(&mut self, at_us: i64, power_mw: f64) {
        self.instant.add(at_us, power_mw);
    }

    /// Adds a reading of the counter.
    pub fn counter(&mut self, row: &CounterRow) {
        self.counter.add(row);
    }

    /// The estimate; `average_j` is what the driver's average integrates to, for want of anything better.
    pub fn finish(self, average_j: Option<f64>) -> Option<Estimate> {
        let ring = self.ring.finish().map(|r| {
            let parts = Parts {
                noise_j: Z90 * r.variances.noise.sqrt(),
                coverage_j: Z90 * (r.variances.inside + r.gaps).sqrt(),
                edge_j: Z90 * r.variances.edge.sqrt(),
                lag_j: Z90 * r.lag_j,
                counter_j: 0.0,
            };
            (Method::Ring, r.j, parts, r.power, Z90 * r.gaps.sqrt())
        });
        let instant = self.instant.finish().map(|i| {
            let parts = Parts { coverage_j: Z90 * i.unseen.sqrt(), lag_j: Z90 * i.lag_j, ..Parts::default() };
            (Method::Instant, i.j, parts, i.power)
        });
        let sampled = match (ring, instant) {
            (Some((.., gaps_j)), Some(instant)) if instant.2.half_j() < 0.5 * gaps_j => Some(instant),
            (ring, instant) => ring.map(|(method, j, parts, power, _)| (method, j, parts, power)).or(instant),
        };
        let counter = self.counter.energy(sampled.map(|(.., power)| power));
        let says = counter.filter(|c| c.steps >= FEWEST_STEPS || sampled.is_none());
        let (method, j, parts, counter_weight) = match (sampled, says) {
            (Some((method, j, parts, _)), Some(counter)) => combine(method, j, parts, counter),
            (Some((method, j, parts, _)), None) => (method, j, parts, 0.0),
            (None, Some(counter)) => {
                let parts = Parts { counter_j: Z90 * counter.variance.sqrt(), ..Parts::default() };
                (Method::Counter, counter.j, parts, 1.0)
            }
            (None, None) => {
                let method = Method::Average;
                let (parts, too_short, counter_j) = (None, None, None);
                return average_j.map(|j| Estimate {
                    j,
                    method,
                    counter_weight: 0.0,
                    parts,
                    too_short,
                    counter_j,
                });
            }
        };
        let too_short = too_short(j, self.length_s, &parts);
        let counter_j = counter.map(|c| c.j);
        Some(Estimate { j, method, counter_weight, parts: Some(parts), too_short, counter_j })
    }
}

/// Weighs the counter in, or widens the interval by its contradiction.
fn combine(method: Method, j: f64, parts: Parts, counter: CounterEstimate) -> (Method, f64, Parts, f64) {
    let variance = (parts.half_j() / Z90).powi(2);
    let apart_j = (counter.j - j).abs();
    let all = variance + counter.variance;
    if apart_j > CONTRADICTS * all.sqrt() {
        let counter_j = (apart_j - Z90 * counter.variance.sqrt()).max(0.0);
        return (method, j, Parts { counter_j, ..parts }, 0.0);
    }
    let weight = if all > 0.0 { variance / all } else { 0.0 };
    let counter_j = Z90 * weight * counter.variance.sqrt();
    let parts = Parts { counter_j, ..parts.times(1.0 - weight) };
    let method = if weight > 0.5 { Method::Counter } else { method };
    (method, j + weight * (counter.j - j), parts, weight)
}

/// How long a window over the same load must be: what edges, delay and counter add does not grow with its length,
/// noise and coverage grow with its root.
fn too_short(j: f64, length_s: f64, parts: &Parts) -> Option<TooShort> {
    let half_j = parts.half_j();
    let aim = TOO_SHORT_PCT / 100.0;
    if j <= 0.0 || length_s <= 0.0 || half_j <= aim * j {
        return None;
    }
    let power_w = j / length_s;
    let grows = (parts.noise_j.powi(2) + parts.coverage_j.powi(2)) / length_s;
    let stays = half_j * half_j - grows * length_s;
    // (aim × P × T)² = stays + grows × T.
    let square = (aim * power_w).powi(2);
    let least_s = (grows + (grows * grows + 4.0 * square * stays.max(0.0)).sqrt()) / (2.0 * square);
    Some(TooShort {
        for_pct: TOO_SHORT_PCT,
        now_pct: half_j / j * 100.0,
        least_s,
        repetitions: (half_j / (aim * j)).powi(2).ceil() as u64,
    })
}
