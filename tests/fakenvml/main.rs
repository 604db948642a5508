//! The whole program on the NVML library of simulated GPUs: what it reads, and what it makes of a
//! driver that misbehaves. One test for each kind of fault in docs/fake-nvml.md.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is a test's report, in its helpers too")]

mod faults;
mod hangs;
mod helpers;
mod processes;

use std::process::Stdio;

use gpumon_core::rows::SlowRow;
use serde_json::Value;

use helpers::*;

#[test]
fn every_gpu_is_listed_as_the_library_has_it() {
    for count in [1, 16] {
        let fake = fake(&format!("count = {count}"));
        let listed = json(&devices(&fake));
        let gpus = listed["gpus"].as_array().unwrap();
        assert_eq!(gpus.len(), count);
        for (gpu, sim) in gpus.iter().zip(fake.truth().unwrap().gpus) {
            assert_eq!(gpu["uuid"], sim.uuid());
            assert_eq!(gpu["pci_id"], sim.pci_id());
            assert_eq!(gpu["name"], "NVIDIA H200 (simulated)");
            assert_eq!(gpu["simulated"], true);
            assert_eq!(gpu["power_limit_w"], 700.0);
            assert_eq!(gpu["sm_clocks_mhz"].as_array().unwrap().len(), 110);
            assert_eq!(gpu["mig_enabled"], false);
            assert_eq!(gpu["unsupported"], serde_json::json!(["fan_pct"]));
            assert_eq!(gpu["error"], Value::Null);
        }
    }
}

#[test]
fn recorded_energy_is_the_true_energy_on_one_gpu_and_on_sixteen() {
    for (count, seconds) in [(1, "3"), (16, "3")] {
        let (fake, summary) = record(&format!("gpus = \"half.toml\"\ncount = {count}"), seconds);
        assert_eq!(summary["simulated"], true);
        assert_eq!(summary["gpus"][0]["energy_method"], "ring");
        energies_are_true(&fake, &summary, 0.02);
        let path = recording(&fake);
        let again = json(&command(&fake, &["summary", path.to_str().unwrap(), "--json"]).output().unwrap());
        assert_eq!(again["gpus"], summary["gpus"]);
        (0..count).for_each(|gpu| goes_on(&fake, gpu, 3));
    }
}

#[test]
fn an_unsupported_sensor_is_asked_once() {
    let (fake, _) = record("gpus = \"half.toml\"", "2");
    assert_eq!(fake.calls("nvmlDeviceGetFanSpeed_v2", Some(0)).unwrap(), 1);
    assert!(rows::<SlowRow>(&recording(&fake)).iter().all(|r| r.fan_pct.is_none()));
    assert_eq!(fake.calls("nvmlInit_v2", None).unwrap(), 1, "initialised once");
}

#[test]
fn two_recorders_see_the_same_gpus() {
    let fake = fake(TWO);
    let other = fake.folder().join("other");
    let args = ["record", "-o", other.to_str().unwrap(), "--duration", "3", "--json"];
    let running = command(&fake, &args).stdout(Stdio::piped()).spawn().unwrap();
    let own = record_args(&fake, "3");
    let own = command(&fake, &own.iter().map(String::as_str).collect::<Vec<_>>()).output().unwrap();
    let other = json(&running.wait_with_output().unwrap());
    let own = json(&own);
    energies_are_true(&fake, &own, 0.02);
    for (a, b) in own["gpus"].as_array().unwrap().iter().zip(other["gpus"].as_array().unwrap()) {
        assert_eq!(a["uuid"], b["uuid"]);
        let (a, b) = (a["power_mean_w"].as_f64().unwrap(), b["power_mean_w"].as_f64().unwrap());
        assert!((a / b - 1.0).abs() < 0.02, "{a} W, {b} W");
    }
}
