//! Plans turned into what runs them: one file a format.

pub mod sh;

/// A file to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emitted {
    /// File name, without a folder.
    pub name: String,
    /// What is in it.
    pub text: String,
}

/// Why a plan cannot be turned into files.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum EmitError {
    /// The workload does not say how a model's worker starts.
    #[error("`{0}` has no `run` in the workload; give its worker as a list: program and arguments")]
    NoRun(String),
    /// A model of the plan is not in the workload.
    #[error(
        "the plan serves `{0}`, which the workload does not list; use the workload that the plan was made from"
    )]
    UnknownModel(String),
    /// A program's name cannot be started from a shell.
    #[error("`run` of `{model}` {why}")]
    Program {
        /// The model.
        model: String,
        /// What is wrong and what to do.
        why: &'static str,
    },
    /// A partition lacks its place.
    #[error("`{0}` has neither slices with a start_slot nor a share_pct; check the plan first")]
    NoPlace(String),
    /// Models take turns, and nothing starts their batches.
    #[error(
        "GPU {gpu} runs `{model}` in turns with others in one partition, and run scripts start workers that know nothing of each \
         other's batches; run this plan with a dispatcher that keeps its `turn`, or make one without turns (more GPUs, or \
         another system)"
    )]
    Turns {
        /// Number of the GPU in the plan.
        gpu: usize,
        /// The first such model.
        model: String,
    },
}
