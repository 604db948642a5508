//! One file a command, each thin: arguments in, a library call, text or JSON out.

use anyhow::Result;

use gpumon_core::rows::EventKind;

use crate::cli::Command;

mod attribution;
mod candidates;
mod characterize;
mod compare;
mod demo;
mod devices;
mod diff;
mod export;
#[cfg(feature = "exporter")]
mod exporter;
mod fit;
mod hold;
mod inputs;
mod known;
mod lines;
mod mark;
mod merge;
mod neighbours;
mod place;
mod plans;
mod predict;
mod profile;
mod record;
mod recover;
mod repeat;
mod replay;
mod report;
mod restore;
mod run;
mod runs;
mod session;
mod summary;
mod together;
mod tune;
mod worker;

/// Exit code: everything was done.
const DONE: u8 = 0;
/// Exit code: nothing came of it.
const FAILED: u8 = 1;
/// Exit code: done, but something was lost and `--strict` was given.
const DONE_WITH_LOSSES: u8 = 3;
/// Exit code: recorded, but a GPU was lost, for good or for a while.
const GPU_LOST: u8 = 4;
/// Exit code: a signal ended it early.
const INTERRUPTED: u8 = 130;

/// Runs a command and answers with its exit code.
pub fn run(command: &Command) -> Result<u8> {
    match command {
        Command::Demo(args) => demo::run(args),
        Command::Devices(args) => devices::run(args),
        Command::Record(args) => record::run(args),
        Command::Run(args) => run::run(args),
        Command::Mark(args) => mark::run(args, EventKind::Mark),
        Command::Begin(args) => mark::run(args, EventKind::WindowBegin),
        Command::End(args) => mark::run(args, EventKind::WindowEnd),
        Command::Summary(args) => summary::run(args),
        Command::Diff(args) => diff::run(args),
        Command::Export(args) => export::run(args),
        #[cfg(feature = "exporter")]
        Command::Exporter(args) => exporter::run(args),
        Command::Recover(args) => recover::run(args),
        Command::Characterize(args) => characterize::run(args),
        Command::Hold(args) => hold::run(args),
        Command::Restore(args) => restore::run(args),
        Command::Janitor(args) => restore::janitor(args),
        Command::Worker(args) => worker::run(args),
        Command::Profile(args) => profile::run(args),
        Command::Merge(args) => merge::run(args),
        Command::Fit(args) => fit::run(args),
        Command::Predict(args) => predict::run(args),
        Command::Place(args) => place::run(args),
        Command::Compare(args) => compare::run(args),
        Command::Tune(args) => tune::run(args),
        Command::Report(args) => report::run(args),
    }
}
