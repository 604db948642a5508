//! Whose energy it was, as a table for a person.
//!
//! Rule: a GPU that more than one process had gets a table; with one or none, the JSON has the figures.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table, presets};
use gpumon_monitor::summary::GpuSummary;
use gpumon_monitor::summary::attribution::{Attribution, IdleSource, Method, Part};

/// Processes that are listed; the rest is one line.
const LISTED: usize = 10;

/// The table of a GPU, or nothing.
pub fn text(gpu: &GpuSummary, energy: impl Fn(f64) -> String) -> String {
    let Some(found) = gpu.attribution.as_ref().filter(|found| found.parts.len() > 1) else {
        return String::new();
    };
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(["  process", "pid", "MIG", "energy", "above idle"]);
    let or_dash = |value: Option<i32>| value.map_or("–".into(), |v| v.to_string());
    let (listed, rest) = found.parts.split_at(found.parts.len().min(LISTED));
    for part in listed {
        table.add_row([
            format!("  {}", part.name.as_deref().unwrap_or("–")),
            or_dash(part.pid),
            or_dash(part.mig_instance),
            energy(part.energy_j),
            format!("{:.1} %", part.share_pct),
        ]);
    }
    if !rest.is_empty() {
        let sum = |of: fn(&Part) -> f64| rest.iter().map(of).sum::<f64>();
        table.add_row([
            format!("  {} more", rest.len()),
            "–".into(),
            "–".into(),
            energy(sum(|p| p.energy_j)),
            format!("{:.1} %", sum(|p| p.share_pct)),
        ]);
    }
    let others_pct: f64 = found.parts.iter().map(|p| p.share_pct).sum();
    let mut line = |name: &str, joules: f64, share: String| {
        table.add_row([format!("  {name}"), String::new(), String::new(), energy(joules), share]);
    };
    if found.unattributed_j > 0.0 {
        line("nobody's", found.unattributed_j, format!("{:.1} %", (100.0 - others_pct).max(0.0)));
    }
    line("idle", found.idle_j, String::new());
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut text = format!("{table}\n");
    let _ = writeln!(text, "  {}; idle is {:.1} W, {}", method(found), found.idle_w, source(found));
    text
}

fn method(found: &Attribution) -> &'static str {
    match found.method {
        Method::SmUtilisation => "shared by SM utilisation, which is time with a kernel and not power",
        Method::SlicesOfBusyInstances => {
            "shared by the slices of MIG instances with a process, because the driver does not say what processes did"
        }
        Method::None => "not shared, because the driver does not say what processes did",
    }
}

fn source(found: &Attribution) -> &'static str {
    match found.idle_source {
        IdleSource::Given => "as given",
        IdleSource::IdleProcesses => "as drawn while no process did anything",
        IdleSource::LeastPower => "the least power of the recording",
    }
}
