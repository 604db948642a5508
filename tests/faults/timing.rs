//! Time: starvation, steps of the wall clock, sensors that lag.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use gpumon_core::clock::{Clock, VirtualClock};
use gpumon_core::rows::{EventKind, FastRow, Record, RingRow};
use gpumon_core::units::WallUs;
use gpumon_fakenvml::testing::Fake;
use gpumon_monitor::device;
use gpumon_monitor::lane::Outbox;
use gpumon_monitor::record::{Config, Session};
use gpumon_monitor::store::Reader;

use super::helpers::*;
use super::until;

const SECOND: i64 = 1_000_000;

#[test]
fn row_18_a_starved_process_counts_what_it_missed() {
    let fake = fake("gpus = \"half.toml\"\n");
    let args = record_args(&fake, "5");
    let args: Vec<&str> = args.iter().map(String::as_str).chain(["--rate", "100"]).collect();
    let child = command(&fake, &args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let path = recording(&fake);
    until(20, "rows", || Reader::open(&path).is_ok() && rows::<FastRow>(&path).len() >= 80);
    signal(&child, "-STOP");
    std::thread::sleep(Duration::from_millis(1_500));
    signal(&child, "-CONT");
    let summary = json(&child.wait_with_output().unwrap());
    let (rows_kept, missed) = (summary["rows"].as_u64().unwrap(), summary["missed_ticks"].as_u64().unwrap());
    assert_eq!(rows_kept + missed, 500, "each tick is a row or counted");
    assert!(missed >= 120, "{missed}");
    let longest = events(&fake, EventKind::MissedTicks).into_iter().filter_map(|e| e.count).max();
    assert!(longest.unwrap() >= 120, "the stop is one event: {longest:?}");
    let fast = rows::<FastRow>(&path);
    // Deadlines lie on the grid of the first tick, and no tick is taken twice: no burst.
    let deadlines: Vec<i64> = fast.iter().map(|r| r.mono_us - i64::from(r.lateness_us)).collect();
    assert!(deadlines.iter().all(|at| at % 10_000 == 0), "{deadlines:?}");
    assert!(deadlines.windows(2).all(|w| w[0] < w[1]));
    assert!(events(&fake, EventKind::Stall).is_empty(), "a stopped process is no hanging driver");
}

/// Rows of a virtual recording, whose wall clock is stepped once a row after `at_us` was made.
struct Stepped {
    clock: Arc<VirtualClock>,
    by_us: Option<i64>,
    records: Vec<Record>,
}

impl Outbox for Stepped {
    fn put(&mut self, record: Record) {
        if let Record::Fast(row) = &record
            && row.mono_us > 3 * SECOND
            && let Some(by_us) = self.by_us.take()
        {
            self.clock.step_wall_us(by_us);
        }
        self.records.push(record);
    }
}

#[test]
fn row_26_the_wall_clock_steps() {
    for by_us in [-3_600 * SECOND, 3_600 * SECOND] {
        let clock = Arc::new(VirtualClock::new(WallUs(1_800_000_000_000_000)));
        let devices = device::open("sim:h200", clock.clone()).unwrap();
        let config = Config { rate_hz: 10.0, command: vec![], host: "test".into() };
        let mut session = Session::prepare(&devices, clock.as_ref(), &config).unwrap();
        let start = session.header().start_wall_us;
        let mut out = Stepped { clock: clock.clone(), by_us: Some(by_us), records: Vec::new() };
        session.simulate(&clock, 8 * SECOND, &mut out);
        let (mut fast, mut ring, mut steps) = (Vec::new(), Vec::<RingRow>::new(), Vec::new());
        for record in out.records {
            match record {
                Record::Fast(row) => fast.push(row.mono_us),
                Record::Ring(row) => ring.push(row),
                Record::Event(event) if event.kind == EventKind::ClockStep => steps.push(event),
                _ => {}
            }
        }
        assert_eq!(fast.len(), 80);
        assert!(
            fast.windows(2).all(|w| (50_000..150_000).contains(&(w[1] - w[0]))),
            "monotonic time orders rows"
        );
        assert!(ring.windows(2).all(|w| (1..60_000).contains(&(w[1].mono_us - w[0].mono_us))), "{by_us}");
        assert!(ring.len() > 380, "{}", ring.len());
        assert_eq!(steps.len(), 1, "{steps:?}");
        assert!((steps[0].count.unwrap() - by_us).abs() < 1_000, "{steps:?}");
        // The anchor is that of the start.
        assert!((clock.wall().0 - clock.mono().0 - start.0).abs() > 3_000 * SECOND);
    }
}

#[test]
fn row_20_the_average_does_not_leak_into_a_short_window() {
    let square = "base = \"h200\"\n[load]\nkind = \"square\"\non_ms = 2000\noff_ms = 2000\nlevel = 0.9\n";
    let fake = Fake::with_files("gpus = \"square.toml\"", &[("square.toml", square)]).unwrap();
    let args = record_args(&fake, "6");
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    json(&command(&fake, &args).output().unwrap());
    let path = recording(&fake);
    let start = Reader::open(&path).unwrap().header().start_wall_us;
    let truth = fake.truth().unwrap();
    // The first time in the recording at which the load ends.
    let began_us = truth.at(start).0;
    let off_us = (0..).map(|k| (4 * k + 2) * SECOND).find(|at| *at > began_us + SECOND).unwrap();
    let (from_us, to_us) = (off_us - began_us, off_us - began_us + 500_000);
    let window = |from_us: i64, to_us: i64| {
        let span = format!("{}..{}", from_us as f64 / 1e6, to_us as f64 / 1e6);
        let args = ["summary", path.to_str().unwrap(), "--window", &span, "--json"];
        json(&command(&fake, &args).output().unwrap())["windows"][0]["gpus"][0].clone()
    };
    let gpu = window(from_us, to_us);
    let at = |us: i64| truth.at(WallUs(start.0 + us));
    let true_j = truth.gpus[0].true_energy_mj(at(from_us), at(to_us)) / 1e3;
    let found_j = gpu["energy_j"].as_f64().unwrap();
    assert_eq!(gpu["energy_method"], "ring");
    assert!((found_j / true_j - 1.0).abs() < 0.15, "{found_j} J, truly {true_j} J");
    let (low, high) = (gpu["energy_low_j"].as_f64().unwrap(), gpu["energy_high_j"].as_f64().unwrap());
    assert!(low <= true_j * 1.05 && high >= true_j * 0.95, "{low} to {high}, truly {true_j}");
    // What the driver's average alone would say.
    let averages: Vec<f64> = rows::<FastRow>(&path)
        .iter()
        .filter(|r| (from_us..to_us).contains(&r.mono_us))
        .filter_map(|r| r.power_average_mw)
        .map(f64::from)
        .collect();
    let average_j = averages.iter().sum::<f64>() / averages.len() as f64 / 1e3 * 0.5;
    assert!(average_j > true_j * 1.5, "{average_j} J by the average, truly {true_j} J");
    // A window shorter than the sensor can tell says how long it must be.
    let short = window(from_us - 20_000, from_us + 20_000);
    let least_s = short["energy_too_short"]["least_s"].as_f64();
    assert!(least_s.unwrap() > 0.04, "{short}");
}
