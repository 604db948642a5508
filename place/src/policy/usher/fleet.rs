//! Replicas on GPUs.
//!
//! Rule: each replica goes to the GPU of its group that has C and M left and where C left + M left is least afterwards; else to
//! another such GPU; else to a new one. Σ C ≤ 100 and Σ M ≤ 100 on each, with no cap on the number of models.
//! Cases: under MIG instances must also have legal starts together. Of equals the first GPU.
//! Not done: moving what stands.
//!
//! Source: USHER (OSDI'24), placement of a configuration.

use std::collections::BTreeSet;

use gpumon_core::workload::Sharing;

use crate::candidate::{Candidate, Share};
use crate::policy::sizes;
use crate::policy::sorted::Sorted;
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
    /// Those with room for something, by what they have left of both.
    open: BTreeSet<(Sorted, usize)>,
}

impl Fleet {
    /// Places the replicas of one group, in this order.
    pub fn place(&mut self, problem: &Problem, replicas: &[Replica]) {
        let mut own = Vec::new();
        for replica in replicas {
            let room = |at: &usize| self.gpus[*at].has_room(problem, replica);
            let of_own = own.iter().copied().filter(room).min_by_key(|&at| self.key(at));
            // Those with less left than it takes have no room.
            let least = Sorted(replica.c_pct + replica.m_pct - 3.0 * ROUNDING);
            let of_all = || self.open.range((least, 0)..).map(|(_, at)| *at).find(room);
            let at = of_own.or_else(of_all).unwrap_or_else(|| {
                self.gpus.push(Gpu { replicas: Vec::new(), c_left: 100.0, m_left: 100.0 });
                self.gpus.len() - 1
            });
            self.open.remove(&self.key(at));
            let gpu = &mut self.gpus[at];
            gpu.c_left -= replica.c_pct;
            gpu.m_left -= replica.m_pct;
            gpu.replicas.push(*replica);
            if gpu.c_left > ROUNDING && gpu.has_room_for_any(problem) {
                self.open.insert(self.key(at));
            }
            if !own.contains(&at) {
                own.push(at);
            }
        }
    }

    /// Where a GPU stands among those with room: by what it has left, of equals the first.
    fn key(&self, at: usize) -> (Sorted, usize) {
        (Sorted(self.gpus[at].c_left + self.gpus[at].m_left), at)
    }
}

impl Gpu {
    fn has_room(&self, problem: &Problem, replica: &Replica) -> bool {
        if replica.c_pct > self.c_left + ROUNDING || replica.m_pct > self.m_left + ROUNDING {
            return false;
        }
        self.has_room_for(problem, replica.candidate.share)
    }

    fn has_room_for_any(&self, problem: &Problem) -> bool {
        let smallest = problem.geometry.profiles.first().map(|p| Share::Slices(p.slices));
        problem.sharing != Sharing::Mig || smallest.is_none_or(|s| self.has_room_for(problem, s))
    }

    fn has_room_for(&self, problem: &Problem, share: Share) -> bool {
        let all: Vec<Share> = self.replicas.iter().map(|r| r.candidate.share).chain([share]).collect();
        sizes::fit_together(problem, &all)
    }
}
