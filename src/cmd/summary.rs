//! `gpumon summary`, and the report that `record` and `run` end with.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, bail};
use comfy_table::{CellAlignment, Table, presets};
use gpumon_core::calibration::Calibration;
use gpumon_core::header::State;
use gpumon_monitor::energy::Parts;
use gpumon_monitor::store::Reader;
use gpumon_monitor::summary::{self, GpuSummary, Options, Summary, Window};
use serde::Serialize;

use super::{DONE, DONE_WITH_LOSSES, attribution};
use crate::cli::{CalibrationArgs, CostArgs, Span, SummaryArgs};
use crate::output::{self, note};

/// A recording's summary with what only this command adds.
#[derive(Serialize)]
pub struct Report {
    /// What the recording says.
    #[serde(flatten)]
    pub summary: Summary,
    /// What was lost.
    pub losses: Losses,
    /// Cost and emissions of the whole recording, as far as they were asked for.
    #[serde(flatten)]
    cost: Cost,
}

/// What a recording lost: all zero in a whole one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Losses {
    missed_ticks: u64,
    ring_lost: u64,
    dropped_rows: u64,
    gaps: u64,
    failed_reads: u64,
    gpus_lost: u64,
    stalls: u64,
    counter_resets: u64,
    clock_steps: u64,
    storage_failed: bool,
    /// The writer was killed: up to the last second is missing.
    killed: bool,
    /// What `recover` could not keep.
    damage: Vec<String>,
}

impl Losses {
    /// Whether a GPU was lost, even if it came back.
    pub fn lost_a_gpu(&self) -> bool {
        self.gpus_lost > 0
    }
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Cost {
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    carbon_g: Option<f64>,
}

/// What the summary is given beside the recording.
#[derive(Clone, Debug, Default)]
pub struct Given {
    /// Prices.
    pub cost: CostArgs,
    /// What meters said.
    pub calibration: Option<Calibration>,
    /// What the GPUs draw idle with a context, W.
    pub idle_w: Option<f64>,
}

/// Reads the file of `--calibration`.
pub fn calibration(args: &CalibrationArgs) -> Result<Option<Calibration>> {
    let Some(path) = &args.calibration else { return Ok(None) };
    let read = || -> Result<Calibration> { Ok(Calibration::parse(&std::fs::read_to_string(path)?)?) };
    read().map(Some).with_context(|| format!("--calibration {}", path.display()))
}

/// Sums up a recording.
pub fn run(args: &SummaryArgs) -> Result<u8> {
    let calibration = calibration(&args.calibration)?;
    let given = Given { cost: args.cost, calibration, idle_w: args.idle_power };
    let losses = show(&args.recording, &args.window, &given, args.json)?;
    Ok(exit_code(args.strict, &losses))
}

/// The exit code that losses mean.
pub fn exit_code(strict: bool, losses: &Losses) -> u8 {
    if strict && *losses != Losses::default() { DONE_WITH_LOSSES } else { DONE }
}

/// Prints the summary of the recording at `path`, as text or JSON.
pub fn show(path: &Path, spans: &[Span], given: &Given, json: bool) -> Result<Losses> {
    let report = read(path, spans, given)?;
    if json {
        output::print_json(&report)?
    } else {
        output::print(&text(&report, None))?
    }
    Ok(report.losses)
}

/// Reads and sums up the recording at `path`.
pub fn read(path: &Path, spans: &[Span], given: &Given) -> Result<Report> {
    let reader = Reader::open(path)?;
    let timing: Vec<_> = reader.header().gpus.iter().filter_map(|g| g.characterisation.clone()).collect();
    let gpus = reader.header().gpus.iter();
    let idle_w: Vec<_> = gpus.filter_map(|g| Some((g.uuid.clone(), given.idle_w?))).collect();
    let options = Options { timing: &timing, calibration: given.calibration.as_ref(), idle_w: &idle_w };
    if let Some(calibration) = options.calibration {
        let named = |gpu: &gpumon_core::header::Gpu| calibration.of(&gpu.uuid).is_some();
        for gpu in reader.header().gpus.iter().filter(|gpu| !named(gpu)) {
            note(format_args!("gpumon: --calibration says nothing about {}; it is not corrected", gpu.uuid));
        }
    }
    let windows: Vec<Window> = spans
        .iter()
        .map(|span| Window {
            name: span.text.clone(),
            from_us: span.from_us.unwrap_or(0),
            to_us: span.to_us.unwrap_or(i64::MAX),
        })
        .collect();
    let summary = summary::summarize(&reader, &windows, options)?;
    let outside = windows.iter().find(|w| w.from_us as f64 / 1e6 >= summary.duration_s);
    if let Some(window) = outside {
        bail!(
            "--window {} lies outside the recording, which is {:.3} s long",
            window.name,
            summary.duration_s
        );
    }
    let losses = losses(&summary);
    let cost = cost_of(&summary, given.cost);
    Ok(Report { summary, losses, cost })
}

fn losses(summary: &Summary) -> Losses {
    let count = |kind: &str| summary.events.get(kind).copied().unwrap_or(0);
    Losses {
        missed_ticks: summary.missed_ticks,
        ring_lost: count("ring_lost"),
        dropped_rows: count("dropped_rows"),
        gaps: count("gap"),
        failed_reads: count("read_failed") + count("implausible"),
        gpus_lost: count("gpu_lost"),
        stalls: count("stall"),
        counter_resets: count("counter_reset"),
        clock_steps: count("clock_step"),
        storage_failed: summary.state == State::StorageFailed,
        killed: summary.state == State::Recovered,
        damage: summary.damage.clone(),
    }
}

fn cost_of(summary: &Summary, args: CostArgs) -> Cost {
    let joules: f64 = summary.gpus.iter().filter_map(|g| g.energy_j).sum();
    let kwh = joules / 3.6e6 * args.pue;
    Cost {
        cost: args.price_per_kwh.map(|price| price * kwh),
        carbon_g: args.carbon_g_per_kwh.map(|grams| grams * kwh),
    }
}

/// The report for a person: one window, or the whole recording and all its windows.
pub fn text(report: &Report, only_window: Option<&str>) -> String {
    let summary = &report.summary;
    let chosen = only_window.and_then(|name| summary.windows.iter().find(|w| w.name == name));
    let mut text = String::new();
    let simulated = if summary.simulated { ", simulated" } else { "" };
    let span = chosen.map_or(summary.duration_s, |w| w.duration_s);
    let _ = writeln!(text, "{span:.3} s on {}{simulated}{}", summary.host, state(summary.state));
    let rows: Vec<(&str, &GpuSummary)> = match chosen {
        Some(window) => window.gpus.iter().map(|g| (window.name.as_str(), g)).collect(),
        None => {
            let whole = summary.gpus.iter().map(|g| ("all", g));
            whole
                .chain(summary.windows.iter().flat_map(|w| w.gpus.iter().map(|g| (w.name.as_str(), g))))
                .collect()
        }
    };
    let _ = writeln!(text, "{}", table(&rows, summary.gpus.len()));
    for gpu in chosen.map_or(&summary.gpus, |w| &w.gpus) {
        text.push_str(&notes(gpu));
        text.push_str(&attribution::text(gpu, energy));
    }
    let _ = writeln!(
        text,
        "whole recording: {} rows at {} Hz, {} ticks missed, {} ring readings{}",
        summary.rows,
        summary.rate_hz,
        summary.missed_ticks,
        summary.gpus.iter().map(|g| g.ring_readings).sum::<u64>(),
        own_cost(summary)
    );
    if let Some(cost) = report.cost.cost {
        let _ = writeln!(text, "cost of the whole recording: {cost:.6}");
    }
    if let Some(grams) = report.cost.carbon_g {
        let _ = writeln!(text, "emissions of the whole recording: {grams:.4} gCO2e");
    }
    for name in &summary.never_begun {
        let _ = writeln!(text, "the window `{name}` was ended and never begun: is the name right?");
    }
    for lost in &summary.damage {
        let _ = writeln!(text, "lost to damage: {lost}");
    }
    let losses = summary
        .events
        .iter()
        .filter(|(kind, _)| !matches!(kind.as_str(), "mark" | "window_begin" | "window_end"));
    for (kind, count) in losses {
        let _ = writeln!(text, "event {kind}: {count}");
    }
    text
}

fn table(rows: &[(&str, &GpuSummary)], gpus: usize) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(["span", "GPU", "energy", "90 %", "from", "mean", "p99", "peak", "SM clock", "idle"]);
    for (index, (span, gpu)) in rows.iter().enumerate() {
        let watts = |value: Option<f64>| value.map_or("–".into(), |w| format!("{w:.1} W"));
        table.add_row([
            (*span).to_owned(),
            (index % gpus.max(1)).to_string(),
            gpu.energy_j.map_or("–".into(), energy),
            within(gpu).map_or("–".into(), |pct| format!("±{pct:.2} %")),
            gpu.energy_method.unwrap_or("–").into(),
            watts(gpu.power_mean_w),
            watts(gpu.power_p99_w),
            watts(gpu.power_max_w),
            gpu.sm_mhz_mean.map_or("–".into(), |mhz| format!("{mhz:.0} MHz")),
            gpu.idle_share.map_or("–".into(), |share| format!("{:.0} %", share * 100.0)),
        ]);
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Half width of the interval, % of the energy.
fn within(gpu: &GpuSummary) -> Option<f64> {
    let joules = gpu.energy_j.filter(|j| *j > 0.0)?;
    Some(50.0 * (gpu.energy_high_j? - gpu.energy_low_j?) / joules)
}

fn energy(joules: f64) -> String {
    match joules {
        j if j >= 1e6 => format!("{:.3} MJ", j / 1e6),
        j if j >= 1e4 => format!("{:.2} kJ", j / 1e3),
        j => format!("{j:.1} J"),
    }
}

fn notes(gpu: &GpuSummary) -> String {
    let mut text = format!("{}  {}", gpu.name, gpu.uuid);
    if let (Some(low), Some(high)) = (gpu.energy_low_j, gpu.energy_high_j) {
        let _ = write!(text, "\n  energy from {} to {} (90 %)", energy(low), energy(high));
        let largest = gpu.energy_parts.and_then(largest_part);
        let _ =
            write!(text, "{}", largest.map_or(String::new(), |part| format!(", mostly because of {part}")));
    } else if let Some(method) = gpu.energy_method {
        let _ = write!(text, "\n  energy from {method} power alone: how far off it is cannot be told");
    }
    if let Some(short) = &gpu.energy_too_short {
        let _ = write!(
            text,
            "\n  too short: ±{:.0} %; ±{:.0} % takes {:.2} s of this load, or {} repetitions",
            short.now_pct, short.for_pct, short.least_s, short.repetitions
        );
    }
    if gpu.energy_j.is_some() {
        let _ = match &gpu.gain_source {
            Some(source) => {
                write!(text, "\n  corrected by {source}: the gain is known to ±{:.1} %", gpu.gain_pct)
            }
            None => write!(text, "\n  the sensor's gain may be off by ±{:.0} % besides", gpu.gain_pct),
        };
    }
    if let Some(counter) = gpu.energy_counter_j {
        let _ = write!(text, "\n  the driver's counter says {}", energy(counter));
    }
    if !gpu.clock_limits.is_empty() {
        let limits = gpu.clock_limits.iter().map(|l| format!("{} {:.0} %", l.reason, l.share * 100.0));
        let _ = write!(text, "\n  clock held down by: {} of the time", limits.collect::<Vec<_>>().join(", "));
    }
    text + "\n"
}

fn largest_part(parts: Parts) -> Option<&'static str> {
    let all = [
        (parts.noise_j, "noise"),
        (parts.coverage_j, "power between readings"),
        (parts.edge_j, "the window's edges between readings"),
        (parts.lag_j, "the sensor's delay"),
        (parts.counter_j, "the energy counter"),
    ];
    let largest = all.into_iter().max_by(|a, b| a.0.total_cmp(&b.0))?;
    (largest.0 > 0.0).then_some(largest.1)
}

fn own_cost(summary: &Summary) -> String {
    let Some(cost) = &summary.own_cost else { return String::new() };
    let share = cost.cpu_s / summary.duration_s.max(1e-6) * 100.0;
    let late = cost.lateness_p99_us.map_or(String::new(), |us| format!(", p99 lateness {us} µs"));
    format!(", {share:.2} % of a core{late}")
}

fn state(state: State) -> &'static str {
    match state {
        State::Complete => "",
        State::Recording => ", still being written or its recorder was killed (see `gpumon recover`)",
        State::StorageFailed => ", ended early because nothing more could be written",
        State::Recovered => ", recovered",
    }
}
