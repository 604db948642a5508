//! `gpumon profile`: sweeps models over share, clock and batch size, and over power limits where they are named.
//!
//! On a simulated GPU time is virtual: a sweep of hours takes seconds.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use gpumon_core::clock::{Clock, VirtualClock};
use gpumon_core::profile::ProfileRow;
use gpumon_core::rows::EventKind;
use gpumon_core::share::Share;
use gpumon_core::workload::{Sharing, Workload};
use gpumon_monitor::device::Device;
use gpumon_monitor::record::{Alongside, Session};
use gpumon_monitor::store::Store;
use gpumon_profile::Heated;
use gpumon_profile::choose::{Chooser, End};
use gpumon_profile::design::Design;
use gpumon_profile::native::green_levels;
use gpumon_profile::plan::{ModelPlan, Plan};
use gpumon_profile::protocol::Bench;
use gpumon_profile::space::Space;
use gpumon_profile::sweep::Sweep;
use gpumon_profile::workload;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::{DONE, FAILED, INTERRUPTED, inputs, replay, session};
use crate::choose;
use crate::cli::pipeline::ProfileArgs;
use crate::output::{self, note};
use crate::signals;

mod ground;
mod sets;
mod warm;

use ground::{Ground, in_words};
use warm::{DriftReport, HeatReport};

/// MIG sizes of the sweep where none are given, slices of seven.
const SLICES: [u8; 5] = [1, 2, 3, 4, 7];
/// MPS shares of the sweep where none are given, %: about the same parts of the SMs.
const PERCENTS: [u8; 5] = [14, 29, 43, 57, 100];
/// Rate of the fast lane of a recording beside the sweep, Hz.
const RECORD_HZ: f64 = 10.0;

/// What was swept.
#[derive(Serialize)]
struct Report<'a> {
    simulated: bool,
    output: &'a Path,
    finished: bool,
    journal: Option<&'a Path>,
    rows: usize,
    valid: usize,
    resumed: usize,
    planned_rows: usize,
    planned_s: f64,
    /// Of this run, heating included.
    took_s: f64,
    took_j: Option<f64>,
    heated: Vec<HeatReport<'a>>,
    idle_drift: Option<DriftReport>,
    models: Vec<ModelReport>,
}

/// A model that is done.
#[derive(Serialize)]
struct ModelReport {
    model: String,
    points: usize,
    of: usize,
    expected_error_pct: Option<f64>,
    reached: Option<bool>,
}

impl ModelReport {
    fn new(plan: &ModelPlan, end: &End, rows: &[ProfileRow]) -> Self {
        Self {
            model: plan.model.clone(),
            points: rows.iter().filter(|r| r.model == plan.model).count(),
            of: plan.points.len(),
            expected_error_pct: end.expected_error.map(|e| 100.0 * e),
            reached: end.reached,
        }
    }

    /// What a design that expects something has to say.
    fn text(&self) -> Option<String> {
        let expected = self.expected_error_pct?;
        let missed = if self.reached == Some(false) { ", more than asked for" } else { "" };
        let (model, points, of) = (&self.model, self.points, self.of);
        Some(format!("{model}: {points} of {of} points; error expected elsewhere {expected:.1} %{missed}"))
    }
}

/// Sweeps; a stopped sweep goes on when it is started again.
pub fn run(args: &ProfileArgs) -> Result<u8> {
    let path = match (&args.from, &args.workload) {
        (Some(from), _) => return replay::run(args, from),
        (None, Some(path)) => path,
        (None, None) => {
            bail!("no workload; give --workload WORKLOAD.toml, or --from GRID to replay a profile")
        }
    };
    let journal = gpumon_profile::journal_of(&args.output);
    let read = args.prior.iter().map(PathBuf::as_path).chain(ground::described(args));
    inputs::distinct(
        [path.as_path()].into_iter().chain(read),
        [args.output.as_path(), journal.as_path()].into_iter().chain(args.record.as_deref()),
    )?;
    if !args.design.learns() && (!args.prior.is_empty() || args.cap_w.is_some()) {
        let flag = if args.prior.is_empty() { "--cap-w" } else { "--prior" };
        bail!("{flag} is for designs that learn; give --design optimal:F or adaptive:F, or leave it out");
    }
    let mut chooser = chooser(args)?;
    let workload = inputs::workload(path)?;
    let ground = Ground::open(args)?;
    ground::same_kind(&ground, &workload, args)?;
    let shares = shares(args, &workload, &ground)?;
    let (clocks, locked) = ground.clocks(args, &workload)?;
    let supported = &ground.device.identity().sm_clocks;
    let space = Space::new(&shares, &args.batches, &clocks, supported)?.with_limits(&args.power_limits);
    ground.can_limit(&args.power_limits)?;
    let wants = ground::wants(locked, args, &shares);
    if let Some(count) = args.together {
        return sets::run(args, count, &ground, &workload, &space, wants);
    }
    if args.dry_run {
        let partitions = match wants.mig {
            true => shares.iter().map(|share| vec![*share]).collect(),
            false => vec![shares],
        };
        ground.dry_run(wants, &space, &args.power_limits, partitions)?;
        return Ok(DONE);
    }
    let recording = match (&args.record, &ground.virtual_clock) {
        (Some(path), Some(clock)) => Some(Arc::new(record(path, args, &ground.device, clock)?)),
        (Some(_), None) => {
            bail!(
                "--record is for simulated GPUs, whose time is virtual; record a real one beside it, with `gpumon record`"
            )
        }
        (None, _) => None,
    };
    let clock: Arc<dyn Clock> = match &recording {
        Some(recording) => recording.clone(),
        None => ground.clock.clone(),
    };
    let context = ground.context(&clock, args);
    let mut workloads = workload
        .models
        .iter()
        .map(|model| workload::of_model(&model.name, model.run.as_deref(), &context))
        .collect::<Result<Vec<_>, _>>()?;
    let mut plan = Plan::new(&space, args.design, args.seed, &workloads).by(chooser.as_ref());
    for model in plan.models.iter().filter(|m| !m.left_out.is_empty()) {
        let (_, why) = &model.left_out[0];
        note(format_args!(
            "gpumon: {}: {} points are left out, the first: {why}",
            model.model,
            model.left_out.len()
        ));
    }

    let stop = signals::stop_flag()?;
    let protocol = ground.protocol(args);
    if let Some(shard) = args.shard {
        plan = plan.shard(shard, |_, _| protocol.point_s());
        workloads.retain(|w| plan.models.iter().any(|m| m.model == w.name()));
        if plan.models.is_empty() {
            bail!("no point is in part {shard}: there are fewer points than parts");
        }
    }
    let mut stage = ground.stage(&clock, wants)?;
    let sweep = Sweep {
        bench: Bench {
            protocol: &protocol,
            device: ground.device.as_ref(),
            stage: stage.as_mut(),
            clock: clock.as_ref(),
        },
        workloads: &mut workloads,
        plan: &plan,
        output: &args.output,
        stop: &stop,
        same_time: ground.simulated(),
        heat_s: ground.heat_s(args),
        closing: !ground.simulated() || args.heat.is_some_and(|heat| !heat.is_zero()),
    };
    let cost = sweep.estimate_by(chooser.as_ref());
    let simulated_here = if ground.simulated() { " on a GPU, simulated here" } else { " or more" };
    note(format_args!(
        "gpumon: {}{} points of {:.1} s, {} idle rows of {:.0} s{}: {}{simulated_here}",
        if matches!(args.design, Design::Adaptive(_)) { "up to " } else { "" },
        cost.points,
        cost.point_s,
        cost.idle_rows,
        cost.idle_row_s,
        match cost.heat_s > 0.0 {
            true => format!(", and up to {:.0} s of heating", cost.heat_s),
            false => String::new(),
        },
        in_words(cost.total_s)
    ));
    let planned_rows = plan.rows_by(chooser.as_ref());
    let bar = ProgressBar::new(planned_rows as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} rows  {msg}") {
        bar.set_style(style);
    }
    let outcome = sweep.run_by(chooser.as_mut(), &mut |progress| {
        bar.set_position(progress.done as u64);
        let left = in_words(progress.remaining_s);
        bar.set_message(format!("{}, {left} of GPU time left", progress.row.model));
        if let Some(recording) = &recording {
            recording.event(EventKind::Mark, &label(progress.row));
        }
    });
    bar.finish_and_clear();
    drop((workloads, context, stage, clock));
    if let Some(recording) = recording.and_then(Arc::into_inner) {
        recording.finish().context("the recording ended early")?;
    }
    let outcome = outcome?;
    let heated = outcome.heated.iter().map(Heated::text).chain(outcome.drift.map(|drift| drift.text()));
    for notice in outcome.notices.iter().cloned().chain(heated) {
        note(format_args!("gpumon: {notice}"));
    }
    let models: Vec<ModelReport> = outcome
        .ends
        .iter()
        .zip(&plan.models)
        .map(|(end, m)| ModelReport::new(m, end, &outcome.rows))
        .collect();
    for model in &models {
        if let Some(text) = model.text() {
            note(format_args!("gpumon: {text}"));
        }
    }
    let valid = outcome.rows.iter().filter(|row| row.valid).count();
    let mut without = 0;
    for model in &plan.models {
        let rows = || outcome.rows.iter().filter(|row| row.model == model.model);
        if let Some(first) = rows().next().filter(|_| rows().all(|row| !row.valid)) {
            without += 1;
            let why = first.reason.as_deref().unwrap_or("no reason is given");
            note(format_args!("gpumon: `{}`: no row is valid, the first because: {why}", model.model));
        }
    }
    if args.json {
        output::print_json(&Report {
            simulated: ground.simulated(),
            output: &args.output,
            finished: outcome.journal.is_none(),
            journal: outcome.journal.as_deref(),
            rows: outcome.rows.len(),
            valid,
            resumed: outcome.resumed,
            planned_rows,
            planned_s: cost.total_s,
            took_s: outcome.seconds,
            took_j: outcome.joules,
            heated: outcome.heated.iter().map(HeatReport::new).collect(),
            idle_drift: outcome.drift.as_ref().map(DriftReport::new),
            models,
        })?;
    }
    if let Some(journal) = &outcome.journal {
        let goes_on = match &args.record {
            None => "the same command goes on from there".to_owned(),
            Some(recording) => format!(
                "the same command without --record goes on from there; the recording `{}` ends here",
                recording.display()
            ),
        };
        let (rows, kept) = (outcome.rows.len(), journal.display());
        note(format_args!("gpumon: stopped after {rows} rows, kept in `{kept}`; {goes_on}"));
        return Ok(INTERRUPTED);
    }
    let resumed = if outcome.resumed > 0 {
        format!(", {} of them from before", outcome.resumed)
    } else {
        String::new()
    };
    note(format_args!(
        "{} rows in `{}`, {valid} valid{resumed}{}",
        outcome.rows.len(),
        args.output.display(),
        if ground.simulated() { "; simulated" } else { "" }
    ));
    Ok(if without == plan.models.len() { FAILED } else { DONE })
}

/// What chooses the points.
fn chooser(args: &ProfileArgs) -> Result<Box<dyn Chooser>> {
    if args.shard.is_some() && matches!(args.design, Design::Adaptive(_)) {
        bail!(
            "--shard shares a plan out, and an adaptive design has none; give each job models of its own instead"
        );
    }
    if !args.power_limits.is_empty() && args.design.learns() {
        bail!("designs that learn choose shares, batch sizes and clocks only; leave --power-limits out");
    }
    Ok(choose::chooser(args.design, args.seed, inputs::profiles(&args.prior)?, args.cap_w))
}

/// The shares to sweep, of the workload's kind.
fn shares(args: &ProfileArgs, workload: &Workload, ground: &Ground) -> Result<Vec<Share>> {
    let list = |given: &Option<Vec<u8>>, all: &[u8], share: fn(u8) -> Share| {
        given.as_deref().unwrap_or(all).iter().copied().map(share).collect()
    };
    let sharing = workload.cluster.sharing.unwrap_or(Sharing::Mig);
    match sharing {
        Sharing::Mig if args.shares.is_some() => {
            bail!(
                "--shares is for MPS and green contexts, but cluster.sharing is `mig`; give --slices, or let it be `mps`"
            )
        }
        Sharing::Mps | Sharing::Green if args.slices.is_some() => {
            let name = if sharing == Sharing::Mps { "mps" } else { "green" };
            bail!("--slices is for MIG, but cluster.sharing is `{name}`; give --shares, or let it be `mig`")
        }
        Sharing::Mig => Ok(list(&args.slices, &SLICES, Share::Mig)),
        Sharing::Mps => Ok(list(&args.shares, &PERCENTS, Share::Mps)),
        Sharing::Green => {
            let (of, major) = ground.sms()?;
            let percents = args.shares.as_deref().unwrap_or(&PERCENTS);
            let levels = green_levels(percents, of, major);
            Ok(levels.into_iter().map(|sms| Share::Green { sms, of }).collect())
        }
    }
}

/// A recording of the GPU on the sweep's own clock.
fn record(
    path: &Path,
    args: &ProfileArgs,
    device: &Arc<dyn Device>,
    clock: &Arc<VirtualClock>,
) -> Result<Alongside> {
    let journal = gpumon_profile::journal_of(&args.output);
    if args.output.exists() {
        bail!("`{}` exists already; remove it, or name another output", args.output.display());
    }
    if path.exists() {
        bail!("`{}` exists already; give --record another name", path.display());
    }
    if journal.exists() {
        bail!(
            "`{}` holds a sweep that would go on, whose beginning cannot be recorded any more; leave --record out, or \
             remove that file to begin anew",
            journal.display()
        );
    }
    let devices: [Arc<dyn Device>; 1] = [device.clone()];
    let session = Session::prepare(&devices, clock.as_ref(), &session::config(RECORD_HZ))
        .context("while its sensors were tried")?;
    let store = Store::create(path, session.header().clone(), false)?;
    Ok(Alongside::start(session, clock.clone(), store))
}

/// What a row measured, in a few words.
fn label(row: &ProfileRow) -> String {
    let share = match row.mig_slices {
        _ if row.is_idle() => return format!("{}, {} MHz", row.model, row.frequency),
        Some(slices) => format!("{slices} of 7"),
        None => format!("{:.0} %", row.share * 100.0),
    };
    format!("{}, batch {}, {share}, {} MHz", row.model, row.batch_size, row.frequency)
}
