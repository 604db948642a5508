//! GPUlets on the cases that its published scheduler was run on, on random problems, and where memory or neighbours bind.

// Helpers of tests may panic as tests do.
#![allow(clippy::unwrap_used)]

mod reference;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gpumon_core::profile::ProfileRow;
use gpumon_core::workload::{Sharing, Workload};
use gpumon_place::base::{BaseParts, BasePower};
use gpumon_place::candidate::{Candidate, Share};
use gpumon_place::check::check;
use gpumon_place::emit::EmitError;
use gpumon_place::plan::Partition;
use gpumon_place::policy::PlaceError;
use gpumon_place::policy::gpulets::ONE_BY_ONE;
use gpumon_place::slowdown::{Runs, Slowdown};
use gpumon_place::{Ask, Objective, Plan, Problem, place};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
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

/// Some models with random times, rates and SLOs; for some also memory, and neighbours that disturb each other.
fn random(rng: &mut StdRng) -> Problem {
    let mig = rng.random_bool(0.5);
    let mut text = format!("[cluster]\ngpu = \"a100\"\nsharing = \"{}\"\n", if mig { "mig" } else { "mps" });
    let mut rows = Vec::new();
    let weighs = rng.random_bool(0.5);
    let few = rng.random_bool(0.3);
    let count = rng.random_range(1..15);
    for name in (0..count).map(|i| format!("m{i}")) {
        let (work_ms, knee) = (rng.random_range(0.3..6.0), rng.random_range(0.1..0.9));
        let slo_ms = work_ms * rng.random_range(4.0..60.0);
        text += &model(&name, slo_ms, 10f64.powf(rng.random_range(0.0..3.2)) / work_ms);
        let gb = rng.random_range(0.5..30.0);
        let shares = [1, 2, 3, 4, 7].map(|n| (Some(n), f64::from(n) / 7.0));
        let percents = [0.2, 0.4, 0.5, 0.6, 0.8, 1.0].map(|share| (None, share));
        let batches: &[i32] = if few { &[1, 16] } else { &[1, 2, 3, 4, 6, 8, 12, 16, 24, 32] };
        for &(slices, share) in if mig { shares.as_slice() } else { percents.as_slice() } {
            for &batch in batches {
                let ms = work_ms * (0.6 + f64::from(batch) * 0.4 / f64::min(share, knee));
                let bytes = weighs.then_some((gb * 1e9 * (1.0 + f64::from(batch) / 64.0)) as i64);
                rows.push(ProfileRow {
                    mig_slices: slices,
                    mem_bytes: bytes,
                    ..row(&name, batch, share, ms)
                });
            }
        }
    }
    let workload = Workload::parse(&text).unwrap();
    let base = base();
    let slowdown = rng.random_bool(0.5).then(|| Arc::new(Linear(rng.random_range(0.0..0.6))) as _);
    let ask = Ask { split: true, slowdown, ..Ask::new(&workload, &rows, &base, Objective::AveragePower) };
    // A model that nothing serves is drawn again.
    Problem::new(&ask).unwrap_or_else(|_| random(rng))
}

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

fn candidate<'p>(problem: &'p Problem, p: &Partition) -> &'p Candidate {
    let demand = problem.models.iter().find(|m| m.name == p.model).unwrap();
    let is_this = |c: &&Candidate| {
        let same_share = match (c.share, p.share().unwrap()) {
            (Share::Percent(a), Share::Percent(b)) => (a - b).abs() < 1e-6,
            (a, b) => a == b,
        };
        same_share && c.batch == p.batch
    };
    demand.candidates.iter().find(is_this).unwrap()
}

/// Memory of each GPU or instance, and every partition beside its slowest neighbour.
fn keeps_memory_and_neighbours(problem: &Problem, plan: &Plan) {
    let bytes = |p: &Partition| candidate(problem, p).uses.mem_bytes.unwrap_or(0.0);
    for gpu in &plan.gpus {
        let all: f64 = gpu.partitions.iter().map(bytes).sum();
        assert!(plan.sharing == Sharing::Mig || all <= 80e9);
        for p in &gpu.partitions {
            let inside: f64 = gpu.partitions.iter().filter(|q| own_of(p, q)).map(bytes).sum();
            let slots = [0.0, 1.0, 2.0, 4.0, 4.0, 0.0, 0.0, 8.0];
            assert!(p.slices.is_none_or(|n| inside <= 10e9 * slots[usize::from(n)]), "{inside} {p:?}");
            let Some(slowdown) = &problem.slowdown else { continue };
            let runs = |p: &'_ Partition| (p.model.clone(), *candidate(problem, p));
            let me = runs(p);
            let factor = |q: &Partition| {
                let other = runs(q);
                let [own, neighbour] = [&me, &other].map(|(model, candidate)| Runs { model, candidate });
                slowdown.factor(own, neighbour)
            };
            let slowest = |q: &Partition| {
                gpu.partitions.iter().filter(|o| !own_of(q, o)).map(&factor).fold(1.0, f64::max)
            };
            let time_ms = p.latency_ms * slowest(p);
            match p.turn {
                None => {
                    assert!(2.0 * time_ms <= p.latency_slo_ms * (1.0 + 1e-9), "{time_ms} {p:?}");
                    let able_rps = 1e3 * f64::from(p.batch) / time_ms;
                    assert!(able_rps >= p.rate_rps * (1.0 - 1e-6), "{able_rps} {p:?}");
                }
                Some(turn) => {
                    assert!(turn.round_ms + time_ms <= p.latency_slo_ms * (1.0 + 1e-9), "{time_ms} {p:?}");
                }
            }
        }
    }
}

fn own_of(p: &Partition, q: &Partition) -> bool {
    p.turn.is_some() && p.turn == q.turn || std::ptr::eq(p, q)
}

#[test]
fn random_problems_keep_all_rules_and_no_smaller_count_serves_them() {
    let mut rng = StdRng::seed_from_u64(2022);
    let (mut planned, mut none, mut turns, mut gpus) = (0, 0, 0, 0);
    for _ in 0..1500 {
        let problem = random(&mut rng);
        let plan = match place(&problem, "gpulets") {
            Ok(plan) => plan,
            Err(PlaceError::NoConfiguration { why, .. }) => {
                assert!(why.contains("at most half of its SLO"), "{why}");
                none += 1;
                continue;
            }
            Err(other) => panic!("{other}"),
        };
        planned += 1;
        assert_eq!(check(&problem, &plan), []);
        assert_eq!(plan, place(&problem, "gpulets").unwrap());
        keeps_the_rules(&plan);
        keeps_memory_and_neighbours(&problem, &plan);
        turns += usize::from(plan.gpus.iter().flat_map(|g| &g.partitions).any(|p| p.turn.is_some()));
        gpus += plan.gpus.len();
        let count = plan.gpus.len() as u32;
        assert_eq!(place(&Problem { gpus: Some(count), ..problem.clone() }, "gpulets").unwrap(), plan);
        if count > 1 {
            let error = place(&Problem { gpus: Some(count - 1), ..problem.clone() }, "gpulets").unwrap_err();
            let PlaceError::TooFewGpus { nearest, hardest, .. } = &error else { panic!("{error}") };
            assert!(*nearest == count as usize && hardest.contains('`'), "{error}");
        }
    }
    eprintln!("{planned} planned on {gpus} GPUs, {none} not; turns in {turns}");
    assert!(planned > 700 && turns > 100, "{planned} {turns}");
}

/// GPU, model, share in percent, batch, rate.
fn partitions(plan: &Plan) -> Vec<(usize, &str, f64, u32, f64)> {
    plan.gpus
        .iter()
        .enumerate()
        .flat_map(|(gpu, g)| {
            let round = |rate: f64| (rate * 10.0).round() / 10.0;
            g.partitions.iter().map(move |p| {
                (gpu, p.model.as_str(), p.share_pct.unwrap().round(), p.batch, round(p.rate_rps))
            })
        })
        .collect()
}

#[test]
fn a_remainder_goes_to_a_left_over_and_where_memory_is_short_into_one_gpulet() {
    // 100 a second on 20 %, which is p_eff while the whole GPU is not profiled or gains less a point.
    let of = |gb: f64| {
        let row = |(share, ms)| ProfileRow { mem_bytes: Some((gb * 1e9) as i64), ..row("m", 1, share, ms) };
        let rows: Vec<ProfileRow> = [(0.2, 10.0), (0.8, 9.8), (1.0, 9.6)].map(row).to_vec();
        problem(&(MPS.to_owned() + &model("m", 20.0, 103.0)), &rows)
    };
    let plan = place(&of(40.0), "gpulets").unwrap();
    assert_eq!(partitions(&plan), [(0, "m", 20.0, 1, 100.0), (0, "m", 80.0, 1, 3.0)]);
    // Two of 45 GB are more than 80, so all of it runs on the whole GPU.
    let plan = place(&of(45.0), "gpulets").unwrap();
    assert_eq!(partitions(&plan), [(0, "m", 100.0, 1, 103.0)]);
}

#[test]
fn a_remainder_within_the_slack_is_served_too() {
    // 100 a second in a saturated gpulet of 20 %, and 0.5 more.
    let rows = [(0.2, 10.0), (0.8, 9.8)].map(|(share, ms)| row("m", 1, share, ms));
    let text = MPS.to_owned() + &model("m", 20.0, 100.5);
    let plan = place(&problem(&text, &rows), "gpulets").unwrap();
    assert_eq!(partitions(&plan), [(0, "m", 20.0, 1, 100.0), (0, "m", 80.0, 1, 0.5)]);
}

/// Models that each take 5 ms for one request on half a GPU, and want 20 a second within 60 ms.
fn by_turns(count: usize, sharing: &str) -> Problem {
    let names: Vec<String> = ["a", "b", "c", "d", "e", "f", "g"].map(String::from)[..count].to_vec();
    let text = names.iter().fold(MPS.replace("mps", sharing), |text, name| text + &model(name, 60.0, 20.0));
    let rows: Vec<ProfileRow> = names
        .iter()
        .flat_map(|name| {
            if sharing == "mps" {
                vec![row(name, 1, 0.5, 5.0)]
            } else {
                let of = |slices: i32| ProfileRow {
                    mig_slices: Some(slices),
                    ..row(name, 1, f64::from(slices) / 7.0, 5.0)
                };
                vec![of(3), of(4)]
            }
        })
        .collect();
    problem(&text, &rows)
}

#[test]
fn six_models_take_turns_in_two_gpulets_of_a_gpu() {
    for sharing in ["mps", "mig"] {
        let gpus = |count| place(&by_turns(count, sharing), "gpulets").unwrap();
        let two = gpus(2);
        assert!(two.gpus.len() == 1 && two.gpus[0].partitions.iter().all(|p| p.turn.is_none()));
        let six = gpus(6);
        assert_eq!(six.gpus.len(), 1);
        // 50 ms would fill each batch of 1; 55 ms are within the SLO.
        assert!(six.gpus[0].partitions.iter().all(|p| p.turn.unwrap().round_ms == 50.0), "{six:?}");
        let in_first = |p: &&Partition| p.turn.unwrap().partition == 0;
        assert_eq!(six.gpus[0].partitions.iter().filter(in_first).count(), 3);
        // Each share: 15 ms of its models' power, which is theirs 20 × 5 ms a second each.
        let dynamic_w = six.gpus[0].partitions[0].dynamic_w + six.gpus[0].partitions[5].dynamic_w;
        assert!((six.gpus[0].power_w - 68.0 - dynamic_w).abs() < 1e-9);
        assert!((six.gpus[0].average_power_w - 68.0 - 0.3 * dynamic_w).abs() < 1e-9);
        assert_eq!(gpus(7).gpus.len(), 2);
        assert_eq!(Plan::parse(&six.to_json().unwrap()).unwrap(), six);
    }
}

#[test]
fn the_checker_sees_what_is_wrong_with_turns() {
    let problem = by_turns(6, "mig");
    let sound = place(&problem, "gpulets").unwrap();
    type Tamper = fn(&mut [Partition]);
    let cases: &[(Tamper, &str)] = &[
        (|p| p[0].turn = None, "cannot stand so"),
        (|p| p[0].start_slot = Some(5), "differ in its size or start_slot"),
        (|p| p[0].slices = Some(2), "differ in its size or start_slot"),
        (|p| p[0].turn.as_mut().unwrap().round_ms = 40.0, "is not one time above 0"),
        (
            |p| p[..3].iter_mut().for_each(|p| p.turn.as_mut().unwrap().round_ms = -1.0),
            "is not one time above 0",
        ),
        (
            |p| p[..3].iter_mut().for_each(|p| p.turn.as_mut().unwrap().round_ms = 14.0),
            "above their round of 14 ms",
        ),
        (
            |p| p[..3].iter_mut().for_each(|p| p.turn.as_mut().unwrap().round_ms = 51.0),
            "is below its rate of 20",
        ),
        (
            |p| p[..3].iter_mut().for_each(|p| p.turn.as_mut().unwrap().round_ms = 56.0),
            "above its SLO of 60 ms",
        ),
        (|p| p[0].processes = 2, "takes turns with 2 processes"),
    ];
    for (tamper, says) in cases {
        let mut plan = sound.clone();
        tamper(&mut plan.gpus[0].partitions);
        let found: Vec<String> = check(&problem, &plan).iter().map(ToString::to_string).collect();
        assert!(found.iter().any(|v| v.contains(says)), "{says}: {found:?}");
    }
}

#[test]
fn run_scripts_refuse_turns() {
    let plan = place(&by_turns(6, "mps"), "gpulets").unwrap();
    let text = ["a", "b", "c", "d", "e", "f"]
        .iter()
        .fold(MPS.to_owned(), |text, name| text + &model(name, 60.0, 20.0));
    let workload = Workload::parse(&text).unwrap();
    let error = gpumon_place::emit::sh::scripts(&plan, &workload).unwrap_err();
    assert!(matches!(error, EmitError::Turns(_)), "{error}");
}

#[test]
fn what_a_neighbour_takes_comes_back_to_the_model() {
    let ask = |by: f64, slo_ms: f64| {
        let rows: Vec<ProfileRow> =
            ["a", "b"].iter().flat_map(|name| [row(name, 1, 0.5, 8.0), row(name, 2, 0.5, 10.0)]).collect();
        let text = MPS.to_owned() + &model("a", slo_ms, 200.0) + &model("b", slo_ms, 210.0);
        let alone = problem(&text, &rows);
        place(&Problem { slowdown: Some(Arc::new(Linear(by))), ..alone }, "gpulets").unwrap()
    };
    // 50 % beside 50 % is 1 + by / 2 times as slow. Nobody is: 200 beside 200, and 10 more.
    let expected = [(0, "a", 50.0, 2, 200.0), (0, "b", 50.0, 2, 200.0), (1, "b", 50.0, 1, 10.0)];
    assert_eq!(partitions(&ask(0.0, 22.0)), expected);
    // 1.05 times as slow is within the SLO: each keeps its batch, serves 190.5, and has the rest elsewhere.
    let plan = ask(0.1, 22.0);
    let expected =
        [(0, "a", 50.0, 2, 190.5), (0, "b", 50.0, 2, 190.5), (1, "b", 50.0, 1, 19.5), (1, "a", 50.0, 1, 9.5)];
    assert_eq!(partitions(&plan), expected);
    // Above the SLO batches become smaller where no GPU is free: 119 a second at 8.4 ms.
    let plan = ask(0.1, 20.0);
    let expected = [
        (0, "a", 50.0, 1, 119.0),
        (0, "b", 50.0, 1, 91.0),
        (1, "b", 50.0, 1, 119.0),
        (1, "a", 50.0, 1, 81.0),
    ];
    assert_eq!(partitions(&plan), expected);
}

#[test]
fn more_gpus_than_are_tried_one_by_one_are_found_too() {
    // A saturated gpulet of 50 % serves 100 a second: 300 of them for two models.
    let rows: Vec<ProfileRow> = ["a", "b"].iter().map(|name| row(name, 1, 0.5, 10.0)).collect();
    let text = MPS.to_owned() + &model("a", 20.0, 15_000.0) + &model("b", 20.0, 14_950.0);
    let plan = place(&problem(&text, &rows), "gpulets").unwrap();
    assert_eq!(plan.gpus.len(), 150);
    assert!(plan.gpus.len() > ONE_BY_ONE);
}
