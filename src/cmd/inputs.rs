//! Files that the stages after recording begin with, and how their results are written.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use gpumon_core::profile::ProfileRow;
use gpumon_core::profile_io;
use gpumon_core::workload::{Workload, kind_of};
use gpumon_place::base::BasePower;
use gpumon_place::plan::Plan;

use crate::export::file::{Output, is_stdout, place_of};
use crate::output::note;

/// The rows of several profiles; what had to be assumed goes to standard error.
pub fn profiles(paths: &[PathBuf]) -> Result<Vec<ProfileRow>> {
    let mut rows: Vec<ProfileRow> = Vec::new();
    let mut seen = std::collections::HashSet::new();
    for path in paths {
        let profile = profile_io::read(path)?;
        for notice in profile.notices {
            note(format_args!("gpumon: {notice}"));
        }
        let keys: Vec<_> = profile.rows.iter().map(|row| (row.key(), row.gpu_uuid.clone())).collect();
        let again = keys.iter().filter(|key| seen.contains(*key)).count();
        if again > 0 {
            note(format_args!(
                "gpumon: {}: {again} points stand in an earlier profile too; `fit` takes their mean, `place` the first",
                path.display()
            ));
        }
        seen.extend(keys);
        rows.extend(profile.rows);
    }
    Ok(rows)
}

/// The workload in a file.
pub fn workload(path: &Path) -> Result<Workload> {
    let name = path.display();
    let text = fs::read_to_string(path).with_context(|| format!("cannot read the workload `{name}`"))?;
    Workload::parse(&text).with_context(|| format!("the workload `{name}`"))
}

/// Base power by clock from a CSV file.
pub fn base_power(path: &Path) -> Result<BasePower> {
    let name = path.display();
    let text = fs::read_to_string(path).with_context(|| format!("cannot read the base power `{name}`"))?;
    BasePower::parse(&text).with_context(|| format!("the base power `{name}`"))
}

/// The plan in a file.
pub fn plan(path: &Path) -> Result<Plan> {
    let name = path.display();
    let text = fs::read_to_string(path).with_context(|| format!("cannot read the plan `{name}`"))?;
    Plan::parse(&text).with_context(|| format!("the plan `{name}`"))
}

/// An error if a GPU's product name clearly names another kind than the workload's. `what` carries the name.
pub fn same_kind(workload: &Workload, what: &str, product: &str) -> Result<()> {
    let wanted = workload.cluster.gpu.as_str();
    match kind_of(product) {
        Some(found) if found != wanted => bail!(
            "{what} `{product}`, an {found}, but cluster.gpu of the workload is `{wanted}`; one of them is the wrong file"
        ),
        _ => Ok(()),
    }
}

/// Refuses outputs that are one of the inputs or each other, by whatever name. `-` is standard output.
pub fn distinct<'a>(
    inputs: impl IntoIterator<Item = &'a Path>,
    outputs: impl IntoIterator<Item = &'a Path>,
) -> Result<()> {
    let mut taken: Vec<(Place, &Path, &str)> =
        inputs.into_iter().filter_map(|path| Some((Place::of(path)?, path, "input"))).collect();
    for output in outputs {
        let Some(place) = Place::of(output) else { continue };
        if let Some((_, other, what)) = taken.iter().find(|(p, ..)| *p == place) {
            bail!(
                "`{}` is to be written, but is the {what} `{}` of the same command; name another file",
                output.display(),
                other.display()
            );
        }
        taken.push((place, output, "output"));
    }
    Ok(())
}

/// What a path leads to, links followed.
#[derive(PartialEq, Eq)]
enum Place {
    Stdout,
    /// Device and inode of a file that is there.
    There(u64, u64),
    /// The path of one that is not.
    NotYet(PathBuf),
}

impl Place {
    /// `None` for devices and pipes, which can be written twice, and for what cannot be made sense of.
    fn of(path: &Path) -> Option<Self> {
        use std::os::unix::fs::MetadataExt as _;
        if is_stdout(path) {
            return Some(Self::Stdout);
        }
        match fs::metadata(path) {
            Ok(there) if there.is_file() || there.is_dir() => Some(Self::There(there.dev(), there.ino())),
            Ok(_) => None,
            Err(_) => place_of(path).ok().map(Self::NotYet),
        }
    }
}

/// Writes a file that appears under its name once it is whole.
pub fn write(path: &Path, force: bool, text: &str) -> Result<()> {
    write_all(&[(path, text)], force)
}

/// Writes files that appear under their names once all of them are whole.
pub fn write_all(files: &[(&Path, &str)], force: bool) -> Result<()> {
    let mut outputs = Vec::new();
    for (path, text) in files {
        // These files belong to no recording, so none is to be kept out of.
        let mut output = Output::create(path, force, Path::new(""))?;
        output.put(text.as_bytes())?;
        output.finish()?;
        outputs.push(output);
    }
    outputs.into_iter().try_for_each(Output::commit)
}
