//! Fallbacks, turns, memory and neighbours on problems whose answers are known.

use std::sync::Arc;

use gpumon_core::profile::ProfileRow;
use gpumon_core::workload::{Arrivals, Workload};
use gpumon_place::check::check;
use gpumon_place::emit::EmitError;
use gpumon_place::plan::Partition;
use gpumon_place::policy::gpulets::ONE_BY_ONE;
use gpumon_place::queue::Queueing;
use gpumon_place::{Plan, Problem, place};

use super::{Linear, MPS, model, problem, row};

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
fn where_requests_wait_the_checker_wants_room_in_the_rounds() {
    let rows: Vec<ProfileRow> = ["a", "b", "c"].map(|name| row(name, 1, 0.5, 5.0)).to_vec();
    let text = ["a", "b", "c"].iter().fold(MPS.to_owned(), |text, name| text + &model(name, 600.0, 4.0));
    let problem = problem(&text, &rows);
    let mut plan = place(&problem, "gpulets").unwrap();
    let waiting =
        Problem { queueing: Some(Queueing { arrivals: Arrivals::Poisson, percentile: 99.0 }), ..problem };
    let found = |plan: &Plan| -> Vec<String> {
        check(&waiting, plan)
            .iter()
            .map(ToString::to_string)
            .filter(|v| v.contains("99 % of requests"))
            .collect()
    };
    // A batch of 1 each 250 ms is just what comes.
    let in_turns = |p: &&mut Partition| p.turn.is_some();
    assert!(plan.gpus[0].partitions.iter().filter_map(|p| p.turn).all(|turn| turn.round_ms == 250.0));
    assert!(found(&plan).iter().filter(|v| v.contains("without end")).count() == 2, "{:?}", found(&plan));
    plan.gpus[0]
        .partitions
        .iter_mut()
        .filter(in_turns)
        .for_each(|p| p.turn.as_mut().unwrap().round_ms = 50.0);
    assert_eq!(found(&plan), [""; 0]);
    plan.gpus[0]
        .partitions
        .iter_mut()
        .filter(in_turns)
        .for_each(|p| p.turn.as_mut().unwrap().round_ms = 200.0);
    assert!(found(&plan).iter().all(|v| v.contains("above its SLO of 600 ms")) && found(&plan).len() == 2);
}

#[test]
fn run_scripts_refuse_turns() {
    let plan = place(&by_turns(6, "mps"), "gpulets").unwrap();
    let names = ["a", "b", "c", "d", "e", "f"];
    let text = names.iter().fold(MPS.to_owned(), |text, name| text + &model(name, 60.0, 20.0));
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
