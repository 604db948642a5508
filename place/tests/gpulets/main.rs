//! GPUlets on the cases that its published scheduler was run on, on random problems, and where memory or neighbours bind.

// Helpers of tests may panic as tests do.
#![allow(clippy::unwrap_used)]

mod known;
mod random;
#[path = "../reference/mod.rs"]
mod reference;

use std::collections::{BTreeMap, BTreeSet};

use gpumon_core::profile::ProfileRow;
use gpumon_core::workload::Workload;
use gpumon_place::base::{BaseParts, BasePower};
use gpumon_place::candidate::Share;
use gpumon_place::check::check;
use gpumon_place::slowdown::{Runs, Slowdown};
use gpumon_place::{Ask, Objective, Plan, Problem, place};
use serde_json::Value;

fn base() -> BasePower {
    BasePower::new([(1410, BaseParts { static_w: 40.0, fan_w: 20.0, idle_w: 8.0 })]).unwrap()
}

fn row(model: &str, batch: i32, share: f64, latency_ms: f64) -> ProfileRow {
    ProfileRow {
        latency: Some(latency_ms),
        throughput: Some(f64::from(batch) * 1e3 / latency_ms),
        dynamic_power_draw: Some(100.0 * share),
        ..ProfileRow::new(model, batch, share, 1410)
    }
}

fn problem(text: &str, rows: &[ProfileRow]) -> Problem {
    let workload = Workload::parse(text).unwrap();
    let base = base();
    Problem::new(&Ask { split: true, ..Ask::new(&workload, rows, &base, Objective::Power) }).unwrap()
}

fn model(name: &str, slo_ms: f64, rate_rps: f64) -> String {
    format!("[[model]]\nname = \"{name}\"\nlatency_slo_ms = {slo_ms:?}\nrate_rps = {rate_rps:?}\n")
}

const MPS: &str = "[cluster]\ngpu = \"a100\"\nsharing = \"mps\"\n";

/// GPUlets' form with one coefficient, the neighbour's share for what it uses.
#[derive(Debug)]
struct Linear(f64);

impl Slowdown for Linear {
    fn factor(&self, _: Runs, neighbour: Runs) -> f64 {
        let pct = match neighbour.candidate.share {
            Share::Slices(n) => 100.0 * f64::from(n) / 7.0,
            Share::Percent(pct) => pct,
        };
        1.0 + self.0 * pct / 100.0
    }
}

/// Rates that a plan gives each model, requests/s.
fn served(plan: &Plan) -> BTreeMap<&str, f64> {
    let mut rates = BTreeMap::new();
    for p in plan.gpus.iter().flat_map(|g| &g.partitions) {
        *rates.entry(p.model.as_str()).or_default() += p.rate_rps;
    }
    rates
}

/// Every rule of a gpulet that the common checker does not know.
fn keeps_the_rules(plan: &Plan) {
    for gpu in &plan.gpus {
        let shares: BTreeSet<_> = gpu
            .partitions
            .iter()
            .enumerate()
            .map(|(at, p)| p.turn.map_or((true, at), |turn| (false, turn.partition as usize)))
            .collect();
        assert!(shares.len() <= 2, "{gpu:?}");
        for p in &gpu.partitions {
            assert!(2.0 * p.latency_ms <= p.latency_slo_ms * (1.0 + 1e-9), "{p:?}");
            assert_eq!(p.processes, 1);
            let members = gpu.partitions.iter().filter(|q| p.turn.is_some() && q.turn == p.turn).count();
            assert!(p.turn.is_none() || (2..=3).contains(&members), "{gpu:?}");
        }
    }
}

#[test]
fn what_the_published_scheduler_serves_is_served_on_no_more_gpus() {
    let Some(folder) = reference::folder("gpulets") else { return };
    let cases: Value =
        serde_json::from_str(&std::fs::read_to_string(folder.join("cases.json")).unwrap()).unwrap();
    let mut rows = Vec::new();
    let table = std::fs::read_to_string(folder.join("latency.csv")).unwrap();
    for record in csv::Reader::from_reader(table.as_bytes()).records().map(Result::unwrap) {
        let number = |at: usize| record[at].parse::<f64>().unwrap();
        rows.push(row(&record[0], number(2) as i32, number(1) / 100.0, number(3)));
    }
    let (mut theirs_served, mut ours_served, mut fewer, mut same, mut also) = (0, 0, 0, 0, 0);
    let mut counts = (0, 0);
    for (at, case) in cases.as_array().unwrap().iter().enumerate() {
        let tasks = case["tasks"].as_array().unwrap();
        let number = |task: &Value, key: &str| task[key].as_f64().unwrap();
        let text = tasks.iter().fold(MPS.to_owned(), |text, task| {
            let name = task["model"].as_str().unwrap();
            text + &model(name, number(task, "latency_slo_ms"), number(task, "planned_rate_rps"))
        });
        let problem = problem(&text, &rows);
        let plan = place(&problem, "gpulets").unwrap();
        assert_eq!(check(&problem, &plan), [], "case {at}");
        keeps_the_rules(&plan);
        let rates = served(&plan);
        for task in tasks {
            let rate_rps = rates[task["model"].as_str().unwrap()];
            assert!(rate_rps >= 0.99 * number(task, "planned_rate_rps"), "case {at}: {task}");
        }
        let gpus = case["gpus"].as_u64().unwrap() as usize;
        let turns = plan.gpus.iter().flat_map(|g| &g.partitions).filter(|p| p.turn.is_some()).count();
        let Some(theirs) = case["plan"].as_array() else {
            also += usize::from(plan.gpus.len() <= gpus);
            eprintln!("case {at}: {} GPUs ({turns} in turns), theirs fails on {gpus}", plan.gpus.len());
            continue;
        };
        let used = theirs.iter().filter(|g| !g["model"].is_null()).map(|g| g["gpu"].as_u64());
        let used = used.collect::<BTreeSet<_>>().len();
        eprintln!("case {at}: {} GPUs ({turns} in turns), theirs {used}", plan.gpus.len());
        theirs_served += 1;
        ours_served += usize::from(plan.gpus.len() <= used);
        fewer += usize::from(plan.gpus.len() < used);
        same += usize::from(plan.gpus.len() == used);
        counts = (counts.0 + plan.gpus.len(), counts.1 + used);
    }
    eprintln!(
        "{ours_served} of {theirs_served} served on no more GPUs: {fewer} on fewer, {same} on as many; {} GPUs in all, theirs {}; \
         {also} that theirs fails on",
        counts.0, counts.1
    );
    assert_eq!((theirs_served, ours_served), (29, 29));
}
