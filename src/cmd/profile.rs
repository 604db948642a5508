//! `gpumon profile`: sweeps models over share, clock and batch size.
//!
//! So far on simulated GPUs, whose time is virtual: a sweep of hours takes seconds.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context as _, Result, bail};
use gpumon_core::clock::{Clock, RealClock, VirtualClock};
use gpumon_core::profile::ProfileRow;
use gpumon_core::rows::EventKind;
use gpumon_core::share::Share;
use gpumon_core::units::Megahertz;
use gpumon_monitor::device::Device;
use gpumon_monitor::device::sim::{self, SimDevice};
use gpumon_monitor::record::{Alongside, Session};
use gpumon_monitor::store::Store;
use gpumon_profile::protocol::{Bench, Protocol};
use gpumon_profile::space::Space;
use gpumon_profile::sweep::{Plan, Sweep};
use gpumon_profile::workload::{self, Context};
use indicatif::{ProgressBar, ProgressStyle};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::{DONE, INTERRUPTED, inputs, session};
use crate::cli::pipeline::ProfileArgs;
use crate::output::note;

/// Clocks of the sweep where the workload names none.
const CLOCKS: usize = 8;
/// Rate of the fast lane of a recording beside the sweep, Hz.
const RECORD_HZ: f64 = 10.0;

/// Sweeps; a stopped sweep goes on when it is started again.
pub fn run(args: &ProfileArgs) -> Result<u8> {
    let Some(name) = args.device.strip_prefix("sim:") else {
        bail!("`{}`: only simulated GPUs can be swept so far; give --device sim:a100", args.device);
    };
    let workload = inputs::workload(&args.workload)?;
    let virtual_clock = Arc::new(VirtualClock::new(RealClock.wall()));
    let device = sim::named(name, &(virtual_clock.clone() as Arc<dyn Clock>))?
        .into_iter()
        .next()
        .context("no simulated GPU is described")?;
    let recording = match &args.record {
        Some(path) => Some(Arc::new(record(path, args, &device, &virtual_clock)?)),
        None => None,
    };
    let clock: Arc<dyn Clock> = match &recording {
        Some(recording) => recording.clone(),
        None => virtual_clock,
    };
    let supported = device.identity().sm_clocks.clone();
    let clocks = match &workload.cluster.frequencies_mhz {
        Some(mhz) => mhz.iter().copied().map(Megahertz).collect(),
        None => spread(&supported),
    };
    let shares: Vec<Share> = args.slices.iter().copied().map(Share::Mig).collect();
    let space = Space::new(&shares, &args.batches, &clocks, &supported)?;
    let context = Context { clock: clock.clone(), sim: Some(device.clone()) };
    let mut workloads = workload
        .models
        .iter()
        .map(|model| workload::open(&format!("sim:{}", model.name), &context))
        .collect::<Result<Vec<_>, _>>()?;
    let plan = Plan::new(&space, args.design, args.seed, &workloads);
    for model in plan.models.iter().filter(|m| !m.left_out.is_empty()) {
        let (_, why) = &model.left_out[0];
        note(format_args!(
            "gpumon: {}: {} points are left out, the first: {why}",
            model.model,
            model.left_out.len()
        ));
    }

    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, stop.clone())?;
    }
    let protocol = Protocol::default();
    let sweep = Sweep {
        bench: Bench { protocol: &protocol, device: device.as_ref(), clock: clock.as_ref() },
        workloads: &mut workloads,
        plan: &plan,
        output: &args.output,
        stop: &stop,
        same_time: true,
    };
    let cost = sweep.estimate();
    note(format_args!(
        "gpumon: {} points of {:.0} s and {} idle rows of {:.0} s: {:.1} h on a GPU, simulated here",
        cost.points,
        cost.point_s,
        cost.idle_rows,
        cost.idle_row_s,
        cost.total_s / 3_600.0
    ));
    let bar = ProgressBar::new(plan.rows() as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} rows  {msg}") {
        bar.set_style(style);
    }
    let outcome = sweep.run(&mut |progress| {
        bar.set_position(progress.done as u64);
        let left_min = progress.remaining_s / 60.0;
        bar.set_message(format!("{}, {left_min:.0} min of GPU time left", progress.row.model));
        if let Some(recording) = &recording {
            recording.event(EventKind::Mark, &label(progress.row));
        }
    });
    bar.finish_and_clear();
    drop((workloads, context, clock));
    if let Some(recording) = recording.and_then(Arc::into_inner) {
        recording.finish().context("the recording ended early")?;
    }
    let outcome = outcome?;
    for notice in &outcome.notices {
        note(format_args!("gpumon: {notice}"));
    }
    let valid = outcome.rows.iter().filter(|row| row.valid).count();
    if let Some(journal) = &outcome.journal {
        let (rows, kept) = (outcome.rows.len(), journal.display());
        note(format_args!(
            "gpumon: stopped after {rows} rows, kept in `{kept}`; the same command goes on from there"
        ));
        return Ok(INTERRUPTED);
    }
    let resumed = if outcome.resumed > 0 {
        format!(", {} of them from before", outcome.resumed)
    } else {
        String::new()
    };
    note(format_args!(
        "{} rows in `{}`, {valid} valid{resumed}; simulated",
        outcome.rows.len(),
        args.output.display()
    ));
    Ok(DONE)
}

/// A recording of the GPU on the sweep's own clock.
fn record(
    path: &Path,
    args: &ProfileArgs,
    device: &Arc<SimDevice>,
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
    match row.mig_slices {
        Some(slices) => {
            format!("{}, batch {}, {slices} of 7, {} MHz", row.model, row.batch_size, row.frequency)
        }
        None => format!("{}, {} MHz", row.model, row.frequency),
    }
}

/// Some clocks of those supported, the lowest and the highest among them.
fn spread(supported: &[Megahertz]) -> Vec<Megahertz> {
    let last = supported.len().saturating_sub(1);
    let mut clocks: Vec<_> =
        (0..CLOCKS).filter_map(|i| supported.get(i * last / (CLOCKS - 1)).copied()).collect();
    clocks.dedup();
    clocks
}
