//! GPUlets' interference model: a linear regression of the slowdown on what a model and its neighbour use.
//!
//! Rule: α = c0·l2·p + c1·l2′·p′ + c2·dram·p + c3·dram′·p′ + c4, at least 1, fitted by least squares on the measured pairs.
//!
//! Cases: activity of the whole GPU already has the size p in it. The counters that a profile holds have no L2, so SM activity
//! stands in its place. Published for two partitions a GPU; of more, the neighbours' uses are added up. It says nothing
//! about power, so that is the base once and Σ dynamic. Under MIG nobody is slowed.
//!
//! Source: GPUlets (ATC'22), section on interference.

use nalgebra::{DMatrix, DVector};

use super::enertune::dynamic_w;
use super::error::ColocationError;
use super::member::{Gpu, Member};
use super::set::MeasuredSet;
use super::{MemberTogether, Rule, Together};

/// Coefficients of the published form.
const TERMS: usize = 5;
/// Keeps columns apart that depend on each other.
const RIDGE: f64 = 1e-9;

/// A linear model of the slowdown; without a fit, nobody slows down.
#[derive(Clone, Copy, Debug)]
pub struct Gpulets {
    coefficients: [f64; TERMS],
}

impl Default for Gpulets {
    fn default() -> Self {
        Self { coefficients: [0.0, 0.0, 0.0, 0.0, 1.0] }
    }
}

fn terms(members: &[Member], at: usize) -> [f64; TERMS] {
    let uses = |m: &Member| [m.sm_util.unwrap_or(m.point.share.sms()), m.dram_util.unwrap_or(0.0)];
    let own = uses(&members[at]);
    let mut neighbours = [0.0; 2];
    for (_, member) in members.iter().enumerate().filter(|(i, _)| *i != at) {
        let used = uses(member);
        neighbours = [neighbours[0] + used[0], neighbours[1] + used[1]];
    }
    [own[0], neighbours[0], own[1], neighbours[1], 1.0]
}

impl Rule for Gpulets {
    fn name(&self) -> &'static str {
        "gpulets"
    }

    fn fit(&mut self, sets: &[MeasuredSet]) -> Result<(), ColocationError> {
        let pairs: Vec<&MeasuredSet> = sets.iter().filter(|s| s.members.len() == 2).collect();
        let (mut gram, mut rhs) = (DMatrix::identity(TERMS, TERMS) * RIDGE, DVector::zeros(TERMS));
        let mut rows = 0;
        for set in &pairs {
            for (i, slowdown) in set.slowdowns.iter().enumerate() {
                let Some(slowdown) = slowdown else { continue };
                let x = DVector::from_row_slice(&terms(&set.members, i));
                gram += &x * x.transpose();
                rhs += &x * *slowdown;
                rows += 1;
            }
        }
        let too_few = || ColocationError::TooFewSets {
            rule: "gpulets",
            found: pairs.len(),
            needed: TERMS,
            left_out: Vec::new(),
        };
        if rows < 2 * TERMS {
            return Err(too_few());
        }
        let solution = gram.cholesky().ok_or_else(too_few)?.solve(&rhs);
        for (own, found) in self.coefficients.iter_mut().zip(solution.iter()) {
            *own = *found;
        }
        Ok(())
    }

    fn together(&self, gpu: &Gpu, members: &[Member]) -> Together {
        let mut together = Together::undisturbed(members, gpu.base_w + dynamic_w(members));
        if members.len() < 2 || members.iter().any(Member::is_mig) {
            return together;
        }
        for (i, (own, member)) in together.members.iter_mut().zip(members).enumerate() {
            let terms = terms(members, i);
            let alpha: f64 = terms.iter().zip(&self.coefficients).map(|(x, c)| x * c).sum();
            let slowdown = alpha.max(1.0);
            *own = MemberTogether { slowdown, duty: (member.offered() * slowdown).min(1.0) };
        }
        together
    }
}
