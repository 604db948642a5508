//! What a model takes of a GPU, and in which batches and replicas it could run.
//!
//! Rule: C of a batch is its achieved occupancy on the largest share, a time-weighted mean over its kernels; M its measured
//! memory over the GPU's. A replica runs in the smallest share of at least C at which a batch is within the SLO. For each
//! number of replicas 1 to 16 the smallest batch counts that meets its part of the rate and whose time with that of
//! collecting it, (batch − 1) × replicas / rate, is within the SLO.
//! Cases: without a measured occupancy C is the smallest share at which throughput reaches 95 % of that on the largest. Batches
//! are powers of two up to 128, or whatever was profiled if none is. If 16 replicas are not enough it is the fewest that are. If not even
//! the smallest profiled batch can be collected in time, it is that batch in one replica, dispatched on a timeout, where 2 l ≤ SLO.
//! An option that another one beats in replicas, C and M is left out.
//! A model is compute-heavy if C / M, averaged over batches, is at least 1.2, memory-heavy if M / C is, else neutral.
//! Not done: the peak over kernels, which is 100 % for every real model.
//!
//! Source: USHER (OSDI'24), its resource requirement; the time-weighted mean is what matches published use. Timeouts are those of
//! GPUlets (ATC'22), for profiles without a batch of 1.

use crate::candidate::Candidate;
use crate::policy::sizes;
use crate::problem::Problem;

/// Part of the full throughput that a share must reach to be all that a model needs.
const ENOUGH: f64 = 0.95;
/// From this ratio on a model is heavy in one of the two.
const HEAVY: f64 = 1.2;
/// Most replicas that are tried one by one.
const REPLICAS: usize = 16;
/// Largest batch.
const BATCH: u32 = 128;

/// Which of the two a model takes more of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Compute.
    Compute,
    /// Memory.
    Memory,
    /// Neither by much, or memory is not known.
    Neutral,
}

/// One way to serve a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// How many partitions.
    pub replicas: usize,
    /// What runs in each.
    pub candidate: Candidate,
    /// Share of the compute of each, %: that of its partition.
    pub c_pct: f64,
    /// Share of the memory of each, %; 0 where it was not measured.
    pub m_pct: f64,
}

/// What a model takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Need {
    /// Index of the model.
    pub model: usize,
    /// Its rate, items/s.
    pub rate_rps: f64,
    /// Mean C over batches, %.
    pub c_pct: f64,
    /// Mean M over batches, %; 0 where it was not measured.
    pub m_pct: f64,
    /// Which it takes more of.
    pub kind: Kind,
    /// Ways to serve it; never empty.
    pub choices: Vec<Choice>,
}

impl Need {
    /// What this model takes at a clock, in the fewest processes a share; `None` if nothing keeps its SLO.
    pub fn new(problem: &Problem, model: usize, mhz: u32) -> Option<Self> {
        let demand = &problem.models[model];
        let at_clock = || demand.candidates.iter().filter(|c| c.frequency_mhz == mhz);
        let processes = at_clock().map(|c| c.processes).min();
        let rows = || at_clock().filter(|c| Some(c.processes) == processes);
        let usual = |c: &&Candidate| c.batch.is_power_of_two() && c.batch <= BATCH;
        let any_usual = rows().any(|c| usual(&c));
        let mut rows: Vec<&Candidate> = rows().filter(|c| !any_usual || usual(c)).collect();
        let pct = |c: &Candidate| sizes::percent(problem, c.share);
        rows.sort_by(|a, b| a.batch.cmp(&b.batch).then(pct(a).total_cmp(&pct(b))));
        let memory_pct =
            |c: &Candidate| c.uses.mem_bytes.map(|b| 100.0 * b / sizes::memory_bytes(&problem.gpu));
        let (mut of_batch, mut runs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for of_one in rows.chunk_by(|a, b| a.batch == b.batch) {
            let c_pct = compute_pct(of_one, &pct);
            let m_pct = of_one.iter().rev().find_map(|c| memory_pct(c));
            of_batch.push((c_pct, m_pct.unwrap_or(0.0)));
            ratios.extend(m_pct.map(|m| c_pct / m));
            let runs_as = |c: &&&Candidate| pct(c) >= c_pct - 1e-6 && c.latency_ms <= demand.latency_slo_ms;
            runs.extend(of_one.iter().find(runs_as).map(|&c| (*c, pct(c), memory_pct(c).or(m_pct))));
        }
        let mean = |list: &[f64]| list.iter().sum::<f64>() / list.len().max(1) as f64;
        let kind = match mean(&ratios) {
            _ if ratios.is_empty() => Kind::Neutral,
            ratio if ratio >= HEAVY => Kind::Compute,
            _ if mean(&ratios.iter().map(|r| 1.0 / r).collect::<Vec<_>>()) >= HEAVY => Kind::Memory,
            _ => Kind::Neutral,
        };
        let meets = |replicas: usize| {
            let each_rps = demand.rate_rps / replicas as f64;
            let found = runs.iter().find(|(c, ..)| {
                let collect_ms = f64::from(c.batch - 1) * 1000.0 / each_rps;
                c.throughput_rps >= each_rps && c.latency_ms + collect_ms <= demand.latency_slo_ms
            });
            found.map(|&(candidate, c_pct, m_pct)| Choice {
                replicas,
                candidate,
                c_pct,
                m_pct: m_pct.unwrap_or(0.0),
            })
        };
        let mut choices: Vec<Choice> = Vec::new();
        for choice in (1..=REPLICAS).filter_map(meets) {
            if !choices.iter().any(|c| c.c_pct <= choice.c_pct && c.m_pct <= choice.m_pct) {
                choices.push(choice);
            }
        }
        if choices.is_empty() {
            let fewest = runs.iter().map(|(c, ..)| (demand.rate_rps / c.throughput_rps).ceil() as usize);
            choices.extend(fewest.filter(|n| *n > REPLICAS).min().and_then(meets));
        }
        if choices.is_empty() {
            // A batch that is not full after SLO − l leaves as it is, and the next has as long.
            let on_timeout = |c: &Candidate| {
                c.throughput_rps >= demand.rate_rps && 2.0 * c.latency_ms <= demand.latency_slo_ms
            };
            choices.extend(runs.first().filter(|(c, ..)| on_timeout(c)).map(|&(candidate, c_pct, m_pct)| {
                Choice { replicas: 1, candidate, c_pct, m_pct: m_pct.unwrap_or(0.0) }
            }));
        }
        let list = |of: fn(&(f64, f64)) -> f64| of_batch.iter().map(of).collect::<Vec<_>>();
        (!choices.is_empty()).then(|| Self {
            model,
            rate_rps: demand.rate_rps,
            c_pct: mean(&list(|b| b.0)),
            m_pct: mean(&list(|b| b.1)),
            kind,
            choices,
        })
    }
}

/// C of one batch, %, from its rows by share ascending.
fn compute_pct(rows: &[&Candidate], pct: &impl Fn(&Candidate) -> f64) -> f64 {
    let Some(full) = rows.last() else { return 100.0 };
    let enough = || rows.iter().find(|c| c.throughput_rps >= ENOUGH * full.throughput_rps);
    let measured = full.uses.occupancy.map(|part| part * 100.0);
    measured.unwrap_or_else(|| enough().map_or(100.0, |c| pct(c)))
}
