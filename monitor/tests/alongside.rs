//! A recording beside something else on the same virtual clock sees what that does, when it does it.
#![allow(clippy::unwrap_used, reason = "a panic is a test's report, in its helpers too")]

use std::sync::Arc;

use gpumon_core::clock::{Clock, VirtualClock};
use gpumon_core::rows::{EventKind, EventRow, FastRow, RingRow};
use gpumon_core::units::{MonoUs, WallUs};
use gpumon_monitor::device::Device;
use gpumon_monitor::device::sim;
use gpumon_monitor::record::{Alongside, Config, Session};
use gpumon_monitor::store::{Reader, Row, Store};
use gpumon_monitor::summary::{Options, summarize};
use gpumon_simgpu::{Change, Programme, SimModel};

const SECOND: i64 = 1_000_000;

fn rows<R: Row>(reader: &Reader) -> Vec<R> {
    reader.batches::<R>().flat_map(|batch| batch.unwrap()).collect()
}

#[test]
fn loads_that_come_and_go_are_recorded_with_their_energy() {
    let clock = Arc::new(VirtualClock::new(WallUs(1_800_000_000_000_000)));
    let device = sim::named("a100", &(clock.clone() as Arc<dyn Clock>)).unwrap().remove(0);
    let opened: [Arc<dyn Device>; 1] = [device.clone()];
    let config = Config { rate_hz: 10.0, command: vec![], host: "test".into() };
    let session = Session::prepare(&opened, clock.as_ref(), &config).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r");
    let store = Store::create(&path, session.header().clone(), false).unwrap().without_sync();
    let origin = session.origin();
    let time = Alongside::start(session, clock.clone(), store);
    assert_eq!(time.mono(), origin);

    let model = SimModel::builtin("resnet50-like").unwrap();
    let now = || MonoUs(time.mono().since_us(device.opened()));
    let began = now();
    for k in 0..20 {
        let load = match k % 2 {
            0 => Programme::idle(true),
            _ => {
                let share = gpumon_core::share::Share::Mig(7);
                let clock = device.identity().sm_clocks.last().copied().unwrap();
                model.settle(&device.gpu(), 32, share, clock).programme.as_ref().clone()
            }
        };
        device.gpu().apply(now(), Change::Load(Arc::new(load))).unwrap();
        time.sleep_until(time.mono().plus_us(SECOND));
        time.event(EventKind::Mark, &k.to_string());
    }
    let truth_j = device.gpu().true_energy_mj(began, now()) / 1e3;
    time.finish().unwrap();

    let reader = Reader::open(&path).unwrap();
    let fast: Vec<FastRow> = rows(&reader);
    assert_eq!(fast.len(), 200, "20 s at 10 Hz, none missed");
    let marks = rows::<EventRow>(&reader).into_iter().filter(|e| e.kind == EventKind::Mark);
    assert!(marks.map(|m| m.mono_us).eq((1..=20).map(|k| k * SECOND)));
    let ring: Vec<RingRow> = rows(&reader);
    assert!(ring.iter().all(|r| (0..20 * SECOND).contains(&r.mono_us)));
    let mean_w = |odd: i64| {
        let of = |r: &&FastRow| r.mono_us / SECOND % 2 == odd && r.mono_us % SECOND > 300_000;
        let mw: Vec<f64> = fast.iter().filter(of).filter_map(|r| r.power_instant_mw).map(f64::from).collect();
        mw.iter().sum::<f64>() / mw.len() as f64 / 1e3
    };
    assert!(mean_w(1) > mean_w(0) + 50.0, "{} W under load, {} W without", mean_w(1), mean_w(0));
    let summary = summarize(&reader, &[], Options::default()).unwrap();
    let counted_j = summary.gpus[0].energy_counter_j.unwrap();
    assert!((counted_j / truth_j - 1.0).abs() < 0.02, "{counted_j} J of {truth_j} J");
}
