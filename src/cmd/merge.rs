//! `gpumon merge`: the profiles of a sweep's parts as one.

use std::path::PathBuf;

use anyhow::{Result, bail};
use gpumon_core::profile_io;
use gpumon_profile::merge::merge;
use serde::Serialize;

use super::{DONE, inputs};
use crate::cli::pipeline::MergeArgs;
use crate::output::{self, note};

/// What was merged.
#[derive(Serialize)]
struct Report<'a> {
    output: &'a std::path::Path,
    files: usize,
    rows: usize,
    repeated: usize,
    gpus: Vec<&'a str>,
}

/// Merges; the output appears whole or not at all.
pub fn run(args: &MergeArgs) -> Result<u8> {
    inputs::distinct(args.profiles.iter().map(PathBuf::as_path), [args.output.as_path()])?;
    if args.output.exists() && !args.force {
        bail!("`{}` exists already; give --force to replace it", args.output.display());
    }
    let mut files = Vec::new();
    for path in &args.profiles {
        let profile = profile_io::read(path)?;
        profile.notices.iter().for_each(|notice| note(format_args!("gpumon: {notice}")));
        files.push((path.display().to_string(), profile.rows));
    }
    let merged = merge(&files)?;
    profile_io::write(&args.output, &merged.rows)?;
    merged.notices.iter().for_each(|notice| note(format_args!("gpumon: {notice}")));
    if args.json {
        let mut gpus: Vec<&str> = merged.rows.iter().filter_map(|r| r.gpu_uuid.as_deref()).collect();
        gpus.sort_unstable();
        gpus.dedup();
        let (rows, repeated) = (merged.rows.len(), merged.repeated);
        output::print_json(&Report { output: &args.output, files: files.len(), rows, repeated, gpus })?;
    }
    let repeated = match merged.repeated {
        0 => String::new(),
        n => format!("; {n} stood in several of them"),
    };
    note(format_args!(
        "{} rows of {} profiles in `{}`{repeated}",
        merged.rows.len(),
        files.len(),
        args.output.display()
    ));
    Ok(DONE)
}
