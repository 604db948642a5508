//! New clocks and batches for a plan that runs, after a change of rates or of carbon intensity; no model moves.
//!
//! Rule: a model's trigger is its rate, its SLO, and PUE × carbon intensity. A GPU on which no model's trigger has changed
//! stays as it is, while it still meets all SLOs and rates (it may not where requests wait now, or the profile is a new
//! one). On any other the models keep their partitions, slices, start slots and processes, and
//!
//! - as published ([`Tuner::PUBLISHED`]): each model has its smallest clock at which its share still meets SLO and rate; for a
//!   model whose trigger changed, not below the present one after a rise of the rate, a tighter SLO or a fall of carbon
//!   intensity, and not above it after the opposite. The new clock is the largest of these.
//! - every clock ([`Tuner::WHOLE`]): of all clocks at which every model of the GPU meets its SLO and rate, the one of least
//!   cost, the lower of equals. The published clock is one of them and so is the present one while it suffices; so this never
//!   costs more than either, and what comes of it depends on the shares and the new demand only, not on the way there.
//!
//! At the clock the models take the batches that cost least together.
//!
//! Cases: models without a change on a GPU with one bound the clock too. The rate of a model with several partitions
//! changes in proportion on each. Where the limited direction has no clock, all are looked at. A model that its share cannot
//! serve at any clock, or models that no one clock serves, are an error that names them and what binds: then only placing
//! anew helps.
//! Not done: moving models, changing shares, turning GPUs off; plans with models that take turns, which are an error.
//!
//! Source: local tuner of EnerTune (SOSP'26); comparing all clocks by cost is this project's own.

use gpumon_core::workload::Sharing;
use serde::Serialize;

use crate::candidate::{Candidate, Infeasible, binding};
use crate::check::{ROUNDING, Violation, check, near};
use crate::cost::Objective;
use crate::plan::{Gpu, Partition, PlacedItem, Plan, gpu_of, partition};
use crate::problem::{Demand, Problem};

/// How a clock is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuner {
    /// Whether all clocks are compared by cost.
    every_clock: bool,
}

/// A tuned plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tuned {
    /// Cost of the plan as it was, with the new demand; absent where it does not meet that.
    pub cost_untuned: Option<f64>,
    /// Cost of the tuned plan.
    pub cost: f64,
    /// Unit of both.
    pub cost_unit: String,
    /// Each GPU, in the plan's order.
    pub gpus: Vec<Change>,
    /// The plan.
    pub plan: Plan,
}

/// What tuning did to a GPU.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// Number in the plan.
    pub gpu: usize,
    /// Whether the trigger of any of its models had changed, or one no longer met SLO and rate.
    pub triggered: bool,
    /// Clock before, MHz.
    pub frequency_mhz_before: u32,
    /// Clock now, MHz.
    pub frequency_mhz: u32,
    /// Its partitions, in the plan's order.
    pub models: Vec<ModelChange>,
}

/// What tuning did to a partition.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelChange {
    /// The model.
    pub model: String,
    /// Rate before, items/s.
    pub rate_rps_before: f64,
    /// Rate now, items/s.
    pub rate_rps: f64,
    /// Batch before, items.
    pub batch_before: u32,
    /// Batch now, items.
    pub batch: u32,
}

impl Change {
    /// Whether clock or batches are new.
    pub fn is_new(&self) -> bool {
        self.frequency_mhz != self.frequency_mhz_before
            || self.models.iter().any(|m| m.batch != m.batch_before)
    }
}

/// Why a plan cannot be tuned.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum TuneError {
    /// The plan and what it is to be tuned for do not belong together.
    #[error(
        "the plan {0}; tune it with the workload and profile that it was made from, or place anew with gpumon place"
    )]
    Mismatch(String),
    /// A model's share serves it at no clock.
    #[error("GPU {gpu}: in its {share} {model}; place anew with gpumon place")]
    Infeasible {
        /// The GPU's number in the plan.
        gpu: usize,
        /// The share.
        share: String,
        /// The model and what binds.
        model: Box<Infeasible>,
    },
    /// Each model has a clock, but no clock serves all.
    #[error("GPU {gpu}: no one clock serves all its models: {clocks}; place anew with gpumon place")]
    NoCommonClock {
        /// The GPU's number in the plan.
        gpu: usize,
        /// Each model with its clocks.
        clocks: String,
    },
    /// Rounds of turns are not tuned.
    #[error(
        "GPU {gpu} runs `{model}` in turns with others in one partition, and tuning sets no rounds; place anew with gpumon place"
    )]
    Turns {
        /// The GPU's number in the plan.
        gpu: usize,
        /// The first such model.
        model: String,
    },
    /// The plan does not hold, whatever the clocks.
    #[error("the plan does not hold: {}; place anew with gpumon place", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Unsound(Vec<Violation>),
}

/// A partition that is to be configured anew.
struct Seat<'a> {
    partition: &'a Partition,
    model: usize,
    demand: &'a Demand,
    rate_rps: f64,
    /// Which way its trigger went.
    trend: Option<Trend>,
    /// What it could run as in its share: meets SLO and rate, any clock.
    options: Vec<Candidate>,
}

impl Seat<'_> {
    /// Whether a candidate is what the partition runs as on this GPU.
    fn is_present(&self, gpu: &Gpu, c: &Candidate) -> bool {
        same_seat(self.partition, c)
            && (c.batch, c.frequency_mhz) == (self.partition.batch, gpu.frequency_mhz)
    }

    /// Whether it meets SLO and rate as it runs.
    fn suffices(&self, gpu: &Gpu) -> bool {
        self.options.iter().any(|c| self.is_present(gpu, c))
    }
}

/// Which way a clock has to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trend {
    Up,
    Down,
}

impl Tuner {
    /// As EnerTune publishes it.
    pub const PUBLISHED: Self = Self { every_clock: false };
    /// Every clock is compared.
    pub const WHOLE: Self = Self { every_clock: true };

    /// `plan` for the demand of `problem`, checked.
    pub fn tune(self, problem: &Problem, plan: &Plan) -> Result<Tuned, TuneError> {
        belongs(problem, plan)?;
        let (mut gpus, mut untuned, mut changes) = (Vec::new(), Vec::new(), Vec::new());
        for (index, gpu) in plan.gpus.iter().enumerate() {
            let seats = seats(problem, plan, gpu)?;
            let triggered = seats.iter().any(|seat| seat.trend.is_some() || !seat.suffices(gpu));
            let as_it_was = same(problem, gpu, &seats)?;
            let new = if triggered { self.retune(problem, index, gpu, &seats)? } else { as_it_was.clone() };
            changes.push(change(index, triggered, gpu, &new));
            gpus.push(new);
            untuned.push(as_it_was);
        }
        let tuned = finished(problem, plan, gpus);
        let violations = check(problem, &tuned);
        if !violations.is_empty() {
            return Err(TuneError::Unsound(violations));
        }
        let untuned = finished(problem, plan, untuned);
        let cost_untuned = check(problem, &untuned).is_empty().then_some(untuned.cost);
        let (cost, cost_unit) = (tuned.cost, tuned.cost_unit.clone());
        Ok(Tuned { cost_untuned, cost, cost_unit, gpus: changes, plan: tuned })
    }

    fn retune(self, problem: &Problem, index: usize, gpu: &Gpu, seats: &[Seat]) -> Result<Gpu, TuneError> {
        if let Some(seat) = seats.iter().find(|seat| seat.options.is_empty()) {
            return Err(infeasible(problem, index, seat));
        }
        let least_mhz = |seat: &Seat| {
            let clocks = || seat.options.iter().map(|c| c.frequency_mhz);
            let limited = clocks().filter(|mhz| match seat.trend {
                Some(Trend::Up) => *mhz >= gpu.frequency_mhz,
                Some(Trend::Down) => *mhz <= gpu.frequency_mhz,
                None => true,
            });
            limited.min().or(clocks().min()).unwrap_or(0)
        };
        let needed_mhz = seats.iter().map(least_mhz).max().unwrap_or(0);
        let ways = problem.clocks.iter().filter_map(|(mhz, _)| {
            let (cost, chosen) = cheapest_at(problem, *mhz, seats)?;
            Some((*mhz, cost, chosen))
        });
        let mut ways: Vec<(u32, f64, Vec<Candidate>)> = ways.collect();
        if !self.every_clock {
            // Where a profile has holes, a higher clock may lack what a lower one has.
            let first = ways.iter().position(|(mhz, ..)| *mhz >= needed_mhz).unwrap_or(0);
            ways = ways.into_iter().skip(first).take(1).collect();
        }
        // Clocks ascend, and of equals the first is taken.
        let best = ways.into_iter().min_by(|a, b| a.1.total_cmp(&b.1));
        let (mhz, _, chosen) = best.ok_or_else(|| no_common_clock(index, seats))?;
        Ok(configured(problem, mhz, seats, &chosen))
    }
}

/// An error unless the problem asks for what the plan serves, on the same kind of GPU.
fn belongs(problem: &Problem, plan: &Plan) -> Result<(), TuneError> {
    let mismatch = |text: String| Err(TuneError::Mismatch(text));
    let kind = |sharing| if sharing == Sharing::Mig { "mig" } else { "mps" };
    if plan.gpu != problem.gpu {
        return mismatch(format!("is for GPUs of kind `{}`, but cluster.gpu is `{}`", plan.gpu, problem.gpu));
    }
    if kind(plan.sharing) != kind(problem.sharing) {
        let (is, asked) = (kind(plan.sharing), kind(problem.sharing));
        return mismatch(format!("shares GPUs by `{is}`, but cluster.sharing is `{asked}`"));
    }
    if plan.objective.parse::<Objective>() != Ok(problem.cost.objective) {
        return mismatch(format!(
            "is for the objective `{}`, not `{}`",
            plan.objective, problem.cost.objective
        ));
    }
    let in_turns = |(gpu, of): (usize, &Gpu)| {
        let partition = of.partitions.iter().find(|p| p.turn.is_some())?;
        Some(TuneError::Turns { gpu, model: partition.model.clone() })
    };
    if let Some(error) = plan.gpus.iter().enumerate().find_map(in_turns) {
        return Err(error);
    }
    let served = |name: &str| plan.gpus.iter().flat_map(|g| &g.partitions).any(|p| p.model == name);
    if let Some(model) = problem.models.iter().find(|m| !served(&m.name)) {
        return mismatch(format!("does not serve `{}`, which the workload lists", model.name));
    }
    Ok(())
}

/// The partitions of a GPU with their new rates.
fn seats<'a>(problem: &'a Problem, plan: &'a Plan, gpu: &'a Gpu) -> Result<Vec<Seat<'a>>, TuneError> {
    let intensity = |g_per_kwh: f64, pue: f64| g_per_kwh * pue;
    let carbon = problem.cost.carbon;
    let cleaner = trend(
        intensity(plan.carbon_g_per_kwh, plan.pue),
        intensity(carbon.g_per_kwh, carbon.pue),
        Trend::Down,
    );
    let seat = |p: &'a Partition| {
        let mismatch = |what: &str| TuneError::Mismatch(format!("{what} `{}`", p.model));
        let model = problem.models.iter().position(|m| m.name == p.model);
        let model = model.ok_or_else(|| mismatch("serves a model that the workload does not list,"))?;
        let demand = &problem.models[model];
        let parts = || plan.gpus.iter().flat_map(|g| &g.partitions).filter(|q| q.model == p.model);
        let whole_rps: f64 = parts().map(|q| q.rate_rps).sum();
        if !(p.rate_rps > 0.0 && whole_rps.is_finite()) {
            return Err(mismatch("has no rate above 0 for a part of"));
        }
        let by_rate = trend(whole_rps, demand.rate_rps, Trend::Up);
        let rate_rps = match (by_rate, parts().count()) {
            (None, _) => p.rate_rps,
            (Some(_), 1) => demand.rate_rps,
            (Some(_), _) => p.rate_rps * (demand.rate_rps / whole_rps),
        };
        let by_slo = trend(p.latency_slo_ms, demand.latency_slo_ms, Trend::Down);
        let options =
            demand.candidates.iter().filter(|c| same_seat(p, c) && meets(problem, demand, c, rate_rps));
        let (trend, options) = (by_rate.or(by_slo).or(cleaner), options.copied().collect());
        Ok(Seat { partition: p, model, demand, rate_rps, trend, options })
    };
    gpu.partitions.iter().map(seat).collect()
}

/// Which way the clock goes when a value changes from `before` to `now`, if a rise means `rise`.
fn trend(before: f64, now: f64, rise: Trend) -> Option<Trend> {
    let fall = if rise == Trend::Up { Trend::Down } else { Trend::Up };
    (!near(before, now)).then_some(if now > before { rise } else { fall })
}

/// Whether a candidate runs in this partition's share with its processes.
fn same_seat(p: &Partition, c: &Candidate) -> bool {
    let like = p.share().map(|share| Candidate { share, processes: p.processes, ..*c });
    like.is_some_and(|like| like.same_configuration(c))
}

/// Whether a candidate serves this rate within the model's SLO, as the checker sees it.
fn meets(problem: &Problem, demand: &Demand, c: &Candidate, rate_rps: f64) -> bool {
    c.meets(demand.latency_slo_ms, rate_rps * (1.0 - ROUNDING))
        && problem.queueing.is_none_or(|q| q.meets(c, demand.latency_slo_ms, rate_rps))
}

/// The cheapest configurations of all seats at a clock together, with their cost.
///
/// A GPU costs fixed + per_latency × longest + Σ weights, so for each longest latency that is possible every seat takes its
/// least weight within it.
fn cheapest_at(problem: &Problem, mhz: u32, seats: &[Seat]) -> Option<(f64, Vec<Candidate>)> {
    let terms = problem.cost.terms(problem.base_w(mhz)?);
    let at_clock = |seat: &Seat| -> Vec<(f64, Candidate)> {
        let here = seat.options.iter().filter(|c| c.frequency_mhz == mhz);
        here.map(|c| (problem.cost.weight(&seat.demand.load(c, seat.rate_rps)), *c)).collect()
    };
    let options: Vec<Vec<(f64, Candidate)>> = seats.iter().map(at_clock).collect();
    let mut best: Option<(f64, Vec<Candidate>)> = None;
    for longest_ms in options.iter().flatten().map(|(_, c)| c.latency_ms) {
        let within = |all: &Vec<(f64, Candidate)>| {
            let fast = all.iter().filter(|(_, c)| c.latency_ms <= longest_ms);
            fast.min_by(|a, b| a.0.total_cmp(&b.0)).copied()
        };
        let Some(chosen) = options.iter().map(within).collect::<Option<Vec<_>>>() else { continue };
        let slowest_ms = chosen.iter().map(|(_, c)| c.latency_ms).fold(0.0, f64::max);
        let weights: f64 = chosen.iter().map(|(weight, _)| weight).sum();
        let cost = terms.fixed + terms.per_latency * slowest_ms + weights;
        if best.as_ref().is_none_or(|(least, _)| cost < *least) {
            best = Some((cost, chosen.into_iter().map(|(_, c)| c).collect()));
        }
    }
    best
}

/// A GPU whose seats run as these.
fn configured(problem: &Problem, mhz: u32, seats: &[Seat], chosen: &[Candidate]) -> Gpu {
    let partitions = seats.iter().zip(chosen).map(|(seat, candidate)| {
        let item =
            PlacedItem { model: seat.model, candidate: *candidate, rate_rps: seat.rate_rps, turn: None };
        Partition { start_slot: seat.partition.start_slot, ..partition(problem, &item) }
    });
    gpu_of(problem, mhz, partitions.collect())
}

/// A GPU with its clock and batches as they were and the new rates.
fn same(problem: &Problem, gpu: &Gpu, seats: &[Seat]) -> Result<Gpu, TuneError> {
    let find = |seat: &Seat| {
        let p = seat.partition;
        let found = seat.demand.candidates.iter().find(|c| seat.is_present(gpu, c));
        found.copied().ok_or_else(|| {
            let share = p.share().map_or("no share".into(), |s| s.to_string());
            TuneError::Mismatch(format!(
                "runs `{}` with batch {}, {share}, {} MHz, which the profile does not have",
                p.model, p.batch, gpu.frequency_mhz
            ))
        })
    };
    let chosen = seats.iter().map(find).collect::<Result<Vec<_>, _>>()?;
    Ok(configured(problem, gpu.frequency_mhz, seats, &chosen))
}

fn finished(problem: &Problem, plan: &Plan, gpus: Vec<Gpu>) -> Plan {
    let tuned = Plan::of_gpus(problem, &plan.system, gpus);
    Plan { simulated: tuned.simulated || plan.simulated, ..tuned }
}

fn change(index: usize, triggered: bool, before: &Gpu, now: &Gpu) -> Change {
    let models = before.partitions.iter().zip(&now.partitions).map(|(before, now)| ModelChange {
        model: now.model.clone(),
        rate_rps_before: before.rate_rps,
        rate_rps: now.rate_rps,
        batch_before: before.batch,
        batch: now.batch,
    });
    Change {
        gpu: index,
        triggered,
        frequency_mhz_before: before.frequency_mhz,
        frequency_mhz: now.frequency_mhz,
        models: models.collect(),
    }
}

fn infeasible(problem: &Problem, gpu: usize, seat: &Seat) -> TuneError {
    let Seat { partition: p, demand, rate_rps, .. } = seat;
    let (name, latency_slo_ms, rate_rps) = (demand.name.clone(), demand.latency_slo_ms, *rate_rps);
    let of_share: Vec<Candidate> = demand.candidates.iter().filter(|c| same_seat(p, c)).copied().collect();
    let share = p.share().map_or("missing share".into(), |s| s.to_string());
    match binding(&of_share, latency_slo_ms, rate_rps, problem.queueing) {
        Some(binding) => {
            let model = Infeasible { model: name, latency_slo_ms, rate_rps, binding };
            TuneError::Infeasible { gpu, share, model: Box::new(model) }
        }
        None => TuneError::Mismatch(format!("runs `{name}` in {share}, which the profile does not have")),
    }
}

fn no_common_clock(gpu: usize, seats: &[Seat]) -> TuneError {
    let words = |seat: &Seat| {
        let mut clocks: Vec<u32> = seat.options.iter().map(|c| c.frequency_mhz).collect();
        clocks.sort_unstable();
        clocks.dedup();
        let clocks: Vec<String> = clocks.iter().map(u32::to_string).collect();
        format!("`{}` takes {} MHz", seat.demand.name, clocks.join(", "))
    };
    TuneError::NoCommonClock { gpu, clocks: seats.iter().map(words).collect::<Vec<_>>().join("; ") }
}
