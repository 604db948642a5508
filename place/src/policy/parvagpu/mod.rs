//! ParvaGPU: MPS processes inside MIG instances, each model in as many as its rate takes.
//!
//! Rule, stage by stage:
//!
//! 1. [`service`]: each model gets segments (a MIG size, a batch, a number of processes) of the best throughput a slice
//!    among rows whose batch time is below 45 % of its SLO, and one last segment for what remains of its rate;
//! 2. [`fleet`]: segments are packed best fit, largest sizes first, then GPUs with at most 4 slices in use are broken up
//!    into segments of 1 and 2 slices that fill the gaps of the others.
//!
//! How many GPUs it takes is an outcome; neither power nor the objective is looked at.
//! Cases: everything runs at one clock, the highest at which each model has a row that is fast enough (the source
//! knows no clocks; its profiles are at the highest). A model's rate is divided over its segments as their
//! throughputs are. Too few GPUs is an error with the count that it takes.
//! Where the second stage leaves a model short, because it counts segments by another row than the one that is looked up
//! for their size at the end, the plan is that of the packing alone.
//! A model may stand on a GPU several times, and its rate may be above what one instance serves ([`Policy::splits`]).
//! Starts are gpumon's legal ones, not the published slots, which overlap.
//! Under MPS alone, shares stand for slices ([`crate::policy::sizes`]); what a GPU holds together is then less than 100 %.
//! Not done: moving segments after the second stage.
//!
//! Source: ParvaGPU (SC'24), algorithms 1 and 2, and the deployments that its authors published, which the stages reproduce.

pub mod fleet;
pub mod service;

use self::fleet::{Fleet, Segment};
use self::service::{SLO_PART, Service};
use super::sizes::{Percents, Slices};
use super::{PlaceError, Policy, Solution, one_clock};
use crate::candidate::Candidate;
use crate::plan::{Placed, PlacedItem};
use crate::problem::{Demand, Problem};

/// Relative difference that adding throughputs up may make.
const ROUNDING: f64 = 1e-9;

/// The policy `parvagpu`.
#[derive(Clone, Copy, Debug)]
pub struct ParvaGpu;

impl Policy for ParvaGpu {
    fn name(&self) -> &'static str {
        "parvagpu"
    }

    fn about(&self) -> &'static str {
        "splits each model over MIG instances with MPS processes, of best throughput a slice, and packs them tightly (ParvaGPU, SC'24)"
    }

    fn splits(&self) -> bool {
        true
    }

    fn solve(&self, problem: &Problem) -> Result<Solution, PlaceError> {
        let slices = Slices::of(problem);
        slices.given_back(in_slices(&slices))
    }
}

fn in_slices(slices: &Slices) -> Result<Solution, PlaceError> {
    let problem: &Problem = &slices.problem;
    let (frequency_mhz, services) = services(problem)?;
    let fleet = deploy(&services, slices.percents);
    let fleet = if is_short(&fleet, &services) { Fleet::packed(&services, slices.percents) } else { fleet };
    let needed = fleet.gpus().count();
    if let Some(gpus) = problem.gpus.filter(|&gpus| needed > gpus as usize) {
        return Err(PlaceError::TooFewGpus {
            system: ParvaGpu.name(),
            gpus,
            nearest: needed,
            hardest: hardest(problem, &services, &fleet),
            rates_that_fit: None,
        });
    }
    let total_rps = capacities_rps(&fleet, &services);
    let item = |segment: Segment| {
        let candidate = services[segment.service].of_size(segment.slices)?;
        let demand = &problem.models[services[segment.service].model];
        let part = candidate.throughput_rps / total_rps[segment.service];
        let model = services[segment.service].model;
        Some(PlacedItem { model, candidate, rate_rps: demand.rate_rps * part, turn: None })
    };
    let placed = |segments: Vec<Segment>| Placed {
        frequency_mhz,
        items: segments.into_iter().filter_map(item).collect(),
    };
    Ok(fleet.gpus().map(placed).collect::<Vec<_>>().into())
}

/// Both stages for these models, in this order.
pub fn deploy(services: &[Service], percents: Percents) -> Fleet {
    let mut fleet = Fleet::packed(services, percents);
    fleet.optimise(services);
    fleet
}

/// The clock, and every model's segments in alphabetical order.
fn services(problem: &Problem) -> Result<(u32, Vec<Service>), PlaceError> {
    let at = |mhz: u32, model: usize| {
        let demand = &problem.models[model];
        let rows = demand.candidates.iter().filter(|c| c.frequency_mhz == mhz).copied();
        Service::new(model, rows, demand.latency_slo_ms, demand.rate_rps)
    };
    let (mhz, mut services) = one_clock::highest(problem, at).map_err(|slow| {
        let why = slow.map_or_else(
            || "no clock has fast enough rows of all models; profile them at the same clocks".to_owned(),
            |model| too_slow(&problem.models[model]),
        );
        PlaceError::NoConfiguration { system: ParvaGpu.name(), why }
    })?;
    services.sort_by(|a, b| problem.models[a.model].name.cmp(&problem.models[b.model].name));
    Ok((mhz, services))
}

fn too_slow(demand: &Demand) -> String {
    let fastest = demand.candidates.iter().map(|c| c.latency_ms).fold(f64::INFINITY, f64::min);
    format!(
        "`{}`: a batch must take less than {:.0} % of its SLO, {:.4} ms, and the fastest takes {fastest:.4} ms; \
         latency_slo_ms must be above {:.4}",
        demand.name,
        SLO_PART * 100.0,
        SLO_PART * demand.latency_slo_ms,
        fastest / SLO_PART
    )
}

/// What each service's segments can serve together, items/s.
fn capacities_rps(fleet: &Fleet, services: &[Service]) -> Vec<f64> {
    let mut total_rps = vec![0.0; services.len()];
    for segment in fleet.gpus().flatten() {
        let row: Option<Candidate> = services[segment.service].of_size(segment.slices);
        total_rps[segment.service] += row.map_or(0.0, |c| c.throughput_rps);
    }
    total_rps
}

fn is_short(fleet: &Fleet, services: &[Service]) -> bool {
    let total_rps = capacities_rps(fleet, services);
    services.iter().zip(total_rps).any(|(service, rps)| rps < service.rate_rps * (1.0 - ROUNDING))
}

/// The model whose segments take the most slices.
fn hardest(problem: &Problem, services: &[Service], fleet: &Fleet) -> String {
    let mut slices = vec![0u32; problem.models.len()];
    for segment in fleet.gpus().flatten() {
        slices[services[segment.service].model] += u32::from(segment.slices);
    }
    let most = slices.iter().copied().max().unwrap_or(0);
    let names: Vec<_> = (0..slices.len()).filter(|&m| slices[m] == most).collect();
    let names: Vec<_> = names.into_iter().map(|m| format!("`{}`", problem.models[m].name)).collect();
    format!("{}: {most} slices each", names.join(", "))
}
