//! The cheapest plan: proven for few models, for many the best within a time with its distance to a bound.
//!
//! Rule: up to `subsets::MOST` models are solved exactly (`subsets`); for more, or if the time is up before, rents (`rent`) and, up to
//! `columns::MOST` models, prices (`columns`) tell what no plan costs less than, and a search (`search`) goes on from there for as
//! long as it may ([`Problem::time_limit`]). The plan's total says the bound and whether it is proven.
//! Cases: MIG and MPS alike, any objective, a free or bound number of GPUs. A model may take the whole of a GPU.
//! The exact answer does not depend on the machine's speed as long as the time suffices; that of the search does.
//! Not done: dividing a rate over several partitions, so systems that do may cost less; interference between neighbours.
//!
//! Source: each part names its own.

mod columns;
mod offers;
mod rent;
mod search;
mod subsets;

use std::time::Instant;

use self::offers::{Bin, Offers};
use self::subsets::Exact;
use super::hardest::hardest;
use super::{PlaceError, Policy, Solution};
use crate::problem::Problem;

/// The policy `optimal`.
#[derive(Clone, Copy, Debug)]
pub struct Optimal;

/// Which part of the time that is left goes to the bound.
const BOUND_PART: f64 = 0.3;
/// Which part of the time that is left goes to bound and search while there is no plan that keeps the number of GPUs.
const GIVE_UP_PART: f64 = 0.6;
/// Relative difference below which a plan is as cheap as the bound.
const ROUNDING: f64 = 1e-9;
/// Fewer models are not worth a thread.
const WORTH_THREADS: usize = 9;

impl Policy for Optimal {
    fn name(&self) -> &'static str {
        "optimal"
    }

    fn about(&self) -> &'static str {
        "finds the cheapest plan in which no rate is divided: proven for up to 17 models, for more the best within the time limit, \
         with a bound that no plan is below"
    }

    fn solve(&self, problem: &Problem) -> Result<Solution, PlaceError> {
        let started = Instant::now();
        let until = started + problem.time_limit;
        let offers = Offers::new(problem);
        let models: Vec<usize> = (0..problem.models.len()).collect();
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let most_gpus = problem.gpus.map_or(usize::MAX, |n| n as usize);
        if models.len() <= subsets::MOST {
            let threads = if models.len() < WORTH_THREADS { 1 } else { threads };
            match subsets::solve(&offers, &models, most_gpus, 0.0, threads, started + problem.time_limit / 2)
            {
                Exact::Cheapest(bins) => {
                    let cost = total(&bins);
                    let placed = offers.placed(&bins);
                    return Ok(Solution { placed, bound: Some(cost), proven: Some(true) });
                }
                Exact::TooFew(nearest) => return Err(too_few(problem, nearest)),
                Exact::OutOfTime => {}
            }
        }
        let left = until.saturating_duration_since(Instant::now());
        let give_up = Instant::now() + left.mul_f64(GIVE_UP_PART);
        let bound_until = Instant::now() + left.mul_f64(BOUND_PART);
        let is_few = models.len() <= columns::MOST;
        let rents_until = if is_few { Instant::now() + left.mul_f64(BOUND_PART / 3.0) } else { bound_until };
        let rents = rent::rents(&offers, problem.gpus, rents_until);
        let tighter = columns::bound(&offers, problem.gpus, rents.per_gpu, threads, bound_until);
        let bound = tighter.map_or(rents.bound, |b| b.max(rents.bound));
        let found = search::search(&offers, &rents, problem.gpus, threads, give_up, until);
        let bins = found.map_err(|nearest| too_few(problem, nearest))?;
        let proven = total(&bins) <= bound * (1.0 + ROUNDING);
        Ok(Solution { placed: offers.placed(&bins), bound: Some(bound), proven: Some(proven) })
    }
}

fn total(bins: &[Bin]) -> f64 {
    bins.iter().map(|b| b.cost).sum()
}

fn too_few(problem: &Problem, nearest: usize) -> PlaceError {
    PlaceError::TooFewGpus {
        system: Optimal.name(),
        gpus: problem.gpus.unwrap_or(0),
        nearest,
        hardest: hardest(problem),
        rates_that_fit: None,
    }
}
