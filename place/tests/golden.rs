//! The 45 cases that EnerTune's artifact was run on: never a costlier plan than its own.
//!
//! `GPUMON_BLESS=1` writes docs/enertune-cases.md anew; otherwise the test compares. Only totals appear there.

// Helpers of tests may panic as tests do.
#![allow(clippy::unwrap_used)]

mod reference;

use std::fmt::Write as _;
use std::path::PathBuf;

use gpumon_place::check::check;
use gpumon_place::plan::{Placed, PlacedItem};
use gpumon_place::policy::enertune::EnerTune;
use gpumon_place::policy::solve;
use gpumon_place::{Objective, Plan, Problem, place};
use serde_json::Value;

const HEAD: &str = "# EnerTune: 45 cases

Written by `GPUMON_BLESS=1 cargo test -p gpumon-place --test golden`; the test compares otherwise.

The published artifact (UT-SysML/EnerTune, commit 6a42fe3) was run on its own A100 data, eleven models, at five loads,
for three objectives, with 5, 6 and as many GPUs as it takes. Loads scale each model's rate; those of resnet50, gpt and
both diffusion models not above 100 %, as in the artifact. All costs are computed here by one function; *steps* is
this project's reading of the published steps alone, *ours* is what `--system enertune` gives. Every plan, the
artifact's too, was put before the same checker.

Units: power W; energy W·ms; carbon as published (g/kWh × W·ms). \"Free\" has no bound on GPUs.

| objective | load, % | GPUs | artifact: GPUs | cost | steps: GPUs | cost | ours: GPUs | cost | difference, % | result | why |
|---|---|---|---|---|---|---|---|---|---|---|---|
";

#[test]
fn no_plan_is_costlier_than_the_artifacts() {
    let Some(reference) = reference::reference() else { return };
    let cases = reference.plans["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 45);
    let mut table = String::from(HEAD);
    let (mut better, mut equal, mut unsound) = (0, 0, 0);
    for case in cases {
        let objective: Objective = case["objective"].as_str().unwrap().parse().unwrap();
        let load_pct = case["load_pct"].as_f64().unwrap();
        let gpus = case["gpus_asked"].as_u64().map(|n| n as u32);
        let problem = reference.problem(objective, load_pct / 100.0, gpus);
        let theirs = Plan::new(&problem, "artifact", &artifact(&problem, case));
        let violations = check(&problem, &theirs);
        let reported = case["total_cost_report"].as_f64().unwrap();
        assert!((theirs.cost / reported - 1.0).abs() < 1e-9, "their cost: {} {reported}", theirs.cost);
        let ours = place(&problem, "enertune").unwrap();
        let name = format!("{objective} at {load_pct} % on {gpus:?} GPUs");
        assert!(ours.cost <= theirs.cost * (1.0 + 1e-9), "{name}: {} above {}", ours.cost, theirs.cost);
        assert_eq!(check(&problem, &Plan::parse(&ours.to_json().unwrap()).unwrap()), [], "{name}");
        let steps = solve(&problem, &EnerTune::STEPS);
        if let Ok(steps) = &steps {
            assert!(steps.cost <= theirs.cost * (1.0 + 1e-9), "{name}: steps {}", steps.cost);
        }
        let counts = solve(&problem, &EnerTune { every_order: false, ..EnerTune::WHOLE });
        let gain = (ours.cost / theirs.cost - 1.0) * 100.0;
        let (result, why) = if gain > -1e-7 {
            equal += 1;
            ("equal", String::new())
        } else {
            better += 1;
            ("better", why(&theirs, steps.as_ref().ok(), counts.as_ref().ok(), &ours))
        };
        let mut why = why;
        for violation in &violations {
            unsound += 1;
            let _ = write!(why, " Theirs is not sound: {violation}.");
        }
        let cost = |p: &Plan| format!("{} | {}", p.gpus.len(), figure(p.cost));
        let _ = writeln!(
            table,
            "| {objective} | {load_pct} | {} | {} | {} | {} | {gain:+.2} | {result} | {} |",
            gpus.map_or("free".into(), |n| n.to_string()),
            cost(&theirs),
            steps.as_ref().map_or("– | none".into(), cost),
            cost(&ours),
            why.trim()
        );
    }
    let _ = write!(
        table,
        "\n{better} better, {equal} equal, none costlier. The artifact's plans break {unsound} rules of the checker.\n"
    );
    compare("enertune-cases.md", &table);
}

fn artifact(problem: &Problem, case: &Value) -> Vec<Placed> {
    let item = |m: &Value, mhz: u32| {
        let model = problem.models.iter().position(|d| d.name == m["model"].as_str().unwrap()).unwrap();
        let slices = gpumon_place::candidate::Share::Slices(m["slices"].as_u64().unwrap() as u8);
        let candidates = &problem.models[model].candidates;
        let found = candidates.iter().find(|c| {
            c.share == slices && c.frequency_mhz == mhz && u64::from(c.batch) == m["batch"].as_u64().unwrap()
        });
        PlacedItem { model, candidate: *found.unwrap(), rate_rps: problem.models[model].rate_rps, turn: None }
    };
    let gpu = |g: &Value| {
        let frequency_mhz = g["frequency_mhz"].as_u64().unwrap() as u32;
        let items = g["models"].as_array().unwrap().iter().map(|m| item(m, frequency_mhz)).collect();
        Placed { frequency_mhz, items }
    };
    case["gpus"].as_array().unwrap().iter().map(gpu).collect()
}

/// Which part of the planner the gain comes from.
fn why(theirs: &Plan, steps: Option<&Plan>, counts: Option<&Plan>, ours: &Plan) -> String {
    let below = |a: &Plan, b: &Plan| a.cost < b.cost * (1.0 - 1e-9);
    let mut parts = Vec::new();
    if steps.is_some_and(|s| below(s, theirs)) {
        parts.push("the steps alone, without the artifact's slips, do better");
    }
    match (steps, counts) {
        (Some(steps), Some(counts)) if below(counts, steps) => parts.push("every count of GPUs is tried"),
        _ => {}
    }
    if counts.is_none_or(|c| below(ours, c)) {
        parts.push("other orders, and forced merges that look at cost");
    }
    parts.join("; ")
}

fn figure(cost: f64) -> String {
    if cost < 1e4 { format!("{cost:.2}") } else { format!("{cost:.6e}") }
}

fn compare(name: &str, text: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name);
    if std::env::var_os("GPUMON_BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == text, "docs/{name} is out of date; GPUMON_BLESS=1 writes it anew");
}

/// Best average powers (W, with duty cycles) over the artifact's listed plans and its own at three and four GPUs,
/// at 25, 50, 75, 100 and 125 % load; from the reference's README.
#[test]
fn average_power_is_not_above_the_artifacts_best() {
    let Some(reference) = reference::reference() else { return };
    for (load_pct, theirs_w) in [(25, 259.6), (50, 379.3), (75, 541.6), (100, 682.9), (125, 769.2)] {
        let problem = reference.problem(Objective::AveragePower, f64::from(load_pct) / 100.0, None);
        let plan = place(&problem, "enertune").unwrap();
        eprintln!("{load_pct} %: {:.1} W on {} GPUs, artifact {theirs_w} W", plan.cost, plan.gpus.len());
        assert!(plan.cost <= theirs_w + 0.05, "{load_pct} %: {} W, artifact {theirs_w} W", plan.cost);
    }
}
