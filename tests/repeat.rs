//! Repeated runs and comparisons, on a simulated GPU.
#![allow(clippy::unwrap_used, reason = "a panic is a test's report, in its helpers too")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn gpumon(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gpumon")).args(args).current_dir(folder).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn quantity<'a>(report: &'a Value, name: &str) -> &'a Value {
    report["quantities"].as_array().unwrap().iter().find(|q| q["name"] == name).unwrap()
}

#[test]
fn two_commands_by_turns_are_told_apart_by_their_time() {
    let desk = tempfile::tempdir().unwrap();
    let run = |more: &[&str], command: &[&str]| {
        let start = ["run", "--device", "sim:h200", "--tail", "0", "-o", "set"];
        gpumon(desk.path(), &[&start[..], more, &["--"], command].concat())
    };
    let both = ["sleep", "0.2", "--vs", "sleep", "0.5"];
    let output = run(&["--repeat", "3", "--warmup", "1", "--summary", "diff.json"], &both);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("simulated"), "{}", text(&output.stderr));
    let runs: Value =
        serde_json::from_str(&fs::read_to_string(desk.path().join("set/runs.json")).unwrap()).unwrap();
    let names: Vec<&str> =
        runs["runs"].as_array().unwrap().iter().map(|r| r["recording"].as_str().unwrap()).collect();
    let by_turns = ["warmup-a-001", "warmup-b-001", "b-001", "a-001", "a-002", "b-002", "b-003", "a-003"];
    assert_eq!(names, by_turns);
    let report: Value =
        serde_json::from_str(&fs::read_to_string(desk.path().join("diff.json")).unwrap()).unwrap();
    let time = quantity(&report, "time");
    assert_eq!(
        (&time["differs"], &time["method"], &time["a"]["n"]),
        (&true.into(), &"paired".into(), &3.into())
    );
    assert!((time["difference"].as_f64().unwrap() - 0.3).abs() < 0.15, "{time}");
    assert_eq!((&report["simulated"], &report["window"]), (&true.into(), &"command".into()));
    let again: Value =
        serde_json::from_slice(&gpumon(desk.path(), &["diff", "set", "--json"]).stdout).unwrap();
    assert_eq!(again, report, "the folder says the same again");

    let single = gpumon(desk.path(), &["diff", "set/a-001", "set/a-002"]);
    assert!(text(&single.stdout).contains("one run each"), "{}", text(&single.stdout));
    let refused = run(&["--repeat", "2"], &["true"]);
    assert_eq!(refused.status.code(), Some(125));
    assert!(text(&refused.stderr).contains("--force"), "{}", text(&refused.stderr));
    fs::write(desk.path().join("set/thesis.txt"), "").unwrap();
    assert_eq!(run(&["--repeat", "2", "--force"], &["true"]).status.code(), Some(125));
    assert!(desk.path().join("set/thesis.txt").exists());
}

#[test]
fn a_failing_command_ends_the_set_with_its_code_and_keeps_what_was_made() {
    let desk = tempfile::tempdir().unwrap();
    let script = "n=$(cat n 2>/dev/null || echo 0); echo $((n + 1)) >n; test $n -lt 2 || exit 7";
    let set =
        ["run", "--device", "sim:h200", "--tail", "0", "-o", "s", "--warmup", "0", "--repeat", "9", "--"];
    let output = gpumon(desk.path(), &[&set[..], &["sh", "-c", script]].concat());
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("a-003 ended with exit code 7"), "{}", text(&output.stderr));
    let report = gpumon(desk.path(), &["diff", "s"]);
    assert!(
        report.status.success() && text(&report.stdout).contains("95 % interval"),
        "{}",
        text(&report.stderr)
    );
}

#[test]
fn what_cannot_be_compared_says_why() {
    let desk = tempfile::tempdir().unwrap();
    let bad = |file: &str, content: &str| {
        fs::create_dir_all(desk.path().join(file)).unwrap();
        fs::write(desk.path().join(file).join("runs.json"), content).unwrap();
    };
    bad("newer", "{\"schema\": 9}");
    bad("broken", "{");
    bad(
        "outside",
        r#"{"schema":1,"gpumon":"0","commands":[["x"]],"runs":[{"recording":"../x","command":0,"warmup":false,"exit_code":0}]}"#,
    );
    bad("empty", r#"{"schema":1,"gpumon":"0","commands":[["x"]],"runs":[]}"#);
    for (args, says) in [
        (&["diff", "nowhere"][..], "no set of runs"),
        (&["diff", "nowhere", "elsewhere"], "nowhere"),
        (&["diff", "newer"], "schema 9"),
        (&["diff", "broken"], "runs.json"),
        (&["diff", "outside"], "no name of a recording"),
        (&["diff", "empty"], "no run that counts"),
        (&["run", "--device", "sim:h200", "-o", "x", "--repeat", "2", "--", "a", "--vs"], "two with `--vs`"),
        (&["run", "--device", "sim:h200", "-o", "x", "--warmup", "2", "--", "true"], "--repeat"),
        (&["run", "--device", "sim:h200", "-o", "x", "--repeat", "0", "--", "true"], "1..=999"),
    ] {
        let output = gpumon(desk.path(), args);
        assert!(
            !output.status.success() && text(&output.stderr).contains(says),
            "{args:?}: {}",
            text(&output.stderr)
        );
    }
    assert!(!desk.path().join("x").exists());
}
