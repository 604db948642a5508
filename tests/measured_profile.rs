//! What the README of the H200 profile says, computed from its files.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is a test's report, in its helpers too")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use gpumon_core::profile::{IDLE_CONTEXT, ProfileRow};
use gpumon_core::profile_io;
use gpumon_core::set::{self, SetRow};

fn folder(run: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data/runs").join(run)
}

fn rows(run: &str, name: &str) -> Vec<ProfileRow> {
    profile_io::read(&folder(run).join(name)).unwrap().rows
}

fn assert_said(run: &str, said: &[String]) {
    let readme = std::fs::read_to_string(folder(run).join("README.md")).unwrap();
    let missing: Vec<_> = said.iter().filter(|line| !readme.contains(line.as_str())).collect();
    assert!(missing.is_empty(), "the README of {run} lacks {missing:#?}");
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    (values[(values.len() - 1) / 2] + values[values.len() / 2]) / 2.0
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn max(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

/// Differences of repeated points, %: power, batch time, and power as if both had been measured at the same temperature.
fn repeats(grid: &[ProfileRow], again: &[ProfileRow]) -> [Vec<f64>; 3] {
    let first = |row: &ProfileRow| grid.iter().find(|g| g.key() == row.key()).unwrap().clone();
    let idle = again.iter().find(|row| row.model == IDLE_CONTEXT).unwrap();
    let (idle_w, idle_c) = (idle.avg_power_draw.unwrap(), idle.temp_c.unwrap());
    let before = first(idle);
    let w_per_k = (idle_w - before.avg_power_draw.unwrap()) / (idle_c - before.temp_c.unwrap());
    let mut found = [Vec::new(), Vec::new(), Vec::new()];
    for row in again.iter().filter(|row| !row.is_idle()) {
        let before = first(row);
        let (w, before_w) = (row.avg_power_draw.unwrap(), before.avg_power_draw.unwrap());
        let heat_w = w_per_k * (row.temp_c.unwrap() - before.temp_c.unwrap());
        found[0].push(100.0 * (w / before_w - 1.0).abs());
        found[1].push(100.0 * (row.latency.unwrap() / before.latency.unwrap() - 1.0).abs());
        found[2].push(100.0 * ((w - heat_w) / before_w - 1.0).abs());
    }
    found
}

#[test]
fn the_readme_says_what_the_files_hold() {
    let run = "2026-12-01-h200-profile";
    let (grid, again) = (rows(run, "grid.parquet"), rows(run, "repeated.parquet"));
    let sets: Vec<SetRow> = set::read(&folder(run).join("sets.parquet")).unwrap();
    let uuids: BTreeSet<_> =
        grid.iter().chain(&again).map(|r| &r.gpu_uuid).chain(sets.iter().map(|r| &r.gpu_uuid)).collect();
    assert_eq!(uuids.len(), 1, "all is of one card");
    let points: Vec<&ProfileRow> = grid.iter().filter(|row| !row.is_idle()).collect();
    let models: BTreeSet<_> = points.iter().map(|row| &row.model).collect();
    assert!(points.iter().all(|row| row.valid && row.simulated == Some(false) && row.mem_bytes.is_some()));
    assert!(points.iter().all(|row| row.sm_util_pct.is_some() && row.dram_util_pct.is_some()));
    let wall: Vec<f64> = points.iter().map(|row| row.wall_s.unwrap()).collect();
    let energy_kj = points.iter().map(|row| row.wall_energy_j.unwrap()).sum::<f64>() / 1e3;
    let capped = |reason: &Option<String>| reason.as_deref().is_some_and(|why| why.contains("power cap"));
    let [power, time, same_heat] = repeats(&grid, &again);
    let numbers: BTreeSet<i32> = sets.iter().map(|row| row.set).collect();
    let of = |n: i32| sets.iter().filter(move |row| row.set == n);
    let with = |members: usize| numbers.iter().filter(|n| of(**n).count() == members).count();
    let set_wall: Vec<f64> = numbers.iter().map(|n| of(*n).next().unwrap().wall_s.unwrap()).collect();
    let slowdowns: Vec<f64> = sets.iter().map(|row| row.slowdown.unwrap()).collect();
    assert!(sets.iter().all(|row| row.valid));
    let said = [
        format!(
            "| models × shares × batches, all valid | {} models, {} points |",
            models.len(),
            points.len()
        ),
        format!(
            "| wall time a point, everything included | median {:.2} s, mean {:.2} s, largest {:.1} s |",
            median(wall.clone()),
            mean(&wall),
            max(&wall)
        ),
        format!(
            "| time and energy of the points | {:.1} min, {energy_kj:.0} kJ |",
            wall.iter().sum::<f64>() / 60.0
        ),
        format!(
            "| points under the power cap | {} |",
            points.iter().filter(|row| capped(&row.reason)).count()
        ),
        format!("| points repeated | {} |", power.len()),
        format!(
            "| power, repeated: difference | median {:.2} %, largest {:.1} % |",
            median(power.clone()),
            max(&power)
        ),
        format!(
            "| the same at equal temperature | median {:.2} %, largest {:.1} % |",
            median(same_heat.clone()),
            max(&same_heat)
        ),
        format!(
            "| batch time, repeated: difference | median {:.2} %, largest {:.1} % |",
            median(time.clone()),
            max(&time)
        ),
        format!(
            "| sets of two, three and four models, all valid | {}, {} and {}: {} sets, {} rows |",
            with(2),
            with(3),
            with(4),
            numbers.len(),
            sets.len()
        ),
        format!(
            "| wall time a set | median {:.1} s, mean {:.1} s |",
            median(set_wall.clone()),
            mean(&set_wall)
        ),
        format!(
            "| sets under the power cap | {} |",
            numbers.iter().filter(|n| of(**n).any(|row| capped(&row.reason))).count()
        ),
        format!(
            "| slowdown of a member | median {:.2}, largest {:.2} |",
            median(slowdowns.clone()),
            max(&slowdowns)
        ),
    ];
    assert_said(run, &said);
}

#[test]
fn a_heated_card_repeats_its_points() {
    let run = "2026-12-01-h200-heated";
    let (grid, again) = (rows(run, "grid.csv"), rows(run, "repeated.csv"));
    let uuids: BTreeSet<_> = grid.iter().chain(&again).map(|r| &r.gpu_uuid).collect();
    assert_eq!(uuids.len(), 1, "all is of one card");
    let points: Vec<&ProfileRow> = grid.iter().filter(|row| !row.is_idle()).collect();
    assert!(points.iter().all(|row| row.valid && row.simulated == Some(false)));
    let wall: Vec<f64> = points.iter().map(|row| row.wall_s.unwrap()).collect();
    let [power, time, _] = repeats(&grid, &again);
    let share = 100.0 * power.len() as f64 / points.len() as f64;
    let said = [
        format!(
            "| wall time a point, everything included | median {:.2} s, mean {:.2} s, largest {:.1} s |",
            median(wall.clone()),
            mean(&wall),
            max(&wall)
        ),
        format!("| points repeated | {} of {}, {share:.0} % |", power.len(), points.len()),
        format!(
            "| power, repeated: difference | median {:.2} %, largest {:.1} % |",
            median(power.clone()),
            max(&power)
        ),
        format!(
            "| batch time, repeated: difference | median {:.2} %, largest {:.1} % |",
            median(time.clone()),
            max(&time)
        ),
    ];
    assert_said(run, &said);
}
