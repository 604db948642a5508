//! Readers under spoiled input: no panic, an end, and what was written reads again.
//!
//! Each target takes good inputs and those of `tests/corpus/TARGET`, changes them at random and feeds them in, for
//! `GPUMON_FUZZ_SECONDS` (2 unless it is set) from `GPUMON_FUZZ_SEED` (1). An input that panics is kept in the corpus,
//! where every later run tries it first. With `GPUMON_FUZZ_KEEP` set, the first input of each new outcome (what a reader
//! said, without its numbers and paths) is kept there too, [`KEPT_MAX`] a target of at most [`KEPT_BYTES_MAX`] each.
//! Guided by nothing but that and luck: there is no coverage feedback.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is a test's report, in its helpers too")]

mod mutate;

use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpumon_core::calibration::Calibration;
use gpumon_core::clock::{Clock, VirtualClock};
use gpumon_core::header::Header;
use gpumon_core::rows::{EventKind, EventRow, Record};
use gpumon_core::timing::Characterisation;
use gpumon_core::units::WallUs;
use gpumon_monitor::device::{Device, sim};
use gpumon_monitor::marks::Request;
use gpumon_monitor::record::{Config, Session};
use gpumon_monitor::store::{Reader, Store, recover};
use gpumon_monitor::summary::{Options, summarize};
use gpumon_simgpu::Spec;
use rand::SeedableRng;
use rand::rngs::StdRng;

fn seconds() -> u64 {
    std::env::var("GPUMON_FUZZ_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(2)
}

fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(target)
}

/// Inputs of new outcomes that are kept for a target.
const KEPT_MAX: usize = 20;
/// Longer inputs are not kept, bytes.
const KEPT_BYTES_MAX: usize = 16_384;

/// What a reader said, without what differs from input to input: words with digits, quotes or slashes.
fn outcome(said: &str) -> String {
    let plain =
        |word: &&str| !word.contains(|c: char| c.is_ascii_digit() || "/`\"'".contains(c) || !c.is_ascii());
    said.split_whitespace().filter(plain).take(16).collect::<Vec<_>>().join(" ")
}

/// What a reader that ends well or in an error said.
fn said<T, E: std::fmt::Display>(result: Result<T, E>) -> String {
    result.map_or_else(|e| e.to_string(), |_| "read".into())
}

/// Feeds spoiled inputs to `read`, which says what came of each, until time is up.
fn fuzz(target: &str, seeds: &[Vec<u8>], mut read: impl FnMut(&[u8]) -> String) {
    let kept =
        fs::read_dir(corpus(target)).into_iter().flatten().flatten().map(|e| fs::read(e.path()).unwrap());
    let mut inputs: Vec<Vec<u8>> = kept.collect();
    let mut outcomes = BTreeSet::new();
    for (number, input) in inputs.iter().enumerate() {
        let came = holds(input, &mut read);
        outcomes.insert(came.unwrap_or_else(|| panic!("{target}: input {number} of the corpus panics")));
    }
    let keeps = std::env::var_os("GPUMON_FUZZ_KEEP").is_some();
    let mut kept = inputs.len();
    inputs.extend(seeds.iter().cloned());
    let seed = std::env::var("GPUMON_FUZZ_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    let mut rng = StdRng::seed_from_u64(seed);
    let (end, mut tried) = (Instant::now() + Duration::from_secs(seconds()), 0_u64);
    let mut panics = Vec::new();
    while Instant::now() < end && panics.len() < 10 {
        let input = &inputs[rand::RngExt::random_range(&mut rng, 0..inputs.len())];
        let other = &inputs[rand::RngExt::random_range(&mut rng, 0..inputs.len())];
        let spoiled = mutate::mutated(input, other, &mut rng);
        tried += 1;
        if let Some(came) = holds(&spoiled, &mut read) {
            let small = spoiled.len() <= KEPT_BYTES_MAX && kept < KEPT_MAX;
            if outcomes.insert(came) && keeps && small {
                fs::create_dir_all(corpus(target)).unwrap();
                fs::write(corpus(target).join(format!("outcome-{seed}-{tried}")), &spoiled).unwrap();
                kept += 1;
            }
        } else {
            fs::create_dir_all(corpus(target)).unwrap();
            let path = corpus(target).join(format!("panic-{seed}-{tried}"));
            fs::write(&path, &spoiled).unwrap();
            panics.push(path);
        }
    }
    let (seconds, different) = (seconds(), outcomes.len());
    eprintln!("{target}: {tried} inputs in {seconds} s, {different} outcomes, {} panics", panics.len());
    assert!(panics.is_empty(), "{target}: {panics:?}");
}

/// What came of an input; `None` if it panicked.
fn holds(input: &[u8], read: &mut impl FnMut(&[u8]) -> String) -> Option<String> {
    catch_unwind(AssertUnwindSafe(|| outcome(&read(input)))).ok()
}

/// A recording of 3 s of two GPUs; `killed`: as its writer's death leaves it, with journal and segments.
fn recording(folder: &Path, killed: bool) -> PathBuf {
    let path = folder.join(if killed { "killed" } else { "whole" });
    let spec = Spec::parse("base = \"h200\"\ncount = 2\n", &mut |_| Err("none".into())).unwrap();
    let clock = Arc::new(VirtualClock::new(WallUs(1_800_000_000_000_000)));
    let fleet = sim::fleet(&spec, &(clock.clone() as Arc<dyn Clock>));
    let devices: Vec<Arc<dyn Device>> = fleet.into_iter().map(|d| d as Arc<dyn Device>).collect();
    let config = Config { rate_hz: 20.0, command: vec!["fuzz".into()], host: "host".into() };
    let mut session = Session::prepare(&devices, clock.as_ref(), &config).unwrap();
    let mut store = Store::create(&path, session.header().clone(), false).unwrap().without_sync();
    let mut rows: Vec<Record> = Vec::new();
    session.simulate(&clock, 3_000_000, &mut rows);
    let window =
        |us, kind| Record::from(EventRow { name: Some("w".into()), ..EventRow::new(us, None, kind) });
    rows.extend([window(1_000_000, EventKind::WindowBegin), window(2_000_000, EventKind::WindowEnd)]);
    for row in rows {
        store.append(row).unwrap();
    }
    store.flush().unwrap();
    if killed {
        std::mem::forget(store);
    } else {
        store.close(|header| header.duration_us = Some(3_000_000)).unwrap();
    }
    path
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else if entry.file_name() != "recording.lock" && entry.file_name() != "reserve" {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Everything that reads recordings, and `recover`, whose result must read; what was said before and after.
fn read_recording(path: &Path) -> String {
    let sum_up = |path: &Path| {
        let reader = Reader::open(path).map_err(|e| e.to_string())?;
        summarize(&reader, &[], Options::default()).map_err(|e| e.to_string())
    };
    let before = said(sum_up(path));
    let recovered = recover(path);
    if recovered.is_ok() {
        let after = sum_up(path);
        assert!(after.is_ok(), "recovered, but {after:?}");
    }
    format!("{before} | {}", said(recovered))
}

/// Spoils one file of a recording at a time.
fn fuzz_file(target: &str, killed: bool, file: &str) {
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let whole = recording(folder.path(), killed);
    let seed = fs::read(whole.join(file)).unwrap();
    let spoiled = folder.path().join("spoiled");
    fuzz(target, &[seed], |bytes| {
        let _ = fs::remove_dir_all(&spoiled);
        copy(&whole, &spoiled);
        fs::write(spoiled.join(file), bytes).unwrap();
        read_recording(&spoiled)
    });
}

#[test]
fn journals() {
    fuzz_file("journal", true, "journal/00000000.log");
}

#[test]
fn parquet_tables() {
    for table in ["fast", "ring", "events"] {
        fuzz_file("parquet", false, &format!("{table}.parquet"));
    }
}

#[test]
fn headers() {
    fuzz_file("header", false, "recording.json");
    fuzz("header-alone", &[header()], |bytes| said(serde_json::from_slice::<Header>(bytes)));
}

fn header() -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    fs::read(recording(folder.path(), false).join("recording.json")).unwrap()
}

#[test]
fn calibrations() {
    let seed = "[[gpu]]\nuuid = \"GPU-1\"\ngain = 1.058\ngain_within_pct = 0.8\noffset_w = 1.5\noffset_within_w = 0.5\n\
                source = \"meter\"\n";
    assert!(Calibration::parse(seed).is_ok());
    fuzz("calibration", &[seed.into()], |bytes| said(Calibration::parse(&String::from_utf8_lossy(bytes))));
}

#[test]
fn characterisations() {
    let seed = include_bytes!("characterisation.json");
    serde_json::from_slice::<Characterisation>(seed).unwrap();
    fuzz("characterisation", &[seed.to_vec()], |bytes| {
        said(serde_json::from_slice::<Characterisation>(bytes))
    });
}

#[test]
fn marks() {
    fuzz("marks", &[b"begin epoch 1\n".to_vec(), b"mark \xc3\xa9\n".to_vec()], |bytes| {
        let request = Request::parse(bytes);
        if let Ok(request) = &request {
            assert_eq!(Request::parse(request.line().as_bytes()).as_ref(), Ok(request));
        }
        said(request)
    });
}
