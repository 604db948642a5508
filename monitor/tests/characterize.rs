//! Characterisation against descriptions of simulated GPUs, which are the truth, on a virtual clock.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is a test's report, in its helpers too")]

use std::sync::Arc;

use gpumon_core::clock::{Clock, VirtualClock};
use gpumon_core::timing::{Characterisation, PowerTiming, WindowShape};
use gpumon_core::units::WallUs;
use gpumon_monitor::characterize::load::sim::SimLoad;
use gpumon_monitor::characterize::{Plan, characterise};
use gpumon_monitor::device::sim;
use gpumon_simgpu::Spec;

fn characterised(toml: &str, total_us: i64) -> Characterisation {
    let spec = Spec::parse(toml, &mut |_| Err("no files here".into())).unwrap();
    let virtual_clock = Arc::new(VirtualClock::new(WallUs(1_800_000_000_000_000)));
    let clock: Arc<dyn Clock> = virtual_clock.clone();
    let device = sim::fleet(&spec, &clock).remove(0);
    let mut load = SimLoad::new(device.clone());
    let plan = Plan::of(total_us, false);
    characterise(device, &mut load, clock.as_ref(), &plan, &|| false, &|_| {}).unwrap()
}

/// A sensor as a description has it.
#[derive(Clone, Copy, Debug)]
struct Truth {
    update_ms: f64,
    shape: WindowShape,
    window_ms: f64,
    lag_ms: f64,
}

impl Truth {
    fn coverage(&self) -> f64 {
        match self.shape {
            WindowShape::Box => (self.window_ms / self.update_ms).min(1.0),
            WindowShape::LowPass => 1.0,
        }
    }
}

/// Relative errors of period, window and coverage; of the lag, its error as a share of what is allowed: 5 % of the lag,
/// or 2 ms if that is more; and whether the shape is right.
fn errors(found: &PowerTiming, truth: &Truth) -> ([f64; 4], bool) {
    let lag_allowed_ms = (0.05 * truth.lag_ms).max(2.0);
    let errors = [
        found.update_ms / truth.update_ms - 1.0,
        found.window_ms / truth.window_ms - 1.0,
        0.05 * (found.lag_ms - truth.lag_ms) / lag_allowed_ms,
        found.coverage / truth.coverage() - 1.0,
    ];
    (errors, found.shape == truth.shape)
}

struct Random(u64);

impl Random {
    /// SplitMix64.
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn within(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.next()
    }
}

/// Update periods of 20 to 200 ms that jitter by up to a tenth; instant power over a box of 10 to 100 % of the period or a
/// low-pass of such a constant, average power over either of 200 to 1500 ms; lags of up to 100 ms.
fn random(number: u64) -> (String, [Truth; 2]) {
    let mut random = Random(number * 77 + 5);
    let update_ms = random.within(20.0, 200.0);
    let jitter_ms = random.within(0.0, 0.1) * update_ms;
    let mut sensor = |low_ms: f64, high_ms: f64| Truth {
        update_ms,
        shape: if random.next() < 0.5 { WindowShape::Box } else { WindowShape::LowPass },
        window_ms: random.within(low_ms, high_ms),
        lag_ms: random.within(0.0, 100.0),
    };
    let truths = [sensor(0.1 * update_ms, update_ms), sensor(200.0, 1500.0)];
    let mut toml = format!(
        "base = \"h200\"\nseed = {number}\n[sensors]\nupdate_ms = {update_ms}\nupdate_jitter_ms = {jitter_ms}\n\
         unsupported = [\"ring\", \"energy_counter\", \"gpm\"]\n"
    );
    for (name, truth) in ["instant", "average"].iter().zip(&truths) {
        let shape = if truth.shape == WindowShape::Box { "box" } else { "low-pass" };
        toml += &format!(
            "{name}_window_ms = {}\n{name}_shape = \"{shape}\"\n{name}_lag_ms = {}\n",
            truth.window_ms, truth.lag_ms
        );
    }
    (toml, truths)
}

#[test]
fn fifty_random_descriptions_are_recovered_within_five_per_cent() {
    const COUNT: u64 = 50;
    const WITHIN: f64 = 0.05;
    let one = |number: u64| {
        let (toml, truths) = random(number);
        let found = characterised(&toml, 40_000_000);
        let sensors = [found.instant, found.average];
        truths
            .iter()
            .zip(sensors)
            .map(|(truth, timing)| (*truth, timing, found.notes.clone()))
            .collect::<Vec<_>>()
    };
    let numbers: Vec<u64> = (0..COUNT).collect();
    let results: Vec<_> = std::thread::scope(|scope| {
        let halves: Vec<_> = numbers
            .chunks(COUNT as usize / 2)
            .map(|half| scope.spawn(move || half.iter().flat_map(|n| one(*n)).collect::<Vec<_>>()))
            .collect();
        halves.into_iter().flat_map(|half| half.join().unwrap()).collect()
    });
    let mut worst = [0.0f64; 4];
    let mut worst_lag_ms = 0.0f64;
    let mut wrong = Vec::new();
    for (i, (truth, timing, notes)) in results.iter().enumerate() {
        let Some(timing) = timing else {
            wrong.push(format!("{i}: {truth:?} not found: {notes:?}"));
            continue;
        };
        let (errors, shape) = errors(timing, truth);
        worst_lag_ms = worst_lag_ms.max((timing.lag_ms - truth.lag_ms).abs());
        worst.iter_mut().zip(errors).for_each(|(worst, error)| *worst = worst.max(error.abs()));
        if !shape || errors.iter().any(|error| error.abs() > WITHIN) {
            wrong.push(format!("{i}: {truth:?}\n  found {timing:?}\n  errors {errors:.3?} {notes:?}"));
        }
    }
    println!(
        "largest errors: period, window, lag (5 % is what is allowed), coverage: {worst:.4?}; lag {worst_lag_ms:.2} ms"
    );
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), results.len(), wrong.join("\n"));
}

#[test]
fn the_built_in_h200_comes_out_as_described() {
    let found = characterised("base = \"h200\"", 40_000_000);
    let truth = |window_ms| Truth { update_ms: 100.0, shape: WindowShape::Box, window_ms, lag_ms: 0.0 };
    for (timing, truth) in [(found.instant, truth(25.0)), (found.average, truth(1000.0))] {
        let (errors, shape) = errors(&timing.unwrap(), &truth);
        assert!(shape && errors.iter().all(|error| error.abs() < 0.05), "{timing:?}");
    }
    let ring = found.ring.unwrap();
    assert_eq!(ring.capacity, 119);
    assert!((ring.spacing_ms - 20.0).abs() < 0.2, "{ring:?}");
    assert!(ring.spacing_range_ms[0] > 12.0 && ring.spacing_range_ms[1] < 28.0, "{ring:?}");
    // Two stages of 14 and 4.2 ms.
    assert_eq!(ring.shape, WindowShape::LowPass);
    assert!(
        (ring.window_ms + ring.lag_ms - 18.2).abs() < 1.0 && (12.0..17.0).contains(&ring.window_ms),
        "{ring:?}"
    );
    let counter = found.counter.unwrap();
    assert!((counter.update_ms - 100.0).abs() < 2.0 && counter.lag_ms.unwrap().abs() < 5.0, "{counter:?}");
    assert!((counter.ratio_to_integral.unwrap() - 1.0).abs() < 0.002, "{counter:?}");
    assert!(counter.step_mj > 5_000.0, "{counter:?}");
    for (call, p50_us) in [("sm_clock", 2.4), ("ring", 290.0), ("energy_counter", 3_000.0), ("power", 8.0)] {
        let cost = found.calls.iter().find(|cost| cost.call == call).unwrap();
        // The virtual clock counts in µs.
        assert!((cost.p50_us - p50_us).abs() < 0.7 + 0.1 * p50_us, "{cost:?}");
        assert!(cost.count >= 20 && !cost.histogram.is_empty(), "{cost:?}");
    }
    assert!(found.simulated && found.load == "simulated", "{}", found.load);
}

#[test]
fn the_built_in_a100_has_no_average() {
    let found = characterised("base = \"a100\"", 40_000_000);
    let truth = Truth { update_ms: 100.0, shape: WindowShape::Box, window_ms: 25.0, lag_ms: 0.0 };
    let (errors, shape) = errors(&found.instant.unwrap(), &truth);
    assert!(shape && errors.iter().all(|error| error.abs() < 0.05), "{:?}", found.instant);
    assert_eq!(found.average, None);
    assert!(
        found.notes.iter().any(|note| note.contains("average power: not supported")),
        "{:?}",
        found.notes
    );
}

#[test]
fn a_driver_with_the_legacy_call_alone_has_it_characterised() {
    let toml = "base = \"h200\"\n[sensors]\nusage_window_ms = 60\nusage_lag_ms = 12\nunsupported = [\"power_instant\", \
                \"power_average\", \"ring\", \"energy_counter\"]\n";
    let found = characterised(toml, 40_000_000);
    let truth = Truth { update_ms: 100.0, shape: WindowShape::Box, window_ms: 60.0, lag_ms: 12.0 };
    let (errors, shape) = errors(&found.average.unwrap(), &truth);
    assert!(shape && errors.iter().all(|error| error.abs() < 0.05), "{:?}", found.average);
    assert_eq!((found.instant, found.ring, found.counter), (None, None, None));
    assert!(found.notes.iter().any(|note| note.contains("legacy power call")), "{:?}", found.notes);
}
