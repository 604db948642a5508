//! GPUlets: at most two partitions a GPU, each model in saturated ones of its most efficient size and one residue.
//!
//! Rule, stage by stage:
//!
//! 1. [`table`]: what each size of gpulet does for a model, and its sizes p_eff and p_req;
//! 2. [`trial`]: all models in the order of rate × SLO on a number of GPUs, with the fallbacks where they do not fit;
//! 3. [`fleet`]: the free nodes between gpulets;
//! 4. [`round`]: models that take turns in one gpulet.
//!
//! The number of GPUs is the fewest with which stage 2 succeeds: one by one up to [`ONE_BY_ONE`], above that halved between there and
//! as many as it takes without fallbacks.
//! Cases: everything runs at one clock, the highest at which each model has a gpulet that serves something. Rates that take more
//! than 100 000 GPUs have no configuration. Neither power nor the objective is looked at.
//! MIG: gpulets are instances, of at most two on a GPU with legal starts together; left of 1, 2 or 3 slices is an instance of 4,
//! left of 4 one of 3. MPS: sizes are the shares of the profile.
//! Not done: re-planning while serving; more than two gpulets on a GPU.
//!
//! Source: GPUlets (ATC'22). Where its published scheduler does otherwise (the step from 80 to 100 %, batch 32, a fresh GPU
//! before a larger left-over, the neighbour check, rates below 5 a second), the rules are followed.

pub mod fleet;
pub mod round;
pub mod table;
pub mod trial;

use self::fleet::{Fleet, Gpulet};
use self::table::Table;
use self::trial::Trial;
use super::{PlaceError, Policy, Solution, one_clock};
use crate::plan::{Placed, PlacedItem};
use crate::problem::{Demand, Problem};
use crate::turn::Turn;

/// Up to this many GPUs every count is tried; above, one that serves all could be missed where a larger one does not.
pub const ONE_BY_ONE: usize = 64;

/// The most GPUs that are tried.
const MOST_GPUS: usize = 100_000;

/// The policy `gpulets`.
#[derive(Clone, Copy, Debug)]
pub struct Gpulets;

impl Policy for Gpulets {
    fn name(&self) -> &'static str {
        "gpulets"
    }

    fn about(&self) -> &'static str {
        "splits each model over partitions of its most efficient size, at most two a GPU, and lets models take turns where room is short (GPUlets, ATC'22)"
    }

    fn splits(&self) -> bool {
        true
    }

    fn solve(&self, problem: &Problem) -> Result<Solution, PlaceError> {
        let (mhz, tables) = one_clock::highest(problem, |mhz, model| Table::new(problem, model, mhz))
            .map_err(|model| self.nothing(problem, model))?;
        let order = order(&tables);
        let fleet = fewest(problem, &tables, &order).map_err(|table| {
            let why = format!(
                "`{}` finds no room on {MOST_GPUS} GPUs; give it a lower rate_rps, or profile it in larger shares and batches",
                problem.models[tables[table].model].name
            );
            PlaceError::NoConfiguration { system: self.name(), why }
        })?;
        let needed = fleet.gpus.len();
        if let Some(gpus) = problem.gpus.filter(|&gpus| needed > gpus as usize) {
            return Err(PlaceError::TooFewGpus {
                system: self.name(),
                gpus,
                nearest: needed,
                hardest: hardest(problem, &fleet),
                rates_that_fit: None,
            });
        }
        Ok(placed(&fleet, mhz).into())
    }
}

impl Gpulets {
    fn nothing(&self, problem: &Problem, model: Option<usize>) -> PlaceError {
        let why = model.map_or_else(
            || "no clock has fast enough rows of all models; profile them at the same clocks".to_owned(),
            |model| too_slow(&problem.models[model]),
        );
        PlaceError::NoConfiguration { system: self.name(), why }
    }
}

fn too_slow(demand: &Demand) -> String {
    let alone = demand.candidates.iter().filter(|c| c.processes == 1);
    let fastest_ms = alone.map(|c| c.latency_ms).reduce(f64::min);
    fastest_ms.map_or_else(
        || format!("`{}` has no row of one process; profile it so", demand.name),
        |fastest_ms| {
            format!(
                "`{}`: a batch must take at most half of its SLO of {} ms in a share with enough memory, and the fastest takes \
                 {fastest_ms:.4} ms; latency_slo_ms must be at least {:.4}",
                demand.name,
                demand.latency_slo_ms,
                2.0 * fastest_ms
            )
        },
    )
}

/// The models by rate × SLO, ascending; of equals the first.
fn order(tables: &[Table]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..tables.len()).collect();
    let weight = |at: usize| tables[at].rate_rps * tables[at].slo_ms;
    order.sort_by(|&a, &b| weight(a).total_cmp(&weight(b)));
    order
}

/// The fewest GPUs that are found to serve all; the model that finds no room on the most.
fn fewest<'p>(problem: &'p Problem, tables: &'p [Table], order: &[usize]) -> Result<Fleet<'p>, usize> {
    let mut best = Trial::run(problem, tables, order, MOST_GPUS)?;
    let on = |limit: usize| Trial::run(problem, tables, order, limit).ok();
    if let Some(fleet) = (1..=ONE_BY_ONE.min(best.gpus.len())).find_map(on) {
        return Ok(fleet);
    }
    let mut too_few = ONE_BY_ONE;
    while too_few + 1 < best.gpus.len() {
        let middle = (too_few + best.gpus.len()) / 2;
        match on(middle) {
            Some(fleet) => best = fleet,
            None => too_few = middle,
        }
    }
    Ok(best)
}

fn placed(fleet: &Fleet, frequency_mhz: u32) -> Vec<Placed> {
    let gpu = |places: &[Option<Gpulet>; 2]| {
        let mut items = Vec::new();
        for (partition, gpulet) in (0..).zip(places.iter().flatten()) {
            let turn = gpulet.round_ms.map(|round_ms| Turn { partition, round_ms });
            items.extend(gpulet.members.iter().map(|m| PlacedItem {
                model: fleet.tables[m.table].model,
                candidate: m.run.row.candidate,
                rate_rps: m.run.rate_rps,
                turn,
            }));
        }
        Placed { frequency_mhz, items }
    };
    fleet.gpus.iter().map(gpu).collect()
}

/// The model that takes the most of the GPUs.
fn hardest(problem: &Problem, fleet: &Fleet) -> String {
    let mut pct = vec![0.0; fleet.tables.len()];
    for (_, gpulet) in fleet.gpulets() {
        for m in &gpulet.members {
            let part = 1.0 / gpulet.members.len() as f64;
            pct[m.table] += part * super::sizes::percent(problem, gpulet.share);
        }
    }
    let most = (0..pct.len()).max_by(|&a, &b| pct[a].total_cmp(&pct[b]));
    let name = |table: usize| &problem.models[fleet.tables[table].model].name;
    most.map_or_else(String::new, |table| {
        format!("`{}` takes {:.0} % of a GPU in all", name(table), pct[table])
    })
}
