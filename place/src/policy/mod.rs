//! The systems that can place, one file each, and the way from a problem to a checked plan.
//!
//! Adding one: a file with a [`Policy`], one line in [`POLICIES`]; the tests in `tests/policies.rs` run over the list.

pub mod enertune;
mod pack;

use crate::check::{Violation, check};
use crate::plan::{Placed, Plan};
use crate::problem::Problem;

/// A system that places models on GPUs.
pub trait Policy: Sync {
    /// Its name on the command line and in plans.
    fn name(&self) -> &'static str;

    /// What it does, in one sentence, with its source.
    fn about(&self) -> &'static str;

    /// Decides which model runs where; within `problem.gpus`, if that is bound.
    fn solve(&self, problem: &Problem) -> Result<Vec<Placed>, PlaceError>;
}

/// Every system.
pub const POLICIES: &[&dyn Policy] = &[&enertune::EnerTune];

/// Why there is no plan.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum PlaceError {
    /// There is no system of this name.
    #[error("no system `{name}`; there are {known}")]
    UnknownSystem {
        /// What was asked for.
        name: String,
        /// The names that there are.
        known: String,
    },
    /// The system does not share GPUs this way.
    #[error("`{system}` places {does}, but cluster.sharing is `{asked}`; choose another system or kind of sharing")]
    Sharing {
        /// The system.
        system: &'static str,
        /// What it places.
        does: &'static str,
        /// What was asked for.
        asked: &'static str,
    },
    /// The models do not fit on the GPUs that there are.
    #[error(
        "the number of GPUs binds: `{system}` found no plan on {gpus} GPUs; the nearest takes {nearest}, so give it that \
         many, or lower the load ({hardest} takes the most of a GPU)"
    )]
    TooFewGpus {
        /// The system.
        system: &'static str,
        /// How many there are.
        gpus: u32,
        /// The fewest that it found a plan for.
        nearest: usize,
        /// The models that need the largest share, in words.
        hardest: String,
    },
    /// The system's plan does not hold; a fault of gpumon, not of the input.
    #[error("the plan of `{system}` is not sound, which is a fault of gpumon: {}", join(.violations))]
    Unsound {
        /// The system.
        system: &'static str,
        /// What is wrong.
        violations: Vec<Violation>,
    },
}

fn join(list: &[Violation]) -> String {
    list.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// The policy of this name.
pub fn policy(name: &str) -> Result<&'static dyn Policy, PlaceError> {
    let found = POLICIES.iter().find(|p| p.name() == name).copied();
    found.ok_or_else(|| PlaceError::UnknownSystem {
        name: name.into(),
        known: POLICIES.iter().map(|p| p.name()).collect::<Vec<_>>().join(", "),
    })
}

/// A plan for `problem` by the system of this name, checked.
pub fn place(problem: &Problem, system: &str) -> Result<Plan, PlaceError> {
    let policy = policy(system)?;
    let plan = Plan::new(problem, policy.name(), &policy.solve(problem)?);
    let violations = check(problem, &plan);
    if violations.is_empty() { Ok(plan) } else { Err(PlaceError::Unsound { system: policy.name(), violations }) }
}
