//! `gpumon record`: samples until Ctrl-C, for a duration, or until a process ends.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use crossbeam_channel::{Receiver, never, select};
use gpumon_monitor::marks::Server;
use gpumon_monitor::record::{Over, Recorder};

use super::session::{self, Progress, Scope, Started};
use super::{GPU_LOST, INTERRUPTED, summary};
use crate::cli::RecordArgs;
use crate::signals::{self, Signal, Take};

/// How often the end is looked for, apart from signals.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Records; Ctrl-C is the normal end where no other was asked for.
pub fn run(args: &RecordArgs) -> Result<u8> {
    if let Some(pid) = args.pid
        && !process_exists(pid)
    {
        bail!("there is no process {pid}; give the id of one that runs, or --duration");
    }
    let given = summary::Given {
        cost: args.cost,
        calibration: summary::calibration(&args.calibration)?,
        idle_w: None,
    };
    let signals = signals::listen(Take::Ending)?;
    let mut recorder = match session::start(&args.sample, Scope::Machine, &signals)? {
        Started::Recording(recorder) => *recorder,
        Started::Interrupted(_) => return Ok(INTERRUPTED),
    };
    let marks = session::marks();
    if let Some(duration) = args.duration {
        recorder.end_at(recorder.origin().plus_us(duration.as_micros() as i64));
    }
    let end = wait(args, &mut recorder, &signals, marks.as_ref())?;
    drop(marks);
    session::report_end(recorder.stop())?;
    let losses = summary::show(&args.sample.output, &[], &given, args.json)?;
    match end {
        End::Signal if args.duration.is_some() || args.pid.is_some() => Ok(INTERRUPTED),
        End::Over(Over::AllGpusLost) if !args.sample.device.device.starts_with("replay:") => {
            bail!("every GPU was lost; the recording holds what was read until then")
        }
        _ if losses.lost_a_gpu() && !args.sample.device.device.starts_with("replay:") => Ok(GPU_LOST),
        _ => Ok(summary::exit_code(args.sample.strict, &losses)),
    }
}

/// What ended a recording.
enum End {
    Signal,
    Process,
    Over(Over),
}

fn wait(
    args: &RecordArgs,
    recorder: &mut Recorder,
    signals: &Receiver<Signal>,
    marks: Option<&Server>,
) -> Result<End> {
    let progress = Progress::new(args.duration);
    let marks = marks.map_or_else(never, |server| server.requests().clone());
    loop {
        select! {
            recv(signals) -> signal => return match signal {
                Ok(_) => Ok(End::Signal),
                Err(_) => bail!("signals can no longer be received"),
            },
            recv(marks) -> marked => if let Ok(marked) = marked {
                recorder.mark(marked);
            },
            default(LOOK_EVERY) => {}
        }
        if let Some(over) = recorder.over() {
            return Ok(End::Over(over));
        }
        if args.pid.is_some_and(|pid| !process_exists(pid)) {
            return Ok(End::Process);
        }
        progress.show(recorder);
    }
}

/// Whether a process runs; one that has ended but was not waited for does not.
fn process_exists(pid: i32) -> bool {
    let stat = std::fs::read_to_string(PathBuf::from(format!("/proc/{pid}/stat"))).unwrap_or_default();
    // The state follows the command's closing parenthesis.
    stat.rsplit_once(')')
        .is_some_and(|(_, rest)| !matches!(rest.trim_start().chars().next(), Some('Z' | 'X')))
}
