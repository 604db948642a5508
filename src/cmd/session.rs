//! What `record` and `run` share: opening GPUs, starting a recorder, waiting, the progress line.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use crossbeam_channel::{Receiver, bounded, select};
use gpumon_core::clock::{Clock, RealClock};
use gpumon_monitor::device::{self, Access, Device, select, visible};
use gpumon_monitor::marks::Server;
use gpumon_monitor::record::{Closed, Config, Pace, Recorder, Session};
use gpumon_monitor::store::Store;
use indicatif::{ProgressBar, ProgressStyle};

use super::known;
use crate::cli::{DeviceArgs, SampleArgs};
use crate::output::note;
use crate::signals::Signal;

/// Whether `CUDA_VISIBLE_DEVICES` limits which GPUs are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All GPUs unless `--gpu` says otherwise.
    Machine,
    /// Those that a CUDA program started from here would see, unless `--gpu` says otherwise.
    Command,
}

/// The GPUs that the arguments name.
pub fn open(args: &DeviceArgs, scope: Scope) -> Result<Vec<Arc<dyn Device>>> {
    let all = device::open_as(&args.device, Arc::new(RealClock), Access { wake: args.wake })?;
    if let Some(list) = &args.gpu {
        return select::select(&all, list).context("--gpu");
    }
    match std::env::var("CUDA_VISIBLE_DEVICES") {
        Ok(variable) if scope == Scope::Command => {
            let order = std::env::var("CUDA_DEVICE_ORDER").ok();
            Ok(visible::visible(&all, &variable, order.as_deref())?)
        }
        Err(std::env::VarError::NotUnicode(_)) if scope == Scope::Command => {
            bail!("CUDA_VISIBLE_DEVICES is not text; unset it, or choose what to record with --gpu")
        }
        _ => Ok(all),
    }
}

/// What starting to record came to.
pub enum Started {
    /// It goes on.
    Recording(Box<Recorder>),
    /// A signal came before it began; nothing was written.
    Interrupted(Signal),
}

/// Starts recording, and returns once the first tick is due. A driver that takes its time over opening holds up nobody
/// who presses Ctrl-C.
pub fn start(args: &SampleArgs, scope: Scope, signals: &Receiver<Signal>) -> Result<Started> {
    if let Some(source) = args.device.device.strip_prefix("replay:")
        && let (Ok(source), Ok(output)) = (std::fs::canonicalize(source), std::fs::canonicalize(&args.output))
        && source == output
    {
        bail!("`{}` cannot be replayed into itself; give another name with -o", args.output.display());
    }
    let clock: Arc<dyn Clock> = Arc::new(RealClock);
    let prepared = prepare(&args.device, scope, args.rate, Pace::RECORDING, &clock, signals)?;
    let (mut session, devices) = match prepared {
        Prepared::Ready { session, devices } => (*session, devices),
        Prepared::Interrupted(signal) => return Ok(Started::Interrupted(signal)),
    };
    session.know(known::all(&devices));
    let store = Store::create(&args.output, session.header().clone(), args.force)?;
    let recorder = Recorder::start(session, clock.clone(), store).context("cannot start threads")?;
    clock.sleep_until(recorder.origin());
    Ok(Started::Recording(Box::new(recorder)))
}

/// What opening GPUs and trying their sensors came to.
pub enum Prepared {
    /// They can be sampled.
    Ready {
        /// Those that answer.
        session: Box<Session>,
        /// Those that were found.
        devices: Vec<Arc<dyn Device>>,
    },
    /// A signal came before.
    Interrupted(Signal),
}

/// Opens GPUs and tries their sensors, on a thread that a signal does not wait for.
pub fn prepare(
    args: &DeviceArgs,
    scope: Scope,
    rate_hz: f64,
    pace: Pace,
    clock: &Arc<dyn Clock>,
    signals: &Receiver<Signal>,
) -> Result<Prepared> {
    let (send, prepared) = bounded(1);
    let (args, config, clock) = (args.clone(), config(rate_hz), clock.clone());
    thread::Builder::new().name("open".into()).spawn(move || {
        let prepare = || -> Result<Prepared> {
            let devices = open(&args, scope)?;
            let session = Session::prepare_at(&devices, clock.as_ref(), &config, pace)
                .context("while its sensors were tried")?;
            Ok(Prepared::Ready { session: Box::new(session), devices })
        };
        // Nobody may be waiting any more.
        let _ = send.send(prepare());
    })?;
    select! {
        recv(prepared) -> prepared => prepared.context("the GPUs could not be opened")?,
        recv(signals) -> signal => Ok(Prepared::Interrupted(signal?)),
    }
}

/// What a recording made by this process says of itself.
pub fn config(rate_hz: f64) -> Config {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    Config {
        rate_hz,
        command: std::env::args_os().map(|a| a.to_string_lossy().into_owned()).collect(),
        host: host.trim().to_owned(),
    }
}

/// The socket through which other processes set marks. A recording goes on without one.
pub fn marks() -> Option<Server> {
    let opened = Server::open(Arc::new(RealClock));
    opened.inspect_err(|e| note(format_args!("gpumon: marks cannot be taken from other processes: {e}"))).ok()
}

/// Says what an end left behind; an error if the recording is not all there.
pub fn report_end(closed: Closed) -> Result<()> {
    for lane in &closed.stalled {
        note(format_args!(
            "gpumon: a call into the driver has not returned ({lane}); its last rows are missing"
        ));
    }
    if !closed.held_by_kernel.is_empty() {
        note(format_args!(
            "gpumon: the recording is whole, but the kernel holds this process in that call (state D): no signal ends \
             it, not even SIGKILL, before the driver lets go ({})",
            closed.held_by_kernel.join(", ")
        ));
    }
    closed.storage.context("the recording ended early")
}

/// The line on the terminal while a recording goes on; nothing where standard error is no terminal.
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A line for a recording of this length, or of unknown length.
    pub fn new(length: Option<Duration>) -> Self {
        let bar = ProgressBar::new(length.map_or(0, |d| d.as_secs()));
        let template =
            if length.is_some() { "{bar:20} {pos}/{len} s  {msg}" } else { "{spinner} {pos} s  {msg}" };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self { bar }
    }

    /// Shows the present state.
    pub fn show(&self, recorder: &Recorder) {
        if self.bar.is_hidden() {
            return;
        }
        let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let power: Vec<_> = recorder
            .live()
            .iter()
            .map(|l| match l.power_mw.load(Ordering::Relaxed) {
                mw if mw < 0 => "– W".to_owned(),
                mw => format!("{:.0} W", mw as f64 / 1e3),
            })
            .collect();
        let missed: u64 = recorder.live().iter().map(|l| load(&l.missed_ticks)).sum();
        self.bar.set_position(u64::try_from(recorder.elapsed_us() / 1_000_000).unwrap_or(0));
        let missed = if missed > 0 { format!(", {missed} ticks missed") } else { String::new() };
        self.bar.set_message(format!("{}  {} rows{missed}", power.join(" + "), recorder.rows_kept()));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
