//! What a gpulet of each size does for one model.
//!
//! Symbols: batch b, time of a batch t (ms), rate r (requests/s). t is the larger of the profile's latency and 1000 b / throughput, so
//! that both of its figures hold; with a neighbour it is longer.
//!
//! Rule:
//!
//! - saturated: the largest batch with 2 t ≤ SLO, one batch collected while the last one runs: duty cycle t, 1000 b / t requests/s;
//! - residue at rate r: the largest batch with t + 1000 b / r ≤ SLO that keeps up (t ≤ 1000 b / r), duty cycle 1000 b / r; where no
//!   batch can be collected in time, the smallest that keeps up, dispatched on a timeout with what has come: duty cycle SLO − t;
//! - p_eff: over neighbouring sizes in ascending order the upper one of the pair with the steepest gain of saturated throughput a
//!   percentage point; pairs with less than 5 % gain are skipped; the smallest size if none is left;
//! - p_req(r): from p_eff downward the smallest size that serves r with the batch of p_eff's residue.
//!
//! Cases: rows of one process; sizes whose smallest batch takes more than half the SLO serve nothing, and a model without any other is
//! no table (`None`). Rows that need more memory than their share has are left out.
//! Not done: choosing where.
//!
//! Source: GPUlets (ATC'22), elastic partitioning; a timeout with a batch above the smallest is for profiles with few batches.

use crate::candidate::{Candidate, Share};
use crate::policy::sizes;
use crate::problem::Problem;

/// Gains below this part of the throughput do not count.
const GAIN: f64 = 0.05;
/// What rounding may make of a share, percentage points.
pub const ROUNDING: f64 = 1e-6;

/// One batch size of a gpulet size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// The profile's row.
    pub candidate: Candidate,
    /// Time of a batch alone, ms.
    pub time_ms: f64,
}

/// One size of gpulets.
#[derive(Clone, Debug, PartialEq)]
pub struct Size {
    /// How much of a GPU.
    pub share: Share,
    /// The same in percent of the SMs.
    pub pct: f64,
    /// Its rows, batches ascending.
    pub rows: Vec<Row>,
    /// The shortest time of a batch, ms.
    pub least_ms: f64,
    /// The shortest time of a batch over its requests, ms.
    pub item_ms: f64,
}

/// What a gpulet runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    /// The row.
    pub row: Row,
    /// Time of a batch there, a neighbour's slowdown in it, ms.
    pub time_ms: f64,
    /// Time from one batch to the next, ms.
    pub duty_ms: f64,
    /// Requests a second that it serves.
    pub rate_rps: f64,
}

impl Size {
    /// The least part of the time that serving this rate takes.
    pub fn load(&self, rate_rps: f64) -> f64 {
        rate_rps * self.item_ms / 1e3
    }
}

impl Run {
    /// This row at this rate, if it keeps up and two of its batches take no longer than the SLO.
    pub fn new(row: Row, time_ms: f64, slo_ms: f64, rate_rps: f64) -> Option<Self> {
        let collect_ms = row.full_after_ms(rate_rps);
        let duty_ms = collect_ms.min(slo_ms - time_ms).max(time_ms);
        (2.0 * time_ms <= slo_ms && time_ms <= collect_ms * (1.0 + 1e-12)).then_some(Self {
            row,
            time_ms,
            duty_ms,
            rate_rps,
        })
    }

    /// The part of the time in which it runs.
    pub fn occupancy(&self) -> f64 {
        self.time_ms / self.duty_ms
    }
}

impl Row {
    /// Time until a batch has come, ms.
    pub fn full_after_ms(&self, rate_rps: f64) -> f64 {
        1e3 * f64::from(self.candidate.batch) / rate_rps
    }
}

/// One model at one clock.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Index of the model.
    pub model: usize,
    /// Its SLO, ms.
    pub slo_ms: f64,
    /// Its rate, requests/s.
    pub rate_rps: f64,
    /// Its sizes, ascending.
    pub sizes: Vec<Size>,
    /// Index of p_eff in them.
    pub efficient: usize,
}

impl Table {
    /// The model's gpulets at a clock; `None` if none serves anything.
    pub fn new(problem: &Problem, model: usize, mhz: u32) -> Option<Self> {
        let demand = &problem.models[model];
        let usable = |c: &&Candidate| c.frequency_mhz == mhz && c.processes == 1 && fits_alone(problem, c);
        let mut rows: Vec<(f64, Row)> = demand
            .candidates
            .iter()
            .filter(usable)
            .map(|c| {
                let time_ms = c.latency_ms.max(1e3 * f64::from(c.batch) / c.throughput_rps);
                (sizes::percent(problem, c.share), Row { candidate: *c, time_ms })
            })
            .collect();
        rows.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.candidate.batch.cmp(&b.1.candidate.batch)));
        let sizes: Vec<Size> = rows
            .chunk_by(|a, b| b.0 - a.0 <= ROUNDING)
            .map(|of_size| {
                let least = |of: fn(&Row) -> f64| {
                    of_size.iter().map(|(_, row)| of(row)).fold(f64::INFINITY, f64::min)
                };
                Size {
                    share: of_size[0].1.candidate.share,
                    pct: of_size[0].0,
                    rows: of_size.iter().map(|(_, row)| *row).collect(),
                    least_ms: least(|row| row.time_ms),
                    item_ms: least(|row| row.time_ms / f64::from(row.candidate.batch)),
                }
            })
            .collect();
        let mut table =
            Self { model, slo_ms: demand.latency_slo_ms, rate_rps: demand.rate_rps, sizes, efficient: 0 };
        table.efficient = table.efficient()?;
        Some(table)
    }

    /// The largest size of at most this many percent.
    pub fn within(&self, pct: f64) -> Option<usize> {
        self.sizes.partition_point(|size| size.pct <= pct + ROUNDING).checked_sub(1)
    }

    /// The size that is exactly this share.
    pub fn of_share(&self, share: Share) -> Option<&Size> {
        self.sizes.iter().find(|size| size.share == share)
    }

    /// Requests a second of a saturated gpulet alone; 0 where none is.
    pub fn saturated_rps(&self, size: usize) -> f64 {
        self.saturated(size, alone).map_or(0.0, |run| run.rate_rps)
    }

    /// The saturated gpulet of a size. `time` gives a row's time of a batch, ms, where it may run at all.
    pub fn saturated(&self, size: usize, time: impl Fn(&Row) -> Option<f64>) -> Option<Run> {
        let rows = self.sizes[size].rows.iter().rev();
        rows.filter_map(|row| {
            let time_ms = time(row)?;
            Run::new(*row, time_ms, self.slo_ms, 1e3 * f64::from(row.candidate.batch) / time_ms)
        })
        .next()
    }

    /// The gpulet of a size for a residue; `None` if it does not serve it.
    pub fn residue(&self, size: usize, rate_rps: f64, time: impl Fn(&Row) -> Option<f64>) -> Option<Run> {
        let rows = &self.sizes[size].rows;
        let run = |row: &Row| Run::new(*row, time(row)?, self.slo_ms, rate_rps);
        let full = |run: &Run| run.time_ms + run.row.full_after_ms(rate_rps) <= self.slo_ms;
        let collected = rows.iter().rev().filter_map(run).find(full);
        collected.or_else(|| rows.iter().find_map(run))
    }

    /// What a gpulet of this size runs when this much is left to serve: saturated if that is less, else a residue.
    pub fn most(&self, size: usize, left_rps: f64, time: impl Fn(&Row) -> Option<f64>) -> Option<Run> {
        let saturated = self.saturated(size, &time)?;
        if saturated.rate_rps < left_rps {
            return Some(saturated);
        }
        self.residue(size, left_rps, time)
    }

    /// p_req: the smallest size up to p_eff that serves a residue with p_eff's batch.
    pub fn required(&self, rate_rps: f64) -> usize {
        let Some(at_best) = self.residue(self.efficient, rate_rps, alone) else { return self.efficient };
        let batch = at_best.row.candidate.batch;
        let is_full = at_best.time_ms + at_best.row.full_after_ms(rate_rps) <= self.slo_ms;
        let serves = |size: &usize| {
            let row = self.sizes[*size].rows.iter().find(|row| row.candidate.batch == batch);
            let run = row.and_then(|row| Run::new(*row, row.time_ms, self.slo_ms, rate_rps));
            run.is_some_and(|run| !is_full || run.time_ms + run.row.full_after_ms(rate_rps) <= self.slo_ms)
        };
        (0..self.efficient).rev().take_while(serves).last().unwrap_or(self.efficient)
    }

    /// p_eff.
    fn efficient(&self) -> Option<usize> {
        let served: Vec<f64> = (0..self.sizes.len()).map(|size| self.saturated_rps(size)).collect();
        let mut best = (0.0, served.iter().position(|rps| *rps > 0.0)?);
        for upper in 1..served.len() {
            let gain_rps = served[upper] - served[upper - 1];
            let slope = gain_rps / (self.sizes[upper].pct - self.sizes[upper - 1].pct);
            if gain_rps >= GAIN * served[upper - 1] && slope > best.0 {
                best = (slope, upper);
            }
        }
        Some(best.1)
    }
}

/// A row's time without a neighbour, ms.
pub fn alone(row: &Row) -> Option<f64> {
    Some(row.time_ms)
}

/// Memory of a share, bytes: an instance has its slots' part of the GPU's, a percentage of the SMs may use all of it.
pub fn share_bytes(problem: &Problem, share: Share) -> f64 {
    let part = match share {
        Share::Slices(n) => problem.geometry.profile(n).map_or(0.0, |profile| {
            f64::from(profile.memory_slots) / f64::from(problem.geometry.memory_slots)
        }),
        Share::Percent(_) => 1.0,
    };
    part * sizes::memory_bytes(&problem.gpu)
}

/// Whether the memory that was measured fits in the row's share.
fn fits_alone(problem: &Problem, candidate: &Candidate) -> bool {
    candidate.uses.mem_bytes.is_none_or(|bytes| bytes <= share_bytes(problem, candidate.share))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::BasePower;
    use crate::problem::Ask;
    use gpumon_core::profile::ProfileRow;
    use gpumon_core::workload::Workload;

    /// Shares (%), batches and times of a batch, ms.
    fn table(slo_ms: f64, rows: &[(f64, i32, f64)]) -> Option<Table> {
        let text = format!(
            "[cluster]\ngpu = \"a100\"\nsharing = \"mps\"\n[[model]]\nname = \"m\"\nlatency_slo_ms = {slo_ms:?}\nrate_rps = 1.0\n"
        );
        let row = |&(pct, batch, latency_ms): &(f64, i32, f64)| ProfileRow {
            latency: Some(latency_ms),
            throughput: Some(f64::from(batch) * 1e3 / latency_ms),
            dynamic_power_draw: Some(1.0),
            ..ProfileRow::new("m", batch, pct / 100.0, 600)
        };
        let rows: Vec<_> = rows.iter().map(row).collect();
        let base = BasePower::parse("frequency_mhz,static_w,fan_w,idle_w\n600,1,2,3\n").unwrap();
        let ask = Workload::parse(&text).unwrap();
        let ask = Ask { split: true, ..Ask::new(&ask, &rows, &base, crate::Objective::Power) };
        Table::new(&Problem::new(&ask).unwrap(), 0, 600)
    }

    #[test]
    fn half_the_slo_is_for_collecting() {
        let table = table(40.0, &[(50.0, 1, 10.0), (50.0, 2, 15.0), (50.0, 4, 25.0)]).unwrap();
        let run = table.saturated(0, alone).unwrap();
        assert_eq!((run.row.candidate.batch, run.duty_ms, run.occupancy()), (2, 15.0, 1.0));
        assert!((run.rate_rps - 2e3 / 15.0).abs() < 1e-9);
        // Twice as slow beside a neighbour, a batch of 1 is left; more, and nothing is.
        let slower = |by: f64| table.saturated(0, |row| Some(row.time_ms * by));
        assert_eq!(slower(2.0).map(|run| (run.row.candidate.batch, run.rate_rps)), Some((1, 50.0)));
        assert_eq!(slower(2.1), None);
    }

    #[test]
    fn residues_collect_full_batches_or_go_on_a_timeout() {
        let table = table(40.0, &[(50.0, 2, 10.0), (50.0, 4, 15.0), (50.0, 8, 19.0)]).unwrap();
        let at = |rate_rps: f64| {
            let run = table.residue(0, rate_rps, alone)?;
            Some((run.row.candidate.batch, run.duty_ms, run.occupancy()))
        };
        // 4 in 20 ms and 15 more; 8 would take 40 + 19.
        assert_eq!(at(200.0), Some((4, 20.0, 0.75)));
        assert_eq!(at(100.0), Some((2, 20.0, 0.5)));
        // 2 come in 40 ms only: what has come after 30 goes.
        assert_eq!(at(50.0), Some((2, 30.0, 1.0 / 3.0)));
        // 8 in 19.5 ms; 400 a second is above what 4 in 15 ms serve.
        assert_eq!(at(410.0).map(|r| r.0), Some(8));
        assert_eq!(at(500.0), None);
        let few = super::tests::table(40.0, &[(50.0, 1, 10.0), (50.0, 8, 19.0)]).unwrap();
        let run = few.residue(0, 200.0, alone).unwrap();
        assert_eq!(
            (run.row.candidate.batch, run.duty_ms),
            (8, 21.0),
            "8 come in 40 ms, a batch of 1 is too slow"
        );
    }

    #[test]
    fn the_efficient_size_is_above_the_steepest_gain() {
        // One batch: 100, 150, 154, 300 and 310 a second.
        let sizes = |list: &[(f64, f64)]| {
            let rows: Vec<_> = list.iter().map(|&(pct, rps)| (pct, 1, 1e3 / rps)).collect();
            table(40.0, &rows).map(|t| t.sizes[t.efficient].pct)
        };
        assert_eq!(
            sizes(&[(20.0, 100.0), (40.0, 150.0), (60.0, 154.0), (80.0, 300.0), (100.0, 310.0)]),
            Some(80.0)
        );
        assert_eq!(sizes(&[(20.0, 100.0), (40.0, 104.0), (100.0, 108.0)]), Some(20.0), "no gain of 5 %");
        assert_eq!(sizes(&[(80.0, 100.0), (100.0, 150.0)]), Some(100.0), "the last step counts");
        assert_eq!(sizes(&[(20.0, 40.0), (50.0, 60.0)]), Some(50.0), "25 ms are more than half of 40");
        assert_eq!(sizes(&[(20.0, 40.0)]), None);
    }

    #[test]
    fn the_required_size_serves_with_the_efficient_sizes_batch() {
        let rows = [(20.0, 2, 19.0), (40.0, 2, 14.0), (40.0, 4, 19.0), (80.0, 2, 6.0), (80.0, 4, 9.0)];
        let table = table(40.0, &rows).unwrap();
        assert_eq!(table.sizes[table.efficient].pct, 80.0);
        let pct = |rate_rps: f64| table.sizes[table.required(rate_rps)].pct;
        // 4 in 20 ms: 40 % takes 19 ms. At 210 a second a batch takes longer than 4 take to come.
        assert_eq!((pct(200.0), pct(215.0)), (40.0, 80.0));
        // 2 in 20 ms: 20 % takes 19 ms.
        assert_eq!(pct(100.0), 20.0);
    }

    #[test]
    fn rows_that_do_not_fit_in_memory_are_left_out() {
        let of_mig = |slices: u8, gb: f64| {
            let uses = crate::candidate::Uses { mem_bytes: Some(gb * 1e9), occupancy: None };
            let share = Share::Slices(slices);
            Candidate { share, uses, ..table(40.0, &[(50.0, 1, 10.0)]).unwrap().sizes[0].rows[0].candidate }
        };
        let text =
            "[cluster]\ngpu = \"a100\"\n[[model]]\nname = \"m\"\nlatency_slo_ms = 40.0\nrate_rps = 1.0\n";
        let row = ProfileRow {
            mig_slices: Some(1),
            latency: Some(10.0),
            throughput: Some(100.0),
            dynamic_power_draw: Some(1.0),
            ..ProfileRow::new("m", 1, 1.0 / 7.0, 600)
        };
        let (workload, rows) = (Workload::parse(text).unwrap(), [row]);
        let base = BasePower::parse("frequency_mhz,static_w,fan_w,idle_w\n600,1,2,3\n").unwrap();
        let problem = Problem::new(&Ask::new(&workload, &rows, &base, crate::Objective::Power)).unwrap();
        // An eighth of 80 GB, and half of it.
        assert!(fits_alone(&problem, &of_mig(1, 10.0)) && !fits_alone(&problem, &of_mig(1, 10.1)));
        assert!(fits_alone(&problem, &of_mig(3, 40.0)) && !fits_alone(&problem, &of_mig(3, 40.1)));
    }
}
