//! How time and memory of each system grow with the models: `cargo bench -p gpumon-place --bench scale`.
//!
//! Rule: models are drawn around the reference where it is there, else around made-up ones; each system and count runs in a process of its own, whose time
//! from the problem to the checked plan and whose peak memory, the problem's included, are told. One that has no answer after
//! [`PATIENCE`] is ended, and larger counts of its system are left out. `-- --write` puts table and picture into docs/.
//! `-- SYSTEM COUNT [OBJECTIVE] [SECONDS]` is one run.

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

use gpumon_place::policy::POLICIES;
use gpumon_place::{Ask, Objective, Problem, place};

const COUNTS: [usize; 7] = [10, 30, 100, 300, 1000, 3000, 10_000];
/// Longest run, twice what is asked for ten thousand models.
const PATIENCE: Duration = Duration::from_secs(60);

/// Systems that have no plan where one model has nothing to run at the clock of all others.
const ONE_CLOCK: [&str; 3] = ["usher", "parvagpu", "fgd"];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    match args.first().map(String::as_str) {
        None => all(false),
        Some("--write") => all(true),
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

/// What one run prints; `None` where it had to be ended.
fn patiently(system: &str, count: usize) -> Option<String> {
    let mut run = Command::new(std::env::current_exe().unwrap());
    let mut child = run.args([system, &count.to_string()]).stdout(Stdio::piped()).spawn().unwrap();
    let started = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if started.elapsed() > PATIENCE {
            child.kill().unwrap();
            child.wait().unwrap();
            return None;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Some(String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap())
}

fn all(write: bool) {
    let mut table = String::from(
        "| system | models | time, s | peak memory, MiB | GPUs | average power, W | above its bound, % |\n|---|---|---|---|---|---|---|\n",
    );
    let mut curves = Vec::new();
    for policy in POLICIES {
        let mut curve = Vec::new();
        for count in COUNTS {
            let Some(text) = patiently(policy.name(), count) else {
                let seconds = PATIENCE.as_secs();
                let _ =
                    writeln!(table, "| `{}` | {count} | above {seconds} | – | – | – | – |", policy.name());
                eprintln!("{} {count}: no answer in {seconds} s", policy.name());
                break;
            };
            let cells: Vec<&str> = text.trim_end_matches('\n').split('\t').collect();
            let number = |i: usize| cells.get(i).and_then(|c| c.parse::<f64>().ok());
            let shown = |i: usize, digits: usize| number(i).map_or("–".into(), |v| format!("{v:.digits$}"));
            let _ = writeln!(
                table,
                "| `{}` | {count} | {} | {} | {} | {} | {} |",
                policy.name(),
                shown(0, 3),
                shown(1, 0),
                shown(2, 0),
                shown(3, 0),
                shown(4, 2)
            );
            eprintln!("{} {count}: {}", policy.name(), text.trim());
            curve.extend(number(0).map(|s| (count as f64, s)));
        }
        curves.push((policy.name(), curve));
    }
    println!("{table}");
    if write {
        growth::write(&table, &curves);
    }
}
