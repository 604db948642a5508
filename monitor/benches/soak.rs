//! A simulated day: four GPUs at 100 Hz, all lanes, into a store on disk, on a virtual clock.
//!
//! `cargo bench -p gpumon-monitor --bench soak [-- HOURS]` prints the process's resident memory at each
//! simulated hour, and rows, bytes and time at the end.
#![allow(clippy::expect_used, reason = "a bench that cannot run says why by panicking")]

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use gpumon_core::clock::{Clock, VirtualClock};
use gpumon_core::rows::Record;
use gpumon_core::units::WallUs;
use gpumon_monitor::device::{Device, sim};
use gpumon_monitor::lane::Outbox;
use gpumon_monitor::record::{Config, Session};
use gpumon_monitor::store::Store;
use gpumon_simgpu::Spec;

const FLUSH_EVERY_US: i64 = 250_000;
const HOUR_US: i64 = 3_600_000_000;

struct Disk {
    store: Store,
    next_flush_us: i64,
    next_hour_us: i64,
    rows: u64,
}

impl Outbox for Disk {
    fn put(&mut self, record: Record) {
        let mono_us = match &record {
            Record::Fast(row) => row.mono_us,
            _ => i64::MIN,
        };
        self.store.append(record).expect("the disk takes it");
        self.rows += 1;
        if mono_us >= self.next_flush_us {
            self.store.flush().expect("the disk takes it");
            self.next_flush_us += FLUSH_EVERY_US;
        }
        if mono_us >= self.next_hour_us {
            println!(
                "hour {:>2}: {:>5.1} MiB resident, {} rows",
                mono_us / HOUR_US,
                resident_mib(),
                self.rows
            );
            self.next_hour_us += HOUR_US;
        }
    }
}

fn resident_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
    kib.and_then(|kib| kib.parse::<f64>().ok()).unwrap_or(f64::NAN) / 1024.0
}

fn bytes_of(folder: &Path, table: &str) -> u64 {
    let files = std::fs::read_dir(folder).expect("the recording is there").flatten();
    let of_table = files.filter(|f| f.file_name().to_string_lossy().starts_with(table));
    of_table.map(|f| f.metadata().map_or(0, |m| m.len())).sum()
}

fn main() {
    let hours: i64 = std::env::args().find_map(|a| a.parse().ok()).unwrap_or(24);
    let spec = Spec::parse("base = \"h200\"\ncount = 4\n", &mut |_| Err("none".into()))
        .expect("a valid description");
    let clock = Arc::new(VirtualClock::new(WallUs(1_800_000_000_000_000)));
    let devices: Vec<Arc<dyn Device>> = sim::fleet(&spec, &(clock.clone() as Arc<dyn Clock>))
        .into_iter()
        .map(|d| d as Arc<dyn Device>)
        .collect();
    let config = Config { rate_hz: 100.0, command: vec![], host: "soak".into() };
    let mut session = Session::prepare(&devices, clock.as_ref(), &config).expect("the simulated GPU answers");
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = folder.path().join("soak");
    let store =
        Store::create(&path, session.header().clone(), false).expect("a new recording").without_sync();
    let mut disk = Disk { store, next_flush_us: FLUSH_EVERY_US, next_hour_us: HOUR_US, rows: 0 };
    let begin = Instant::now();
    session.simulate(&clock, hours * HOUR_US, &mut disk);
    let rows = disk.rows;
    disk.store.close(|header| header.duration_us = Some(hours * HOUR_US)).expect("the disk takes it");
    let fast_rows = hours * 3_600 * 100 * 4;
    println!(
        "{hours} h, four GPUs at 100 Hz: {rows} rows in {:.1} s, {:.1} MiB resident at the end, {:.2} bytes a fast row",
        begin.elapsed().as_secs_f64(),
        resident_mib(),
        bytes_of(&path, "fast") as f64 / fast_rows as f64
    );
}
