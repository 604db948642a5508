//! The table of docs/profiling-cost.md, from the reference profiles; `GPUMON_BLESS=1` writes it anew.
//!
//! Times follow from the formulas that the page states; energy is time × the mean power of the model's rows. Only totals
//! appear there.

#![allow(clippy::unwrap_used, reason = "a panic is a test's report, in its helpers too")]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use gpumon_core::profile::ProfileRow;
use gpumon_core::profile_io;

/// Time of a point, s: the mean of 240 points on an H200, start and load included (data/runs/2026-12-01-h200-profile).
const POINT_S: f64 = 3.27;
/// Points with other models known, and of the first model: 2 and 5 % of a full grid of 450 (docs/fitting.md).
const POINTS: [f64; 2] = [9.0, 22.0];
/// Models that EnerTune gives 30 s a point; all others have 20 s.
const GENERATIVE: [&str; 3] = ["gpt", "diffusion_1024_1024", "diffusion_256_256"];
const ENERTUNE_SHARES: [f64; 2] = [0.15, 0.2];
/// 5 sizes × 8 batch sizes × 3 processes.
const PARVA_POINTS: f64 = 120.0;
const PARVA_S: [f64; 2] = [20.0, 30.0];
const KERNEL_S: [f64; 2] = [15.0, 20.0];

fn reference() -> Option<PathBuf> {
    let root = std::env::var_os("GPUMON_REFERENCE").map(PathBuf::from);
    let root = root.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/reference"));
    if root.join("a100/profiles").is_dir() {
        return Some(root.join("a100"));
    }
    let required = std::env::var("GPUMON_REQUIRE_REFERENCE").is_ok_and(|v| v == "1");
    assert!(!required, "no reference profiles under {}", root.display());
    println!("skipped: no reference profiles under {}", root.display());
    None
}

/// Launches and distinct kernels of one inference.
fn kernels(folder: &Path, model: &str) -> Option<[f64; 2]> {
    let text = std::fs::read_to_string(folder.join("kernel_traces.csv")).unwrap();
    let line = text.lines().find(|l| l.split(',').next() == Some(model))?;
    let mut cells = line.split(',').skip(1).map(|cell| cell.trim().parse::<f64>().unwrap());
    Some([cells.next()?, cells.next()?])
}

/// Hours and kJ of a shortest and a longest time in s at a mean power in W.
fn cell(seconds: Option<[f64; 2]>, watts: f64) -> String {
    let Some([low, high]) = seconds else { return "–".into() };
    let one = |s: f64| {
        let digits = if s < 360.0 { 3 } else { 1 + usize::from(s < 3_600.0) };
        (format!("{:.digits$}", s / 3_600.0), format!("{:.0}", s * watts / 1e3))
    };
    let ((low_h, low_kj), (high_h, high_kj)) = (one(low), one(high));
    if low == high {
        format!("{low_h} / {low_kj}")
    } else {
        format!("{low_h}–{high_h} / {low_kj}–{high_kj}")
    }
}

fn table(folder: &Path) -> String {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder.join("profiles")).unwrap().map(|f| f.unwrap().path()).collect();
    files.sort();
    let names = ["gpumon, others known", "gpumon, first model", "EnerTune", "ParvaGPU", "USHER", "GPUlets"];
    let mut text = format!("| model | {} |\n|---|{}\n", names.join(" | "), "---|".repeat(names.len()));
    let mut ratios = vec![Vec::new(); names.len()];
    for file in files {
        let rows: Vec<ProfileRow> = profile_io::read(&file).unwrap().rows;
        let model = rows[0].model.clone();
        let powers: Vec<f64> = rows.iter().filter_map(|r| r.avg_power_draw).collect();
        let watts = powers.iter().sum::<f64>() / powers.len() as f64;
        let batches = rows.iter().map(|r| r.batch_size).collect::<BTreeSet<_>>().len() as f64;
        let point_s = if GENERATIVE.contains(&model.as_str()) { 30.0 } else { 20.0 };
        let kernels = kernels(folder, &model);
        let by_kernel = |i: usize| kernels.map(|k| KERNEL_S.map(|s| k[i] * batches * s));
        let own = |points: f64| Some([points * POINT_S; 2]);
        let times = [
            own(POINTS[0]),
            own(POINTS[1]),
            Some(ENERTUNE_SHARES.map(|share| (share * rows.len() as f64).round() * point_s)),
            Some(PARVA_S.map(|s| PARVA_POINTS * s)),
            by_kernel(1),
            by_kernel(0),
        ];
        for (list, time) in ratios.iter_mut().zip(times) {
            list.extend(time.zip(times[0]).map(|([low, _], [own, _])| low / own));
        }
        let cells = times.map(|time| cell(time, watts)).join(" | ");
        writeln!(text, "| {model} | {cells} |").unwrap();
    }
    let medians = ratios.iter_mut().map(|list| {
        list.sort_by(f64::total_cmp);
        format!("{:.1} ×", list[list.len() / 2])
    });
    writeln!(
        text,
        "| median of shortest time over the first column's | {} |",
        medians.collect::<Vec<_>>().join(" | ")
    )
    .unwrap();
    text
}

#[test]
fn the_table_is_what_the_reference_gives() {
    let Some(folder) = reference() else { return };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/profiling-cost.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (begin, end) = ("<!-- costs -->\n", "<!-- end -->");
    let (before, rest) = page.split_once(begin).unwrap();
    let (_, after) = rest.split_once(end).unwrap();
    let made = format!("{before}{begin}\n{}\n{end}{after}", table(&folder));
    if std::env::var_os("GPUMON_BLESS").is_some() {
        std::fs::write(&path, &made).unwrap();
    } else {
        assert!(made == page, "docs/profiling-cost.md is out of date; GPUMON_BLESS=1 writes it anew");
    }
}
