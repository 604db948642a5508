use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gpumon_core::clock::{Clock, VirtualClock};
use gpumon_core::profile::{IDLE_CONTEXT, ProfileRow};
use gpumon_core::set::{self, SetRow};
use gpumon_core::share::Share;
use gpumon_core::units::{Megahertz, WallUs};
use gpumon_monitor::device::Device as _;
use gpumon_monitor::device::sim::{SimDevice, named};
use gpumon_simgpu::Tenant;

use super::*;
use crate::protocol::Protocol;
use crate::space::Space;
use crate::stage::SimStage;
use crate::workload::{Context, open};

const MODELS: [&str; 4] = ["vgg19-like", "gpt-like", "densenet-like", "mobilenet-like"];

struct Desk {
    clock: Arc<dyn Clock>,
    device: Arc<SimDevice>,
    workloads: Vec<Box<dyn Workload>>,
    protocol: Protocol,
}

impl Desk {
    fn new() -> Self {
        let clock: Arc<dyn Clock> = Arc::new(VirtualClock::new(WallUs(1_700_000_000_000_000)));
        let device = named("a100", &clock).unwrap().remove(0);
        let context = Context { clock: clock.clone(), sim: Some(device.clone()), python: None, native: None };
        let workloads = MODELS.iter().map(|m| open(m, &format!("sim:{m}"), &context).unwrap()).collect();
        Self { clock, device, workloads, protocol: Protocol::default() }
    }

    fn bench<'a>(&'a self, stage: &'a mut SimStage) -> Bench<'a> {
        let (device, clock) = (self.device.as_ref(), self.clock.as_ref());
        Bench { protocol: &self.protocol, device, stage, clock }
    }

    /// Rows of these points alone, and of idling at their clocks.
    fn alone(sets: &[Set]) -> Vec<ProfileRow> {
        let mut desk = Self::new();
        let mut workloads = std::mem::take(&mut desk.workloads);
        let mut stage = SimStage::new(desk.device.clone(), desk.clock.clone());
        let mut bench = desk.bench(&mut stage);
        let mut rows: Vec<ProfileRow> = Vec::new();
        for member in sets.iter().flat_map(|set| &set.members) {
            let workload = workloads[member.place].as_mut();
            if !rows.iter().any(|r| r.model == IDLE_CONTEXT && r.frequency == member.point.clock.0 as i32) {
                rows.push(bench.idle(workload, member.point.clock, true).unwrap());
            }
            rows.push(bench.point(workload, &member.point, None).unwrap());
        }
        rows
    }

    fn measure(sets: &[Set], alone: &[ProfileRow], output: &Path, stop_after: usize) -> SetsOutcome {
        let mut desk = Self::new();
        let mut workloads = std::mem::take(&mut desk.workloads);
        let mut stage = SimStage::new(desk.device.clone(), desk.clock.clone());
        let stop = AtomicBool::new(false);
        let measuring = Sets {
            bench: desk.bench(&mut stage),
            workloads: &mut workloads,
            sets,
            alone,
            output,
            stop: &stop,
            sim: Some(&desk.device),
            heat_s: 0.0,
        };
        let mut made = 0;
        measuring
            .run(&mut |_, _| {
                made += 1;
                stop.store(made == stop_after, Ordering::SeqCst);
            })
            .unwrap()
    }
}

fn sets(shares: &[Share], clocks: &[u32], count: usize) -> Vec<Set> {
    let clocks: Vec<_> = clocks.iter().copied().map(Megahertz).collect();
    let supported = Desk::new().device.identity().sm_clocks.clone();
    let space = Space::new(shares, &[1, 8, 32], &clocks, &supported).unwrap();
    choose(&space, &MODELS, &[], Wish { sets: count, seed: 3 }).unwrap()
}

/// Members of a set with the truth at the clock that ran.
fn truth(set: &Set, rows: &[SetRow]) -> gpumon_simgpu::SideBySide {
    let tenant = |m: &Member| Tenant {
        model: gpumon_simgpu::SimModel::builtin(MODELS[m.place]).unwrap(),
        batch: m.point.batch,
        share: m.point.share,
    };
    let tenants: Vec<Tenant> = set.members.iter().map(tenant).collect();
    Tenant::truth(&tenants, Megahertz(rows[0].sm_mhz_achieved.unwrap().round() as u32))
}

#[test]
fn sets_agree_with_the_truth_of_models_side_by_side() {
    for shares in [[14, 29, 43, 57].map(Share::Mps), [1, 2, 3, 4].map(Share::Mig)] {
        let (folder, sets) = (tempfile::tempdir().unwrap(), sets(&shares, &[900, 1410], 6));
        let output = folder.path().join("s.parquet");
        let alone = Desk::alone(&sets);
        let outcome = Desk::measure(&sets, &alone, &output, 0);
        assert!(outcome.finished && outcome.notices.is_empty(), "{outcome:?}");
        assert_eq!(set::read(&output).unwrap(), outcome.rows);
        let mut slowest = 1.0f64;
        for (n, set) in sets.iter().enumerate() {
            let rows: Vec<SetRow> = outcome.rows.iter().filter(|r| r.set == n as i32).cloned().collect();
            let truth = truth(set, &rows);
            assert_eq!(rows.len(), set.members.len());
            for (row, ms) in rows.iter().zip(&truth.times_ms) {
                assert!(row.valid && row.simulated == Some(true), "{row:?}");
                let known_ms = row.latency_ci95.unwrap() + 0.025 * ms;
                assert!((row.latency.unwrap() - ms).abs() < known_ms, "{row:?}: in truth {ms}");
                let capped = row.reason.as_deref().is_some_and(|r| r.contains("power cap"));
                let watts = row.dynamic_power_draw.unwrap() / truth.dynamic_w;
                assert!(capped || (watts - 1.0).abs() < 0.06, "{row:?}: in truth {} W", truth.dynamic_w);
                let slowdown = row.slowdown.unwrap();
                assert!(slowdown > 0.95, "{row:?}");
                if row.latency_ci95 < Some(0.01 * ms) {
                    slowest = slowest.max(slowdown);
                }
            }
        }
        let common = shares[0].slices().is_none();
        assert!(!common || slowest > 1.02, "{slowest}");
    }
}

#[test]
fn a_run_of_sets_stopped_anywhere_gives_the_same_rows() {
    let (folder, sets) = (tempfile::tempdir().unwrap(), sets(&[14, 29, 43].map(Share::Mps), &[1410], 4));
    // Temperature depends on what the GPU did before, and the energy counter moves in steps.
    let comparable = |path: &Path| -> Vec<SetRow> {
        let rows = set::read(path).unwrap();
        assert!(rows.iter().all(|r| r.wall_energy_j > Some(0.0) && r.temp_c.is_some()));
        rows.into_iter().map(|row| SetRow { wall_energy_j: None, temp_c: None, ..row }).collect()
    };
    let whole = folder.path().join("whole.csv");
    Desk::measure(&sets, &[], &whole, 0);
    for stop_after in 1..4 {
        let output = folder.path().join(format!("{stop_after}.csv"));
        let stopped = Desk::measure(&sets, &[], &output, stop_after);
        assert!(!stopped.finished && !output.exists());
        let outcome = Desk::measure(&sets, &[], &output, 0);
        assert_eq!((outcome.resumed, outcome.finished), (stop_after, true));
        assert_eq!(comparable(&output), comparable(&whole), "after {stop_after}");
    }
}

#[test]
fn a_set_that_does_not_fit_into_the_memory_is_not_valid_and_the_next_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let point = |batch, share| Point { share, batch, clock: Megahertz(900), limit_w: None };
    let set = |batch| Set {
        members: (0..2).map(|place| Member { place, point: point(batch, Share::Mps(43)) }).collect(),
    };
    let outcome = Desk::measure(&[set(2_000), set(2)], &[], &folder.path().join("s.csv"), 0);
    let valid: Vec<bool> = outcome.rows.iter().map(|r| r.valid).collect();
    assert_eq!(valid, [false, false, true, true]);
    let why = outcome.rows[0].reason.as_deref().unwrap();
    assert!(why.starts_with("does not fit: the set needs"), "{why}");
    // Side by side they share the memory; in MIG instances each has its own.
    let small = |place| Member { place, point: point(400, Share::Mig(1)) };
    let outcome =
        Desk::measure(&[Set { members: vec![small(0), small(1)] }], &[], &folder.path().join("m.csv"), 0);
    let why = outcome.rows[0].reason.as_deref().unwrap();
    assert!(why.starts_with("`vgg19-like` does not fit: batch 400 needs"), "{why}");
}
