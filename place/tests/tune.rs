//! Tuning a plan that runs: known answers, what always holds, and how near it comes to placing anew.
//!
//! `GPUMON_BLESS=1` writes the table in docs/tuning.md anew; otherwise the test compares. Only ratios appear there.

// Helpers of tests may panic as tests do.
#![allow(clippy::unwrap_used)]

mod reference;
mod synthetic;

use std::fmt::Write as _;

use gpumon_core::profile::ProfileRow;
use gpumon_core::workload::Workload;
use gpumon_place::base::BasePower;
use gpumon_place::check::check;
use gpumon_place::cost::OBJECTIVES;
use gpumon_place::tune::{TuneError, Tuned, Tuner};
use gpumon_place::{Ask, Objective, Plan, Problem, place};
use proptest::prelude::*;

/// Two models on one GPU whose throughput is the clock over `slower`, for each of two batches: 1 takes 10 W and 1 ms,
/// 2 takes 12 W and 3 ms and has half as much throughput again.
fn small(rate_a: f64, rate_b: f64, g_per_kwh: f64, objective: Objective) -> Problem {
    let text = format!(
        "[cluster]\ngpu = \"a100\"\ncarbon_g_per_kwh = {g_per_kwh}\n\
         [[model]]\nname = \"a\"\nlatency_slo_ms = 10\nrate_rps = {rate_a}\n\
         [[model]]\nname = \"b\"\nlatency_slo_ms = 10\nrate_rps = {rate_b}\n"
    );
    let workload = Workload::parse(&text).unwrap();
    let mut rows = Vec::new();
    for (model, slower) in [("a", 1.0), ("b", 2.0)] {
        for mhz in [600, 900, 1200] {
            for (batch, more, ms, watts) in [(1, 1.0, 1.0, 10.0), (2, 1.5, 3.0, 12.0)] {
                rows.push(ProfileRow {
                    mig_slices: Some(3),
                    latency: Some(ms),
                    throughput: Some(f64::from(mhz) / slower * more),
                    dynamic_power_draw: Some(watts * f64::from(mhz) / 600.0),
                    ..ProfileRow::new(model, batch, 3.0 / 7.0, mhz)
                });
            }
        }
    }
    let base = BasePower::parse("frequency_mhz,static_w,fan_w,idle_w\n600,30,0,0\n900,40,0,0\n1200,60,0,0\n");
    Problem::new(&Ask::new(&workload, &rows, &base.unwrap(), objective)).unwrap()
}

fn both(problem: &Problem, plan: &Plan) -> [Tuned; 2] {
    [Tuner::PUBLISHED, Tuner::WHOLE].map(|tuner| tuner.tune(problem, plan).unwrap())
}

/// Clock of the first GPU and batches of its models.
fn state(plan: &Plan) -> (u32, Vec<(&str, u32)>) {
    let gpu = &plan.gpus[0];
    (gpu.frequency_mhz, gpu.partitions.iter().map(|p| (p.model.as_str(), p.batch)).collect())
}

fn placed(problem: &Problem) -> Plan {
    let plan = place(problem, "enertune").unwrap();
    assert_eq!(plan.gpus.len(), 1, "both share a GPU");
    plan
}

#[test]
fn more_load_takes_the_smallest_clock_that_serves_it() {
    let plan = placed(&small(500.0, 200.0, 490.0, Objective::Power));
    let (at, [a, b]) =
        (state(&plan).0, [plan.gpus[0].partitions[0].clone(), plan.gpus[0].partitions[1].clone()]);
    assert_eq!(at, 600);
    // `b` needs 500 items/s: 900 MHz / 2 × 1.5 = 675 with batch 2; with batch 1 it takes 1200 MHz.
    for tuned in both(&small(500.0, 500.0, 490.0, Objective::Power), &plan) {
        let (mhz, mut batches) = state(&tuned.plan);
        batches.sort_unstable();
        assert_eq!((mhz, batches), (900, vec![("a", 1), ("b", 2)]));
        assert_eq!(tuned.cost, 40.0 + 15.0 + 18.0);
        assert_eq!(tuned.cost_untuned, None, "600 MHz serves 450 at most");
        let places =
            |p: &gpumon_place::plan::Partition| (p.model.clone(), p.slices, p.start_slot, p.processes);
        let now: Vec<_> = tuned.plan.gpus[0].partitions.iter().map(places).collect();
        assert_eq!(now, [places(&a), places(&b)]);
        let change = &tuned.gpus[0];
        assert!(change.triggered && change.is_new());
        assert_eq!((change.frequency_mhz_before, change.frequency_mhz), (600, 900));
    }
}

#[test]
fn less_load_lowers_the_clock_as_far_as_the_others_let_it() {
    let plan = placed(&small(1100.0, 500.0, 490.0, Objective::Power));
    assert_eq!(state(&plan).0, 900, "a: 900 × 1.5 items/s, b: 450 × 1.5");
    for tuned in both(&small(1100.0, 100.0, 490.0, Objective::Power), &plan) {
        assert_eq!(state(&tuned.plan).0, 900, "`a` has not changed and needs 900 MHz");
        assert!(tuned.cost < tuned.cost_untuned.unwrap(), "`b` can take batch 1");
    }
    for tuned in both(&small(300.0, 100.0, 490.0, Objective::Power), &plan) {
        assert_eq!((state(&tuned.plan).0, tuned.cost), (600, 50.0));
        assert_eq!(tuned.cost_untuned, Some(40.0 + 18.0 + 18.0));
    }
}

#[test]
fn the_cheapest_clock_may_be_above_the_smallest() {
    // Energy of a batch is base × longest + Σ dynamic × own time: with batch 2 only at 600 MHz, with batch 1 at 1200.
    let plan = placed(&small(700.0, 200.0, 490.0, Objective::Power));
    let plan = Plan { objective: "energy".into(), ..plan };
    let demand = small(800.0, 200.0, 490.0, Objective::Energy);
    let [published, whole] = both(&demand, &plan);
    assert_eq!((state(&published.plan).0, published.cost), (600, 30.0 * 3.0 + 12.0 * 3.0 + 10.0));
    assert_eq!((state(&whole.plan).0, whole.cost), (900, 40.0 + 15.0 + 15.0));
}

#[test]
fn carbon_alone_is_a_trigger_and_nothing_is_none() {
    let demand = |g_per_kwh| small(500.0, 200.0, g_per_kwh, Objective::CarbonPerRequest);
    let plan = placed(&demand(490.0));
    for tuned in both(&demand(490.0), &plan) {
        assert!(!tuned.gpus[0].triggered);
        assert_eq!((&tuned.plan.gpus, tuned.cost_untuned), (&plan.gpus, Some(plan.cost)));
    }
    for g_per_kwh in [20.0, 900.0] {
        for tuned in both(&demand(g_per_kwh), &plan) {
            assert!(tuned.gpus[0].triggered);
            assert_eq!(tuned.plan.carbon_g_per_kwh, g_per_kwh);
            assert!(tuned.cost <= tuned.cost_untuned.unwrap());
        }
    }
}

#[test]
fn what_no_longer_suffices_is_a_trigger_too() {
    // One by one `b` has 300 items/s at 600 MHz, so it runs by twos, and with a tight SLO the first of two waits too long.
    let plan = placed(&small(500.0, 320.0, 490.0, Objective::Power));
    assert_eq!(state(&plan).0, 600);
    let mut waiting = small(500.0, 320.0, 490.0, Objective::Power);
    let arrivals = gpumon_core::workload::Arrivals::Point;
    waiting.queueing = Some(gpumon_place::queue::Queueing { arrivals, percentile: 99.0 });
    waiting.models.iter_mut().for_each(|m| m.latency_slo_ms = 5.0);
    let mut plan = plan;
    plan.gpus[0].partitions.iter_mut().for_each(|p| p.latency_slo_ms = 5.0);
    for tuned in both(&waiting, &plan) {
        assert!(tuned.gpus[0].triggered);
        assert_eq!((state(&tuned.plan).0, tuned.cost_untuned), (900, None));
    }
}

#[test]
fn shares_of_mps_are_tuned_too() {
    let (workload, mut rows) = synthetic::workload(2);
    let base = synthetic::base();
    rows.iter_mut().for_each(|row| row.mig_slices = None);
    let mut mps = workload.clone();
    mps.cluster.sharing = Some(gpumon_core::workload::Sharing::Mps);
    let problem =
        |load| Problem::new(&Ask { load, ..Ask::new(&mps, &rows, &base, Objective::AveragePower) }).unwrap();
    let plan = place(&problem(1.0), "fgd").unwrap();
    let tuned = Tuner::WHOLE.tune(&problem(0.5), &plan).unwrap();
    let shares = |plan: &Plan| -> Vec<_> {
        plan.gpus.iter().flat_map(|g| &g.partitions).map(|p| (p.model.clone(), p.share_pct)).collect()
    };
    assert_eq!(shares(&tuned.plan), shares(&plan));
    assert!(tuned.gpus.iter().all(|g| g.frequency_mhz < g.frequency_mhz_before), "{:?}", tuned.gpus);
    assert!(tuned.cost < tuned.cost_untuned.unwrap());
}

#[test]
fn what_no_clock_serves_is_named() {
    let plan = placed(&small(500.0, 200.0, 490.0, Objective::Power));
    let mut demand = small(500.0, 900.0, 490.0, Objective::Power);
    let model = &mut demand.models[1];
    model.rate_rps = 950.0;
    demand.cost.total_rate_rps += 50.0;
    let text = Tuner::WHOLE.tune(&demand, &plan).unwrap_err().to_string();
    for words in ["GPU 0: in its 3 slices `b`: rate binds", "900.0000 items/s", "place anew"] {
        assert!(text.contains(words), "{text}");
    }
    // `a` runs at 600 MHz only and `b` needs more.
    let mut demand = small(500.0, 500.0, 490.0, Objective::Power);
    demand.models[0].candidates.retain(|c| c.frequency_mhz == 600);
    let text = Tuner::WHOLE.tune(&demand, &plan).unwrap_err().to_string();
    assert!(text.contains("`a` takes 600 MHz") && text.contains("`b` takes 900, 1200 MHz"), "{text}");
}

#[test]
fn another_workload_is_refused_in_words() {
    let demand = || small(500.0, 200.0, 490.0, Objective::Power);
    let plan = placed(&demand());
    let says = |demand: &Problem, plan: &Plan, words: &str| {
        let error = Tuner::WHOLE.tune(demand, plan).unwrap_err();
        assert!(matches!(error, TuneError::Mismatch(_)), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    };
    says(&Problem { gpu: "h200".into(), ..demand() }, &plan, "kind `a100`, but cluster.gpu is `h200`");
    let mps = gpumon_core::workload::Sharing::Mps;
    says(&Problem { sharing: mps, ..demand() }, &plan, "shares GPUs by `mig`");
    says(&demand(), &Plan { objective: "energy".into(), ..plan.clone() }, "objective `energy`, not `power`");
    let mut fewer = demand();
    fewer.models.pop();
    says(&fewer, &plan, "that the workload does not list, `b`");
    let mut more = demand();
    more.models[0].name = "c".into();
    says(&more, &plan, "does not serve `c`");
    for (change, words) in [
        (
            (|p| p.batch = 7) as fn(&mut gpumon_place::plan::Partition),
            "batch 7, 3 slices, 600 MHz, which the profile",
        ),
        (|p| p.slices = Some(2), "2 slices"),
        (|p| p.slices = None, "no share"),
        (|p| p.rate_rps = 0.0, "no rate above 0"),
        (|p| p.rate_rps = f64::NAN, "no rate above 0"),
    ] {
        let mut odd = plan.clone();
        change(&mut odd.gpus[0].partitions[0]);
        says(&demand(), &odd, words);
    }
    let mut odd = plan.clone();
    odd.gpus[0].partitions[0].start_slot = odd.gpus[0].partitions[1].start_slot;
    let error = Tuner::WHOLE.tune(&demand(), &odd).unwrap_err().to_string();
    assert!(error.contains("the plan does not hold") && error.contains("cannot stand so"), "{error}");
}

#[test]
fn a_divided_rate_changes_in_proportion() {
    let (workload, rows) = synthetic::workload(3);
    let base = synthetic::base();
    let problem = |load| {
        let ask = Ask::new(&workload, &rows, &base, Objective::AveragePower);
        Problem::new(&Ask { load, split: true, ..ask }).unwrap()
    };
    let plan = place(&problem(4.0), "parvagpu").unwrap();
    let parts = |plan: &Plan| -> Vec<(String, f64)> {
        plan.gpus.iter().flat_map(|g| &g.partitions).map(|p| (p.model.clone(), p.rate_rps)).collect()
    };
    let before = parts(&plan);
    assert!(before.len() > 3, "a rate is divided: {before:?}");
    let tuned = Tuner::WHOLE.tune(&problem(3.0), &plan).unwrap();
    for ((model, before), (same, now)) in before.iter().zip(parts(&tuned.plan)) {
        assert_eq!(model, &same);
        assert!((now / before - 0.75).abs() < 1e-9, "{model}: {before} {now}");
    }
    let back = Tuner::WHOLE.tune(&problem(4.0), &tuned.plan).unwrap();
    assert!(back.cost <= plan.cost * (1.0 + 1e-9), "at full throughput too, which rounding must not lose");
}

#[test]
fn rounding_of_a_divided_rate_takes_no_higher_clock() {
    let mut plan = placed(&small(600.0, 200.0, 490.0, Objective::Power));
    let mut second = plan.gpus[0].clone();
    second.partitions.retain(|p| p.model == "a");
    plan.gpus.push(second);
    let full = small(1200.0, 200.0, 490.0, Objective::Power);
    let start = Tuner::WHOLE.tune(&full, &plan).unwrap();
    assert!(start.gpus.iter().all(|g| g.frequency_mhz == 600), "600 items/s each are just served");
    for rate in (1..1200).step_by(7) {
        let less = Tuner::WHOLE.tune(&small(f64::from(rate), 200.0, 490.0, Objective::Power), &start.plan);
        let back = Tuner::WHOLE.tune(&full, &less.unwrap().plan).unwrap();
        assert!(alike(&back.plan, &start.plan), "{rate}");
    }
}

/// Plans are the same but for rounding of divided rates.
fn alike(a: &Plan, b: &Plan) -> bool {
    let configuration = |plan: &Plan| {
        let gpu = |g: &gpumon_place::plan::Gpu| {
            (
                g.frequency_mhz,
                g.partitions
                    .iter()
                    .map(|p| (p.model.clone(), p.batch, p.slices, p.start_slot))
                    .collect::<Vec<_>>(),
            )
        };
        plan.gpus.iter().map(gpu).collect::<Vec<_>>()
    };
    configuration(a) == configuration(b) && (a.cost / b.cost - 1.0).abs() < 1e-9
}

/// A change of the demand: the load, what one model's rate is multiplied with, and the carbon intensity.
type Demand = (f64, f64, f64);

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn tuned_plans_are_sound_never_costlier_and_do_not_depend_on_the_way(
        models in 1usize..7,
        demands in proptest::array::uniform3((0.3..1.0f64, 0.5..1.5f64, 50.0..900.0f64)),
        objective in proptest::sample::select(OBJECTIVES.to_vec()),
        arrivals in any::<bool>(),
    ) {
        let (mut workload, rows) = synthetic::workload(models);
        let base = synthetic::base();
        if arrivals {
            workload.cluster.arrivals = Some(gpumon_core::workload::Arrivals::Point);
            workload.models.iter_mut().for_each(|m| m.latency_slo_ms *= 3.0);
        }
        let problem = |(load, one, g_per_kwh): Demand| {
            let mut changed = workload.clone();
            changed.models[0].rate_rps *= one;
            changed.cluster.carbon_g_per_kwh = Some(g_per_kwh);
            Problem::new(&Ask { load, ..Ask::new(&changed, &rows, &base, objective) })
        };
        let [Ok(first), Ok(second), Ok(third)] = demands.map(problem) else { return Ok(()) };
        let Ok(plan) = place(&first, "enertune") else { return Ok(()) };
        let within = |a: f64, b: f64| a <= b * (1.0 + 1e-9);
        for tuner in [Tuner::PUBLISHED, Tuner::WHOLE] {
            let Ok(tuned) = tuner.tune(&second, &plan) else { continue };
            prop_assert_eq!(check(&second, &Plan::parse(&tuned.plan.to_json().unwrap()).unwrap()), vec![]);
            for (before, now) in plan.gpus.iter().zip(&tuned.plan.gpus) {
                let seats = |g: &gpumon_place::plan::Gpu| -> Vec<_> {
                    g.partitions.iter().map(|p| (p.model.clone(), p.slices, p.start_slot, p.processes)).collect()
                };
                prop_assert_eq!(seats(before), seats(now));
            }
        }
        let Ok(there) = Tuner::WHOLE.tune(&second, &plan) else { return Ok(()) };
        prop_assert!(there.cost_untuned.is_none_or(|untuned| within(there.cost, untuned)));
        if let Ok(published) = Tuner::PUBLISHED.tune(&second, &plan) {
            prop_assert!(within(there.cost, published.cost));
        }
        // There and back: never above where it began; and by another way to the same.
        let back = Tuner::WHOLE.tune(&first, &there.plan).unwrap();
        prop_assert!(within(back.cost, plan.cost), "{} {}", back.cost, plan.cost);
        let again = Tuner::WHOLE.tune(&second, &back.plan).unwrap();
        prop_assert!(alike(&again.plan, &there.plan));
        if let Ok(by) = Tuner::WHOLE.tune(&third, &plan) {
            prop_assert!(alike(&Tuner::WHOLE.tune(&second, &by.plan).unwrap().plan, &there.plan));
        }
        let still = Tuner::WHOLE.tune(&second, &there.plan).unwrap();
        prop_assert!(still.gpus.iter().all(|g| !g.triggered && !g.is_new()));
        prop_assert_eq!(still.cost_untuned, Some(there.cost));
    }
}

const LOADS_PCT: [u32; 5] = [25, 50, 75, 100, 125];

/// How much costlier the tuned plan is than one placed anew, %, if it can be tuned.
fn excess_pct(tuner: Tuner, plan: &Plan, demand: &Problem, anew: &Plan) -> Option<f64> {
    tuner.tune(demand, plan).ok().map(|tuned| (tuned.cost / anew.cost - 1.0) * 100.0)
}

#[test]
fn how_near_tuning_comes_to_placing_anew() {
    let Some(reference) = reference::reference() else { return };
    let mut table = String::from(
        "| objective | placed at, % | GPUs | 25 | 50 | 75 | 100 | 125 |\n|---|---|---|---|---|---|---|---|\n",
    );
    let (mut changes, mut held, mut reached, mut below, mut published_held) = (0, 0, 0, 0, 0);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for &objective in OBJECTIVES {
        let at = LOADS_PCT.map(|pct| {
            let problem = reference.problem(objective, f64::from(pct) / 100.0, None);
            let plan = place(&problem, "enertune").unwrap();
            (problem, plan)
        });
        for (from, (_, plan)) in LOADS_PCT.iter().zip(&at) {
            let _ = write!(table, "| {objective} | {from} | {} |", plan.gpus.len());
            for (to, (demand, anew)) in LOADS_PCT.iter().zip(&at) {
                let excess = excess_pct(Tuner::WHOLE, plan, demand, anew);
                let published = excess_pct(Tuner::PUBLISHED, plan, demand, anew);
                let cell = |e: Option<f64>| e.map_or("–".into(), |e| format!("{e:.1}"));
                if from == to {
                    assert!(excess.unwrap().abs() < 1e-9);
                    table += " placed |";
                    continue;
                }
                changes += 1;
                assert_eq!(excess.is_some(), published.is_some(), "both find a clock where there is one");
                if let (Some(excess), Some(published)) = (excess, published) {
                    assert!(excess <= published + 1e-9);
                    held += 1;
                    reached += usize::from(excess < 0.05);
                    below += usize::from(excess < -0.05);
                    published_held += usize::from(published < 0.05);
                    ours.push(excess);
                    theirs.push(published);
                }
                let _ = write!(table, " {} ({}) |", cell(excess), cell(published));
            }
            table += "\n";
        }
    }
    let _ = writeln!(
        table,
        "\nOf {changes} changes {held} can be tuned. Placing's cost (within 0.05 %) is reached by {reached} of them ({below} are \
         cheaper), by the published rule by {published_held}; the median excess is {:.1} %, by the published rule {:.1} %.",
        median(&mut ours),
        median(&mut theirs)
    );
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/tuning.md");
    let kept = std::fs::read_to_string(path).unwrap();
    let mut page = kept.clone();
    let open = "<!-- excess -->\n";
    let from = page.find(open).unwrap() + open.len();
    let to = from + page[from..].find("<!-- end -->").unwrap();
    page.replace_range(from..to, &table);
    if std::env::var_os("GPUMON_BLESS").is_some() {
        std::fs::write(path, &page).unwrap();
    } else {
        assert!(kept == page, "docs/tuning.md is out of date; GPUMON_BLESS=1 writes it anew");
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
