//! Sweeps of clocks, power limits and MIG sizes over a fake GPU, with a worker that only sleeps: what is set, what is
//! written of it, and that everything is put back.

use std::fs;
use std::process::{Output, Stdio};

use gpumon_core::profile::ProfileRow;
use gpumon_core::profile_io;

use super::helpers;
use super::setup::{Held, until};

const WORKER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/reference_worker.py");

/// A fake GPU with a workload of one model.
fn desk(script: &str, sharing: &str) -> Held {
    let held = Held::new(script);
    let workload = format!(
        "[cluster]\ngpu = \"h200\"\nsharing = \"{sharing}\"\n[[model]]\nname = \"sleeper\"\nlatency_slo_ms = 50.0\n\
         rate_rps = 10.0\nrun = [\"python3\", \"{WORKER}\", \"--ms-per-item\", \"1\", \"--log\", \"env.log\"]\n"
    );
    fs::write(held.fake.folder().join("w.toml"), workload).unwrap();
    held
}

fn words(more: &str) -> Vec<&str> {
    "profile -w w.toml --device nvml --gpu 0 --idle 200ms --batches 4 -o p.csv"
        .split(' ')
        .chain(more.split_whitespace())
        .collect()
}

fn rows(held: &Held, output: &Output) -> Vec<ProfileRow> {
    assert!(output.status.success(), "{}", helpers::text(&output.stderr));
    profile_io::read(&held.fake.folder().join("p.csv")).unwrap().rows
}

fn points(rows: &[ProfileRow]) -> Vec<&ProfileRow> {
    rows.iter().filter(|row| !row.is_idle()).collect()
}

#[test]
fn clocks_and_power_limits_are_swept_and_put_back() {
    let held = desk("", "mps");
    let rows = rows(&held, &held.gpumon(&words("--shares 29,57 --clocks 600,1200 --power-limits 400,500")));
    let points = points(&rows);
    assert_eq!((rows.len(), points.len()), (4 + 8, 8));
    for row in points {
        assert!(row.valid && row.clock_locked == Some(true), "{row:?}");
        assert_eq!(row.sm_mhz_achieved, Some(f64::from(row.frequency)));
        assert!([Some(400), Some(500)].contains(&row.power_limit_w));
        assert!(row.latency > Some(4.0) && row.wall_s > Some(1.0), "{row:?}");
    }
    held.is_as_found();
    let log = fs::read_to_string(held.fake.folder().join("env.log")).unwrap();
    assert!(log.contains("\"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE\": \"57\""), "{log}");
}

#[test]
fn a_clock_that_does_not_follow_spoils_its_points() {
    let fault = "[[fault]]\ncall = \"nvmlDeviceSetGpuLockedClocks\"\nkind = \"no-effect\"\n";
    let held = desk(fault, "mps");
    let rows = rows(&held, &held.gpumon(&words("--shares 29 --clocks 600")));
    let [point] = points(&rows)[..] else { panic!("{rows:?}") };
    assert!(!point.valid && point.reason.as_deref().unwrap().contains("ran at"), "{point:?}");
    assert!(point.frequency == 600 && point.sm_mhz_achieved > Some(601.0), "{point:?}");
    held.is_as_found();
}

#[test]
fn mig_sizes_are_swept_each_on_its_instance_and_put_back() {
    let held = desk("", "mig");
    let rows = rows(&held, &held.gpumon(&words("--slices 1,3 --clocks default")));
    let points = points(&rows);
    assert_eq!(points.iter().map(|row| row.mig_slices).collect::<Vec<_>>(), [Some(1), Some(3)]);
    assert!(points.iter().all(|row| row.valid && row.clock_locked == Some(false)), "{points:?}");
    let log = fs::read_to_string(held.fake.folder().join("env.log")).unwrap();
    let on_instances = log.lines().filter(|line| line.contains("\"CUDA_VISIBLE_DEVICES\": \"MIG-"));
    assert_eq!(on_instances.count(), 2, "a process for each instance: {log}");
    held.is_as_found();
}

#[test]
fn what_a_sweep_lacks_is_said_before_anything_is_measured() {
    let denied =
        "[[fault]]\ncall = \"nvmlDeviceSetGpuLockedClocks\"\nkind = \"error\"\nerror = \"NO_PERMISSION\"\n";
    let held = desk(denied, "mps");
    let output = held.gpumon(&words("--shares 29 --clocks 600"));
    let said = helpers::text(&output.stderr).to_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("locking the SM clock") && said.contains("no permission"), "{said}");
    assert!(said.contains("--clocks default"), "{said}");
    let left = ["p.csv", "p.csv.journal", "env.log"].map(|name| held.fake.folder().join(name).exists());
    assert_eq!(left, [false; 3]);
    held.is_as_found();
}

#[test]
fn a_dry_run_says_what_would_be_set_and_sets_nothing() {
    let held = desk("", "mig");
    let output = held.gpumon(&words("--slices 1,3 --clocks 600 --power-limits 400 --dry-run"));
    let said = helpers::text(&output.stdout).to_owned();
    for part in [
        "--multi-instance-gpu=1",
        "-cgi 19:6",
        "-cgi 9:4",
        "--lock-gpu-clocks=600,600",
        "--power-limit=400",
        "--reset-gpu-clocks",
        "--multi-instance-gpu=0",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(!held.is_changed() && !held.fake.folder().join("p.csv").exists());
}

#[test]
fn a_killed_sweep_is_put_back_and_goes_on() {
    let held = desk("", "mps");
    let args = words("--shares 29 --clocks 600,1200,1980");
    for signal in ["-INT", "-KILL"] {
        let mut child = held.plain(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let log = held.fake.folder().join("env.log");
        let loads = || fs::read_to_string(&log).map_or(0, |text| text.lines().count());
        let before = loads();
        until("a point runs", || loads() > before);
        assert!(held.is_changed());
        helpers::signal(&child, signal);
        until("it ends", || child.try_wait().unwrap().is_some());
        held.is_as_found();
    }
    let rows = rows(&held, &held.gpumon(&args));
    assert_eq!(points(&rows).iter().filter(|row| row.valid).count(), 3);
    held.is_as_found();
}
