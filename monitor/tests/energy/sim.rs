//! Loads, recordings of simulated GPUs and trials against their truth, for the test and the bench of energy.
//!
//! A programme is drawn from a seed; a recording of it holds many windows at random phases. The counter is read at
//! each window's edges, as the recorder does for marks: the call at the start returns at the edge, the one at the end
//! begins there.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    dead_code,
    reason = "tests report by panicking"
)]

use std::sync::Arc;

use gpumon_core::clock::{Clock, VirtualClock};
use gpumon_core::rows::{CounterRow, FastRow, Record, RingRow};
use gpumon_core::timing::{Characterisation, CounterTiming, RingTiming, TIMING_SCHEMA, WindowShape};
use gpumon_core::units::{MonoUs, WallUs};
use gpumon_monitor::device::Device;
use gpumon_monitor::device::sim;
use gpumon_monitor::energy::{Estimate, Estimator, NoiseFloor, Timing};
use gpumon_monitor::record::{Config, Session};
use gpumon_simgpu::{Change, Phase, Programme, Spec};

pub const SECOND: i64 = 1_000_000;
pub const LENGTHS_MS: [i64; 6] = [50, 100, 200, 500, 1_000, 5_000];
pub const KINDS: [Kind; 5] = [Kind::Square, Kind::Step, Kind::Ramp, Kind::Random, Kind::Bursts];

/// Length of a recording; windows lie well within it.
const RECORDED_US: i64 = 24 * SECOND;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// On 10 to 500 ms, off 10 to 500 ms, one level.
    Square,
    /// Any level for 0.2 to 3 s, then any other.
    Step,
    /// From any level evenly to any other in 0.2 to 5 s, in steps of 1 ms.
    Ramp,
    /// Any level, or nothing, for 10 to 100 ms each.
    Random,
    /// Two levels by turns for 3 ms to 1 s each.
    Bursts,
    /// A sine with a period of 60 ms to 3 s; it was tried once everything was settled.
    Sine,
    /// On and off 10 to 30 ms each: faster than the ring shows. Known to be beyond the interval.
    Flicker,
}

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn even(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((x ^ (x >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.even()
    }

    /// A time in µs, its logarithm even between `low` and `high` ms.
    fn time_us(&mut self, low: f64, high: f64) -> i64 {
        (1e3 * low * (high / low).powf(self.even())).round() as i64
    }
}

/// A load of this kind that goes on for longer than a recording.
pub fn programme(kind: Kind, random: &mut Random) -> Programme {
    let mut phases = Vec::new();
    let mut push = |duration_us, level| phases.push(Phase { duration_us, level, context: true });
    let mut level = random.between(0.0, 0.6);
    let mut so_far_us = 0;
    let (low, high) = (random.between(0.0, 0.2), random.between(0.3, 0.65));
    if kind == Kind::Square {
        let (on_us, off_us) = (random.time_us(10.0, 500.0), random.time_us(10.0, 500.0));
        return Programme::square(on_us, off_us, random.between(0.15, 0.65)).unwrap();
    }
    if kind == Kind::Flicker {
        let (on_us, off_us) = (random.time_us(10.0, 30.0), random.time_us(10.0, 30.0));
        return Programme::square(on_us, off_us, random.between(0.15, 0.65)).unwrap();
    }
    let mut phases_are_even = true;
    let sine_us = if kind == Kind::Sine { random.time_us(60.0, 3_000.0) } else { 1 };
    while so_far_us < RECORDED_US + 5 * SECOND {
        match kind {
            Kind::Square | Kind::Flicker => {}
            Kind::Sine => {
                let turn = std::f64::consts::TAU * so_far_us as f64 / sine_us as f64;
                push(2_000, (low + high) / 2.0 + (high - low) / 2.0 * turn.sin());
                so_far_us += 2_000;
            }
            Kind::Step => {
                let us = random.time_us(200.0, 3_000.0);
                push(us, random.between(0.0, 0.6));
                so_far_us += us;
            }
            Kind::Ramp => {
                let (us, to) = (random.time_us(200.0, 5_000.0), random.between(0.0, 0.6));
                let steps = us / 1_000;
                for step in 0..steps {
                    push(1_000, level + (to - level) * (step as f64 + 0.5) / steps as f64);
                }
                level = to;
                so_far_us += steps * 1_000;
            }
            Kind::Bursts => {
                let us = random.time_us(3.0, 1_000.0);
                push(us, if phases_are_even { high } else { low });
                phases_are_even = !phases_are_even;
                so_far_us += us;
            }
            Kind::Random => {
                let us = random.time_us(10.0, 100.0);
                push(us, if random.even() < 0.3 { 0.0 } else { random.between(0.0, 0.65) });
                so_far_us += us;
            }
        }
    }
    Programme::steps(&phases, true).unwrap()
}

/// One trial: a window's truth and what is said about it.
pub struct Trial {
    pub truth_j: f64,
    pub estimate: Option<Estimate>,
    /// The driver's average, or its legacy call where there is none, integrated.
    pub legacy_j: f64,
}

/// What to try.
#[derive(Clone, Copy)]
pub struct Setup<'a> {
    /// TOML of the GPU.
    pub gpu: &'a str,
    pub timing: Timing,
    /// Whether estimates get the counter.
    pub counter: bool,
    /// Share of the ring's readings above the recording's mean power that are left out, as a busy driver does.
    pub left_out: f64,
    pub seed: u64,
    /// Recordings, and windows in each.
    pub recordings: usize,
    pub windows: usize,
}

/// All trials of one kind of load, a list for each window length.
pub fn trials(setup: &Setup<'_>, kind: Kind) -> Vec<Vec<Trial>> {
    let mut random = Random(setup.seed.wrapping_mul(1_000_003) ^ (kind as u64) << 40);
    let mut all: Vec<Vec<Trial>> = LENGTHS_MS.iter().map(|_| Vec::new()).collect();
    for _ in 0..setup.recordings {
        let gpu_seed = (random.even() * 1e9) as u64;
        let toml = format!("seed = {gpu_seed}\n{}", setup.gpu);
        record(setup, &toml, &programme(kind, &mut random), &mut random, &mut all);
    }
    all
}

fn record(setup: &Setup<'_>, toml: &str, load: &Programme, random: &mut Random, all: &mut [Vec<Trial>]) {
    let spec = Spec::parse(toml, &mut |_| Err("no files here".into())).unwrap();
    let clock = Arc::new(VirtualClock::new(WallUs(1_800_000_000_000_000)));
    clock.set(MonoUs(77 * SECOND));
    let devices = sim::fleet(&spec, &(clock.clone() as Arc<dyn Clock>));
    devices[0].gpu().apply(MonoUs(0), Change::Load(Arc::new(load.clone()))).unwrap();
    let opened: Vec<Arc<dyn Device>> = devices.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
    let config = Config { rate_hz: 10.0, command: vec![], host: "test".into() };
    let mut session = Session::prepare(&opened, clock.as_ref(), &config).unwrap();
    let origin = MonoUs(session.origin().since_us(devices[0].opened()));
    let mut rows = Vec::new();
    session.simulate(&clock, RECORDED_US, &mut rows);
    let (mut ring, mut fast) = (Vec::new(), Vec::new());
    for row in rows {
        match row {
            Record::Ring(row) => ring.push(row),
            Record::Fast(row) => fast.push(row),
            _ => {}
        }
    }
    let mean_mw = ring.iter().map(|r: &RingRow| f64::from(r.power_mw)).sum::<f64>() / ring.len() as f64;
    ring.retain(|r| f64::from(r.power_mw) < mean_mw || random.even() >= setup.left_out);
    let mut floor = NoiseFloor::default();
    ring.iter().for_each(|r| floor.add(r.mono_us, f64::from(r.power_mw)));
    let noise_w = floor.noise_w();
    for (length_ms, trials) in LENGTHS_MS.iter().zip(all) {
        for _ in 0..setup.windows {
            let length_us = length_ms * 1_000;
            let from_us = random.between(2e6, (RECORDED_US - length_us) as f64 - 2e6) as i64;
            let window = (from_us, from_us + length_us);
            let cost_us = (1e3 * random.between(3.0, 12.0)) as i64;
            let counter = |called_us: i64| {
                let reading = devices[0].gpu().energy_counter(origin.plus_us(called_us));
                let call_us = cost_us as i32;
                let energy_mj = reading.value.unwrap().0 as i64;
                CounterRow { gpu: 0, mono_us: called_us + cost_us, call_us, energy_mj, epoch: 0 }
            };
            let counters =
                if setup.counter { vec![counter(window.0 - cost_us), counter(window.1)] } else { vec![] };
            let truth_mj =
                devices[0].gpu().true_energy_mj(origin.plus_us(window.0), origin.plus_us(window.1));
            trials.push(Trial {
                truth_j: truth_mj / 1e3,
                estimate: estimate(window, &setup.timing, noise_w, &ring, &fast, &counters),
                legacy_j: legacy(window, &fast),
            });
        }
    }
}

fn estimate(
    (from_us, to_us): (i64, i64),
    timing: &Timing,
    noise_w: f64,
    ring: &[RingRow],
    fast: &[FastRow],
    counters: &[CounterRow],
) -> Option<Estimate> {
    let mut estimator = Estimator::new(from_us, to_us, timing, noise_w);
    ring.iter().for_each(|r| estimator.ring(r.mono_us, f64::from(r.power_mw)));
    for row in fast {
        if let Some(mw) = row.power_instant_mw {
            estimator.instant(row.mono_us, f64::from(mw));
        }
    }
    counters.iter().for_each(|row| estimator.counter(row));
    estimator.finish(None)
}

/// What the usual loop does: each value of the average (or of the only power there is) holds until the next.
fn legacy((from_us, to_us): (i64, i64), fast: &[FastRow]) -> f64 {
    let held = fast.windows(2).map(|w| {
        let mw = f64::from(w[0].power_average_mw.or(w[0].power_instant_mw).unwrap());
        mw * (w[1].mono_us.min(to_us) - w[0].mono_us.max(from_us)).max(0) as f64 / 1e9
    });
    held.sum()
}

/// A cell of the table.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    pub trials: usize,
    /// Share of trials whose interval holds the truth.
    pub coverage: f64,
    /// Medians, % of the truth.
    pub half_pct: f64,
    pub error_pct: f64,
    pub bias_pct: f64,
    pub legacy_pct: f64,
    pub counter_pct: f64,
    pub too_short: f64,
    pub methods: [usize; 4],
    /// Median of error / half width: 0.41 for a normal error.
    pub shape: f64,
}

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

pub fn cell(trials: &[Trial]) -> Cell {
    let known: Vec<(&Trial, Estimate)> = trials.iter().filter_map(|t| Some((t, t.estimate?))).collect();
    let half = |e: &Estimate| e.parts.map_or(f64::NAN, |p| p.half_j());
    let held = known.iter().filter(|(t, e)| (e.j - t.truth_j).abs() <= half(e)).count();
    let pct = |of: &dyn Fn(&Trial, &Estimate) -> f64| {
        median(known.iter().map(|(t, e)| 100.0 * of(t, e) / t.truth_j).collect())
    };
    let mut methods = [0; 4];
    known.iter().for_each(|(_, e)| methods[e.method as usize] += 1);
    Cell {
        trials: trials.len(),
        coverage: held as f64 / trials.len() as f64,
        half_pct: pct(&|_, e| half(e)),
        error_pct: pct(&|t, e| (e.j - t.truth_j).abs()),
        bias_pct: pct(&|t, e| e.j - t.truth_j),
        legacy_pct: pct(&|t, _| (t.legacy_j - t.truth_j).abs()),
        counter_pct: pct(&|t, e| (e.counter_j.unwrap_or(f64::NAN) - t.truth_j).abs()),
        too_short: known.iter().filter(|(_, e)| e.too_short.is_some()).count() as f64 / trials.len() as f64,
        methods,
        shape: median(known.iter().map(|(t, e)| (e.j - t.truth_j).abs() / half(e)).collect()),
    }
}

/// What a characterisation of the simulated sensors finds at best: the ring's time constant of 14 ms and 3.5 ms of lag
/// (its second stage, cut off where the simulation cuts it), steps of the counter each 100 ms.
pub fn characterised() -> Characterisation {
    Characterisation {
        schema: TIMING_SCHEMA,
        gpumon: String::new(),
        simulated: true,
        uuid: String::new(),
        gpu_name: String::new(),
        driver: String::new(),
        made_wall_us: WallUs(0),
        load: String::new(),
        instant: None,
        average: None,
        ring: Some(RingTiming {
            spacing_ms: 20.0,
            spacing_range_ms: [13.0, 27.0],
            capacity: 119,
            shape: WindowShape::LowPass,
            window_ms: 14.0,
            lag_ms: 3.5,
            residual_w: 1.1,
        }),
        counter: Some(CounterTiming {
            update_ms: 100.0,
            step_mj: 1.0,
            ratio_to_integral: None,
            lag_ms: None,
        }),
        calls: vec![],
        own_cost: None,
        notes: vec![],
    }
}
