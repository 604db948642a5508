//! `gpumon place`: one plan for a workload, from profiles or from fitted models.
//!
//! Rule: everything is planned, checked and written beside its place before the plan and its files appear, so that an
//! error leaves all as it was.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use gpumon_place::plan::Plan;
use gpumon_place::policy;
use gpumon_place::problem::{Ask, Problem};

use super::DONE;
use super::plans::{Outputs, Source, check_load, input};
use crate::cli::pipeline::PlaceArgs;
use crate::export::file::is_stdout;
use crate::output::note;

/// Places, writes the plan and, if asked, what runs it.
pub fn run(args: &PlaceArgs) -> Result<u8> {
    let stdout = Path::new("-");
    let output = args.plan.output.as_deref().unwrap_or(stdout);
    if args.json && args.plan.output.as_deref().is_some_and(is_stdout) {
        bail!("-o - and --json both write the plan to standard output; leave one out");
    }
    let read: Vec<&Path> = args.source.files().map(PathBuf::as_path).collect();
    let outputs = Outputs::new(&args.plan, Some(output), &read)?;
    check_load("--load", args.load)?;
    let source = Source::read(&args.source)?;
    let plan = plan(args, &source)?;
    let again = if args.json && !is_stdout(output) { Some(plan.to_json()?) } else { None };
    outputs.write(&plan, &source.workload, &read, again.as_deref())?;
    note(summary(&plan));
    Ok(DONE)
}

fn plan(args: &PlaceArgs, source: &Source) -> Result<Plan> {
    let system = policy::policy(&args.system)?;
    let (load, split, time_limit) = (args.load, system.splits(), args.time_limit);
    let ask = Ask { load, split, time_limit, ..source.ask(&args.source, args.objective) };
    let plan = policy::solve(&Problem::new(&ask)?, system);
    source.failed()?;
    let mut plan = plan?;
    plan.inputs = args.source.files().map(input).collect::<Result<_>>()?;
    Ok(plan)
}

fn summary(plan: &Plan) -> String {
    let total = &plan.total;
    format!(
        "{}{}: {} GPU{}, {:.1} W while all models run, {:.1} W on average, {:.4} J a request; {} {:.6} {}{}",
        plan.system,
        if plan.simulated { " (from simulated GPUs)" } else { "" },
        total.gpus_used,
        if total.gpus_used == 1 { "" } else { "s" },
        total.power_w,
        total.average_power_w,
        total.energy_per_request_j,
        plan.objective,
        plan.cost,
        plan.cost_unit,
        distance(plan)
    )
}

/// How far a plan may be from the cheapest, where its system tells.
fn distance(plan: &Plan) -> String {
    match (plan.total.proven, plan.total.bound) {
        (Some(true), _) => ", proven to be the cheapest of those that divide no rate".into(),
        (_, Some(bound)) => format!(
            ", not proven to be the cheapest: none that divides no rate costs less than {bound:.6} {}",
            plan.cost_unit
        ),
        (_, None) => String::new(),
    }
}
