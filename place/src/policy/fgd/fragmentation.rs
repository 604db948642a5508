//! How much of a node's free GPUs the expected workload could not use.
//!
//! Rule: R is what is free of all GPUs of the node. A class of tasks can use none of it if it needs no GPU, if the
//! kind of GPU is not allowed, or if too few GPUs have room for its share or the CPU does not suffice; then R counts as fragmented.
//! Else only what is free on GPUs without room for the share counts. The node's fragmentation is the sum over the
//! classes of popularity × that.
//!
//! Rule of the expected workload: tasks are grouped by (CPU, share, GPUs, kinds); the most frequent groups that together
//! make 95 % of the tasks are the classes, of equally frequent ones the greater tuple first; popularities are
//! made to sum to 1.
//! Cases: tasks without GPUs are classes too; memory is not looked at.
//! The published scorer turns on the last digit of these sums, so they are added up in the published order: per cause, then
//! over the causes (`Cause`).
//! Not done: learning the workload while tasks arrive.
//!
//! Source: FGD (ATC'23), section 4, and its published code for the order.

use std::collections::HashMap;

use super::cluster::{Device, Task, is_allowed};

/// Which part of the tasks the classes are to cover.
const COVERED: f64 = 0.95;

/// Why a class cannot use what is free, in the order in which the causes are added up.
#[derive(Clone, Copy, Debug)]
enum Cause {
    GpuAndCpu,
    Gpu,
    Cpu,
    NoGpuNeeded,
    NoGpuNeededNorCpuThere,
    Kind,
}
const CAUSES: usize = Cause::Kind as usize + 1;

/// Tasks that ask for the same.
#[derive(Clone, Debug, PartialEq)]
pub struct Class<S> {
    /// CPU, thousandths of a core.
    pub cpu_milli: u64,
    /// Share of each GPU.
    pub share: S,
    /// How many GPUs.
    pub gpus: usize,
    /// Kinds of GPUs that are allowed; none named allows each.
    pub models: Vec<String>,
    /// Part of the expected tasks.
    pub popularity: f64,
}

/// The workload that is expected.
#[derive(Clone, Debug, PartialEq)]
pub struct Expected<S> {
    /// Most popular first.
    pub classes: Vec<Class<S>>,
}

impl<S: Copy + Ord + std::hash::Hash> Expected<S> {
    /// The classes of these tasks.
    pub fn new(tasks: &[Task<S>]) -> Self {
        let mut counts = HashMap::new();
        for task in tasks {
            *counts.entry((task.cpu_milli, task.share, task.gpus, &task.models)).or_insert(0u32) += 1;
        }
        let mut groups: Vec<_> = counts.into_iter().map(|(group, count)| (count, group)).collect();
        groups.sort_by(|a, b| b.cmp(a));
        let all = tasks.len() as f64;
        let mut covered = 0;
        let enough = |(count, _): &(u32, _)| {
            let before = f64::from(covered) / all;
            covered += count;
            before < COVERED
        };
        groups = groups.into_iter().take_while(enough).collect();
        let covered: u32 = groups.iter().map(|(count, _)| count).sum();
        let class = |(count, (cpu_milli, share, gpus, models)): (u32, (u64, S, usize, &Vec<String>))| Class {
            cpu_milli,
            share,
            gpus,
            models: models.clone(),
            popularity: (f64::from(count) / all) / (f64::from(covered) / all),
        };
        Self { classes: groups.into_iter().map(class).collect() }
    }

    /// Fragmentation of a node with this much free, thousandths of a GPU.
    pub fn fragmented_milli<D: Device<Share = S>>(&self, cpu_milli: u64, model: &str, gpus: &[D]) -> f64 {
        let free_milli: f64 = gpus.iter().map(Device::free_milli).sum();
        if free_milli == 0.0 {
            return 0.0;
        }
        let mut by_cause = [0.0; CAUSES];
        for class in &self.classes {
            let cpu = cpu_milli >= class.cpu_milli;
            let (cause, milli) = if class.gpus == 0 {
                (if cpu { Cause::NoGpuNeeded } else { Cause::NoGpuNeededNorCpuThere }, free_milli)
            } else if !is_allowed(&class.models, model) {
                (Cause::Kind, free_milli)
            } else {
                let (mut room, mut below_milli) = (0, 0.0);
                for gpu in gpus {
                    if gpu.fits(class.share) {
                        room += 1;
                    } else {
                        below_milli += gpu.free_milli();
                    }
                }
                match (room >= class.gpus, cpu) {
                    (true, true) => (Cause::Gpu, below_milli),
                    (true, false) => (Cause::Cpu, free_milli),
                    (false, true) => (Cause::Gpu, free_milli),
                    (false, false) => (Cause::GpuAndCpu, free_milli),
                }
            };
            by_cause[cause as usize] += class.popularity * milli;
        }
        by_cause.iter().sum()
    }
}
