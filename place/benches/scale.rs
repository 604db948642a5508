//! How time and memory of each system grow with the models: `cargo bench -p gpumon-place --bench scale`.
//!
//! Rule: models are drawn around the reference where it is there, else around made-up ones; each system and count runs in a process of its own, whose time
//! from the problem to the checked plan and whose peak memory, the problem's included, are told; of [`REPEATS`] such runs the fastest. One that has no answer after
//! [`PATIENCE`] is ended, and larger counts of its system are left out. `-- --write` puts tables and picture into docs/.
//! `-- SYSTEM COUNT [OBJECTIVE] [SECONDS]` is one run. `-- --thorough` compares `enertune` with what it finds when it looks at every pair and
//! count, which takes minutes.

#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../tests/drawn/mod.rs"]
mod drawn;
mod growth;
#[path = "../tests/reference/mod.rs"]
mod reference;

#[path = "../tests/synthetic/mod.rs"]
mod synthetic;

use std::fmt::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use gpumon_place::policy::enertune::EnerTune;
use gpumon_place::policy::{POLICIES, solve};
use gpumon_place::{Ask, Objective, Problem, place};

const COUNTS: [usize; 7] = [10, 30, 100, 300, 1000, 3000, 10_000];
/// What is looked at in [`COUNTS`]: one without and one with the longest batch in it.
const OBJECTIVES: [Objective; 2] = [Objective::AveragePower, Objective::Energy];
/// Longest run, twice what is asked for ten thousand models.
const PATIENCE: Duration = Duration::from_secs(60);
/// Runs of one kind of which the fastest counts, since other work on the machine only slows them down.
const REPEATS: usize = 3;
/// Seconds that `optimal` has where it searches, and where it is to come near its bound.
const SEARCH_S: u32 = 10;
const LONG_S: u32 = 60;
/// Systems that have no plan where one model has nothing to run at the clock of all others.
const ONE_CLOCK: [&str; 3] = ["usher", "parvagpu", "fgd"];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    match args.first().map(String::as_str) {
        None => all(false),
        Some("--write") => all(true),
        Some("--thorough") => thorough(),
        Some(system) => one(system, &args),
    }
}

/// One run: time, peak memory, GPUs, cost and gap to the bound, by tabs.
fn one(system: &str, args: &[String]) {
    let count: usize = args[1].parse().unwrap();
    let objective: Objective = args.get(2).map_or(Objective::AveragePower, |o| o.parse().unwrap());
    let seconds: f64 = args.get(3).map_or(10.0, |s| s.parse().unwrap());
    let mut problem = drawn::problem(&around(objective), count, everything_serves);
    problem.time_limit = Duration::from_secs_f64(seconds);
    let started = Instant::now();
    let plan = place(&problem, system);
    let took = started.elapsed().as_secs_f64();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap();
    let peak_kib: f64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    match plan {
        Ok(plan) => {
            let gap =
                plan.total.bound.map_or(String::new(), |b| format!("{:.4}", (plan.cost / b - 1.0) * 100.0));
            println!("{took}\t{}\t{}\t{}\t{gap}", peak_kib / 1024.0, plan.gpus.len(), plan.cost);
        }
        Err(error) => println!("{took}\t{}\t\t\t{error}", peak_kib / 1024.0),
    }
}

/// Whether the systems that run all GPUs at one clock have something to run at the highest.
fn everything_serves(alone: &Problem) -> bool {
    let highest = alone.clocks.last().unwrap().0;
    let is_highest = |plan: gpumon_place::Plan| plan.gpus.iter().all(|gpu| gpu.frequency_mhz == highest);
    ONE_CLOCK.iter().all(|system| place(alone, system).is_ok_and(is_highest))
}

fn around(objective: Objective) -> Problem {
    if let Some(reference) = reference::reference() {
        return reference.problem(objective, 1.0, None);
    }
    let (workload, rows) = synthetic::workload(11);
    let base = synthetic::base();
    Problem::new(&Ask::new(&workload, &rows, &base, objective)).unwrap()
}

/// The cells that one run prints; `None` where it had to be ended.
fn patiently(system: &str, count: usize, objective: Objective, seconds: u32) -> Option<Vec<String>> {
    let mut run = Command::new(std::env::current_exe().unwrap());
    run.args([system, &count.to_string(), objective.name(), &seconds.to_string()]);
    let mut child = run.stdout(Stdio::piped()).spawn().unwrap();
    let started = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if started.elapsed() > PATIENCE + Duration::from_secs(seconds.into()) {
            child.kill().unwrap();
            child.wait().unwrap();
            return None;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let text = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    eprintln!("{system}, {count} models, {objective}: {}", text.trim());
    Some(text.trim_end_matches('\n').split('\t').map(str::to_owned).collect())
}

/// The fastest of some runs.
fn fastest(system: &str, count: usize, objective: Objective) -> Option<Vec<String>> {
    let repeats = if system == "optimal" { 1 } else { REPEATS };
    let mut runs = Vec::new();
    for _ in 0..repeats {
        runs.push(patiently(system, count, objective, SEARCH_S)?);
    }
    runs.into_iter().min_by(|a, b| number(a, 0).total_cmp(&number(b, 0)))
}

/// A cell as a number, NaN where it is none.
fn number(cells: &[String], at: usize) -> f64 {
    cells.get(at).and_then(|c| c.parse().ok()).unwrap_or(f64::NAN)
}

fn shown(cells: &[String], at: usize, digits: usize) -> String {
    let value = number(cells, at);
    if value.is_nan() { "–".into() } else { format!("{value:.digits$}") }
}

fn all(write: bool) {
    let mut page = String::from(
        "| system | models | time, s | peak memory, MiB | GPUs | average power, W | above its bound, % | for energy: time, s | GPUs | above its bound, % |\n\
         |---|---|---|---|---|---|---|---|---|---|\n",
    );
    let mut curves = Vec::new();
    for policy in POLICIES {
        let name = policy.name();
        let mut curve = Vec::new();
        for count in COUNTS {
            let [power, energy] = OBJECTIVES.map(|objective| fastest(name, count, objective));
            let (Some(power), Some(energy)) = (power, energy) else {
                let seconds = PATIENCE.as_secs();
                let _ = writeln!(page, "| `{name}` | {count} | above {seconds} |{}", " – |".repeat(7));
                eprintln!("{name}, {count} models: no answer in {seconds} s");
                break;
            };
            let _ = writeln!(
                page,
                "| `{name}` | {count} | {} | {} | {} | {} | {} | {} | {} | {} |",
                shown(&power, 0, 4),
                shown(&power, 1, 0),
                shown(&power, 2, 0),
                shown(&power, 3, 0),
                shown(&power, 4, 2),
                shown(&energy, 0, 4),
                shown(&energy, 2, 0),
                shown(&energy, 4, 2)
            );
            curve.push((count as f64, number(&power, 0)));
        }
        curve.retain(|(_, seconds)| seconds.is_finite());
        curves.push((name, curve));
    }
    let _ = write!(page, "\n## A thousand models for a minute\n\n`optimal` after {LONG_S} s: ");
    let long = OBJECTIVES.map(|objective| {
        let cells = patiently("optimal", 1000, objective, LONG_S).unwrap_or_default();
        format!("{} % above its bound for {objective}", shown(&cells, 4, 2))
    });
    let _ = writeln!(page, "{}.", long.join(", "));
    page += &proofs();
    println!("{page}");
    if write {
        growth::write(&page, &curves);
    }
}

/// How long `optimal` takes to prove its plans for the published models.
fn proofs() -> String {
    let Some(reference) = reference::reference() else { return String::new() };
    let names: Vec<&str> = gpumon_place::cost::OBJECTIVES.iter().map(|o| o.name()).collect();
    let mut text = format!(
        "\n## Proofs for eleven models\n\nTime of `optimal` for the published A100 models, free number of GPUs, in ms, the fastest of {REPEATS}; \
         each plan is proven to be the cheapest unless a cell says otherwise.\n\n| load, % | {} |\n|---{}|\n",
        names.join(" | "),
        "|---".repeat(names.len())
    );
    for load_pct in [25, 50, 75, 100, 125] {
        let _ = write!(text, "| {load_pct} |");
        for &objective in gpumon_place::cost::OBJECTIVES {
            let problem = reference.problem(objective, f64::from(load_pct) / 100.0, None);
            let runs = (0..REPEATS).map(|_| {
                let started = Instant::now();
                let plan = place(&problem, "optimal").unwrap();
                (started.elapsed().as_secs_f64() * 1e3, plan.total.proven == Some(true))
            });
            let (ms, proven) = runs.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
            let _ = write!(text, " {ms:.1}{} |", if proven { "" } else { ", not proven" });
        }
        text.push('\n');
    }
    text
}

/// What `enertune` loses by not looking at every pair and count.
fn thorough() {
    println!(
        "| objective | models | time, s | thorough: time, s | costlier than thorough, % |\n|---|---|---|---|---|"
    );
    for objective in OBJECTIVES {
        for count in [50, 100, 150, 200, 300, 400] {
            let problem = drawn::problem(&around(objective), count, everything_serves);
            let run = |policy: EnerTune| {
                let started = Instant::now();
                let cost = solve(&problem, &policy).unwrap().cost;
                (cost, started.elapsed().as_secs_f64())
            };
            let (cost, seconds) = run(EnerTune::WHOLE);
            let (least, long) = run(EnerTune { thorough: true, ..EnerTune::WHOLE });
            let above = (cost / least - 1.0) * 100.0;
            println!("| {objective} | {count} | {seconds:.3} | {long:.2} | {above:+.4} |");
        }
    }
}
