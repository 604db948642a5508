//! What `place` and `tune` have in common: the files that plans are made from, and those that come of them.
//!
//! Rule: a plan and the files of `--emit` appear together or not at all. Files of another plan in the folder are an error, or
//! go with `--force`; whatever gpumon did not write stays, and is an error.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use gpumon_core::profile::ProfileRow;
use gpumon_core::workload::Workload;
use gpumon_fit::model_file::ModelFile;
use gpumon_place::base::BasePower;
use gpumon_place::cost::Objective;
use gpumon_place::emit::{Emission, Emitter, Order, emitter};
use gpumon_place::plan::{Input, Plan};
use gpumon_place::problem::{Ask, LOAD};

use super::neighbours::Neighbours;
use super::{candidates, inputs};
use crate::cli::pipeline::{PlanArgs, SourceArgs};
use crate::export::file::is_stdout;
use crate::output::note;

/// What a plan is made from.
pub struct Source {
    /// What is to be served.
    pub workload: Workload,
    /// Measured or predicted rows.
    rows: Vec<ProfileRow>,
    /// Base power by clock.
    base: BasePower,
    /// How much neighbours slow each other down, where that is known.
    neighbours: Option<Arc<Neighbours>>,
}

impl Source {
    /// Reads it.
    pub fn read(args: &SourceArgs) -> Result<Self> {
        let workload = inputs::workload(&args.workload)?;
        let given = args.base_power.as_deref().map(inputs::base_power).transpose()?;
        let mut neighbours = None;
        let (rows, base) = match &args.models {
            Some(path) => {
                let models = ModelFile::read(path)?;
                let candidates = candidates::from_models(&models, &workload, given, &args.batches)?;
                neighbours = Neighbours::of(models, &workload).map(Arc::new);
                candidates
            }
            None => measured(&args.profile, &workload, given)?,
        };
        Ok(Self { workload, rows, base, neighbours })
    }

    /// The inputs of a problem, at full load.
    pub fn ask(&self, args: &SourceArgs, objective: Objective) -> Ask<'_> {
        let Self { workload, rows, base, neighbours } = self;
        let slowdown = neighbours.clone().map(|neighbours| neighbours as _);
        Ask { gpus: args.gpus, slowdown, ..Ask::new(workload, rows, base, objective) }
    }

    /// An error if neighbours were asked for that could not be told.
    pub fn failed(&self) -> Result<()> {
        self.neighbours.as_ref().map_or(Ok(()), |neighbours| neighbours.failed())
    }
}

fn measured(
    paths: &[PathBuf],
    workload: &Workload,
    given: Option<BasePower>,
) -> Result<(Vec<ProfileRow>, BasePower)> {
    let rows = inputs::profiles(paths)?;
    let served = |name: &str| workload.models.iter().any(|m| m.name == name);
    for row in rows.iter().filter(|row| served(&row.model)) {
        if let Some(name) = &row.gpu_name {
            inputs::same_kind(workload, &format!("`{}` was profiled on", row.model), name)?;
        }
    }
    let base = given
        .map_or_else(|| BasePower::from_rows(&rows), Ok)
        .context("base power: the profiles have no idle rows; give --base-power")?;
    Ok((rows, base))
}

/// An error if a load cannot be asked for; `flag` is where it was given.
pub fn check_load(flag: &str, load: f64) -> Result<()> {
    if !LOAD.contains(&load) {
        let (least, most) = (LOAD.start(), LOAD.end());
        bail!("{flag} {load}: expected a number from {least:e} to {most:e}, such as 1 or 0.5");
    }
    Ok(())
}

/// A file that a plan was made from, by its name and hash.
pub fn input(path: &PathBuf) -> Result<Input> {
    let bytes = fs::read(path).with_context(|| format!("cannot read `{}`", path.display()))?;
    Ok(Input::new(&path.file_name().unwrap_or_default().to_string_lossy(), &bytes))
}

/// Where a plan and the files of `--emit` are to go.
pub struct Outputs<'a> {
    args: &'a PlanArgs,
    /// The plan's file, if it is to be written anywhere.
    plan: Option<&'a Path>,
    emit: Option<(&'static dyn Emitter, PathBuf)>,
}

impl<'a> Outputs<'a> {
    /// Refuses what cannot be written, before anything is planned. `plan` is where the plan goes.
    pub fn new(args: &'a PlanArgs, plan: Option<&'a Path>, read: &[&Path]) -> Result<Self> {
        let emit = match args.emit.as_deref().and_then(emitter) {
            Some(emitter) => Some((emitter, folder(args, emitter, plan)?)),
            None => None,
        };
        if let Some((emitter, _)) = &emit {
            let unused =
                |flag: &str| format!("{flag} means nothing to --emit {}; leave it out", emitter.name());
            if args.image.is_some() && !emitter.takes_image() {
                bail!(unused("--image"));
            }
            if args.gpu_memory_gb.is_some() && !emitter.takes_memory() {
                bail!(unused("--gpu-memory-gb"));
            }
        }
        inputs::distinct(read.iter().copied(), plan)?;
        Ok(Self { args, plan, emit })
    }

    /// Writes the plan, what `--emit` makes of it, and `report` to standard output if there is one.
    pub fn write(
        &self,
        plan: &Plan,
        workload: &Workload,
        read: &[&Path],
        report: Option<&str>,
    ) -> Result<()> {
        let mut emission = Emission::default();
        let mut folder_files = Files::default();
        if let Some((emitter, folder)) = &self.emit {
            let (image, memory_gb) = (self.args.image.as_deref(), self.args.gpu_memory_gb);
            emission = emitter.emit(&Order { plan, workload, image, memory_gb })?;
            folder_files = Files::prepare(*emitter, folder, &emission, self.args.force)?;
        }
        let emitted = folder_files.new.iter().map(|(path, _)| path.as_path());
        inputs::distinct(read.iter().copied(), self.plan.into_iter().chain(emitted))?;

        let json = plan.to_json()?;
        let mut files: Vec<(&Path, &str)> = report.map(|text| (Path::new("-"), text)).into_iter().collect();
        files.extend(self.plan.map(|path| (path, json.as_str())));
        files.extend(folder_files.new.iter().map(|(path, text)| (path.as_path(), *text)));
        let folder = self.emit.as_ref().map(|(_, folder)| folder.as_path());
        let made = folder.map(make_folder).transpose()?.unwrap_or_default();
        if let Err(error) = inputs::write_all(&files, self.args.force) {
            for folder in made {
                // Only an empty one goes, and the error above is the one to tell.
                let _ = fs::remove_dir(folder);
            }
            return Err(error);
        }
        for path in &folder_files.stale {
            fs::remove_file(path)
                .with_context(|| format!("cannot remove `{}` of another plan", path.display()))?;
        }
        for said in &emission.notes {
            note(format_args!("gpumon: {said}"));
        }
        Ok(())
    }
}

/// Where the files of `--emit` go: beside the plan, unless another folder is named.
fn folder(args: &PlanArgs, emitter: &dyn Emitter, plan: Option<&Path>) -> Result<PathBuf> {
    let plan = plan.filter(|path| !is_stdout(path));
    match (&args.emit_to, plan, plan.and_then(Path::file_stem)) {
        (Some(folder), ..) => Ok(folder.clone()),
        (None, Some(plan), Some(stem)) => {
            let mut name = stem.to_owned();
            name.push("-");
            name.push(emitter.name());
            Ok(plan.with_file_name(name))
        }
        _ => bail!(
            "--emit {}: the plan goes to standard output, so name a folder for the files with --emit-to",
            emitter.name()
        ),
    }
}

/// The files of a plan, and those of another one in the same folder.
#[derive(Default)]
struct Files<'a> {
    new: Vec<(PathBuf, &'a str)>,
    stale: Vec<PathBuf>,
}

impl<'a> Files<'a> {
    /// Whatever is in the way is an error, unless `force` is given and gpumon wrote it.
    fn prepare(emitter: &dyn Emitter, folder: &Path, emission: &'a Emission, force: bool) -> Result<Self> {
        let is_new = |name: &str| emission.files.iter().any(|file| file.name == name);
        let entries = match fs::read_dir(folder) {
            Ok(entries) => entries.collect::<std::io::Result<Vec<_>>>(),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(e) => Err(e),
        };
        let entries = entries.with_context(|| format!("cannot use the folder `{}`", folder.display()))?;
        let mut stale = Vec::new();
        for path in entries.into_iter().map(|entry| entry.path()) {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if !emitter.could_be(&name) || is_new(&name) {
                continue;
            }
            let ours = fs::read(&path).is_ok_and(|text| emitter.wrote(&text));
            if !(ours && force) {
                bail!(
                    "`{}` is not of this plan, and who uses the folder's files would use it too; {}",
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
        let new = emission.files.iter().map(|file| (folder.join(&file.name), file.text.as_str())).collect();
        Ok(Self { new, stale })
    }
}

/// Makes a folder and those above it; gives those that were not there, the innermost first.
fn make_folder(folder: &Path) -> Result<Vec<PathBuf>> {
    let missing = folder.ancestors().take_while(|f| !f.as_os_str().is_empty() && !f.exists());
    let missing: Vec<PathBuf> = missing.map(Path::to_owned).collect();
    fs::create_dir_all(folder).with_context(|| format!("cannot make the folder `{}`", folder.display()))?;
    Ok(missing)
}
