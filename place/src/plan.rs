//! The plan file: which model runs where, at which clock, and what that is expected to cost.
//!
//! Rule: one JSON document; keys carry their units; [`SCHEMA`] counts changes that older readers cannot read, and a
//! newer plan is refused. The inputs are named with their SHA-256, so a plan says what it was made from.
//! Cases: MIG partitions have `slices` and `start_slot`, MPS partitions `share_pct`; what does not apply is left out.
//! Partitions with the same number in `turn` are one share that their models use in turns ([`crate::turn`]).
//!
//! Totals: `power_w` is Σ over GPUs of base + Σ dynamic (EnerTune, SOSP'26); `average_power_w` weighs each model's
//! dynamic power with rate / throughput; `energy_per_request_j` is that over the rate of all models;
//! `carbon_per_request_g` adds the wear of the GPUs (see [`crate::cost`]).
//! Not done: judging; [`crate::check`] does.

use gpumon_core::workload::Sharing;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::candidate::{Candidate, Share};
use crate::cost::{Load, average_w};
use crate::problem::Problem;
use crate::turn::{self, Turn};

/// Version of the plan file's shape.
pub const SCHEMA: u32 = 1;

/// A plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Version of the shape.
    pub schema: u32,
    /// gpumon that wrote it.
    pub gpumon_version: String,
    /// Whether any row that it was made from comes from a simulated GPU.
    #[serde(default)]
    pub simulated: bool,
    /// System that planned.
    pub system: String,
    /// Objective it planned for.
    pub objective: String,
    /// Cost of the plan, in `cost_unit`.
    pub cost: f64,
    /// Unit of `cost`.
    pub cost_unit: String,
    /// Kind of GPU.
    pub gpu: String,
    /// How GPUs are shared.
    pub sharing: Sharing,
    /// Scale of the workload's rates.
    pub load: f64,
    /// Carbon intensity that was reckoned with, g/kWh.
    pub carbon_g_per_kwh: f64,
    /// Power usage effectiveness that was reckoned with.
    pub pue: f64,
    /// The GPUs: highest clock first as placed, in the same order when tuned.
    pub gpus: Vec<Gpu>,
    /// Sums over the GPUs.
    pub total: Total,
    /// The percentile of requests that must be within their SLO, %; absent where nobody waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slo_percentile: Option<f64>,
    /// What the plan was made from.
    #[serde(default)]
    pub inputs: Vec<Input>,
}

/// One GPU of a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    /// SM clock to lock, MHz.
    pub frequency_mhz: u32,
    /// Power before any model runs, W.
    pub base_w: f64,
    /// Power while every model runs, W.
    pub power_w: f64,
    /// Power with duty cycles, W.
    pub average_power_w: f64,
    /// Cost for the plan's objective.
    pub cost: f64,
    /// What runs there.
    pub partitions: Vec<Partition>,
}

/// One share of a GPU and the model in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Partition {
    /// The model.
    pub model: String,
    /// Items in a batch.
    pub batch: u32,
    /// Compute slices (MIG).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slices: Option<u8>,
    /// Share of the SMs, % (MPS).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_pct: Option<f64>,
    /// Memory slot at which the instance starts (MIG).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_slot: Option<u8>,
    /// Worker processes in this share.
    pub processes: u32,
    /// Items a second that are sent here.
    pub rate_rps: f64,
    /// Longest time of a batch that is allowed, ms.
    pub latency_slo_ms: f64,
    /// Expected time of a batch, ms.
    pub latency_ms: f64,
    /// Time that the percentile of requests take at most, gathering and waiting included, ms; where the workload has
    /// arrivals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_latency_ms: Option<f64>,
    /// Items a second that it can serve.
    pub throughput_rps: f64,
    /// Power above the base while it runs, W.
    pub dynamic_w: f64,
    /// The share that it takes turns in with others; absent where the share is its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<Turn>,
}

/// Sums over a plan's GPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Total {
    /// GPUs with work.
    pub gpus_used: usize,
    /// Power while every model runs, W.
    pub power_w: f64,
    /// Power with duty cycles, W, with that of unused GPUs.
    pub average_power_w: f64,
    /// What GPUs without a model draw of it, W, where they do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unused_w: Option<f64>,
    /// Average power over the rate of all models, J.
    pub energy_per_request_j: f64,
    /// Operational and embodied carbon over the rate of all models, g.
    pub carbon_per_request_g: f64,
    /// No plan costs less than this, where the system knows such a bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound: Option<f64>,
    /// Whether the plan is proven to be the cheapest, where the system tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proven: Option<bool>,
}

/// A file that a plan was made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// What it is, or its file name.
    pub name: String,
    /// SHA-256 of its bytes, hexadecimal.
    pub sha256: String,
}

impl Input {
    /// The input with this name and these bytes.
    pub fn new(name: &str, bytes: &[u8]) -> Self {
        let sha256 = Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect();
        Self { name: name.into(), sha256 }
    }
}

/// What a policy decides for one GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Placed {
    /// SM clock, MHz.
    pub frequency_mhz: u32,
    /// What runs there.
    pub items: Vec<PlacedItem>,
}

/// What a policy decides for one share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlacedItem {
    /// Index into the problem's models.
    pub model: usize,
    /// What it runs as; its clock is the GPU's.
    pub candidate: Candidate,
    /// Items a second of that model that are served here.
    pub rate_rps: f64,
    /// The share that it takes turns in with other items of its GPU; all of them have the same candidate's share.
    pub turn: Option<Turn>,
}

/// Why a plan file cannot be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PlanError {
    /// It is not JSON of this shape.
    #[error("not a plan: {0}")]
    Shape(String),
    /// It is of a later gpumon.
    #[error(
        "the plan has schema {found}, written by gpumon {by}; this gpumon reads up to {SCHEMA}, so use a newer one"
    )]
    Newer {
        /// Its schema.
        found: u64,
        /// Who wrote it.
        by: String,
    },
}

impl Plan {
    /// The plan file of what a policy decided. GPUs without work are left out; MIG starts are found here, and a set
    /// that has none is left without, which the checker reports.
    pub fn new(problem: &Problem, system: &str, placed: &[Placed]) -> Self {
        let mut gpus: Vec<Gpu> =
            placed.iter().filter(|p| !p.items.is_empty()).map(|p| gpu(problem, p)).collect();
        gpus.sort_by_key(|g| std::cmp::Reverse(g.frequency_mhz));
        Self::of_gpus(problem, system, gpus)
    }

    /// The plan file of these GPUs, in this order.
    pub(crate) fn of_gpus(problem: &Problem, system: &str, gpus: Vec<Gpu>) -> Self {
        let unused_w = problem.unused_w(gpus.len());
        let average_power_w: f64 = gpus.iter().map(|g| g.average_power_w).sum::<f64>() + unused_w;
        let rate_rps = problem.cost.total_rate_rps;
        let total = Total {
            gpus_used: gpus.len(),
            power_w: gpus.iter().map(|g| g.power_w).sum(),
            average_power_w,
            unused_w: (problem.cost.unused_w > 0.0).then_some(unused_w),
            energy_per_request_j: average_power_w / rate_rps,
            carbon_per_request_g: problem.cost.carbon.per_second_g(average_power_w, gpus.len()) / rate_rps,
            bound: None,
            proven: None,
        };
        Self {
            schema: SCHEMA,
            gpumon_version: env!("CARGO_PKG_VERSION").into(),
            simulated: problem.simulated,
            system: system.into(),
            objective: problem.cost.objective.name().into(),
            cost: gpus.iter().map(|g| g.cost).sum::<f64>() + problem.cost_of_unused(),
            cost_unit: problem.cost.objective.unit().into(),
            gpu: problem.gpu.clone(),
            sharing: problem.sharing,
            load: problem.load,
            carbon_g_per_kwh: problem.cost.carbon.g_per_kwh,
            pue: problem.cost.carbon.pue,
            gpus,
            total,
            slo_percentile: problem.queueing.map(|q| q.percentile),
            inputs: Vec::new(),
        }
    }

    /// The plan in a JSON text.
    pub fn parse(text: &str) -> Result<Self, PlanError> {
        let shape = |e: serde_json::Error| PlanError::Shape(e.to_string());
        let value: serde_json::Value = serde_json::from_str(text).map_err(shape)?;
        let found = value.get("schema").and_then(serde_json::Value::as_u64);
        if let Some(found) = found.filter(|s| *s > u64::from(SCHEMA)) {
            let by = value.get("gpumon_version").and_then(|v| v.as_str()).unwrap_or("of unknown version");
            return Err(PlanError::Newer { found, by: by.into() });
        }
        serde_json::from_value(value).map_err(shape)
    }

    /// What each partition leaves of its SLO, %.
    pub fn slacks_pct(&self) -> impl Iterator<Item = f64> {
        self.gpus.iter().flat_map(|g| &g.partitions).map(Partition::slack_pct)
    }

    /// What the partition nearest to its SLO leaves of it, %.
    pub fn least_slack_pct(&self) -> f64 {
        self.slacks_pct().fold(100.0, f64::min)
    }

    /// The JSON text, for people: indented, with a newline at its end.
    pub fn to_json(&self) -> Result<String, PlanError> {
        let text = serde_json::to_string_pretty(self).map_err(|e| PlanError::Shape(e.to_string()))?;
        Ok(text + "\n")
    }
}

impl Partition {
    /// How much of the GPU it has; `None` if the file says neither slices nor percent.
    pub fn share(&self) -> Option<Share> {
        self.slices.map(Share::Slices).or(self.share_pct.map(Share::Percent))
    }

    /// What it leaves of its SLO, %: of the time of requests where they wait, else of that of a batch, with the round that may
    /// pass before it.
    pub fn slack_pct(&self) -> f64 {
        let round_ms = self.turn.map_or(0.0, |turn| turn.round_ms);
        let taken_ms = self.request_latency_ms.unwrap_or(round_ms + self.latency_ms);
        100.0 * (1.0 - taken_ms / self.latency_slo_ms)
    }

    /// What it brings to the cost of its GPU, in a share of its own.
    pub fn load(&self) -> Load {
        Load {
            latency_ms: self.latency_ms,
            dynamic_w: self.dynamic_w,
            duty: self.rate_rps / self.throughput_rps,
        }
    }
}

/// What the shares of a GPU bring to its cost.
pub fn loads(partitions: &[Partition]) -> Vec<Load> {
    turn::loads(&partitions.iter().map(|p| (p.load(), p.turn)).collect::<Vec<_>>())
}

fn gpu(problem: &Problem, placed: &Placed) -> Gpu {
    let shares = turn::shares(placed.items.iter().map(|i| i.turn));
    let size = |share: &Vec<usize>| placed.items[share[0]].candidate.share.slices();
    let sizes: Option<Vec<u8>> = shares.iter().map(size).collect();
    let starts = sizes.and_then(|s| problem.geometry.place(&s));
    let mut partitions: Vec<Partition> = placed.items.iter().map(|item| partition(problem, item)).collect();
    for (share, start) in shares.iter().zip(starts.unwrap_or_default()) {
        share.iter().for_each(|&at| partitions[at].start_slot = Some(start));
    }
    partitions.sort_by_key(|p| p.start_slot);
    gpu_of(problem, placed.frequency_mhz, partitions)
}

/// A GPU at this clock with these partitions.
pub(crate) fn gpu_of(problem: &Problem, frequency_mhz: u32, partitions: Vec<Partition>) -> Gpu {
    let loads = loads(&partitions);
    // A clock that the problem does not have is the checker's to report.
    let base_w = problem.base_w(frequency_mhz).unwrap_or(0.0);
    Gpu {
        frequency_mhz,
        base_w,
        power_w: base_w + loads.iter().map(|l| l.dynamic_w).sum::<f64>(),
        average_power_w: average_w(base_w, &loads),
        cost: problem.cost.gpu(base_w, &loads),
        partitions,
    }
}

/// A partition without a place yet.
pub(crate) fn partition(problem: &Problem, item: &PlacedItem) -> Partition {
    let (model, c) = (&problem.models[item.model], &item.candidate);
    Partition {
        model: model.name.clone(),
        batch: c.batch,
        slices: c.share.slices(),
        share_pct: if let Share::Percent(pct) = c.share { Some(pct) } else { None },
        start_slot: None,
        processes: c.processes,
        rate_rps: item.rate_rps,
        latency_slo_ms: model.latency_slo_ms,
        latency_ms: c.latency_ms,
        request_latency_ms: problem.queueing.and_then(|q| q.request_in_turn_ms(c, item.rate_rps, item.turn)),
        throughput_rps: c.throughput_rps,
        dynamic_w: c.dynamic_w,
        turn: item.turn,
    }
}
