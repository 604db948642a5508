//! Random problems, of both kinds of sharing, with memory, neighbours and waiting for some.

use std::sync::Arc;

use gpumon_core::profile::ProfileRow;
use gpumon_core::workload::{Arrivals, Sharing, Workload};
use gpumon_place::candidate::{Candidate, Share};
use gpumon_place::check::check;
use gpumon_place::plan::Partition;
use gpumon_place::policy::PlaceError;
use gpumon_place::slowdown::Runs;
use gpumon_place::{Ask, Objective, Plan, Problem, place};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{Linear, base, keeps_the_rules, model, row};

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
    let mut workload = Workload::parse(&text).unwrap();
    workload.cluster.arrivals = rng.random_bool(0.2).then_some(Arrivals::Poisson);
    let base = base();
    let slowdown = rng.random_bool(0.5).then(|| Arc::new(Linear(rng.random_range(0.0..0.6))) as _);
    let ask = Ask { split: true, slowdown, ..Ask::new(&workload, &rows, &base, Objective::AveragePower) };
    // A model that nothing serves is drawn again.
    Problem::new(&ask).unwrap_or_else(|_| random(rng))
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
                let waits = problem.queueing.is_some() && why.contains("its rules know no waiting");
                assert!(waits || why.contains("at most half of its SLO"), "{why}");
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
