//! What spoils a point, and what ends a sweep.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use gpumon_core::clock::Clock;
use gpumon_core::share::Share;
use gpumon_core::units::{Megahertz, Millijoules, Milliwatts, MonoUs, WallUs};
use gpumon_monitor::device::sim::SimDevice;
use gpumon_monitor::device::{Activity, Device, Identity, Power, PowerSample, ReadError, SlowSensor};
use gpumon_simgpu::{Change, SimModel};

use super::{near, stage};
use crate::design::Design;
use crate::plan::Plan;
use crate::protocol::Bench;
use crate::space::Point;
use crate::stage::{Seat, SimStage, StageError};
use crate::sweep::Sweep;
use crate::workload::{Tick, Workload, WorkloadError};

#[test]
fn the_power_cap_is_noted_and_a_lost_clock_is_not_valid() {
    let mut capped = stage("a100", "vgg19-like");
    capped.device.gpu().apply(MonoUs(0), Change::PowerLimit(Milliwatts(150_000))).unwrap();
    let point = Point { share: Share::Mig(7), batch: 32, clock: Megahertz(1410), limit_w: None };
    capped.settings = SimStage::new(capped.device.clone(), capped.clock.clone());
    let mut unset = Unset;
    let mut bench = Bench {
        protocol: &capped.protocol,
        device: capped.device.as_ref(),
        stage: &mut capped.settings,
        clock: capped.clock.as_ref(),
    };
    let row = bench.point(capped.workloads[0].as_mut(), &point, Some(63.0)).unwrap();
    assert!(row.valid && row.reason.as_ref().unwrap().contains("power cap: ran at"), "{row:?}");
    assert!(row.avg_power_draw < Some(151.0));
    let now = MonoUs(capped.clock.mono().since_us(capped.device.opened()));
    let other = Megahertz(210);
    capped.device.gpu().apply(now, Change::LockClocks(Some((other, other)))).unwrap();
    bench.stage = &mut unset;
    let mut stubborn = Stubborn(capped.clock.clone());
    let row = bench.point(&mut stubborn, &point, Some(63.0)).unwrap();
    assert!(!row.valid, "{row:?}");
    let reason = row.reason.unwrap();
    assert!(reason.contains("1 batches in") && reason.contains("ran at"), "{reason}");
}

#[test]
fn without_a_ring_the_sensor_is_polled() {
    let folder = tempfile::tempdir().unwrap();
    let spec = folder.path().join("no-ring.toml");
    let unsupported = "unsupported = [\"ring\", \"power_average\", \"gpm\", \"event_reasons\"]";
    std::fs::write(&spec, format!("base = \"a100\"\n[sensors]\n{unsupported}\n")).unwrap();
    let mut stage = stage(spec.to_str().unwrap(), "bert-like");
    let point = Point { share: Share::Mig(4), batch: 16, clock: Megahertz(1005), limit_w: None };
    let mut bench = Bench {
        protocol: &stage.protocol,
        device: stage.device.as_ref(),
        stage: &mut stage.settings,
        clock: stage.clock.as_ref(),
    };
    let idle = bench.idle(stage.workloads[0].as_mut(), point.clock, true).unwrap();
    let row = bench.point(stage.workloads[0].as_mut(), &point, idle.avg_power_draw).unwrap();
    assert!(row.valid && row.reason.is_none() && row.sm_util_pct.is_none(), "{row:?}");
    let truth = SimModel::builtin("bert-like").unwrap().truth(16, Share::Mig(4), Megahertz(1005));
    near(row.dynamic_power_draw, truth.dynamic_w, 0.04, "polled");
}

/// A simulated GPU that reports clock-event reasons of its own, and is lost after so many of those calls.
struct Troubled {
    gpu: Arc<SimDevice>,
    reasons: i64,
    lost_after: AtomicUsize,
}

impl Device for Troubled {
    fn identity(&self) -> &Identity {
        self.gpu.identity()
    }
    fn power(&self) -> Result<Power, ReadError> {
        self.gpu.power()
    }
    fn sm_clock(&self) -> Result<Megahertz, ReadError> {
        self.gpu.sm_clock()
    }
    fn power_samples(&self, newer_than: WallUs, into: &mut Vec<PowerSample>) -> Result<(), ReadError> {
        self.gpu.power_samples(newer_than, into)
    }
    fn energy_counter(&self) -> Result<Millijoules, ReadError> {
        self.gpu.energy_counter()
    }
    fn slow(&self, sensor: SlowSensor) -> Result<i64, ReadError> {
        let left = self.lost_after.load(Ordering::SeqCst);
        self.lost_after.store(left.saturating_sub(1), Ordering::SeqCst);
        match (left, sensor) {
            (0, _) => Err(ReadError::Lost("fell off the bus".into())),
            (_, SlowSensor::EventReasons) => Ok(self.reasons),
            _ => self.gpu.slow(sensor),
        }
    }
    fn activity(&self) -> Result<Activity, ReadError> {
        self.gpu.activity()
    }
}

#[test]
fn heat_spoils_a_point_and_a_lost_gpu_ends_the_sweep() {
    let mut stage = stage("a100", "bert-like");
    let hot = Troubled { gpu: stage.device.clone(), reasons: 0x20, lost_after: AtomicUsize::new(1_000) };
    let point = Point { share: Share::Mig(1), batch: 1, clock: Megahertz(600), limit_w: None };
    let mut bench = Bench {
        protocol: &stage.protocol,
        device: &hot,
        stage: &mut stage.settings,
        clock: stage.clock.as_ref(),
    };
    let row = bench.point(stage.workloads[0].as_mut(), &point, Some(50.0)).unwrap();
    assert!(!row.valid && row.reason.as_deref().unwrap().contains("SW thermal slowdown"), "{row:?}");
    assert!(row.latency.is_some(), "what was measured stays");

    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("p.csv");
    let plan = stage.plan(Design::Lhs(0.1));
    hot.lost_after.store(50, Ordering::SeqCst);
    let sweep = Sweep {
        bench: Bench {
            protocol: &stage.protocol,
            device: &hot,
            stage: &mut stage.settings,
            clock: stage.clock.as_ref(),
        },
        workloads: &mut stage.workloads,
        plan: &plan,
        output: &output,
        stop: &AtomicBool::new(false),
        same_time: false,
        heat_s: 0.0,
        closing: false,
    };
    let error = sweep.run(&mut |_| ()).unwrap_err().to_string();
    assert!(error.contains("fell off the bus") && error.contains("rows made so far"), "{error}");
    let again = stage.sweep(&plan, &output, 0).unwrap();
    assert!(again.resumed > 0 && output.exists());
}

/// Says that the clock is locked, and never locks it.
struct Unset;

impl crate::stage::Stage for Unset {
    fn clock(&mut self, _: Megahertz) -> Result<bool, StageError> {
        Ok(true)
    }
    fn limit(&mut self, _: Option<u32>) -> Result<(), StageError> {
        Ok(())
    }
    fn seat(&mut self, share: Share) -> Result<Seat, StageError> {
        Ok(Seat { share, env: Vec::new() })
    }
    fn whole(&mut self) -> Result<Seat, StageError> {
        self.seat(Share::Mps(100))
    }
    fn seats_coexist(&self) -> bool {
        false
    }
    fn restore(&mut self) -> Result<(), StageError> {
        Ok(())
    }
}

/// Runs one slow batch after another, and knows no better.
struct Stubborn(Arc<dyn Clock>);

impl Workload for Stubborn {
    fn name(&self) -> &str {
        "stubborn"
    }
    fn fits(&self, _: &Point) -> Result<(), String> {
        Ok(())
    }
    fn load(&mut self, point: &Point, _: &Seat) -> Result<(), WorkloadError> {
        match point.batch {
            13 => Err(WorkloadError::Failed("unlucky".into())),
            _ => Ok(()),
        }
    }
    fn unload(&mut self) -> Result<(), WorkloadError> {
        Ok(())
    }
    fn run_batch(&mut self) -> Result<f64, WorkloadError> {
        Ok(40_000.0)
    }
    fn run(&mut self, _: i64, tick_us: i64, tick: &mut Tick<'_>) -> Result<Vec<f64>, WorkloadError> {
        let (start, mut times) = (self.0.mono(), Vec::new());
        for i in 1.. {
            self.0.sleep_until(start.plus_us(i * tick_us));
            if i * tick_us >= 40_000_000 * (times.len() as i64 + 1) {
                times.push(40_000.0);
            }
            if tick(&times).is_break() {
                break;
            }
        }
        Ok(times)
    }
    fn memory_bytes(&self) -> Option<u64> {
        None
    }
    fn idle(&mut self, _: &Seat, _: bool) -> Result<(), WorkloadError> {
        Ok(())
    }
    fn quit(&mut self) -> Result<(), WorkloadError> {
        Ok(())
    }
}

#[test]
fn a_workload_that_keeps_failing_ends_the_sweep() {
    let mut stage = stage("a100", "bert-like");
    stage.workloads = vec![Box::new(Stubborn(stage.clock.clone()))];
    let space = stage.space(&[1, 2, 3], &[13], &[210, 750]);
    let plan = Plan::new(&space, Design::Full, 0, &stage.workloads);
    let folder = tempfile::tempdir().unwrap();
    let error = stage.sweep(&plan, &folder.path().join("p.csv"), 0).unwrap_err().to_string();
    assert!(error.contains("5 points failed") && error.contains("unlucky"), "{error}");
}

#[test]
fn points_that_do_not_fit_are_left_out_with_the_reason() {
    let stage = stage("a100", "vgg19-like");
    let plan = Plan::new(&stage.space(&[1, 7], &[1, 1024], &[1410]), Design::Full, 0, &stage.workloads);
    let left_out = &plan.models[0].left_out;
    assert_eq!((plan.points(), left_out.len(), plan.rows()), (3, 1, 5));
    assert!(left_out[0].1.contains("needs"), "{left_out:?}");
}
