//! A set of runs on disk: a folder of recordings and `runs.json`, which says what each of them is.
//!
//! Rule: the file is written anew after each run, so a set that was cut off holds the runs that were made. Warm-up runs
//! are kept and not counted.
//! Not done here: judging; see `diff`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::inputs;

/// Version of the file's shape.
const SCHEMA: u32 = 1;
/// Its name in the set's folder.
const FILE: &str = "runs.json";

/// The set.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Runs {
    schema: u32,
    gpumon: String,
    /// The commands, each as its words; the second is the one of `--vs`.
    pub commands: Vec<Vec<String>>,
    /// The runs in the order in which they were made.
    pub runs: Vec<Run>,
}

/// One run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// Its recording, a folder beside the file.
    pub recording: String,
    /// Which command, counted from 0.
    pub command: usize,
    /// Whether it only warmed up.
    pub warmup: bool,
    /// Exit code of the command.
    pub exit_code: u8,
}

impl Runs {
    /// An empty set of these commands.
    pub fn new(commands: Vec<Vec<String>>) -> Self {
        Self { schema: SCHEMA, gpumon: env!("CARGO_PKG_VERSION").into(), commands, runs: Vec::new() }
    }

    /// Whether a folder holds a set.
    pub fn is_at(folder: &Path) -> bool {
        folder.join(FILE).is_file()
    }

    /// Makes the folder of a new set; an earlier set there is replaced if `force` is given.
    pub fn make_folder(folder: &Path, force: bool) -> Result<()> {
        if folder.exists() {
            if !(force && Self::is_at(folder)) {
                let how = if Self::is_at(folder) { ", or --force to replace it" } else { "" };
                bail!("`{}` exists already; give another name{how}", folder.display());
            }
            let earlier = Self::read(folder)?;
            for run in &earlier.runs {
                let recording = inside(folder, &run.recording)?;
                fs::remove_dir_all(&recording)
                    .with_context(|| format!("cannot remove `{}`", recording.display()))?;
            }
            fs::remove_file(folder.join(FILE))?;
            fs::remove_dir(folder).with_context(|| {
                format!("`{}` holds more than the runs of an earlier set", folder.display())
            })?;
        }
        fs::create_dir_all(folder).with_context(|| format!("cannot make the folder `{}`", folder.display()))
    }

    /// Writes the file.
    pub fn write(&self, folder: &Path) -> Result<()> {
        inputs::write(&folder.join(FILE), true, &(serde_json::to_string_pretty(self)? + "\n"))
    }

    /// Reads the file of a folder.
    pub fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(FILE);
        let name = || format!("`{}`", path.display());
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", name()))?;
        let value: serde_json::Value = serde_json::from_str(&text).with_context(name)?;
        let schema = value["schema"].as_u64();
        if schema != Some(u64::from(SCHEMA)) {
            let found = schema.map_or("none".into(), |s| s.to_string());
            bail!(
                "{} has schema {found}; this gpumon reads {SCHEMA}, so use the gpumon that wrote it",
                name()
            );
        }
        let runs: Self = serde_json::from_value(value).with_context(name)?;
        for run in &runs.runs {
            inside(folder, &run.recording)?;
            if run.command >= runs.commands.len() {
                bail!("{}: `{}` is a run of a command that the file does not list", name(), run.recording);
            }
        }
        Ok(runs)
    }

    /// Recordings of the runs of one command that count, in order.
    pub fn counted(&self, folder: &Path, command: usize) -> Vec<PathBuf> {
        let of = self.runs.iter().filter(|run| run.command == command && !run.warmup);
        of.map(|run| folder.join(&run.recording)).collect()
    }
}

/// A recording of the set; its name must not lead out of the folder.
fn inside(folder: &Path, recording: &str) -> Result<PathBuf> {
    let plain = Path::new(recording).file_name().is_some_and(|name| name == recording);
    if !plain {
        bail!("`{}`: `{recording}` is no name of a recording in this folder", folder.join(FILE).display());
    }
    Ok(folder.join(recording))
}
