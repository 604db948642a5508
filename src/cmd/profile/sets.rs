//! `gpumon profile --together`: sets of models on one GPU.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use gpumon_core::profile::ProfileRow;
use gpumon_core::set::SetRow;
use gpumon_core::workload::Workload;
use gpumon_monitor::control::stage::Wants;
use gpumon_profile::protocol::Bench;
use gpumon_profile::space::Space;
use gpumon_profile::together::{Sets, Wish, choose, partial_of};
use gpumon_profile::workload;
use serde::Serialize;

use super::super::{DONE, INTERRUPTED, inputs};
use super::ground::Ground;
use super::warm::HeatReport;
use crate::cli::pipeline::ProfileArgs;
use crate::output::{self, note};
use crate::signals;

/// What was measured.
#[derive(Serialize)]
struct Report<'a> {
    simulated: bool,
    output: &'a Path,
    finished: bool,
    sets: usize,
    valid: usize,
    resumed: usize,
    planned: usize,
    heated: Option<HeatReport<'a>>,
}

/// Measures `count` sets.
pub fn run(
    args: &ProfileArgs,
    count: u32,
    ground: &Ground,
    workload: &Workload,
    space: &Space,
    wants: Wants,
) -> Result<u8> {
    if wants.mig && !ground.simulated() {
        bail!("--together measures shares under MPS on real GPUs so far; let cluster.sharing be `mps`");
    }
    inputs::distinct(args.alone.iter().map(|p| p.as_path()), [args.output.as_path()])?;
    let alone: Vec<ProfileRow> = match &args.alone {
        Some(path) => inputs::profiles(std::slice::from_ref(path)).context("--alone")?,
        None => Vec::new(),
    };
    let names: Vec<&str> = workload.models.iter().map(|m| m.name.as_str()).collect();
    let wish = Wish { sets: count as usize, seed: args.seed };
    let sets = choose(space, &names, &alone, wish)?;
    if sets.len() < wish.sets {
        note(format_args!("gpumon: there are only {} different sets of these models", sets.len()));
    }
    let context = ground.context(&ground.clock, args);
    let mut workloads = workload
        .models
        .iter()
        .map(|model| workload::of_model(&model.name, model.run.as_deref(), &context))
        .collect::<Result<Vec<_>, _>>()?;
    let stop = signals::stop_flag()?;
    let protocol = ground.protocol(args);
    let mut stage = ground.stage(&ground.clock, wants)?;
    let planned = sets.len();
    note(format_args!("gpumon: {planned} sets of {:.1} s or more", protocol.point_s()));
    let measuring = Sets {
        bench: Bench {
            protocol: &protocol,
            device: ground.device.as_ref(),
            stage: stage.as_mut(),
            clock: ground.clock.as_ref(),
        },
        workloads: &mut workloads,
        sets: &sets,
        alone: &alone,
        output: &args.output,
        stop: &stop,
        sim: ground.sim.as_deref(),
        heat_s: ground.heat_s(args),
    };
    let outcome =
        measuring.run(&mut |number, rows| note(format_args!("{number}/{planned} {}", told(rows))))?;
    outcome.heated.iter().for_each(|heated| note(format_args!("gpumon: {}", heated.text())));
    outcome.notices.iter().for_each(|notice| note(format_args!("gpumon: {notice}")));
    let sets_of = |rows: &[SetRow]| rows.last().map_or(0, |row| row.set + 1) as usize;
    let made = sets_of(&outcome.rows);
    let valid =
        (0..made as i32).filter(|n| outcome.rows.iter().filter(|r| r.set == *n).all(|r| r.valid)).count();
    if args.json {
        output::print_json(&Report {
            simulated: ground.simulated(),
            output: &args.output,
            finished: outcome.finished,
            sets: made,
            valid,
            resumed: outcome.resumed,
            planned,
            heated: outcome.heated.as_ref().map(HeatReport::new),
        })?;
    }
    if !outcome.finished {
        let partial = partial_of(&args.output);
        note(format_args!(
            "gpumon: stopped after {made} sets, kept in `{}`; the same command goes on from there",
            partial.display()
        ));
        return Ok(INTERRUPTED);
    }
    let simulated = if ground.simulated() { "; simulated" } else { "" };
    note(format_args!("{made} sets in `{}`, {valid} valid{simulated}", args.output.display()));
    Ok(DONE)
}

/// A set in a few words.
fn told(rows: &[SetRow]) -> String {
    let member = |row: &SetRow| {
        let slower = row.slowdown.map_or(String::new(), |s| format!(" ×{s:.2}"));
        format!("{} {:.0} % batch {}{slower}", row.model, 100.0 * row.share, row.batch_size)
    };
    let members: Vec<_> = rows.iter().map(member).collect();
    let power = rows.first().and_then(|row| row.avg_power_draw);
    let power = power.map_or("no power".into(), |w| format!("{w:.0} W"));
    let wrong = rows.iter().find(|row| !row.valid).and_then(|row| row.reason.as_deref());
    let wrong = wrong.map_or(String::new(), |why| format!(" (not valid: {why})"));
    format!("{}: {power}{wrong}", members.join(", "))
}
