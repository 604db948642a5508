//! Reference rows for tests, read where they lie.

use std::path::{Path, PathBuf};

use gpumon_core::profile::ProfileRow;

/// Where the reference lies; `None`, said aloud, if it is not there.
pub fn root() -> Option<PathBuf> {
    let root = std::env::var_os("GPUMON_REFERENCE").map(PathBuf::from);
    let root = root.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/reference"));
    if root.join("a100/profiles").is_dir() {
        return Some(root);
    }
    let required = std::env::var("GPUMON_REQUIRE_REFERENCE").is_ok_and(|v| v == "1");
    assert!(!required, "no reference profiles under {}", root.display());
    println!("skipped: no reference profiles under {}", root.display());
    None
}

/// Models with 36 points only.
#[allow(dead_code, reason = "not every test that has this module reads profiles")]
pub const SMALL: [&str; 2] = ["gpt", "diffusion_1024_1024"];

/// Profiles of all reference models; `None`, said aloud, if the reference is not there.
#[allow(dead_code, reason = "not every test that has this module reads profiles")]
pub fn rows() -> Option<Vec<ProfileRow>> {
    let folder = std::fs::read_dir(root()?.join("a100/profiles")).unwrap();
    let mut files: Vec<PathBuf> = folder.map(|f| f.unwrap().path()).collect();
    files.sort();
    Some(files.iter().flat_map(|file| read(file)).collect())
}

#[allow(dead_code, reason = "not every test that has this module reads profiles")]
fn read(file: &Path) -> Vec<ProfileRow> {
    let text = std::fs::read_to_string(file).unwrap();
    let cells = |line: &str| line.trim().split(',').map(str::to_owned).collect::<Vec<_>>();
    text.lines().skip(1).filter(|l| !l.trim().is_empty()).map(|line| row(&cells(line))).collect()
}

/// The row of a line of a published profile.
pub fn row(cells: &[String]) -> ProfileRow {
    let number = |i: usize| cells[i].parse::<f64>().unwrap();
    let mut row = ProfileRow::new(&cells[0], number(1) as i32, number(2) / 7.0, number(3) as i32);
    row.mig_slices = Some(number(2) as i32);
    row.avg_power_draw = Some(number(4));
    row.dynamic_power_draw = Some(number(5));
    row.throughput = Some(number(6));
    row.latency = Some(number(7));
    row
}
