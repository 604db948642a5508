//! One run of a point, in phases that follow each other without a pause.
//!
//! ```text
//! warm up: blocks of batches until two blocks' medians agree → settle → measure until it is known well enough
//! ```
//!
//! Rule: the workload runs once, and what it is doing is told by the clock: at each tick the phase looks at the batches so
//! far and at the time. Measuring ends when the 95 % intervals of mean power and of mean batch time are both narrow enough,
//! not before its shortest and not after its longest time; a point without enough batches goes on until it has them or a
//! bound is reached. The meter is closed while the GPU still works, so that no idle end gets into the mean.
//! Cases: a latency that does not settle in time is measured all the same, and said; power that nothing reads does not
//! hold up the end.
//! Not done here: what the result is worth ([`crate::judge`]).

use std::ops::ControlFlow;

use gpumon_core::clock::Clock;
use gpumon_core::units::{MonoUs, US_PER_S};
use gpumon_monitor::device::{Device, ReadError};

use crate::interval::Mean;
use crate::meter::{Measured, Meter};
use crate::protocol::Protocol;
use crate::warmth::Warmth;

/// What a run gave.
pub struct Run {
    /// Times of the batches within the measurement, ms.
    pub times_ms: Vec<f64>,
    /// What the sensors said meanwhile.
    pub measured: Measured,
    /// Whether latency had settled before.
    pub settled: bool,
}

/// Follows a run through its phases.
pub struct Phases<'a> {
    protocol: &'a Protocol,
    device: &'a dyn Device,
    clock: &'a dyn Clock,
    began: MonoUs,
    phase: Phase<'a>,
    settled: bool,
}

enum Phase<'a> {
    WarmUp(Warmth),
    Settle { until: MonoUs },
    Measure { meter: Meter<'a>, began: MonoUs, from: usize },
    Done { measured: Result<Measured, ReadError>, from: usize, to: usize },
}

impl<'a> Phases<'a> {
    /// Before the first batch.
    pub fn new(protocol: &'a Protocol, device: &'a dyn Device, clock: &'a dyn Clock) -> Self {
        let began = clock.mono();
        let phase = Phase::WarmUp(Warmth::new(began));
        Self { protocol, device, clock, began, phase, settled: true }
    }

    /// The longest that a run may take, µs.
    pub fn limit_us(&self) -> i64 {
        let p = self.protocol;
        us(p.warmup_max_s + p.settle_s + p.stretch_max_s.max(p.measure_max_s))
    }

    /// Looks at the batches so far.
    pub fn tick(&mut self, times_ms: &[f64]) -> ControlFlow<()> {
        let (p, now) = (self.protocol, self.clock.mono());
        match &mut self.phase {
            Phase::WarmUp(warmth) => {
                let warm = warmth.is_warm(p, now, times_ms);
                if warm || now.since_us(self.began) >= us(p.warmup_max_s) {
                    self.settled = warm;
                    self.phase = Phase::Settle { until: now.plus_us(us(p.settle_s)) };
                }
            }
            Phase::Settle { until } => {
                if now >= *until {
                    let meter = Meter::start(self.device, self.clock);
                    self.phase = Phase::Measure { meter, began: now, from: times_ms.len() };
                }
            }
            Phase::Measure { meter, began, from } => {
                meter.tick();
                let span_s = now.since_us(*began) as f64 / US_PER_S as f64;
                let batches = times_ms.get(*from..).unwrap_or_default();
                if enough(p, span_s, batches, meter) {
                    self.close(times_ms.len());
                    return ControlFlow::Break(());
                }
            }
            Phase::Done { .. } => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(())
    }

    /// The run is over; what it gave.
    pub fn finish(mut self, times_ms: &[f64]) -> Result<Run, ReadError> {
        if !matches!(self.phase, Phase::Done { .. }) {
            self.close(times_ms.len());
        }
        let settled = self.settled;
        match self.phase {
            Phase::Done { measured, from, to } => {
                let times_ms = times_ms.get(from..to).unwrap_or_default().to_vec();
                Ok(Run { times_ms, measured: measured?, settled })
            }
            _ => Ok(Run { times_ms: Vec::new(), measured: Measured::default(), settled }),
        }
    }

    fn close(&mut self, to: usize) {
        let placeholder = Phase::Settle { until: self.began };
        self.phase = match std::mem::replace(&mut self.phase, placeholder) {
            Phase::Measure { meter, from, .. } => Phase::Done { measured: meter.finish(), from, to },
            // The workload ended before measuring began.
            _ => Phase::Done { measured: Ok(Measured::default()), from: to, to },
        };
    }
}

/// Whether a measurement can end.
pub(crate) fn enough(p: &Protocol, span_s: f64, batches: &[f64], meter: &Meter) -> bool {
    if span_s < p.measure_min_s {
        return false;
    }
    if batches.len() < p.min_batches {
        return span_s >= p.stretch_max_s;
    }
    let known = |mean: Option<Mean>| mean.is_none_or(|m| m.relative() <= p.precision);
    span_s >= p.measure_max_s || (known(Mean::of(batches)) && known(meter.power()))
}

/// The smallest value that at least this share of the values does not exceed; NaN of none.
pub(crate) fn percentile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = ((share * sorted.len() as f64).ceil() as usize).max(1);
    sorted.get(rank - 1).copied().unwrap_or(f64::NAN)
}

pub(crate) fn us(seconds: f64) -> i64 {
    (seconds * US_PER_S as f64).round() as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!((percentile(&values, 0.5), percentile(&values, 0.99)), (50.0, 99.0));
        assert_eq!(percentile(&[3.0], 0.99), 3.0);
    }
}
