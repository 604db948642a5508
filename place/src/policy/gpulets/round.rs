//! The round in which up to three models take turns in one gpulet.
//!
//! Rule: with round D each model runs a batch of at least r D requests a round, of those the smallest in the profile, with
//! Σ t ≤ D and D + t ≤ SLO for each. A longer round makes batches better filled and less of the time busy, until an SLO or a batch is
//! full; so only rounds that fill a batch of some model exactly are tried, shortened to what the SLOs allow. Of those that hold,
//! the one that leaves the most idle time.
//! Cases: no round holds: `None`.
//!
//! Source: GPUlets (ATC'22), time sharing of a gpulet. That full batches are enough: let D hold with batches b. D' = min b / r ≥ D has
//! the same batches, so min(D', SLO − t) ≥ D ≥ Σ t holds too.

use super::table::Row;

/// Relative difference that rounding may make of requests.
const ROUNDING: f64 = 1e-9;
/// Most models in a gpulet.
pub const MOST: usize = 3;

/// A model that wants to take turns.
#[derive(Clone, Debug)]
pub struct Wants {
    /// What it can run with the time of a batch, ms; batches ascending.
    pub rows: Vec<(Row, f64)>,
    /// Its SLO, ms.
    pub slo_ms: f64,
    /// Requests a second that it is to serve here.
    pub rate_rps: f64,
}

/// A round that holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Round {
    /// Its time, ms.
    pub round_ms: f64,
    /// What each model runs and the time of its batch, ms, in the order asked.
    pub rows: Vec<(Row, f64)>,
    /// The part of the time in which nothing runs.
    pub idle: f64,
}

/// The round of these models that leaves the most idle time; `fits` says whether rows fit in memory together.
pub fn best(models: &[Wants], fits: impl Fn(&[(Row, f64)]) -> bool) -> Option<Round> {
    let full_ms = |model: &Wants, row: &Row| 1e3 * f64::from(row.candidate.batch) / model.rate_rps;
    let mut best: Option<Round> = None;
    for tried_ms in models.iter().flat_map(|model| model.rows.iter().map(move |(row, _)| full_ms(model, row)))
    {
        let smallest = |model: &Wants| {
            let is_enough = |(row, _): &&(Row, f64)| full_ms(model, row) >= tried_ms * (1.0 - ROUNDING);
            model.rows.iter().find(is_enough).copied()
        };
        let Some(rows) = models.iter().map(smallest).collect::<Option<Vec<_>>>() else { continue };
        let in_time = models.iter().zip(&rows).map(|(model, (_, time_ms))| model.slo_ms - time_ms);
        let round_ms = in_time.fold(tried_ms, f64::min);
        let idle = 1.0 - rows.iter().map(|(_, time_ms)| time_ms).sum::<f64>() / round_ms;
        let better = best.as_ref().is_none_or(|best| idle > best.idle);
        if round_ms > 0.0 && idle >= 0.0 && better && fits(&rows) {
            best = Some(Round { round_ms, rows, idle });
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::candidate::{Candidate, Share, Uses};
    use proptest::prelude::*;

    fn wants(slo_ms: f64, rate_rps: f64, rows: &[(u32, f64)]) -> Wants {
        let row = |&(batch, time_ms): &(u32, f64)| {
            let candidate = Candidate {
                batch,
                share: Share::Slices(2),
                processes: 1,
                frequency_mhz: 1410,
                latency_ms: time_ms,
                throughput_rps: f64::from(batch) * 1e3 / time_ms,
                dynamic_w: 1.0,
                uses: Uses::default(),
            };
            (Row { candidate, time_ms }, time_ms)
        };
        Wants { rows: rows.iter().map(row).collect(), slo_ms, rate_rps }
    }

    #[test]
    fn a_round_is_as_long_as_the_slos_allow() {
        let rows = [(1, 10.0), (2, 14.0), (4, 22.0)];
        // 20 ms for each request of the first, 50 of the second: batches of 2 and 1 in 40 ms, 24 of them busy.
        let two = [wants(60.0, 50.0, &rows), wants(100.0, 20.0, &rows)];
        let round = best(&two, |_| true).unwrap();
        assert_eq!(round.round_ms, 40.0);
        assert_eq!(round.rows.iter().map(|(r, _)| r.candidate.batch).collect::<Vec<_>>(), [2, 1]);
        assert!((round.idle - 0.4).abs() < 1e-12);
        // Within 50 ms a round may take 36 with the batch of 2.
        let tight = [wants(50.0, 50.0, &rows), wants(100.0, 20.0, &rows)];
        assert_eq!(best(&tight, |_| true).unwrap().round_ms, 36.0);
        assert_eq!(best(&two, |rows| rows[0].0.candidate.batch == 1).unwrap().round_ms, 20.0);
        assert_eq!(best(&[wants(25.0, 50.0, &rows), two[1].clone()], |_| true), None);
    }

    proptest! {
        #[test]
        fn what_holds_holds_and_a_fine_grid_of_rounds_finds_no_other(
            models in proptest::collection::vec((10.0f64..200.0, 1.0f64..200.0, 0.5f64..20.0, 0.1f64..4.0), 1..=3),
        ) {
            let models: Vec<Wants> = models
                .into_iter()
                .map(|(slo_ms, rate_rps, once, each)| {
                    let rows = [1, 2, 4, 8, 16, 32].map(|b| (b, once + each * f64::from(b)));
                    wants(slo_ms, rate_rps, &rows)
                })
                .collect();
            let found = best(&models, |_| true);
            let holds = |round_ms: f64| {
                let enough = |m: &Wants| {
                    m.rows.iter().find(|(r, _)| f64::from(r.candidate.batch) * 1e3 / round_ms >= m.rate_rps).map(|r| r.1)
                };
                let times: Option<Vec<f64>> = models.iter().map(enough).collect();
                times.is_some_and(|t| {
                    t.iter().sum::<f64>() <= round_ms && models.iter().zip(&t).all(|(m, t)| round_ms + t <= m.slo_ms)
                })
            };
            if let Some(found) = &found {
                let sum_ms: f64 = found.rows.iter().map(|r| r.1).sum();
                prop_assert!(sum_ms <= found.round_ms * (1.0 + 1e-9));
                for (model, (row, time_ms)) in models.iter().zip(&found.rows) {
                    prop_assert!(found.round_ms + time_ms <= model.slo_ms * (1.0 + 1e-9));
                    let served_rps = f64::from(row.candidate.batch) * 1e3 / found.round_ms;
                    prop_assert!(served_rps >= model.rate_rps * (1.0 - 1e-6));
                }
            }
            prop_assert!(found.is_some() || !(1..4000).any(|step| holds(f64::from(step) * 0.05)));
        }
    }
}
