//! What newcomers ran into, each kept from coming back.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is a test's report, in its helpers too")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

const GPUMON: &str = env!("CARGO_BIN_EXE_gpumon");

fn gpumon(args: &[&str]) -> Output {
    Command::new(GPUMON).args(args).env_remove("CUDA_VISIBLE_DEVICES").output().unwrap()
}

fn shell(script: &str) -> Output {
    Command::new("bash").args(["-c", script]).output().unwrap()
}

fn record(path: &Path, device: &str) {
    let name = path.to_str().unwrap();
    let output = gpumon(&["record", "--device", device, "-o", name, "--duration", "1"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn summary(path: &Path) -> Value {
    serde_json::from_slice(&gpumon(&["summary", path.to_str().unwrap(), "--json"]).stdout).unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

fn scratch() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    (folder, path)
}

#[test]
fn a_full_standard_error_does_not_cost_the_exit_code() {
    let (_folder, path) = scratch();
    let name = path.display();
    let run = format!("{GPUMON} run --device sim:h200 -o {name} --tail 0 -- sh -c 'exit 7' 2>/dev/full");
    assert_eq!(shell(&run).status.code(), Some(7));
    assert_eq!(shell(&format!("{GPUMON} summary /nowhere 2>/dev/full")).status.code(), Some(1));
}

#[test]
fn run_tries_its_summary_file_first_and_spares_what_is_there() {
    let (folder, path) = scratch();
    let (name, mine) = (path.to_str().unwrap(), folder.path().join("mine.json"));
    fs::write(&mine, "mine").unwrap();
    let run = |file: &str| {
        gpumon(&["run", "--device", "sim:h200", "-o", name, "--tail", "0", "--summary", file, "--", "true"])
    };
    for file in [mine.to_str().unwrap(), "/nowhere/at/all.json", "-"] {
        assert_eq!(run(file).status.code(), Some(125), "{file}");
        assert!(!path.exists(), "{file}: nothing ran");
    }
    assert_eq!(fs::read_to_string(&mine).unwrap(), "mine");
}

#[test]
fn nohup_keeps_a_recording_alive() {
    let (_folder, path) = scratch();
    let script = format!(
        "trap '' HUP; {GPUMON} record --device sim:h200 -o {} --duration 2 >/dev/null 2>&1 & sleep 1; kill -HUP $!; wait $!",
        path.display()
    );
    assert_eq!(shell(&script).status.code(), Some(0));
    assert!(summary(&path)["duration_s"].as_f64().unwrap() >= 2.0);
}

#[test]
fn what_recover_cannot_keep_is_told_for_ever() {
    let (_folder, path) = scratch();
    record(&path, "sim:h200");
    fs::write(path.join("fast.parquet"), "").unwrap();
    let name = path.to_str().unwrap();
    assert!(gpumon(&["recover", name]).status.success());
    let damage = summary(&path)["losses"]["damage"].to_string();
    assert!(damage.contains("fast.parquet.damaged"), "{damage}");
    assert_eq!(gpumon(&["summary", name, "--strict"]).status.code(), Some(3));
}

#[test]
fn a_missing_table_is_named_and_recovered_from() {
    let (_folder, path) = scratch();
    record(&path, "sim:h200");
    fs::remove_file(path.join("ring.parquet")).unwrap();
    let name = path.to_str().unwrap();
    let output = gpumon(&["summary", name]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("ring.parquet"), "{}", text(&output));
    assert!(gpumon(&["recover", name]).status.success());
    assert!(summary(&path)["losses"]["damage"].to_string().contains("ring"));
}

#[test]
fn tables_of_other_kinds_and_other_recordings_are_refused_and_set_aside() {
    for (other, file) in [(false, "ring.parquet"), (true, "fast.parquet")] {
        let (folder, path) = scratch();
        record(&path, "sim:h200");
        let source = folder.path().join("b");
        record(&source, "sim:a100");
        let from = if other { source.join(file) } else { path.join(file) };
        fs::copy(from, path.join("fast.parquet")).unwrap();
        let name = path.to_str().unwrap();
        let output = gpumon(&["summary", name]);
        assert_eq!(output.status.code(), Some(1), "{}", text(&output));
        let recovered = gpumon(&["recover", name]);
        assert!(text(&recovered).contains("set aside"), "{}", text(&recovered));
        assert!(gpumon(&["summary", name]).status.success());
    }
}

#[test]
fn a_replay_ends_where_its_recording_ends() {
    let (folder, path) = scratch();
    record(&path, "sim:h200");
    let (device, again) = (format!("replay:{}", path.display()), folder.path().join("b"));
    let output = gpumon(&["record", "--device", &device, "-o", again.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    let duration_s = summary(&again)["duration_s"].as_f64().unwrap();
    assert!((0.7..1.2).contains(&duration_s), "{duration_s}");
    let itself = gpumon(&["record", "--device", &device, "-o", path.to_str().unwrap(), "--force"]);
    assert_eq!(itself.status.code(), Some(1));
    assert!(text(&itself).contains("into itself"));
}

#[test]
fn a_slow_fast_lane_does_not_shorten_a_killed_recording() {
    let (_folder, path) = scratch();
    let name = path.display();
    shell(&format!(
        "{GPUMON} record --device sim:h200 --rate 0.1 -o {name} 2>/dev/null & sleep 2.5; kill -9 $!; wait"
    ));
    assert!(summary(&path)["duration_s"].as_f64().unwrap() > 1.0);
}

#[test]
fn energy_without_ring_and_counter_says_how_little_was_seen() {
    let (folder, path) = scratch();
    let spec = folder.path().join("plain.toml");
    let text = "base = \"h200\"\n[sensors]\nunsupported = [\"ring\", \"energy_counter\", \"fan\"]\n";
    fs::write(&spec, text).unwrap();
    record(&path, &format!("sim:{}", spec.display()));
    let gpu = &summary(&path)["gpus"][0];
    assert_eq!(gpu["energy_method"], "instant");
    let j = |key: &str| gpu[key].as_f64().unwrap();
    assert!(0.0 < j("energy_j") && j("energy_low_j") < j("energy_j") && j("energy_j") < j("energy_high_j"));
    let unseen_j = gpu["energy_parts"]["coverage_j"].as_f64().unwrap();
    assert!(unseen_j > 0.0 && gpu["energy_counter_weight"] == 0.0, "{gpu}");
    assert_eq!((&gpu["gain_pct"], &gpu["raw"]), (&Value::from(5.0), &Value::Null));
}

#[test]
fn out_of_range_is_said_with_the_range() {
    let (folder, path) = scratch();
    record(&path, "sim:h200");
    let many = folder.path().join("many.toml");
    fs::write(&many, "base = \"h200\"\ncount = 100000000\n").unwrap();
    for (args, code, says) in [
        (vec!["summary", path.to_str().unwrap(), "--window", "10..60"], 1, "outside the recording"),
        (vec!["devices", "--device", &format!("sim:{}", many.display())], 1, "1024"),
        (vec!["record", "--device", "sim:h200", "-o", "x", "--rate", "-1"], 2, "0.1 to 1000"),
        (vec!["record", "--device", "sim:h200", "-o", "x", "--duration", "0"], 2, "1ms"),
    ] {
        let output = gpumon(&args);
        assert_eq!(output.status.code(), Some(code), "{args:?}");
        assert!(text(&output).contains(says), "{args:?}: {}", text(&output));
    }
}

#[test]
fn a_file_that_is_no_program_gives_126() {
    let (folder, path) = scratch();
    let bad = folder.path().join("bad");
    fs::write(&bad, [0x7f, b'E', b'L', b'F', 9, 9, 9, 9]).unwrap();
    fs::set_permissions(&bad, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let output =
        gpumon(&["run", "--device", "sim:h200", "-o", path.to_str().unwrap(), "--", bad.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(126), "{}", text(&output));
}

#[test]
fn what_would_be_ignored_or_cannot_be_is_refused_before_anything_runs() {
    let folder = tempfile::tempdir().unwrap();
    let workload = folder.path().join("w.toml");
    let model = |name: &str| format!("[[model]]\nname = \"{name}\"\nlatency_slo_ms = 100\nrate_rps = 10\n");
    let text =
        format!("[cluster]\ngpu = \"a100\"\nsharing = \"mps\"\n{}{}", model("bert-like"), model("gpt-like"));
    fs::write(&workload, text).unwrap();
    let (workload, path) =
        (workload.to_str().unwrap(), |name: &str| folder.path().join(name).display().to_string());
    let profile = |output: &str, more: &[&str]| {
        let sweep = [
            "profile",
            "--device",
            "sim:a100",
            "--clocks",
            "default",
            "--batches",
            "1,2",
            "--shares",
            "14,29",
            "-w",
        ];
        let output = path(output);
        gpumon(&[&sweep[..], &[workload, "-o", &output], more].concat())
    };
    for (more, says) in [
        (&["--together", "2", "--power-limits", "200"][..], "cannot be used with"),
        (&["--power-limits", "9999"], "9999 W is not possible; this GPU takes"),
        (&["--prior", "/no/such.csv"], "--prior is for designs that learn"),
        (&["--cap-w", "300"], "--cap-w is for designs that learn"),
    ] {
        let said = profile("p.csv", more);
        assert!(!said.status.success() && text_of(&said).contains(says), "{more:?}: {}", text_of(&said));
    }
    for output in ["sets.csv", "sets.parquet"] {
        assert!(profile(output, &["--together", "2"]).status.success());
        let said = gpumon(&["fit", &path(output), "-o", &path("m.json")]);
        assert!(!said.status.success() && text_of(&said).contains("as --sets"), "{}", text_of(&said));
    }
}

fn text_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
