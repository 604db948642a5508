//! kill -9 at twenty moments, or at as many as `GPUMON_KILLS` says: at most the last second is lost, nothing twice,
//! nothing in between. Says how much each kill cost.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is a test's report, in its helpers too")]

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gpumon_core::rows::{EventKind, EventRow, FastRow, RingRow};
use gpumon_monitor::store::{Reader, Row};

const SECOND: i64 = 1_000_000;

/// Moments after the start of the process, ms: spread over five seconds, none a multiple of another's flush.
fn moments() -> impl Iterator<Item = u64> {
    let kills = std::env::var("GPUMON_KILLS").map_or(20, |kills| kills.parse().unwrap());
    (0..kills).map(|k| 800 + (k * 7_919 + 131) % 4_200)
}

#[test]
fn at_most_the_last_second_is_lost() {
    let scratch = tempfile::tempdir().unwrap();
    let moments: Vec<u64> = moments().collect();
    let mut lost_us = Vec::new();
    for (group, five) in moments.chunks(5).enumerate() {
        std::thread::scope(|scope| {
            let kills: Vec<_> = five
                .iter()
                .enumerate()
                .map(|(index, ms)| {
                    let path = scratch.path().join(format!("{group}-{index}"));
                    scope.spawn(move || record_and_kill(&path, *ms))
                })
                .collect();
            lost_us.extend(kills.into_iter().map(|kill| kill.join().unwrap()));
        });
    }
    lost_us.sort_unstable();
    let (median, most) = (lost_us[lost_us.len() / 2], lost_us[lost_us.len() - 1]);
    println!("{} kills: {} ms lost at the median, {} ms at most", lost_us.len(), median / 1000, most / 1000);
}

/// How much was lost, µs.
fn record_and_kill(path: &Path, after_ms: u64) -> i64 {
    let gpumon = env!("CARGO_BIN_EXE_gpumon");
    let mut child = Command::new(gpumon)
        .args(["record", "--device", "sim:h200", "--rate", "1000", "-o"])
        .arg(path)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(after_ms));
    child.kill().unwrap();
    let killed_us = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as i64;
    child.wait().unwrap();

    let before = rows_of::<FastRow>(path).len();
    let recovered = Command::new(gpumon).arg("recover").arg(path).output().unwrap();
    assert!(recovered.status.success(), "{}", String::from_utf8_lossy(&recovered.stderr));
    let start_us = Reader::open(path).unwrap().header().start_wall_us.0;
    let (fast, ring, events) =
        (rows_of::<FastRow>(path), rows_of::<RingRow>(path), rows_of::<EventRow>(path));
    assert_eq!(fast.len(), before, "recovery keeps what could be read before");

    let lived_us = killed_us - start_us;
    let last_fast_us = fast.last().map_or(0, |r| r.mono_us);
    let last_ring_us = ring.last().map_or(0, |r| r.mono_us);
    assert!(lived_us - last_fast_us <= SECOND, "{after_ms} ms: {} µs of ticks lost", lived_us - last_fast_us);
    assert!(
        lived_us - last_ring_us <= SECOND,
        "{after_ms} ms: {} µs of the ring lost",
        lived_us - last_ring_us
    );
    assert!(fast.windows(2).all(|w| w[0].mono_us < w[1].mono_us), "no tick twice");
    assert!(
        ring.windows(2).all(|w| (5_000..60_000).contains(&(w[1].mono_us - w[0].mono_us))),
        "no hole, none twice"
    );
    let missed: i64 =
        events.iter().filter(|e| e.kind == EventKind::MissedTicks).filter_map(|e| e.count).sum();
    if !fast.is_empty() {
        // Ticks 0 to the last one: each is a row or counted as missed.
        assert_eq!(fast.len() as i64 + missed, last_fast_us / 1_000 + 1, "{after_ms} ms");
    }
    lived_us - last_fast_us.min(last_ring_us)
}

fn rows_of<R: Row>(path: &Path) -> Vec<R> {
    Reader::open(path).unwrap().batches::<R>().flat_map(|batch| batch.unwrap()).collect()
}
