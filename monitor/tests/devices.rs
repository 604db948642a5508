//! One conformance suite over every backend: what a `Device` promises, whoever answers.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is a test's report, in its helpers too")]

use std::sync::Arc;

use gpumon_core::clock::{Clock, RealClock, VirtualClock};
use gpumon_core::units::{MonoUs, WallUs};
use gpumon_fakenvml::testing::Fake;
use gpumon_monitor::device::{self, Device, ReadError, Sensors, SlowSensor};
use gpumon_monitor::record::{Config, Session};
use gpumon_monitor::store::Store;

const WALL: WallUs = WallUs(1_800_000_000_000_000);

fn virtual_clock() -> Arc<VirtualClock> {
    let clock = VirtualClock::new(WALL);
    clock.set(MonoUs(5_000_000));
    Arc::new(clock)
}

/// Its `--device` text, its clock, its GPUs.
type Backend = (String, Arc<VirtualClock>, Vec<Arc<dyn Device>>);

/// Every backend that works without hardware, on a virtual clock.
fn backends(scratch: &std::path::Path) -> Vec<Backend> {
    let recording = scratch.join("recording");
    record(&recording, "sim:h200", 6_000_000);
    ["sim:h200".to_owned(), "sim:a100".to_owned(), format!("replay:{}", recording.display())]
        .into_iter()
        .map(|spec| {
            let clock = virtual_clock();
            let devices = device::open(&spec, clock.clone()).unwrap();
            (spec, clock, devices)
        })
        .collect()
}

fn record(path: &std::path::Path, spec: &str, duration_us: i64) {
    let clock = virtual_clock();
    let devices = device::open(spec, clock.clone()).unwrap();
    let config = Config { rate_hz: 10.0, command: vec![], host: "test".into() };
    let mut session = Session::prepare(&devices, clock.as_ref(), &config).unwrap();
    let mut store = Store::create(path, session.header().clone(), false).unwrap();
    let mut rows = Vec::new();
    session.simulate(&clock, duration_us, &mut rows);
    rows.into_iter().for_each(|row| store.append(row).unwrap());
    store.close(|header| header.duration_us = Some(duration_us)).unwrap();
}

#[test]
fn every_backend_keeps_the_promises_of_the_trait() {
    let scratch = tempfile::tempdir().unwrap();
    for (spec, clock, devices) in backends(scratch.path()) {
        devices.iter().for_each(|device| keeps_its_promises(&spec, device.as_ref(), clock.as_ref()));
    }
}

/// The real NVML backend on a fake library. The library has to be in the environment when a process
/// starts, so the test runs itself again as a child.
#[test]
fn the_nvml_backend_keeps_the_promises_of_the_trait() {
    const CHILD: &str = "GPUMON_TEST_CHILD";
    if std::env::var_os(CHILD).is_some() {
        let devices = device::open("nvml", Arc::new(RealClock)).unwrap();
        assert_eq!(devices.len(), 1);
        return keeps_its_promises("nvml", devices[0].as_ref(), &RealClock);
    }
    for gpus in ["h200", "a100"] {
        let fake = Fake::new(&format!("gpus = \"{gpus}\"")).unwrap();
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_nvml_backend_keeps_the_promises_of_the_trait", "--nocapture"])
            .env(CHILD, "1")
            .envs(fake.environment())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&child.stdout) + String::from_utf8_lossy(&child.stderr);
        assert!(child.status.success() && text.contains("1 passed"), "{gpus}: {text}");
    }
}

fn keeps_its_promises(spec: &str, device: &dyn Device, clock: &dyn Clock) {
    identity_is_whole(spec, device);
    unsupported_stays_unsupported(spec, device);
    power_is_plausible(spec, device, clock);
    ring_gives_each_reading_once_in_order(spec, device, clock);
    the_counter_never_falls(spec, device, clock);
    slow_sensors_stay_in_their_ranges(spec, device);
    processes_do_what_can_be_done(spec, device, clock);
}

fn identity_is_whole(spec: &str, device: &dyn Device) {
    let id = device.identity();
    assert!(id.uuid.starts_with("GPU-") && id.uuid.len() == 40, "{spec}: {}", id.uuid);
    assert!(id.simulated && id.name.contains("simulated"), "{spec}: what is simulated says so");
    assert!(!id.pci_id.is_empty() && !id.driver.is_empty(), "{spec}");
}

fn unsupported_stays_unsupported(spec: &str, device: &dyn Device) {
    let first = Sensors::probe(device).unwrap();
    assert_eq!(first, Sensors::probe(device).unwrap(), "{spec}");
    let (works, not) = first.names();
    assert_eq!(works.len() + not.len(), 8 + SlowSensor::ALL.len(), "{spec}: every sensor is on one list");
    for &sensor in SlowSensor::ALL {
        let unsupported = device.slow(sensor) == Err(ReadError::Unsupported);
        assert_eq!(unsupported, !first.slow.contains(&sensor), "{spec}: {sensor:?}");
    }
}

fn power_is_plausible(spec: &str, device: &dyn Device, clock: &dyn Clock) {
    for _ in 0..10 {
        clock.sleep_until(clock.mono().plus_us(100_000));
        let power = device.power().unwrap();
        assert!(power.instant.is_some() || power.average.is_some(), "{spec}");
        for p in [power.instant, power.average].into_iter().flatten() {
            assert!((10.0..1500.0).contains(&p.watts()), "{spec}: {p}");
        }
        assert!((100..3000).contains(&device.sm_clock().unwrap().0), "{spec}");
    }
}

fn ring_gives_each_reading_once_in_order(spec: &str, device: &dyn Device, clock: &dyn Clock) {
    let mut known = clock.wall();
    let mut all = Vec::new();
    for _ in 0..5 {
        clock.sleep_until(clock.mono().plus_us(500_000));
        let mut new = Vec::new();
        device.power_samples(known, &mut new).unwrap();
        assert!(new.iter().all(|s| s.time > known), "{spec}: only what is newer");
        let soon = clock.wall().plus_us(1_000);
        assert!(new.iter().all(|s| s.time <= soon), "{spec}: nothing from the future, a stamp's error apart");
        known = new.last().map_or(known, |s| s.time);
        all.extend(new);
    }
    assert!(all.windows(2).all(|w| w[0].time < w[1].time), "{spec}");
    assert!((115..=130).contains(&all.len()), "{spec}: 50 a second, not {}", all.len());
}

fn the_counter_never_falls(spec: &str, device: &dyn Device, clock: &dyn Clock) {
    let mut last = device.energy_counter().unwrap();
    for _ in 0..5 {
        clock.sleep_until(clock.mono().plus_us(150_000));
        let now = device.energy_counter().unwrap();
        assert!(now >= last, "{spec}");
        last = now;
    }
}

fn slow_sensors_stay_in_their_ranges(spec: &str, device: &dyn Device) {
    let in_range = |sensor, range: std::ops::RangeInclusive<i64>| {
        if let Ok(value) = device.slow(sensor) {
            assert!(range.contains(&value), "{spec}: {sensor:?} {value}");
        }
    };
    in_range(SlowSensor::UtilGpu, 0..=100);
    in_range(SlowSensor::UtilMem, 0..=100);
    in_range(SlowSensor::Pstate, 0..=15);
    in_range(SlowSensor::Temperature, 0..=120);
    in_range(SlowSensor::MemPower, 1_000..=500_000);
    in_range(SlowSensor::MemClock, 100..=20_000);
}

fn processes_do_what_can_be_done(spec: &str, device: &dyn Device, clock: &dyn Clock) {
    for _ in 0..3 {
        clock.sleep_until(clock.mono().plus_us(300_000));
        let Ok(found) = device.processes() else { continue };
        let shares: Vec<_> = found.list.iter().filter_map(|p| p.sm_util_pct).collect();
        assert!(shares.iter().all(|share| (0.0..=100.0).contains(share)), "{spec}: {shares:?}");
        assert!(found.has_utilisation || shares.is_empty(), "{spec}: silent drivers leave it absent");
        assert!(found.list.iter().all(|p| p.pid > 0), "{spec}");
    }
}

#[test]
fn a_replayed_recording_gives_the_same_readings_again() {
    let scratch = tempfile::tempdir().unwrap();
    let (first, second) = (scratch.path().join("first"), scratch.path().join("second"));
    record(&first, "sim:h200", 6_000_000);
    record(&second, &format!("replay:{}", first.display()), 5_000_000);
    let ring = |path: &std::path::Path| -> Vec<i32> {
        let reader = gpumon_monitor::store::Reader::open(path).unwrap();
        let batches = reader.batches::<gpumon_core::rows::RingRow>();
        batches.flat_map(|b| b.unwrap()).map(|r| r.power_mw).collect()
    };
    let (first, second) = (ring(&first), ring(&second));
    assert!(second.len() > 200);
    assert!(first.windows(second.len()).any(|w| w == second), "a stretch of the first, reading by reading");
}

#[test]
fn unknown_and_broken_specifications_say_what_to_write() {
    let scratch = tempfile::tempdir().unwrap();
    let bad = scratch.path().join("bad.toml");
    std::fs::write(&bad, "base = \"h200\"\ncount = \"three\"\n").unwrap();
    for (spec, says) in [
        ("gpu".to_owned(), "sim:h200"),
        ("sim:b999".to_owned(), "sim:h200"),
        ("sim:".to_owned(), "sim:h200"),
        ("replay:".to_owned(), "replay:RECORDING"),
        ("replay:/nowhere".to_owned(), "/nowhere"),
        ("sim:/nowhere.toml".to_owned(), "/nowhere.toml"),
        (format!("sim:{}", bad.display()), "count"),
    ] {
        let error = device::open(&spec, virtual_clock()).map(|d| d.len()).unwrap_err().to_string();
        assert!(error.contains(says), "{spec}: {error}");
    }
}
