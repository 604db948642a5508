//! `gpumon run`: samples around a command, passing signals and the exit code through.
//!
//! The command owns standard output; the report goes to standard error, and as JSON to `--summary`.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use anyhow::{Context, Result, bail};
use crossbeam_channel::{Receiver, after, bounded, never, select, unbounded};
use gpumon_core::clock::RealClock;
use gpumon_core::rows::EventKind;
use gpumon_monitor::marks::{Marked, SOCKET_VARIABLE};
use gpumon_monitor::record::Recorder;
use regex::bytes::Regex;

use super::session::{self, Scope, Started};
use super::summary::Given;
use super::{lines, repeat, summary};
use crate::cli::{RunArgs, SampleArgs};
use crate::export::file::{Output, is_stdout};
use crate::output::{is_broken_pipe, note};
use crate::signals::{self, Signal, Take};

/// Exit code, as shells have it: the command exists but cannot be executed.
pub const CANNOT_EXECUTE: u8 = 126;
/// Exit code, as shells have it: there is no such command.
pub const NOT_FOUND: u8 = 127;
/// How long the command's last lines are waited for after its end.
const LAST_LINES: Duration = Duration::from_millis(500);
/// Name of the window that is the command's life.
pub const WINDOW: &str = "command";

/// Runs the command and reports on it, once or several times.
pub fn run(args: &RunArgs) -> Result<u8> {
    if args.repeat.is_some() {
        return repeat::run(args);
    }
    if args.warmup.is_some() {
        bail!("--warmup counts runs of --repeat; give that too");
    }
    let (program, _) = args.command.split_first().context("no command was given")?;
    if let Err((code, why)) = find_program(program) {
        note(format_args!("gpumon: cannot run `{}`: {why}", program.to_string_lossy()));
        return Ok(code);
    }
    let summary_file = args.summary.as_deref().map(|path| summary_file(path, args)).transpose()?;
    let given =
        Given { cost: args.cost, calibration: summary::calibration(&args.calibration)?, idle_w: None };
    let signals = signals::listen(Take::Forwarded)?;
    let ended = record(args, &args.sample, &args.command, &signals)?;
    let reported = match &ended {
        Ended { code, recorded: None } => return Ok(*code),
        Ended { .. } => report(args, &given, summary_file),
    };
    let losses = ended.recorded.unwrap_or(Ok(())).and(reported);
    match (ended.code, losses) {
        (0, losses) => Ok(summary::exit_code(args.sample.strict, &losses?)),
        // The command's own failure is what its caller asked for.
        (code, losses) => {
            if let Err(error) = losses {
                note(format_args!("gpumon: {error:#}"));
            }
            Ok(code)
        }
    }
}

/// How a command and the recording around it ended.
pub struct Ended {
    /// Exit code of the command, or why it could not be started.
    pub code: u8,
    /// Whether the recording is whole; `None` if the command never ran.
    pub recorded: Option<Result<()>>,
}

/// Records around one run of a command.
pub fn record(
    args: &RunArgs,
    sample: &SampleArgs,
    command: &[OsString],
    signals: &Receiver<Signal>,
) -> Result<Ended> {
    let (program, arguments) = command.split_first().context("no command was given")?;
    let mut recorder = match session::start(sample, Scope::Command, signals)? {
        Started::Recording(recorder) => *recorder,
        Started::Interrupted(signal) => {
            return Ok(Ended { code: u8::try_from(128 + signal.number).unwrap_or(u8::MAX), recorded: None });
        }
    };
    let server = session::marks();
    let mut command = Command::new(program);
    command.args(arguments);
    if let Some(server) = &server {
        command.env(SOCKET_VARIABLE, server.socket());
    }
    if !args.mark_regex.is_empty() {
        command.stdout(Stdio::piped());
    }
    recorder.read_counters();
    recorder.event(EventKind::WindowBegin, WINDOW);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(e) => {
            recorder.stop();
            note(format_args!("gpumon: cannot run `{}`: {e}", program.to_string_lossy()));
            let code = if e.kind() == ErrorKind::NotFound { NOT_FOUND } else { CANNOT_EXECUTE };
            return Ok(Ended { code, recorded: None });
        }
    };
    let lines = child.stdout.take().map(|stdout| look_for_marks(stdout, &args.mark_regex)).transpose()?;
    let from_others = server.as_ref().map_or_else(never, |server| server.requests().clone());
    let from_output = lines.as_ref().map_or_else(never, |(marks, _)| marks.clone());
    let status = wait(child, signals, &mut recorder, [&from_others, &from_output])?;
    recorder.event(EventKind::WindowEnd, WINDOW);
    if let Some((marks, passing)) = lines {
        // What the command has written is passed on; its children may hold the pipe open for ever.
        let until = Instant::now() + LAST_LINES;
        while !passing.is_finished() && Instant::now() < until {
            thread::sleep(Duration::from_millis(5));
        }
        marks.try_iter().for_each(|marked| recorder.mark(marked));
    }
    from_others.try_iter().for_each(|marked| recorder.mark(marked));
    recorder.read_counters();
    tail(&recorder, args.tail, signals);
    Ok(Ended { code: exit_code(status), recorded: Some(session::report_end(recorder.stop())) })
}

/// Passes the command's standard output on and looks for marks in it.
fn look_for_marks(stdout: ChildStdout, patterns: &[Regex]) -> Result<(Receiver<Marked>, JoinHandle<()>)> {
    let (send, marks) = unbounded();
    let patterns = patterns.to_vec();
    let passing = thread::Builder::new().name("output".into()).spawn(move || {
        let passed = lines::pass_on(stdout, std::io::stdout().lock(), &patterns, &RealClock, &send);
        if let Err(e) = passed.map_err(anyhow::Error::from)
            && !is_broken_pipe(&e)
        {
            note(format_args!("gpumon: the command's output cannot be passed on: {e}"));
        }
    })?;
    Ok((marks, passing))
}

/// Waits for the command; signals that it has not got by itself are passed on, marks are set.
fn wait(
    mut child: Child,
    signals: &Receiver<Signal>,
    recorder: &mut Recorder,
    [from_others, from_output]: [&Receiver<Marked>; 2],
) -> Result<ExitStatus> {
    let pid = i32::try_from(child.id()).context("the command's process id")?;
    let (send, ended) = bounded(1);
    thread::Builder::new().name("wait".into()).spawn(move || send.send(child.wait()))?;
    // A channel whose other end is gone would be ready for ever.
    let (mut from_others, mut from_output) = (from_others.clone(), from_output.clone());
    loop {
        select! {
            recv(from_others) -> marked => match marked {
                Ok(marked) => recorder.mark(marked),
                Err(_) => from_others = never(),
            },
            recv(from_output) -> marked => match marked {
                Ok(marked) => recorder.mark(marked),
                Err(_) => from_output = never(),
            },
            recv(ended) -> status => return Ok(status.context("the command can no longer be waited for")??),
            recv(signals) -> signal => if let Ok(signal) = signal && signal.sent_to_us_alone {
                pass_on(pid, signal.number);
            },
        }
    }
}

/// Passes a signal on to a process that has not been waited for.
#[allow(unsafe_code)]
pub fn pass_on(pid: i32, signal: i32) {
    // SAFETY: takes plain integers. The process has not been waited for, so its id is still its own.
    unsafe { libc::kill(pid, signal) };
}

/// Goes on sampling for a while: readings come late. A signal ends the wait.
fn tail(recorder: &Recorder, tail: Duration, signals: &Receiver<Signal>) {
    let until = Instant::now() + tail;
    while recorder.over().is_none() {
        let left = until.saturating_duration_since(Instant::now());
        select! {
            recv(signals) -> _ => return,
            recv(after(left.min(Duration::from_millis(100)))) -> _ => if left.is_zero() { return },
        }
    }
}

/// The file for the summary, tried before anything runs. It appears under its name once it is whole.
pub fn summary_file(path: &Path, args: &RunArgs) -> Result<Output> {
    if is_stdout(path) {
        bail!("--summary writes to a file, because the command owns standard output; name a file");
    }
    Output::create(path, args.sample.force, &args.sample.output).context("--summary")
}

fn report(args: &RunArgs, given: &Given, file: Option<Output>) -> Result<summary::Losses> {
    let summary = summary::read(&args.sample.output, &[], given)?;
    note(summary::text(&summary, Some(WINDOW)).trim_end());
    if let Some(mut file) = file {
        file.put((serde_json::to_string_pretty(&summary)? + "\n").as_bytes())?;
        file.commit()?;
    }
    Ok(summary.losses)
}

/// The command's own code, or 128 + the signal that ended it, as shells have it.
pub fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|s| 128 + s));
    code.and_then(|c| u8::try_from(c).ok()).unwrap_or(u8::MAX)
}

/// Looks for the program before anything is recorded.
pub fn find_program(program: &OsStr) -> Result<(), (u8, &'static str)> {
    let missing = (NOT_FOUND, "no such command; see whether it is installed and on PATH");
    let path = Path::new(program);
    if program.is_empty() {
        return Err(missing);
    }
    if path.components().count() > 1 || path.is_absolute() || program.to_string_lossy().starts_with("./") {
        return executable(path);
    }
    let folders = env::var_os("PATH").unwrap_or_default();
    let found: Vec<_> = env::split_paths(&folders).map(|folder| executable(&folder.join(path))).collect();
    let found_any = found.iter().any(Result::is_ok);
    let best = found.into_iter().find(|f| !matches!(f, Err((NOT_FOUND, _))));
    if found_any { Ok(()) } else { best.unwrap_or(Err(missing)) }
}

fn executable(path: &Path) -> Result<(), (u8, &'static str)> {
    let Ok(meta) = fs::metadata(path) else {
        return Err((NOT_FOUND, "no such file"));
    };
    if !meta.is_file() {
        Err((CANNOT_EXECUTE, "it is not a file"))
    } else if meta.permissions().mode() & 0o111 == 0 {
        Err((CANNOT_EXECUTE, "it is not executable; see its permissions"))
    } else {
        Ok(())
    }
}
