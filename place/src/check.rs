//! The one judge of every plan, whichever system made it.
//!
//! Rule: a plan is sound when nothing of the following is violated; all violations are returned, in words.
//!
//! - Clocks are clocks of the problem; no more GPUs than there are; no GPU without work.
//! - MIG: instance sizes exist, stand at legal starts and do not overlap. MPS: percents sum to at most 100. A GPU
//!   is shared in one way.
//! - Partitions with the same `turn` are one share: same size, start and round, one process each. Their batches take no
//!   longer than the round together, and of each model round + batch time is within the SLO, and a batch a round keeps up with
//!   its rate. That share counts once.
//! - Each partition is a configuration of the profile, with the profile's latency, throughput and dynamic power;
//!   it answers within its model's SLO, waiting included where requests wait, and keeps up with the rate that is sent to it.
//! - Each model is served exactly once: the rates of its partitions sum to its rate. (Systems that split a model
//!   over several partitions divide its rate.)
//! - Powers and costs are the sums of their parts.
//!
//! Not done: whether the plan is a good one; interference between neighbours.
//!
//! Source: legal starts from [`gpumon_core::geometry`]; demands from EnerTune (SOSP'26).

use std::collections::HashMap;
use std::fmt;

use gpumon_core::workload::Sharing;

use crate::candidate::{Candidate, Share, Uses};
use crate::plan::{Gpu, Partition, Plan, loads};
use crate::problem::{Demand, Problem};
use crate::turn::{Turn, shares};

/// Relative difference that rounding in a file may make.
pub(crate) const ROUNDING: f64 = 1e-6;

/// One thing that is wrong with a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Index of the GPU in the plan, where it belongs to one.
    pub gpu: Option<usize>,
    /// What is wrong, naming the model and the constraint.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.gpu {
            Some(gpu) => write!(f, "GPU {gpu}: {}", self.what),
            None => f.write_str(&self.what),
        }
    }
}

/// Everything that is wrong with `plan` as an answer to `problem`; empty for a sound plan.
pub fn check(problem: &Problem, plan: &Plan) -> Vec<Violation> {
    let mut found = Vec::new();
    let demands: Demands = problem.models.iter().rev().map(|m| (m.name.as_str(), m)).collect();
    for (index, gpu) in plan.gpus.iter().enumerate() {
        let words = check_gpu(problem, &demands, gpu);
        found.extend(words.into_iter().map(|what| Violation { gpu: Some(index), what }));
    }
    let words = check_service(problem, plan).into_iter().chain(check_totals(problem, plan));
    found.extend(words.map(|what| Violation { gpu: None, what }));
    found
}

/// The models by name.
type Demands<'p> = HashMap<&'p str, &'p Demand>;

fn check_gpu(problem: &Problem, demands: &Demands, gpu: &Gpu) -> Vec<String> {
    let mut found = Vec::new();
    let mhz = gpu.frequency_mhz;
    match problem.base_w(mhz) {
        None => found.push(format!("{mhz} MHz is no clock of the problem")),
        Some(w) if !near(w, gpu.base_w) => {
            found.push(format!("base_w is {} W, but {w} W at {mhz} MHz", gpu.base_w))
        }
        Some(_) => {}
    }
    if gpu.partitions.is_empty() {
        found.push("nothing runs on it; leave it out".into());
    }
    match problem.sharing {
        Sharing::Mig => check_slices(problem, gpu, &mut found),
        Sharing::Mps | Sharing::Green => check_percents(gpu, &mut found),
    }
    for partition in &gpu.partitions {
        check_partition(problem, demands, mhz, partition, &mut found);
    }
    for share in shares(gpu.partitions.iter().map(|p| p.turn)) {
        let members: Vec<&Partition> = share.iter().map(|&at| &gpu.partitions[at]).collect();
        if let Some(turn) = members[0].turn {
            check_turn(demands, turn, &members, &mut found);
        }
    }
    let loads = loads(&gpu.partitions);
    let power_w = gpu.base_w + loads.iter().map(|l| l.dynamic_w).sum::<f64>();
    if !near(power_w, gpu.power_w) {
        found.push(format!("power_w is {} W, but base and dynamic powers sum to {power_w} W", gpu.power_w));
    }
    let cost = problem.cost.gpu(gpu.base_w, &loads);
    if !near(cost, gpu.cost) {
        found.push(format!("cost is {}, but its models cost {cost}", gpu.cost));
    }
    found
}

fn check_slices(problem: &Problem, gpu: &Gpu, found: &mut Vec<String>) {
    let mut instances = Vec::new();
    let firsts: Vec<usize> = shares(gpu.partitions.iter().map(|p| p.turn)).iter().map(|s| s[0]).collect();
    for (at, p) in gpu.partitions.iter().enumerate() {
        match (p.slices, p.start_slot) {
            (Some(slices), Some(start)) if firsts.contains(&at) => instances.push((slices, start)),
            (Some(_), Some(_)) => {}
            (Some(_), None) => found.push(format!("`{}` has no start_slot", p.model)),
            (None, _) => found.push(format!("`{}` has no slices, but GPUs are shared by MIG", p.model)),
        }
        if let Some(slices) = p.slices.filter(|s| problem.geometry.profile(*s).is_none()) {
            found.push(format!("`{}` has {slices} slices, a size that does not exist", p.model));
        }
    }
    if !problem.geometry.is_legal(&instances) {
        let text: Vec<_> = instances.iter().map(|(n, at)| format!("{n} at {at}")).collect();
        found.push(format!("MIG instances cannot stand so: {} (slices at start slot)", text.join(", ")));
    }
    let sum: u32 = instances.iter().map(|(n, _)| u32::from(*n)).sum();
    if sum > u32::from(problem.geometry.compute_slices) {
        found.push(format!("{sum} slices of {}", problem.geometry.compute_slices));
    }
}

fn check_percents(gpu: &Gpu, found: &mut Vec<String>) {
    for p in &gpu.partitions {
        if p.share_pct.is_none_or(|pct| !(pct > 0.0 && pct <= 100.0)) || p.slices.is_some() {
            found.push(format!(
                "`{}` has no share_pct above 0 and up to 100, but GPUs are shared by MPS",
                p.model
            ));
        }
    }
    let shares = shares(gpu.partitions.iter().map(|p| p.turn));
    let sum: f64 = shares.iter().filter_map(|share| gpu.partitions[share[0]].share_pct).sum();
    if sum > 100.0 * (1.0 + ROUNDING) {
        found.push(format!("shares sum to {sum} %"));
    }
}

fn check_turn(demands: &Demands, turn: Turn, members: &[&Partition], found: &mut Vec<String>) {
    let names: Vec<_> = members.iter().map(|p| format!("`{}`", p.model)).collect();
    let names = names.join(", ");
    let place = |p: &Partition| (p.slices, p.share_pct.map(f64::to_bits), p.start_slot);
    if members.iter().any(|p| place(p) != place(members[0])) {
        found.push(format!("{names} take turns in one partition, but differ in its size or start_slot"));
    }
    let round_ms = turn.round_ms;
    if !(round_ms.is_finite() && round_ms > 0.0) || members.iter().any(|p| p.turn != Some(turn)) {
        found.push(format!("{names} take turns, but their round_ms is not one time above 0"));
        return;
    }
    let sum_ms: f64 = members.iter().map(|p| p.latency_ms).sum();
    if sum_ms.is_nan() || sum_ms > round_ms * (1.0 + ROUNDING) {
        found.push(format!("{names} take {sum_ms} ms in turns, above their round of {round_ms} ms"));
    }
    for p in members {
        let name = &p.model;
        if p.processes != 1 {
            found.push(format!("`{name}` takes turns with {} processes; one is expected", p.processes));
        }
        let demand = demands.get(name.as_str());
        let waits_ms = round_ms + p.latency_ms;
        if let Some(slo_ms) = demand.map(|d| d.latency_slo_ms).filter(|slo| waits_ms > slo * (1.0 + ROUNDING))
        {
            found.push(format!(
                "`{name}`: a round and its batch take {waits_ms} ms, above its SLO of {slo_ms} ms"
            ));
        }
        let served_rps = 1e3 * f64::from(p.batch) / round_ms;
        if served_rps < p.rate_rps * (1.0 - ROUNDING) {
            found.push(format!(
                "`{name}`: a batch of {} each {round_ms} ms is below its rate of {} items/s",
                p.batch, p.rate_rps
            ));
        }
    }
}

fn check_partition(problem: &Problem, demands: &Demands, mhz: u32, p: &Partition, found: &mut Vec<String>) {
    let name = &p.model;
    let Some(demand) = demands.get(name.as_str()) else {
        found.push(format!("`{name}` is not a model of the workload"));
        return;
    };
    if p.latency_ms.is_nan() || p.latency_ms > demand.latency_slo_ms {
        found.push(format!(
            "`{name}`: latency {} ms is above its SLO of {} ms",
            p.latency_ms, demand.latency_slo_ms
        ));
    }
    if !(p.rate_rps.is_finite() && p.rate_rps > 0.0) {
        found.push(format!("`{name}`: rate_rps is {}", p.rate_rps));
    } else if p.throughput_rps.is_nan() || p.throughput_rps < p.rate_rps * (1.0 - ROUNDING) {
        found.push(format!(
            "`{name}`: throughput {} items/s is below its rate of {}",
            p.throughput_rps, p.rate_rps
        ));
    }
    let Some(share) = p.share() else { return };
    let wanted = Candidate {
        batch: p.batch,
        share,
        processes: p.processes,
        frequency_mhz: mhz,
        latency_ms: p.latency_ms,
        throughput_rps: p.throughput_rps,
        dynamic_w: p.dynamic_w,
        uses: Uses::default(),
    };
    match demand.candidates.iter().find(|c| c.same_configuration(&wanted)) {
        None => found.push(format!("`{name}`: {wanted} is not in the profile")),
        Some(c) => {
            if let Some(queueing) = problem.queueing
                && !queueing.meets_in_turn(c, demand.latency_slo_ms, p.rate_rps, p.turn)
            {
                let request_ms = queueing.request_in_turn_ms(c, p.rate_rps, p.turn);
                let told = request_ms.map_or("without end".into(), |ms| format!("{ms:.4} ms"));
                found.push(format!(
                    "`{name}`: {} % of requests take {told}, waiting included, above its SLO of {} ms",
                    queueing.percentile, demand.latency_slo_ms
                ));
            }
            for (what, says, is) in [
                ("latency_ms", p.latency_ms, c.latency_ms),
                ("throughput_rps", p.throughput_rps, c.throughput_rps),
                ("dynamic_w", p.dynamic_w, c.dynamic_w),
            ] {
                if !near(says, is) {
                    found.push(format!("`{name}`: {what} is {says}, but {is} in the profile"));
                }
            }
        }
    }
    if matches!(share, Share::Percent(_)) && p.start_slot.is_some() {
        found.push(format!("`{name}` has a start_slot, but no MIG instance"));
    }
}

fn check_service(problem: &Problem, plan: &Plan) -> Vec<String> {
    let mut served: HashMap<&str, f64> = HashMap::new();
    for p in plan.gpus.iter().flat_map(|g| &g.partitions) {
        *served.entry(&p.model).or_default() += p.rate_rps;
    }
    let mut found = Vec::new();
    for model in &problem.models {
        let rate = served.get(model.name.as_str()).copied().unwrap_or(0.0);
        let wanted = model.rate_rps;
        if rate == 0.0 {
            found.push(format!("`{}` is not served", model.name));
        } else if !near(rate, wanted) {
            let how = if rate > wanted { "more than once" } else { "in part" };
            found.push(format!("`{}` is served {how}: {rate} of {wanted} items/s", model.name));
        }
    }
    found
}

fn check_totals(problem: &Problem, plan: &Plan) -> Vec<String> {
    let mut found = Vec::new();
    if let Some(gpus) = problem.gpus.filter(|n| plan.gpus.len() > *n as usize) {
        found.push(format!("{} GPUs are used, but there are {gpus}", plan.gpus.len()));
    }
    if plan.total.gpus_used != plan.gpus.len() {
        found.push(format!("gpus_used is {}, but {} are listed", plan.total.gpus_used, plan.gpus.len()));
    }
    let sum = |f: fn(&Gpu) -> f64| plan.gpus.iter().map(f).sum::<f64>();
    for (what, says, is) in [
        ("cost", plan.cost, sum(|g| g.cost) + problem.cost_of_unused()),
        ("total power_w", plan.total.power_w, sum(|g| g.power_w)),
        (
            "total average_power_w",
            plan.total.average_power_w,
            sum(|g| g.average_power_w) + problem.unused_w(plan.gpus.len()),
        ),
    ] {
        if !near(says, is) {
            found.push(format!("{what} is {says}, but the GPUs' sum is {is}"));
        }
    }
    found
}

/// Whether two numbers differ by no more than rounding; never for NaN.
pub(crate) fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= ROUNDING * a.abs().max(b.abs())
}
