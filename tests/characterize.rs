//! `gpumon characterize` as a whole, on simulated GPUs, and what later commands make of its result.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is a test's report, in its helpers too")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

const GPUMON: &str = env!("CARGO_BIN_EXE_gpumon");

/// Runs gpumon with a state folder of its own.
fn gpumon(state: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(GPUMON);
    command.args(args).env("XDG_STATE_HOME", state).env_remove("CUDA_VISIBLE_DEVICES");
    command.output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", stderr(output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[track_caller]
fn near(value: &Value, expected: f64, within: f64) {
    let found = value.as_f64().unwrap_or(f64::NAN);
    assert!((found - expected).abs() <= within, "{value} is not within {within} of {expected}");
}

fn saved(state: &Path) -> Vec<PathBuf> {
    let folder = state.join("gpumon/sensors");
    fs::read_dir(folder).map_or_else(|_| vec![], |dir| dir.map(|entry| entry.unwrap().path()).collect())
}

#[test]
fn an_h200_is_characterised_kept_and_known_to_the_next_recording() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path();
    let file = state.join("found.json");
    let file = file.to_str().unwrap();
    let found = json(&gpumon(state, &["characterize", "--device", "sim:h200", "--json", "-o", file]));
    assert_eq!(found, serde_json::from_str::<Value>(&fs::read_to_string(file).unwrap()).unwrap());
    assert_eq!(found["simulated"], true);
    let gpu = &found["gpus"][0];
    assert_eq!(gpu["instant"]["shape"], "box");
    near(&gpu["instant"]["update_ms"], 100.0, 1.0);
    near(&gpu["instant"]["window_ms"], 25.0, 1.25);
    near(&gpu["instant"]["lag_ms"], 0.0, 2.0);
    near(&gpu["instant"]["coverage"], 0.25, 0.0125);
    near(&gpu["average"]["window_ms"], 1000.0, 50.0);
    near(&gpu["ring"]["spacing_ms"], 20.0, 0.5);
    near(&gpu["ring"]["capacity"], 119.0, 0.0);
    near(&gpu["counter"]["ratio_to_integral"], 1.0, 0.005);
    assert!(gpu["own_cost"]["cpu_pct"].as_f64().unwrap() > 0.0);
    assert!(gpu["calls"].as_array().unwrap().iter().any(|c| c["call"] == "energy_counter"));

    let [path] = &saved(state)[..] else { panic!("one file: {:?}", saved(state)) };
    let (uuid, driver) = (gpu["uuid"].as_str().unwrap(), gpu["driver"].as_str().unwrap());
    assert_eq!(path.file_name().unwrap().to_str().unwrap(), format!("{uuid}-{driver}.json"));

    let name = state.join("recording");
    let record = ["record", "--device", "sim:h200", "--duration", "1", "-o", name.to_str().unwrap()];
    assert!(gpumon(state, &record).status.success());
    let header: Value =
        serde_json::from_str(&fs::read_to_string(name.join("recording.json")).unwrap()).unwrap();
    assert_eq!(&header["gpus"][0]["characterisation"], gpu);
    let devices = json(&gpumon(state, &["devices", "--device", "sim:h200", "--json"]));
    assert_eq!(devices["gpus"][0]["sensor_timing"]["instant"], gpu["instant"]);
    let words = gpumon(state, &["devices", "--device", "sim:h200"]);
    assert!(String::from_utf8_lossy(&words.stdout).contains("instant each 100 ms over 25 ms (box)"));
    // The same UUID and driver, another simulated GPU.
    let other = json(&gpumon(state, &["devices", "--device", "sim:a100", "--json"]));
    assert_eq!(other["gpus"][0]["sensor_timing"], Value::Null);

    let again = gpumon(state, &["characterize", "--device", "sim:h200", "-o", file]);
    assert_eq!(again.status.code(), Some(1));
    assert!(stderr(&again).contains("--force"), "{}", stderr(&again));
}

#[test]
fn an_a100_is_shown_in_words_and_not_kept_if_told_so() {
    let folder = tempfile::tempdir().unwrap();
    let output =
        gpumon(folder.path(), &["characterize", "--device", "sim:a100", "--no-save", "--duration", "30"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let words = String::from_utf8_lossy(&output.stdout).into_owned();
    for part in
        ["A100", "simulated", "instant", "25 %", "box", "energy_counter", "average power: not supported"]
    {
        assert!(words.contains(part), "`{part}` is not in: {words}");
    }
    assert_eq!(saved(folder.path()), Vec::<PathBuf>::new());
}

#[test]
fn a_bad_or_newer_file_is_a_notice_and_no_failure() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path();
    let devices = json(&gpumon(state, &["devices", "--device", "sim:h200", "--json"]));
    let gpu = &devices["gpus"][0];
    let name = format!("{}-{}.json", gpu["uuid"].as_str().unwrap(), gpu["driver"].as_str().unwrap());
    fs::create_dir_all(state.join("gpumon/sensors")).unwrap();
    for (number, text, says) in
        [(0, "{ half of", "cannot be read"), (1, "{\"schema\": 1000}", "has schema 1000")]
    {
        fs::write(state.join("gpumon/sensors").join(&name), text).unwrap();
        let recording = state.join(format!("recording{number}"));
        let output = gpumon(
            state,
            &["record", "--device", "sim:h200", "--duration", "500ms", "-o", recording.to_str().unwrap()],
        );
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(stderr(&output).contains(says), "{}", stderr(&output));
        let header = fs::read_to_string(recording.join("recording.json")).unwrap();
        assert!(!header.contains("characterisation"));
    }
}

#[test]
fn what_cannot_be_characterised_is_said() {
    let folder = tempfile::tempdir().unwrap();
    for (args, says) in [
        (&["--device", "replay:x"][..], "takes no load"),
        (&["--device", "sim:h200", "--load-cmd", "python", "load.py", "--fast"], "--load-cmd"),
        (&["--device", "sim:h200", "--duration", "5"], "20s to 1h"),
        (&["--device", "sim:h200", "--gpu", "7"], "--gpu"),
    ] {
        let output = gpumon(folder.path(), &[&["characterize"], args].concat());
        assert!(!output.status.success() && stderr(&output).contains(says), "{}", stderr(&output));
        assert!(!stderr(&output).contains("panicked"), "{}", stderr(&output));
    }
}
