//! What can go wrong, sorted by what the caller does next.
//!
//! Rule: [`FitError`] is about rows and options: measure more, or ask for less. [`ModelFileError`] is about a file:
//! write it anew, or take a newer gpumon. [`PredictError`] is about a point: ask for another one.

/// Why a fit was not made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FitError {
    /// No usable rows at all.
    #[error(
        "model `{model}`: no usable rows; profile it, or check the columns `valid` and `reason` of its rows"
    )]
    NoPoints {
        /// Model name.
        model: String,
    },
    /// Fewer points than the form has to have.
    #[error(
        "model `{model}`, {target}: {found} usable points, but the {form} form needs at least {needed}; measure {} \
         more{}", needed - found, dropped_text(.dropped)
    )]
    TooFewPoints {
        /// Model name.
        model: String,
        /// What was to be fitted.
        target: &'static str,
        /// Name of the form.
        form: &'static str,
        /// Distinct points there are.
        found: usize,
        /// Points needed.
        needed: usize,
        /// Why rows were left out, with counts.
        dropped: Vec<String>,
    },
    /// The arithmetic gave no finite answer.
    #[error(
        "model `{model}`, {target}: the least squares have no finite solution; check its rows for extreme values"
    )]
    NoSolution {
        /// Model name.
        model: String,
        /// What was to be fitted.
        target: &'static str,
    },
    /// Base power cannot be had from these rows.
    #[error("base power: {reason}")]
    NoBase {
        /// What is missing and what to do.
        reason: String,
    },
    /// Rows of more than one kind of GPU.
    #[error("the rows are of several GPUs ({names}); fit each kind by itself")]
    SeveralGpus {
        /// Their names.
        names: String,
    },
    /// An option is out of its range.
    #[error("{option} is {found}; expected {expected}")]
    BadOption {
        /// Name of the option.
        option: &'static str,
        /// What was given.
        found: String,
        /// What is allowed.
        expected: &'static str,
    },
}

/// Why a model file was not read or written.
#[derive(Debug, thiserror::Error)]
pub enum ModelFileError {
    /// The file could not be opened, read or written.
    #[error("cannot {doing} the model file `{path}`: {cause}")]
    Io {
        /// What was tried: `read` or `write`.
        doing: &'static str,
        /// The file.
        path: String,
        /// What the system said.
        cause: std::io::Error,
    },
    /// Written by a later version.
    #[error(
        "{path}: model file of schema {found}, this gpumon reads up to {known}; take a newer gpumon, or fit again with this one"
    )]
    NewerSchema {
        /// The file.
        path: String,
        /// Its schema.
        found: u64,
        /// The newest this version knows.
        known: u64,
    },
    /// A form that this version does not know.
    #[error(
        "{path}: model `{model}` has the form `{form}`; known forms are {known}; take a newer gpumon, or fit again"
    )]
    UnknownForm {
        /// The file.
        path: String,
        /// Model name.
        model: String,
        /// The form in the file.
        form: String,
        /// The forms there are.
        known: String,
    },
    /// Not a model file, or a damaged one.
    #[error("{path}: not a model file: {reason}; `gpumon fit` writes one")]
    Malformed {
        /// The file.
        path: String,
        /// Where and what.
        reason: String,
    },
}

/// Why a point has no prediction.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PredictError {
    /// The file has no such model.
    #[error("no model `{model}` in the model file; it has {known}")]
    UnknownModel {
        /// The model that was asked for.
        model: String,
        /// Those there are.
        known: String,
    },
    /// The parameters give no number.
    #[error(
        "model `{model}` gives no finite answer at this point; its parameters are damaged, so fit it again"
    )]
    NoAnswer {
        /// Model name.
        model: String,
    },
    /// A coordinate that no GPU has.
    #[error("model `{model}`: {field} is {found}; expected {expected}")]
    BadPoint {
        /// Model name.
        model: String,
        /// Name of the coordinate.
        field: &'static str,
        /// What was given.
        found: String,
        /// What is allowed.
        expected: &'static str,
    },
}

fn dropped_text(dropped: &[String]) -> String {
    if dropped.is_empty() { String::new() } else { format!(" (left out: {})", dropped.join(", ")) }
}
