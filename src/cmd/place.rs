//! `gpumon place`: one plan for a workload, from profiles or from fitted models.
//!
//! Rule: everything is planned, checked and written beside its place before the plan and its scripts appear, so that an
//! error leaves all as it was.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use gpumon_core::workload::Workload;
use gpumon_fit::model_file::ModelFile;
use gpumon_place::base::BasePower;
use gpumon_place::emit::{Emitted, sh};
use gpumon_place::plan::{Input, Plan};
use gpumon_place::policy;
use gpumon_place::problem::{Ask, LOAD, Problem};

use super::neighbours::Neighbours;
use super::{DONE, candidates, inputs};
use crate::cli::pipeline::{EmitKind, PlaceArgs};
use crate::export::file::is_stdout;
use crate::output::note;

/// Places, writes the plan and, if asked, its scripts.
pub fn run(args: &PlaceArgs) -> Result<u8> {
    let stdout = Path::new("-");
    let output = args.output.as_deref().unwrap_or(stdout);
    if args.json && args.output.as_deref().is_some_and(is_stdout) {
        bail!("-o - and --json both write the plan to standard output; leave one out");
    }
    let scripts_to = args.emit.map(|EmitKind::Sh| scripts_folder(args, output)).transpose()?;
    if !LOAD.contains(&args.load) {
        bail!(
            "--load {}: expected a number from {:e} to {:e}, such as 1 or 0.5",
            args.load,
            LOAD.start(),
            LOAD.end()
        );
    }
    let read =
        || [&args.workload].into_iter().chain(&args.models).chain(&args.profile).chain(&args.base_power);
    inputs::distinct(read().map(PathBuf::as_path), [output])?;
    let workload = inputs::workload(&args.workload)?;
    let plan = plan(args, &workload, read())?;
    let scripts = match &scripts_to {
        Some(folder) => Scripts::prepare(folder, sh::scripts(&plan, &workload)?, args.force)?,
        None => Scripts::default(),
    };
    let written = [output].into_iter().chain(scripts.files.iter().map(|(path, _)| path.as_path()));
    inputs::distinct(read().map(PathBuf::as_path), written)?;

    let json = plan.to_json()?;
    let mut files = vec![(output, json.as_str())];
    if args.json && !is_stdout(output) {
        files.insert(0, (stdout, json.as_str()));
    }
    files.extend(scripts.files.iter().map(|(path, text)| (path.as_path(), text.as_str())));
    let made = scripts_to.as_deref().map(make_folder).transpose()?.unwrap_or_default();
    if let Err(error) = inputs::write_all(&files, args.force) {
        for folder in made {
            // Only an empty one goes, and the error above is the one to tell.
            let _ = fs::remove_dir(folder);
        }
        return Err(error);
    }
    for path in &scripts.stale {
        fs::remove_file(path)
            .with_context(|| format!("cannot remove `{}` of another plan", path.display()))?;
    }
    note(summary(&plan));
    Ok(DONE)
}

fn plan<'a>(args: &PlaceArgs, workload: &Workload, read: impl Iterator<Item = &'a PathBuf>) -> Result<Plan> {
    let given = args.base_power.as_deref().map(inputs::base_power).transpose()?;
    let mut neighbours = None;
    let (rows, base) = match &args.models {
        Some(path) => {
            let models = ModelFile::read(path)?;
            let candidates = candidates::from_models(&models, workload, given, &args.batches)?;
            neighbours = Neighbours::of(models, workload).map(Arc::new);
            candidates
        }
        None => {
            let rows = inputs::profiles(&args.profile)?;
            let served = |name: &str| workload.models.iter().any(|m| m.name == name);
            for row in rows.iter().filter(|row| served(&row.model)) {
                if let Some(name) = &row.gpu_name {
                    inputs::same_kind(workload, &format!("`{}` was profiled on", row.model), name)?;
                }
            }
            let base = given
                .map_or_else(|| BasePower::from_rows(&rows), Ok)
                .context("base power: the profiles have no idle rows; give --base-power")?;
            (rows, base)
        }
    };
    let system = policy::policy(&args.system)?;
    let (gpus, load, split, time_limit) = (args.gpus, args.load, system.splits(), args.time_limit);
    let slowdown = neighbours.clone().map(|neighbours| neighbours as _);
    let ask =
        Ask { gpus, load, split, time_limit, slowdown, ..Ask::new(workload, &rows, &base, args.objective) };
    let plan = policy::solve(&Problem::new(&ask)?, system);
    if let Some(neighbours) = neighbours {
        neighbours.failed()?;
    }
    let mut plan = plan?;
    plan.inputs = read.map(input).collect::<Result<_>>()?;
    Ok(plan)
}

/// The scripts of a plan, and those of another one in the same folder.
#[derive(Default)]
struct Scripts {
    files: Vec<(PathBuf, String)>,
    stale: Vec<PathBuf>,
}

impl Scripts {
    /// Whatever is in the way is an error, unless `force` is given and gpumon wrote it.
    fn prepare(folder: &Path, scripts: Vec<Emitted>, force: bool) -> Result<Self> {
        let is_new = |name: &str| scripts.iter().any(|script| script.name == name);
        let entries = match fs::read_dir(folder) {
            Ok(entries) => entries.collect::<std::io::Result<Vec<_>>>(),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(e) => Err(e),
        };
        let entries = entries.with_context(|| format!("cannot use the folder `{}`", folder.display()))?;
        let mut stale = Vec::new();
        for path in entries.into_iter().map(|entry| entry.path()) {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if !is_script(&name) || is_new(&name) {
                continue;
            }
            let ours = fs::read(&path).is_ok_and(|text| sh::is_ours(&text));
            if !(ours && force) {
                bail!(
                    "`{}` is not of this plan, and who runs the folder's scripts would run it too; {}",
                    path.display(),
                    if ours {
                        "--force removes it, or name another folder with --emit-to"
                    } else {
                        "gpumon did not write it, so move it, or name another folder with --emit-to"
                    }
                );
            }
            stale.push(path);
        }
        stale.sort();
        let files = scripts.into_iter().map(|script| (folder.join(script.name), script.text)).collect();
        Ok(Self { files, stale })
    }
}

/// Whether a name is one that a plan's script could have.
fn is_script(name: &str) -> bool {
    let number = name.strip_prefix("gpu").and_then(|rest| rest.strip_suffix(".sh"));
    number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

/// Makes a folder and those above it; gives those that were not there, the innermost first.
fn make_folder(folder: &Path) -> Result<Vec<PathBuf>> {
    let missing = folder.ancestors().take_while(|f| !f.as_os_str().is_empty() && !f.exists());
    let missing: Vec<PathBuf> = missing.map(Path::to_owned).collect();
    fs::create_dir_all(folder).with_context(|| format!("cannot make the folder `{}`", folder.display()))?;
    Ok(missing)
}

/// Where the scripts go: beside the plan, unless another folder is named.
fn scripts_folder(args: &PlaceArgs, output: &Path) -> Result<PathBuf> {
    match (&args.emit_to, output.file_stem()) {
        (Some(folder), _) => Ok(folder.clone()),
        (None, Some(stem)) if !is_stdout(output) => {
            let mut name = stem.to_owned();
            name.push("-sh");
            Ok(output.with_file_name(name))
        }
        _ => bail!(
            "--emit sh: the plan goes to standard output, so name a folder for the scripts with --emit-to"
        ),
    }
}

fn input(path: &PathBuf) -> Result<Input> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read `{}`", path.display()))?;
    Ok(Input::new(&path.file_name().unwrap_or_default().to_string_lossy(), &bytes))
}

fn summary(plan: &Plan) -> String {
    let total = &plan.total;
    format!(
        "{}{}: {} GPU{}, {:.1} W while all models run, {:.1} W on average, {:.4} J a request; {} {:.6} {}{}",
        plan.system,
        if plan.simulated { " (from simulated GPUs)" } else { "" },
        total.gpus_used,
        if total.gpus_used == 1 { "" } else { "s" },
        total.power_w,
        total.average_power_w,
        total.energy_per_request_j,
        plan.objective,
        plan.cost,
        plan.cost_unit,
        distance(plan)
    )
}

/// How far a plan may be from the cheapest, where its system tells.
fn distance(plan: &Plan) -> String {
    match (plan.total.proven, plan.total.bound) {
        (Some(true), _) => ", proven to be the cheapest of those that divide no rate".into(),
        (_, Some(bound)) => format!(
            ", not proven to be the cheapest: none that divides no rate costs less than {bound:.6} {}",
            plan.cost_unit
        ),
        (_, None) => String::new(),
    }
}
