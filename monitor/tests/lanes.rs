//! The lanes against the simulated GPU's truth, on a virtual clock.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is a test's report, in its helpers too")]

use std::sync::Arc;

use gpumon_core::clock::{Clock, VirtualClock};
use gpumon_core::rows::{CounterRow, EventKind, EventRow, FastRow, Record, RingRow, SlowRow};
use gpumon_core::units::{MonoUs, WallUs};
use gpumon_monitor::device::Device;
use gpumon_monitor::device::sim::{self, SimDevice};
use gpumon_monitor::record::{Config, Session};
use gpumon_simgpu::Spec;

struct Recorded {
    fast: Vec<FastRow>,
    ring: Vec<RingRow>,
    slow: Vec<SlowRow>,
    counter: Vec<CounterRow>,
    events: Vec<EventRow>,
    /// Origin of the recording in the simulated GPU's time.
    origin: MonoUs,
    devices: Vec<Arc<SimDevice>>,
}

const SECOND: i64 = 1_000_000;

fn record(toml: &str, rate_hz: f64, duration_us: i64) -> Recorded {
    let spec = Spec::parse(toml, &mut |_| Err("no files here".into())).unwrap();
    let clock = Arc::new(VirtualClock::new(WallUs(1_800_000_000_000_000)));
    clock.set(MonoUs(77 * SECOND));
    let devices = sim::fleet(&spec, &(clock.clone() as Arc<dyn Clock>));
    let opened: Vec<Arc<dyn Device>> = devices.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
    let config = Config { rate_hz, command: vec![], host: "test".into() };
    let mut session = Session::prepare(&opened, clock.as_ref(), &config).unwrap();
    let origin = MonoUs(session.origin().since_us(devices[0].opened()));
    let mut rows = Vec::new();
    session.simulate(&clock, duration_us, &mut rows);
    sorted(rows, origin, devices)
}

fn sorted(rows: Vec<Record>, origin: MonoUs, devices: Vec<Arc<SimDevice>>) -> Recorded {
    let mut all = Recorded {
        fast: vec![],
        ring: vec![],
        slow: vec![],
        counter: vec![],
        events: vec![],
        origin,
        devices,
    };
    for row in rows {
        match row {
            Record::Fast(r) => all.fast.push(r),
            Record::Ring(r) => all.ring.push(r),
            Record::Slow(r) => all.slow.push(*r),
            Record::Counter(r) => all.counter.push(r),
            Record::Event(r) => all.events.push(*r),
            Record::Process(_) => {}
        }
    }
    all
}

const SQUARE: &str = "base = \"h200\"\n[load]\nkind = \"square\"\non_ms = 37\noff_ms = 61\nlevel = 1.0\n";

#[test]
fn fast_rows_and_missed_ticks_are_all_the_ticks_there_were() {
    let all = record(SQUARE, 1000.0, 60 * SECOND);
    let missed: i64 =
        all.events.iter().filter(|e| e.kind == EventKind::MissedTicks).filter_map(|e| e.count).sum();
    assert_eq!(all.fast.len() as i64 + missed, 60_000);
    assert!(
        missed <= 60,
        "{missed} of 60000 missed: the counter and the ring must not disturb the fast lane"
    );
    assert!(all.fast.windows(2).all(|w| w[0].mono_us < w[1].mono_us));
}

#[test]
fn every_ring_reading_of_the_truth_is_there_once() {
    let all = record(SQUARE, 10.0, 60 * SECOND);
    let gpu = all.devices[0].gpu();
    let truth = gpu.true_ring(all.origin.plus_us(-1), all.origin.plus_us(60 * SECOND - 1));
    assert_eq!(all.ring.len(), truth.len());
    for (kept, taken) in all.ring.iter().zip(&truth) {
        let stamp_error_us = kept.mono_us + all.origin.0 - taken.at.0;
        assert!(stamp_error_us.abs() <= 400, "{kept:?} for {taken:?}");
    }
    assert!(!all.events.iter().any(|e| e.kind == EventKind::RingLost));
}

#[test]
fn the_ring_integrates_to_the_truth_and_the_average_does_not() {
    let ring_all = record(SQUARE, 10.0, 60 * SECOND);
    let (first, last) = (ring_all.ring[0].mono_us, ring_all.ring.last().unwrap().mono_us);
    let integral: f64 = ring_all
        .ring
        .windows(2)
        .map(|w| f64::from(w[0].power_mw + w[1].power_mw) / 2.0 * (w[1].mono_us - w[0].mono_us) as f64 / 1e6)
        .sum();
    let truth = ring_all.devices[0]
        .gpu()
        .true_energy_mj(ring_all.origin.plus_us(first), ring_all.origin.plus_us(last));
    let error = integral / truth - 1.0;
    assert!(error.abs() <= 0.002, "the ring is off by {:.3} %", error * 100.0);

    // Idle with a context for 5 s, then full load: the two seconds after the step, by the 1 s average.
    let step = "base = \"h200\"\n[load]\nkind = \"steps\"\nsteps = [{ duration_ms = 5000, level = 0.0 }, \
                { duration_ms = 60000, level = 1.0 }]\n";
    let all = record(step, 10.0, 10 * SECOND);
    let (from, to) = (5 * SECOND - all.origin.0, 7 * SECOND - all.origin.0);
    let by = |power: fn(&FastRow) -> Option<i32>| -> f64 {
        let rows = all.fast.windows(2).filter(|w| (from..to).contains(&w[0].mono_us));
        rows.map(|w| f64::from(power(&w[0]).unwrap()) * (w[1].mono_us - w[0].mono_us) as f64 / 1e6).sum()
    };
    let truth = all.devices[0].gpu().true_energy_mj(MonoUs(5 * SECOND), MonoUs(7 * SECOND));
    let average = by(|r| r.power_average_mw) / truth - 1.0;
    assert!(average < -0.10, "the 1 s average is off by {:.1} % only", average * 100.0);
    let instant = by(|r| r.power_instant_mw) / truth - 1.0;
    assert!(instant.abs() < 0.07, "the short window is off by {:.1} %", instant * 100.0);
}

#[test]
fn repeated_readings_are_kept_and_marked() {
    let all = record(SQUARE, 1000.0, 10 * SECOND);
    let fresh = all.fast.iter().filter(|r| r.fresh).count();
    assert!(
        (95..=105).contains(&fresh),
        "the sensor gives ten values a second, {fresh} in 10 s are marked fresh"
    );
    assert_eq!(all.fast.len(), 10_000 - missed(&all), "those between are kept");
}

fn missed(all: &Recorded) -> usize {
    all.events.iter().filter(|e| e.kind == EventKind::MissedTicks).filter_map(|e| e.count).sum::<i64>()
        as usize
}

#[test]
fn slow_calls_and_the_counter_stay_rare() {
    let all = record(SQUARE, 10.0, 60 * SECOND);
    assert!((590..=600).contains(&all.slow.len()), "{}", all.slow.len());
    let with_gpm = all.slow.iter().filter(|r| r.sm_util_pct.is_some()).count();
    assert!((55..=60).contains(&with_gpm), "{with_gpm}");
    assert!(all.slow.iter().all(|r| r.fan_pct.is_none()), "unsupported is null");
    assert_eq!(all.counter.len(), 7, "at the start, each ten seconds, at the end");
    let (first, last) = (&all.counter[0], &all.counter[6]);
    let truth = all.devices[0]
        .gpu()
        .true_energy_mj(all.origin.plus_us(first.mono_us), all.origin.plus_us(last.mono_us));
    let error = (last.energy_mj - first.energy_mj) as f64 / truth - 1.0;
    assert!(error.abs() < 0.003, "{error}");
}

#[test]
fn several_gpus_have_lanes_of_their_own() {
    let all = record(&format!("count = 3\n{SQUARE}"), 100.0, 5 * SECOND);
    for gpu in 0..3 {
        assert!(all.fast.iter().filter(|r| r.gpu == gpu).count() >= 498);
        assert!(all.ring.iter().filter(|r| r.gpu == gpu).count() >= 248);
    }
    let phases = |gpu| all.ring.iter().find(|r| r.gpu == gpu).map(|r| r.mono_us);
    assert_ne!(phases(0), phases(1));
}

#[test]
fn a_gpu_without_a_sensor_has_a_null_column_and_no_events() {
    let a100 = SQUARE.replace("h200", "a100");
    let all = record(&a100, 10.0, 5 * SECOND);
    assert!(all.fast.iter().all(|r| r.power_average_mw.is_none() && r.power_instant_mw.is_some()));
    assert!(all.slow.iter().all(|r| r.sm_util_pct.is_none()));
    assert!(!all.events.iter().any(|e| e.kind == EventKind::ReadFailed), "{:?}", all.events);
}
