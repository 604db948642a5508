//! What the sensors of a simulated GPU say, against answers that are known beforehand.

use std::sync::Arc;

use gpumon_core::units::{Megahertz, Milliwatts, MonoUs};
use gpumon_simgpu::{
    Change, ChangeError, Programme, Reading, RingReading, Sensor, SensorError, SimGpu, Spec, reasons,
};

const SECOND: i64 = 1_000_000;
const SQUARE: &str = "kind = \"square\"\non_ms = 37\noff_ms = 61\nlevel = 0.6";
/// 121 W until 2 s, 596 W until 12 s.
const STEP: &str =
    "kind = \"steps\"\nsteps = [{ duration_ms = 2000, level = 0 }, { duration_ms = 10000, level = 0.5 }]";
const LOW_W: f64 = 121.0;
const HIGH_W: f64 = 596.0;

fn gpus(head: &str, noise_w: f64, load: &str) -> Vec<SimGpu> {
    let text = format!("{head}\n[sensors]\nnoise_w = {noise_w}\n[load]\n{load}\n");
    let spec = Spec::parse(&text, &mut |_| Err(String::new()));
    spec.map(|spec| SimGpu::fleet(&spec)).unwrap_or_default()
}

fn h200(noise_w: f64, load: &str) -> SimGpu {
    gpus("base = \"h200\"\nseed = 5", noise_w, load).remove(0)
}

fn watts(reading: Reading<Milliwatts>) -> f64 {
    reading.value.map_or(f64::NAN, Milliwatts::watts)
}

/// The first instant after `from` at which the counter shows another value.
fn next_counter_update(gpu: &SimGpu, from: MonoUs) -> MonoUs {
    let value = |at: MonoUs| gpu.clone().energy_counter(at).value;
    let before = value(from);
    let (mut low, mut high) = (from, from.plus_us(100_000));
    assert_ne!(value(high), before);
    while high.since_us(low) > 1 {
        let middle = low.plus_us(high.since_us(low) / 2);
        if value(middle) == before { low = middle } else { high = middle }
    }
    high
}

#[test]
fn a_step_is_a_ramp_of_one_second_in_the_average() {
    let gpu = h200(0.0, STEP);
    let ramp = |us: i64| LOW_W + (HIGH_W - LOW_W) * ((us - 2 * SECOND) as f64 / 1e6).clamp(0.0, 1.0);
    for now_us in (SECOND..4 * SECOND).step_by(1000) {
        for reading in [gpu.power_average(MonoUs(now_us)), gpu.power_usage(MonoUs(now_us))] {
            let found = watts(reading);
            assert!(
                ramp(now_us - 100_000) - 0.002 < found && found < ramp(now_us) + 0.002,
                "{now_us}: {found}"
            );
        }
    }
}

#[test]
fn a_step_shows_in_the_instant_power_within_125_ms() {
    let gpu = h200(0.0, STEP);
    assert_eq!(watts(gpu.power_instant(MonoUs(2 * SECOND))), LOW_W);
    assert_eq!(watts(gpu.power_instant(MonoUs(2 * SECOND + 125_000))), HIGH_W);
}

#[test]
fn the_ring_integrates_to_the_true_energy() {
    let mut gpu = h200(1.0, SQUARE);
    let readings = gpu.true_ring(MonoUs(0), MonoUs(61 * SECOND));
    let (first, last) = (readings[0].at, readings.last().unwrap().at);
    assert!(last.since_us(first) > 60 * SECOND);
    let trapezoid = |a: &RingReading, b: &RingReading| {
        f64::from(a.power.0 + b.power.0) / 2.0 * b.at.since_us(a.at) as f64 / 1e6
    };
    let energy_mj: f64 = readings.windows(2).map(|w| trapezoid(&w[0], &w[1])).sum();
    let truth_mj = gpu.true_energy_mj(first, last);
    assert!((energy_mj / truth_mj - 1.0).abs() < 0.002, "{energy_mj} for {truth_mj}");

    let update = next_counter_update(&gpu, MonoUs(10 * SECOND));
    let later = update.plus_us(37_700_000);
    let (from, to) =
        (gpu.energy_counter(update).value.unwrap().0, gpu.energy_counter(later).value.unwrap().0);
    assert!(((to - from) as f64 - gpu.true_energy_mj(update, later)).abs() <= 1.0, "one mJ is the quantum");
    assert!(from > 1_000_000_000, "the counter did not start with this process");
}

#[test]
fn the_ring_sees_the_square_wave_and_the_average_does_not() {
    let gpu = h200(0.0, SQUARE);
    let ring = gpu.ring(MonoUs(10 * SECOND), None).value.unwrap();
    assert_eq!(ring.len(), 119);
    let powers = || ring.iter().map(|r| r.power.watts());
    // Smoothed over 14 ms: the valleys of 61 ms are nearly reached, the peaks of 37 ms not quite.
    assert!((LOW_W..LOW_W + 25.0).contains(&powers().fold(f64::MAX, f64::min)));
    let peak = powers().fold(0.0, f64::max);
    assert!((600.0..690.0).contains(&peak), "{peak}");
    let averages = (5..10).map(|s| watts(gpu.power_average(MonoUs(s * SECOND))));
    assert!(averages.into_iter().all(|w| (w - 336.0).abs() < 30.0));
    let truth = gpu.true_ring(MonoUs(ring[0].at.0 - 5_000), MonoUs(10 * SECOND));
    assert_eq!(powers().collect::<Vec<_>>(), truth.iter().map(|r| r.power.watts()).collect::<Vec<_>>());
    assert!(ring.iter().zip(&truth).all(|(seen, taken)| seen.at.since_us(taken.at).abs() <= 400));
}

#[test]
fn the_average_over_a_short_window_after_a_step_is_wrong() {
    let gpu = h200(0.0, STEP);
    let times = (2 * SECOND..4 * SECOND).step_by(10_000);
    let mean = times.map(|us| watts(gpu.power_average(MonoUs(us)))).sum::<f64>() / 200.0;
    let truth = gpu.true_energy_mj(MonoUs(2 * SECOND), MonoUs(4 * SECOND)) / 2e3;
    assert_eq!(truth, HIGH_W);
    assert!(mean < 0.9 * truth, "{mean}");
}

#[test]
fn the_power_limit_lowers_the_clock_and_says_so() {
    let mut gpu = h200(0.0, "kind = \"constant\"\nlevel = 1.0");
    let now = MonoUs(SECOND);
    assert_eq!(gpu.sm_clock(now).value, Ok(Megahertz(1500)));
    assert_eq!(gpu.event_reasons(now).value, Ok(reasons::SW_POWER_CAP));
    assert!(gpu.true_power_w(now) <= 700.0);

    assert_eq!(gpu.apply(now, Change::PowerLimit(Milliwatts(400_000))), Ok(now));
    assert!(gpu.sm_clock(MonoUs(2 * SECOND)).value.unwrap() < Megahertz(1200));
    assert!(watts(gpu.power_average(MonoUs(3 * SECOND))) <= 400.0);
    let refused = gpu.apply(now, Change::PowerLimit(Milliwatts(900_000)));
    assert!(matches!(refused, Err(ChangeError::LimitOutOfRange { .. })));

    gpu.apply(MonoUs(3 * SECOND), Change::LockClocks(Some((Megahertz(345), Megahertz(600))))).unwrap();
    assert_eq!(gpu.sm_clock(MonoUs(4 * SECOND)).value, Ok(Megahertz(600)));
    assert_eq!(gpu.event_reasons(MonoUs(4 * SECOND)).value, Ok(0));
    gpu.apply(MonoUs(4 * SECOND), Change::Load(Arc::new(Programme::idle(false)))).unwrap();
    assert_eq!(gpu.event_reasons(MonoUs(5 * SECOND)).value, Ok(reasons::GPU_IDLE));
    assert_eq!(gpu.true_power_w(MonoUs(5 * SECOND)), 79.0);
}

#[test]
fn values_depend_on_seed_and_time_and_on_nothing_else() {
    let head = "base = \"h200\"\ncount = 3\nseed = 5";
    let (mut once, mut again) = (gpus(head, 1.0, SQUARE), gpus(head, 1.0, SQUARE));
    let other = gpus("base = \"h200\"\nseed = 6", 1.0, SQUARE).remove(0);
    let all = |gpu: &mut SimGpu, s: i64| {
        let now = MonoUs(s * 123_457);
        let ring = gpu.ring(now, Some(MonoUs(now.0 - 300_000))).value;
        (gpu.power_instant(now), gpu.power_average(now), gpu.sm_clock(now), gpu.utilization(now), ring)
    };
    let forth: Vec<_> = (0..200).map(|s| all(&mut once[1], s)).collect();
    let mut back: Vec<_> = (0..200).rev().map(|s| all(&mut again[1], s)).collect();
    back.reverse();
    assert_eq!(forth, back);
    assert_ne!(forth, (0..200).map(|s| all(&mut again[0], s)).collect::<Vec<_>>());
    assert_ne!(forth, (0..200).map(|s| all(&mut other.clone(), s)).collect::<Vec<_>>());
    assert_eq!(once[2].energy_counter(MonoUs(5)), again[2].energy_counter(MonoUs(5)));
}

#[test]
fn a_ring_drain_waits_for_the_counter_and_an_instant_read_does_not() {
    let mut gpu = h200(1.0, SQUARE);
    let counter = gpu.energy_counter(MonoUs(SECOND));
    let during = MonoUs(SECOND + 100);
    assert!(counter.done > during.plus_us(200));
    assert!(gpu.ring(during, None).done > counter.done);
    assert!(gpu.temperature(during).done > counter.done);
    assert!(gpu.power_instant(during).done < during.plus_us(30));
    assert!(gpu.sm_clock(during).done < during.plus_us(60));
}

#[test]
fn a_day_of_energy_is_exact() {
    let gpu = h200(0.0, SQUARE);
    let day_us: i64 = 86_400 * SECOND;
    let (periods, rest_us) = (day_us / 98_000, day_us % 98_000);
    let on_us = periods * 37_000 + rest_us.min(37_000);
    let on_w = gpu.true_power_w(MonoUs(0));
    let expected_mj = (on_w * on_us as f64 + LOW_W * (day_us - on_us) as f64) / 1e3;
    let found_mj = gpu.true_energy_mj(MonoUs(0), MonoUs(day_us));
    assert!((found_mj / expected_mj - 1.0).abs() < 1e-9, "{found_mj} for {expected_mj}");
}

#[test]
fn performance_counters_need_their_time() {
    let mut gpu = h200(0.0, "kind = \"constant\"\nlevel = 0.5");
    let close = |m: gpumon_simgpu::GpmMetrics| m.sm_util_pct == 0.0 && m.dram_util_pct.is_nan();
    assert!(close(gpu.gpm(MonoUs(SECOND)).value.unwrap()), "nothing to compare with");
    assert!(close(gpu.gpm(MonoUs(SECOND + 20_000)).value.unwrap()), "too close");
    let metrics = gpu.gpm(MonoUs(SECOND + 120_000)).value.unwrap();
    assert!((metrics.sm_util_pct - 47.0).abs() < 1e-9 && (metrics.dram_util_pct - 8.0).abs() < 1e-9);
    assert_eq!(gpu.gpm_between(MonoUs(SECOND), MonoUs(2 * SECOND)).value, Ok(metrics));
}

#[test]
fn slow_sensors_follow_the_load() {
    let gpu = h200(0.0, SQUARE);
    let busy = (0..980).map(|i| f64::from(gpu.utilization(MonoUs(i * 100_000)).value.unwrap().gpu_pct));
    assert!((busy.sum::<f64>() / 980.0 - 100.0 * 37.0 / 98.0).abs() < 1.0);
    let load = h200(0.0, "kind = \"constant\"\nlevel = 0.6");
    let temperature = |s: i64| load.temperature(MonoUs(s * SECOND)).value.unwrap();
    assert!(temperature(0) < temperature(5) && temperature(5) < temperature(20));
    assert_eq!(temperature(20), temperature(40));
    assert_eq!(load.mem_temperature(MonoUs(0)).value.unwrap(), temperature(0) + 6);
    assert!(watts(load.mem_power(MonoUs(9 * SECOND))) > watts(load.mem_power(MonoUs(0))));
    let none = h200(0.0, "kind = \"idle\"");
    assert!(none.mem_used(MonoUs(0)).value.unwrap() < load.mem_used(MonoUs(0)).value.unwrap());
    assert_eq!(watts(none.power_average(MonoUs(SECOND))), 79.0);
    assert_eq!((none.mem_clock(MonoUs(0)).value, none.pstate(MonoUs(0)).value), (Ok(Megahertz(3201)), Ok(0)));
}

#[test]
fn what_a_gpu_lacks_is_an_error_that_names_it() {
    let gpu = h200(0.0, SQUARE);
    let unsupported = |sensor| SensorError::Unsupported { sensor };
    assert_eq!(gpu.fan(MonoUs(7)).value, Err(unsupported(Sensor::Fan)));
    assert!(gpu.fan(MonoUs(7)).done > MonoUs(7), "a refusal takes its time, too");
    assert_eq!(gpu.mem_power_instant(MonoUs(7)).value, Err(unsupported(Sensor::MemPowerInstant)));
    assert_eq!(gpu.module_power(MonoUs(7)).value, Err(unsupported(Sensor::ModulePower)));
    let mut a100 = gpus("base = \"a100\"", 0.5, STEP).remove(0);
    assert!(!a100.supports(Sensor::PowerAverage));
    assert_eq!(a100.gpm(MonoUs(7)).value, Err(unsupported(Sensor::Gpm)));
    let now = MonoUs(2 * SECOND + 150_000);
    assert_eq!(a100.power_usage(now).value, a100.power_instant(now).value, "the legacy call is instant here");
    assert!(unsupported(Sensor::Fan).to_string().contains("`fan`"));
}

#[test]
fn every_gpu_has_its_own_identity() {
    let gpus = gpus("base = \"h200\"\ncount = 300", 1.0, SQUARE);
    let distinct =
        |of: &dyn Fn(&SimGpu) -> String| gpus.iter().map(of).collect::<std::collections::BTreeSet<_>>();
    assert_eq!((distinct(&SimGpu::uuid).len(), distinct(&SimGpu::pci_id).len()), (300, 300));
    for gpu in &gpus {
        let uuid = gpu.uuid();
        let groups: Vec<usize> = uuid.split('-').map(str::len).collect();
        assert_eq!(groups, [3, 8, 4, 4, 4, 12], "{uuid}");
        assert!(uuid[4..].chars().all(|c| c == '-' || c.is_ascii_hexdigit()));
    }
    assert_eq!(gpus[0].pci_id(), "00000000:1B:00.0");
    assert_eq!(gpus[299].pci_id(), "00000001:7E:00.0");
    assert_eq!(gpus[0].uuid(), SimGpu::new(&Arc::new(gpus[0].spec().clone()), 0).uuid());
}
