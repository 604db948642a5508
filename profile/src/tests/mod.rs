//! Sweeps of simulated models on a virtual clock: here what they measure, against what is true.

mod journal;
mod trouble;
mod workloads;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gpumon_core::clock::{Clock, VirtualClock};
use gpumon_core::profile::{IDLE, IDLE_CONTEXT, ProfileRow};
use gpumon_core::profile_io;
use gpumon_core::share::Share;
use gpumon_core::units::{Megahertz, WallUs};
use gpumon_monitor::device::Device;
use gpumon_monitor::device::sim::{SimDevice, named};
use gpumon_simgpu::SimModel;

use crate::choose::{Chooser, InOrder};
use crate::design::Design;
use crate::plan::Plan;
use crate::protocol::{Bench, Protocol};
use crate::space::Space;
use crate::stage::SimStage;
use crate::sweep::{Outcome, Sweep, SweepError};
use crate::workload::{Context, Workload, open};

struct Stage {
    settings: SimStage,
    clock: Arc<dyn Clock>,
    device: Arc<SimDevice>,
    workloads: Vec<Box<dyn Workload>>,
    protocol: Protocol,
    heat_s: f64,
}

fn stage(gpu: &str, model: &str) -> Stage {
    let clock: Arc<dyn Clock> = Arc::new(VirtualClock::new(WallUs(1_700_000_000_000_000)));
    let device = named(gpu, &clock).unwrap().remove(0);
    let context = Context { clock: clock.clone(), sim: Some(device.clone()), python: None, native: None };
    let workloads = model.split('+').map(|m| open(m, &format!("sim:{m}"), &context).unwrap()).collect();
    let settings = SimStage::new(device.clone(), clock.clone());
    Stage { settings, workloads, clock, device, protocol: Protocol::default(), heat_s: 0.0 }
}

impl Stage {
    fn space(&self, slices: &[u8], batches: &[u32], clocks: &[u32]) -> Space {
        let shares: Vec<_> = slices.iter().copied().map(Share::Mig).collect();
        let clocks: Vec<_> = clocks.iter().copied().map(Megahertz).collect();
        Space::new(&shares, batches, &clocks, &self.device.identity().sm_clocks).unwrap()
    }

    fn plan(&self, design: Design) -> Plan {
        Plan::new(&self.space(&[1, 3, 7], &[1, 8, 32], &[210, 750, 1410]), design, 1, &self.workloads)
    }

    fn sweep(&mut self, plan: &Plan, output: &Path, stop_after: usize) -> Result<Outcome, SweepError> {
        self.sweep_by(&mut InOrder, plan, output, stop_after)
    }

    fn sweep_by(
        &mut self,
        chooser: &mut dyn Chooser,
        plan: &Plan,
        output: &Path,
        stop_after: usize,
    ) -> Result<Outcome, SweepError> {
        let stop = AtomicBool::new(false);
        let sweep = Sweep {
            bench: Bench {
                protocol: &self.protocol,
                device: self.device.as_ref(),
                stage: &mut self.settings,
                clock: self.clock.as_ref(),
            },
            workloads: &mut self.workloads,
            plan,
            output,
            stop: &stop,
            same_time: true,
            heat_s: self.heat_s,
            closing: self.heat_s > 0.0,
        };
        let mut made = 0;
        sweep.run_by(chooser, &mut |progress| {
            made += 1;
            assert!(progress.done <= progress.total && progress.remaining_s >= 0.0);
            stop.store(made == stop_after, Ordering::SeqCst);
        })
    }
}

fn rows(outcome: Outcome) -> Vec<ProfileRow> {
    assert!(outcome.journal.is_none() && outcome.notices.is_empty(), "{outcome:?}");
    outcome.rows
}

fn near(found: Option<f64>, truth: f64, relative: f64, what: &str) {
    let found = found.unwrap_or(f64::NAN);
    assert!((found / truth - 1.0).abs() < relative, "{what}: {found}, in truth {truth}");
}

#[test]
fn a_profile_agrees_with_the_truth_of_its_model() {
    for model in ["resnet50-like", "bert-like"] {
        let mut stage = stage("a100", model);
        let folder = tempfile::tempdir().unwrap();
        let plan = stage.plan(Design::Full);
        let output = folder.path().join("p.parquet");
        let rows = rows(stage.sweep(&plan, &output, 0).unwrap());
        assert_eq!(rows.len(), 6 + 27);
        assert_eq!(profile_io::read(&output).unwrap().rows, rows);
        let truth = SimModel::builtin(model).unwrap();
        for row in rows.iter().filter(|r| !r.is_idle()) {
            assert!(row.valid && row.simulated == Some(true), "{row:?}");
            let share = Share::Mig(row.mig_slices.unwrap() as u8);
            let ran = Megahertz(row.sm_mhz_achieved.unwrap().round() as u32);
            let point = truth.truth(row.batch_size as u32, share, ran);
            let what = format!("{model} {} {share} {ran}", row.batch_size);
            near(row.latency, point.time_ms, 0.025, &what);
            near(row.throughput, f64::from(row.batch_size) * 1e3 / point.time_ms, 0.025, &what);
            if row.reason.is_none() {
                let tolerance = 0.04 + 0.3 / point.dynamic_w;
                near(row.dynamic_power_draw, point.dynamic_w, tolerance, &what);
            }
            assert!(row.latency_p50 < row.latency_p99 && row.n_samples >= Some(10));
        }
    }
}

#[test]
fn idle_rows_are_the_gpus_idle_power() {
    let mut stage = stage("a100", "mobilenet-like");
    let folder = tempfile::tempdir().unwrap();
    let plan = stage.plan(Design::Lhs(0.1));
    let rows = rows(stage.sweep(&plan, &folder.path().join("p.csv"), 0).unwrap());
    let of = |model: &str| rows.iter().filter(|r| r.model == model).cloned().collect::<Vec<_>>();
    for row in of(IDLE) {
        near(row.avg_power_draw, 44.0, 0.01, "without a context");
        assert_eq!(row.sm_mhz_achieved, Some(210.0));
    }
    let with = of(IDLE_CONTEXT);
    assert_eq!(with.len(), plan.idle.len());
    near(with.last().unwrap().avg_power_draw, 63.0, 0.01, "with a context, at 1410 MHz");
    assert_eq!(with.last().unwrap().sm_mhz_achieved, Some(1410.0));
}

#[test]
fn a_card_is_heated_before_it_idles_with_a_context_and_idle_power_is_looked_at_again() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("p.csv");
    let begin = || Stage { heat_s: 90.0, ..stage("a100", "densenet-like+bert-like") };
    let plan = begin().plan(Design::Lhs(0.2));
    assert_eq!(plan.idle.len(), 3);
    let stopped = begin().sweep(&plan, &output, 8).unwrap();
    let heated = &stopped.heated[..];
    assert!(
        heated.len() == 1 && stopped.drift.is_none(),
        "30 s of rows with a context are no pause: {heated:?}"
    );
    let first = &heated[0];
    assert!((first.model.as_str(), first.batch, first.steady) == ("densenet-like", 32, true), "{first:?}");
    assert!((20.0..60.0).contains(&first.seconds) && first.to_c > first.from_c, "{first:?}");
    assert!(first.joules > Some(100.0 * 20.0) && stopped.joules > first.joules, "{first:?}");
    let rows_s: f64 = stopped.rows.iter().filter_map(|r| r.wall_s).sum();
    assert!((stopped.seconds - rows_s - first.seconds).abs() < 0.5, "all of the time is told");
    let models: Vec<_> = stopped.rows.iter().take(6).map(|r| (r.model.as_str(), r.frequency)).collect();
    let wanted = [210, 750, 1410]
        .map(|mhz| (IDLE, mhz))
        .into_iter()
        .chain([210, 750, 1410].map(|mhz| (IDLE_CONTEXT, mhz)));
    assert!(models.into_iter().eq(wanted));

    let outcome = begin().sweep(&plan, &output, 0).unwrap();
    assert_eq!((outcome.resumed, outcome.heated.len()), (8, 1), "a sweep that goes on heats again");
    let drift = outcome.drift.unwrap();
    assert_eq!(drift.clock_mhz, 1410);
    near(Some(drift.last_w), drift.first_w, 0.01, "a simulated GPU draws the same at any temperature");
    let noted: Vec<_> = outcome.rows.iter().filter(|r| r.is_idle() && r.reason.is_some()).collect();
    assert!(noted.len() == 1 && noted[0].frequency == 1410, "{noted:?}");
    assert!(noted[0].reason.as_deref().unwrap().ends_with("after the points"), "{noted:?}");
    assert_eq!(profile_io::read(&output).unwrap().rows, outcome.rows);

    // A minute without work cools it.
    let mut slow = begin();
    slow.protocol.idle_s = 20.0;
    let heated = slow.sweep(&plan, &folder.path().join("slow.csv"), 0).unwrap().heated;
    assert_eq!(heated.len(), 2, "before the first clock with a context, and before the third: {heated:?}");
}
