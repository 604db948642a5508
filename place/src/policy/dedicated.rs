//! No sharing: what many do today, and what the other systems are to beat.
//!
//! Rule: each model has a GPU of its own, at the highest clock at which something serves it, in the largest share, with
//! the batch that costs least there.
//! Cases: MIG and MPS alike. Fewer GPUs than models is an error that names how many it takes.
//! Not done: several GPUs for one model.
//!
//! Source: none; it is the plan that needs no planner.

use super::{PlaceError, Policy, Solution};
use crate::candidate::Candidate;
use crate::plan::{Placed, PlacedItem};
use crate::problem::{Demand, Problem};

/// The policy `dedicated`.
#[derive(Clone, Copy, Debug)]
pub struct Dedicated;

impl Policy for Dedicated {
    fn name(&self) -> &'static str {
        "dedicated"
    }

    fn about(&self) -> &'static str {
        "gives each model a GPU of its own at the highest clock: the plan that others are to beat"
    }

    fn solve(&self, problem: &Problem) -> Result<Solution, PlaceError> {
        let needed = problem.models.len();
        if let Some(gpus) = problem.gpus.filter(|&gpus| needed > gpus as usize) {
            return Err(PlaceError::TooFewGpus {
                system: self.name(),
                gpus,
                nearest: needed,
                hardest: "each model takes a whole one".into(),
                rates_that_fit: None,
            });
        }
        let alone = |(model, demand): (usize, &Demand)| {
            let candidate = best(problem, demand)?;
            let item = PlacedItem { model, candidate, rate_rps: demand.rate_rps, turn: None };
            Some(Placed { frequency_mhz: candidate.frequency_mhz, items: vec![item] })
        };
        Ok(problem.models.iter().enumerate().filter_map(alone).collect::<Vec<_>>().into())
    }
}

fn best(problem: &Problem, demand: &Demand) -> Option<Candidate> {
    let feasible = || demand.feasible.iter().map(|&i| demand.candidates[i]);
    let size = |c: &Candidate| c.share.amount();
    let clock = feasible().map(|c| c.frequency_mhz).max()?;
    let at_clock = || feasible().filter(|c| c.frequency_mhz == clock);
    let largest = at_clock().map(|c| size(&c)).fold(0.0, f64::max);
    let base_w = problem.base_w(clock)?;
    let cost = |c: &Candidate| problem.cost.gpu(base_w, &[demand.load(c, demand.rate_rps)]);
    at_clock().filter(|c| size(c) >= largest).min_by(|a, b| cost(a).total_cmp(&cost(b)))
}
