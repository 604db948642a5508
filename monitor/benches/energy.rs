//! How often the interval of energy holds the truth, and how wide it is: simulated GPUs, a thousand windows, each of a
//! recording and a load of its own, for each length and kind of load, as Markdown.
//!
//! `cargo bench -p gpumon-monitor --bench energy [-- SEED] [table=N] [load=NAME]`: all, or one table, or one load.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a bench that cannot run says why by panicking"
)]

#[path = "../tests/energy/sim.rs"]
mod sim;

use gpumon_monitor::energy::Timing;
use sim::{Cell, KINDS, Kind, LENGTHS_MS, Setup};

fn main() {
    let seed: u64 = std::env::args().find_map(|a| a.parse().ok()).unwrap_or(21);
    let only = |key: &str| std::env::args().find_map(|a| Some(a.strip_prefix(key)?.to_owned()));
    let table: Option<usize> = only("table=").map(|n| n.parse().expect("table=N takes a number from 1 up"));
    let load = only("load=");
    println!("Seed {seed}.");
    for (number, (title, mut setup)) in (1..).zip(setups()) {
        if table.is_some_and(|only| only != number) {
            continue;
        }
        setup.seed = seed;
        println!("\n### {title}\n");
        println!(
            "| load | window | held | half width | error | 1 s average | counter | too short | mostly from |"
        );
        println!("|---|---|---|---|---|---|---|---|---|");
        for kind in KINDS.into_iter().chain([Kind::Sine, Kind::Flicker]) {
            let name = format!("{kind:?}").to_lowercase();
            if load.as_ref().is_some_and(|only| *only != name) {
                continue;
            }
            for (ms, trials) in LENGTHS_MS.iter().zip(sim::trials(&setup, kind)) {
                println!("| {name} | {ms} ms | {}", row(&sim::cell(&trials)));
            }
        }
    }
}

fn setups() -> Vec<(&'static str, Setup<'static>)> {
    const H200: &str = "base = \"h200\"\n";
    const NO_RING: &str =
        "base = \"a100\"\n[sensors]\nunsupported = [\"ring\", \"power_average\", \"gpm\", \"fan\"]\n";
    let found = Timing::new(Some(&sim::characterised()));
    let unknown = Timing::default();
    let setup = |gpu, timing, counter| Setup {
        gpu,
        timing,
        counter,
        left_out: 0.0,
        seed: 0,
        recordings: 1000,
        windows: 1,
    };
    vec![
        ("`sim:h200`, characterised", setup(H200, found, true)),
        ("`sim:h200`, not characterised", setup(H200, unknown, true)),
        ("`sim:h200`, characterised, counter not read at the edges", setup(H200, found, false)),
        (
            "`sim:h200`, characterised, 6 % of the readings above mean power left out",
            Setup { left_out: 0.06, ..setup(H200, found, true) },
        ),
        ("`sim:a100`, characterised", setup("base = \"a100\"\n", found, true)),
        ("`sim:a100` without a ring, counter not read at the edges", setup(NO_RING, unknown, false)),
        ("`sim:a100` without a ring", setup(NO_RING, unknown, true)),
    ]
}

fn row(cell: &Cell) -> String {
    let names = ["ring", "counter", "instant", "average"];
    let most = (0..4).max_by_key(|&i| cell.methods[i]).map_or("–", |i| names[i]);
    let pct = |value: f64| if value.is_nan() { "–".into() } else { format!("{value:.2} %") };
    let held = format!("{:.1} %", 100.0 * cell.coverage);
    let held = if (0.85..=0.95).contains(&cell.coverage) { held } else { format!("**{held}**") };
    format!(
        "{held} | {} | {} | {} | {} | {:.0} % | {most} |",
        pct(cell.half_pct),
        pct(cell.error_pct),
        pct(cell.legacy_pct),
        pct(cell.counter_pct),
        100.0 * cell.too_short,
    )
}
