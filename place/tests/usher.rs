//! Usher's invariants on a thousand random problems, and its GPU count beside first fit.

// Helpers of tests may panic as tests do.
#![allow(clippy::unwrap_used)]

mod synthetic;

use std::collections::BTreeMap;

use gpumon_core::profile::ProfileRow;
use gpumon_core::workload::{Sharing, Workload};
use gpumon_place::check::check;
use gpumon_place::plan::Partition;
use gpumon_place::policy::PlaceError;
use gpumon_place::policy::usher::group::LIMIT;
use gpumon_place::policy::usher::need::Kind;
use gpumon_place::policy::usher::need::Need;
use gpumon_place::policy::{sizes, usher};
use gpumon_place::{Ask, Objective, Problem, place};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const GPU_BYTES: f64 = 80e9;

/// Models with random work, memory and, for half of them, occupancy; MPS shares or MIG slices.
fn random(rng: &mut StdRng) -> (Workload, Vec<ProfileRow>) {
    let mig = rng.random_bool(0.5);
    let sharing = if mig { "mig" } else { "mps" };
    let mut text = format!("[cluster]\ngpu = \"a100\"\nsharing = \"{sharing}\"\n");
    let mut rows = Vec::new();
    for i in 0..rng.random_range(1..25) {
        let name = format!("m{i}");
        let (work_ms, knee) = (rng.random_range(0.3..6.0), rng.random_range(0.1..0.9));
        let (base_bytes, item_bytes) = (rng.random_range(1e9..30e9), rng.random_range(1e7..4e8));
        let occupancy = rng.random_bool(0.5).then(|| rng.random_range(5.0..60.0));
        text += &format!(
            "[[model]]\nname = \"{name}\"\nlatency_slo_ms = {}\nrate_rps = {}\n",
            work_ms * rng.random_range(4.0..40.0),
            rng.random_range(20.0..900.0) / work_ms
        );
        for slices in [1, 2, 3, 4, 7] {
            let share = f64::from(slices) / 7.0;
            for batch in [1, 2, 4, 8, 16, 32] {
                let latency = work_ms * (0.6 + f64::from(batch) * 0.4 / share.min(knee));
                rows.push(ProfileRow {
                    mig_slices: mig.then_some(slices),
                    latency: Some(latency),
                    throughput: Some(f64::from(batch) * 1000.0 / latency),
                    dynamic_power_draw: Some(40.0 * share),
                    mem_bytes: Some((base_bytes + f64::from(batch) * item_bytes) as i64),
                    sm_occupancy_pct: occupancy,
                    ..ProfileRow::new(&name, batch, share, 1410)
                });
            }
        }
    }
    (Workload::parse(&text).unwrap(), rows)
}

struct Item {
    share: gpumon_place::candidate::Share,
    memory: f64,
}

fn item(p: &Partition, rows: &[ProfileRow]) -> Item {
    let share = p.share().unwrap();
    let of = |r: &&ProfileRow| {
        let same = match (p.slices, p.share_pct) {
            (Some(n), _) => r.mig_slices == Some(i32::from(n)),
            (None, pct) => (r.share * 100.0 - pct.unwrap()).abs() < 1e-6,
        };
        r.model == p.model && r.batch_size == p.batch as i32 && same
    };
    let memory = rows.iter().find(of).unwrap().mem_bytes.unwrap() as f64 / GPU_BYTES;
    Item { share, memory }
}

fn has_room(problem: &Problem, gpu: &[Item], next: &Item) -> bool {
    let shares: Vec<_> = gpu.iter().chain([next]).map(|i| i.share).collect();
    let memory: f64 = gpu.iter().chain([next]).map(|i| i.memory).sum();
    memory <= 1.0 + 1e-9 && sizes::fit_together(problem, &shares)
}

#[test]
fn invariants_hold_and_first_fit_takes_no_fewer_gpus_nine_times_in_ten() {
    let base = synthetic::base();
    let mut rng = StdRng::seed_from_u64(2024);
    let (mut planned, mut none, mut not_more, mut ours, mut theirs) = (0u32, 0, 0u32, 0, 0);
    while planned + none < 1000 {
        let (workload, rows) = random(&mut rng);
        let ask = Ask { split: true, ..Ask::new(&workload, &rows, &base, Objective::Power) };
        let Ok(problem) = Problem::new(&ask) else {
            none += 1;
            continue;
        };
        let plan = match place(&problem, "usher") {
            Ok(plan) => plan,
            Err(PlaceError::NoConfiguration { why, .. }) => {
                assert!(why.contains("SLO"), "{why}");
                none += 1;
                continue;
            }
            Err(other) => panic!("{other}"),
        };
        planned += 1;
        assert_eq!(check(&problem, &plan), []);
        let mut replicas: BTreeMap<&str, Vec<&Partition>> = BTreeMap::new();
        for gpu in &plan.gpus {
            let items: Vec<Item> = gpu.partitions.iter().map(|p| item(p, &rows)).collect();
            let (last, rest) = items.split_last().unwrap();
            assert!(has_room(&problem, rest, last), "Σ C and Σ M stay within a GPU");
            for p in &gpu.partitions {
                replicas.entry(&p.model).or_default().push(p);
            }
        }
        for (name, parts) in &replicas {
            let demand = problem.models.iter().find(|m| m.name == *name).unwrap();
            let each_rps = demand.rate_rps / parts.len() as f64;
            for p in parts {
                assert_eq!((p.batch, p.share()), (parts[0].batch, parts[0].share()), "replicas are alike");
                assert!((p.rate_rps - each_rps).abs() < 1e-9 * each_rps && p.throughput_rps >= each_rps);
                let collect_ms = f64::from(p.batch - 1) * 1000.0 / each_rps;
                assert!(p.latency_ms + collect_ms <= p.latency_slo_ms * (1.0 + 1e-9));
            }
        }
        // The same partitions, in the order of the workload, each on the first GPU with room.
        let mut first_fit: Vec<Vec<Item>> = Vec::new();
        for next in problem.models.iter().flat_map(|m| &replicas[m.name.as_str()]).map(|p| item(p, &rows)) {
            match first_fit.iter_mut().find(|gpu| has_room(&problem, gpu, &next)) {
                Some(gpu) => gpu.push(next),
                None => first_fit.push(vec![next]),
            }
        }
        (ours, theirs) = (ours + plan.gpus.len(), theirs + first_fit.len());
        not_more += u32::from(plan.gpus.len() <= first_fit.len());
    }
    let share = f64::from(not_more) / f64::from(planned);
    eprintln!(
        "{planned} planned, {none} not; no more GPUs than first fit in {:.1} %; {ours} against {theirs} GPUs in all",
        share * 100.0
    );
    assert!(planned >= 500, "{planned}");
    assert!(share >= 0.9, "{share}");
}

#[test]
fn needs_come_from_occupancy_where_profiled_and_from_throughput_elsewhere() {
    let row = |slices: i32, throughput: f64, occupancy, mem_gb: Option<f64>| ProfileRow {
        latency: Some(1.0),
        throughput: Some(throughput),
        dynamic_power_draw: Some(1.0),
        sm_occupancy_pct: occupancy,
        mem_bytes: mem_gb.map(|gb: f64| (gb * 1e9) as i64),
        ..ProfileRow::new("m", 1, f64::from(slices) / 7.0, 1410)
    };
    let workload = Workload::parse(
        "[cluster]\ngpu = \"a100\"\nsharing = \"mps\"\n[[model]]\nname = \"m\"\nlatency_slo_ms = 5.0\nrate_rps = 10.0\n",
    );
    let (mut workload, base) = (workload.unwrap(), synthetic::base());
    let mut need = |occupancy, mem_gb| {
        let rows = [(1, 30.0), (3, 95.0), (7, 100.0)].map(|(s, t)| row(s, t, occupancy, mem_gb));
        workload.cluster.sharing = Some(Sharing::Mps);
        let problem = Problem::new(&Ask::new(&workload, &rows, &base, Objective::Power)).unwrap();
        Need::new(&problem, 0, problem.clocks[0].0).unwrap()
    };
    let estimated = need(None, None);
    assert!((estimated.c_pct - 300.0 / 7.0).abs() < 1e-9 && estimated.kind == Kind::Neutral);
    let measured = need(Some(20.0), Some(8.0));
    assert_eq!((measured.c_pct, measured.m_pct, measured.kind), (20.0, 10.0, Kind::Compute));
    // The partition is the smallest profiled share of at least 20 %.
    assert!((measured.choices[0].c_pct - 300.0 / 7.0).abs() < 1e-9);
    assert_eq!(need(Some(20.0), Some(32.0)).kind, Kind::Memory);
    assert_eq!(need(Some(20.0), Some(17.0)).kind, Kind::Neutral);
    assert!(usher::group::grouped(&[1.0; 9]).iter().all(|g| g.len() <= LIMIT));
}
