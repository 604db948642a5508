//! `gpumon report`: a model file as one HTML page with pictures.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use gpumon_fit::model_file::ModelFile;
use serde::Serialize;

use super::{DONE, inputs};
use crate::cli::pipeline::ReportArgs;
use crate::export::file::is_stdout;
use crate::output::{self, note};
use crate::report::models;

#[derive(Serialize)]
struct Report<'a> {
    page: &'a Path,
    simulated: bool,
    models: Vec<&'a str>,
    held_out_points: usize,
}

/// Reads the file and writes its page.
pub fn run(args: &ReportArgs) -> Result<u8> {
    let path = args.file.as_path();
    if path.is_dir() {
        bail!(
            "`{}` is a folder; `report` draws model files, and `gpumon export {0} -o PICTURE.svg` a recording",
            path.display()
        );
    }
    let page: PathBuf = args.output.clone().unwrap_or_else(|| path.with_extension("html"));
    if args.json && is_stdout(&page) {
        bail!("`-` and --json both write to standard output; leave one out");
    }
    inputs::distinct([path], [page.as_path()])?;
    let file = ModelFile::read(path).context("`report` draws model files, which `gpumon fit` makes")?;
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    inputs::write(&page, args.force, &models::html(&file, &name)?)?;
    if args.json {
        output::print_json(&Report {
            page: &page,
            simulated: file.simulated,
            models: file.models.iter().map(|m| m.name.as_str()).collect(),
            held_out_points: file.models.iter().map(|m| m.held_out_points.len()).sum(),
        })?;
    } else if !is_stdout(&page) {
        note(format_args!("The page with pictures: {}", page.display()));
    }
    Ok(DONE)
}
