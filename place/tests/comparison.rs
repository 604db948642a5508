//! Systems side by side on the published A100 data and on the H200 data set: the tables of docs/comparing.md.
//!
//! `GPUMON_BLESS=1` writes them anew; otherwise the test compares. Only totals and ratios appear there.

// Helpers of tests may panic as tests do.
#![allow(clippy::unwrap_used)]

mod reference;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;

use gpumon_core::geometry::SEVEN_SLICES;
use gpumon_core::profile_io;
use gpumon_core::workload::Workload;
use gpumon_place::base::BasePower;
use gpumon_place::compare::{Case, Questions, answers, cases};
use gpumon_place::cost::{Load, OBJECTIVES, average_w};
use gpumon_place::policy::POLICIES;
use gpumon_place::policy::sizes::slices_of;
use gpumon_place::{Ask, Objective};
use reference::{Reference, folder, reference};

const LOADS: [f64; 5] = [0.25, 0.5, 0.75, 1.0, 1.25];
/// The artifact's names of the systems, and ours.
const PUBLISHED: [(&str, &str, &str); 5] = [
    ("ener-tune", "power", "EnerTune"),
    ("gpulets", "e2e", "GPUlets"),
    ("usher", "e2e", "Usher"),
    ("fgd", "e2e", "FGD"),
    ("parva", "e2e", "ParvaGPU"),
];

fn compared(ask: &Ask, objectives: &[Objective]) -> Vec<Case> {
    let questions =
        Questions { systems: POLICIES.to_vec(), objectives: objectives.to_vec(), loads: LOADS.to_vec() };
    cases(&answers(ask, &questions, || false).unwrap())
}

/// GPUs, average power, energy a request and ratios of every system at every load.
fn by_one_formula(cases: &[Case]) -> String {
    let mut text = String::from(
        "| load, % | system | GPUs | average power, W | J a request | average power and energy ÷ EnerTune | power, all busy ÷ EnerTune |\n\
         |---|---|---|---|---|---|---|\n",
    );
    for case in cases {
        let (Some(f), Some(r)) = (case.figures, case.to_enertune) else {
            writeln!(text, "| {} | `{}` | no plan | | | | |", 100.0 * case.load, case.system).unwrap();
            continue;
        };
        writeln!(
            text,
            "| {} | `{}` | {} | {:.0} | {:.4} | {:.2} | {:.2} |",
            100.0 * case.load,
            case.system,
            f.gpus_used,
            f.average_power_w,
            f.energy_per_request_j,
            r.average_power,
            r.power
        )
        .unwrap();
    }
    text
}

/// How far each system is above the optimum, by load and objective, %.
fn distances(cases: &[Case]) -> String {
    let mut text = String::from("| system | objective |");
    LOADS.iter().for_each(|load| write!(text, " {} % |", 100.0 * load).unwrap());
    text += "\n|---|---|---|---|---|---|---|\n";
    for system in POLICIES.iter().map(|p| p.name()).filter(|name| *name != "optimal") {
        for objective in OBJECTIVES {
            write!(text, "| `{system}` | {objective} |").unwrap();
            for case in cases.iter().filter(|c| c.system == system && c.objective == objective.name()) {
                match case.optimum {
                    Some(o) => write!(text, " {:.1} |", o.above_pct + 0.0).unwrap(),
                    None => text += " no plan |",
                }
            }
            text.push('\n');
        }
    }
    text
}

/// A published placement: what its rows draw by the formula of average power, and what it does not serve.
#[derive(Default)]
struct Published {
    gpus: BTreeMap<u32, (u32, Vec<Load>)>,
    served_rps: f64,
    without_data: BTreeSet<String>,
    late: usize,
    short: usize,
}

fn published(reference: &Reference, system: &str, metric: &str, load: f64) -> Published {
    let path = folder("a100").unwrap().join("published_placements.csv");
    let mut found = Published::default();
    for row in csv::Reader::from_path(path).unwrap().deserialize() {
        let row: BTreeMap<String, String> = row.unwrap();
        let number = |name: &str| row[name].parse::<f64>().unwrap();
        if (row["system"].as_str(), row["metric"].as_str()) != (system, metric)
            || number("load") != 100.0 * load
        {
            continue;
        }
        let slices = match row["share_kind"].as_str() {
            "mig_slices" => number("share") as i32,
            _ => i32::from(slices_of(number("share"), &SEVEN_SLICES)),
        };
        let (batch, mhz) = (number("batch") as i32, number("freq_mhz") as i32);
        let (_, loads) = found.gpus.entry(number("gpu") as u32).or_insert((mhz as u32, Vec::new()));
        let known = reference.rows.iter().find(|r| {
            r.model == row["model"] && (r.batch_size, r.mig_slices, r.frequency) == (batch, Some(slices), mhz)
        });
        let Some(known) = known else {
            found.without_data.insert(row["model"].clone());
            continue;
        };
        let (latency_ms, throughput_rps) = (known.latency.unwrap(), known.throughput.unwrap());
        let duty = number("rps") / throughput_rps;
        found.served_rps += number("rps").min(throughput_rps);
        found.short += usize::from(duty > 1.0);
        let slo = reference.workload.models.iter().find(|m| m.name == row["model"]);
        found.late += usize::from(slo.is_some_and(|m| latency_ms > m.latency_slo_ms));
        loads.push(Load { latency_ms, dynamic_w: known.dynamic_power_draw.unwrap(), duty: duty.min(1.0) });
    }
    found
}

fn published_table(reference: &Reference) -> String {
    let mut text = String::from(
        "| load, % | placement | GPUs | average power, W | J a request | average power ÷ EnerTune's | energy a request ÷ EnerTune's | too slow or too late | without data |\n\
         |---|---|---|---|---|---|---|---|---|\n",
    );
    for load in LOADS {
        let mut first: Option<(f64, f64)> = None;
        for (system, metric, name) in PUBLISHED {
            let p = published(reference, system, metric, load);
            let base_w = |mhz| reference.base.at_w(mhz).unwrap();
            let watts: f64 = p.gpus.values().map(|(mhz, loads)| average_w(base_w(*mhz), loads)).sum();
            let joules = watts / p.served_rps;
            let (first_w, first_j) = *first.get_or_insert((watts, joules));
            writeln!(
                text,
                "| {} | {name} | {} | {watts:.0} | {joules:.3} | {:.2} | {:.2} | {} | {} |",
                100.0 * load,
                p.gpus.len(),
                watts / first_w,
                joules / first_j,
                p.late + p.short,
                p.without_data.into_iter().collect::<Vec<_>>().join(", ")
            )
            .unwrap();
        }
    }
    text
}

fn data(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../data").join(path)
}

fn on_h200() -> String {
    let rows = profile_io::read(&data("runs/2026-12-01-h200-profile/grid.parquet")).unwrap().rows;
    let base = BasePower::from_rows(&rows).unwrap();
    let text = std::fs::read_to_string(data("workloads/h200-torch.toml")).unwrap();
    let workload = Workload::parse(&text).unwrap();
    by_one_formula(&compared(
        &Ask::new(&workload, &rows, &base, Objective::AveragePower),
        &[Objective::AveragePower],
    ))
}

/// The page with what stands between the marks of `name` replaced.
fn with(page: &str, name: &str, table: &str) -> String {
    let (before, rest) = page.split_once(&format!("<!-- {name} -->\n")).unwrap();
    let (_, after) = rest.split_once("<!-- end -->").unwrap();
    format!("{before}<!-- {name} -->\n{table}<!-- end -->{after}")
}

#[test]
fn the_page_shows_what_comes_out() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/comparing.md");
    let kept = std::fs::read_to_string(&path).unwrap();
    let mut page = with(&kept, "h200", &on_h200());
    if let Some(reference) = reference() {
        let cases = compared(&reference.ask(Objective::AveragePower, 1.0, None), OBJECTIVES);
        assert!(cases.iter().filter_map(|c| c.optimum).all(|o| o.proven && o.above_pct > -1e-6));
        let average: Vec<Case> = cases.iter().filter(|c| c.objective == "average-power").cloned().collect();
        page = with(&page, "a100", &by_one_formula(&average));
        page = with(&page, "distances", &distances(&cases));
        page = with(&page, "published", &published_table(&reference));
    }
    if std::env::var_os("GPUMON_BLESS").is_some() {
        std::fs::write(path, page).unwrap();
    } else {
        assert!(kept == page, "docs/comparing.md is out of date; GPUMON_BLESS=1 writes it anew");
    }
}
