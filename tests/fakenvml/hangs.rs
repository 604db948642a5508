//! Calls into the driver that do not return.

use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use gpumon_core::rows::{EventKind, FastRow};
use gpumon_fakenvml::testing::Fake;

use super::helpers::*;

const HANG: &str =
    "[[fault]]\nkind = \"hang\"\ncall = \"nvmlDeviceGetFieldValues\"\ngpu = 0\nfrom_ms = 1500\n";

#[test]
fn hang_the_gpu_is_marked_and_the_other_goes_on() {
    let started = Instant::now();
    let (fake, summary) = record(&format!("{TWO}{HANG}"), "4");
    assert!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
    assert_eq!(summary["state"], "complete");
    let stalls = events(&fake, EventKind::Stall);
    assert!(!stalls.is_empty() && stalls.iter().all(|e| e.gpu == Some(0)), "{stalls:?}");
    goes_on(&fake, 1, 4);
}

#[test]
fn hang_control_c_still_ends_it_within_two_seconds() {
    let fake = fake(&format!("{TWO}{HANG}"));
    let args = record_args(&fake, "60");
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut child = command(&fake, &args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(3000));
    signal(&child, "-INT");
    let asked = Instant::now();
    while child.try_wait().unwrap().is_none() {
        assert!(asked.elapsed() < Duration::from_secs(3), "it does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
    assert!(!events(&fake, EventKind::Stall).is_empty());
    assert!(rows::<FastRow>(&recording(&fake)).iter().filter(|r| r.gpu == 1).count() > 20);
}

#[test]
fn hang_before_the_start_costs_one_gpu_and_not_the_program() {
    for call in ["nvmlDeviceGetTemperature", "nvmlDeviceGetName"] {
        let fake = fake(&format!("{TWO}[[fault]]\nkind = \"hang\"\ncall = \"{call}\"\ngpu = 0\n"));
        let args = record_args(&fake, "2");
        let output = ends_within(20, &fake, &args.iter().map(String::as_str).collect::<Vec<_>>());
        let summary = json(&output);
        let uuid = fake.truth().unwrap().gpus[1].uuid();
        assert_eq!(summary["gpus"].as_array().unwrap().len(), 1, "{call}: {summary}");
        assert_eq!(summary["gpus"][0]["uuid"], uuid);
        assert!(text(&output.stderr).contains("has not returned"), "{}", text(&output.stderr));
        goes_on(&fake, 0, 2);
        let listed = json(&ends_within(20, &fake, &["devices", "--json"]));
        assert_eq!(listed["gpus"].as_array().unwrap().last().unwrap()["uuid"], uuid);
    }
}

#[test]
fn hang_of_initialisation_is_said() {
    let fake = fake("[[fault]]\nkind = \"hang\"\ncall = \"nvmlInit_v2\"\n");
    let output = ends_within(20, &fake, &["devices"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("has not returned"), "{}", text(&output.stderr));
}

/// What the program gives, if it ends within this many seconds.
#[track_caller]
fn ends_within(seconds: u64, fake: &Fake, args: &[&str]) -> Output {
    let mut child = command(fake, args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let started = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if started.elapsed() > Duration::from_secs(seconds) {
            child.kill().unwrap();
            panic!("{args:?} does not end");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    child.wait_with_output().unwrap()
}
