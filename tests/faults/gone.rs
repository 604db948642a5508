//! GPUs that go, come back, or never answer.

use std::process::{Child, Stdio};
use std::time::Duration;

use gpumon_core::rows::{EventKind, FastRow, RingRow};
use gpumon_fakenvml::testing::Fake;
use gpumon_monitor::store::Reader;

use super::helpers::*;
use super::{ends, until};

const SECOND: i64 = 1_000_000;

fn vanish(error: &str, from_ms: u32, for_ms: &str) -> String {
    format!(
        "{TWO}[[fault]]\nkind = \"vanish\"\nerror = \"{error}\"\ngpu = 0\nfrom_ms = {from_ms}\n{for_ms}\n"
    )
}

/// The GPU went, and came back on a new handle: what every such recording shows.
#[track_caller]
fn came_back(fake: &Fake, seconds: usize) {
    let lost = events(fake, EventKind::GpuLost);
    assert!(lost.len() == 1 && lost[0].gpu == Some(0), "{lost:?}");
    let gaps = events(fake, EventKind::Gap);
    assert!(gaps.len() == 1 && gaps[0].gpu == Some(0), "{gaps:?}");
    let (from, to) = (gaps[0].from_us.unwrap(), gaps[0].to_us.unwrap());
    assert!(gaps[0].detail.as_deref().unwrap().contains("found again by its UUID"), "{gaps:?}");
    let fast = rows::<FastRow>(&recording(fake));
    let has_power: Vec<i64> =
        fast.iter().filter(|r| r.gpu == 0 && r.power_instant_mw.is_some()).map(|r| r.mono_us).collect();
    assert!(has_power.iter().all(|at| *at <= from || *at >= to), "nothing was read between {from} and {to}");
    assert!(has_power.iter().filter(|at| **at >= to).count() >= 5, "it is read again: {has_power:?}");
    let ring = rows::<RingRow>(&recording(fake));
    assert!(ring.iter().any(|r| r.gpu == 0 && r.mono_us > to), "the ring too");
    // Ticks are rows, counted as missed, or counted in the gap.
    let missed: i64 = events(fake, EventKind::MissedTicks)
        .iter()
        .filter(|e| e.gpu == Some(0))
        .filter_map(|e| e.count)
        .sum();
    let rows = fast.iter().filter(|r| r.gpu == 0).count() as i64;
    assert_eq!(rows + missed + gaps[0].count.unwrap(), 10 * seconds as i64, "{gaps:?}");
    assert_eq!(fake.calls("nvmlInit_v2", None).unwrap(), 1, "never initialised again");
    assert_eq!(fake.calls("nvmlShutdown", None).unwrap(), 0);
    goes_on(fake, 1, seconds);
}

#[test]
fn row_09_a_container_loses_the_gpu() {
    let (fake, summary, said) = record_with(&vanish("UNKNOWN", 1200, "for_ms = 2800"), "8", &[], 4);
    assert_eq!(summary["state"], "complete");
    assert!(said.contains("is lost") && said.contains("is back"), "{said}");
    assert_eq!((&summary["losses"]["gpus_lost"], &summary["losses"]["gaps"]), (&1.into(), &1.into()));
    came_back(&fake, 8);
}

#[test]
fn row_13_a_gpu_falls_off_the_bus() {
    let (fake, summary, said) = record_with(&vanish("GPU_IS_LOST", 1200, ""), "4", &[], 4);
    assert!(said.contains("is lost"), "{said}");
    let lost = events(&fake, EventKind::GpuLost);
    assert!(lost.len() == 1 && lost[0].gpu == Some(0), "{lost:?}");
    let gaps = events(&fake, EventKind::Gap);
    assert!(gaps.len() == 1 && gaps[0].to_us >= Some(4 * SECOND), "{gaps:?}");
    let last = rows::<FastRow>(&recording(&fake)).iter().filter(|r| r.gpu == 0).map(|r| r.mono_us).max();
    assert!(last.unwrap() < 2 * SECOND, "rows stop: {last:?}");
    assert_eq!(summary["losses"]["gpus_lost"], 1);
    goes_on(&fake, 1, 4);
    // One that comes back at once is read on.
    let (fake, _, _) = record_with(&vanish("GPU_IS_LOST", 1200, "for_ms = 400"), "5", &[], 4);
    came_back(&fake, 5);
}

fn start(fake: &Fake, more: &[&str]) -> Child {
    let path = recording(fake);
    let args = [&["record", "-o", path.to_str().unwrap(), "--duration", "60"], more].concat();
    command(fake, &args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Whether a recording that goes on shows an event of this kind already.
fn shows(fake: &Fake, kind: EventKind) -> bool {
    Reader::open(&recording(fake)).is_ok() && !events(fake, kind).is_empty()
}

#[test]
fn row_12_a_call_never_returns() {
    let hang = |more: &str| {
        format!(
            "{TWO}[[fault]]\nkind = \"hang\"\ncall = \"nvmlDeviceGetFieldValues\"\ngpu = 0\nfrom_ms = 1200\n{more}"
        )
    };
    for (script, held) in [(hang(""), false), (hang("kernel = true\n"), true)] {
        let fake = fake(&script);
        let child = start(&fake, &[]);
        until(15, "the stall is noticed while the recording goes on", || shows(&fake, EventKind::Stall));
        let stalls = events(&fake, EventKind::Stall);
        assert!(stalls.iter().all(|e| e.gpu == Some(0)), "{stalls:?}");
        let noticed_after = stalls[0].mono_us - stalls[0].from_us.unwrap();
        assert!((SECOND / 2..8 * SECOND).contains(&noticed_after), "{noticed_after} µs");
        let last = |gpu: i32| {
            let fast = rows::<FastRow>(&recording(&fake));
            fast.iter().filter(|r| r.gpu == gpu).map(|r| r.mono_us).max().unwrap()
        };
        until(15, "the other goes on", || last(1) > stalls[0].mono_us + SECOND);
        signal(&child, "-INT");
        let (output, took) = ends(10, child);
        assert!(took < Duration::from_secs(3), "{took:?}");
        let said = text(&output.stderr);
        assert_eq!(said.contains("state D"), held, "{said}");
        let summary = json(
            &command(&fake, &["summary", recording(&fake).to_str().unwrap(), "--json"]).output().unwrap(),
        );
        assert_eq!(summary["state"], "complete");
        assert!(last(0) <= stalls[0].from_us.unwrap());
    }
}

#[test]
fn row_12_a_counter_that_never_returns_does_not_hold_up_the_command() {
    let script = "[[fault]]\nkind = \"hang\"\ncall = \"nvmlDeviceGetTotalEnergyConsumption\"\ngpu = 0\nfrom_call = 3\n";
    let fake = fake(&format!("{TWO}{script}"));
    let path = recording(&fake);
    let args = ["run", "-o", path.to_str().unwrap(), "--tail", "0", "--", "sleep", "1"];
    let child = command(&fake, &args).stderr(Stdio::piped()).spawn().unwrap();
    let (output, _) = ends(15, child);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(!events(&fake, EventKind::Stall).is_empty());
}

#[test]
fn row_12_control_c_acts_at_once_while_opening_hangs() {
    for call in ["nvmlInit_v2", "nvmlDeviceGetName"] {
        let fake = fake(&format!("[[fault]]\nkind = \"hang\"\ncall = \"{call}\"\n"));
        let child = start(&fake, &[]);
        until(10, "the hang", || fake.calls(call, None).unwrap() + fake.calls(call, Some(0)).unwrap() > 0);
        signal(&child, "-INT");
        let (output, took) = ends(10, child);
        assert_eq!(output.status.code(), Some(130), "{call}: {}", text(&output.stderr));
        assert!(took < Duration::from_secs(2), "{call}: {took:?}");
        assert!(!recording(&fake).exists(), "nothing is left behind");
    }
}

#[test]
fn row_30_one_of_sixteen_fails_and_the_count_changes() {
    // NVML counts two more GPUs than can be opened, one hangs, one goes.
    let script = "gpus = \"half.toml\"\ncount = 16\n\
                  [[fault]]\nkind = \"garbage\"\ncall = \"nvmlDeviceGetCount_v2\"\nvalue = 18\n\
                  [[fault]]\nkind = \"vanish\"\nerror = \"GPU_IS_LOST\"\ngpu = 3\nfrom_ms = 2000\n\
                  [[fault]]\nkind = \"hang\"\ncall = \"nvmlDeviceGetFieldValues\"\ngpu = 7\nfrom_ms = 2000\n";
    let (fake, summary, said) = record_with(script, "4", &[], 4);
    for missing in ["GPU 16", "GPU 17"] {
        assert!(said.contains(&format!("{missing} cannot be read and is left out")), "{said}");
    }
    assert_eq!(summary["gpus"].as_array().unwrap().len(), 16);
    let lost = events(&fake, EventKind::GpuLost);
    assert!(lost.len() == 1 && lost[0].gpu == Some(3), "{lost:?}");
    assert!(events(&fake, EventKind::Stall).iter().all(|e| e.gpu == Some(7)));
    assert!(!events(&fake, EventKind::Stall).is_empty());
    assert!(events(&fake, EventKind::DroppedRows).is_empty());
    for gpu in (0..16).filter(|gpu| ![3, 7].contains(gpu)) {
        goes_on(&fake, gpu, 4);
    }
}
