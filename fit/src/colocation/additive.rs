//! The naive estimate: what each model would add if fan and idle power were paid again for each.
//!
//! Rule: power = static(f) + Σ (fan + idle(f) + duty · dynamic); nobody slows down, no power limit.
//!
//! Cases: where the static part is not known apart, each model pays the whole base.
//!
//! Source: EnerTune (SOSP'26), the additive estimate that it compares itself with.

use super::enertune::dynamic_w;
use super::error::ColocationError;
use super::member::{Gpu, Member};
use super::set::MeasuredSet;
use super::{Rule, Together};

/// Idle power once a model.
#[derive(Clone, Copy, Debug, Default)]
pub struct Additive;

impl Rule for Additive {
    fn name(&self) -> &'static str {
        "additive"
    }

    fn fit(&mut self, _: &[MeasuredSet]) -> Result<(), ColocationError> {
        Ok(())
    }

    fn together(&self, gpu: &Gpu, members: &[Member]) -> Together {
        let fixed = gpu.static_w.unwrap_or(0.0);
        let each = gpu.base_w - fixed;
        Together::undisturbed(members, fixed + each * members.len() as f64 + dynamic_w(members))
    }
}
