//! `gpumon report` of a model file: the page holds what the file says, by itself, and damaged files are refused.
#![allow(clippy::unwrap_used, reason = "a panic is a test's report, in its helpers too")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

const WORKLOAD: &str = "[cluster]\ngpu = \"a100\"\nsharing = \"mig\"\n
[[model]]\nname = \"resnet50-like\"\nlatency_slo_ms = 60\nrate_rps = 600\n
[[model]]\nname = \"bert-like\"\nlatency_slo_ms = 120\nrate_rps = 60\n";

fn gpumon(folder: &Path, args: &str) -> Output {
    let args = args.split_whitespace();
    Command::new(env!("CARGO_BIN_EXE_gpumon")).args(args).current_dir(folder).output().unwrap()
}

#[track_caller]
fn works(folder: &Path, args: &str) -> String {
    let output = gpumon(folder, args);
    assert!(output.status.success(), "{args}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn fails(folder: &Path, args: &str, says: &str) {
    let output = gpumon(folder, args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(matches!(output.status.code(), Some(1 | 2)), "{args}: {:?}", output.status);
    assert!(stderr.contains(says) && !stderr.contains("panicked"), "{args}: {stderr}");
}

/// Dots of each picture: a stroke without length each.
fn dots(page: &str) -> Vec<usize> {
    page.split("<svg").skip(1).map(|svg| svg.split("</svg>").next().unwrap().matches("h0").count()).collect()
}

#[test]
fn a_model_file_becomes_a_page() {
    let desk = tempfile::tempdir().unwrap();
    let folder = desk.path();
    fs::write(folder.join("w.toml"), WORKLOAD).unwrap();
    works(folder, "profile --device sim:a100 -w w.toml -o p.csv --design lhs:0.2 --clocks 600,1005,1410");
    works(folder, "fit p.csv -o m.json --held-out h.csv");
    let said: Value = serde_json::from_str(&works(folder, "report m.json --json")).unwrap();
    let page = fs::read_to_string(folder.join("m.html")).unwrap();
    let held_out = fs::read_to_string(folder.join("h.csv")).unwrap().lines().count() - 1;
    assert_eq!((&said["held_out_points"], &said["simulated"]), (&held_out.into(), &true.into()));

    assert!(page.contains("<b>simulated</b>") && page.contains("(simulated)"));
    assert!(!page.contains("<script") && !page.contains("src=") && !page.contains("<link"), "self-contained");
    for svg in page.split("<svg").skip(1) {
        let svg = format!("<svg{}</svg>", svg.split("</svg>").next().unwrap());
        roxmltree::Document::parse(&svg).unwrap();
    }
    // Held-out points, then residuals and two pictures of surfaces a model.
    let dots = dots(&page);
    assert_eq!(dots.len(), 1 + 2 * 3);
    assert_eq!(dots[0], 3 * held_out, "power, dynamic power and time of each point");
    assert_eq!(dots[1] + dots[4], 9 * held_out, "three figures along clock, batch and share");
    assert!(dots[2] > 0 && dots[3] > 0, "measured values on the surfaces: {dots:?}");
    let table: Value = serde_json::from_str(&fs::read_to_string(folder.join("m.json")).unwrap()).unwrap();
    let median = table["models"][0]["held_out"]["total_power"]["median_pct"].as_f64().unwrap();
    assert!(page.contains(&format!("{median:.2} / ")), "the errors of the file stand in the page");

    // One clock: no panels along it. An older file has no points: surfaces alone, and the page says why.
    works(folder, "profile --device sim:a100 -w w.toml -o one.csv --clocks 1410");
    works(folder, "fit one.csv -o one.json");
    let shown = works(folder, "report one.json -o -");
    assert!(shown.contains("batch (items)") && !shown.contains("clock (MHz)"));
    let mut older = table;
    for model in older["models"].as_array_mut().unwrap() {
        model.as_object_mut().unwrap().remove("held_out_points").unwrap();
        model["name"] = format!("<{}>\u{1b}", model["name"].as_str().unwrap()).into();
    }
    fs::write(folder.join("older.json"), older.to_string()).unwrap();
    let shown = works(folder, "report older.json -o -");
    assert!(shown.contains("keeps no points") && shown.contains("&lt;bert-like&gt;"));
    assert!(!shown.contains("<bert-like") && !shown.contains('\u{1b}'), "text of a file stays text");
    assert!(shown.matches("<svg").count() == 4);
}

#[test]
fn what_is_no_model_file_is_refused() {
    let desk = tempfile::tempdir().unwrap();
    let folder = desk.path();
    fs::write(folder.join("plan.json"), "{\"schema\":1,\"system\":\"enertune\"}").unwrap();
    fs::write(folder.join("there.html"), "mine").unwrap();
    fails(folder, "report plan.json", "`gpumon fit` makes");
    fails(folder, "report none.json", "none.json");
    fails(folder, "report .", "is a folder");
    fails(folder, "report plan.json -o plan.json", "name another file");
    fails(folder, "report plan.json -o - --json", "both write to standard output");
    assert_eq!(fs::read_to_string(folder.join("there.html")).unwrap(), "mine");
}
