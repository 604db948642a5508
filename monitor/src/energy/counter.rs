//! A window's energy from the driver's counter.
//!
//! Rule: the counter moves in steps, each 100 ms on the GPUs known, so a value counts energy up to some moment in the
//! step before its call; where in that step is unknown, so half a step is taken off each reading's time, and the time
//! between that and the window's edge is filled at the power there. Two readings that lie d steps apart share part of
//! their error: with f the fraction of d, the correlation of their ages is ρ = 1 − 6·f·(1 − f) (two phases of one
//! grid, its beginning uniform), as long as the grid's period is known well enough for d.
//!
//! Cases: readings further than 200 ms from the edges, or of two epochs, say nothing. A counter call takes up to
//! 17 ms; the value belongs to the call's beginning.
//! Not done here: errors of the counter's gain.
//! Source: docs/simulated-gpu.md for steps and call times; the correlation is elementary.

use gpumon_core::rows::CounterRow;

use super::Shown;
use super::timing::Timing;

/// Readings this close to an edge count as read at it, µs.
const NEAR_US: i64 = 200_000;
/// Steps over which the grid of a characterised counter keeps its phase.
const IN_PHASE: f64 = 50.0;

/// What the counter says about a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct CounterEstimate {
    /// Energy, J.
    pub(super) j: f64,
    /// Variance, J².
    pub(super) variance: f64,
    /// How many of its steps lie between the readings.
    pub(super) steps: f64,
}

#[derive(Clone, Copy, Debug)]
struct Read {
    /// When the call began, µs.
    at_us: i64,
    energy_mj: i64,
    epoch: i32,
}

/// Finds the readings nearest to a window's edges.
#[derive(Clone, Debug)]
pub(super) struct CounterSpan {
    edges_us: [i64; 2],
    nearest: [Option<Read>; 2],
    step_s: f64,
    known: bool,
}

impl CounterSpan {
    pub(super) fn new(from_us: i64, to_us: i64, timing: &Timing) -> Self {
        let (step_s, known) = (timing.counter_s, timing.counter_known);
        Self { edges_us: [from_us, to_us], nearest: [None; 2], step_s, known }
    }

    pub(super) fn add(&mut self, row: &CounterRow) {
        let at_us = row.mono_us - i64::from(row.call_us);
        let read = Read { at_us, energy_mj: row.energy_mj, epoch: row.epoch };
        for (edge_us, nearest) in self.edges_us.into_iter().zip(&mut self.nearest) {
            if nearest.is_none_or(|known| (at_us - edge_us).abs() < (known.at_us - edge_us).abs()) {
                *nearest = Some(read);
            }
        }
    }

    /// The difference, corrected to the window at the power that another sensor shows at its edges, or its own mean
    /// power.
    pub(super) fn energy(&self, shown: Option<Shown>) -> Option<CounterEstimate> {
        let [Some(first), Some(last)] = self.nearest else { return None };
        let near = |read: Read, edge_us: i64| (read.at_us - edge_us).abs() <= NEAR_US;
        let apart_s = (last.at_us - first.at_us) as f64 / 1e6;
        let [from_us, to_us] = self.edges_us;
        if first.epoch != last.epoch || apart_s <= 0.0 || !near(first, from_us) || !near(last, to_us) {
            return None;
        }
        let drawn_j = (last.energy_mj - first.energy_mj) as f64 / 1e3;
        let mean_w = drawn_j / apart_s;
        let [first_w, last_w] = shown.map_or([mean_w; 2], |s| s.edges_w);
        // What a reading counts ends half a step before its call, on average.
        let short_s = |read: Read, edge_us: i64| (edge_us - read.at_us) as f64 / 1e6 + self.step_s / 2.0;
        let j = drawn_j + last_w * short_s(last, to_us) - first_w * short_s(first, from_us);
        let steps = apart_s / self.step_s;
        let fraction = steps.fract();
        let together =
            if self.known && steps < IN_PHASE { 1.0 - 6.0 * fraction * (1.0 - fraction) } else { 0.0 };
        let variance = self.step_s * self.step_s / 12.0
            * (first_w * first_w + last_w * last_w - 2.0 * together * first_w * last_w);
        // Power within a step before an edge is not the power at the edge: it differs as it does about the window, and
        // by a tenth at the least.
        let other_w2 = shown.map_or(0.0, |s| s.variance_w2).max((0.1 * mean_w).powi(2));
        let unsteady = 2.0 * self.step_s * self.step_s / 12.0 * other_w2;
        Some(CounterEstimate { j: j.max(0.0), variance: variance + unsteady, steps })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(mono_us: i64, energy_mj: i64, epoch: i32) -> CounterRow {
        CounterRow { gpu: 0, mono_us, call_us: 5_000, energy_mj, epoch }
    }

    fn span(rows: &[CounterRow]) -> Option<CounterEstimate> {
        let mut span = CounterSpan::new(0, 10_000_000, &Timing::default());
        rows.iter().for_each(|row| span.add(row));
        span.energy(None)
    }

    #[test]
    fn the_counter_speaks_only_for_spans_whose_edges_it_saw() {
        let whole = span(&[read(5_000, 1_000_000, 0), read(10_005_000, 3_000_000, 0)]);
        let whole = whole.unwrap();
        assert!((whole.j - 2_000.0).abs() < 1e-6);
        // Two ages of 0 to 100 ms at 200 W: 200 W × 100 ms / √12 × √2, and a tenth of it.
        assert!((whole.variance.sqrt() - 20.0 / 6f64.sqrt() * 1.01f64.sqrt()).abs() < 1e-9);
        assert_eq!(span(&[read(5_000_000, 1, 0), read(10_000_000, 2, 0)]), None);
        assert_eq!(span(&[read(0, 5, 0), read(10_000_000, 2, 1)]), None, "never across epochs");
        assert_eq!(span(&[read(5_000, 7, 0)]), None);
    }

    #[test]
    fn time_to_the_edges_is_filled_at_the_power_there() {
        // 100 W at first, 300 W later; the first reading 50 ms late, the second 100 ms early.
        let mut span = CounterSpan::new(0, 10_000_000, &Timing::default());
        span.add(&read(55_000, 0, 0));
        span.add(&read(9_905_000, 2_000_000, 0));
        let energy = span.energy(Some(Shown { edges_w: [100.0, 300.0], variance_w2: 1.0 })).unwrap();
        assert!((energy.j - (2_000.0 + 300.0 * 0.15 - 100.0 * 0.0)).abs() < 1e-6, "{energy:?}");
    }
}
