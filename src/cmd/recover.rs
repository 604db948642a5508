//! `gpumon recover`: makes a killed recording whole.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use gpumon_core::header::State;
use gpumon_monitor::store::{self, Lane, RecoverReport};
use serde::Serialize;

use super::DONE;
use crate::cli::RecoverArgs;
use crate::output;

#[derive(Serialize)]
struct Report {
    nothing_to_do: bool,
    state: State,
    header_restored: bool,
    rows: BTreeMap<&'static str, u64>,
    dropped: Vec<Dropped>,
    set_aside: Vec<PathBuf>,
}

#[derive(Serialize)]
struct Dropped {
    file: PathBuf,
    offset: u64,
    bytes: u64,
    /// Half a row group at the end, as any kill leaves it, rather than damage.
    torn_tail: bool,
}

/// Recovers, and says what was kept and what was not.
pub fn run(args: &RecoverArgs) -> Result<u8> {
    let report = report(store::recover(&args.recording)?);
    if args.json {
        output::print_json(&report)?
    } else {
        output::print(&text(&report, &args.recording))?
    }
    Ok(DONE)
}

fn report(found: RecoverReport) -> Report {
    let dropped = found.dropped.into_iter();
    Report {
        nothing_to_do: found.nothing_to_do,
        state: found.state,
        header_restored: found.header_restored,
        rows: Lane::ALL.iter().map(|&lane| (lane.name(), found.rows[lane])).collect(),
        dropped: dropped
            .map(|d| Dropped { file: d.path, offset: d.offset, bytes: d.bytes, torn_tail: d.torn_tail })
            .collect(),
        set_aside: found.set_aside,
    }
}

fn text(report: &Report, recording: &Path) -> String {
    let name = recording.display();
    if report.nothing_to_do {
        return format!("`{name}` is whole; there is nothing to recover\n");
    }
    let rows: Vec<_> = report.rows.iter().map(|(lane, rows)| format!("{rows} {lane}")).collect();
    let mut text = format!("`{name}` is whole again: {} rows\n", rows.join(", "));
    if report.header_restored {
        text.push_str("recording.json was lost and has been restored from a copy of its first state\n");
    }
    for d in &report.dropped {
        let why = if d.torn_tail { "the last write was cut off" } else { "damaged" };
        let _ = writeln!(text, "dropped {} bytes at {} of `{}`: {why}", d.bytes, d.offset, d.file.display());
    }
    for file in &report.set_aside {
        let _ = writeln!(text, "set aside as `{}`: it has no readable footer", file.display());
    }
    text
}
