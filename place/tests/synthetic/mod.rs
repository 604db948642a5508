//! Models that nobody measured: smooth made-up surfaces, for tests and the bench.

// Helpers of tests may panic as tests do; each test uses some of them.
#![allow(dead_code, clippy::unwrap_used)]

use gpumon_core::profile::ProfileRow;
use gpumon_core::workload::Workload;
use gpumon_place::base::{BaseParts, BasePower};

pub const CLOCKS: [i32; 15] =
    [210, 240, 330, 420, 510, 600, 690, 780, 870, 960, 1050, 1140, 1230, 1320, 1410];
const BATCHES: [i32; 6] = [1, 2, 4, 8, 16, 32];
const SLICES: [i32; 5] = [1, 2, 3, 4, 7];

/// Figures as a table would have them.
fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

/// Base power that rises with the clock.
pub fn base() -> BasePower {
    let at = |mhz: i32| {
        let f = f64::from(mhz) / 1410.0;
        (
            mhz as u32,
            BaseParts {
                static_w: rounded(22.0 + 22.0 * f.powi(4)),
                fan_w: 20.0,
                idle_w: rounded(1.0 + 7.0 * f.powi(3)),
            },
        )
    };
    BasePower::new(CLOCKS.map(at)).unwrap()
}

/// The rows of a model that takes `work_ms` for an item on the whole GPU at the highest clock: 450 of MIG.
pub fn rows(model: &str, work_ms: f64, dynamic_w: f64) -> Vec<ProfileRow> {
    let mut rows = Vec::new();
    for (batch, slices, mhz) in BATCHES
        .iter()
        .flat_map(|b| SLICES.iter().map(move |s| (*b, *s)))
        .flat_map(|(b, s)| CLOCKS.iter().map(move |f| (b, s, *f)))
    {
        let (b, s, f) = (f64::from(batch), f64::from(slices) / 7.0, f64::from(mhz) / 1410.0);
        let latency_ms = work_ms * (0.5 + b / (0.2 + s)) / f;
        let power_w = dynamic_w * s.sqrt() * f * f * (0.5 + b / (b + 8.0));
        rows.push(ProfileRow {
            mig_slices: Some(slices),
            latency: Some(rounded(latency_ms)),
            throughput: Some(rounded(b / latency_ms * 1e3)),
            dynamic_power_draw: Some(rounded(power_w)),
            ..ProfileRow::new(model, batch, s, mhz)
        });
    }
    rows
}

/// Models `m0`, `m1`, … with their rows.
pub fn workload(models: usize) -> (Workload, Vec<ProfileRow>) {
    let mut text = String::from("[cluster]\ngpu = \"a100\"\n");
    let mut all = Vec::new();
    for i in 0..models {
        let work_ms = 0.5 * 1.7f64.powi(i as i32 % 7);
        text += &format!(
            "[[model]]\nname = \"m{i}\"\nlatency_slo_ms = {}\nrate_rps = {}\nrun = [\"true\"]\n",
            rounded(work_ms * 12.0),
            rounded((120 + 130 * (i % 4)) as f64 / work_ms)
        );
        all.extend(rows(&format!("m{i}"), work_ms, 60.0 + 15.0 * (i % 5) as f64));
    }
    (Workload::parse(&text).unwrap(), all)
}
