//! Replicas on GPUs.
//!
//! Rule: each replica goes to the GPU of its group that has C and M left and where C left + M left is least afterwards; else to
//! another such GPU; else to a new one. Σ C ≤ 100 and Σ M ≤ 100 on each, with no cap on the number of models.
//! Cases: under MIG instances must also have legal starts together. Of equals the first GPU.
//! Not done: moving what stands.
//!
//! Source: USHER (OSDI'24), placement of a configuration.

use crate::candidate::{Candidate, Share};
use crate::policy::sizes;
use crate::problem::Problem;

/// What rounding may make of a sum, %.
const ROUNDING: f64 = 1e-6;

/// One partition of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Replica {
    /// Index of the model.
    pub model: usize,
    /// What it runs as.
    pub candidate: Candidate,
    /// Its part of the rate, items/s.
    pub rate_rps: f64,
    /// Share of the compute, %.
    pub c_pct: f64,
    /// Share of the memory, %.
    pub m_pct: f64,
}

/// A GPU with replicas.
#[derive(Clone, Debug)]
pub struct Gpu {
    /// What stands there.
    pub replicas: Vec<Replica>,
    c_left: f64,
    m_left: f64,
}

/// GPUs with replicas.
#[derive(Clone, Debug, Default)]
pub struct Fleet {
    /// The GPUs in the order they were opened.
    pub gpus: Vec<Gpu>,
    /// Those with compute left.
    open: Vec<usize>,
}

impl Fleet {
    /// Places the replicas of one group, in this order.
    pub fn place(&mut self, problem: &Problem, replicas: &[Replica]) {
        let mut own = Vec::new();
        for replica in replicas {
            let found = self.best(problem, &own, replica).or_else(|| self.best(problem, &self.open, replica));
            let at = found.unwrap_or_else(|| {
                self.gpus.push(Gpu { replicas: Vec::new(), c_left: 100.0, m_left: 100.0 });
                self.open.push(self.gpus.len() - 1);
                self.gpus.len() - 1
            });
            let gpu = &mut self.gpus[at];
            gpu.c_left -= replica.c_pct;
            gpu.m_left -= replica.m_pct;
            gpu.replicas.push(*replica);
            if gpu.c_left <= ROUNDING {
                self.open.retain(|g| *g != at);
            }
            if !own.contains(&at) {
                own.push(at);
            }
        }
    }

    fn best(&self, problem: &Problem, among: &[usize], replica: &Replica) -> Option<usize> {
        let mut best: Option<(f64, usize)> = None;
        for &at in among {
            let gpu = &self.gpus[at];
            let left = gpu.c_left + gpu.m_left;
            let better = best.is_none_or(|(least, first)| (left, at) < (least, first));
            if better && gpu.has_room(problem, replica) {
                best = Some((left, at));
            }
        }
        best.map(|(_, at)| at)
    }
}

impl Gpu {
    fn has_room(&self, problem: &Problem, replica: &Replica) -> bool {
        if replica.c_pct > self.c_left + ROUNDING || replica.m_pct > self.m_left + ROUNDING {
            return false;
        }
        let stand = self.replicas.iter().map(|r| r.candidate.share);
        let all: Vec<Share> = stand.chain([replica.candidate.share]).collect();
        sizes::fit_together(problem, &all)
    }
}
