//! A sweep with the reference worker on a fake GPU.

use std::fs;
use std::process::Command;

use gpumon_core::profile::ProfileRow;
use gpumon_core::profile_io;
use serde_json::Value;

use super::setup::{Held, pids};

const REFERENCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/reference_worker.py");

/// How the worker starts: a batch of one takes a millisecond, and each process adds its environment to `seats`.
pub fn worker(held: &Held) -> [String; 6] {
    let log = held.fake.folder().join("seats").to_str().unwrap().to_owned();
    ["python3", REFERENCE, "--ms-per-item", "1", "--log", &log].map(str::to_owned)
}

pub fn workload(sharing: &str, run: &[impl AsRef<str>]) -> String {
    let run: Vec<&str> = run.iter().map(AsRef::as_ref).collect();
    format!(
        "[cluster]\ngpu = \"h200\"\nsharing = \"{sharing}\"\n[[model]]\nname = \"mine\"\nlatency_slo_ms = 100\n\
         rate_rps = 1\nrun = {run:?}\n"
    )
}

/// `gpumon profile` of a model with batches of two, into `p.csv`. Short: precision is not the point here.
pub fn sweep(held: &Held, sharing: &str, more: &[&str]) -> Command {
    fs::write(held.fake.folder().join("w.toml"), workload(sharing, &worker(held))).unwrap();
    let batches = if more.contains(&"--batches") { &[][..] } else { &["--batches", "2"] };
    let heat = if more.contains(&"--heat") { &[][..] } else { &["--heat", "0"] };
    let always = ["profile", "-w", "w.toml", "-o", "p.csv", "--json", "--idle", "300ms", "--precision", "50"];
    held.plain(&[&always, batches, heat, more].concat())
}

pub fn rows(held: &Held) -> Vec<ProfileRow> {
    profile_io::read(&held.fake.folder().join("p.csv")).unwrap().rows
}

/// Environments of the workers that started, in order.
pub fn seats(held: &Held) -> Vec<Value> {
    let log = fs::read_to_string(held.fake.folder().join("seats")).unwrap();
    log.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Workers of this GPU's sweep that still run.
pub fn workers(held: &Held) -> usize {
    let [.., log] = worker(held);
    pids(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|&b| b == 0).any(|argument| argument == log.as_bytes())
    })
    .len()
}
