//! What segments one model is given: the configurator.
//!
//! Rule: a row is admissible when its batch time is below 45 % of the SLO. OPT is the admissible row of greatest
//! throughput a slice, BEST\[s\] that of greatest throughput in size s; rows are looked at by size, batch, processes
//! ascending, and of equals the first is kept. The model gets floor(rate / throughput of OPT) segments of OPT, one fewer if
//! that leaves nothing, and for the remainder one LAST: BEST of the smallest size that covers it.
//! Cases: a model without an admissible row has no segments (`None`).
//! Not done: clocks; all rows are to be of one.
//!
//! Source: ParvaGPU (SC'24), algorithm 1; the 45 %, and the one segment fewer, from its published code.

use crate::candidate::{Candidate, Share};

/// Which part of the SLO a batch may take, less than: the rest is for waiting.
pub const SLO_PART: f64 = 0.45;

/// One model with its segments.
#[derive(Clone, Debug, PartialEq)]
pub struct Service {
    /// Index of the model.
    pub model: usize,
    /// Items a second that it is to serve.
    pub rate_rps: f64,
    /// The row of best throughput a slice.
    pub opt: Candidate,
    /// How many segments of `opt`.
    pub count: usize,
    /// The row of the segment for the remainder.
    pub last: Candidate,
    best: Vec<Candidate>,
}

/// Compute slices of a row, 0 for a row of no MIG instance.
pub fn slices(row: &Candidate) -> u8 {
    match row.share {
        Share::Slices(n) => n,
        Share::Percent(_) => 0,
    }
}

impl Service {
    /// The segments for a rate, from rows of MIG instances at one clock; `None` if no row is fast enough.
    pub fn new(
        model: usize,
        rows: impl Iterator<Item = Candidate>,
        latency_slo_ms: f64,
        rate_rps: f64,
    ) -> Option<Self> {
        let mut rows: Vec<Candidate> =
            rows.filter(|row| slices(row) > 0 && row.latency_ms < SLO_PART * latency_slo_ms).collect();
        rows.sort_by_key(|row| (slices(row), row.batch, row.processes));
        let mut opt: Option<Candidate> = None;
        let mut best: Vec<Candidate> = Vec::new();
        let a_slice = |row: &Candidate| row.throughput_rps / f64::from(slices(row));
        for row in rows {
            if opt.is_none_or(|opt| a_slice(&row) > a_slice(&opt)) {
                opt = Some(row);
            }
            match best.last_mut().filter(|last| slices(last) == slices(&row)) {
                Some(last) if row.throughput_rps > last.throughput_rps => *last = row,
                Some(_) => {}
                None => best.push(row),
            }
        }
        let opt = opt?;
        let whole = (rate_rps / opt.throughput_rps).floor();
        let is_multiple = whole > 0.0 && rate_rps % opt.throughput_rps == 0.0;
        let count = if is_multiple { whole - 1.0 } else { whole };
        let remainder_rps = rate_rps - count * opt.throughput_rps;
        let last = best.iter().find(|row| row.throughput_rps >= remainder_rps).copied().unwrap_or(opt);
        Some(Self { model, rate_rps, opt, count: count as usize, last, best })
    }

    /// The admissible row of greatest throughput in a size.
    pub fn best(&self, size: u8) -> Option<&Candidate> {
        self.best.iter().find(|row| slices(row) == size)
    }

    /// The row that a segment of this size runs as: OPT, else LAST, else BEST.
    pub fn of_size(&self, size: u8) -> Option<Candidate> {
        let planned = [self.opt, self.last].into_iter().find(|row| slices(row) == size);
        planned.or_else(|| self.best(size).copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(slices: u8, processes: u32, latency_ms: f64, throughput_rps: f64) -> Candidate {
        let share = Share::Slices(slices);
        Candidate {
            batch: 1,
            share,
            processes,
            frequency_mhz: 1410,
            latency_ms,
            throughput_rps,
            dynamic_w: 1.0,
            uses: crate::candidate::Uses::default(),
        }
    }

    fn service(rate_rps: f64) -> Service {
        let rows = [row(1, 1, 4.0, 10.0), row(1, 2, 4.0, 12.0), row(2, 1, 3.0, 30.0), row(3, 1, 4.5, 90.0)];
        Service::new(0, rows.into_iter(), 10.0, rate_rps).unwrap()
    }

    #[test]
    fn rows_at_45_percent_of_the_slo_are_out() {
        let service = service(10.0);
        assert_eq!((slices(&service.opt), service.best(3)), (2, None));
        assert_eq!(Service::new(0, [row(1, 1, 4.5, 9.0)].into_iter(), 10.0, 1.0), None);
    }

    #[test]
    fn rates_are_cut_into_best_segments_and_a_last_one() {
        let of = |rate: f64| (service(rate).count, slices(&service(rate).last));
        assert_eq!(of(11.0), (0, 1));
        assert_eq!(of(13.0), (0, 2));
        assert_eq!(of(72.0), (2, 1));
        assert_eq!(of(60.0), (1, 2), "an exact multiple leaves a whole one for the last");
        assert_eq!(service(1.0).of_size(1).unwrap().processes, 2);
    }
}
