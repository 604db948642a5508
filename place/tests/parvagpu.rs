//! The deployments that ParvaGPU's authors published: the same GPUs, sizes, batches and processes.

// Helpers of tests may panic as tests do.
#![allow(clippy::unwrap_used)]

mod reference;

use std::collections::BTreeMap;
use std::path::Path;

use gpumon_core::profile::ProfileRow;
use gpumon_core::profile_io::parse_csv;
use gpumon_core::workload::Workload;
use gpumon_place::base::{BaseParts, BasePower};
use gpumon_place::check::check;
use gpumon_place::policy::parvagpu::deploy;
use gpumon_place::policy::parvagpu::fleet::Fleet;
use gpumon_place::policy::parvagpu::service::Service;
use gpumon_place::policy::sizes::Percents;
use gpumon_place::{Ask, Objective, Problem, place};

/// Models in the order of the columns of SLOs and rates.
const MODELS: [&str; 11] = [
    "bert",
    "densenet121",
    "densenet169",
    "densenet201",
    "inceptionv3",
    "mobilenetv2",
    "resnet101",
    "resnet152",
    "resnet50",
    "vgg16",
    "vgg19",
];

/// GPU, model, size, batch, processes.
type Row = (usize, String, u8, u32, u32);

struct Published {
    rows: Vec<ProfileRow>,
    slo_ms: Vec<Vec<Option<f64>>>,
    rate_rps: Vec<Vec<Option<f64>>>,
}

fn published(folder: &Path) -> Published {
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    let mut rows = Vec::new();
    for model in MODELS {
        let name = format!("profiles/{model}.csv");
        rows.extend(parse_csv(&read(&name), Path::new(&name)).unwrap().rows);
    }
    // Nothing was measured; placing wants a figure that it does not look at.
    rows.iter_mut().for_each(|row| row.dynamic_power_draw = Some(100.0));
    // Numbers are cut to integers, as the authors' reader does.
    let table = |name: &str| -> Vec<Vec<Option<f64>>> {
        let cell = |cell: &str| cell.trim().parse::<f64>().ok().map(f64::trunc);
        read(name).lines().map(|line| line.split(',').map(cell).collect()).collect()
    };
    Published { rows, slo_ms: table("slo_latency_ms.csv"), rate_rps: table("request_rate.csv") }
}

impl Published {
    /// A scenario, counted from 1.
    fn problem(&self, scenario: usize) -> Problem {
        let mut text = String::from("[cluster]\ngpu = \"a100\"\n");
        for (at, model) in MODELS.iter().enumerate() {
            let figures = (self.slo_ms[scenario - 1][at], self.rate_rps[scenario - 1][at]);
            if let (Some(slo_ms), Some(rate_rps)) = figures {
                text += &format!(
                    "[[model]]\nname = \"{model}\"\nlatency_slo_ms = {slo_ms:.1}\nrate_rps = {rate_rps:.1}\n"
                );
            }
        }
        let workload = Workload::parse(&text).unwrap();
        let base = BasePower::new([(1410, BaseParts { static_w: 40.0, fan_w: 20.0, idle_w: 8.0 })]).unwrap();
        let ask = Ask { split: true, ..Ask::new(&workload, &self.rows, &base, Objective::Power) };
        Problem::new(&ask).unwrap()
    }
}

fn services(problem: &Problem) -> Vec<Service> {
    let service = |(model, demand): (usize, &gpumon_place::problem::Demand)| {
        let rows = demand.candidates.iter().copied();
        Service::new(model, rows, demand.latency_slo_ms, demand.rate_rps).unwrap()
    };
    problem.models.iter().enumerate().map(service).collect()
}

fn rows(problem: &Problem, services: &[Service], fleet: &Fleet) -> Vec<Row> {
    let mut rows = Vec::new();
    for (gpu, segments) in fleet.gpus().enumerate() {
        for segment in segments {
            let service = &services[segment.service];
            let row = service.of_size(segment.slices).unwrap();
            let name = problem.models[service.model].name.clone();
            rows.push((gpu, name, segment.slices, row.batch, row.processes));
        }
    }
    rows
}

fn plan(folder: &Path, scenario: usize) -> Vec<Row> {
    let mut reader = csv::Reader::from_path(folder.join(format!("plans/scenario{scenario}.csv"))).unwrap();
    let row = |m: BTreeMap<String, String>| -> Row {
        let number = |name: &str| m[name].parse::<usize>().unwrap();
        (
            number("Num instance") * 8 + number("Num GPU"),
            m["Model"].clone(),
            number("Instance size") as u8,
            number("Batch size") as u32,
            number("Num proc") as u32,
        )
    };
    reader.deserialize().map(|m| row(m.unwrap())).collect()
}

#[test]
fn published_deployments_come_out_row_by_row() {
    let Some(folder) = reference::folder("parvagpu") else { return };
    let published = published(&folder);
    for scenario in [1, 2, 3, 5] {
        let problem = published.problem(scenario);
        let services = services(&problem);
        let ours = rows(&problem, &services, &deploy(&services, Percents::default()));
        let theirs = plan(&folder, scenario);
        let equal = ours.iter().zip(&theirs).filter(|(a, b)| a == b).count();
        eprintln!("scenario {scenario}: {equal} of {} rows, ours {}", theirs.len(), ours.len());
        assert_eq!(ours, theirs, "scenario {scenario}");
    }
}

#[test]
fn as_many_gpus_as_published_with_and_without_the_second_stage() {
    let Some(folder) = reference::folder("parvagpu") else { return };
    let published = published(&folder);
    let counts = |scenario: usize| {
        let services = services(&published.problem(scenario));
        (
            deploy(&services, Percents::default()).gpus().count(),
            Fleet::packed(&services, Percents::default()).gpus().count(),
        )
    };
    let counts: Vec<_> = (1..=6).map(counts).collect();
    assert_eq!(counts, [(2, 2), (3, 3), (5, 8), (7, 11), (13, 20), (16, 26)]);
}

#[test]
fn published_scenarios_make_sound_plans() {
    let Some(folder) = reference::folder("parvagpu") else { return };
    let published = published(&folder);
    for scenario in 1..=6 {
        let problem = published.problem(scenario);
        let plan = place(&problem, "parvagpu").unwrap();
        assert_eq!(check(&problem, &plan), []);
        let deployed = deploy(&services(&problem), Percents::default()).gpus().count();
        assert_eq!(plan.gpus.len(), deployed);
    }
}
