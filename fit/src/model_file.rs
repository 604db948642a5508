//! The model file: fitted models as JSON.
//!
//! Rule: one object with `schema`, the gpumon version that wrote it, the GPU, the base power and the models; each
//! model says its form, its parameters with standard errors, the ranges it is valid in, its held-out errors, its
//! intervals and the hash of its rows. The schema number rises when a reader of the old one would misread the new one.
//!
//! Cases: unknown keys are ignored. A newer schema, an unknown form, a damaged file and parameters that a form cannot
//! have are errors that name the file and, where there is one, the model. The file is replaced whole, or not at all.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::base::BasePower;
use crate::colocation::model::ColocationModel;
use crate::error::ModelFileError;
use crate::fit::Form;
use crate::models::{FitOptions, Fitted, Model, NotFitted};
use crate::tail::Tail;

/// The newest schema that this version knows: some model was fitted on several processes in a share.
pub const SCHEMA: u64 = 2;
/// The schema of files without such models, which older versions read.
const ONE_PROCESS: u64 = 1;

/// A model file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelFile {
    /// Schema number.
    pub schema: u64,
    /// Version of gpumon that wrote it.
    pub gpumon_version: String,
    /// Name of the GPU, where the profile says it.
    pub gpu_name: Option<String>,
    /// Whether the profile comes from a simulated GPU.
    pub simulated: bool,
    /// Base power of the GPU.
    pub base: Option<BasePower>,
    /// The models.
    pub models: Vec<Model>,
    /// Models of the profile that could not be fitted.
    pub not_fitted: Vec<NotFitted>,
    /// What models do together, where sets were measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub colocation: Option<ColocationModel>,
}

impl ModelFile {
    /// The file of what was fitted with `options`.
    pub fn new(fitted: Fitted, options: &FitOptions) -> Self {
        Self {
            schema: if fitted.models.iter().all(|m| m.ranges.processes[1] <= 1) {
                ONE_PROCESS
            } else {
                SCHEMA
            },
            gpumon_version: env!("CARGO_PKG_VERSION").to_owned(),
            gpu_name: fitted.gpu_name,
            simulated: options.simulated,
            base: fitted.base,
            models: fitted.models,
            not_fitted: fitted.not_fitted,
            colocation: None,
        }
    }

    /// Reads a file.
    ///
    /// # Errors
    ///
    /// [`ModelFileError`], by what to do about it.
    pub fn read(path: &Path) -> Result<Self, ModelFileError> {
        let io = |cause| ModelFileError::Io { doing: "read", path: path.display().to_string(), cause };
        Self::parse(&std::fs::read_to_string(path).map_err(io)?, path)
    }

    /// Reads a file's text; `path` is for messages.
    ///
    /// # Errors
    ///
    /// [`ModelFileError`] but for its `Io`.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ModelFileError> {
        let path = path.display().to_string();
        let malformed = |reason: String| ModelFileError::Malformed { path: path.clone(), reason };
        let value: Value = serde_json::from_str(text).map_err(|e| malformed(e.to_string()))?;
        let schema = value.get("schema").and_then(Value::as_u64);
        let found = schema.ok_or_else(|| malformed("`schema` is missing or not a number".into()))?;
        if found == 0 {
            return Err(malformed("`schema` is 0; schemas begin with 1".into()));
        }
        if found > SCHEMA {
            return Err(ModelFileError::NewerSchema { path, found, known: SCHEMA });
        }
        let models = value.get("models").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        for (i, model) in models.iter().enumerate() {
            let text = |key: &str| model.get(key).and_then(Value::as_str);
            let name = text("name").map_or_else(|| format!("number {i}"), str::to_owned);
            let form = text("form").ok_or_else(|| malformed(format!("model `{name}` has no `form`")))?;
            if Form::named(form).is_none() {
                let known = Form::ALL.map(Form::name).join(", ");
                return Err(ModelFileError::UnknownForm { path, model: name, form: form.to_owned(), known });
            }
            // Each model by itself first, so that the message can name it.
            Model::deserialize(model).map_err(|e| malformed(format!("model `{name}`: {e}")))?;
        }
        let file = Self::deserialize(&value).map_err(|e| malformed(e.to_string()))?;
        if file.base.as_ref().is_some_and(|b| !b.is_sound()) {
            return Err(malformed("`base` wants ascending clocks and powers of 0 to 10000 W".into()));
        }
        if let Some(what) = file.colocation.as_ref().and_then(ColocationModel::unsound) {
            return Err(malformed(what.into()));
        }
        for (i, model) in file.models.iter().enumerate() {
            let shares_sound = model.shares.iter().all(|s| *s > 0.0 && *s <= 1.0);
            if !model.ranges.are_sound() || !shares_sound {
                let what = "`ranges` or `shares` that no points can have";
                return Err(malformed(format!("model `{}`: {what}", model.name)));
            }
            let tail_sound = model.tail.as_ref().is_none_or(Tail::is_sound);
            if !model.surfaces.is_sound() || !model.intervals.are_sound() || !tail_sound {
                return Err(malformed(format!(
                    "model `{}`: parameters that its form cannot have",
                    model.name
                )));
            }
            if file.models[..i].iter().any(|m| m.name == model.name) {
                return Err(malformed(format!("model `{}` is listed twice", model.name)));
            }
        }
        Ok(file)
    }

    /// The file's text.
    ///
    /// # Errors
    ///
    /// [`ModelFileError::Malformed`] if a value has no JSON form.
    pub fn text(&self) -> Result<String, ModelFileError> {
        let malformed = |e: serde_json::Error| ModelFileError::Malformed {
            path: "model file".into(),
            reason: e.to_string(),
        };
        Ok(numbers_on_one_line(&serde_json::to_string_pretty(self).map_err(malformed)?))
    }

    /// Writes the file beside its place first and then moves it there.
    ///
    /// # Errors
    ///
    /// [`ModelFileError::Io`].
    pub fn write(&self, path: &Path) -> Result<(), ModelFileError> {
        let io = |cause| ModelFileError::Io { doing: "write", path: path.display().to_string(), cause };
        let mut name = path.as_os_str().to_owned();
        name.push(".partial");
        let partial = PathBuf::from(name);
        std::fs::write(&partial, self.text()?).map_err(io)?;
        std::fs::rename(&partial, path).map_err(io)
    }

    /// The model of this name.
    pub fn model(&self, name: &str) -> Option<&Model> {
        self.models.iter().find(|m| m.name == name)
    }
}

/// Longer lists of numbers stand without blanks: nobody reads them, and they are most of the file.
const READABLE: usize = 32;

/// Pretty JSON with each list of numbers and nulls on one line, without indentation inside another list, so that a person can read the file. Strings are safe: in JSON
/// they hold no line breaks.
fn numbers_on_one_line(pretty: &str) -> String {
    let mut text = String::with_capacity(pretty.len());
    let mut lines = pretty.lines().peekable();
    let number = |line: &str| {
        let item = line.trim_start();
        item.starts_with(|c: char| c == '-' || c.is_ascii_digit()) || item.trim_end_matches(',') == "null"
    };
    while let Some(line) = lines.next() {
        // Lists of lists may be long, and their indentation most of the file.
        text += if line.trim_start().starts_with('[') { line.trim_start() } else { line };
        if line.ends_with('[') && lines.peek().is_some_and(|next| number(next)) {
            let mut items = Vec::new();
            while let Some(item) = lines.next_if(|next| number(next)) {
                items.push(item.trim());
            }
            text += &items.join(if items.len() > READABLE { "" } else { " " });
            text += lines.next().unwrap_or_default().trim();
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_numbers_stand_on_one_line_and_nothing_else_changes() {
        let value = serde_json::json!({"a": [1, -2.5], "b": [[1, 2], []], "c": "[\n1", "d": [{"e": [3]}, "4"], "f": [null, 5]});
        let text = numbers_on_one_line(&serde_json::to_string_pretty(&value).unwrap());
        assert!(
            text.contains("\"a\": [1, -2.5],\n")
                && text.contains("[null, 5]")
                && text.contains("\n[1, 2],\n"),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
    }
}
