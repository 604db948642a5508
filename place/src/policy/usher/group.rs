//! Groups of models whose compute and memory balance.
//!
//! Rule: each model begins as a group; in rounds, disjoint pairs of groups merge, those first whose union has the
//! smallest |Σ C − Σ M|, as long as no group has more than four models.
//! Cases: only groups of one size merge, so sizes are 1, 2 and 4. Of equals the earlier. A group without a partner stays as it is.
//! Not done: looking at rates.
//!
//! Source: USHER (OSDI'24), its grouping. A group's best partner is the one nearest to the opposite of its own C − M, so a
//! sorted set finds it without looking at all pairs.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use super::need::Need;
use crate::policy::sorted::Sorted;

/// Most models of a group.
pub const LIMIT: usize = 4;

/// Indices into `needs`, by group.
pub fn groups(needs: &[Need]) -> Vec<Vec<usize>> {
    let balances: Vec<f64> = needs.iter().map(|n| n.c_pct - n.m_pct).collect();
    grouped(&balances)
}

/// The same for these values of C − M.
pub fn grouped(balances: &[f64]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = (0..balances.len()).map(|i| vec![i]).collect();
    // Pairs of groups of one size, so that sizes go 1, 2, 4; what has no partner waits for the next round.
    let mut size = 1;
    while 2 * size <= LIMIT {
        let (ready, mut others): (Vec<_>, Vec<_>) = groups.into_iter().partition(|g| g.len() == size);
        let sums: Vec<f64> = ready.iter().map(|g| g.iter().map(|&i| balances[i]).sum()).collect();
        let mut partner = vec![None; ready.len()];
        for (a, b) in pairs(&sums) {
            (partner[a], partner[b]) = (Some(b), Some(a));
        }
        for (i, group) in ready.iter().enumerate() {
            match partner[i] {
                Some(j) if j < i => {}
                Some(j) => others.push(group.iter().chain(&ready[j]).copied().collect()),
                None => others.push(group.clone()),
            }
        }
        groups = others;
        size *= 2;
    }
    groups.sort();
    groups
}

/// Disjoint pairs, the smallest |sum| first.
fn pairs(sums: &[f64]) -> Vec<(usize, usize)> {
    let mut free: BTreeSet<(Sorted, usize)> = sums.iter().enumerate().map(|(i, s)| (Sorted(*s), i)).collect();
    let best = |free: &BTreeSet<(Sorted, usize)>, i: usize| {
        let opposite = Sorted(-sums[i]);
        let above = free.range((opposite, 0)..).find(|(_, j)| *j != i);
        let below = free.range(..(opposite, 0)).rev().find(|(_, j)| *j != i);
        let found = above.into_iter().chain(below).map(|(s, j)| (Sorted((sums[i] + s.0).abs()), i, *j));
        found.min()
    };
    let mut heap: BinaryHeap<_> = (0..sums.len()).filter_map(|i| best(&free, i)).map(Reverse).collect();
    let mut found = Vec::new();
    while let Some(Reverse((_, i, j))) = heap.pop() {
        if !free.contains(&(Sorted(sums[i]), i)) {
            continue;
        }
        if free.contains(&(Sorted(sums[j]), j)) {
            free.remove(&(Sorted(sums[i]), i));
            free.remove(&(Sorted(sums[j]), j));
            found.push((i.min(j), i.max(j)));
        } else {
            heap.extend(best(&free, i).map(Reverse));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opposites_meet_and_groups_stay_small() {
        assert_eq!(grouped(&[30.0, -10.0, 11.0, -29.0]), [vec![0, 3, 1, 2]]);
        assert_eq!(grouped(&[5.0]), [vec![0]]);
        assert_eq!(grouped(&[5.0, -5.0, 1.0]), [vec![0, 1], vec![2]]);
        let many: Vec<f64> = (0..101).map(|i| f64::from(i * 37 % 101) - 50.0).collect();
        let groups = grouped(&many);
        let mut all: Vec<usize> = groups.iter().flatten().copied().collect();
        all.sort_unstable();
        assert_eq!(all, (0..101).collect::<Vec<_>>());
        assert!(groups.iter().all(|g| g.len() <= LIMIT));
    }
}
