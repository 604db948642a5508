//! `gpumon hold`: sets clock, power limit, MIG or MPS, runs a command, and puts back what was found.
//!
//! The clock is read while the command runs: what was asked, set and achieved is told, with the reasons that the GPU gives.
//! A second SIGINT leaves at once, and the janitor puts everything back.

use std::ffi::OsString;
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use crossbeam_channel::{Receiver, after, bounded, select};
use gpumon_core::clock::RealClock;
use gpumon_core::share::Share;
use gpumon_core::units::{Megahertz, Milliwatts};
use gpumon_monitor::control::achieved::Achieved;
use gpumon_monitor::control::restore::Restored;
use gpumon_monitor::control::stage::{self, Seat, Set, Stage, StageError, Step, Wants};
use gpumon_monitor::control::{self, Controlled};
use gpumon_monitor::device::{Access, Device, select};
use gpumon_monitor::summary::reasons;
use serde::Serialize;

use super::run as running;
use super::{DONE, INTERRUPTED, restore};
use crate::cli::control::HoldArgs;
use crate::output::{self, note};
use crate::signals::{self, Signal, Take};

/// How often the clock is read.
const LOOK: Duration = Duration::from_millis(100);
/// Exit code: the command is done, and something could not be put back.
const NOT_PUT_BACK: u8 = 125;

/// What was done.
#[derive(Serialize)]
struct Report {
    gpu: String,
    simulated: bool,
    clock: Option<Clock>,
    power_limit: Option<Limit>,
    seats: Vec<SeatReport>,
    command: Option<u8>,
    restored: Vec<String>,
    not_restored: Vec<String>,
    notices: Vec<String>,
}

/// The clock as asked, set and achieved.
#[derive(Serialize)]
struct Clock {
    asked_mhz: Megahertz,
    snapped_mhz: Megahertz,
    achieved_mhz: Option<Megahertz>,
    /// Whether the clock followed; null where the GPU was never busy.
    valid: Option<bool>,
    reasons: Vec<&'static str>,
    readings: usize,
    idle_readings: usize,
}

#[derive(Serialize)]
struct Limit {
    found_w: Option<f64>,
    set_w: f64,
}

#[derive(Serialize)]
struct SeatReport {
    share: Share,
    mig_uuid: Option<String>,
    env: Vec<(String, String)>,
}

impl SeatReport {
    fn of(seat: &Seat) -> Self {
        let env = seat.env.iter().map(|(name, value)| (name.clone(), value.to_string_lossy().into_owned()));
        Self { share: seat.share, mig_uuid: seat.mig_uuid.clone(), env: env.collect() }
    }
}

/// Holds a GPU as asked while a command runs.
pub fn run(args: &HoldArgs) -> Result<u8> {
    let (wants, steps) = wanted(args)?;
    let gpu = one_gpu(args)?;
    let safety = restore::safety()?;
    if args.dry_run {
        let (lines, lacks) = stage::plan(gpu.control.clone(), wants, &steps, &safety)?;
        lines.iter().try_for_each(|line| output::print(&format!("{line}\n")))?;
        lacks.iter().for_each(|lack| note(format_args!("gpumon: lacking: {lack}")));
        return Ok(DONE);
    }
    let (program, _) = args.command.split_first().context("no command was given")?;
    if let Err((code, why)) = running::find_program(program) {
        note(format_args!("gpumon: cannot run `{}`: {why}", program.to_string_lossy()));
        return Ok(code);
    }
    // Before anything is changed, so that no signal ends the process in between.
    let signals = signals::listen(Take::Forwarded)?;
    let mut stage = Stage::open(gpu.control.clone(), wants, &safety).map_err(|e| match e {
        StageError::Lacking(lacks) => anyhow::anyhow!("lacking: {}", lacks.join("\ngpumon: lacking: ")),
        other => other.into(),
    })?;
    let (mut set, mut seats) = (None, Vec::new());
    for step in &steps {
        match step {
            Step::Clock(clock) => set = Some(stage.set_clock(*clock)?),
            Step::PowerLimit(limit) => stage.set_power_limit(*limit)?,
            Step::Partition(shares) => seats = stage.partition(shares)?,
        }
    }
    let notices = stage.notices();
    notices.iter().for_each(|notice| note(format_args!("gpumon: {notice}")));
    if let Ok(signal) = signals.try_recv() {
        // It came before there was a command that could have got it; dropping the stage puts everything back.
        return Ok(u8::try_from(128 + signal.number).unwrap_or(INTERRUPTED));
    }
    let mut achieved = Achieved::default();
    let status = watch(args, &gpu, &seats, &signals, &mut achieved)?;
    let found = stage.guard().found().clone();
    let restored = stage.restore();
    let code = running::exit_code(status);
    let identity = gpu.device.identity();
    let report = Report {
        gpu: identity.uuid.clone(),
        simulated: identity.simulated,
        clock: set.map(|set| clock(set, &achieved, &identity.sm_clocks)),
        power_limit: args
            .power_limit
            .map(|set_w| Limit { found_w: found.power_limit_mw.map(|mw| mw.watts()), set_w }),
        seats: seats.iter().map(SeatReport::of).collect(),
        command: Some(code),
        restored: restored.done.clone(),
        not_restored: restored.failed.iter().map(|(command, e)| format!("{command}: {e}")).collect(),
        notices,
    };
    tell(&report, &restored);
    if args.json {
        output::print_json(&report)?;
    }
    Ok(if code == DONE && !restored.failed.is_empty() { NOT_PUT_BACK } else { code })
}

fn wanted(args: &HoldArgs) -> Result<(Wants, Vec<Step>)> {
    let shares: Vec<Share> =
        args.mig.iter().copied().map(Share::Mig).chain(args.mps.map(Share::Mps)).collect();
    if let Some(odd) = shares.iter().find(|share| !share.exists()) {
        bail!("{odd}: there is no such share; MIG instances have 1, 2, 3, 4 or 7 slices, MPS 1 to 100 %");
    }
    let limit = args.power_limit.map(|w| Milliwatts((w * 1e3).round().min(f64::from(u32::MAX)) as u32));
    let wants = Wants {
        clocks: args.clock.is_some(),
        power_limit: limit.is_some(),
        mig: !args.mig.is_empty(),
        mps: args.mps.is_some(),
    };
    // MIG first: switching it may drop what was set before.
    let partition = Some(shares).filter(|shares| !shares.is_empty()).map(Step::Partition);
    let rest = [limit.map(Step::PowerLimit), args.clock.map(|mhz| Step::Clock(Megahertz(mhz)))];
    let steps: Vec<Step> = partition.into_iter().chain(rest.into_iter().flatten()).collect();
    if steps.is_empty() {
        bail!("nothing to hold; give --clock, --power-limit, --mig or --mps");
    }
    Ok((wants, steps))
}

fn one_gpu(args: &HoldArgs) -> Result<Controlled> {
    let access = Access { wake: args.device.wake };
    let all = control::open(&args.device.device, Arc::new(RealClock), access)?;
    let devices: Vec<Arc<dyn Device>> = all.iter().map(|gpu| gpu.device.clone()).collect();
    let chosen = select::select(&devices, args.device.gpu.as_deref().unwrap_or("all")).context("--gpu")?;
    let [one] = &chosen[..] else {
        bail!("{} GPUs are meant, and one at a time is held; name it with --gpu", chosen.len());
    };
    let uuid = &one.identity().uuid;
    all.into_iter().find(|gpu| gpu.device.identity().uuid == *uuid).context("the GPU is gone")
}

/// Runs the command and reads the clock until it ends. Signals that it has not got are passed on; a second SIGINT leaves.
fn watch(
    args: &HoldArgs,
    gpu: &Controlled,
    seats: &[Seat],
    signals: &Receiver<Signal>,
    achieved: &mut Achieved,
) -> Result<ExitStatus> {
    let mut child = command(args, gpu, seats)?.spawn().context("the command cannot be started")?;
    let pid = i32::try_from(child.id()).context("the command's process id")?;
    let (send, ended) = bounded(1);
    std::thread::Builder::new().name("wait".into()).spawn(move || send.send(child.wait()))?;
    let reads = reader(gpu.clone())?;
    let mut interrupts = 0;
    loop {
        select! {
            recv(ended) -> status => return Ok(status.context("the command can no longer be waited for")??),
            recv(reads) -> reading => match reading {
                Ok(reading) => achieved.take(reading),
                Err(_) => return Ok(ended.recv().context("the command can no longer be waited for")??),
            },
            recv(signals) -> signal => if let Ok(signal) = signal {
                interrupts += i32::from(signal.number == libc::SIGINT);
                if interrupts > 1 {
                    std::process::exit(INTERRUPTED.into());
                }
                if signal.sent_to_us_alone {
                    running::pass_on(pid, signal.number);
                }
            },
        }
    }
}

/// Readings of the clock from a thread of its own, which a driver may hang.
fn reader(gpu: Controlled) -> Result<Receiver<control::achieved::Reading>> {
    let (send, reads) = bounded(16);
    std::thread::Builder::new().name("clock".into()).spawn(move || {
        // The first moments of a command show the clock of before.
        loop {
            select! { recv(after(LOOK)) -> _ => {} }
            if gpu.clock_now().is_some_and(|reading| send.send(reading).is_err()) {
                return;
            }
        }
    })?;
    Ok(reads)
}

fn command(args: &HoldArgs, gpu: &Controlled, seats: &[Seat]) -> Result<Command> {
    let (program, arguments) = args.command.split_first().context("no command was given")?;
    let mut command = Command::new(program);
    command.args(arguments).env("CUDA_VISIBLE_DEVICES", &gpu.device.identity().uuid);
    if let Some(first) = seats.first() {
        command.envs(first.env.iter().map(|(name, value)| (name, value)));
    }
    let uuids: Vec<&str> = seats.iter().filter_map(|seat| seat.mig_uuid.as_deref()).collect();
    if !uuids.is_empty() {
        command.env("GPUMON_MIG_UUIDS", OsString::from(uuids.join(",")));
    }
    if args.json {
        command.stdout(std::io::stderr().as_fd().try_clone_to_owned()?);
    }
    end_with_us(&mut command);
    Ok(command)
}

/// A command does not outlive a gpumon that was killed: it would go on at clocks that are put back under it.
#[allow(unsafe_code)]
fn end_with_us(command: &mut Command) {
    // SAFETY: between fork and exec this calls prctl alone, which is safe there. The thread that forks is the main one, which
    // lives as long as the process.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
            Ok(())
        });
    }
}

fn clock(set: Set, achieved: &Achieved, supported: &[Megahertz]) -> Clock {
    let (readings, idle_readings) = achieved.readings();
    Clock {
        asked_mhz: set.asked,
        snapped_mhz: set.snapped,
        achieved_mhz: achieved.clock(),
        valid: achieved.follows(set.snapped, supported),
        reasons: reasons::limits(achieved.reasons()).collect(),
        readings,
        idle_readings,
    }
}

fn tell(report: &Report, restored: &Restored) {
    if let Some(clock) = &report.clock {
        let (asked, snapped) = (clock.asked_mhz, clock.snapped_mhz);
        let why = if clock.reasons.is_empty() {
            "the GPU gives no reason".into()
        } else {
            clock.reasons.join(", ")
        };
        let ran = match (clock.achieved_mhz, clock.valid) {
            (Some(achieved), Some(true)) => format!("achieved {achieved}"),
            (Some(achieved), _) => format!("but {achieved} achieved ({why}): not valid"),
            (None, _) => "the GPU was idle all the time, so whether it follows is not known".into(),
        };
        note(format_args!("gpumon: clock asked {asked}, set {snapped}, {ran}"));
    }
    for command in &restored.done {
        note(format_args!("gpumon: put back: {command}"));
    }
    for (command, e) in &restored.failed {
        note(format_args!("gpumon: not put back: `{command}`: {e}; `gpumon restore` tries again"));
    }
}
