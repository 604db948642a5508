use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use gpumon_core::clock::{Clock, VirtualClock};
use gpumon_core::profile::{IDLE, IDLE_CONTEXT, ProfileRow};
use gpumon_core::profile_io;
use gpumon_core::set::SetRow;
use gpumon_core::share::Share;
use gpumon_core::units::{Megahertz, Millijoules, Milliwatts, MonoUs, WallUs};
use gpumon_monitor::device::sim::{SimDevice, named};
use gpumon_monitor::device::{Activity, Device, Identity, Power, PowerSample, ReadError, SlowSensor};
use gpumon_simgpu::{Change, SimModel};

use crate::choose::{Candidate, Choice, Chooser, End, InOrder};
use crate::design::Design;
use crate::plan::Plan;
use crate::protocol::{Bench, Protocol};
use crate::space::{Point, Space};
use crate::stage::{Seat, SimStage, Stage as _, StageError};
use crate::sweep::{Outcome, Sweep, SweepError};
use crate::workload::{Context, Tick, Workload, WorkloadError, of_model, open, torch};

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

/// A file's rows without what depends on the GPU's past: its temperature, and a row's energy, as the counter moves in
/// steps.
fn comparable(path: &Path) -> Vec<ProfileRow> {
    let rows = profile_io::read(path).unwrap().rows;
    for row in &rows {
        assert!(row.wall_energy_j > Some(0.0) && row.wall_s > Some(0.0) && row.temp_c.is_some(), "{row:?}");
    }
    rows.into_iter().map(|row| ProfileRow { wall_energy_j: None, temp_c: None, ..row }).collect()
}

#[test]
fn a_sweep_cut_off_anywhere_gives_the_same_rows() {
    let plan = stage("a100", "densenet-like+mobilenet-like").plan(Design::Lhs(0.3));
    for name in ["p.parquet", "p.csv"] {
        let folder = tempfile::tempdir().unwrap();
        let whole = folder.path().join(format!("whole-{name}"));
        stage("a100", "densenet-like+mobilenet-like").sweep(&plan, &whole, 0).unwrap();
        let whole = comparable(&whole);
        for stop_after in [1, 3, 6, 7, 10, plan.rows() - 1] {
            for cut_bytes in [0, 1, 40] {
                let output = folder.path().join(format!("{stop_after}-{cut_bytes}-{name}"));
                let stopped =
                    stage("a100", "densenet-like+mobilenet-like").sweep(&plan, &output, stop_after).unwrap();
                let journal = stopped.journal.unwrap();
                assert_eq!(stopped.rows.len(), stop_after);
                assert!(!output.exists());
                let kept = std::fs::read(&journal).unwrap();
                std::fs::write(&journal, &kept[..kept.len() - cut_bytes]).unwrap();
                let outcome = stage("a100", "densenet-like+mobilenet-like").sweep(&plan, &output, 0).unwrap();
                assert_eq!(outcome.resumed, if cut_bytes == 0 { stop_after } else { stop_after - 1 });
                assert!(comparable(&output) == whole, "{name} after {stop_after}, {cut_bytes} bytes short");
                assert!(!journal.exists());
            }
        }
    }
}

/// Takes points from the end, four of each model.
struct FromTheEnd;

impl Chooser for FromTheEnd {
    fn next(&mut self, model: &str, rows: &[ProfileRow], left: &[Candidate]) -> Choice {
        let own = rows.iter().filter(|r| r.model == model).count();
        if own < 4 {
            Choice::Next(left.len() - 1)
        } else {
            Choice::Done(End { expected_error: Some(0.5), reached: None })
        }
    }

    fn most(&self, _: usize) -> usize {
        4
    }
}

#[test]
fn a_chooser_asks_for_points_and_is_asked_the_same_again_after_a_stop() {
    let folder = tempfile::tempdir().unwrap();
    let begin = || stage("a100", "densenet-like+mobilenet-like");
    let plan = begin().plan(Design::Full);
    assert_eq!((plan.rows(), plan.rows_by(&FromTheEnd)), (6 + 54, 6 + 8));
    let whole = folder.path().join("whole.csv");
    let outcome = begin().sweep_by(&mut FromTheEnd, &plan, &whole, 0).unwrap();
    assert_eq!(outcome.ends, [End { expected_error: Some(0.5), reached: None }; 2]);
    let last = plan.models[1].points.iter().rev().take(4).map(|p| (p.batch, p.clock.0));
    let made = rows(outcome).split_off(10);
    assert!(made.iter().map(|r| (r.batch_size as u32, r.frequency as u32)).eq(last));
    for stop_after in [3, 6, 8, 10, 13] {
        let output = folder.path().join(format!("{stop_after}.csv"));
        begin().sweep_by(&mut FromTheEnd, &plan, &output, stop_after).unwrap();
        let outcome = begin().sweep_by(&mut FromTheEnd, &plan, &output, 0).unwrap();
        assert_eq!((outcome.resumed, outcome.ends.len()), (stop_after, 2));
        assert!(comparable(&output) == comparable(&whole), "after {stop_after}");
    }
    // Another order finds a row that it would not have made.
    let output = folder.path().join("other.csv");
    begin().sweep_by(&mut FromTheEnd, &plan, &output, 8).unwrap();
    let error = begin().sweep(&plan, &output, 0).unwrap_err().to_string();
    assert!(error.contains("a row of another point than the sweep's"), "{error}");
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

#[test]
fn a_journal_cut_at_any_byte_is_taken_up() {
    let folder = tempfile::tempdir().unwrap();
    let begin = || stage("a100", "mobilenet-like");
    let plan = begin().plan(Design::Lhs(0.1));
    let whole = folder.path().join("whole.csv");
    begin().sweep(&plan, &whole, 0).unwrap();
    let cut = folder.path().join("cut.csv");
    begin().sweep(&plan, &cut, plan.rows() - 1).unwrap();
    let journal = folder.path().join("cut.csv.journal");
    let kept = std::fs::read(&journal).unwrap();
    for bytes in (0..kept.len()).step_by(311).chain([1, kept.len()]) {
        std::fs::write(&journal, &kept[..bytes]).unwrap();
        begin().sweep(&plan, &cut, 0).unwrap();
        assert!(comparable(&cut) == comparable(&whole), "cut to {bytes} bytes");
        std::fs::remove_file(&cut).unwrap();
    }
}

#[test]
fn a_journal_of_other_rows_than_the_plans_is_refused_with_the_line() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("p.csv");
    let begin = || stage("a100", "bert-like");
    let plan = begin().plan(Design::Lhs(0.2));
    begin().sweep(&plan, &output, plan.rows() - 1).unwrap();
    let journal = folder.path().join("p.csv.journal");
    let kept = std::fs::read_to_string(&journal).unwrap();
    let lines: Vec<&str> = kept.lines().collect();
    let refused = |lines: &[&str], says: &str| {
        std::fs::write(&journal, lines.join("\n") + "\n").unwrap();
        let error = begin().sweep(&plan, &output, 0).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    };
    let without =
        |i: usize| lines.iter().enumerate().filter(|(k, _)| *k != i).map(|(_, l)| *l).collect::<Vec<_>>();
    refused(&without(2), "line 3: a row of another point than the sweep's, which is `@idle` at 750 MHz");
    let points = 1 + 2 * plan.idle.len();
    refused(&without(points), &format!("line {}: a row of another point", points + 1));
    let last = *lines.last().unwrap();
    refused(&[&lines[..], &[last]].concat(), "a row of another point");
    refused(&[&lines[..], &[last, last]].concat(), &format!("line {}: a row of", lines.len() + 1));
    let mut turned = lines.clone();
    let late = lines[1].replacen("\"at_us\":", "\"at_us\":99999999", 1);
    turned[1] = &late;
    refused(&turned, "µs, before the row above or centuries late");
    std::fs::write(&journal, kept).unwrap();
    begin().sweep(&plan, &output, 0).unwrap();
}

#[test]
fn two_sweeps_do_not_write_one_output() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("p.csv");
    let plan = stage("a100", "bert-like").plan(Design::Lhs(0.2));
    let mut first = stage("a100", "bert-like");
    let stop = AtomicBool::new(false);
    let bench = Bench {
        protocol: &first.protocol,
        device: first.device.as_ref(),
        stage: &mut first.settings,
        clock: first.clock.as_ref(),
    };
    let workloads = &mut first.workloads;
    let (same_time, heat_s, closing) = (true, 0.0, false);
    let sweep =
        Sweep { bench, workloads, plan: &plan, output: &output, stop: &stop, same_time, heat_s, closing };
    let mut errors = 0;
    sweep
        .run(&mut |_| {
            let error = stage("a100", "bert-like").sweep(&plan, &output, 0).unwrap_err();
            assert!(error.to_string().contains("is being written by another sweep"), "{error}");
            errors += 1;
        })
        .unwrap();
    assert_eq!(errors, plan.rows());
}

#[test]
fn another_sweeps_journal_and_an_existing_output_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("p.csv");
    let plan = stage("a100", "bert-like").plan(Design::Lhs(0.2));
    stage("a100", "bert-like").sweep(&plan, &output, 2).unwrap();
    let mut other = stage("a100", "gpt-like");
    let others = other.plan(Design::Lhs(0.2));
    let error = other.sweep(&others, &output, 0).unwrap_err().to_string();
    assert!(error.contains("models are `bert-like`, here they are `gpt-like`"), "{error}");
    let other_plan = stage("a100", "bert-like").plan(Design::Full);
    let error = stage("a100", "bert-like").sweep(&other_plan, &output, 0).unwrap_err().to_string();
    assert!(error.contains("points are others"), "{error}");
    let journal = folder.path().join("p.csv.journal");
    let text = std::fs::read_to_string(&journal).unwrap();
    std::fs::write(&journal, text.replacen("{\"at_us\"", "{at_us", 1)).unwrap();
    let error = stage("a100", "bert-like").sweep(&plan, &output, 0).unwrap_err().to_string();
    assert!(error.contains("p.csv.journal`, line 2: not a row"), "{error}");
    std::fs::write(&output, "mine").unwrap();
    let error = stage("a100", "bert-like").sweep(&plan, &output, 0).unwrap_err().to_string();
    assert!(error.contains("exists already"), "{error}");
    let error =
        stage("a100", "bert-like").sweep(&plan, &folder.path().join("p.xls"), 0).unwrap_err().to_string();
    assert!(error.contains("`.parquet` or `.csv`"), "{error}");
}

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

#[test]
fn every_simulated_model_passes_the_same_checks() {
    for model in SimModel::builtins() {
        let mut stage = stage("a100", model.name());
        let workload = stage.workloads[0].as_mut();
        assert_eq!(workload.name(), model.name());
        assert!(matches!(workload.run_batch(), Err(WorkloadError::Failed(_))), "nothing is loaded");
        let point = Point { share: Share::Mig(2), batch: 4, clock: Megahertz(900), limit_w: None };
        let seat = stage.settings.seat(point.share).unwrap();
        workload.load(&point, &seat).unwrap();
        let one_ms = workload.run_batch().unwrap();
        let mut ticks = 0;
        let before = stage.clock.mono();
        let times = workload
            .run(2_000_000, 100_000, &mut |_| {
                ticks += 1;
                ControlFlow::Continue(())
            })
            .unwrap();
        let took_ms = stage.clock.mono().since_us(before) as f64 / 1e3;
        assert!((times.iter().sum::<f64>() - took_ms).abs() < 1.0 && ticks >= 19);
        assert!((times[0] / one_ms - 1.0).abs() < 0.6 && workload.memory_bytes() > Some(0));
        workload.idle(&seat, true).unwrap();
        assert_eq!(stage.device.power().unwrap().average, None);
        workload.quit().unwrap();
        assert!(workload.memory_bytes().is_none());
    }
}

#[test]
fn the_page_lists_the_columns_that_there_are() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/profiling.md");
    let with = |text: String, begin: &str, end: &str, table: String| {
        let (before, rest) = text.split_once(begin).unwrap();
        let (_, after) = rest.split_once(end).unwrap();
        let table = table.split_once("\n\n").unwrap().1;
        format!("{before}{begin}\n{table}\n{end}{after}")
    };
    let text = std::fs::read_to_string(path).unwrap();
    let table = gpumon_core::table::markdown::<ProfileRow>();
    let wanted = with(text, "<!-- columns -->\n", "<!-- end -->", table);
    let sets = gpumon_core::table::markdown::<SetRow>();
    let wanted = with(wanted, "<!-- set columns -->\n", "<!-- set end -->", sets);
    if std::env::var_os("GPUMON_BLESS").is_some() {
        std::fs::write(path, &wanted).unwrap();
    }
    let kept = std::fs::read_to_string(path).unwrap();
    assert!(kept == wanted, "docs/profiling.md differs from the code; see there how to write it anew");
    for model in SimModel::builtins() {
        assert!(kept.contains(&format!("`sim:{}`", model.name())));
    }
}

#[test]
fn unknown_workloads_are_explained() {
    let stage = stage("a100", "bert-like");
    let context = Context { clock: stage.clock.clone(), sim: None, python: None, native: None };
    let explain = |spec: &str| open("m", spec, &context).err().unwrap().to_string();
    assert!(explain("cuda:x").contains("`sim:MODEL`"));
    assert!(explain("sim:alexnet").contains("`sim:resnet50-like`"));
    assert!(explain("sim:bert-like").contains("--device sim:a100"));
}

#[test]
fn models_are_opened_as_the_workload_file_says() {
    let clock: Arc<dyn Clock> = Arc::new(VirtualClock::new(WallUs(0)));
    let context = Context { clock, sim: None, python: Some("/no/python".into()), native: None };
    let argv = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let opened = of_model("m", Some(&argv(&["python3", "w.py"])), &context).unwrap();
    assert_eq!(opened.name(), "m");
    let error = of_model("m", Some(&argv(&["torch:resnet50"])), &context).err().unwrap().to_string();
    assert!(error.contains("`/no/python` cannot be run"), "{error}");
    let error = of_model("m", None, &context).err().unwrap().to_string();
    assert!(error.contains("`torch:m`") && error.contains("`torch:resnet50`"), "{error}");
    for (model, _) in torch::MODELS {
        let page = include_str!("../../docs/profiling.md");
        assert!(page.contains(&format!("`torch:{model}`")), "docs/profiling.md does not list {model}");
    }
}
