//! PyTorch models by name: the worker that is part of gpumon, run by the user's own Python.
//!
//! Rule: the Python is the one that was named, else that of `VIRTUAL_ENV`, else `python3` on the path. The worker is handed
//! over on its command line and speaks the same protocol as any other. Nothing is ever installed: what is missing is said.
//! Source of the models' shapes: torchvision, and transformers' configurations, both with random weights.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use super::command::Commanded;
use super::{Context, OpenError, Opened};

/// The worker.
const WORKER: &str = include_str!("../../../scripts/gpumon_torch_worker.py");

const VISION: &[&str] = &["torch", "torchvision"];
const TEXT: &[&str] = &["torch", "transformers"];

/// The models, and the Python packages that each needs.
pub const MODELS: &[(&str, &[&str])] = &[
    ("resnet50", VISION),
    ("resnet152", VISION),
    ("mobilenet_v3_large", VISION),
    ("vgg11", VISION),
    ("vgg19", VISION),
    ("densenet161", VISION),
    ("densenet169", VISION),
    ("bert", TEXT),
    ("gpt", TEXT),
    ("whisper", TEXT),
    ("diffusion_unet", &["torch"]),
];

pub(super) fn open(name: &str, torch: &str, context: &Context) -> Opened {
    let Some((_, packages)) = MODELS.iter().find(|(model, _)| *model == torch) else {
        let names: Vec<_> = MODELS.iter().map(|(model, _)| format!("`torch:{model}`")).collect();
        return Err(OpenError::Unknown { found: format!("torch:{torch}"), expected: names.join(", ") });
    };
    let python = python(context.python.clone(), std::env::var_os("VIRTUAL_ENV"));
    check(&python, packages)?;
    let python = python.to_string_lossy().into_owned();
    let argv = vec![python, "-c".into(), WORKER.into(), torch.into()];
    Ok(Box::new(Commanded::new(name, argv, Arc::clone(&context.clock))))
}

/// Which Python runs the worker.
fn python(named: Option<PathBuf>, virtual_env: Option<OsString>) -> PathBuf {
    let of_env = || virtual_env.map(|folder| Path::new(&folder).join("bin").join("python3"));
    named.or_else(of_env).unwrap_or_else(|| "python3".into())
}

/// Whether that Python has the packages. They are looked for, not imported, which would take seconds.
fn check(python: &Path, packages: &[&str]) -> Result<(), OpenError> {
    const LOOK: &str = "import importlib.util as u, sys\n\
                        print(' '.join(p for p in sys.argv[1:] if u.find_spec(p) is None))";
    let shown = python.display();
    let looked = Command::new(python).args(["-c", LOOK]).args(packages).stdin(Stdio::null()).output();
    let looked = looked.map_err(|e| OpenError::Python(format!("`{shown}` cannot be run: {e}")))?;
    if !looked.status.success() {
        let said = String::from_utf8_lossy(&looked.stderr);
        let said = said.lines().last().unwrap_or("nothing");
        return Err(OpenError::Python(format!("`{shown}` ended with {}: {said}", looked.status)));
    }
    let missing = String::from_utf8_lossy(&looked.stdout);
    match missing.trim() {
        "" => Ok(()),
        missing => Err(OpenError::Python(format!(
            "`{shown}` lacks {}; install what is missing there, such as with `{shown} -m pip install {missing}`",
            missing.replace(' ', ", ")
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worker_serves_the_models_that_are_listed() {
        let served = WORKER.split_once("\nMODELS = {\n").unwrap().1.split_once("\n}\n").unwrap().0;
        let served: Vec<_> = served.lines().map(|line| line.split('"').nth(1).unwrap()).collect();
        let listed: Vec<_> = MODELS.iter().map(|(model, _)| *model).collect();
        assert_eq!(served, listed);
    }

    #[test]
    fn the_named_python_comes_first_then_that_of_the_environment() {
        assert_eq!(python(Some("p".into()), Some("/v".into())), Path::new("p"));
        assert_eq!(python(None, Some("/v".into())), Path::new("/v/bin/python3"));
        assert_eq!(python(None, None), Path::new("python3"));
    }

    #[test]
    fn what_is_missing_is_said() {
        let error = check(Path::new("/no/python"), VISION).unwrap_err().to_string();
        assert!(error.contains("/no/python` cannot be run"), "{error}");
        let error = check(Path::new("false"), VISION).unwrap_err().to_string();
        assert!(error.contains("`false` ended with exit status: 1"), "{error}");
        let error = check(Path::new("python3"), &["json", "gpumon_no_such_package"]).unwrap_err().to_string();
        assert!(error.contains("lacks gpumon_no_such_package; install"), "{error}");
    }
}
