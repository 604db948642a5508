//! What happens when models share a GPU: how much each slows down, what power the GPU draws, whether its power limit
//! holds the clock down.
//!
//! ```text
//! profile row or fitted model → member ┐
//! base power, power limit     → gpu    ├→ one rule → central values → colocation model → with 90 % intervals
//! measured sets → set ─→ fits a rule ──┘                 ├ quality: each set left out in turn
//!                                                        └ activity: SM and DRAM activity by point
//! ```
//!
//! Rule: a [`Rule`] says what members do together; [`rules`] is the list of them. [`contention`] is the one that
//! `predict --together` uses, the others are what it is compared with.
//!
//! Cases: a member alone is its own prediction under every rule. Members with a request rate work part of the time
//! (duty). MIG instances have memory of their own, so only the clock couples them; under MPS and in green contexts
//! memory and cache are common.
//!
//! Not done: the order in which kernels are launched, memory capacity, PCIe; base power that changes with the clock that
//! the power limit enforces.

pub mod activity;
pub mod additive;
pub mod contention;
mod contention_fit;
pub mod enertune;
pub mod error;
pub mod gpulets;
pub mod member;
pub mod model;
pub mod quality;
pub mod set;

#[cfg(test)]
mod tests;

use error::ColocationError;
use member::{Gpu, Member};
use set::MeasuredSet;

/// Largest number of members that a set may have; the clock is looked for in all its subsets.
pub const MOST_MEMBERS: usize = 12;

/// What a rule says of one member, without intervals.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemberTogether {
    /// Time of a batch over that alone, at least 1.
    pub slowdown: f64,
    /// Share of the time that the member works, 0 to 1.
    pub duty: f64,
}

/// What a rule says of a set, without intervals.
#[derive(Clone, Debug, PartialEq)]
pub struct Together {
    /// In the order of the members.
    pub members: Vec<MemberTogether>,
    /// Mean power of the whole GPU, W.
    pub power_w: f64,
    /// Clock over the clock that was asked for, above 0 and at most 1.
    pub clock: f64,
}

impl Together {
    /// Whether the power limit holds the clock down.
    pub fn is_limited(&self) -> bool {
        self.clock < 1.0
    }

    /// Members that work as alone, and this power.
    pub(crate) fn undisturbed(members: &[Member], power_w: f64) -> Self {
        let member = |m: &Member| MemberTogether { slowdown: 1.0, duty: m.offered().min(1.0) };
        Self { members: members.iter().map(member).collect(), power_w, clock: 1.0 }
    }
}

/// A rule of what models do together.
pub trait Rule {
    /// Name in tables.
    fn name(&self) -> &'static str;

    /// Takes its coefficients from measured sets; a rule without coefficients does nothing.
    ///
    /// # Errors
    ///
    /// [`ColocationError::TooFewSets`].
    fn fit(&mut self, sets: &[MeasuredSet]) -> Result<(), ColocationError>;

    /// What at least one and at most [`MOST_MEMBERS`] members do together.
    fn together(&self, gpu: &Gpu, members: &[Member]) -> Together;
}

/// All rules, not fitted yet; the first is the one that predictions use.
pub fn rules() -> Vec<Box<dyn Rule>> {
    vec![
        Box::new(contention::Contention::default()),
        Box::new(enertune::EnerTune),
        Box::new(additive::Additive),
        Box::new(gpulets::Gpulets::default()),
    ]
}
