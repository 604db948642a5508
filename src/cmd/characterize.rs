//! `gpumon characterize`: what each GPU's power sensors show, how often and how late, under a load of its own.
//!
//! GPUs are characterised one after another, each result is kept as it arrives, and a GPU that fails does not end the
//! others. Simulated GPUs run on a virtual clock; only gpumon's own cost takes real time there.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use comfy_table::{CellAlignment, Table, presets};
use crossbeam_channel::Receiver;
use gpumon_core::clock::{Clock, RealClock, VirtualClock};
use gpumon_core::timing::{Characterisation, OwnOverhead, WindowShape};
use gpumon_monitor::characterize::load::SquareLoad;
use gpumon_monitor::characterize::load::command::CommandLoad;
use gpumon_monitor::characterize::load::cuda::CudaLoad;
use gpumon_monitor::characterize::load::sim::SimLoad;
use gpumon_monitor::characterize::{Error, Plan, characterise, own, saved};
use gpumon_monitor::device::{self, Device, select, sim};
use serde::Serialize;

use super::session::{self, Scope};
use super::{DONE, INTERRUPTED, known};
use crate::cli::characterize::CharacterizeArgs;
use crate::output::{self, note};
use crate::signals::{self, Signal, Take};

/// Exit code: some GPUs failed.
const FAILED: u8 = 1;
/// How long a simulated GPU is recorded in real time for gpumon's own cost, µs.
const SIM_OWN_COST_US: i64 = 3_000_000;

#[derive(Serialize)]
struct Report {
    simulated: bool,
    gpus: Vec<Characterisation>,
}

/// A GPU and what is needed to characterise it.
struct Subject {
    device: Arc<dyn Device>,
    clock: Arc<dyn Clock>,
    load: Box<dyn SquareLoad>,
}

/// Characterises GPUs, keeps and shows what was found.
pub fn run(args: &CharacterizeArgs) -> Result<u8> {
    if let Some(file) = args.output.as_ref().filter(|file| file.exists() && !args.force) {
        bail!("`{}` exists already; give --force to replace it", file.display());
    }
    let subjects = subjects(args)?;
    let signals = signals::listen(Take::Ending)?;
    let mut report = Report { simulated: false, gpus: Vec::new() };
    let mut failed = false;
    for mut subject in subjects {
        let name = subject.device.identity().to_string();
        match one(args, &mut subject, &signals) {
            Ok(found) => {
                keep(args, &found);
                report.gpus.push(found);
            }
            Err(e) if matches!(e.downcast_ref(), Some(Error::Interrupted)) => {
                note(format_args!("gpumon: {name}: {e}"));
                return Ok(INTERRUPTED);
            }
            Err(e) => {
                note(format_args!("gpumon: {name}: {e:#}"));
                failed = true;
            }
        }
    }
    if report.gpus.is_empty() {
        bail!("no GPU was characterised");
    }
    report.simulated = report.gpus.iter().any(|gpu| gpu.simulated);
    if let Some(file) = &args.output {
        let json = serde_json::to_string_pretty(&report)? + "\n";
        saved::write(file, &json).with_context(|| format!("cannot write `{}`", file.display()))?;
    }
    match args.json {
        true => output::print_json(&report)?,
        false => output::print(&report.gpus.iter().map(text).collect::<Vec<_>>().join("\n"))?,
    }
    Ok(if failed { FAILED } else { DONE })
}

fn subjects(args: &CharacterizeArgs) -> Result<Vec<Subject>> {
    let spec = &args.device.device;
    if spec.starts_with("replay:") {
        bail!(
            "a recording cannot be characterised: its GPU takes no load any more; use --device nvml or sim:h200"
        );
    }
    if let Some(name) = spec.strip_prefix("sim:") {
        if args.load_cmd.is_some() {
            bail!("a simulated GPU cannot run a command; leave out --load-cmd");
        }
        let clock: Arc<dyn Clock> = Arc::new(VirtualClock::new(RealClock.wall()));
        let fleet = sim::named(name, &clock)?;
        let all: Vec<Arc<dyn Device>> = fleet.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
        let chosen = match &args.device.gpu {
            Some(list) => select::select(&all, list).context("--gpu")?,
            None => all,
        };
        let of = |device: Arc<dyn Device>| {
            let own = fleet.iter().find(|sim| sim.identity().uuid == device.identity().uuid)?;
            let load = Box::new(SimLoad::new(own.clone()));
            Some(Subject { device, clock: clock.clone(), load })
        };
        return Ok(chosen.into_iter().filter_map(of).collect());
    }
    let clock: Arc<dyn Clock> = Arc::new(RealClock);
    let devices = session::open(&args.device, Scope::Machine)?;
    let of = |device: Arc<dyn Device>| {
        let load = real_load(args.load_cmd.as_ref(), &device, &clock);
        Subject { device, clock: clock.clone(), load }
    };
    Ok(devices.into_iter().map(of).collect())
}

fn real_load(
    command: Option<&Vec<OsString>>,
    device: &Arc<dyn Device>,
    clock: &Arc<dyn Clock>,
) -> Box<dyn SquareLoad> {
    let uuid = &device.identity().uuid;
    let Some(command) = command else { return Box::new(CudaLoad::new(uuid, clock.clone())) };
    let asked = device.clone();
    let power_w = move || asked.power().ok().and_then(|p| p.instant.or(p.average)).map(|p| p.watts());
    Box::new(CommandLoad::new(command.clone(), uuid, clock.clone(), Box::new(power_w)))
}

fn one(
    args: &CharacterizeArgs,
    subject: &mut Subject,
    signals: &Receiver<Signal>,
) -> Result<Characterisation> {
    let identity = subject.device.identity().clone();
    let plan = Plan::of(args.duration.as_micros() as i64, !identity.simulated);
    let told = |step: &str| note(format_args!("gpumon: GPU {}: {step}", identity.index));
    let interrupted = || !signals.is_empty();
    let (device, clock) = (subject.device.clone(), subject.clock.as_ref());
    let mut found = characterise(device, subject.load.as_mut(), clock, &plan, &interrupted, &told)?;
    if identity.simulated {
        told("gpumon's own cost, in real time");
        found.own_cost = Some(sim_own_cost(&args.device.device, &identity.uuid)?);
        found.notes.push(
            "own cost: the CPU time holds the simulation of the GPU, and simulated calls draw no power"
                .into(),
        );
    }
    Ok(found)
}

fn sim_own_cost(spec: &str, uuid: &str) -> Result<OwnOverhead> {
    let devices = device::open(spec, Arc::new(RealClock))?;
    let device = devices.iter().find(|d| d.identity().uuid == uuid).context("the simulated GPU is gone")?;
    Ok(OwnOverhead { cpu_pct: own::cpu_pct(device, SIM_OWN_COST_US)?, gpu_w: None, gpu_w_within: None })
}

/// Keeps a result for later recordings. What cannot be kept can still be shown.
fn keep(args: &CharacterizeArgs, found: &Characterisation) {
    if args.no_save {
        return;
    }
    match known::folder().map(|folder| saved::save(&folder, found)) {
        Some(Ok(path)) => note(format_args!("gpumon: kept in `{}` for later recordings", path.display())),
        Some(Err(e)) => note(format_args!("gpumon: cannot be kept for later recordings: {e}")),
        None => note("gpumon: not kept for later recordings: neither XDG_STATE_HOME nor HOME names a folder"),
    }
}

/// The name of a window's shape.
pub fn shape(shape: WindowShape) -> &'static str {
    match shape {
        WindowShape::Box => "box",
        WindowShape::LowPass => "low-pass",
    }
}

fn text(found: &Characterisation) -> String {
    let mut text =
        format!("{}  {}  driver {}\nload: {}\n\n", found.gpu_name, found.uuid, found.driver, found.load);
    let _ = writeln!(text, "{}\n\n{}\n", sensors(found), calls(found));
    if let Some(counter) = &found.counter {
        let ratio = counter
            .ratio_to_integral
            .map(|r| format!(", {:+.2} % against power readings", 100.0 * (r - 1.0)));
        let _ = writeln!(
            text,
            "energy counter: steps of {:.0} mJ and more{}",
            counter.step_mj,
            ratio.unwrap_or_default()
        );
    }
    if let Some(ring) = &found.ring {
        let span_s = f64::from(ring.capacity) * ring.spacing_ms / 1e3;
        let [low, high] = ring.spacing_range_ms;
        let _ =
            writeln!(text, "ring: {} readings, {span_s:.2} s, {low:.1} to {high:.1} ms apart", ring.capacity);
    }
    if let Some(own) = &found.own_cost {
        let gpu = own.gpu_w.map(|w| match own.gpu_w_within {
            Some(within) => format!(", GPU {w:+.2} W (± {within:.2} W)"),
            None => format!(", GPU {w:+.2} W"),
        });
        let _ =
            writeln!(text, "recording at 10 Hz: {:.2} % of a core{}", own.cpu_pct, gpu.unwrap_or_default());
    }
    for note in &found.notes {
        let _ = writeln!(text, "note: {note}");
    }
    text
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(header);
    table
}

fn sensors(found: &Characterisation) -> Table {
    let mut table = table(&[
        "sensor",
        "update ms",
        "jitter ms",
        "window ms",
        "shape",
        "lag ms",
        "coverage",
        "residual W",
    ]);
    let one = |value: f64| format!("{value:.1}");
    let dash = || "–".to_owned();
    for (name, timing) in [("instant", found.instant), ("average", found.average)] {
        if let Some(t) = timing {
            table.add_row([
                name.to_owned(),
                one(t.update_ms),
                one(t.update_jitter_ms),
                one(t.window_ms),
                shape(t.shape).to_owned(),
                one(t.lag_ms),
                format!("{:.0} %", 100.0 * t.coverage),
                one(t.residual_w),
            ]);
        }
    }
    if let Some(t) = found.ring {
        let window = [
            one(t.spacing_ms),
            dash(),
            one(t.window_ms),
            shape(t.shape).to_owned(),
            one(t.lag_ms),
            dash(),
            one(t.residual_w),
        ];
        table.add_row(std::iter::once("ring".to_owned()).chain(window));
    }
    if let Some(t) = found.counter {
        let lag = t.lag_ms.map_or_else(dash, one);
        let cells = [one(t.update_ms), dash(), dash(), dash(), lag, dash(), dash()];
        table.add_row(std::iter::once("counter".to_owned()).chain(cells));
    }
    right(&mut table, &[1, 2, 3, 5, 6, 7]);
    table
}

fn calls(found: &Characterisation) -> Table {
    let mut table = table(&["call", "calls", "p50 µs", "p99 µs", "longest µs"]);
    for cost in &found.calls {
        let us = |value: f64| format!("{value:.1}");
        table.add_row([
            cost.call.clone(),
            cost.count.to_string(),
            us(cost.p50_us),
            us(cost.p99_us),
            us(cost.max_us),
        ]);
    }
    right(&mut table, &[1, 2, 3, 4]);
    table
}

fn right(table: &mut Table, columns: &[usize]) {
    for &column in columns {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}
