//! What every registered system must keep, and what the checker must see.

// Helpers of tests may panic as tests do.
#![allow(clippy::unwrap_used)]

mod reference;
mod synthetic;

use std::sync::Mutex;
use std::time::Duration;

use gpumon_core::workload::{Arrivals, Sharing, Unused};
use gpumon_place::check::check;
use gpumon_place::cost::OBJECTIVES;
use gpumon_place::plan::{Input, PlanError};
use gpumon_place::policy::{POLICIES, PlaceError, Policy, Solution, solve};
use gpumon_place::problem::ProblemError;
use gpumon_place::{Ask, Objective, Plan, Problem, place};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

fn made_up(objective: Objective, gpus: Option<u32>) -> Problem {
    let (workload, rows) = synthetic::workload(7);
    let base = synthetic::base();
    Problem::new(&Ask { gpus, ..Ask::new(&workload, &rows, &base, objective) }).unwrap()
}

#[test]
fn every_system_and_objective_gives_a_sound_plan_twice_the_same() {
    for policy in POLICIES {
        assert!(!policy.about().is_empty());
        for &objective in OBJECTIVES {
            let problem = made_up(objective, None);
            let plan = place(&problem, policy.name()).unwrap();
            assert_eq!(check(&problem, &plan), []);
            assert_eq!(plan, place(&problem, policy.name()).unwrap());
            assert_eq!((plan.system.as_str(), plan.objective.as_str()), (policy.name(), objective.name()));
            let total = &plan.total;
            assert!(total.average_power_w <= total.power_w && total.energy_per_request_j > 0.0);
        }
    }
}

#[test]
fn a_bound_is_kept_or_the_nearest_is_named() {
    for policy in POLICIES {
        let problem = made_up(Objective::Power, Some(1));
        let error = place(&problem, policy.name()).unwrap_err();
        let PlaceError::TooFewGpus { nearest, rates_that_fit, .. } = error else { panic!("{error}") };
        assert!(error.to_string().contains("the number of GPUs binds"), "{error}");
        let bound = made_up(Objective::Power, Some(nearest as u32));
        assert_eq!(place(&bound, policy.name()).unwrap().gpus.len(), nearest);
        if let Some(part) = rates_that_fit {
            let lower = problem.with_rates_times(part);
            assert_eq!(place(&lower, policy.name()).unwrap().gpus.len(), 1);
        }
    }
    assert!(place(&made_up(Objective::Power, None), "best").unwrap_err().to_string().contains("enertune"));
}

/// Fails, and notes the time that it was given.
#[derive(Default)]
struct Slow {
    takes: Duration,
    given: Mutex<Vec<Duration>>,
}

impl Policy for Slow {
    fn name(&self) -> &'static str {
        "slow"
    }

    fn about(&self) -> &'static str {
        "finds nothing"
    }

    fn solve(&self, problem: &Problem) -> Result<Solution, PlaceError> {
        self.given.lock().unwrap().push(problem.time_limit);
        std::thread::sleep(self.takes);
        let (system, hardest, rates_that_fit) = ("slow", String::new(), None);
        Err(PlaceError::TooFewGpus { system, gpus: 1, nearest: 2, hardest, rates_that_fit })
    }
}

#[test]
fn lower_rates_are_tried_within_one_time_limit() {
    let mut problem = made_up(Objective::Power, Some(1));
    let quick = Slow::default();
    assert!(solve(&problem, &quick).is_err());
    let given = quick.given.lock().unwrap();
    assert_eq!(given[0], problem.time_limit);
    assert!(given.len() > 2 && given[1] <= problem.time_limit / 6, "{given:?}");
    assert!(given.iter().all(|limit| *limit <= problem.time_limit), "{given:?}");
    problem.time_limit = Duration::from_millis(1);
    let slow = Slow { takes: Duration::from_millis(5), ..Slow::default() };
    assert!(solve(&problem, &slow).is_err());
    assert_eq!(slow.given.lock().unwrap().len(), 1, "the time was up");
}

#[test]
fn requests_that_wait_are_within_their_slo_and_unused_gpus_are_paid_for() {
    let (mut workload, rows) = synthetic::workload(5);
    let base = synthetic::base();
    workload.cluster.arrivals = Some(Arrivals::Poisson);
    workload.cluster.unused = Some(Unused::Idle);
    workload.models.iter_mut().for_each(|model| model.latency_slo_ms *= 3.0);
    let ask = Ask::new(&workload, &rows, &base, Objective::AveragePower);
    assert_eq!(Problem::new(&ask).unwrap_err(), ProblemError::UnusedOfFree);
    let problem = Problem::new(&Ask { gpus: Some(9), ..ask.clone() }).unwrap();
    let mut planned = 0;
    for policy in POLICIES {
        let plan = match place(&problem, policy.name()) {
            Ok(plan) => plan,
            Err(error) => {
                assert!(policy.splits() && error.to_string().contains("waiting"), "{error}");
                continue;
            }
        };
        planned += 1;
        let partitions = || plan.gpus.iter().flat_map(|g| &g.partitions);
        assert!(partitions().all(|p| p.request_latency_ms.unwrap() > p.latency_ms));
        assert!(partitions().all(|p| p.request_latency_ms.unwrap() <= p.latency_slo_ms * (1.0 + 1e-9)));
        // 42 W each: the static power at the lowest clock and the fan.
        let unused_w = (9 - plan.gpus.len()) as f64 * problem.cost.unused_w;
        assert!((problem.cost.unused_w - 42.011).abs() < 1e-3, "{}", problem.cost.unused_w);
        assert_eq!(plan.total.unused_w, Some(unused_w));
        let working_w: f64 = plan.gpus.iter().map(|g| g.average_power_w).sum();
        assert!((plan.total.average_power_w - working_w - unused_w).abs() < 1e-9);
        if let Some(bound) = plan.total.bound {
            assert!(bound <= plan.cost * (1.0 + 1e-9) && bound >= plan.cost * 0.5, "{bound} {}", plan.cost);
        }
        assert!((plan.cost - plan.total.average_power_w).abs() < 1e-6, "{} {}", plan.cost, policy.name());
    }
    assert!(planned >= 3, "{planned}");
    workload.models[0].latency_slo_ms =
        rows.iter().filter(|r| r.model == "m0").filter_map(|r| r.latency).fold(f64::INFINITY, f64::min)
            * 1.01;
    workload.models[0].rate_rps = 1.0;
    let error = Problem::new(&Ask { gpus: Some(9), ..Ask::new(&workload, &rows, &base, Objective::Power) });
    let text = error.unwrap_err().to_string();
    assert!(text.starts_with("`m0`: waiting binds: at 1 items/s"), "{text}");
}

#[test]
fn what_shares_costs_no_more_than_what_does_not() {
    for &objective in OBJECTIVES {
        let problem = made_up(objective, None);
        let alone = place(&problem, "dedicated").unwrap();
        assert_eq!(alone.gpus.len(), problem.models.len());
        let top = problem.clocks.last().unwrap().0;
        assert!(alone.gpus.iter().any(|g| g.frequency_mhz == top));
        assert!(place(&problem, "enertune").unwrap().cost <= alone.cost, "{objective}");
    }
}

#[test]
fn a_hundred_models_are_placed() {
    let (workload, rows) = synthetic::workload(100);
    let base = synthetic::base();
    let problem = Problem::new(&Ask::new(&workload, &rows, &base, Objective::Energy)).unwrap();
    let started = std::time::Instant::now();
    let plan = place(&problem, "enertune").unwrap();
    eprintln!("{} GPUs in {:?}", plan.gpus.len(), started.elapsed());
}

#[test]
fn systems_written_for_mig_slices_take_shares_of_mps() {
    let (mut workload, mut rows) = synthetic::workload(6);
    workload.cluster.sharing = Some(Sharing::Mps);
    for row in &mut rows {
        // As profiles have them: 14, 29, 43, 57 and 100 %.
        row.share = (row.share * 100.0).round() / 100.0;
        row.mig_slices = None;
    }
    let base = synthetic::base();
    for system in ["enertune", "parvagpu"] {
        let split = system == "parvagpu";
        let ask = Ask { split, ..Ask::new(&workload, &rows, &base, Objective::AveragePower) };
        let problem = Problem::new(&ask).unwrap();
        let plan = place(&problem, system).unwrap();
        let shares =
            |gpu: &gpumon_place::plan::Gpu| gpu.partitions.iter().filter_map(|p| p.share_pct).sum::<f64>();
        assert!(plan.gpus.iter().all(|gpu| shares(gpu) <= 100.0 + 1e-6), "{system}");
        let dedicated =
            place(&Problem { models: problem.models.clone(), ..problem.clone() }, "dedicated").unwrap();
        assert!(plan.gpus.len() < dedicated.gpus.len(), "{system}");
        // Too few GPUs are told in shares, not in slices.
        let few = Problem { gpus: Some(1), ..problem };
        let error = place(&few, system).unwrap_err().to_string();
        assert!(error.contains('%') && !error.contains("slices"), "{error}");
    }
}

#[test]
fn fgd_fills_gpus_with_shares_of_both_kinds() {
    let (mut workload, mut rows) = synthetic::workload(6);
    let base = synthetic::base();
    for sharing in [Sharing::Mig, Sharing::Mps] {
        if sharing == Sharing::Mps {
            rows.iter_mut().for_each(|r| r.mig_slices = None);
        }
        workload.cluster.sharing = Some(sharing);
        let problem = Problem::new(&Ask::new(&workload, &rows, &base, Objective::Power)).unwrap();
        let plan = place(&problem, "fgd").unwrap();
        let top = problem.clocks.last().unwrap().0;
        let share = |p: &gpumon_place::plan::Partition| match (p.slices, p.share_pct) {
            (Some(slices), _) => f64::from(slices) / 7.0,
            (None, pct) => pct.unwrap() / 100.0,
        };
        let asked: f64 = plan.gpus.iter().flat_map(|g| &g.partitions).map(share).sum();
        eprintln!("{sharing:?}: {asked:.3} GPUs asked for, {} taken", plan.gpus.len());
        assert!(plan.gpus.iter().all(|g| g.frequency_mhz == top));
        assert!(plan.gpus.len() < 6 && plan.gpus.len() as f64 >= asked - 1e-6);
    }
}

#[test]
fn rates_above_any_one_instance_are_divided_or_refused() {
    let (mut workload, rows) = synthetic::workload(3);
    workload.models.iter_mut().for_each(|model| model.rate_rps *= 20.0);
    let base = synthetic::base();
    let ask = Ask::new(&workload, &rows, &base, Objective::Power);
    assert!(matches!(Problem::new(&ask), Err(ProblemError::Infeasible(_))));
    let problem = Problem::new(&Ask { split: true, ..ask }).unwrap();
    for policy in POLICIES {
        match place(&problem, policy.name()) {
            Ok(plan) => assert!(policy.splits() && check(&problem, &plan).is_empty()),
            Err(PlaceError::NoConfiguration { why, .. }) => {
                assert!(!policy.splits() && why.contains("`m0`"), "{why}");
            }
            Err(other) => panic!("{}: {other}", policy.name()),
        }
    }
}

#[test]
fn parvagpu_names_the_model_whose_slo_leaves_no_time_to_wait() {
    let (mut workload, rows) = synthetic::workload(2);
    let of = rows.iter().filter(|r| r.model == "m1").filter_map(|r| r.latency);
    workload.models[1].latency_slo_ms = of.fold(f64::INFINITY, f64::min) * 2.0;
    let base = synthetic::base();
    let ask = Ask { split: true, ..Ask::new(&workload, &rows, &base, Objective::Power) };
    let error = place(&Problem::new(&ask).unwrap(), "parvagpu").unwrap_err().to_string();
    assert!(error.contains("`m1`: a batch must take less than 45 % of its SLO"), "{error}");
}

#[test]
fn the_whole_gpu_is_given_only_where_nothing_less_serves() {
    let (mut workload, rows) = synthetic::workload(1);
    let most = |slices: i32| {
        let of = rows.iter().filter(|r| r.mig_slices == Some(slices));
        of.filter_map(|r| r.throughput).fold(0.0, f64::max)
    };
    workload.models[0].latency_slo_ms = 1e6;
    workload.models[0].rate_rps = (most(4) + most(7)) / 2.0;
    let base = synthetic::base();
    let problem = Problem::new(&Ask::new(&workload, &rows, &base, Objective::Power)).unwrap();
    assert_eq!(place(&problem, "enertune").unwrap().gpus[0].partitions[0].slices, Some(7));
}

#[test]
fn the_checker_sees_each_kind_of_tampering() {
    let problem = made_up(Objective::Energy, None);
    let sound = place(&problem, "enertune").unwrap();
    let shared = sound.gpus.iter().position(|g| g.partitions.len() > 1).unwrap();
    type Tamper = fn(&mut Plan, usize);
    let cases: &[(Tamper, &str)] = &[
        (|p, g| p.gpus[g].frequency_mhz = 211, "211 MHz is no clock"),
        (|p, g| p.gpus[g].base_w += 1.0, "base_w is"),
        (|p, g| p.gpus[g].power_w += 1.0, "power_w is"),
        (|p, g| p.gpus[g].cost *= 0.9, "its models cost"),
        (|p, _| p.cost *= 0.9, "cost is"),
        (|p, _| p.total.power_w *= 0.9, "total power_w is"),
        (|p, _| p.total.gpus_used += 1, "gpus_used is"),
        (|p, g| p.gpus[g].partitions[0].slices = Some(5), "a size that does not exist"),
        (|p, g| p.gpus[g].partitions[0].start_slot = Some(7), "cannot stand so"),
        (|p, g| p.gpus[g].partitions[0].start_slot = p.gpus[g].partitions[1].start_slot, "cannot stand so"),
        (|p, g| p.gpus[g].partitions[0].start_slot = None, "has no start_slot"),
        (|p, g| p.gpus[g].partitions[0].slices = None, "has no slices"),
        (|p, g| p.gpus[g].partitions[0].batch = 3, "is not in the profile"),
        (|p, g| p.gpus[g].partitions[0].dynamic_w += 1.0, "dynamic_w is"),
        (|p, g| p.gpus[g].partitions[0].latency_ms = 1e9, "above its SLO"),
        (|p, g| p.gpus[g].partitions[0].latency_ms = f64::NAN, "above its SLO"),
        (|p, g| p.gpus[g].partitions[0].throughput_rps = 0.0, "below its rate"),
        (|p, g| p.gpus[g].partitions[0].rate_rps = f64::NAN, "rate_rps is NaN"),
        (|p, g| p.gpus[g].partitions[0].rate_rps *= 0.5, "is served in part"),
        (|p, g| p.gpus[g].partitions[0].model = "x".into(), "not a model of the workload"),
        (|p, g| drop(p.gpus[g].partitions.remove(0)), "is not served"),
        (|p, g| p.gpus[g].partitions.clear(), "nothing runs on it"),
        (
            |p, g| {
                let twice = p.gpus[g].clone();
                p.gpus.push(twice);
            },
            "served more than once",
        ),
    ];
    for (tamper, says) in cases {
        let mut plan = sound.clone();
        tamper(&mut plan, shared);
        let found: Vec<String> = check(&problem, &plan).iter().map(ToString::to_string).collect();
        assert!(found.iter().any(|v| v.contains(says)), "{says}: {found:?}");
    }
    let bound = made_up(Objective::Energy, Some(1));
    assert!(check(&bound, &sound).iter().any(|v| v.what.contains("but there are 1")));
}

#[test]
fn plan_files_read_back_and_newer_ones_are_refused() {
    let mut plan = place(&made_up(Objective::Power, None), "enertune").unwrap();
    plan.inputs.push(Input::new("abc", b"abc"));
    assert!(plan.inputs[0].sha256.starts_with("ba7816bf8f01cfea"));
    let text = plan.to_json().unwrap();
    assert_eq!(Plan::parse(&text).unwrap(), plan);
    assert!(!text.contains("share_pct") && !text.contains("proven") && text.contains("\"start_slot\""));
    let newer = text.replace("\"schema\": 1", "\"schema\": 2");
    let error = Plan::parse(&newer).unwrap_err();
    assert!(matches!(error, PlanError::Newer { found: 2, .. }), "{error}");
    assert!(matches!(Plan::parse("{}"), Err(PlanError::Shape(_))));
    let unknown = text.replacen("\"schema\"", "\"added_later\": 3, \"schema\"", 1);
    assert_eq!(Plan::parse(&unknown).unwrap(), plan, "keys may be added freely");
}

#[test]
fn a_thousand_random_workloads_have_a_sound_plan_or_a_named_reason() {
    let (made_up, made_up_rows) = synthetic::workload(9);
    let made_up_base = synthetic::base();
    let reference = reference::reference();
    let (base_workload, rows, base) = match &reference {
        Some(r) => (&r.workload, r.rows.as_slice(), &r.base),
        None => (&made_up, made_up_rows.as_slice(), &made_up_base),
    };
    let mut rng = StdRng::seed_from_u64(20260);
    let (mut planned, mut infeasible, mut too_few) = (0, 0, 0);
    for _ in 0..1000 {
        let mut workload = base_workload.clone();
        let keep = rng.random_range(1..=workload.models.len());
        while workload.models.len() > keep {
            workload.models.remove(rng.random_range(0..workload.models.len()));
        }
        for model in &mut workload.models {
            model.rate_rps *= rng.random_range(0.05..1.6);
            model.latency_slo_ms *= rng.random_range(0.05..2.0);
        }
        let objective = OBJECTIVES[rng.random_range(0..OBJECTIVES.len())];
        let gpus = rng.random_bool(0.5).then(|| rng.random_range(1..7));
        let ask = Ask { gpus, ..Ask::new(&workload, rows, base, objective) };
        match Problem::new(&ask) {
            Ok(problem) => match place(&problem, "enertune") {
                Ok(plan) => {
                    for policy in POLICIES {
                        match place(&problem, policy.name()) {
                            Ok(plan) => assert_eq!(check(&problem, &plan), []),
                            Err(PlaceError::TooFewGpus { .. } | PlaceError::NoConfiguration { .. }) => {}
                            Err(other) => panic!("{other}"),
                        }
                    }
                    assert_eq!(check(&problem, &plan), []);
                    planned += 1;
                }
                Err(PlaceError::TooFewGpus { nearest, hardest, gpus, .. }) => {
                    assert!(nearest > gpus as usize && hardest.contains('`'));
                    too_few += 1;
                }
                Err(other) => panic!("{other}"),
            },
            Err(ProblemError::Infeasible(list)) => {
                for one in list {
                    let model = workload.models.iter().find(|m| m.name == one.model).unwrap();
                    let serves = |r: &&gpumon_core::profile::ProfileRow| {
                        r.model == one.model
                            && r.latency.is_some_and(|l| l <= model.latency_slo_ms)
                            && r.throughput.is_some_and(|t| t >= model.rate_rps)
                    };
                    assert!(!rows.iter().any(|r| serves(&r)), "{one}");
                    assert!(one.to_string().contains("bind"), "{one}");
                }
                infeasible += 1;
            }
            Err(other) => panic!("{other}"),
        }
    }
    eprintln!("{planned} planned, {infeasible} infeasible, {too_few} on too few GPUs");
    assert!(planned > 100 && infeasible > 0, "{planned} {infeasible}");
}
