//! GPUs with gpulets, and the free nodes between them.
//!
//! Rule: a GPU without gpulets is a free node of 100 %; taking p of it leaves a node of 100 − p, which is taken whole. So there are at
//! most two gpulets on a GPU. A gpulet in a larger left-over is as large as the largest size of its model that fits there, and its
//! batch and duty cycle are those of that size.
//! Cases: under MIG the left-over is the largest instance with legal starts beside the first. Under MPS both gpulets share the GPU's
//! memory; an instance has its own. Memory that was not measured does not bind.
//! Free nodes are kept by size, so that the smallest that is large enough is found without looking at all GPUs; gpulets that others may
//! take turns in by size and least load (requests/s × the least time a request takes), so that the fullest with room comes first.
//! Not done: which model takes what.
//!
//! Source: GPUlets (ATC'22), elastic partitioning.

use std::collections::{BTreeMap, BTreeSet};

use super::round::MOST;
use super::table::{ROUNDING, Row, Run, Table, share_bytes};
use crate::candidate::{Candidate, Share};
use crate::policy::sizes;
use crate::problem::Problem;
use crate::slowdown::Runs;

/// A model in a gpulet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Member {
    /// Index of its table.
    pub table: usize,
    /// What it runs.
    pub run: Run,
}

/// A partition.
#[derive(Clone, Debug, PartialEq)]
pub struct Gpulet {
    /// How much of the GPU.
    pub share: Share,
    /// One model, or up to three that take turns.
    pub members: Vec<Member>,
    /// The round of models that take turns, ms.
    pub round_ms: Option<f64>,
}

/// Where a gpulet stands: GPU and place on it, 0 or 1.
pub type Spot = (usize, usize);

/// GPUs with gpulets.
#[derive(Clone, Debug)]
pub struct Fleet<'p> {
    /// The problem.
    pub problem: &'p Problem,
    /// Its models.
    pub tables: &'p [Table],
    /// The GPUs that were used so far.
    pub gpus: Vec<[Option<Gpulet>; 2]>,
    /// Most GPUs.
    limit: usize,
    /// GPUs with one gpulet, by what is free beside it, millionths of a percent.
    half: BTreeMap<u64, BTreeSet<usize>>,
    /// Gpulets with idle time and fewer than three models, by size and load.
    open: BTreeMap<u64, BTreeSet<(u64, Spot)>>,
}

impl Gpulet {
    /// The part of the time in which something runs.
    fn busy(&self) -> f64 {
        match (self.round_ms, self.members.as_slice()) {
            (None, [one]) => one.run.occupancy(),
            (round_ms, members) => {
                members.iter().map(|m| m.run.time_ms).sum::<f64>() / round_ms.unwrap_or(f64::MIN_POSITIVE)
            }
        }
    }
}

impl<'p> Fleet<'p> {
    /// This many GPUs, all free.
    pub fn new(problem: &'p Problem, tables: &'p [Table], limit: usize) -> Self {
        Self { problem, tables, gpus: Vec::new(), limit, half: BTreeMap::new(), open: BTreeMap::new() }
    }

    /// A GPU without gpulets, if there is one.
    pub fn fresh(&self) -> Option<usize> {
        Some(self.gpus.len()).filter(|next| *next < self.limit)
    }

    /// Left-overs of at least this size with the GPUs that have them, ascending.
    pub fn left_overs(&self, least_pct: f64) -> impl DoubleEndedIterator<Item = (f64, &BTreeSet<usize>)> {
        self.half.range(key(least_pct - ROUNDING)..).map(|(left, gpus)| (*left as f64 / 1e6, gpus))
    }

    /// Where a model of this least load may take turns in gpulets of this size, the fullest first.
    pub fn open(&self, share: Share, load: f64) -> impl Iterator<Item = Spot> {
        let most = (1.0 - load).max(0.0).to_bits();
        let of_size = self.open.get(&size_key(share)).into_iter();
        of_size.flat_map(move |open| open.range(..=(most, (usize::MAX, 1))).rev().map(|(_, spot)| *spot))
    }

    /// The size, load and spot that [`Self::open`] lists a gpulet by, if it does.
    fn open_key(&self, spot: Spot) -> Option<(u64, (u64, Spot))> {
        let gpulet = self.at(spot).filter(|g| g.members.len() < MOST && g.busy() < 1.0)?;
        let load = |m: &Member| Some(self.tables[m.table].of_share(gpulet.share)?.load(m.run.rate_rps));
        let load = gpulet.members.iter().map(load).sum::<Option<f64>>()?;
        Some((size_key(gpulet.share), (load.to_bits(), spot)))
    }

    /// Gpulets and where they stand.
    pub fn gpulets(&self) -> impl Iterator<Item = (Spot, &Gpulet)> {
        self.gpus.iter().enumerate().flat_map(|(gpu, places)| {
            places.iter().enumerate().filter_map(move |(at, gpulet)| Some(((gpu, at), gpulet.as_ref()?)))
        })
    }

    /// The gpulet at a spot.
    pub fn at(&self, (gpu, place): Spot) -> Option<&Gpulet> {
        self.gpus.get(gpu)?[place].as_ref()
    }

    /// The gpulet beside a spot.
    pub fn beside(&self, (gpu, place): Spot) -> Option<&Gpulet> {
        self.at((gpu, 1 - place))
    }

    /// A free spot on a GPU that is not full.
    pub fn free_spot(&self, gpu: usize) -> Spot {
        let taken = self.gpus.get(gpu).is_some_and(|places| places[0].is_some());
        (gpu, usize::from(taken))
    }

    /// Puts a gpulet on a spot, in place of what stands there.
    pub fn set(&mut self, spot: Spot, gpulet: Gpulet) {
        let (gpu, place) = spot;
        if gpu == self.gpus.len() {
            self.gpus.push([None, None]);
        }
        if let Some(left) = self.left(gpu) {
            let gpus = self.half.entry(left).or_default();
            gpus.remove(&gpu);
            if gpus.is_empty() {
                self.half.remove(&left);
            }
        }
        if let Some((size, entry)) = self.open_key(spot) {
            self.open.entry(size).or_default().remove(&entry);
        }
        self.gpus[gpu][place] = Some(gpulet);
        if let Some((size, entry)) = self.open_key(spot) {
            self.open.entry(size).or_default().insert(entry);
        }
        if let Some(left) = self.left(gpu) {
            self.half.entry(left).or_default().insert(gpu);
        }
    }

    /// What is free on a GPU with one gpulet, millionths of a percent.
    fn left(&self, gpu: usize) -> Option<u64> {
        match &self.gpus[gpu] {
            [Some(one), None] | [None, Some(one)] => Some(key(self.beside_pct(one.share))),
            _ => None,
        }
    }

    /// What is free beside a first gpulet, %.
    fn beside_pct(&self, share: Share) -> f64 {
        match share {
            Share::Percent(pct) => (100.0 - pct).max(0.0),
            Share::Slices(_) => {
                let sizes = self.problem.geometry.profiles.iter().map(|p| Share::Slices(p.slices));
                let beside = sizes.filter(|size| sizes::fit_together(self.problem, &[share, *size]));
                beside.map(|size| sizes::percent(self.problem, size)).fold(0.0, f64::max)
            }
        }
    }

    /// Whether these rows fit in the memory of one gpulet on a spot, beside its neighbour's under MPS.
    pub fn has_memory<'a>(&self, spot: Spot, rows: impl Iterator<Item = &'a Row>) -> bool {
        let bytes = |row: &Row| row.candidate.uses.mem_bytes.unwrap_or(0.0);
        let mut rows = rows.peekable();
        let Some(share) = rows.peek().map(|row| row.candidate.share) else { return true };
        let neighbours = self.beside(spot).map_or(&[][..], |n| n.members.as_slice());
        let beside = match share {
            Share::Slices(_) => 0.0,
            Share::Percent(_) => neighbours.iter().map(|m| bytes(&m.run.row)).sum(),
        };
        rows.map(bytes).sum::<f64>() + beside <= share_bytes(self.problem, share)
    }

    /// Time of a row's batch on a spot, ms; `None` where its memory does not fit.
    pub fn time_ms(&self, spot: Spot, table: usize, row: &Row) -> Option<f64> {
        let factor = || self.beside(spot).map_or(1.0, |n| self.factor(table, &row.candidate, &n.members));
        self.has_memory(spot, std::iter::once(row)).then(|| row.time_ms * factor())
    }

    /// How much a model is slowed down by the worst of those beside it.
    pub fn factor(&self, table: usize, candidate: &Candidate, beside: &[Member]) -> f64 {
        let Some(slowdown) = &self.problem.slowdown else { return 1.0 };
        let model = |table: usize| self.problem.models[self.tables[table].model].name.as_str();
        let own = Runs { model: model(table), candidate };
        let of = |m: &Member| {
            slowdown.factor(own, Runs { model: model(m.table), candidate: &m.run.row.candidate })
        };
        beside.iter().map(of).fold(1.0, f64::max)
    }
}

/// A size as a number that is the same for the same size only.
fn size_key(share: Share) -> u64 {
    match share {
        Share::Slices(n) => n.into(),
        Share::Percent(pct) => pct.to_bits(),
    }
}

/// Percent as a number that sorts.
fn key(pct: f64) -> u64 {
    (pct.max(0.0) * 1e6).round() as u64
}
