//! Whose energy it was, from a simulated GPU's recording to the summary, against what the simulation knows.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is a test's report, in its helpers too")]

use std::path::Path;
use std::sync::Arc;

use gpumon_core::clock::{Clock, VirtualClock};
use gpumon_core::rows::{EventKind, ProcessRow};
use gpumon_core::units::{MonoUs, WallUs};
use gpumon_monitor::device::{self, Device, ReadError, sim};
use gpumon_monitor::record::{Alongside, Config, Session};
use gpumon_monitor::store::{Reader, Store};
use gpumon_monitor::summary::attribution::{Attribution, IdleSource, Method};
use gpumon_monitor::summary::{GpuSummary, Options, Window, summarize};
use gpumon_simgpu::{SimGpu, Spec};

const SECOND: i64 = 1_000_000;
const IDLE_W: f64 = 121.0;

/// Half a minute in which work comes in bursts, with pauses of a second and a half.
const WORK: &str = "base = \"h200\"\n[load]\nkind = \"steps\"\nrepeat = true\nsteps = [\
    { duration_ms = 4300, level = 0.5 }, { duration_ms = 2500, level = 0 }, { duration_ms = 3100, level = 0.2 }]\n";
const TWO: &str = "[[process]]\npid = 70\nname = \"train\"\nshare_pct = 70\nmem_bytes = 7000\n\
                   [[process]]\npid = 30\nname = \"serve\"\nshare_pct = 30\n";

struct Run {
    folder: tempfile::TempDir,
    gpu: SimGpu,
    /// The recording's start in the GPU's time.
    origin: MonoUs,
}

fn record(toml: &str, seconds: i64, mark: &[(i64, EventKind, &str)]) -> Run {
    let spec = Spec::parse(toml, &mut |_| Err("no files here".into())).unwrap();
    let clock = Arc::new(VirtualClock::new(WallUs(1_800_000_000_000_000)));
    let device = sim::fleet(&spec, &(clock.clone() as Arc<dyn Clock>)).remove(0);
    let opened: [Arc<dyn Device>; 1] = [device.clone()];
    let config = Config { rate_hz: 10.0, command: vec![], host: "test".into() };
    let session = Session::prepare(&opened, clock.as_ref(), &config).unwrap();
    let origin = MonoUs(session.origin().since_us(device.opened()));
    let folder = tempfile::tempdir().unwrap();
    let store = Store::create(&folder.path().join("r"), session.header().clone(), false).unwrap();
    let start = session.origin();
    let time = Alongside::start(session, clock, store.without_sync());
    for (at_us, kind, name) in mark {
        time.sleep_until(start.plus_us(*at_us));
        time.event(kind.clone(), name);
    }
    time.sleep_until(start.plus_us(seconds * SECOND));
    time.finish().unwrap();
    let gpu = device.gpu().clone();
    Run { folder, gpu, origin }
}

impl Run {
    fn path(&self) -> std::path::PathBuf {
        self.folder.path().join("r")
    }

    /// Energy above idle, J, of a span of the recording.
    fn dynamic_j(&self, from_us: i64, to_us: i64) -> f64 {
        let energy_mj = self.gpu.true_energy_mj(self.origin.plus_us(from_us), self.origin.plus_us(to_us));
        energy_mj / 1e3 - IDLE_W * (to_us - from_us) as f64 / 1e6
    }
}

fn rows(path: &Path) -> Vec<ProcessRow> {
    Reader::open(path).unwrap().batches::<ProcessRow>().flat_map(|batch| batch.unwrap()).collect()
}

#[track_caller]
fn whole(path: &Path) -> (GpuSummary, Attribution) {
    let summary = summarize(&Reader::open(path).unwrap(), &[], Options::default()).unwrap();
    adds_up(&summary.gpus[0])
}

#[track_caller]
fn adds_up(gpu: &GpuSummary) -> (GpuSummary, Attribution) {
    let found = gpu.attribution.clone().unwrap();
    let parts: f64 = found.parts.iter().map(|p| p.energy_j).sum();
    let energy_j = gpu.energy_j.unwrap();
    assert!((parts + found.idle_j + found.unattributed_j - energy_j).abs() < 1e-9 * energy_j, "{found:?}");
    (gpu.clone(), found)
}

fn of(found: &Attribution, pid: i32) -> f64 {
    found.parts.iter().filter(|p| p.pid == Some(pid)).map(|p| p.energy_j).sum()
}

#[track_caller]
fn within(found: f64, truth: f64, pct: f64) {
    assert!((found / truth - 1.0).abs() <= pct / 100.0, "{found:.1} J for {truth:.1} J");
}

#[test]
fn two_processes_get_their_shares_within_five_per_cent_and_idle_is_apart() {
    let run = record(&format!("{WORK}{TWO}"), 30, &[]);
    let (_, found) = whole(&run.path());
    let dynamic_j = run.dynamic_j(0, 30 * SECOND);
    assert_eq!((found.method, found.idle_source), (Method::SmUtilisation, IdleSource::IdleProcesses));
    within(found.idle_j, IDLE_W * 30.0, 2.0);
    within(of(&found, 70), 0.7 * dynamic_j, 5.0);
    within(of(&found, 30), 0.3 * dynamic_j, 5.0);
    assert!(found.unattributed_j < 0.02 * dynamic_j, "{found:?}");
    let names: Vec<_> = found.parts.iter().map(|p| p.name.as_deref()).collect();
    assert_eq!(names, [Some("train"), Some("serve")]);
}

#[test]
fn rows_come_once_a_second_and_at_the_end() {
    let run = record(&format!("{WORK}{TWO}"), 10, &[]);
    let rows = rows(&run.path());
    assert_eq!(rows.len(), 22, "two processes at 0 to 10 s");
    assert!(rows.chunks(2).zip(0..).all(|(r, s)| (r[0].mono_us - s * SECOND).abs() < 50_000));
    assert_eq!((rows[0].pid, rows[0].mem_used_bytes, rows[0].mig_instance), (70, Some(7000), None));
    let header = Reader::open(&run.path()).unwrap().header().clone();
    assert!(["process", "process_util"].iter().all(|name| header.gpus[0].sensors.iter().any(|s| s == name)));
}

#[test]
fn each_window_has_its_own() {
    let marks = [(5 * SECOND, EventKind::WindowBegin, "w"), (12_400_000, EventKind::WindowEnd, "w")];
    let run = record(&format!("{WORK}{TWO}"), 20, &marks);
    let extra = [Window { name: "x".into(), from_us: 300_000, to_us: 700_000 }];
    let summary = summarize(&Reader::open(&run.path()).unwrap(), &extra, Options::default()).unwrap();
    for (window, from_us, to_us) in [("w", 5 * SECOND, 12_400_000), ("x", 300_000, 700_000)] {
        let window = summary.windows.iter().find(|w| w.name == window).unwrap();
        let (_, found) = adds_up(&window.gpus[0]);
        within(of(&found, 70), 0.7 * run.dynamic_j(from_us, to_us), 5.0);
        within(of(&found, 30), 0.3 * run.dynamic_j(from_us, to_us), 5.0);
    }
}

#[test]
fn a_process_that_comes_and_goes_gets_its_time() {
    let guest = "[[process]]\npid = 9\nname = \"guest\"\nshare_pct = 50\nfrom_ms = 8300\nto_ms = 14700\n\
                 [[process]]\npid = 8\nname = \"host\"\nshare_pct = 50\n";
    let load = "base = \"h200\"\n[load]\nkind = \"constant\"\nlevel = 0.4\n";
    let run = record(&format!("{load}{guest}"), 20, &[]);
    let (_, found) = whole(&run.path());
    let own = |us: i64| us - run.origin.0;
    let half_j = run.dynamic_j(own(8_300_000), own(14_700_000)) / 2.0;
    // Never idle, so only the caller can say what idle is.
    assert_eq!(found.idle_source, IdleSource::LeastPower);
    assert!(found.idle_j > 0.95 * (found.idle_j + found.unattributed_j), "{found:?}");
    let uuid = run.gpu.uuid();
    let idle_w = [(uuid, IDLE_W)];
    let options = Options { idle_w: &idle_w, ..Options::default() };
    let summary = summarize(&Reader::open(&run.path()).unwrap(), &[], options).unwrap();
    let (_, found) = adds_up(&summary.gpus[0]);
    assert_eq!(found.idle_source, IdleSource::Given);
    within(of(&found, 9), half_j, 5.0);
    within(of(&found, 8), run.dynamic_j(0, 20 * SECOND) - half_j, 5.0);
    let guest: Vec<_> = rows(&run.path()).into_iter().filter(|r| r.pid == 9).collect();
    assert!((7..=8).contains(&guest.len()), "{}", guest.len());
    let last = guest.last().unwrap();
    assert!(last.mem_used_bytes.is_none() && last.sm_util_pct.unwrap() > 0.0, "it has ended: {last:?}");
}

#[test]
fn without_processes_all_is_idle_or_nobodys() {
    let run = record(WORK, 10, &[]);
    assert!(rows(&run.path()).is_empty());
    let (_, found) = whole(&run.path());
    assert_eq!((found.method, found.idle_source), (Method::None, IdleSource::LeastPower));
    assert!(found.parts.is_empty());
    within(found.unattributed_j, run.dynamic_j(0, 10 * SECOND), 5.0);
}

#[test]
fn a_driver_that_does_not_say_what_processes_did_leaves_nulls_and_attributes_nothing() {
    let silent = "[sensors]\nunsupported = [\"process_utilization\", \"fan\"]\n";
    let run = record(&format!("{WORK}{TWO}{silent}"), 10, &[]);
    let rows = rows(&run.path());
    assert!(!rows.is_empty() && rows.iter().all(|r| r.sm_util_pct.is_none() && r.mem_util_pct.is_none()));
    let reader = Reader::open(&run.path()).unwrap();
    let unsupported: Vec<_> =
        reader.header().gpus[0].unsupported.iter().filter(|name| name.starts_with("process")).collect();
    assert_eq!(unsupported, ["process_util"]);
    let (_, found) = whole(&run.path());
    assert_eq!(found.method, Method::None);
    assert!(found.parts.iter().all(|p| p.energy_j == 0.0) && found.unattributed_j > 0.0);
}

#[test]
fn a_gpu_that_lists_no_processes_says_so_once_and_has_no_rows() {
    let run = record(&format!("{WORK}{TWO}[sensors]\nunsupported = [\"processes\", \"fan\"]\n"), 5, &[]);
    assert!(rows(&run.path()).is_empty());
    let reader = Reader::open(&run.path()).unwrap();
    assert!(reader.header().gpus[0].unsupported.iter().any(|name| name == "process"));
    let summary = summarize(&reader, &[], Options::default()).unwrap();
    assert!(!summary.events.contains_key("read_failed"), "{:?}", summary.events);
}

#[test]
fn gpus_without_a_ring_are_attributed_from_polled_power() {
    let no_ring = "[sensors]\nunsupported = [\"ring\", \"fan\"]\n";
    let run = record(&format!("{WORK}{TWO}{no_ring}"), 30, &[]);
    let (gpu, found) = whole(&run.path());
    assert_ne!(gpu.energy_method, Some("ring"));
    within(of(&found, 70), 0.7 * run.dynamic_j(0, 30 * SECOND), 5.0);
}

#[test]
fn a_replayed_recording_lists_the_same_processes() {
    let run = record(&format!("{WORK}{TWO}"), 6, &[]);
    let clock = Arc::new(VirtualClock::new(WallUs(1_900_000_000_000_000)));
    let spec = format!("replay:{}", run.path().display());
    let replayed = device::open(&spec, clock.clone()).unwrap().remove(0);
    clock.sleep_until(clock.mono().plus_us(2_500_000));
    let at_two: Vec<_> =
        rows(&run.path()).into_iter().filter(|r| (2 * SECOND..2_400_000).contains(&r.mono_us)).collect();
    let listed = replayed.processes().unwrap();
    assert!(listed.has_utilisation);
    let pairs = listed.list.iter().zip(&at_two);
    assert_eq!(listed.list.len(), 2);
    assert!(pairs.clone().all(|(p, r)| p.pid == r.pid as u32 && p.sm_util_pct == r.sm_util_pct));
    clock.sleep_until(clock.mono().plus_us(20 * SECOND));
    assert!(matches!(replayed.processes(), Err(ReadError::Lost(_))));
}

#[test]
fn mig_instances_without_utilisation_are_attributed_by_their_slices() {
    let mig = "[[process]]\npid = 5\nname = \"a\"\nshare_pct = 50\nmig_instance = 1\n\
               [sensors]\nunsupported = [\"process_utilization\", \"fan\"]\n";
    let run = record(&format!("{WORK}{mig}"), 10, &[]);
    assert!(rows(&run.path()).iter().all(|r| r.mig_instance == Some(1)));
    // A simulated GPU has no instances in its header, so their sizes are unknown and nothing is guessed.
    let (_, found) = whole(&run.path());
    assert_eq!(found.method, Method::None);
    assert_eq!(found.mig_instances[0].energy_j, 0.0);
}

#[test]
fn a_recording_from_before_processes_is_summed_up_all_the_same() {
    let run = record(&format!("{WORK}{TWO}"), 10, &[]);
    let path = run.path();
    let mut header = Reader::open(&path).unwrap().header().clone();
    for gpu in &mut header.gpus {
        gpu.sensors.retain(|name| !name.starts_with("process"));
    }
    std::fs::write(path.join("recording.json"), header.to_json()).unwrap();
    std::fs::remove_file(path.join("process.parquet")).unwrap();
    let (_, found) = whole(&path);
    assert_eq!((found.method, found.idle_source), (Method::None, IdleSource::LeastPower));
    within(found.unattributed_j, run.dynamic_j(0, 10 * SECOND), 5.0);
    let spec = format!("replay:{}", path.display());
    let replayed = device::open(&spec, Arc::new(VirtualClock::new(WallUs(1)))).unwrap().remove(0);
    assert_eq!(replayed.processes(), Err(ReadError::Unsupported));
}
