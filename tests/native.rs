//! Native nets and green contexts through the whole program, on a machine without a GPU.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is a test's report, in its helpers too")]

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use gpumon_core::profile_io;

const GPUMON: &str = env!("CARGO_BIN_EXE_gpumon");

/// A sweep of one model on a simulated GPU, or the real one.
fn sweep(folder: &Path, sharing: &str, run: &str, device: &[&str]) -> Output {
    let workload = folder.join("w.toml");
    let text = format!(
        "[cluster]\ngpu = \"a100\"\nsharing = \"{sharing}\"\n\n[[model]]\nname = \"bert-like\"\nlatency_slo_ms = 100\n\
         rate_rps = 10\n{run}\n"
    );
    fs::write(&workload, text).unwrap();
    Command::new(GPUMON)
        .args(["profile", "--batches", "1,8", "--shares", "14,50,100", "--clocks", "default", "-w"])
        .arg(&workload)
        .arg("-o")
        .arg(folder.join("p.csv"))
        .args(device)
        .output()
        .unwrap()
}

#[test]
fn green_shares_are_numbers_of_sms() {
    let folder = tempfile::tempdir().unwrap();
    let output = sweep(folder.path(), "green", "", &["--device", "sim:a100"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows = profile_io::read(&folder.path().join("p.csv")).unwrap().rows;
    let mut sms: Vec<_> = rows
        .iter()
        .filter(|row| !row.is_idle())
        .map(|row| {
            assert_eq!((row.share_kind.as_deref(), row.mig_slices, row.valid), (Some("green"), None, true));
            (row.share * 108.0).round() as u32
        })
        .collect();
    sms.dedup();
    assert_eq!(sms, [16, 54, 108]);
}

#[test]
fn a_plan_of_green_contexts_is_refused_with_a_way_out() {
    let folder = tempfile::tempdir().unwrap();
    assert!(sweep(folder.path(), "green", "", &["--device", "sim:a100"]).status.success());
    let (workload, profile) = (folder.path().join("w.toml"), folder.path().join("p.csv"));
    let output = Command::new(GPUMON)
        .args(["place", "--system", "fgd", "-w"])
        .args([
            &workload,
            Path::new("--profile"),
            &profile,
            Path::new("-o"),
            &folder.path().join("plan.json"),
        ])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("`green`") && said.contains("`mps`"), "{said}");
}

#[test]
fn a_net_that_is_none_is_said_before_anything_runs() {
    let folder = tempfile::tempdir().unwrap();
    let ask = |net: &str| {
        let output = Command::new(GPUMON).args(["__worker", net]).stdin(Stdio::null()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(ask("alexnet").contains("expected `native:convnet`"));
    assert!(ask("/no/net.toml").contains("`/no/net.toml` cannot be read"));
    let path = folder.path().join("net.toml");
    fs::write(&path, "[[block]]\nlayers = [{ kind = \"gemm\", rows = 1, inputs = 9, outputs = 8 }]\n")
        .unwrap();
    let said = ask(path.to_str().unwrap());
    assert!(said.contains("net.toml") && said.contains("block 1, layer 1: `inputs` is 9"), "{said}");
}

#[test]
fn the_worker_speaks_the_protocol_and_says_what_is_lacking() {
    let mut child = Command::new(GPUMON)
        .args(["__worker", "convnet"])
        // No driver is found here, and no GPU where there is one.
        .env("CUDA_VISIBLE_DEVICES", "none")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let asks = "{\"op\":\"batch\"}\n{\"op\":\"context\"}\n{\"op\":\"load\",\"batch\":1}\n{\"op\":\"quit\"}\n";
    child.stdin.take().unwrap().write_all(asks.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let said: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&said[0]["name"], &said[0]["green"]), (&"convnet".into(), &true.into()));
    let kinds: Vec<_> = said[1..].iter().map(|a| a["error"]["kind"].as_str().unwrap_or("")).collect();
    assert_eq!(kinds, ["failed", "fatal", "fatal", ""], "{text}");
}
