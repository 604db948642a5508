//! Sweeps that end in the middle: the GPU is put back, no worker is left, and the same command goes on.

use std::fs;
use std::process::{Child, Stdio};

use super::helpers::text;
use super::setup::{Held, until};
use super::sweeps::*;

const MORE: &[&str] = &["--shares", "50", "--clocks", "900", "--power-limits", "500,600", "--batches", "1,2"];

/// A sweep that has just measured its first point, and runs the next.
fn started(held: &Held) -> Child {
    let mut command = sweep(held, "mps", MORE);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let journal = held.fake.folder().join("p.csv.journal");
    let lines = || fs::read_to_string(&journal).unwrap_or_default().lines().count();
    // A heading, two idle rows, and a point.
    until("a point is measured", || lines() >= 4);
    assert!(held.is_changed() && workers(held) > 0);
    child
}

#[track_caller]
fn goes_on(held: &Held) {
    until("no worker is left", || workers(held) == 0);
    held.is_as_found();
    let journal = held.fake.folder().join("p.csv.journal");
    assert!(journal.exists() && !held.fake.folder().join("p.csv").exists());
    let said = sweep(held, "mps", MORE).output().unwrap();
    let report = held.json(&said);
    assert!(report["resumed"].as_u64().unwrap() >= 3, "{report}");
    assert_eq!((&report["rows"], &report["valid"]), (&6.into(), &6.into()), "{}", text(&said.stderr));
    assert!(!journal.exists() && rows(held).len() == 6);
    held.is_as_found();
}

#[test]
fn sigint() {
    let held = Held::new("");
    let running = started(&held);
    assert_eq!(held.end(running, "-INT"), Some(130));
    assert!(!held.is_changed(), "gpumon itself put it back");
    goes_on(&held);
}

#[test]
fn kill_9() {
    let held = Held::new("");
    let mut running = started(&held);
    running.kill().unwrap();
    running.wait().unwrap();
    goes_on(&held);
}

#[test]
fn kill_9_of_sets_in_mig_instances() {
    let held = Held::new("");
    let mut running = mig_sets(&held).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let partial = held.fake.folder().join("p.csv.partial.csv");
    until("a set is measured", || partial.exists());
    assert!(held.is_changed() && workers(&held) > 0);
    running.kill().unwrap();
    running.wait().unwrap();
    until("no worker is left", || workers(&held) == 0);
    held.is_as_found();
    let report = held.json(&mig_sets(&held).output().unwrap());
    assert!(report["resumed"].as_u64() >= Some(1), "{report}");
    assert_eq!((&report["sets"], &report["valid"]), (&4.into(), &4.into()), "{report}");
    held.is_as_found();
}
