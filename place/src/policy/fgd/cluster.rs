//! Nodes with GPUs, and tasks that ask for shares of them.
//!
//! Rule: a task names CPU, memory, how many GPUs, and which share of each; a node has room for it when enough of each is
//! free and its kind of GPU is allowed. What a share is, and when a GPU has room for one, is the GPU's to say ([`Device`]).
//! Cases: no GPUs asked for; no kinds named, which allows each.
//! Not done: names; nodes are known by their index.
//!
//! Source: FGD (ATC'23), its model of a cluster.

use std::hash::Hash;

/// A GPU as far as it is free.
pub trait Device: Clone + PartialEq {
    /// A part of it that can be asked for.
    type Share: Copy + Ord + Hash + std::fmt::Debug;

    /// How much is free, thousandths of a GPU.
    fn free_milli(&self) -> f64;

    /// Whether there is room for a share.
    fn fits(&self, share: Self::Share) -> bool;

    /// Gives a share away, for which there must be room.
    fn take(&mut self, share: Self::Share);
}

/// A GPU that can be cut anywhere: what is free of it, thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Milli(pub u32);

impl Milli {
    /// A GPU of which nothing is taken.
    pub const WHOLE: Self = Self(1000);
}

impl Device for Milli {
    type Share = u32;

    fn free_milli(&self) -> f64 {
        f64::from(self.0)
    }

    fn fits(&self, share: u32) -> bool {
        self.0 >= share
    }

    fn take(&mut self, share: u32) {
        self.0 = self.0.saturating_sub(share);
    }
}

/// What is free on a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Node<D> {
    /// CPU, thousandths of a core.
    pub cpu_milli: u64,
    /// Memory, MiB.
    pub memory_mib: u64,
    /// Kind of its GPUs.
    pub model: String,
    /// Its GPUs.
    pub gpus: Vec<D>,
}

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Task<S> {
    /// CPU, thousandths of a core.
    pub cpu_milli: u64,
    /// Memory, MiB.
    pub memory_mib: u64,
    /// How many GPUs.
    pub gpus: usize,
    /// Which share of each; not looked at without GPUs.
    pub share: S,
    /// Kinds of GPUs that are allowed; none named allows each.
    pub models: Vec<String>,
}

/// Whether a kind of GPU is among those that are allowed.
pub fn is_allowed(models: &[String], model: &str) -> bool {
    models.is_empty() || models.iter().any(|m| m == model)
}

impl<D: Device> Node<D> {
    /// Whether the task could start here.
    pub fn has_room(&self, task: &Task<D::Share>) -> bool {
        let rest = self.cpu_milli >= task.cpu_milli && self.memory_mib >= task.memory_mib;
        let gpus = || self.gpus.iter().filter(|gpu| gpu.fits(task.share)).count();
        rest && (task.gpus == 0 || is_allowed(&task.models, &self.model) && gpus() >= task.gpus)
    }
}
