//! What placing begins with: a workload, and what its models could run as, measured or predicted.
//!
//! Rule: everything is read once and named with its hash.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use gpumon_core::profile::ProfileRow;
use gpumon_core::workload::Workload;
use gpumon_fit::model_file::ModelFile;
use gpumon_place::base::BasePower;
use gpumon_place::cost::Objective;
use gpumon_place::plan::Input;
use gpumon_place::problem::{Ask, LOAD};

use super::{candidates, inputs};
use crate::cli::pipeline::SourceArgs;

/// What was read.
pub struct Sources {
    pub workload: Workload,
    rows: Vec<ProfileRow>,
    base: BasePower,
    gpus: Option<u32>,
    /// The files with their hashes.
    pub inputs: Vec<Input>,
}

/// The files that are read.
pub fn paths(args: &SourceArgs) -> impl Iterator<Item = &Path> {
    [&args.workload]
        .into_iter()
        .chain(&args.models)
        .chain(&args.profile)
        .chain(&args.base_power)
        .map(PathBuf::as_path)
}

/// An error if a scale of rates is none; `what` names where it was given.
pub fn load_in_range(load: f64, what: &str) -> Result<()> {
    if LOAD.contains(&load) {
        return Ok(());
    }
    bail!("{what} {load}: expected a number from {:e} to {:e}, such as 1 or 0.5", LOAD.start(), LOAD.end())
}

impl Sources {
    /// Reads what the arguments name.
    pub fn read(args: &SourceArgs) -> Result<Self> {
        let workload = inputs::workload(&args.workload)?;
        let given = args.base_power.as_deref().map(inputs::base_power).transpose()?;
        let (rows, base) = match &args.models {
            Some(path) => candidates::from_models(&ModelFile::read(path)?, &workload, given, &args.batches)?,
            None => {
                let rows = inputs::profiles(&args.profile)?;
                let served = |name: &str| workload.models.iter().any(|m| m.name == name);
                for row in rows.iter().filter(|row| served(&row.model)) {
                    if let Some(name) = &row.gpu_name {
                        inputs::same_kind(&workload, &format!("`{}` was profiled on", row.model), name)?;
                    }
                }
                let base = given
                    .map_or_else(|| BasePower::from_rows(&rows), Ok)
                    .context("base power: the profiles have no idle rows; give --base-power")?;
                (rows, base)
            }
        };
        let inputs = paths(args).map(input).collect::<Result<_>>()?;
        Ok(Self { workload, rows, base, gpus: args.gpus, inputs })
    }

    /// The inputs of a problem at full load.
    pub fn ask(&self, objective: Objective) -> Ask<'_> {
        Ask { gpus: self.gpus, ..Ask::new(&self.workload, &self.rows, &self.base, objective) }
    }
}

fn input(path: &Path) -> Result<Input> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read `{}`", path.display()))?;
    Ok(Input::new(&path.file_name().unwrap_or_default().to_string_lossy(), &bytes))
}
