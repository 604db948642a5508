//! `gpumon report`: a model file, or plans, as one HTML page with pictures.
//!
//! Rule: what the first file holds says what the page is; a plan has `gpus`, a model file has not.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use gpumon_fit::model_file::ModelFile;
use gpumon_place::plan::Plan;
use serde::Serialize;

use super::{DONE, inputs};
use crate::cli::pipeline::ReportArgs;
use crate::export::file::is_stdout;
use crate::output::{self, note};
use crate::report::{compare, models};

#[derive(Serialize)]
struct Report<'a> {
    page: &'a Path,
    simulated: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    models: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    held_out_points: Option<usize>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    plans: Vec<String>,
}

/// Reads the files and writes their page.
pub fn run(args: &ReportArgs) -> Result<u8> {
    let Some(first) = args.files.first() else { bail!("name a model file or plans") };
    if let Some(folder) = args.files.iter().find(|path| path.is_dir()) {
        bail!(
            "`{}` is a folder; `report` draws model files and plans, and `gpumon export {0} -o PICTURE.svg` a recording",
            folder.display()
        );
    }
    let page: PathBuf = args.output.clone().unwrap_or_else(|| first.with_extension("html"));
    if args.json && is_stdout(&page) {
        bail!("`-` and --json both write to standard output; leave one out");
    }
    inputs::distinct(args.files.iter().map(PathBuf::as_path), [page.as_path()])?;
    let (html, report) =
        if is_plan(first)? { of_plans(&args.files, &page)? } else { of_models(args, &page)? };
    inputs::write(&page, args.force, &html)?;
    if args.json {
        output::print_json(&report)?;
    } else if !is_stdout(&page) {
        note(format_args!("The page with pictures: {}", page.display()));
    }
    Ok(DONE)
}

/// Whether a file is JSON with `gpus`; what is wrong with one that is neither is its reader's to say.
fn is_plan(path: &Path) -> Result<bool> {
    let bytes = fs::read(path).with_context(|| format!("cannot read `{}`", path.display()))?;
    let value: Option<serde_json::Value> = serde_json::from_slice(&bytes).ok();
    Ok(value.is_some_and(|v| v.get("gpus").is_some()))
}

fn of_models<'a>(args: &ReportArgs, page: &'a Path) -> Result<(String, Report<'a>)> {
    let [path] = args.files.as_slice() else {
        bail!(
            "a page is of one model file, or of plans; `{}` is the first of several",
            args.files[0].display()
        )
    };
    let file = ModelFile::read(path)
        .context("`report` draws model files, which `gpumon fit` makes, and plans of `gpumon place`")?;
    let report = Report {
        page,
        simulated: file.simulated,
        models: file.models.iter().map(|m| m.name.clone()).collect(),
        held_out_points: Some(file.models.iter().map(|m| m.held_out_points.len()).sum()),
        plans: Vec::new(),
    };
    Ok((models::html(&file, &name(path))?, report))
}

fn of_plans<'a>(paths: &[PathBuf], page: &'a Path) -> Result<(String, Report<'a>)> {
    let read = |path: &PathBuf| Ok((name(path), inputs::plan(path)?));
    let plans: Vec<(String, Plan)> = paths.iter().map(read).collect::<Result<_>>()?;
    let report = Report {
        page,
        simulated: plans.iter().any(|(_, plan)| plan.simulated),
        models: Vec::new(),
        held_out_points: None,
        plans: plans.iter().map(|(name, _)| name.clone()).collect(),
    };
    Ok((compare::plans_html(&plans)?, report))
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}
