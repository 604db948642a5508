//! `gpumon diff`: recordings or sets of runs compared in energy, time and power.
//!
//! Rule: what counts in each run is the window `command` if all of them have it, else the whole recording, or the window
//! that is asked for; GPUs are added up. Two sets that were made by turns are compared neighbour by neighbour.
//! Not done here: the statistics, which are `gpumon_monitor::compare`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use comfy_table::{CellAlignment, Table, presets};
use gpumon_monitor::compare::{self, Difference, Method, Single, Stats};
use gpumon_monitor::summary::{GpuSummary, Summary};
use serde::Serialize;

use super::run::WINDOW;
use super::runs::Runs;
use super::summary::Given;
use super::{DONE, summary};
use crate::cli::DiffArgs;
use crate::output;

/// A temperature change over a set that is worth a note, °C.
const DRIFT_C: i32 = 5;

/// What is compared: one recording, or the runs of one command.
struct Side {
    name: String,
    recordings: Vec<PathBuf>,
}

/// What one run took, all GPUs together.
struct Taken {
    energy: Option<Single>,
    time_s: f64,
    power: Option<Single>,
    temp_c: Option<i32>,
    gpus: Vec<String>,
}

/// A quantity of one side, or of two.
#[derive(Serialize)]
struct Quantity {
    name: &'static str,
    unit: &'static str,
    #[serde(flatten)]
    found: Found,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Found {
    One { a: Stats },
    Two(Difference),
}

/// The comparison, as `--json` prints it.
#[derive(Serialize)]
pub struct Report {
    simulated: bool,
    /// The window that was compared; absent for whole recordings.
    window: Option<String>,
    a: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    b: Option<String>,
    quantities: Vec<Quantity>,
    notes: Vec<String>,
}

/// Compares.
pub fn run(args: &DiffArgs) -> Result<u8> {
    let given = Given { calibration: summary::calibration(&args.calibration)?, ..Given::default() };
    let report = match &args.b {
        Some(b) => {
            let sides = [side(&args.a)?, side(b)?];
            report(&sides, args.window.as_deref(), false, &given)?
        }
        None if Runs::is_at(&args.a) => of_set(&args.a, args.window.as_deref(), &given)?,
        None => bail!("`{}` is no set of runs; name a second recording to compare it with", args.a.display()),
    };
    if args.json {
        output::print_json(&report)?;
    } else {
        output::print(&report.text())?;
    }
    Ok(DONE)
}

/// What a set says: of its only command, or of one against the other.
pub fn of_set(folder: &Path, window: Option<&str>, given: &Given) -> Result<Report> {
    let runs = Runs::read(folder)?;
    let sides: Vec<Side> = runs
        .commands
        .iter()
        .enumerate()
        .map(|(at, words)| Side { name: words.join(" "), recordings: runs.counted(folder, at) })
        .collect();
    report(&sides, window, true, given)
}

/// A recording, or a set of one command.
fn side(path: &Path) -> Result<Side> {
    let name = path.display().to_string();
    if !Runs::is_at(path) {
        return Ok(Side { name, recordings: vec![path.to_owned()] });
    }
    let runs = Runs::read(path)?;
    if runs.commands.len() > 1 {
        bail!("`{name}` holds runs of two commands; compare those with `gpumon diff {name}`");
    }
    Ok(Side { name, recordings: runs.counted(path, 0) })
}

fn report(sides: &[Side], window: Option<&str>, by_turns: bool, given: &Given) -> Result<Report> {
    let mut all: Vec<Vec<Summary>> = Vec::new();
    for side in sides {
        if side.recordings.is_empty() {
            bail!("`{}` has no run that counts; run it again, with --repeat of at least 1", side.name);
        }
        let read = |path: &PathBuf| {
            let read = summary::read(path, &[], given);
            read.map(|r| r.summary).with_context(|| format!("`{}`", path.display()))
        };
        all.push(side.recordings.iter().map(read).collect::<Result<_>>()?);
    }
    let has = |name: &str| all.iter().flatten().all(|s| s.windows.iter().any(|w| w.name == name));
    let window = match window {
        Some(name) if has(name) => Some(name),
        Some(name) => bail!("not every recording has a window `{name}`; see `gpumon summary`"),
        None => has(WINDOW).then_some(WINDOW),
    };
    let taken: Vec<Vec<Taken>> =
        all.iter().map(|runs| runs.iter().map(|summary| taken(summary, window)).collect()).collect();
    let quantities = [
        quantity("energy", "J", &taken, by_turns, |t| t.energy),
        quantity("time", "s", &taken, by_turns, |t| Some(Single { value: t.time_s, interval: None })),
        quantity("power", "W", &taken, by_turns, |t| t.power),
    ];
    let mut names = sides.iter().map(|side| side.name.clone());
    Ok(Report {
        simulated: all.iter().flatten().any(|s| s.simulated),
        window: window.map(str::to_owned),
        a: names.next().unwrap_or_default(),
        b: names.next(),
        quantities: quantities.into_iter().flatten().collect(),
        notes: notes(&taken),
    })
}

fn taken(summary: &Summary, window: Option<&str>) -> Taken {
    let part = window.and_then(|name| summary.windows.iter().find(|w| w.name == name));
    let (gpus, time_s) = part.map_or((&summary.gpus, summary.duration_s), |w| (&w.gpus, w.duration_s));
    let sum = |value: fn(&GpuSummary) -> Option<f64>| gpus.iter().map(value).sum::<Option<f64>>();
    let energy = sum(|g| g.energy_j).map(|value| {
        let interval = sum(|g| g.energy_low_j).zip(sum(|g| g.energy_high_j));
        Single { value, interval }
    });
    let over_time = |e: Single| Single {
        value: e.value / time_s,
        interval: e.interval.map(|(low, high)| (low / time_s, high / time_s)),
    };
    Taken {
        energy,
        time_s,
        power: energy.filter(|_| time_s > 0.0).map(over_time),
        temp_c: gpus.iter().filter_map(|g| g.temp_c_max).max(),
        gpus: gpus.iter().map(|g| g.uuid.clone()).collect(),
    }
}

/// One quantity of all sides; none if a run lacks it.
fn quantity(
    name: &'static str,
    unit: &'static str,
    taken: &[Vec<Taken>],
    by_turns: bool,
    value: impl Fn(&Taken) -> Option<Single>,
) -> Option<Quantity> {
    let values = |runs: &Vec<Taken>| runs.iter().map(&value).collect::<Option<Vec<Single>>>();
    let sides: Vec<Vec<Single>> = taken.iter().map(values).collect::<Option<_>>()?;
    let plain = |side: &[Single]| side.iter().map(|s| s.value).collect::<Vec<_>>();
    let found = match sides.as_slice() {
        [a] => Found::One { a: Stats::of(&plain(a))? },
        [a, b] => Found::Two(match (a.as_slice(), b.as_slice()) {
            ([a], [b]) => compare::singles(*a, *b),
            (a, b) => compare::sets(&plain(a), &plain(b), by_turns)?,
        }),
        _ => return None,
    };
    Some(Quantity { name, unit, found })
}

fn notes(taken: &[Vec<Taken>]) -> Vec<String> {
    let mut notes = Vec::new();
    let mut gpus: Vec<&[String]> = taken.iter().flatten().map(|t| t.gpus.as_slice()).collect();
    gpus.dedup();
    if gpus.len() > 1 {
        notes.push("the runs were not all on the same GPUs; the difference holds that of the cards".into());
    }
    let temperatures: Vec<i32> = taken.iter().flatten().filter_map(|t| t.temp_c).collect();
    if let (Some(low), Some(high)) = (temperatures.iter().min(), temperatures.iter().max())
        && high - low >= DRIFT_C
    {
        notes.push(format!(
            "the GPU's highest temperature went from {low} to {high} °C over the runs; a warm GPU draws more, so warm up longer"
        ));
    }
    if taken.iter().all(|side| side.len() == 1) && taken.len() == 2 {
        notes.push("one run each: the interval holds what the sensors leave open, not what runs vary by; see run --repeat".into());
    }
    notes
}

impl Report {
    /// For people.
    pub fn text(&self) -> String {
        let simulated = if self.simulated { " (simulated)" } else { "" };
        let mut text = format!("A: {}{simulated}\n", self.a);
        if let Some(b) = &self.b {
            let _ = writeln!(text, "B: {b}");
        }
        let mut table = Table::new();
        table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
        let head = ["", "A", "B", "B − A", "95 % interval", "B − A, %", "verdict"];
        table.set_header(if self.b.is_some() {
            &head[..]
        } else {
            &["", "mean", "95 % interval", "spread, %", "runs"]
        });
        for Quantity { name, unit, found } in &self.quantities {
            let label = format!("{name}, {unit}");
            match found {
                Found::One { a } => {
                    let spread = a.sd.map_or("–".into(), |sd| format!("{:.2}", 100.0 * sd / a.mean));
                    table.add_row([label, figure(a.mean), interval(a.low, a.high), spread, a.n.to_string()]);
                }
                Found::Two(d) => {
                    let relative = d.relative_pct.map_or("–".into(), |pct| format!("{pct:+.2}"));
                    let cells =
                        [label, stats(&d.a), stats(&d.b), figure(d.difference), interval(d.low, d.high)];
                    table.add_row(cells.into_iter().chain([relative, verdict(d)]));
                }
            }
        }
        table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
        let _ = writeln!(text, "{table}");
        for note in &self.notes {
            let _ = writeln!(text, "{note}");
        }
        text
    }
}

fn verdict(d: &Difference) -> String {
    match (d.differs, d.method) {
        (Some(true), _) => "differ".into(),
        (Some(false), _) => "not shown to differ".into(),
        (None, Method::None) => "too few runs".into(),
        (None, _) => "–".into(),
    }
}

fn stats(s: &Stats) -> String {
    match s.low.zip(s.high) {
        Some((low, high)) => format!("{} ± {}", figure(s.mean), figure((high - low) / 2.0)),
        None => figure(s.mean),
    }
}

fn interval(low: Option<f64>, high: Option<f64>) -> String {
    low.zip(high).map_or("–".into(), |(low, high)| format!("{} to {}", figure(low), figure(high)))
}

/// Four digits.
fn figure(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 1000.0 => 0,
        v if v >= 100.0 => 1,
        v if v >= 10.0 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}
