//! Whose energy it was: a GPU's energy over a span, shared among processes, with the idle share apart.
//!
//! ```text
//! power readings ─▸ idle    the power that the GPU draws idle with a context         (first pass)
//! power readings ─▸ segments between readings ─┬▸ up to idle power: idle
//! processes ──────▸ shares a second ───────────┴▸ above it: by shares, or nobody's   (second pass) → Ledger a window
//! ```
//!
//! Rule: power is read as lines between readings. What lies below idle power is the idle share. What lies above it, from
//! one row of processes to the next, is shared in proportion to what the later row says of that span (`share`). Where
//! nothing says whose it was, it is unattributed. All three are then scaled alike so that they add up to the energy of the
//! span, which other estimators found. Nothing is ever negative.
//! Cases: rows more than `GAP_US` apart say nothing about the time that is more than a second before the later one.
//! A span without any reading of power has no attribution. A meter's correction is applied to readings before they are
//! compared with idle power.
//! Memory: a second and a half of readings a GPU, and `share::KEPT` processes a window and GPU.
//!
//! Not done here: telling how much power one kernel draws beside another; see docs/attribution.md.

use std::collections::{BTreeMap, VecDeque};

use gpumon_core::calibration::Correction;
use gpumon_core::header;
use serde::Serialize;

use super::Window;
use super::joined::Group;

pub(super) mod all;
pub(super) mod idle;
mod share;
#[cfg(test)]
mod tests;

pub(super) use idle::Idle;
pub use idle::IdleSource;
use share::Ledger;
pub use share::Method;

/// Rows of processes come once a second; further apart than this, one is missing or nothing ran, µs.
const GAP_US: i64 = 1_500_000;
/// Rows of processes that wait for power at most: ten minutes, once a second.
const DUE: usize = 600;
/// What a row is then about, µs.
const SECOND_US: i64 = 1_000_000;

/// A GPU's energy over a span, by whose it was. Parts, idle share and the rest add up to the energy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Attribution {
    /// How the energy above idle was shared; of several methods, the one that shared most.
    pub method: Method,
    /// What the GPU would have drawn idle, J.
    pub idle_j: f64,
    /// The idle power behind it, W.
    pub idle_w: f64,
    /// Where the idle power comes from.
    pub idle_source: IdleSource,
    /// The processes, largest first; beyond the largest 32, one part named `others` without a pid.
    pub parts: Vec<Part>,
    /// The same by GPU instance, where processes ran on some.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mig_instances: Vec<InstancePart>,
    /// Energy above idle of which nothing says whose it was, J.
    pub unattributed_j: f64,
}

/// What one process drew above idle.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Part {
    /// Its id.
    pub pid: Option<i32>,
    /// The last name that it called itself.
    pub name: Option<String>,
    /// The GPU instance that it ran on.
    pub mig_instance: Option<i32>,
    /// Energy, J.
    pub energy_j: f64,
    /// Share of the energy above idle, %; 0 if there is none.
    pub share_pct: f64,
}

/// What the processes on one GPU instance drew above idle.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct InstancePart {
    /// Its id.
    pub id: i32,
    /// Its UUID, if the header knows it.
    pub uuid: Option<String>,
    /// Its compute slices, if the header knows them.
    pub slices: Option<u32>,
    /// Energy, J.
    pub energy_j: f64,
    /// Share of the energy above idle, %; 0 if there is none.
    pub share_pct: f64,
}

/// Power between two readings, a line.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Segment {
    from: (i64, f64),
    to: (i64, f64),
}

impl Segment {
    fn at(&self, at_us: i64) -> f64 {
        let ((a_us, a_mw), (b_us, b_mw)) = (self.from, self.to);
        if at_us <= a_us {
            return a_mw;
        }
        if at_us >= b_us {
            return b_mw;
        }
        a_mw + (b_mw - a_mw) * (at_us - a_us) as f64 / (b_us - a_us) as f64
    }

    /// Cut in two at a moment within it.
    fn cut(self, at_us: i64) -> (Self, Self) {
        let middle = (at_us, self.at(at_us));
        (Self { to: middle, ..self }, Self { from: middle, ..self })
    }

    /// Energy within a span, below and above a power of `idle_mw`, nJ.
    fn split(&self, from_us: i64, to_us: i64, idle_mw: f64) -> (f64, f64) {
        let (from_us, to_us) = (from_us.max(self.from.0), to_us.min(self.to.0));
        if to_us <= from_us {
            return (0.0, 0.0);
        }
        let time = (to_us - from_us) as f64;
        let (a, b) = (self.at(from_us), self.at(to_us));
        let (over_a, over_b) = (a - idle_mw, b - idle_mw);
        let above = match (over_a > 0.0, over_b > 0.0) {
            (true, true) => (over_a + over_b) / 2.0,
            (false, false) => 0.0,
            // A triangle where the line crosses.
            _ => over_a.max(over_b).powi(2) / (2.0 * (over_a - over_b).abs()),
        } * time;
        (((a + b) / 2.0 * time - above).max(0.0), above)
    }
}

/// Shares out the energy of one GPU.
pub(super) struct Attributor {
    idle: Option<Idle>,
    correction: Option<Correction>,
    instances: Vec<header::MigInstance>,
    slices: BTreeMap<i32, u32>,
    last: Option<(i64, f64)>,
    /// Power since the last rows of processes, as far as it may still be theirs to come.
    pending: VecDeque<Segment>,
    /// Processes of times that power has not reached yet.
    due: VecDeque<Group>,
    last_group_us: Option<i64>,
    ledgers: Vec<Ledger>,
}

impl Attributor {
    /// Over all `windows` of one GPU.
    pub(super) fn new(
        gpu: &header::Gpu,
        windows: &[Window],
        idle: Option<Idle>,
        correction: Option<&Correction>,
    ) -> Self {
        let slices = gpu.mig_instances.iter();
        let slices = slices.filter_map(|i| Some((i32::try_from(i.id).ok()?, i.slices.filter(|s| *s > 0)?)));
        Self {
            idle,
            correction: correction.cloned(),
            instances: gpu.mig_instances.clone(),
            slices: slices.collect(),
            last: None,
            pending: VecDeque::new(),
            due: VecDeque::new(),
            last_group_us: None,
            ledgers: windows.iter().map(|w| Ledger::new(w.from_us, w.to_us)).collect(),
        }
    }

    /// Adds the processes of a time, in order of time and before any power reading at that time or later.
    pub(super) fn processes(&mut self, group: Group) {
        // Power may never come again.
        if self.due.len() == DUE {
            self.due.pop_front();
        }
        self.due.push_back(group);
    }

    /// Adds a power reading, in order of time.
    pub(super) fn power(&mut self, at_us: i64, power_mw: f64) {
        let mw = corrected_mw(self.correction.as_ref(), power_mw);
        if self.last.is_some_and(|(last_us, _)| at_us <= last_us) {
            return;
        }
        let Some(last) = self.last.replace((at_us, mw)) else {
            // Nothing is known of the power before.
            self.last_group_us = self.due.back().map(|g| g.at_us);
            self.due.clear();
            return;
        };
        let mut segment = Segment { from: last, to: (at_us, mw) };
        while let Some(group) = self.due.pop_front() {
            if group.at_us > segment.from.0 && group.at_us < segment.to.0 {
                let (before, after) = segment.cut(group.at_us);
                self.pending.push_back(before);
                segment = after;
            } else if group.at_us >= segment.to.0 {
                self.due.push_front(group);
                break;
            }
            self.close(&group);
        }
        self.pending.push_back(segment);
        while self.pending.front().is_some_and(|s| s.to.0 <= at_us - GAP_US) {
            self.settle_first();
        }
    }

    /// Shares the power since the processes before.
    fn close(&mut self, group: &Group) {
        let before_us = self.last_group_us.replace(group.at_us).filter(|us| group.at_us - us <= GAP_US);
        let from_us = before_us.unwrap_or(group.at_us - SECOND_US);
        let Some(idle) = self.idle else { return };
        let shares = share::of(&group.rows, &self.slices);
        for ledger in &mut self.ledgers {
            let mut shared_nj = 0.0;
            for segment in &self.pending {
                let (below_nj, above_nj) = segment.split(ledger.from_us, ledger.to_us, idle.mw);
                let (_, ours_nj) = segment.split(ledger.from_us.max(from_us), ledger.to_us, idle.mw);
                ledger.idle_nj += below_nj;
                ledger.unattributed_nj += (above_nj - ours_nj).max(0.0);
                shared_nj += ours_nj;
            }
            if ledger.from_us < group.at_us && ledger.to_us > from_us {
                ledger.share(shared_nj, &shares, &group.rows);
            }
        }
        self.pending.clear();
    }

    /// The oldest pending power is nobody's.
    fn settle_first(&mut self) {
        let (Some(segment), Some(idle)) = (self.pending.pop_front(), self.idle) else { return };
        for ledger in &mut self.ledgers {
            let (below_nj, above_nj) = segment.split(ledger.from_us, ledger.to_us, idle.mw);
            ledger.idle_nj += below_nj;
            ledger.unattributed_nj += above_nj;
        }
    }

    /// The attribution of each window, given its energy, J.
    pub(super) fn finish(
        mut self,
        energies_j: impl IntoIterator<Item = Option<f64>>,
    ) -> Vec<Option<Attribution>> {
        // Processes at the very last reading.
        while let Some(group) = self.due.pop_front() {
            if self.last.is_some() {
                self.close(&group);
            }
        }
        while !self.pending.is_empty() {
            self.settle_first();
        }
        let (idle, instances) = (self.idle, self.instances);
        let ledgers = self.ledgers.into_iter().zip(energies_j);
        ledgers.map(|(ledger, energy_j)| ledger.attribution(energy_j?, idle?, &instances)).collect()
    }
}

/// What a meter says that a reading means, mW.
pub(super) fn corrected_mw(correction: Option<&Correction>, power_mw: f64) -> f64 {
    correction.map_or(power_mw, |by| by.gain * power_mw + 1e3 * by.offset_w).max(0.0)
}
