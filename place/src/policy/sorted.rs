//! Numbers that sort, for sets and heaps.

use std::cmp::Ordering;

/// A number in the order of [`f64::total_cmp`].
#[derive(Clone, Copy, Debug)]
pub struct Sorted(pub f64);

impl PartialEq for Sorted {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Sorted {}

impl PartialOrd for Sorted {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Sorted {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}
