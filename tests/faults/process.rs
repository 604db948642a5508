//! What befalls the recording process: signals, kills, full disks, a second recorder.
#![allow(unsafe_code, reason = "a test that runs under nohup lets its child hear SIGHUP")]

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gpumon_core::rows::{FastRow, RingRow};
use gpumon_fakenvml::testing::Fake;
use gpumon_monitor::store::Reader;
use serde_json::Value;

use super::helpers::*;
use super::{ends, until};

const GPUMON: &str = env!("CARGO_BIN_EXE_gpumon");

fn start(fake: &Fake, more: &[&str]) -> Child {
    let path = recording(fake);
    let args = [&["record", "-o", path.to_str().unwrap()], more].concat();
    let mut command = command(fake, &args);
    // SAFETY: between fork and exec only a signal's action is set.
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGHUP, libc::SIG_DFL);
            Ok(())
        })
    };
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn state(path: &Path) -> Value {
    let header: Value = serde_json::from_slice(&std::fs::read(path.join("recording.json")).unwrap()).unwrap();
    header["state"].clone()
}

/// Waits until so many rows of the fast lane can be read.
#[track_caller]
fn has_rows(fake: &Fake, count: usize) {
    let path = recording(fake);
    until(20, "rows", || Reader::open(&path).is_ok() && rows::<FastRow>(&path).len() >= count);
}

#[test]
fn row_14_killed_or_out_of_disk() {
    let fake = fake(TWO);
    let mut child = start(&fake, &["--rate", "100"]);
    // Killed at a time that has nothing to do with when rows are flushed.
    until(20, "a recording", || recording(&fake).join("journal").exists());
    std::thread::sleep(Duration::from_millis(3_100));
    child.kill().unwrap();
    let killed_us = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as i64;
    child.wait().unwrap();
    let path = recording(&fake);
    let before = rows::<FastRow>(&path).len();
    let recovered = command(&fake, &["recover", path.to_str().unwrap()]).output().unwrap();
    assert!(recovered.status.success(), "{}", text(&recovered.stderr));
    let fast = rows::<FastRow>(&path);
    assert_eq!(fast.len(), before, "recovery keeps what could be read before");
    let lived_us = killed_us - Reader::open(&path).unwrap().header().start_wall_us.0;
    let ring = rows::<RingRow>(&path).iter().map(|r| r.mono_us).max().unwrap();
    for last_us in [fast.iter().map(|r| r.mono_us).max().unwrap(), ring] {
        assert!(lived_us - last_us < 1_000_000, "{} µs are lost", lived_us - last_us);
    }

    // A limit on file size is refused like a full disk and needs no privilege.
    let spec = fake.folder().join("sixteen.toml");
    std::fs::write(&spec, "base = \"h200\"\ncount = 16\n").unwrap();
    let full = fake.folder().join("full");
    let script = format!(
        "ulimit -f 1100; exec {GPUMON} record --device sim:{} --rate 1000 -o {} --duration 60",
        spec.display(),
        full.display()
    );
    let output = Command::new("bash").args(["-c", &script]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("no room"), "{}", text(&output.stderr));
    assert_eq!(state(&full), "storage_failed");
    assert!(rows::<FastRow>(&full).len() > 300);
}

#[test]
fn row_15_signals_close_the_recording() {
    for name in ["-TERM", "-INT", "-HUP"] {
        let fake = fake(TWO);
        let child = start(&fake, &[]);
        has_rows(&fake, 6);
        signal(&child, name);
        let (output, _) = ends(15, child);
        assert_eq!(output.status.code(), Some(0), "{name}: {}", text(&output.stderr));
        assert_eq!(state(&recording(&fake)), "complete", "{name}");
    }
    // A driver that hangs makes the end take a second; whoever asks twice does not wait for it.
    let fake = fake(&format!(
        "{TWO}[[fault]]\nkind = \"hang\"\ncall = \"nvmlDeviceGetFieldValues\"\ngpu = 0\nfrom_ms = 1000\n"
    ));
    let child = start(&fake, &[]);
    has_rows(&fake, 20);
    // On a busy machine two that are close together may arrive as one.
    for _ in 0..6 {
        signal(&child, "-INT");
        std::thread::sleep(Duration::from_millis(100));
    }
    let (output, _) = ends(15, child);
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    assert_eq!(state(&recording(&fake)), "recording", "it left at once");
    let path = recording(&fake);
    assert!(command(&fake, &["recover", path.to_str().unwrap()]).output().unwrap().status.success());
}

#[test]
fn row_28_two_recorders_on_one_gpu() {
    let fake = fake(TWO);
    let other = fake.folder().join("other");
    let args = ["record", "-o", other.to_str().unwrap(), "--duration", "3", "--json"];
    let running = command(&fake, &args).stdout(Stdio::piped()).spawn().unwrap();
    let own = record_args(&fake, "3");
    let own = json(&command(&fake, &own.iter().map(String::as_str).collect::<Vec<_>>()).output().unwrap());
    let other_summary = json(&running.wait_with_output().unwrap());
    energies_are_true(&fake, &own, 0.03);
    for (a, b) in own["gpus"].as_array().unwrap().iter().zip(other_summary["gpus"].as_array().unwrap()) {
        assert_eq!(a["uuid"], b["uuid"]);
        let (a, b) = (a["power_mean_w"].as_f64().unwrap(), b["power_mean_w"].as_f64().unwrap());
        assert!((a / b - 1.0).abs() < 0.03, "{a} W, {b} W");
    }
    for path in [&recording(&fake), &other] {
        let ring = rows::<RingRow>(path);
        for gpu in [0, 1] {
            let times: Vec<i64> = ring.iter().filter(|r| r.gpu == gpu).map(|r| r.mono_us).collect();
            assert!(times.windows(2).all(|w| w[1] - w[0] > 5_000), "each reading once");
            assert!((100..=155).contains(&times.len()), "{} in 3 s", times.len());
        }
    }
    // A third one cannot write into a recording that goes on.
    let child = start(&fake, &["--force"]);
    until(20, "the recording that replaces the finished one", || recording(&fake).join("journal").exists());
    let path = recording(&fake);
    let refused = command(&fake, &["record", "-o", path.to_str().unwrap(), "--force", "--duration", "1"])
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused.stderr));
    signal(&child, "-INT");
    assert_eq!(ends(15, child).0.status.code(), Some(0));
}
