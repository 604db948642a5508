//! `gpumon demo`: the whole pipeline on a simulated A100, by the same commands that a user would give.
//!
//! Rule: a workload file is written, then each step is a command line that is printed, parsed and run as if it had been
//! typed. What they leave behind is shown as a table and as one page.
//! Cases: a folder that holds nothing but an earlier demo is made anew, one that was killed too; any other is left alone.
//! A demo that is stopped does not go on; started again it begins anew.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use anyhow::{Context, Result, bail};
use clap::Parser;
use comfy_table::{CellAlignment, Table, presets};
use gpumon_place::emit::sh::quote;
use gpumon_place::plan::Plan;
use serde::Serialize;

use super::{DONE, INTERRUPTED, inputs};
use crate::cli::{Cli, DemoArgs};
use crate::output::{self, note};
use crate::report::pipeline::Pipeline;
use crate::signals;

/// What is served. The models are simulated; their names stand for their kind.
const WORKLOAD: &str = include_str!("demo/workload.toml");
/// Loads that are placed, % of the workload's rates.
const LOADS_PCT: [u32; 5] = [25, 50, 75, 100, 125];
/// The system, and the one that it is compared with.
const SYSTEMS: [&str; 2] = ["enertune", "dedicated"];

/// What the demo leaves, one file or folder each, besides the plans.
const WORKLOAD_FILE: &str = "workload.toml";
const PROFILE: &str = "profile.parquet";
const RECORDING: &str = "sweep";
const HELD_OUT: &str = "held-out.csv";
const MODELS: &str = "models.json";
const PAGE: &str = "demo.html";

/// One load.
#[derive(Serialize)]
struct Line {
    load: f64,
    gpus_used: usize,
    power_w: f64,
    average_power_w: f64,
    energy_per_request_j: f64,
    dedicated_gpus_used: usize,
    dedicated_average_power_w: f64,
    dedicated_energy_per_request_j: f64,
}

#[derive(Serialize)]
struct Report<'a> {
    simulated: bool,
    commands: &'a [String],
    loads: &'a [Line],
    page: &'a Path,
}

/// Runs the pipeline.
pub fn run(args: &DemoArgs) -> Result<u8> {
    if args.json {
        output::reserve_stdout();
    }
    let folder = args.output.as_path();
    let stop = signals::stop_flag()?;
    clear(folder)?;
    fs::create_dir_all(folder).with_context(|| format!("cannot make the folder `{}`", folder.display()))?;
    inputs::write(&folder.join(WORKLOAD_FILE), false, WORKLOAD)?;

    let mut commands = Vec::new();
    for step in steps(folder) {
        let line: Vec<String> = step.iter().map(|word| shown(word)).collect();
        commands.push(line.join(" "));
        output::print(&format!("\n$ {}\n", line.join(" ")))?;
        let cli = Cli::try_parse_from(&step).context("a step of the demo is no command line")?;
        let code = super::run(&cli.command).with_context(|| format!("`{}`", line.join(" ")))?;
        if code == INTERRUPTED || stop.load(Ordering::SeqCst) {
            note(format_args!(
                "gpumon: the demo is stopped; started again it removes what is in `{}` and begins anew",
                folder.display()
            ));
            return Ok(INTERRUPTED);
        }
        if code != DONE {
            return Ok(code);
        }
    }

    let plans = LOADS_PCT.map(|load| SYSTEMS.map(|system| inputs::plan(&folder.join(plan(system, load)))));
    let plans: Vec<[Plan; 2]> =
        plans.into_iter().map(|[a, b]| anyhow::Ok([a?, b?])).collect::<Result<_>>()?;
    let lines: Vec<Line> = plans.iter().map(line).collect();
    let table = table(&lines).to_string();
    let page = folder.join(PAGE);
    let (placed, _): (Vec<_>, Vec<_>) = plans.into_iter().map(|[a, b]| (a, b)).unzip();
    let files = Pipeline {
        recording: &folder.join(RECORDING),
        held_out: &folder.join(HELD_OUT),
        plans: &placed,
        table: &table,
        commands: &commands,
    };
    inputs::write(&page, false, &files.html()?)?;
    if args.json {
        output::release_stdout();
        output::print_json(&Report { simulated: true, commands: &commands, loads: &lines, page: &page })?;
    } else {
        output::print(&format!(
            "\nAll of this is simulated: a simulated A100 and simulated models.\n{table}\n"
        ))?;
    }
    note(format_args!("The page with pictures: {}", page.display()));
    Ok(DONE)
}

/// The command lines, after the workload is there.
fn steps(folder: &Path) -> Vec<Vec<String>> {
    let file = |name: &str| folder.join(name).to_string_lossy().into_owned();
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let mut steps = vec![
        [
            words("gpumon profile --device sim:a100 --design lhs:0.2 -w"),
            vec![file(WORKLOAD_FILE), "--record".into(), file(RECORDING), "-o".into(), file(PROFILE)],
        ],
        [
            words("gpumon fit"),
            vec![file(PROFILE), "--held-out".into(), file(HELD_OUT), "-o".into(), file(MODELS)],
        ],
    ];
    for load in LOADS_PCT {
        for system in SYSTEMS {
            let factor = (f64::from(load) / 100.0).to_string();
            let mut words = words("gpumon place --system");
            words.extend([system, "--load", &factor, "-w"].map(str::to_owned));
            let files = [&file(WORKLOAD_FILE), "--models", &file(MODELS), "-o", &file(&plan(system, load))];
            steps.push([words, files.map(str::to_owned).to_vec()]);
        }
    }
    steps.into_iter().map(|parts| parts.concat()).collect()
}

fn plan(system: &str, load_pct: u32) -> String {
    format!("plan-{system}-{load_pct}.json")
}

fn line([ours, dedicated]: &[Plan; 2]) -> Line {
    Line {
        load: ours.load,
        gpus_used: ours.total.gpus_used,
        power_w: ours.total.power_w,
        average_power_w: ours.total.average_power_w,
        energy_per_request_j: ours.total.energy_per_request_j,
        dedicated_gpus_used: dedicated.total.gpus_used,
        dedicated_average_power_w: dedicated.total.average_power_w,
        dedicated_energy_per_request_j: dedicated.total.energy_per_request_j,
    }
}

fn table(lines: &[Line]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY).set_header([
        "load, %",
        "GPUs",
        "W, all busy",
        "W, average",
        "J a request",
        "a GPU each: GPUs",
        "W, average",
        "J a request",
        "saved, %",
    ]);
    for l in lines {
        let saved = 100.0 * (1.0 - l.average_power_w / l.dedicated_average_power_w);
        table.add_row([
            format!("{:.0}", l.load * 100.0),
            l.gpus_used.to_string(),
            format!("{:.0}", l.power_w),
            format!("{:.0}", l.average_power_w),
            format!("{:.3}", l.energy_per_request_j),
            l.dedicated_gpus_used.to_string(),
            format!("{:.0}", l.dedicated_average_power_w),
            format!("{:.3}", l.dedicated_energy_per_request_j),
            format!("{saved:.0}"),
        ]);
    }
    table.column_iter_mut().for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}

/// A word as one types it.
fn shown(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,=".contains(c);
    if !word.is_empty() && word.chars().all(plain) { word.into() } else { quote(word) }
}

/// The name that a file was to have whose writing was cut off: `.NAME.PID.part` or `.NAME.PID.tmp`.
fn unfinished(name: &str) -> Option<&str> {
    let rest = name.strip_prefix('.')?;
    let rest = rest.strip_suffix(".part").or_else(|| rest.strip_suffix(".tmp"))?;
    let (name, pid) = rest.rsplit_once('.')?;
    (!pid.is_empty() && pid.bytes().all(|b| b.is_ascii_digit())).then_some(name)
}

/// Removes what an earlier demo left in `folder`; an error if anything else is there.
fn clear(folder: &Path) -> Result<()> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e).with_context(|| format!("cannot use `{}`", folder.display())),
    };
    let entries: Vec<PathBuf> = entries.map(|e| Ok(e?.path())).collect::<std::io::Result<_>>()?;
    let of_plans = LOADS_PCT.iter().flat_map(|&load| SYSTEMS.map(|system| plan(system, load)));
    let journal = format!("{PROFILE}.journal");
    let known: Vec<String> = [WORKLOAD_FILE, PROFILE, RECORDING, HELD_OUT, MODELS, PAGE, &journal]
        .map(str::to_owned)
        .into_iter()
        .chain(of_plans)
        .collect();
    let is_known = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        known.iter().any(|k| k == unfinished(&name).unwrap_or(&name))
    };
    if let Some(other) = entries.iter().find(|path| !is_known(path)) {
        bail!(
            "`{}` holds something that is not the demo's (`{}`); name another folder with -o",
            folder.display(),
            other.display()
        );
    }
    for path in entries {
        let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed.with_context(|| format!("cannot remove `{}` of an earlier demo", path.display()))?;
    }
    Ok(())
}
