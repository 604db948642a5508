//! Who gets what of a second, and the sums over a window.
//!
//! | method | when | shares |
//! |---|---|---|
//! | `sm-utilisation` | the driver says what some process did | in proportion to SM utilisation; nobody's if all are 0 |
//! | `slices-of-busy-instances` | it does not, and all processes run on instances of known size | an instance with a process gets its compute slices, shared alike among its processes |
//! | `none` | neither | nobody's |
//!
//! Cases: a process of which the driver says nothing beside others of which it does gets nothing. A process that gets
//! nothing is a part with 0 J. Where there are more than twice [`KEPT`] processes, the smallest so far are added up as
//! others, and one that comes back begins anew.
//! Assumed: a process that is listed on an instance works there, if the driver does not say.

use std::collections::BTreeMap;

use gpumon_core::header::MigInstance;
use gpumon_core::rows::ProcessRow;
use serde::Serialize;

use super::{Attribution, Idle, InstancePart, Part};

/// Processes of a window that are told apart.
pub(super) const KEPT: usize = 32;

/// How energy above idle is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// By the time that each process had a kernel on the SMs.
    SmUtilisation,
    /// By the compute slices of the MIG instances that have processes.
    SlicesOfBusyInstances,
    /// Not at all.
    None,
}

impl Method {
    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::SmUtilisation => "sm-utilisation",
            Self::SlicesOfBusyInstances => "slices-of-busy-instances",
            Self::None => "none",
        }
    }
}

/// A method and each row's share, which add up to 1, or to 0 if nobody gets anything.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Shares {
    method: Method,
    each: Vec<f64>,
}

/// What each of the processes gets.
pub(super) fn of(rows: &[ProcessRow], slices: &BTreeMap<i32, u32>) -> Shares {
    let util = |row: &ProcessRow| row.sm_util_pct.filter(|u| u.is_finite()).map_or(0.0, |u| u.max(0.0));
    if rows.iter().any(|row| row.sm_util_pct.is_some()) {
        let sum: f64 = rows.iter().map(util).sum();
        let share = |row| if sum > 0.0 { util(row) / sum } else { 0.0 };
        return Shares { method: Method::SmUtilisation, each: rows.iter().map(share).collect() };
    }
    let known = |row: &ProcessRow| Some((row.mig_instance?, *slices.get(&row.mig_instance?)?));
    let Some(instances) = rows.iter().map(known).collect::<Option<Vec<_>>>() else {
        return Shares { method: Method::None, each: vec![0.0; rows.len()] };
    };
    let busy: BTreeMap<i32, u32> = instances.iter().copied().collect();
    let all = f64::from(busy.values().sum::<u32>());
    let share = |(id, slices): &(i32, u32)| {
        let on_it = instances.iter().filter(|(other, _)| other == id).count();
        f64::from(*slices) / all / on_it as f64
    };
    Shares { method: Method::SlicesOfBusyInstances, each: instances.iter().map(share).collect() }
}

/// A process of a window.
#[derive(Clone, Debug, Default, PartialEq)]
struct Sum {
    name: Option<String>,
    nj: f64,
}

/// Sums over one window, nJ.
#[derive(Clone, Debug)]
pub(super) struct Ledger {
    pub(super) from_us: i64,
    pub(super) to_us: i64,
    pub(super) idle_nj: f64,
    pub(super) unattributed_nj: f64,
    /// Absent if the method was never used.
    by_utilisation_nj: Option<f64>,
    by_slices_nj: Option<f64>,
    processes: BTreeMap<(i32, Option<i32>), Sum>,
    others_nj: Option<f64>,
    instances: BTreeMap<i32, f64>,
}

impl Ledger {
    pub(super) fn new(from_us: i64, to_us: i64) -> Self {
        Self {
            from_us,
            to_us,
            idle_nj: 0.0,
            unattributed_nj: 0.0,
            by_utilisation_nj: None,
            by_slices_nj: None,
            processes: BTreeMap::new(),
            others_nj: None,
            instances: BTreeMap::new(),
        }
    }

    /// Shares energy among processes.
    pub(super) fn share(&mut self, nj: f64, shares: &Shares, rows: &[ProcessRow]) {
        let given: f64 = shares.each.iter().sum();
        let method_nj = match shares.method {
            Method::SmUtilisation => &mut self.by_utilisation_nj,
            Method::SlicesOfBusyInstances => &mut self.by_slices_nj,
            Method::None => &mut None,
        };
        *method_nj.get_or_insert(0.0) += nj * given;
        if given <= 0.0 {
            self.unattributed_nj += nj;
        }
        for (row, share) in rows.iter().zip(&shares.each) {
            let sum = self.processes.entry((row.pid, row.mig_instance)).or_default();
            sum.nj += nj * share;
            if row.name.is_some() {
                sum.name.clone_from(&row.name);
            }
            if let Some(id) = row.mig_instance {
                *self.instances.entry(id).or_default() += nj * share;
            }
        }
        if self.processes.len() > 2 * KEPT {
            self.keep_largest();
        }
    }

    fn keep_largest(&mut self) {
        let mut all: Vec<_> = std::mem::take(&mut self.processes).into_iter().collect();
        all.sort_by(|(_, a), (_, b)| b.nj.total_cmp(&a.nj));
        for (_, small) in all.drain(KEPT.min(all.len())..) {
            *self.others_nj.get_or_insert(0.0) += small.nj;
        }
        self.processes = all.into_iter().collect();
    }

    /// The attribution of `energy_j`; nothing if no power reading says how it lay in time.
    pub(super) fn attribution(
        mut self,
        energy_j: f64,
        idle: Idle,
        instances: &[MigInstance],
    ) -> Option<Attribution> {
        self.keep_largest();
        let shared: f64 = self.processes.values().map(|sum| sum.nj).sum();
        let shared = shared + self.others_nj.unwrap_or(0.0);
        let all = self.idle_nj + self.unattributed_nj + shared;
        if all <= 0.0 || energy_j.is_nan() {
            return None;
        }
        let j = |nj: f64| energy_j.max(0.0) * (nj / all);
        let above = self.unattributed_nj + shared;
        let pct = |nj: f64| if above > 0.0 { 100.0 * nj / above } else { 0.0 };
        let mut parts: Vec<Part> = (self.processes.into_iter())
            .map(|((pid, mig_instance), sum)| Part {
                pid: Some(pid),
                name: sum.name,
                mig_instance,
                energy_j: j(sum.nj),
                share_pct: pct(sum.nj),
            })
            .collect();
        parts.sort_by(|a, b| b.energy_j.total_cmp(&a.energy_j));
        parts.extend(self.others_nj.map(|nj| Part {
            pid: None,
            name: Some("others".into()),
            mig_instance: None,
            energy_j: j(nj),
            share_pct: pct(nj),
        }));
        let known = |id: i32| instances.iter().find(|i| i32::try_from(i.id) == Ok(id));
        let instance = |(&id, &nj): (&i32, &f64)| InstancePart {
            id,
            uuid: known(id).and_then(|i| i.uuid.clone()),
            slices: known(id).and_then(|i| i.slices),
            energy_j: j(nj),
            share_pct: pct(nj),
        };
        let method = match (self.by_utilisation_nj, self.by_slices_nj) {
            (None, None) => Method::None,
            (util, slices) if slices > util => Method::SlicesOfBusyInstances,
            _ => Method::SmUtilisation,
        };
        Some(Attribution {
            method,
            idle_j: j(self.idle_nj),
            idle_w: idle.mw / 1e3,
            idle_source: idle.source,
            parts,
            mig_instances: self.instances.iter().map(instance).collect(),
            unattributed_j: j(self.unattributed_nj),
        })
    }
}
