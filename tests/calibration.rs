//! `--calibration`: figures that a meter corrected, the raw ones beside them, and files that are wrong.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is a test's report, in its helpers too")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

const GPUMON: &str = env!("CARGO_BIN_EXE_gpumon");

fn gpumon(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(GPUMON);
    command.args(args).current_dir(folder).env_remove("CUDA_VISIBLE_DEVICES").output().unwrap()
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn entry(uuid: &str) -> String {
    format!(
        "[[gpu]]\nuuid = \"{uuid}\"\ngain = 1.1\ngain_within_pct = 0.6\noffset_w = 2\noffset_within_w = 1\n\
         source = \"a meter\"\n"
    )
}

#[test]
fn a_meter_corrects_what_there_is_and_the_raw_figures_stay() {
    let scratch = tempfile::tempdir().unwrap();
    let here = scratch.path();
    let plain =
        json(&gpumon(here, &["record", "--device", "sim:h200", "-o", "a", "--duration", "1", "--json"]));
    let gpu = &plain["gpus"][0];
    assert_eq!((&gpu["gain_pct"], &gpu["gain_source"]), (&Value::from(5.0), &Value::Null));
    fs::write(here.join("meter.toml"), entry(gpu["uuid"].as_str().unwrap())).unwrap();

    let summary = json(&gpumon(
        here,
        &["summary", "a", "--window", "0.1..0.6", "--calibration", "meter.toml", "--json"],
    ));
    let corrected = &summary["gpus"][0];
    let near = |key: &str, expected: f64| {
        let found = corrected[key].as_f64().unwrap();
        assert!((found - expected).abs() < 1e-6 * expected, "{key}: {found}, not {expected}");
    };
    let before = |key: &str| gpu[key].as_f64().unwrap();
    let seconds = plain["duration_s"].as_f64().unwrap();
    for key in ["energy_j", "energy_low_j", "energy_high_j", "energy_ring_j", "energy_counter_j"] {
        near(key, 1.1 * before(key) + 2.0 * seconds);
    }
    for key in ["power_mean_w", "power_p99_w", "power_max_w"] {
        near(key, 1.1 * before(key) + 2.0);
        assert_eq!(corrected["raw"][key], gpu[key]);
    }
    assert_eq!(corrected["raw"]["energy_j"], gpu["energy_j"]);
    assert_eq!(corrected["gain_source"], "a meter");
    near("gain_pct", 0.6f64.hypot(100.0 / (1.1 * before("power_mean_w") + 2.0)));
    assert_eq!(summary["windows"][0]["gpus"][0]["gain_source"], "a meter");

    let words = gpumon(here, &["summary", "a", "--calibration", "meter.toml"]);
    let words = String::from_utf8_lossy(&words.stdout).into_owned();
    assert!(words.contains("corrected by a meter") && words.contains("(90 %)"), "{words}");
}

#[test]
fn a_gpu_that_the_file_does_not_name_is_told() {
    let scratch = tempfile::tempdir().unwrap();
    let here = scratch.path();
    fs::write(here.join("meter.toml"), entry("GPU-another")).unwrap();
    let args = [
        "record",
        "--device",
        "sim:h200",
        "-o",
        "a",
        "--duration",
        "1",
        "--json",
        "--calibration",
        "meter.toml",
    ];
    let output = gpumon(here, &args);
    assert!(json(&output)["gpus"][0]["raw"].is_null());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("--calibration says nothing about GPU-"), "{said}");
}

#[test]
fn a_wrong_file_stops_before_anything_is_recorded_or_run() {
    let scratch = tempfile::tempdir().unwrap();
    let here = scratch.path();
    fs::write(here.join("wrong.toml"), entry("GPU-1").replace("gain = 1.1", "gain = 11")).unwrap();
    let record =
        ["record", "--device", "sim:h200", "-o", "a", "--duration", "1", "--calibration", "wrong.toml"];
    let run =
        ["run", "--device", "sim:h200", "-o", "a", "--calibration", "wrong.toml", "--", "touch", "was-run"];
    for (args, code) in [(&record[..], 1), (&run[..], 125)] {
        let output = gpumon(here, args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{said}");
        for part in ["wrong.toml", "gpu[0].gain", "found 11", "expected a number from 0.5 to 2"] {
            assert!(said.contains(part), "`{part}` is not in {said}");
        }
    }
    assert!(!here.join("a").exists() && !here.join("was-run").exists());
    let output = gpumon(here, &["summary", "a", "--calibration", "none.toml"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("none.toml"));
}
