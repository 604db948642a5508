//! The demo: everything it promises is there, says that it is simulated, and can be made again.
#![allow(clippy::unwrap_used, reason = "a panic is a test's report, in its helpers too")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn gpumon(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gpumon")).args(args).current_dir(folder).output().unwrap()
}

#[test]
fn the_demo_runs_the_commands_and_leaves_a_page() {
    let desk = tempfile::tempdir().unwrap();
    let demo = || gpumon(desk.path(), &["demo", "-o", "it's here", "--json"]);
    let output = demo();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert!(stderr.contains("$ gpumon profile") && stderr.contains("simulated"), "{stderr}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["simulated"], true);
    let loads = report["loads"].as_array().unwrap();
    assert_eq!(
        loads.iter().map(|l| l["load"].as_f64().unwrap()).collect::<Vec<_>>(),
        [0.25, 0.5, 0.75, 1.0, 1.25]
    );
    for load in loads {
        let watts = |key: &str| load[key].as_f64().unwrap();
        assert!(watts("average_power_w") < watts("dedicated_average_power_w"), "{load}");
    }

    let folder = desk.path().join("it's here");
    let page = fs::read_to_string(folder.join("demo.html")).unwrap();
    assert!(page.matches("<svg").count() >= 3 + loads.len() && page.contains("<b>simulated</b>"));
    assert!(!page.contains("<script") && !page.contains("src=") && !page.contains("<link"), "self-contained");
    for plan in loads {
        let pct = plan["load"].as_f64().unwrap() * 100.0;
        let text = fs::read_to_string(folder.join(format!("plan-enertune-{pct}.json"))).unwrap();
        let plan: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(plan["simulated"], true);
    }
    for file in ["models.json", "sweep/recording.json"] {
        let text = fs::read_to_string(folder.join(file)).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["simulated"], true, "{file}");
    }
    let summary = gpumon(desk.path(), &["summary", "it's here/sweep", "--json"]);
    let summary: Value = serde_json::from_slice(&summary.stdout).unwrap();
    assert!(summary["duration_s"].as_f64().unwrap() > 300.0 && summary["missed_ticks"] == 0);

    // A command that the page shows does the same again.
    let command = report["commands"][1].as_str().unwrap();
    let again = Command::new("/bin/sh")
        .args(["-c", &format!("{command} --force")])
        .env("PATH", Path::new(env!("CARGO_BIN_EXE_gpumon")).parent().unwrap())
        .current_dir(desk.path())
        .output()
        .unwrap();
    assert!(again.status.success(), "{command}: {}", String::from_utf8_lossy(&again.stderr));

    for left in [".models.json.123.part", ".profile.parquet.7.tmp", "profile.parquet.journal"] {
        fs::write(folder.join(left), "half").unwrap();
    }
    assert!(demo().status.success(), "an earlier demo is made anew, one that was killed too");
    assert!(!folder.join(".models.json.123.part").exists());
    let script = format!(
        "exec 2>err; {} demo -o stopped >out & until [ -e stopped/profile.parquet.journal ]; do sleep 0.01; done; \
         kill -INT $!; wait $!",
        env!("CARGO_BIN_EXE_gpumon")
    );
    let stopped = Command::new("bash").args(["-mc", &script]).current_dir(desk.path()).status().unwrap();
    let said = fs::read_to_string(desk.path().join("err")).unwrap();
    assert_eq!(stopped.code(), Some(130), "{said}");
    assert!(
        said.trim_end().ends_with("started again it removes what is in `stopped` and begins anew"),
        "{said}"
    );

    fs::write(folder.join("thesis.txt"), "").unwrap();
    let refused = demo();
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("thesis.txt"));
    assert!(folder.join("models.json").exists(), "nothing is removed from a folder that is not the demo's");
}
