//! `gpumon tune`: new clocks and batches for a plan that runs, after a change of rates or of carbon intensity.
//!
//! Rule: the demand is the workload's at the load, and the objective is the plan's. What is not given stays as the plan has it.
//! Everything is tuned, checked and written beside its place before the plan and its files appear.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use gpumon_core::workload::Workload;
use gpumon_place::cost::Objective;
use gpumon_place::plan::Plan;
use gpumon_place::problem::{Ask, Problem};
use gpumon_place::tune::{Change, Tuned, Tuner};

use super::plans::{Outputs, Source, check_load, input};
use super::{DONE, inputs};
use crate::cli::pipeline::TuneArgs;
use crate::export::file::is_stdout;
use crate::output::note;

/// Tunes, writes the plan and, if asked, what runs it, and tells what changed.
pub fn run(args: &TuneArgs) -> Result<u8> {
    let stdout = Path::new("-");
    let output = match (args.plan.output.as_deref(), args.json) {
        (Some(path), true) if is_stdout(path) => {
            bail!("-o - and --json both write to standard output; leave one out, --json has the plan in it")
        }
        (None, true) => None,
        (path, _) => Some(path.unwrap_or(stdout)),
    };
    let files = || [&args.running].into_iter().chain(args.source.files());
    let read: Vec<&Path> = files().map(PathBuf::as_path).collect();
    let outputs = Outputs::new(&args.plan, output, &read)?;
    args.load.map(|load| check_load("--load", load)).transpose()?;

    let running = inputs::plan(&args.running)?;
    let mut source = Source::read(&args.source)?;
    let cluster = &mut source.workload.cluster;
    cluster.carbon_g_per_kwh =
        args.carbon_g_per_kwh.or(cluster.carbon_g_per_kwh).or(Some(running.carbon_g_per_kwh));
    cluster.pue = cluster.pue.or(Some(running.pue));
    let of_plan = || format!("what the plan `{}` or the command line has", args.running.display());
    source.workload.check().with_context(of_plan)?;
    let load = args.load.unwrap_or(running.load);
    check_load("the load", load).with_context(of_plan)?;
    let mut tuned = tune(args, &source, &running, load)?;
    tuned.plan.inputs = files().map(input).collect::<Result<_>>()?;

    let report = if args.json { Some(serde_json::to_string_pretty(&tuned)? + "\n") } else { None };
    outputs.write(&tuned.plan, &source.workload, &read, report.as_deref())?;
    for change in &tuned.gpus {
        note(in_words(change));
    }
    note(summary(&tuned));
    Ok(DONE)
}

fn tune(args: &TuneArgs, source: &Source, running: &Plan, load: f64) -> Result<Tuned> {
    let objective: Objective =
        running.objective.parse().map_err(|e| anyhow!("the plan `{}`: {e}", args.running.display()))?;
    let split = divides(running, &source.workload);
    let ask = Ask { load, split, ..source.ask(&args.source, objective) };
    Ok(Tuner::WHOLE.tune(&Problem::new(&ask)?, running)?)
}

/// Whether the rate of any model is divided over several partitions.
fn divides(plan: &Plan, workload: &Workload) -> bool {
    let parts = |name: &str| plan.gpus.iter().flat_map(|g| &g.partitions).filter(|p| p.model == name).count();
    workload.models.iter().any(|m| parts(&m.name) > 1)
}

fn in_words(change: &Change) -> String {
    let mut text = format!("GPU {}: ", change.gpu);
    let (before, now) = (change.frequency_mhz_before, change.frequency_mhz);
    let _ = match (change.triggered, before == now) {
        (false, _) => write!(text, "no change of demand, left at {now} MHz"),
        (true, true) => write!(text, "still {now} MHz"),
        (true, false) => write!(text, "{before} to {now} MHz"),
    };
    for m in &change.models {
        if m.batch != m.batch_before {
            let _ = write!(text, "; `{}` from batch {} to {}", m.model, m.batch_before, m.batch);
        }
    }
    text
}

fn summary(tuned: &Tuned) -> String {
    let Tuned { plan, cost, cost_unit, .. } = tuned;
    let untuned = match tuned.cost_untuned {
        Some(untuned) => format!("{untuned:.6} {cost_unit} with the clocks and batches as they were"),
        None => "as they were, clocks and batches would not meet the demand".into(),
    };
    let simulated = if plan.simulated { " (from simulated GPUs)" } else { "" };
    format!("tuned{simulated}: {} {cost:.6} {cost_unit}; {untuned}", plan.objective)
}
