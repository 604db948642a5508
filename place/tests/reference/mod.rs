//! The published data, read where it lies; it is never part of this project.

// Helpers of tests may panic as tests do; each test uses some of them.
#![allow(dead_code, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::PathBuf;

use gpumon_core::profile::ProfileRow;
use gpumon_core::workload::Workload;
use gpumon_place::base::BasePower;
use gpumon_place::{Ask, Objective, Problem};

/// Models that the artifact does not scale above 100 %.
pub const CAPPED: [&str; 4] = ["resnet50", "gpt", "diffusion_1024_1024", "diffusion_256_256"];

pub struct Reference {
    pub rows: Vec<ProfileRow>,
    pub base: BasePower,
    pub workload: Workload,
    pub plans: serde_json::Value,
}

/// A folder of the reference, or `None` with a word when it is not there; a failure where it is required.
pub fn folder(name: &str) -> Option<PathBuf> {
    let root = std::env::var_os("GPUMON_REFERENCE").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/reference"),
        PathBuf::from,
    );
    let folder = root.join(name);
    if folder.is_dir() {
        return Some(folder);
    }
    assert!(
        std::env::var_os("GPUMON_REQUIRE_REFERENCE").is_none(),
        "GPUMON_REQUIRE_REFERENCE is set, but there is no {}",
        folder.display()
    );
    eprintln!("skipped: no reference data at {}", folder.display());
    None
}

/// EnerTune's data, or `None` when it is not there.
pub fn reference() -> Option<Reference> {
    let folder = folder("a100")?;
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    let table = |name: &str| -> Vec<BTreeMap<String, String>> {
        csv::Reader::from_reader(read(name).as_bytes()).deserialize().map(Result::unwrap).collect()
    };
    let rows = table("model_datastore.csv").iter().map(row).collect();
    let mut text = String::from("[cluster]\ngpu = \"a100\"\nsharing = \"mig\"\n");
    for m in table("slo.csv") {
        text += &format!(
            "[[model]]\nname = \"{}\"\nlatency_slo_ms = {}\nrate_rps = {}\n",
            m["model"], m["latency_slo_ms"], m["rate_rps"]
        );
        if CAPPED.contains(&m["model"].as_str()) {
            text += "max_load = 1.0\n";
        }
    }
    Some(Reference {
        rows,
        base: BasePower::parse(&read("base_power.csv")).unwrap(),
        workload: Workload::parse(&text).unwrap(),
        plans: serde_json::from_str(&read("enertune_artifact_plans.json")).unwrap(),
    })
}

fn row(m: &BTreeMap<String, String>) -> ProfileRow {
    let number = |name: &str| m[name].parse::<f64>().unwrap();
    let slices = number("mig_slices");
    ProfileRow {
        mig_slices: Some(slices as i32),
        avg_power_draw: Some(number("avg_power_draw")),
        dynamic_power_draw: Some(number("dynamic_power_draw")),
        throughput: Some(number("throughput")),
        latency: Some(number("latency")),
        ..ProfileRow::new(&m["model"], number("batch_size") as i32, slices / 7.0, number("frequency") as i32)
    }
}

impl Reference {
    pub fn ask(&self, objective: Objective, load: f64, gpus: Option<u32>) -> Ask<'_> {
        Ask { load, gpus, ..Ask::new(&self.workload, &self.rows, &self.base, objective) }
    }

    pub fn problem(&self, objective: Objective, load: f64, gpus: Option<u32>) -> Problem {
        Problem::new(&self.ask(objective, load, gpus)).unwrap()
    }
}
