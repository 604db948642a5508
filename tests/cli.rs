//! The whole program, as a person or a script calls it, on the simulated GPU.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is a test's report, in its helpers too")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

const GPUMON: &str = env!("CARGO_BIN_EXE_gpumon");

fn gpumon(args: &[&str]) -> Output {
    Command::new(GPUMON).args(args).env_remove("CUDA_VISIBLE_DEVICES").output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

struct Scratch(tempfile::TempDir);

impl Scratch {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn name(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }
}

fn record(name: &str, more: &[&str]) -> Output {
    gpumon(&[&["record", "--device", "sim:h200", "-o", name, "--duration", "1"], more].concat())
}

/// Fails with this code, says all of `says` on standard error in one line, and does not panic.
#[track_caller]
fn fails(output: &Output, code: i32, says: &[&str]) {
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
    for part in says {
        assert!(stderr.contains(part), "`{part}` is not in: {stderr}");
    }
}

#[test]
fn a_recording_can_be_summed_up_in_words_and_in_json() {
    let scratch = Scratch::new();
    let name = scratch.name("a");
    let output = record(&name, &["--json", "--rate", "100"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(summary["simulated"], true);
    assert_eq!(summary["state"], "complete");
    assert_eq!(summary["rows"].as_u64().unwrap() + summary["missed_ticks"].as_u64().unwrap(), 100);
    let gpu = &summary["gpus"][0];
    for key in ["energy_j", "energy_low_j", "energy_high_j", "power_mean_w", "power_p99_w", "power_max_w"] {
        assert!(gpu[key].as_f64().unwrap() > 0.0, "{key}: {gpu}");
    }
    assert_eq!(gpu["energy_method"], "ring");
    assert!(gpu["distinct_power_per_s"].as_f64().unwrap() > 40.0);

    let again = gpumon(&["summary", &name, "--window", "0.2..0.7", "--json"]);
    let again: Value = serde_json::from_slice(&again.stdout).unwrap();
    assert_eq!(again["windows"][0]["name"], "0.2..0.7");
    assert_eq!(again["windows"][0]["duration_s"], 0.5);
    let words = text(&gpumon(&["summary", &name]).stdout);
    assert!(words.contains("simulated") && words.contains(" W") && words.contains("ring"), "{words}");
}

#[test]
fn six_tables_and_a_header_are_all_there_is() {
    let scratch = Scratch::new();
    assert!(record(&scratch.name("a"), &[]).status.success());
    let mut files: Vec<_> = std::fs::read_dir(scratch.path("a"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    assert_eq!(
        files,
        [
            "counter.parquet",
            "events.parquet",
            "fast.parquet",
            "process.parquet",
            "recording.json",
            "ring.parquet",
            "slow.parquet"
        ]
    );
}

#[test]
fn a_recording_is_replaced_only_by_force() {
    let scratch = Scratch::new();
    let name = scratch.name("a");
    assert!(record(&name, &[]).status.success());
    fails(&record(&name, &[]), 1, &["already holds a recording", "--force"]);
    assert!(record(&name, &["--force"]).status.success());
    std::fs::create_dir(scratch.path("mine")).unwrap();
    std::fs::write(scratch.path("mine/thesis.txt"), "years of work").unwrap();
    fails(&record(&scratch.name("mine"), &["--force"]), 1, &["not a recording"]);
    assert!(scratch.path("mine/thesis.txt").exists(), "force is for recordings alone");
}

#[test]
fn bad_arguments_name_what_was_expected() {
    let scratch = Scratch::new();
    let name = scratch.name("a");
    fails(&record(&name, &["--rate", "0"]), 2, &["0.1 to 1000"]);
    fails(&record(&name, &["--rate", "5000"]), 2, &["0.1 to 1000"]);
    fails(&record(&name, &["--gpu", "7"]), 1, &["`7`", "GPU-"]);
    fails(
        &gpumon(&["record", "--device", "sim:h200", "-o", &name, "--duration", "soon"]),
        2,
        &["such as 30"],
    );
    fails(&gpumon(&["record", "--device", "sim:b7", "-o", &name]), 1, &["sim:b7", "sim:h200"]);
    fails(
        &gpumon(&["record", "--device", "sim:h200", "-o", &name, "--pid", "2147483647"]),
        1,
        &["no process"],
    );
    fails(
        &gpumon(&["record", "--device", "sim:h200", "-o", "/proc/no/such", "--duration", "1"]),
        1,
        &["/proc"],
    );
    fails(&gpumon(&["summary", &name]), 1, &[&name]);
    fails(&gpumon(&["recover", &name]), 1, &[&name]);
    fails(&gpumon(&["frobnicate"]), 2, &["frobnicate"]);
    assert!(!Path::new(&name).exists(), "nothing is left behind");
}

#[test]
fn without_a_driver_the_simulated_gpu_is_named() {
    if Path::new("/proc/driver/nvidia/version").exists() {
        eprintln!("skipped: this machine has an NVIDIA driver");
        return;
    }
    fails(&gpumon(&["devices"]), 1, &["no NVIDIA driver", "--device sim:h200"]);
    let scratch = Scratch::new();
    fails(&gpumon(&["record", "-o", &scratch.name("a")]), 1, &["no NVIDIA driver", "--device sim:h200"]);
    fails(&gpumon(&["run", "-o", &scratch.name("a"), "--", "true"]), 125, &["no NVIDIA driver"]);
}

#[test]
fn several_gpus_and_ambiguous_prefixes() {
    let scratch = Scratch::new();
    let spec = scratch.path("two.toml");
    std::fs::write(&spec, "base = \"h200\"\ncount = 2\n").unwrap();
    let device = format!("sim:{}", spec.display());
    let listed: Value =
        serde_json::from_slice(&gpumon(&["devices", "--device", &device, "--json"]).stdout).unwrap();
    assert_eq!(listed["gpus"].as_array().unwrap().len(), 2);
    let uuid = |i: usize| listed["gpus"][i]["uuid"].as_str().unwrap().to_owned();
    fails(
        &gpumon(&["devices", "--device", &device, "--gpu", "GPU-"]),
        1,
        &["more than one", &uuid(0), &uuid(1)],
    );
    let one = gpumon(&["devices", "--device", &device, "--gpu", &uuid(1)[..12], "--json"]);
    let one: Value = serde_json::from_slice(&one.stdout).unwrap();
    assert_eq!(one["gpus"][0]["uuid"], uuid(1));

    let visible = |value: &str| {
        let name = scratch.name("v");
        let output = Command::new(GPUMON)
            .args(["run", "--device", &device, "-o", &name, "--force", "--tail", "0", "--", "true"])
            .env("CUDA_VISIBLE_DEVICES", value)
            .output()
            .unwrap();
        (output, name)
    };
    let (output, name) = visible(&uuid(1));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let header: Value =
        serde_json::from_str(&std::fs::read_to_string(format!("{name}/recording.json")).unwrap()).unwrap();
    assert_eq!(header["gpus"].as_array().unwrap().len(), 1);
    assert_eq!(header["gpus"][0]["uuid"], uuid(1));
    fails(&visible("").0, 125, &["CUDA_VISIBLE_DEVICES"]);
}

#[test]
fn run_passes_the_exit_code_and_standard_output_through() {
    let scratch = Scratch::new();
    let (name, summary) = (scratch.name("a"), scratch.name("summary.json"));
    let output = gpumon(&[
        "run",
        "--device",
        "sim:h200",
        "-o",
        &name,
        "--tail",
        "100ms",
        "--summary",
        &summary,
        "--price-per-kwh",
        "0.3",
        "--carbon-g-per-kwh",
        "490",
        "--",
        "sh",
        "-c",
        "echo from the command; sleep 0.5; exit 7",
    ]);
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(text(&output.stdout), "from the command\n", "the command owns standard output");
    let stderr = text(&output.stderr);
    for word in ["command", " J", " W", "MHz", "idle", "gCO2e", "cost"] {
        assert!(stderr.contains(word), "`{word}` is not in: {stderr}");
    }
    let summary: Value = serde_json::from_str(&std::fs::read_to_string(summary).unwrap()).unwrap();
    let window = &summary["windows"][0];
    assert_eq!(window["name"], "command");
    assert!(window["duration_s"].as_f64().unwrap() >= 0.5);
    assert!(window["gpus"][0]["energy_j"].as_f64().unwrap() > 0.0);
    assert!(summary["carbon_g"].as_f64().unwrap() > 0.0);
}

#[test]
fn run_says_what_it_cannot_run_before_it_records() {
    let scratch = Scratch::new();
    let name = scratch.name("a");
    let run = |cmd: &str| gpumon(&["run", "--device", "sim:h200", "-o", &name, "--", cmd]);
    fails(&run("no-such-command-anywhere"), 127, &["no-such-command-anywhere"]);
    fails(&run("/nowhere/at/all"), 127, &["/nowhere/at/all"]);
    let text = scratch.name("text");
    std::fs::write(&text, "no program").unwrap();
    fails(&run(&text), 126, &["not executable"]);
    assert!(!Path::new(&name).exists());
}

fn spawn(args: &[&str]) -> std::process::Child {
    Command::new(GPUMON).args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn wait_for(path: &Path) {
    for _ in 0..500 {
        if path.exists() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("{} never came", path.display());
}

fn kill(child: &std::process::Child, signal: &str) {
    assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
}

#[test]
fn signals_end_a_recording_cleanly() {
    let scratch = Scratch::new();
    for (index, (signal, more, code)) in [
        ("-INT", &[][..], 0),
        ("-TERM", &[][..], 0),
        ("-HUP", &[][..], 0),
        ("-INT", &["--duration", "60"][..], 130),
    ]
    .into_iter()
    .enumerate()
    {
        let name = scratch.name(&index.to_string());
        let child = spawn(&[&["record", "--device", "sim:h200", "-o", &name], more].concat());
        wait_for(&Path::new(&name).join("journal"));
        std::thread::sleep(Duration::from_millis(300));
        kill(&child, signal);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{signal}: {}", text(&output.stderr));
        let header: Value =
            serde_json::from_str(&std::fs::read_to_string(format!("{name}/recording.json")).unwrap())
                .unwrap();
        assert_eq!(header["state"], "complete", "{signal}");
    }
}

#[test]
fn run_passes_signals_on() {
    let scratch = Scratch::new();
    let name = scratch.name("a");
    let ready = scratch.path("ready");
    let script = format!("trap 'exit 42' TERM; touch {}; while :; do sleep 0.05; done", ready.display());
    let child =
        spawn(&["run", "--device", "sim:h200", "-o", &name, "--tail", "0", "--", "sh", "-c", &script]);
    wait_for(&ready);
    kill(&child, "-TERM");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(42), "{}", text(&output.stderr));
}

#[test]
fn a_command_that_a_signal_ends_gives_128_and_the_signal() {
    let scratch = Scratch::new();
    let output = gpumon(&[
        "run",
        "--device",
        "sim:h200",
        "-o",
        &scratch.name("a"),
        "--tail",
        "0",
        "--",
        "sh",
        "-c",
        "kill -9 $$",
    ]);
    assert_eq!(output.status.code(), Some(137));
}

#[test]
fn a_process_that_ends_ends_the_recording() {
    let scratch = Scratch::new();
    let mut sleeper = Command::new("sleep").arg("0.7").spawn().unwrap();
    let pid = sleeper.id().to_string();
    let recorder = spawn(&["record", "--device", "sim:h200", "-o", &scratch.name("a"), "--pid", &pid]);
    sleeper.wait().unwrap();
    assert!(recorder.wait_with_output().unwrap().status.success());
}

#[test]
fn a_live_recording_can_be_summed_up_and_is_not_recovered() {
    let scratch = Scratch::new();
    let name = scratch.name("a");
    let child = spawn(&["record", "--device", "sim:h200", "-o", &name]);
    wait_for(&Path::new(&name).join("journal"));
    std::thread::sleep(Duration::from_millis(1_500));
    let summary = gpumon(&["summary", &name, "--json"]);
    assert!(summary.status.success(), "{}", text(&summary.stderr));
    let summary: Value = serde_json::from_slice(&summary.stdout).unwrap();
    assert_eq!(summary["state"], "recording");
    assert!(summary["rows"].as_u64().unwrap() > 3);
    fails(&gpumon(&["recover", &name]), 1, &["still being written", &child.id().to_string()]);
    kill(&child, "-INT");
    assert!(child.wait_with_output().unwrap().status.success());
}

#[test]
fn damage_and_the_future_are_named() {
    let scratch = Scratch::new();
    let name = scratch.name("a");
    assert!(record(&name, &[]).status.success());
    let header = scratch.path("a/recording.json");
    let whole = std::fs::read_to_string(&header).unwrap();
    std::fs::write(&header, whole.replace("\"schema\": 1", "\"schema\": 99")).unwrap();
    fails(&gpumon(&["summary", &name]), 1, &["schema version 99", "or newer"]);
    std::fs::write(&header, &whole[..whole.len() / 2]).unwrap();
    fails(&gpumon(&["summary", &name]), 1, &["recording.json", "damaged"]);
    std::fs::write(&header, whole).unwrap();
    let table = scratch.path("a/ring.parquet");
    let bytes = std::fs::read(&table).unwrap();
    std::fs::write(&table, &bytes[..bytes.len() - 20]).unwrap();
    fails(&gpumon(&["summary", &name]), 1, &["ring.parquet", "damaged", "recover"]);
    let recovered = gpumon(&["recover", &name]);
    assert!(recovered.status.success(), "{}", text(&recovered.stderr));
    assert!(text(&recovered.stdout).contains("set aside"), "{}", text(&recovered.stdout));
    assert!(gpumon(&["summary", &name]).status.success());
}

#[test]
fn a_recording_can_be_replayed() {
    let scratch = Scratch::new();
    assert!(record(&scratch.name("a"), &[]).status.success());
    let device = format!("replay:{}", scratch.name("a"));
    let output = gpumon(&["record", "--device", &device, "-o", &scratch.name("b"), "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(summary["simulated"], true);
    assert!(summary["gpus"][0]["ring_readings"].as_u64().unwrap() > 30);
}

#[test]
fn a_full_disk_ends_the_recording_with_what_is_there() {
    let scratch = Scratch::new();
    let name = scratch.name("a");
    // A limit on file size is refused like a full disk, and needs no privilege. It leaves room for the
    // reserve of 1 MiB; sixteen GPUs fill as much journal in a few seconds.
    let spec = scratch.path("sixteen.toml");
    std::fs::write(&spec, "base = \"h200\"\ncount = 16\n").unwrap();
    let device = format!("sim:{}", spec.display());
    let script =
        format!("ulimit -f 1100; exec {GPUMON} record --device {device} --rate 1000 -o {name} --duration 60");
    let output = Command::new("bash").args(["-c", &script]).output().unwrap();
    fails(&output, 1, &["no room"]);
    let summary = gpumon(&["summary", &name, "--json"]);
    assert!(summary.status.success(), "{}", text(&summary.stderr));
    let summary: Value = serde_json::from_slice(&summary.stdout).unwrap();
    assert_eq!(summary["state"], "storage_failed");
    assert!(summary["rows"].as_u64().unwrap() > 300, "{summary}");
    assert!(gpumon(&["recover", &name]).status.success());
}
