//! The points that a sweep can measure: every share at every batch size at every clock, and at every power limit where
//! limits are swept.
//!
//! Rule: a space is four lists of levels, ascending and without repeats; its points are ordered by share, then batch
//! size, then clock, then power limit, because a new share costs the most time and a new clock or limit the least.
//! Cases: a clock that the GPU cannot be set to is refused, with its neighbours named.
//! Not done here: which points fit into the memory; the workload knows ([`crate::workload::Workload::fits`]).

use std::fmt;

use gpumon_core::share::Share;
use gpumon_core::units::Megahertz;
use serde::{Deserialize, Serialize};

/// One point of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Point {
    /// Share of the GPU.
    pub share: Share,
    /// Items in a batch.
    pub batch: u32,
    /// SM clock to ask for.
    pub clock: Megahertz,
    /// Power limit to set, W; `None` leaves it alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_w: Option<u32>,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "batch {}, {}, {}", self.batch, self.share, self.clock)?;
        self.limit_w.map_or(Ok(()), |w| write!(f, ", power limit {w} W"))
    }
}

/// Levels of share, batch size, clock and power limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Space {
    shares: Vec<Share>,
    batches: Vec<u32>,
    clocks: Vec<Megahertz>,
    limits_w: Vec<Option<u32>>,
}

/// Number of axes of a space.
pub const AXES: usize = 4;

/// Why there is no such space.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpaceError {
    /// One of the lists is empty.
    #[error("no {0} to sweep over; give at least one")]
    Empty(&'static str),
    /// A share that no GPU has.
    #[error("a GPU has no share of {0}; MIG has 1, 2, 3, 4 and 7 slices, MPS 1 to 100 %")]
    Share(Share),
    /// A batch size of 0, or one that a profile cannot hold.
    #[error("a batch size of {0} is not possible; give one from 1 to 1000000")]
    Batch(u32),
    /// A clock that this GPU does not have.
    #[error("this GPU cannot be set to {asked}; its clocks nearest to that are {near}")]
    Clock {
        /// The clock asked for.
        asked: Megahertz,
        /// The clocks around it.
        near: String,
    },
}

const MAX_BATCH: u32 = 1_000_000;

impl Space {
    /// The space of these levels. Order and repeats do not matter. `supported`: clocks of the GPU, ascending.
    pub fn new(
        shares: &[Share],
        batches: &[u32],
        clocks: &[Megahertz],
        supported: &[Megahertz],
    ) -> Result<Self, SpaceError> {
        let (shares, batches, clocks) = (levels(shares), levels(batches), levels(clocks));
        for (name, empty) in
            [("share", shares.is_empty()), ("batch size", batches.is_empty()), ("clock", clocks.is_empty())]
        {
            if empty {
                return Err(SpaceError::Empty(name));
            }
        }
        if let Some(&share) = shares.iter().find(|s| !s.exists()) {
            return Err(SpaceError::Share(share));
        }
        if let Some(&batch) = batches.iter().find(|b| !(1..=MAX_BATCH).contains(*b)) {
            return Err(SpaceError::Batch(batch));
        }
        if let Some(&asked) = clocks.iter().find(|c| supported.binary_search(c).is_err()) {
            let above = supported.partition_point(|c| *c < asked);
            let near = supported.iter().skip(above.saturating_sub(1)).take(2).map(ToString::to_string);
            let near = near.collect::<Vec<_>>().join(" and ");
            return Err(SpaceError::Clock {
                asked,
                near: if near.is_empty() { "none".into() } else { near },
            });
        }
        Ok(Self { shares, batches, clocks, limits_w: vec![None] })
    }

    /// The same space at each of these power limits, W. No limits leave it as it is.
    pub fn with_limits(self, limits_w: &[u32]) -> Self {
        let limits: Vec<_> = levels(limits_w).into_iter().map(Some).collect();
        Self { limits_w: if limits.is_empty() { self.limits_w } else { limits }, ..self }
    }

    /// Number of points.
    pub fn len(&self) -> usize {
        self.levels().iter().product()
    }

    /// Whether there are none; a space that [`Space::new`] made has some.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of shares, batch sizes, clocks and power limits.
    pub fn levels(&self) -> [usize; AXES] {
        [self.shares.len(), self.batches.len(), self.clocks.len(), self.limits_w.len()]
    }

    /// The clocks.
    pub fn clocks(&self) -> &[Megahertz] {
        &self.clocks
    }

    /// The shares.
    pub fn shares(&self) -> &[Share] {
        &self.shares
    }

    /// The point at these level numbers of share, batch size, clock and power limit.
    pub fn point(&self, [share, batch, clock, limit]: [usize; AXES]) -> Option<Point> {
        Some(Point {
            share: *self.shares.get(share)?,
            batch: *self.batches.get(batch)?,
            clock: *self.clocks.get(clock)?,
            limit_w: *self.limits_w.get(limit)?,
        })
    }
}

fn levels<T: Ord + Clone>(given: &[T]) -> Vec<T> {
    let mut levels = given.to_vec();
    levels.sort();
    levels.dedup();
    levels
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLOCKS: [Megahertz; 3] = [Megahertz(210), Megahertz(225), Megahertz(240)];

    #[test]
    fn levels_are_sorted_and_without_repeats() {
        let space =
            Space::new(&[Share::Mig(3), Share::Mig(1), Share::Mig(3)], &[8, 1], &CLOCKS[..1], &CLOCKS)
                .unwrap();
        assert_eq!((space.levels(), space.len()), ([2, 2, 1, 1], 4));
        let first = Point { share: Share::Mig(1), batch: 1, clock: Megahertz(210), limit_w: None };
        assert_eq!(space.point([0, 0, 0, 0]), Some(first));
        assert_eq!(space.point([2, 0, 0, 0]), None);
        let limited = space.with_limits(&[300, 200, 300]);
        assert_eq!((limited.len(), limited.point([0, 0, 0, 1]).unwrap().limit_w), (8, Some(300)));
    }

    #[test]
    fn impossible_levels_are_explained() {
        let new = |shares: &[Share], batches: &[u32], clocks: &[Megahertz]| {
            Space::new(shares, batches, clocks, &CLOCKS).unwrap_err().to_string()
        };
        assert!(new(&[], &[1], &CLOCKS).contains("no share"));
        assert!(new(&[Share::Mig(5)], &[1], &CLOCKS).contains("no share of 5 of 7 MIG slices"));
        assert!(new(&[Share::Mig(1)], &[0], &CLOCKS).contains("batch size of 0"));
        let text = new(&[Share::Mig(1)], &[1], &[Megahertz(230)]);
        assert!(text.contains("225 MHz and 240 MHz"), "{text}");
        assert!(new(&[Share::Mig(1)], &[1], &[Megahertz(9)]).contains("210 MHz"));
    }
}
