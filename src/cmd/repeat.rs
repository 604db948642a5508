//! `gpumon run --repeat`: a command several times, or two by turns, each run a recording of its own.
//!
//! Rule: warm-up runs first, then the runs that count. Two commands go by turns, A B, then B A, so that neighbours share
//! what drifts and neither is always first. The set's file is written after each run.
//! Cases: a command that fails, or a signal, ends the set; what was made stays. Losses under `--strict` end in 3.
//! Not done here: judging whether the runs were enough; the intervals tell.

use std::ffi::OsString;

use anyhow::{Result, bail};

use super::diff;
use super::run::{Ended, find_program, record, summary_file};
use super::runs::{Run, Runs};
use super::summary::{self, Given};
use crate::cli::{RunArgs, SampleArgs};
use crate::output::note;
use crate::signals::{self, Take};

/// Runs before those that count, unless another number is asked for.
const WARMUP: u32 = 1;
/// Between the two commands on the command line.
const VERSUS: &str = "--vs";

/// Runs the set and reports on it.
pub fn run(args: &RunArgs) -> Result<u8> {
    let commands: Vec<&[OsString]> = args.command.split(|word| word == VERSUS).collect();
    if commands.len() > 2 || commands.iter().any(|command| command.is_empty()) {
        bail!("expected one command, or two with `{VERSUS}` between them: -- A … {VERSUS} B …");
    }
    for command in &commands {
        if let Err((code, why)) = find_program(&command[0]) {
            note(format_args!("gpumon: cannot run `{}`: {why}", command[0].to_string_lossy()));
            return Ok(code);
        }
    }
    let given =
        Given { cost: args.cost, calibration: summary::calibration(&args.calibration)?, idle_w: None };
    let folder = args.sample.output.as_path();
    Runs::make_folder(folder, args.sample.force)?;
    let summary = args.summary.as_deref().map(|path| summary_file(path, args)).transpose()?;
    let words = |command: &&[OsString]| command.iter().map(|w| w.to_string_lossy().into_owned()).collect();
    let mut runs = Runs::new(commands.iter().map(words).collect());
    runs.write(folder)?;

    let signals = signals::listen(Take::Forwarded)?;
    let (warmup, counted) = (args.warmup.unwrap_or(WARMUP), args.repeat.unwrap_or(1));
    let mut strict_code = 0;
    for turn in 0..warmup + counted {
        let mut order: Vec<usize> = (0..commands.len()).collect();
        if turn % 2 == 1 {
            order.reverse();
        }
        for at in order {
            let is_warmup = turn < warmup;
            let number = if is_warmup { turn + 1 } else { turn + 1 - warmup };
            let kind = if is_warmup { "warmup-" } else { "" };
            let recording = format!("{kind}{}-{number:03}", ["a", "b"][at]);
            note(format_args!("gpumon: {recording}, of {counted} runs"));
            let sample = SampleArgs { output: folder.join(&recording), force: false, ..args.sample.clone() };
            let Ended { code, recorded } = record(args, &sample, commands[at], &signals)?;
            runs.runs.push(Run {
                recording: recording.clone(),
                command: at,
                warmup: is_warmup,
                exit_code: code,
            });
            runs.write(folder)?;
            if let Some(recorded) = recorded {
                recorded?;
            }
            if code != 0 {
                note(format_args!("gpumon: {recording} ended with exit code {code}; no further run is made"));
                return Ok(code);
            }
            let losses = summary::read(&sample.output, &[], &given)?.losses;
            strict_code = strict_code.max(summary::exit_code(args.sample.strict, &losses));
        }
    }
    let report = diff::of_set(folder, None, &given)?;
    note(report.text().trim_end());
    if let Some(mut file) = summary {
        file.put((serde_json::to_string_pretty(&report)? + "\n").as_bytes())?;
        file.commit()?;
    }
    Ok(strict_code)
}
