//! `gpumon`: measures GPU power at the rate the hardware really gives, and helps to spend less of it.
//!
//! Parse, run one command, print an error once, answer with its exit code.

mod choose;
mod cli;
mod cmd;
mod export;
#[cfg(feature = "exporter")]
mod exporter;
mod output;
mod plot;
mod report;
mod signals;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    let level = if cli.verbose { tracing::Level::DEBUG } else { tracing::Level::WARN };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .without_time()
        .with_target(false)
        .init();
    match cmd::run(&cli.command) {
        Ok(code) => ExitCode::from(code),
        Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::note(format_args!("gpumon: {error:#}"));
            ExitCode::from(cli.command.failure_code())
        }
    }
}
