//! The scheduler's rule on GPUs that begin alike, one on a node, for tasks that differ in their share only.
//!
//! Rule: the score of a task depends on the state of the GPU alone, so each state is weighed once, and of the GPUs in one state the
//! first counts. Tasks go where the [`super::scheduler`] would put them, in the time that the states take, not the GPUs.
//! What was weighed holds for any number of GPUs.
//! Cases: a task without room ends the placing, since then there are too few GPUs.
//! Not done: CPU, memory, kinds of GPUs.
//!
//! Source: FGD (ATC'23), algorithm 1, as in [`super::scheduler`].

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

use super::cluster::{Device, Task};
use super::fragmentation::Expected;
use super::scheduler::Scorer;

/// GPUs that begin alike, and what is known of their states.
pub struct Alike<D: Device + Eq + Hash> {
    expected: Expected<D::Share>,
    scorer: Scorer,
    shares: Vec<D::Share>,
    /// By task the index of its share.
    asked: Vec<usize>,
    states: Vec<State<D>>,
    numbers: HashMap<D, usize>,
}

struct State<D> {
    gpu: D,
    fragmented_milli: f64,
    /// By share, where that was asked for: the score and the state after it, or that there is no room.
    after: Vec<Option<Option<(i64, usize)>>>,
}

impl<D: Device + Eq + Hash> Alike<D> {
    /// GPUs in this state, for tasks with these shares.
    pub fn new(whole: &D, scorer: Scorer, shares: &[D::Share]) -> Self {
        let task =
            |&share: &D::Share| Task { cpu_milli: 0, memory_mib: 0, gpus: 1, share, models: Vec::new() };
        let mut different = shares.to_vec();
        different.sort_unstable();
        different.dedup();
        let asked = shares.iter().filter_map(|share| different.binary_search(share).ok()).collect();
        let mut alike = Self {
            expected: Expected::new(&shares.iter().map(task).collect::<Vec<_>>()),
            scorer,
            shares: different,
            asked,
            states: Vec::new(),
            numbers: HashMap::new(),
        };
        alike.number(whole.clone());
        alike
    }

    /// The tasks on each of so many GPUs; `None` if one finds no room.
    pub fn place(&mut self, gpus: usize) -> Option<Vec<Vec<usize>>> {
        // By state the GPUs in it, and the states that have any.
        let mut standing: Vec<BTreeSet<usize>> = vec![(0..gpus).collect()];
        let mut present = BTreeSet::from([0]);
        let mut tasks = vec![Vec::new(); gpus];
        for task in 0..self.asked.len() {
            let share = self.asked[task];
            let mut best: Option<((i64, Reverse<usize>), usize, usize)> = None;
            for &state in &present {
                let (Some((score, after)), Some(&first)) =
                    (self.after(state, share), standing[state].first())
                else {
                    continue;
                };
                let rank = (score, Reverse(first));
                if best.is_none_or(|(most, ..)| rank > most) {
                    best = Some((rank, state, after));
                }
            }
            let ((_, Reverse(gpu)), state, after) = best?;
            tasks[gpu].push(task);
            standing[state].remove(&gpu);
            if standing[state].is_empty() {
                present.remove(&state);
            }
            standing.resize_with(self.states.len(), BTreeSet::new);
            standing[after].insert(gpu);
            present.insert(after);
        }
        Some(tasks)
    }

    fn after(&mut self, state: usize, share: usize) -> Option<(i64, usize)> {
        if let Some(known) = self.states[state].after[share] {
            return known;
        }
        let State { gpu, fragmented_milli, .. } = &self.states[state];
        let found = gpu.fits(self.shares[share]).then(|| {
            let mut after = gpu.clone();
            after.take(self.shares[share]);
            let after_milli = self.expected.fragmented_milli(0, "", std::slice::from_ref(&after));
            (self.scorer.score(fragmented_milli - after_milli), after)
        });
        let found = found.map(|(score, after)| (score, self.number(after)));
        self.states[state].after[share] = Some(found);
        found
    }

    fn number(&mut self, gpu: D) -> usize {
        if let Some(number) = self.numbers.get(&gpu) {
            return *number;
        }
        let fragmented_milli = self.expected.fragmented_milli(0, "", std::slice::from_ref(&gpu));
        self.numbers.insert(gpu.clone(), self.states.len());
        self.states.push(State { gpu, fragmented_milli, after: vec![None; self.shares.len()] });
        self.states.len() - 1
    }
}

#[cfg(test)]
mod tests {
    use super::super::cluster::{Milli, Node};
    use super::super::scheduler::Scheduler;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn tasks_go_where_the_scheduler_puts_them(
            shares in proptest::collection::vec(1u32..=20, 1..40),
            gpus in 1usize..20,
            exact in any::<bool>(),
        ) {
            let shares: Vec<u32> = shares.iter().map(|s| s * 50).collect();
            let scorer = if exact { Scorer::Exact } else { Scorer::Published };
            let task = |share: u32| Task { cpu_milli: 0, memory_mib: 0, gpus: 1, share, models: Vec::new() };
            let tasks: Vec<Task<u32>> = shares.iter().map(|s| task(*s)).collect();
            let node = Node { cpu_milli: 0, memory_mib: 0, model: String::new(), gpus: vec![Milli::WHOLE] };
            let mut cluster = Scheduler::new(vec![node; gpus], Expected::new(&tasks), scorer);
            let bound: Option<Vec<usize>> = tasks.iter().map(|t| Some(cluster.place(t)?.node)).collect();
            let found = Alike::new(&Milli::WHOLE, scorer, &shares).place(gpus);
            prop_assert_eq!(bound.is_some(), found.is_some());
            for (task, node) in bound.unwrap_or_default().into_iter().enumerate() {
                prop_assert!(found.as_ref().is_some_and(|f| f[node].contains(&task)));
            }
        }
    }
}
