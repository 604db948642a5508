//! What can go wrong, sorted by what the caller does next.

use crate::error::PredictError;

/// Why sets were not fitted or not predicted.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ColocationError {
    /// Measure more sets, or give other ones.
    #[error(
        "{rule}: {found} usable sets, but at least {needed} are needed; measure more with `gpumon profile --together`{}",
        left_out_text(.left_out)
    )]
    TooFewSets {
        /// The rule that was to be fitted.
        rule: &'static str,
        /// Sets that can be used.
        found: usize,
        /// Sets needed.
        needed: usize,
        /// Why sets were left out, with counts.
        left_out: Vec<String>,
    },
    /// Give sets of the same GPU as the profile.
    #[error("the sets are of `{sets}`, the models of `{models}`; give sets of the same kind of GPU")]
    OtherGpu {
        /// GPU of the sets.
        sets: String,
        /// GPU of the model file.
        models: String,
    },
    /// Ask for another set.
    #[error("{what}; expected {expected}")]
    BadSet {
        /// What is odd about it.
        what: String,
        /// What is allowed.
        expected: &'static str,
    },
    /// Ask for another member.
    #[error(transparent)]
    Member(#[from] PredictError),
    /// Fit the model with base power.
    #[error(
        "model `{model}` has no dynamic power: fit it on rows with power, and with idle rows or a table of base power"
    )]
    NoDynamicPower {
        /// The model.
        model: String,
    },
    /// Fit with base power.
    #[error(
        "the model file has no base power; profile the idle GPU, or give a table with `gpumon fit --base-power`"
    )]
    NoBasePower,
}

impl ColocationError {
    pub(crate) fn with_left_out(self, reasons: &[String]) -> Self {
        match self {
            Self::TooFewSets { rule, found, needed, .. } => {
                Self::TooFewSets { rule, found, needed, left_out: reasons.to_vec() }
            }
            other => other,
        }
    }
}

fn left_out_text(reasons: &[String]) -> String {
    if reasons.is_empty() { String::new() } else { format!(" (left out: {})", reasons.join(", ")) }
}
