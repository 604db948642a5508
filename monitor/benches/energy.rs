//! How often the interval of energy holds the truth, and how wide it is: simulated GPUs, a thousand windows for each
//! length and kind of load, as Markdown.
//!
//! `cargo bench -p gpumon-monitor --bench energy [-- SEED]`
#![allow(clippy::unwrap_used, clippy::panic, reason = "a bench that cannot run says why by panicking")]

#[path = "../tests/energy/sim.rs"]
mod sim;

use gpumon_monitor::energy::Timing;
use sim::{Cell, KINDS, LENGTHS_MS, Setup};

fn main() {
    let seed: u64 = std::env::args().find_map(|a| a.parse().ok()).unwrap_or(2);
    for (title, gpu, timing, counter) in setups() {
        println!("\n### {title}\n");
        println!("| load | window | held by 90 % interval | half width | error | 1 s average | counter | too short | from |");
        println!("|---|---|---|---|---|---|---|---|---|");
        let setup = Setup { gpu, timing, counter, seed, recordings: 50, windows: 20 };
        for kind in KINDS {
            for (ms, trials) in LENGTHS_MS.iter().zip(sim::trials(&setup, kind)) {
                println!("| {kind:?} | {ms} ms | {}", row(&sim::cell(&trials)));
            }
        }
    }
}

fn setups() -> Vec<(&'static str, &'static str, Timing, bool)> {
    let found = Timing::new(Some(&sim::characterised()));
    let no_ring = "base = \"a100\"\n[sensors]\nunsupported = [\"ring\", \"power_average\", \"gpm\", \"fan\"]\n";
    vec![
        ("sim:h200, characterised", "base = \"h200\"\n", found, true),
        ("sim:h200, characterised, counter not read", "base = \"h200\"\n", found, false),
        ("sim:h200, not characterised", "base = \"h200\"\n", Timing::default(), true),
        ("sim:a100, characterised", "base = \"a100\"\n", found, true),
        ("sim:a100 without a ring, counter not read", no_ring, Timing::default(), false),
        ("sim:a100 without a ring", no_ring, Timing::default(), true),
    ]
}

fn row(cell: &Cell) -> String {
    let names = ["ring", "counter", "instant", "average"];
    let most = (0..4).max_by_key(|&i| cell.methods[i]).map_or("–", |i| names[i]);
    let pct = |value: f64| if value.is_nan() { "–".into() } else { format!("{value:.2} %") };
    let missed = if (0.85..=0.95).contains(&cell.coverage) { "" } else { " (!)" };
    format!(
        "{:.1} %{missed} | {} | {} | {} | {} | {:.0} % | {most} {:.2} {:.2} |",
        100.0 * cell.coverage,
        pct(cell.half_pct),
        pct(cell.error_pct),
        pct(cell.legacy_pct),
        pct(cell.counter_pct),
        100.0 * cell.too_short, cell.shape, cell.bias_pct
    )
}
