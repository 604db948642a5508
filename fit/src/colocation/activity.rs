//! SM and DRAM activity of a model by point, as it was measured alone.
//!
//! Rule: at a measured point the measured value; between points the mean of all, weighted by 1 / distance⁴ in ln batch,
//! ln share and ln clock. What is averaged of the SMs is activity ÷ share (how busy the model keeps what it has).
//!
//! Cases: a model whose rows have no such counters has none. Beyond the points the nearest ones speak.
//!
//! Source of the weights: Shepard, *A two-dimensional interpolation function for irregularly-spaced data*, ACM 1968.

use gpumon_core::profile::ProfileRow;
use serde::{Deserialize, Serialize};

use crate::point::Point;

/// Where, and what: batch, share of the SMs, MHz, activity of the whole GPU (0 to 1).
type Entry = [f64; 4];

/// Squared distance below which points are the same.
const SAME: f64 = 1e-9;

/// Activity of one model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Activity {
    /// Model name.
    pub model: String,
    /// SM time with at least one warp: batch, share, MHz, activity of the whole GPU from 0 to 1.
    pub sm_util: Vec<Entry>,
    /// DRAM bandwidth in use, likewise.
    pub dram_util: Vec<Entry>,
}

impl Activity {
    /// What rows of each model hold; models without any counter are not listed.
    pub fn of_rows(models: &[String], rows: &[ProfileRow]) -> Vec<Self> {
        let of = |model: &String| {
            let entries = |pct: fn(&ProfileRow) -> Option<f64>| -> Vec<Entry> {
                let one_process = |r: &ProfileRow| r.processes.is_none_or(|n| n == 1);
                let rows = rows.iter().filter(|r| r.model == *model && r.valid && one_process(r));
                let entry = |row: &ProfileRow| {
                    let point = Point::of(row).ok()?;
                    let value = pct(row).filter(|pct| (0.0..=100.0).contains(pct))?;
                    let [share, mhz, batch] = point.coordinates();
                    Some([batch, share, mhz, (value * 1e3).round() / 1e5])
                };
                rows.filter_map(entry).collect()
            };
            let (sm_util, dram_util) = (entries(|r| r.sm_util_pct), entries(|r| r.dram_util_pct));
            Self { model: model.clone(), sm_util, dram_util }
        };
        let some = |a: &Self| !a.sm_util.is_empty() || !a.dram_util.is_empty();
        models.iter().map(of).filter(some).collect()
    }

    /// SM activity at a point, of the whole GPU, 0 to 1.
    pub fn sm_util(&self, point: &Point) -> Option<f64> {
        let share = point.share.sms();
        let busy = mean(&self.sm_util, point, |[_, share, _, value]| value / share)?;
        Some((busy * share).clamp(0.0, 1.0))
    }

    /// DRAM activity at a point, of the whole GPU, 0 to 1.
    pub fn dram_util(&self, point: &Point) -> Option<f64> {
        mean(&self.dram_util, point, |[.., value]| *value)
    }

    /// Whether a row with counters was measured at this point.
    pub fn was_measured(&self, point: &Point) -> bool {
        self.sm_util.iter().chain(&self.dram_util).any(|entry| distance(entry, point) < SAME)
    }

    pub(crate) fn is_sound(&self) -> bool {
        let entry = |[batch, share, mhz, value]: &Entry| {
            *batch > 0.0 && *share > 0.0 && *mhz > 0.0 && (0.0..=1.0).contains(value)
        };
        self.sm_util.iter().chain(&self.dram_util).all(entry)
    }
}

/// Squared, in ln batch, ln share and ln clock.
fn distance(entry: &Entry, point: &Point) -> f64 {
    let [share, mhz, batch] = point.coordinates();
    let pairs = [(entry[0], batch), (entry[1], share), (entry[2], mhz)];
    pairs.iter().map(|(a, b)| (a / b).ln().powi(2)).sum()
}

fn mean(entries: &[Entry], point: &Point, value: fn(&Entry) -> f64) -> Option<f64> {
    let (mut sum, mut weights) = (0.0, 0.0);
    for entry in entries {
        // A point that was measured outweighs all others.
        let weight = distance(entry, point).max(SAME).powi(-2);
        sum += weight * value(entry);
        weights += weight;
    }
    (weights > 0.0).then(|| sum / weights)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::point::Share;
    use gpumon_core::units::Megahertz;

    #[test]
    fn measured_points_stand_and_others_lie_between() {
        let row = |batch, share, sm, dram| {
            let mut row = ProfileRow::new("a", batch, share, 1000);
            (row.sm_util_pct, row.dram_util_pct) = (Some(sm), dram);
            row
        };
        let rows = [row(1, 0.25, 10.0, Some(2.0)), row(4, 0.25, 20.0, Some(6.0)), row(4, 1.0, 80.0, None)];
        let all = Activity::of_rows(&["a".into(), "b".into()], &rows);
        assert_eq!(all.len(), 1, "`b` has no rows");
        let at = |batch, share| Point {
            batch,
            share: Share::Sms(share),
            frequency: Megahertz(1000),
            processes: 1,
        };
        assert!((all[0].sm_util(&at(4, 1.0)).unwrap() - 0.8).abs() < 1e-6);
        assert!((all[0].dram_util(&at(2, 0.25)).unwrap() - 0.04).abs() < 1e-6);
        let between = all[0].sm_util(&at(2, 0.25)).unwrap();
        assert!(between > 0.1 && between < 0.2, "{between}");
        assert!(all[0].was_measured(&at(4, 1.0)) && !all[0].was_measured(&at(2, 0.25)));
        assert!(all[0].is_sound());
    }
}
