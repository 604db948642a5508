//! Random problems, for tests of what lies within systems.

use gpumon_core::profile::ProfileRow;
use gpumon_core::workload::Workload;
use rand::RngExt;
use rand::rngs::StdRng;

use crate::base::BasePower;
use crate::cost::OBJECTIVES;
use crate::problem::{Ask, Problem};

const CLOCKS: [i32; 3] = [600, 960, 1410];

/// Models with random rows; latencies spread over a decade.
pub fn problem(rng: &mut StdRng, models: usize) -> Problem {
    let mut text = String::from("[cluster]\ngpu = \"a100\"\n");
    let mut rows = Vec::new();
    for model in 0..models {
        text += &format!("[[model]]\nname = \"m{model}\"\nlatency_slo_ms = 1e3\nrate_rps = 1.0\n");
        for batch in 1..=rng.random_range(8..=30) {
            let slices = [1, 1, 2, 2, 3, 4][rng.random_range(0..6)];
            rows.push(ProfileRow {
                mig_slices: Some(slices),
                latency: Some(10f64.powf(rng.random_range(0.0..1.0))),
                throughput: Some(rng.random_range(1.0..10.0)),
                dynamic_power_draw: Some(rng.random_range(0.0..60.0)),
                ..ProfileRow::new(
                    &format!("m{model}"),
                    batch,
                    f64::from(slices) / 7.0,
                    CLOCKS[rng.random_range(0..3)],
                )
            });
        }
    }
    let base = "frequency_mhz,static_w,fan_w,idle_w\n600,20,10,2\n960,30,10,4\n1410,45,10,8\n";
    let (workload, base) = (Workload::parse(&text).unwrap(), BasePower::parse(base).unwrap());
    let objective = OBJECTIVES[rng.random_range(0..OBJECTIVES.len())];
    Problem::new(&Ask::new(&workload, &rows, &base, objective)).unwrap()
}
