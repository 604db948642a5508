//! Usher: models heavy in compute beside models heavy in memory, each in as many replicas as its rate takes.
//!
//! Rule, stage by stage:
//!
//! 1. [`need`]: what share of a GPU's compute (C) and memory (M) a model takes at each batch, and from that its options:
//!    batch × replicas that keep rate and SLO;
//! 2. [`group`]: models in groups of at most four whose compute and memory balance;
//! 3. per group the combination of options that takes the fewest GPUs alone, of equals the one that takes the least of them;
//! 4. [`fleet`]: groups follow each other by their largest replica, descending; replicas, compute-heavy and memory-heavy by turns, go to the GPU of the group that they leave the least
//!    free, else to any such GPU, else to a new one.
//!
//! A partition is as large as the model's C, rounded up to a size of the profile (`sizes.rs`).
//! Cases: everything runs at one clock, the highest at which each model has an option. The rate is divided equally over replicas.
//! Where memory was not measured, M does not bind and the model counts as neutral. All GPUs of a problem cost the same, so cheapest
//! is fewest. How many GPUs it takes is an outcome; neither power nor the objective is looked at.
//! Not done: the merger of operator graphs, which rewrites models; several kinds of GPUs; slowdown between neighbours.
//!
//! Source: USHER (OSDI'24), as secondary sources describe it with their constants; there is no published program to compare with.

pub mod fleet;
pub mod group;
pub mod need;

use self::fleet::{Fleet, Replica};
use self::need::{Choice, Kind, Need};
use super::{PlaceError, Policy, Solution, one_clock};
use crate::plan::{Placed, PlacedItem};
use crate::problem::Problem;

/// The policy `usher`.
#[derive(Clone, Copy, Debug)]
pub struct Usher;

impl Policy for Usher {
    fn name(&self) -> &'static str {
        "usher"
    }

    fn about(&self) -> &'static str {
        "puts replicas of models heavy in compute beside models heavy in memory, in shares of the compute they need (USHER, OSDI'24)"
    }

    fn splits(&self) -> bool {
        true
    }

    fn solve(&self, problem: &Problem) -> Result<Solution, PlaceError> {
        let (frequency_mhz, needs) = one_clock::highest(problem, |mhz, model| Need::new(problem, model, mhz))
            .map_err(|model| self.nothing(problem, model))?;
        let configured = |members: Vec<usize>| {
            let members: Vec<&Need> = members.into_iter().map(|m| &needs[m]).collect();
            replicas(&members, &cheapest(problem, &members))
        };
        let mut groups: Vec<Vec<Replica>> = group::groups(&needs).into_iter().map(configured).collect();
        let largest = |g: &[Replica]| g.iter().map(|r| r.c_pct + r.m_pct).fold(0.0, f64::max);
        groups.sort_by(|a, b| largest(b).total_cmp(&largest(a)));
        let mut fleet = Fleet::default();
        for replicas in &groups {
            fleet.place(problem, replicas);
        }
        let needed = fleet.gpus.len();
        if let Some(gpus) = problem.gpus.filter(|&gpus| needed > gpus as usize) {
            let most = needs.iter().max_by(|a, b| a.c_pct.total_cmp(&b.c_pct));
            let hardest = most
                .map(|n| format!("`{}` takes {:.0} % of the compute", problem.models[n.model].name, n.c_pct));
            return Err(PlaceError::TooFewGpus {
                system: self.name(),
                gpus,
                nearest: needed,
                hardest: hardest.unwrap_or_default(),
                rates_that_fit: None,
            });
        }
        let item = |r: &Replica| PlacedItem {
            model: r.model,
            candidate: r.candidate,
            rate_rps: r.rate_rps,
            turn: None,
        };
        let placed =
            |gpu: &fleet::Gpu| Placed { frequency_mhz, items: gpu.replicas.iter().map(item).collect() };
        Ok(fleet.gpus.iter().map(placed).collect::<Vec<_>>().into())
    }
}

impl Usher {
    fn nothing(&self, problem: &Problem, model: Option<usize>) -> PlaceError {
        let why = model.map_or_else(
            || "no clock has rows of all models that keep their SLO; profile them at the same clocks".to_owned(),
            |m| {
                let demand = &problem.models[m];
                let fastest = demand.candidates.iter().map(|c| c.latency_ms).fold(f64::INFINITY, f64::min);
                format!(
                    "`{}`: the time of a batch and of collecting it are above its SLO of {} ms at every share of the compute it \
                     needs; the fastest batch takes {fastest:.4} ms, so a longer latency_slo_ms or smaller profiled batches would do",
                    demand.name, demand.latency_slo_ms
                )
            },
        );
        PlaceError::NoConfiguration { system: self.name(), why }
    }
}

/// For each member the option of the combination that takes the fewest GPUs.
fn cheapest(problem: &Problem, members: &[&Need]) -> Vec<Choice> {
    let mut combinations: Vec<(f64, f64, Vec<Choice>)> = vec![(0.0, 0.0, Vec::new())];
    for need in members {
        combinations = combinations
            .iter()
            .flat_map(|(all, c_pct, chosen)| {
                need.choices.iter().map(move |choice| {
                    let times = choice.replicas as f64;
                    let more = chosen.iter().copied().chain([*choice]).collect();
                    (all + times * (choice.c_pct + choice.m_pct), c_pct + times * choice.c_pct, more)
                })
            })
            .collect();
    }
    combinations.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut best: Option<(usize, Vec<Choice>)> = None;
    for (_, c_pct, choices) in combinations {
        let at_least = (c_pct / 100.0 - 1e-9).ceil() as usize;
        if best.as_ref().is_some_and(|(gpus, _)| at_least >= *gpus) {
            continue;
        }
        let mut alone = Fleet::default();
        alone.place(problem, &replicas(members, &choices));
        if best.as_ref().is_none_or(|(gpus, _)| alone.gpus.len() < *gpus) {
            best = Some((alone.gpus.len(), choices));
        }
    }
    best.map(|(_, choices)| choices).unwrap_or_default()
}

/// The replicas of a group: by C + M descending, compute-heavy and memory-heavy ones by turns.
fn replicas(members: &[&Need], choices: &[Choice]) -> Vec<Replica> {
    let (mut memory, mut other) = (Vec::new(), Vec::new());
    for (need, choice) in members.iter().zip(choices) {
        let replica = Replica {
            model: need.model,
            candidate: choice.candidate,
            rate_rps: need.rate_rps / choice.replicas as f64,
            c_pct: choice.c_pct,
            m_pct: choice.m_pct,
        };
        let queue = if need.kind == Kind::Memory { &mut memory } else { &mut other };
        queue.extend(std::iter::repeat_n(replica, choice.replicas));
    }
    for queue in [&mut memory, &mut other] {
        queue.sort_by(|a: &Replica, b| (b.c_pct + b.m_pct).total_cmp(&(a.c_pct + a.m_pct)));
    }
    let (mut memory, mut other) = (memory.into_iter(), other.into_iter());
    let mut order = Vec::new();
    loop {
        let pair = (other.next(), memory.next());
        order.extend(pair.0);
        order.extend(pair.1);
        if pair == (None, None) {
            return order;
        }
    }
}
