//! Files that the stages after recording begin with.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use gpumon_core::profile::ProfileRow;
use gpumon_core::profile_io;
use gpumon_core::workload::Workload;
use gpumon_place::base::BasePower;

use crate::export::file::Output;
use crate::output::note;

/// The rows of several profiles; what had to be assumed goes to standard error.
pub fn profiles(paths: &[PathBuf]) -> Result<Vec<ProfileRow>> {
    let mut rows = Vec::new();
    for path in paths {
        let profile = profile_io::read(path)?;
        for notice in profile.notices {
            note(format_args!("gpumon: {notice}"));
        }
        rows.extend(profile.rows);
    }
    Ok(rows)
}

/// The workload in a file.
pub fn workload(path: &Path) -> Result<Workload> {
    let name = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read the workload `{name}`"))?;
    Workload::parse(&text).with_context(|| format!("the workload `{name}`"))
}

/// Base power by clock from a CSV file.
pub fn base_power(path: &Path) -> Result<BasePower> {
    let name = path.display();
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read the base power `{name}`"))?;
    BasePower::parse(&text).with_context(|| format!("the base power `{name}`"))
}

/// Writes a file that appears under its name once it is whole.
pub fn write(path: &Path, force: bool, text: &str) -> Result<()> {
    // These files belong to no recording, so none is to be kept out of.
    let mut file = Output::create(path, force, Path::new(""))?;
    file.put(text.as_bytes())?;
    file.commit()
}
