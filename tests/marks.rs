//! Marks and windows from the command, its output, and other processes; and the Python context manager.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is a test's report, in its helpers too")]

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// gpumon with a runtime folder of its own, so that no other recording is in sight.
fn gpumon(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpumon"));
    command.current_dir(folder).env("XDG_RUNTIME_DIR", folder).env_remove("GPUMON_SOCKET");
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn summary(folder: &Path, name: &str) -> Value {
    let output = gpumon(folder).args(["summary", name, "--json"]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The only window of this name: start and length, s.
fn window(summary: &Value, name: &str) -> (f64, f64) {
    let windows = summary["windows"].as_array().unwrap();
    let found: Vec<&Value> = windows.iter().filter(|w| w["name"] == name).collect();
    assert_eq!(found.len(), 1, "{name} in {windows:?}");
    (found[0]["from_s"].as_f64().unwrap(), found[0]["duration_s"].as_f64().unwrap())
}

fn run(folder: &Path, name: &str, more: &[&str], script: &str) -> Output {
    let mut command = gpumon(folder);
    command.args(["run", "--device", "sim:h200", "--tail", "0.1", "-o", name]).args(more);
    let output = command.args(["--", "sh", "-c", script]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    output
}

#[test]
fn a_command_sets_marks_through_its_environment_and_its_output() {
    let desk = tempfile::tempdir().unwrap();
    let exe = env!("CARGO_BIN_EXE_gpumon");
    let script =
        format!("{exe} begin load && sleep 0.3 && {exe} end load && {exe} mark done; test -S $GPUMON_SOCKET");
    run(desk.path(), "env", &[], &script);
    let seen = summary(desk.path(), "env");
    let (from_s, length_s) = window(&seen, "load");
    assert!((0.3..1.5).contains(&length_s) && from_s < 2.0, "{from_s} {length_s}");
    assert_eq!(seen["events"]["mark"], 1);
    assert!(seen["windows"][0]["gpus"][0]["energy_j"].as_f64().unwrap() > 0.0);

    let script = format!("{exe} begin load; {exe} end laod; {exe} end laod; {exe} end load");
    let output = run(desk.path(), "typo", &[], &script);
    let says = "the window `laod` was ended and never begun";
    assert_eq!((text(&output.stdout) + &text(&output.stderr)).matches(says).count(), 1, "{output:?}");
    let seen = summary(desk.path(), "typo");
    assert_eq!(seen["never_begun"], serde_json::json!(["laod"]));

    let script = "echo epoch 1; sleep 0.3; printf 'epoch 2\\nno newline'";
    let pattern = "^epoch (?<begin>\\d+)";
    let output = run(desk.path(), "lines", &["--mark-regex", pattern, "--mark-regex", "new.*"], script);
    assert_eq!(text(&output.stdout), "epoch 1\nepoch 2\nno newline", "the output is the command's");
    let seen = summary(desk.path(), "lines");
    let ((first, _), (second, _)) = (window(&seen, "1"), window(&seen, "2"));
    assert!((0.25..1.5).contains(&(second - first)), "{first} {second}");
    assert_eq!(seen["events"]["mark"], 1);

    let output = gpumon(desk.path())
        .args(["run", "--device", "sim:h200", "-o", "bad", "--mark-regex", "(", "--", "true"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("unclosed group"));
}

#[test]
fn another_process_marks_a_recording_and_python_has_a_context_manager() {
    let desk = tempfile::tempdir().unwrap();
    let nobody = gpumon(desk.path()).args(["mark", "x"]).output().unwrap();
    assert_eq!(nobody.status.code(), Some(1));
    assert!(text(&nobody.stderr).contains("no recording"), "{}", text(&nobody.stderr));

    let mut recording = gpumon(desk.path())
        .args(["record", "--device", "sim:h200", "-o", "r"])
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    while !gpumon(desk.path()).args(["mark", "first"]).output().unwrap().status.success() {
        assert!(begun.elapsed() < Duration::from_secs(20), "the recording does not take marks");
        std::thread::sleep(Duration::from_millis(50));
    }
    let python = "import time, gpumon_window as g\n\
                  with g.window('epoch 1'):\n  time.sleep(0.3)\n\
                  g.mark('after')\n";
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts");
    let socket = std::fs::read_dir(desk.path())
        .unwrap()
        .flatten()
        .find(|entry| entry.file_name().to_string_lossy().starts_with("gpumon-"))
        .unwrap()
        .path()
        .join("marks");
    let output = Command::new("python3")
        .args(["-c", python])
        .env("PYTHONPATH", scripts)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("GPUMON_SOCKET", socket)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let long = gpumon(desk.path()).args(["begin", &"x".repeat(201)]).output().unwrap();
    assert!(text(&long.stderr).contains("1 to 200 bytes"), "{}", text(&long.stderr));
    Command::new("kill").args(["-INT", &recording.id().to_string()]).status().unwrap();
    assert!(recording.wait().unwrap().success());
    let seen = summary(desk.path(), "r");
    let (_, length_s) = window(&seen, "epoch 1");
    assert!((0.3..1.5).contains(&length_s), "{length_s}");
    assert_eq!(seen["events"]["mark"], 2);
    let left = std::fs::read_dir(desk.path()).unwrap().flatten();
    assert_eq!(left.filter(|e| e.file_name().to_string_lossy().starts_with("gpumon-")).count(), 0);
}
