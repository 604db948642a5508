//! The optimum: equal to an enumeration that knows none of its tricks, never above any other system, and bounds that hold.

// Helpers of tests may panic as tests do.
#![allow(clippy::unwrap_used)]

mod reference;
mod synthetic;

use std::time::Duration;

use gpumon_core::geometry::SEVEN_SLICES;
use gpumon_core::profile::ProfileRow;
use gpumon_core::workload::{Sharing, Workload};
use gpumon_place::candidate::{Candidate, Share};
use gpumon_place::check::check;
use gpumon_place::cost::OBJECTIVES;
use gpumon_place::policy::{POLICIES, PlaceError};
use gpumon_place::{Ask, Objective, Problem, place};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// The least cost over every way to give each model a candidate and a GPU; infinite if there is none.
fn enumerated(problem: &Problem) -> f64 {
    let mut gpus: Vec<Vec<(usize, Candidate)>> = Vec::new();
    let mut least = f64::INFINITY;
    enumerate(problem, 0, &mut gpus, &mut least);
    least
}

fn enumerate(problem: &Problem, model: usize, gpus: &mut Vec<Vec<(usize, Candidate)>>, least: &mut f64) {
    let Some(demand) = problem.models.get(model) else {
        let of_gpu = |items: &Vec<(usize, Candidate)>| {
            let base_w = problem.base_w(items[0].1.frequency_mhz).unwrap();
            let load = |(m, c): &(usize, Candidate)| problem.models[*m].load(c, problem.models[*m].rate_rps);
            problem.cost.gpu(base_w, &items.iter().map(load).collect::<Vec<_>>())
        };
        *least = least.min(gpus.iter().map(of_gpu).sum());
        return;
    };
    for &candidate in &demand.feasible {
        let candidate = demand.candidates[candidate];
        for gpu in 0..gpus.len() {
            gpus[gpu].push((model, candidate));
            if is_sound(&gpus[gpu]) {
                enumerate(problem, model + 1, gpus, least);
            }
            gpus[gpu].pop();
        }
        if problem.gpus.is_none_or(|n| gpus.len() < n as usize) {
            gpus.push(vec![(model, candidate)]);
            enumerate(problem, model + 1, gpus, least);
            gpus.pop();
        }
    }
}

fn is_sound(items: &[(usize, Candidate)]) -> bool {
    let slices = |c: &Candidate| if let Share::Slices(n) = c.share { Some(n) } else { None };
    let percent = |c: &Candidate| if let Share::Percent(pct) = c.share { pct } else { 0.0 };
    let sizes: Vec<u8> = items.iter().filter_map(|(_, c)| slices(c)).collect();
    let one_clock = items.iter().all(|(_, c)| c.frequency_mhz == items[0].1.frequency_mhz);
    let percents: f64 = items.iter().map(|(_, c)| percent(c)).sum();
    one_clock && percents <= 100.0 + 1e-6 && SEVEN_SLICES.place(&sizes).is_some()
}

/// A problem of a few models with a few candidates each, at two clocks.
fn random(rng: &mut StdRng, sharing: Sharing) -> (Workload, Vec<ProfileRow>) {
    let models = rng.random_range(1..=6);
    let rows_each = if models > 4 { 3..=5 } else { 4..=9 };
    let mut text = format!(
        "[cluster]\ngpu = \"a100\"\nsharing = \"{}\"\n",
        if sharing == Sharing::Mig { "mig" } else { "mps" }
    );
    let mut rows = Vec::new();
    for model in 0..models {
        text += &format!("[[model]]\nname = \"m{model}\"\nlatency_slo_ms = 1e3\nrate_rps = 1.0\n");
        for batch in 1..=rng.random_range(rows_each.clone()) {
            let slices = [1, 1, 2, 2, 3, 3, 4, 7][rng.random_range(0..8)];
            let percent = [8.0, 12.5, 100.0 / 7.0, 25.0, 33.3, 40.0, 50.0, 100.0][rng.random_range(0..8)];
            let mig = sharing == Sharing::Mig;
            let share = if mig { f64::from(slices) / 7.0 } else { percent / 100.0 };
            rows.push(ProfileRow {
                mig_slices: mig.then_some(slices),
                latency: Some(rng.random_range(1.0..100.0)),
                throughput: Some(rng.random_range(1.0..10.0)),
                dynamic_power_draw: Some(rng.random_range(0.0..60.0)),
                ..ProfileRow::new(&format!("m{model}"), batch, share, [600, 1410][rng.random_range(0..2)])
            });
        }
    }
    (Workload::parse(&text).unwrap(), rows)
}

#[test]
fn two_hundred_random_problems_have_the_cost_of_an_enumeration() {
    let base = synthetic::base();
    let mut rng = StdRng::seed_from_u64(7);
    let (mut solved, mut too_few) = (0, 0);
    for round in 0..200 {
        let sharing = if round % 2 == 0 { Sharing::Mig } else { Sharing::Mps };
        let (workload, rows) = random(&mut rng, sharing);
        let objective = OBJECTIVES[rng.random_range(0..OBJECTIVES.len())];
        let gpus = rng.random_bool(0.4).then(|| rng.random_range(1..4));
        let problem = Problem::new(&Ask { gpus, ..Ask::new(&workload, &rows, &base, objective) }).unwrap();
        let least = enumerated(&problem);
        match place(&problem, "optimal") {
            Ok(plan) => {
                assert!((plan.cost / least - 1.0).abs() < 1e-9, "round {round}: {} {least}", plan.cost);
                assert_eq!(plan.total.proven, Some(true));
                assert!((plan.total.bound.unwrap() / least - 1.0).abs() < 1e-9);
                solved += 1;
            }
            Err(PlaceError::TooFewGpus { .. }) => {
                assert!(least.is_infinite(), "round {round}: {least}");
                too_few += 1;
            }
            Err(other) => panic!("round {round}: {other}"),
        }
    }
    eprintln!("{solved} solved, {too_few} on too few GPUs");
    assert!(solved > 150 && too_few > 0);
}

#[test]
fn eleven_models_are_proven_at_every_load_and_objective() {
    let Some(reference) = reference::reference() else { return };
    let mut slowest = Duration::ZERO;
    for load_pct in [25, 50, 75, 100, 125] {
        for &objective in OBJECTIVES {
            for gpus in [None, Some(5), Some(6)] {
                let problem = reference.problem(objective, f64::from(load_pct) / 100.0, gpus);
                let started = std::time::Instant::now();
                let plan = place(&problem, "optimal").unwrap();
                let took = started.elapsed();
                let name = format!("{objective} at {load_pct} % on {gpus:?} GPUs");
                eprintln!("{name}: {:.6e} on {} GPUs in {took:?}", plan.cost, plan.gpus.len());
                slowest = slowest.max(took);
                assert_eq!(plan.total.proven, Some(true), "{name}");
                for policy in POLICIES.iter().filter(|p| !p.splits()) {
                    if let Ok(other) = place(&problem, policy.name()) {
                        let other_name = policy.name();
                        assert!(plan.cost <= other.cost * (1.0 + 1e-9), "{name}: above {other_name}");
                    }
                }
            }
        }
    }
    eprintln!("the slowest took {slowest:?}");
}

/// Best average powers of the artifact's plans, W; see tests/golden.rs.
#[test]
fn average_power_is_not_above_the_artifacts_best() {
    let Some(reference) = reference::reference() else { return };
    for (load_pct, theirs_w) in [(25, 259.6), (50, 379.3), (75, 541.6), (100, 682.9), (125, 769.2)] {
        let problem = reference.problem(Objective::AveragePower, f64::from(load_pct) / 100.0, None);
        let plan = place(&problem, "optimal").unwrap();
        eprintln!("{load_pct} %: {:.1} W on {} GPUs, artifact {theirs_w} W", plan.cost, plan.gpus.len());
        assert!(plan.cost <= theirs_w, "{load_pct} %: {} W, artifact {theirs_w} W", plan.cost);
    }
}

#[test]
fn what_is_searched_for_is_sound_and_not_below_its_bound() {
    let base = synthetic::base();
    let (workload, rows) = synthetic::workload(22);
    for &objective in OBJECTIVES {
        for gpus in [None, Some(8)] {
            let time_limit = Duration::from_millis(300);
            let ask = Ask { gpus, time_limit, ..Ask::new(&workload, &rows, &base, objective) };
            let problem = Problem::new(&ask).unwrap();
            let found = place(&problem, "optimal").unwrap();
            assert_eq!(check(&problem, &found), []);
            let bound = found.total.bound.unwrap();
            eprintln!("{objective}, {gpus:?}: {:.2} % above", (found.cost / bound - 1.0) * 100.0);
            assert!(bound > 0.0 && bound <= found.cost * (1.0 + 1e-9), "{objective}: {bound} {}", found.cost);
        }
    }
}

/// 17 models are solved exactly; with no time at all the same problem is left to the rents and the search.
#[test]
fn a_bound_is_not_above_the_proven_optimum() {
    let base = synthetic::base();
    let (workload, rows) = synthetic::workload(17);
    for &objective in OBJECTIVES {
        for gpus in [None, Some(5)] {
            let ask = Ask { gpus, ..Ask::new(&workload, &rows, &base, objective) };
            let exact = place(&Problem::new(&ask).unwrap(), "optimal").unwrap();
            assert_eq!(exact.total.proven, Some(true));
            for ms in [0, 5, 10, 40] {
                let problem =
                    Problem::new(&Ask { time_limit: Duration::from_millis(ms), ..ask.clone() }).unwrap();
                let Ok(found) = place(&problem, "optimal") else { continue };
                let bound = found.total.bound.unwrap();
                eprintln!(
                    "{objective}, {gpus:?}, {ms} ms: {:?} {bound:.5e} {:.5e}",
                    found.total.proven, exact.cost
                );
                assert!(bound <= exact.cost * (1.0 + 1e-9), "{objective}: {bound} {}", exact.cost);
                assert!(
                    found.cost >= exact.cost * (1.0 - 1e-9),
                    "{objective}: {} {}",
                    found.cost,
                    exact.cost
                );
            }
        }
    }
}
