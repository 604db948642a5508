//! The scheduler: tasks one by one, each where fragmentation grows least.
//!
//! Rule: on each node with room, the state after placing is weighed (a task of one GPU on every GPU with room, others on the
//! fitting GPUs with the least free); the score is what fragmentation falls by, made coarse by a [`Scorer`]. The highest
//! score wins, of equals the first GPU and the first node.
//! Cases: a task without room anywhere is not placed, and changes nothing.
//! Speed: a score holds until its node changes, so only those of nodes that changed since the same task was last asked for are
//! weighed anew; GPUs in the same state are weighed once.
//! Not done: tasks that end; moving tasks.
//!
//! Source: FGD (ATC'23), algorithm 1, and its published code for the coarse score.

use std::collections::HashMap;

use super::cluster::{Device, Node, Task};
use super::fragmentation::Expected;

/// How a fall of fragmentation is compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scorer {
    /// In hundredths of a sigmoid of it in GPUs, cut to an integer: as published, and better, since near equals go to the first node.
    #[default]
    Published,
    /// As it is, to 1e-6 of a thousandth of a GPU.
    Exact,
}

impl Scorer {
    /// The score of a fall of fragmentation, thousandths of a GPU.
    pub fn score(self, fall_milli: f64) -> i64 {
        match self {
            Self::Published => (100.0 * (1.0 / (1.0 + (-fall_milli / 1000.0).exp()))) as i64,
            Self::Exact => (fall_milli * 1e6).round() as i64,
        }
    }
}

/// Where a task went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Index of the node.
    pub node: usize,
    /// Indices of its GPUs.
    pub gpus: Vec<usize>,
}

/// What is known of a task on a node.
#[derive(Clone, Copy, Debug)]
enum Weighed {
    /// The node changed since.
    Stale,
    /// It does not fit.
    NoRoom,
    /// Its score, on this GPU where it asks for one.
    Fits { score: i64, gpu: usize },
}

/// A cluster that takes tasks.
#[derive(Clone, Debug)]
pub struct Scheduler<D: Device> {
    nodes: Vec<Node<D>>,
    expected: Expected<D::Share>,
    scorer: Scorer,
    fragmented_milli: Vec<f64>,
    /// For each task that was asked for, what is known of each node.
    weighed: HashMap<Task<D::Share>, Vec<Weighed>>,
    /// GPUs of the state that is weighed.
    after: Vec<D>,
}

impl<D: Device> Scheduler<D> {
    /// These nodes, in the order that decides between equals.
    pub fn new(nodes: Vec<Node<D>>, expected: Expected<D::Share>, scorer: Scorer) -> Self {
        let of_node = |n: &Node<D>| expected.fragmented_milli(n.cpu_milli, &n.model, &n.gpus);
        let fragmented_milli = nodes.iter().map(of_node).collect();
        Self { nodes, expected, scorer, fragmented_milli, weighed: HashMap::new(), after: Vec::new() }
    }

    /// What is free.
    pub fn nodes(&self) -> &[Node<D>] {
        &self.nodes
    }

    /// Fragmentation of all nodes, thousandths of a GPU.
    pub fn fragmented_milli(&self) -> f64 {
        self.fragmented_milli.iter().sum()
    }

    /// Places a task; `None` if no node has room.
    pub fn place(&mut self, task: &Task<D::Share>) -> Option<Bound> {
        let mut known = self.weighed.remove(task).unwrap_or_else(|| vec![Weighed::Stale; self.nodes.len()]);
        let mut best: Option<(i64, usize, usize)> = None;
        for (node, known) in known.iter_mut().enumerate() {
            if matches!(known, Weighed::Stale) {
                *known = self.weigh(node, task);
            }
            if let Weighed::Fits { score, gpu } = *known
                && best.is_none_or(|(most, ..)| score > most)
            {
                best = Some((score, node, gpu));
            }
        }
        self.weighed.insert(task.clone(), known);
        let (_, node, gpu) = best?;
        let gpus = if task.gpus == 1 { vec![gpu] } else { least_free(&self.nodes[node].gpus, task) };
        self.bind(node, &gpus, task);
        Some(Bound { node, gpus })
    }

    fn bind(&mut self, index: usize, gpus: &[usize], task: &Task<D::Share>) {
        let node = &mut self.nodes[index];
        node.cpu_milli -= task.cpu_milli;
        node.memory_mib -= task.memory_mib;
        for &gpu in gpus {
            node.gpus[gpu].take(task.share);
        }
        self.fragmented_milli[index] =
            self.expected.fragmented_milli(node.cpu_milli, &node.model, &node.gpus);
        self.weighed.values_mut().for_each(|known| known[index] = Weighed::Stale);
    }

    fn weigh(&mut self, index: usize, task: &Task<D::Share>) -> Weighed {
        let node = &self.nodes[index];
        if !node.has_room(task) {
            return Weighed::NoRoom;
        }
        let after = &mut self.after;
        let cpu_milli = node.cpu_milli - task.cpu_milli;
        let before_milli = self.fragmented_milli[index];
        let score = |after: &[D]| {
            let after_milli = self.expected.fragmented_milli(cpu_milli, &node.model, after);
            self.scorer.score(before_milli - after_milli)
        };
        after.clear();
        after.extend_from_slice(&node.gpus);
        if task.gpus != 1 {
            for gpu in least_free(&node.gpus, task) {
                after[gpu].take(task.share);
            }
            return Weighed::Fits { score: score(after), gpu: 0 };
        }
        let mut best: Option<(i64, usize)> = None;
        for (gpu, state) in node.gpus.iter().enumerate() {
            if !state.fits(task.share) || node.gpus[..gpu].contains(state) {
                continue;
            }
            after[gpu].take(task.share);
            let score = score(after);
            after[gpu] = state.clone();
            if best.is_none_or(|(most, _)| score > most) {
                best = Some((score, gpu));
            }
        }
        best.map_or(Weighed::NoRoom, |(score, gpu)| Weighed::Fits { score, gpu })
    }
}

/// The GPUs with room for the task that have the least free, of equals the first.
fn least_free<D: Device>(gpus: &[D], task: &Task<D::Share>) -> Vec<usize> {
    let mut fitting: Vec<usize> = (0..gpus.len()).filter(|&gpu| gpus[gpu].fits(task.share)).collect();
    fitting.sort_by(|&a, &b| gpus[a].free_milli().total_cmp(&gpus[b].free_milli()));
    fitting.truncate(task.gpus);
    fitting
}

#[cfg(test)]
mod tests {
    use super::super::cluster::Milli;
    use super::*;

    fn task(milli: u32) -> Task<u32> {
        Task { cpu_milli: 1, memory_mib: 1, gpus: 1, share: milli, models: Vec::new() }
    }

    fn nodes(gpus: &[&[u32]]) -> Vec<Node<Milli>> {
        let node = |gpus: &&[u32]| Node {
            cpu_milli: 10,
            memory_mib: 10,
            model: "g".into(),
            gpus: gpus.iter().map(|&m| Milli(m)).collect(),
        };
        gpus.iter().map(node).collect()
    }

    #[test]
    fn fragmentation_has_known_answers() {
        let expected = Expected::new(&[task(500), task(500), task(500), task(1000)]);
        let of = |gpus: &[u32]| {
            let gpus: Vec<Milli> = gpus.iter().map(|&m| Milli(m)).collect();
            expected.fragmented_milli(10, "g", &gpus)
        };
        assert_eq!(of(&[1000]), 0.0);
        assert_eq!(of(&[600]), 150.0, "600 that a quarter of the tasks cannot use");
        assert_eq!(of(&[400, 1000]), 400.0);
        assert_eq!(of(&[400, 600]), 0.75 * 400.0 + 0.25 * 1000.0);
        assert_eq!(expected.fragmented_milli(0, "g", &[Milli(1000)]), 1000.0, "no CPU");
        let cpu_only = Expected::new(&[Task { gpus: 0, ..task(0) }]);
        assert_eq!(cpu_only.fragmented_milli(10, "g", &[Milli(700)]), 700.0);
        let other = Expected::new(&[Task { models: vec!["h".into()], ..task(10) }]);
        assert_eq!(other.fragmented_milli(10, "g", &[Milli(700)]), 700.0);
    }

    #[test]
    fn what_is_left_is_used_first_and_what_does_not_fit_is_not_placed() {
        let expected = Expected::new(&[task(500), task(1000)]);
        let mut cluster = Scheduler::new(nodes(&[&[1000, 1000], &[1000, 500]]), expected, Scorer::Published);
        assert_eq!(cluster.place(&task(500)), Some(Bound { node: 1, gpus: vec![1] }));
        let two = Task { gpus: 2, ..task(1000) };
        assert_eq!(cluster.place(&two), Some(Bound { node: 0, gpus: vec![0, 1] }));
        assert_eq!(cluster.place(&two), None);
        assert_eq!(cluster.place(&task(1000)), Some(Bound { node: 1, gpus: vec![0] }));
        assert_eq!(cluster.fragmented_milli(), 0.0);
    }

    #[test]
    fn published_scores_are_coarse() {
        assert_eq!(Scorer::Published.score(0.0), 50);
        assert_eq!(Scorer::Published.score(-1e-9), 49);
        assert_eq!(Scorer::Published.score(1.0), Scorer::Published.score(2.0));
        assert!(Scorer::Exact.score(1.0) < Scorer::Exact.score(2.0));
    }
}
