//! EnerTune's colocation estimator: the base once, and the dynamic power of each model; nobody slows down.
//!
//! Rule: power = base(f) + Σ duty · dynamic. As published it knows no power limit, so it may exceed one.
//!
//! Source: EnerTune (SOSP'26), power = static(f) + fan + idle(f) + Σ d_i.

use super::error::ColocationError;
use super::member::{Gpu, Member};
use super::set::MeasuredSet;
use super::{Rule, Together};

/// The base once and Σ dynamic.
#[derive(Clone, Copy, Debug, Default)]
pub struct EnerTune;

/// Σ duty · dynamic, W.
pub(crate) fn dynamic_w(members: &[Member]) -> f64 {
    members.iter().map(|m| m.offered().min(1.0) * m.dynamic_w.value).sum()
}

impl Rule for EnerTune {
    fn name(&self) -> &'static str {
        "enertune"
    }

    fn fit(&mut self, _: &[MeasuredSet]) -> Result<(), ColocationError> {
        Ok(())
    }

    fn together(&self, gpu: &Gpu, members: &[Member]) -> Together {
        Together::undisturbed(members, gpu.base_w + dynamic_w(members))
    }
}
