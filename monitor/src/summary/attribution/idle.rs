//! The power that a GPU draws idle, with a context.
//!
//! Rule, in this order:
//!
//! 1. `given`: what the caller says.
//! 2. `idle-processes`: the median of the readings in spans in which the GPU had processes and none of them did anything,
//!    if there are [`FEWEST`] or more.
//! 3. `least-power`: the least median of five neighbouring readings.
//!
//! Cases: five neighbours reach over single outliers and fit into pauses of 60 ms of a ring at 50 Hz; their least median
//! lies some two deviations of the noise below the true power (2 W of 121 W where the noise is 1 W). The third source is
//! too high in a recording in which the GPU never paused, and too low where it was without a context for a while.
//! Not done here: that idle power depends on the clock and the temperature.

use std::collections::VecDeque;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::super::joined::Group;
use super::{GAP_US, SECOND_US};

/// Fewest readings that tell the power of idle processes: about half a second of a ring.
const FEWEST: u64 = 25;
/// Neighbouring readings whose median counts.
const NEIGHBOURS: usize = 5;

/// Where an idle power comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum IdleSource {
    /// The caller's word.
    Given,
    /// Power while the GPU had processes that did nothing.
    IdleProcesses,
    /// The least power of the recording.
    LeastPower,
}

/// An idle power.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::summary) struct Idle {
    pub(super) mw: f64,
    pub(super) source: IdleSource,
}

impl Idle {
    /// What the caller says, W.
    pub(in crate::summary) fn given(watts: f64) -> Self {
        Self { mw: (watts * 1e3).max(0.0), source: IdleSource::Given }
    }
}

/// Finds one GPU's idle power.
#[derive(Clone, Debug, Default)]
pub(in crate::summary) struct IdleFinder {
    neighbours: VecDeque<f64>,
    least_mw: Option<f64>,
    /// Readings that processes to come may be about.
    recent: VecDeque<(i64, f64)>,
    calm_mw: Option<Histogram<u64>>,
    last_group_us: Option<i64>,
}

impl IdleFinder {
    /// Adds a reading, mW, in order of time.
    pub(in crate::summary) fn power(&mut self, at_us: i64, power_mw: f64) {
        self.neighbours.push_back(power_mw);
        if self.neighbours.len() > NEIGHBOURS {
            self.neighbours.pop_front();
        }
        // Fewer than five readings in all are better than none.
        if self.neighbours.len() == NEIGHBOURS || self.least_mw.is_none() {
            let mut sorted: Vec<f64> = self.neighbours.iter().copied().collect();
            sorted.sort_by(f64::total_cmp);
            let median = sorted[sorted.len() / 2];
            let first = self.neighbours.len() < NEIGHBOURS;
            self.least_mw =
                Some(self.least_mw.map_or(median, |least| if first { least } else { least.min(median) }));
        }
        self.recent.push_back((at_us, power_mw));
        while self.recent.front().is_some_and(|(then_us, _)| at_us - then_us > GAP_US) {
            self.recent.pop_front();
        }
    }

    /// Adds the processes of a time, before any reading of that time or later.
    pub(in crate::summary) fn processes(&mut self, group: &Group) {
        let before_us = self.last_group_us.replace(group.at_us).filter(|us| group.at_us - us <= GAP_US);
        let from_us = before_us.unwrap_or(group.at_us - SECOND_US);
        if group.rows.iter().all(|row| row.sm_util_pct == Some(0.0)) {
            let calm = match self.calm_mw.take() {
                Some(calm) => Some(calm),
                None => Histogram::new(3).ok(),
            };
            self.calm_mw = calm.map(|mut calm| {
                for (_, mw) in self.recent.iter().filter(|(at_us, _)| *at_us >= from_us) {
                    // An auto-resizing histogram takes every value.
                    let _ = calm.record(mw.max(0.0) as u64);
                }
                calm
            });
        }
        self.recent.clear();
    }

    /// The idle power; nothing without any reading.
    pub(in crate::summary) fn found(&self) -> Option<Idle> {
        if let Some(calm) = self.calm_mw.as_ref().filter(|calm| calm.len() >= FEWEST) {
            return Some(Idle { mw: calm.value_at_quantile(0.5) as f64, source: IdleSource::IdleProcesses });
        }
        self.least_mw.map(|mw| Idle { mw, source: IdleSource::LeastPower })
    }
}
