//! The script of a fake library: which GPUs there are, what is allowed, what goes wrong.
//!
//! Rule: the file that `GPUMON_FAKENVML` names, or without it one `h200` and no faults. Unknown keys,
//! calls and kinds are errors, which `nvmlInit` prints before it fails.
//! Source of the keys: docs/fake-nvml.md.

use std::path::{Path, PathBuf};

use gpumon_simgpu::Spec;
use serde::Deserialize;

use crate::faults::{Fault, FaultText};

/// The variable that names a script.
pub(crate) const VARIABLE: &str = "GPUMON_FAKENVML";

/// Why a script cannot be played.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScriptError {
    /// The script or a file that it names cannot be read.
    #[error("cannot read `{file}`: {message}")]
    File {
        /// Path as given.
        file: String,
        /// What the system says.
        message: String,
    },
    /// Not TOML, an unknown key, or a value of another type.
    #[error("in the script, {0}\nsee docs/fake-nvml.md for the keys")]
    Shape(String),
    /// GPUs that are not described rightly.
    #[error("key `gpus`: {0}")]
    Gpus(String),
    /// A fault that cannot be.
    #[error("[[fault]] number {number}: {message}")]
    Fault {
        /// Position, from 1.
        number: usize,
        /// What was found and what was expected.
        message: String,
    },
    /// A symbol that should be missing, but this copy of the library has it.
    #[error(
        "a fault wants `{0}` to be missing, but this copy of the library exports it; make a copy without \
         it, see docs/fake-nvml.md"
    )]
    SymbolIsThere(String),
    /// The state cannot be shared.
    #[error("state `{file}`: {message}")]
    State {
        /// Its path.
        file: String,
        /// What is wrong and what to do.
        message: String,
    },
}

/// GPUs, permissions and faults.
#[derive(Clone, Debug)]
pub struct Script {
    /// The GPUs, `count` of them.
    pub spec: Spec,
    /// Whether setters are allowed.
    pub privileged: bool,
    /// File through which processes share one state.
    pub state: Option<PathBuf>,
    /// Processes that the GPUs list.
    pub(crate) processes: Vec<Process>,
    /// GPU instances at the beginning.
    pub(crate) instances: Vec<Instance>,
    pub(crate) faults: Vec<Fault>,
}

/// A process with a CUDA context.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Process {
    #[serde(default)]
    pub(crate) gpu: u32,
    pub(crate) pid: u32,
    #[serde(default)]
    pub(crate) used_bytes: u64,
    /// Share of the GPU's utilisation, %; alike if absent.
    pub(crate) share_pct: Option<f64>,
    /// The GPU instance that it runs on.
    pub(crate) gpu_instance: Option<u32>,
}

/// A GPU instance that is there from the beginning, with one compute instance in all of it.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Instance {
    #[serde(default)]
    pub(crate) gpu: u32,
    pub(crate) slices: u8,
    pub(crate) start: u8,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    #[serde(default = "h200")]
    gpus: String,
    count: Option<u32>,
    #[serde(default)]
    privileged: bool,
    state: Option<PathBuf>,
    #[serde(default)]
    process: Vec<Process>,
    #[serde(default)]
    instance: Vec<Instance>,
    #[serde(default)]
    fault: Vec<FaultText>,
}

fn h200() -> String {
    "h200".into()
}

fn read(path: &Path) -> Result<String, ScriptError> {
    std::fs::read_to_string(path)
        .map_err(|e| ScriptError::File { file: path.display().to_string(), message: e.to_string() })
}

impl Script {
    /// The script that the environment names.
    pub fn from_environment() -> Result<Self, ScriptError> {
        match std::env::var_os(VARIABLE).filter(|v| !v.is_empty()) {
            Some(path) => Self::load(Path::new(&path)),
            None => Self::parse("", Path::new(".")),
        }
    }

    /// The script in a file. Paths in it are relative to its folder.
    pub fn load(path: &Path) -> Result<Self, ScriptError> {
        Self::parse(&read(path)?, path.parent().unwrap_or(Path::new(".")))
    }

    /// A script's text, with the folder that its paths are relative to.
    pub fn parse(text: &str, folder: &Path) -> Result<Self, ScriptError> {
        let text: Text =
            toml::from_str(text).map_err(|e| ScriptError::Shape(e.to_string().trim().to_owned()))?;
        let mut spec = spec(&text.gpus, folder)?;
        spec.count = text.count.unwrap_or(spec.count);
        let faults = text.fault.into_iter().enumerate().map(|(i, fault)| {
            let checked = fault.check(i, spec.count);
            checked.map_err(|message| ScriptError::Fault { number: i + 1, message })
        });
        let faults = faults.collect::<Result<_, _>>()?;
        let state = text.state.map(|path| folder.join(path));
        check_instances(&text.instance, spec.count).map_err(ScriptError::Shape)?;
        Ok(Self {
            spec,
            privileged: text.privileged,
            state,
            processes: text.process,
            instances: text.instance,
            faults,
        })
    }

    /// Symbols that the library must not export under this script.
    pub fn missing_symbols(&self) -> Vec<&'static str> {
        self.faults.iter().filter_map(Fault::missing_symbol).collect()
    }
}

fn check_instances(instances: &[Instance], gpus: u32) -> Result<(), String> {
    for (number, instance) in (1..).zip(instances) {
        let on_it: Vec<_> =
            instances.iter().filter(|i| i.gpu == instance.gpu).map(|i| (i.slices, i.start)).collect();
        if instance.gpu >= gpus || !gpumon_core::geometry::SEVEN_SLICES.is_legal(&on_it) {
            return Err(format!(
                "[[instance]] number {number} does not fit on a GPU of the script with the others"
            ));
        }
    }
    Ok(())
}

fn spec(gpus: &str, folder: &Path) -> Result<Spec, ScriptError> {
    if let Some(spec) = Spec::builtin(gpus) {
        return Ok(spec);
    }
    if !gpus.ends_with(".toml") {
        let known = Spec::builtin_names().collect::<Vec<_>>().join("`, `");
        return Err(ScriptError::Gpus(format!("found `{gpus}`, expected `{known}` or the path of a .toml")));
    }
    let path = folder.join(gpus);
    let beside = path.parent().unwrap_or(folder).to_owned();
    let text = read(&path)?;
    Spec::parse(&text, &mut |file| std::fs::read_to_string(beside.join(file)).map_err(|e| e.to_string()))
        .map_err(|e| ScriptError::Gpus(format!("`{}`: {e}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        Script::parse(text, Path::new("/nowhere")).unwrap_err().to_string()
    }

    #[test]
    fn an_empty_script_is_one_h200_that_cannot_be_changed() {
        let script = Script::parse("", Path::new(".")).unwrap();
        assert_eq!((script.spec.count, script.privileged, script.faults.len()), (1, false, 0));
        assert!(script.spec.name.contains("H200"));
    }

    #[test]
    fn what_is_wrong_in_a_script_is_named() {
        for (text, says) in [
            ("gpu = 3", "unknown field `gpu`"),
            ("gpus = \"b300\"", "`h200`"),
            ("gpus = \"mine.toml\"", "/nowhere/mine.toml"),
            ("[[instance]]\nslices = 5\nstart = 0", "[[instance]] number 1"),
            ("[[fault]]\nkind = \"odd\"\ncall = \"*\"", "missing-symbol"),
            ("[[fault]]\nkind = \"hang\"\ncall = \"nvmlDeviceGetPower\"", "`nvmlDeviceGetPower`"),
            ("[[fault]]\nkind = \"hang\"", "`call`"),
            ("[[fault]]\nkind = \"no-effect\"\ncall = \"*\"", "`*`"),
            ("[[fault]]\nkind = \"no-effect\"\ncall = \"nvmlDeviceGetName\"", "nvmlDeviceSetMigMode"),
            ("[[fault]]\nkind = \"error\"\ncall = \"*\"\nerror = \"BAD\"", "GPU_IS_LOST"),
            ("[[fault]]\nkind = \"error\"\ncall = \"*\"", "`error`"),
            ("[[fault]]\nkind = \"hang\"\ncall = \"*\"\nvalue = 3", "`value`"),
            ("[[fault]]\nkind = \"hang\"\ncall = \"*\"\ngpu = 1", "`gpu`"),
            ("[[fault]]\nkind = \"lost\"\nfor_ms = 3", "for good"),
            ("[[fault]]\nkind = \"garbage\"\nvalue = 1\ncall = \"nvmlDeviceGetName\"", "nvmlDeviceGetName"),
            ("[[fault]]\nkind = \"hang\"\ncall = \"*\"\nfrom_call = 0", "from 1"),
            ("[[fault]]\nkind = \"field-type\"\ntype = \"float\"", "`double`"),
            ("[[fault]]\nkind = \"hang\"\ncall = \"*\"\nfor_ms = -3", "for_ms"),
        ] {
            let found = error(text);
            assert!(found.contains(says), "{text:?} gives {found:?}, which lacks {says:?}");
        }
    }
}
