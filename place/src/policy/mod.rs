//! The systems that can place, one file each, and the way from a problem to a checked plan.
//!
//! Adding one: a file with a [`Policy`], one line in [`POLICIES`]; the tests in `tests/policies.rs` run over the
//! list, and `docs/placing.md` shows it.

pub mod dedicated;
pub mod enertune;
pub mod fgd;
pub mod gpulets;
mod hardest;
#[cfg(test)]
mod made_up;
mod one_clock;
pub mod optimal;
pub mod parvagpu;
mod room;
pub mod sizes;
mod sorted;
pub mod usher;

use std::time::Instant;

use crate::check::{Violation, check};
use crate::plan::{Placed, Plan};
use crate::problem::Problem;

/// A system that places models on GPUs.
pub trait Policy: Sync {
    /// Its name on the command line and in plans.
    fn name(&self) -> &'static str;

    /// What it does, in one sentence, with its source.
    fn about(&self) -> &'static str;

    /// Whether it divides a model's rate over several partitions, so that a rate may be above what any one serves.
    fn splits(&self) -> bool {
        false
    }

    /// Decides which model runs where; within `problem.gpus`, if that is bound. What searches for as long as
    /// [`Problem::time_limit`] gives up before where nothing keeps the bound, since lower rates are tried in the rest.
    fn solve(&self, problem: &Problem) -> Result<Solution, PlaceError>;
}

/// What a system decided.
#[derive(Clone, Debug, PartialEq)]
pub struct Solution {
    /// The GPUs.
    pub placed: Vec<Placed>,
    /// No plan costs less than this, where the system knows such a bound.
    pub bound: Option<f64>,
    /// Whether no plan is cheaper than this one, where the system tells.
    pub proven: Option<bool>,
}

impl From<Vec<Placed>> for Solution {
    /// Of a system that knows no bound.
    fn from(placed: Vec<Placed>) -> Self {
        Self { placed, bound: None, proven: None }
    }
}

/// Every system.
pub const POLICIES: &[&dyn Policy] = &[
    &enertune::EnerTune::WHOLE,
    &usher::Usher,
    &parvagpu::ParvaGpu,
    &fgd::Fgd::PUBLISHED,
    &gpulets::Gpulets,
    &optimal::Optimal,
    &dedicated::Dedicated,
];

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
    /// Nothing that the profile has is what the system would run, though other systems might.
    #[error("`{system}` has nothing to run: {why}; or choose another system")]
    NoConfiguration {
        /// The system.
        system: &'static str,
        /// Which model, what was expected and what was found.
        why: String,
    },
    /// The models do not fit on the GPUs that there are.
    #[error(
        "the number of GPUs binds: `{system}` found no plan on {gpus} GPU{}; the nearest takes {nearest}, so give it that \
         many{} ({hardest})", plural(*.gpus), lower(*.rates_that_fit)
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
        /// The part of every rate that does fit, where it was looked for and found.
        rates_that_fit: Option<f64>,
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

fn plural(count: u32) -> &'static str {
    if count == 1 { "" } else { "s" }
}

fn lower(rates_that_fit: Option<f64>) -> String {
    rates_that_fit.map_or_else(String::new, |part| format!(", or lower every rate to {:.0} %", part * 100.0))
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
    solve(problem, policy(system)?)
}

/// A plan for `problem` by this policy, checked.
pub fn solve(problem: &Problem, policy: &dyn Policy) -> Result<Plan, PlaceError> {
    let until = Instant::now() + problem.time_limit;
    let alone = problem.models.iter().find(|model| model.feasible.is_empty() && !policy.splits());
    if let Some(model) = alone {
        let why =
            format!("no one partition serves `{}` at its rate, and it does not divide rates", model.name);
        return Err(PlaceError::NoConfiguration { system: policy.name(), why });
    }
    let solution = policy.solve(problem).map_err(|error| with_lower_rates(problem, policy, until, error))?;
    let mut plan = Plan::new(problem, policy.name(), &solution.placed);
    plan.total.bound = solution.bound.map(|bound| bound + problem.cost_of_unused());
    plan.total.proven = solution.proven;
    let violations = check(problem, &plan);
    if violations.is_empty() {
        Ok(plan)
    } else if policy.splits() && problem.queueing.is_some() {
        let without = Problem { queueing: None, ..problem.clone() };
        let sound = check(&without, &Plan::new(&without, policy.name(), &solution.placed)).is_empty();
        let why = format!("its rules know no waiting for parts of a rate: {}", join(&violations));
        Err(if sound {
            PlaceError::NoConfiguration { system: policy.name(), why }
        } else {
            PlaceError::Unsound { system: policy.name(), violations }
        })
    } else {
        Err(PlaceError::Unsound { system: policy.name(), violations })
    }
}

/// Halvings when the rates that fit are looked for: to 1.6 % of the rates asked.
const HALVINGS: u32 = 6;

/// The error with the largest part of the rates that the policy does find a plan for, as far as that is found within the time.
fn with_lower_rates(
    problem: &Problem,
    policy: &dyn Policy,
    until: Instant,
    mut error: PlaceError,
) -> PlaceError {
    if let PlaceError::TooFewGpus { rates_that_fit, .. } = &mut error {
        let (mut fits, mut too_much) = (0.0, 1.0);
        for rest in (1..=HALVINGS).rev() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let middle = (fits + too_much) / 2.0;
            // Words give whole percents, rounded down, so that what they say does fit.
            let part = (middle * 100.0_f64).floor() / 100.0;
            let lower = || Problem { time_limit: left / rest, ..problem.with_rates_times(part) };
            if part > 0.0 && policy.solve(&lower()).is_ok() {
                (fits, *rates_that_fit) = (middle, Some(part));
            } else {
                too_much = middle;
            }
        }
    }
    error
}
