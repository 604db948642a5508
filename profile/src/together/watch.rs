//! A set at work in phases that follow each other without a pause, as one model's ([`crate::phases`]).
//!
//! Rule: members are warm when all of them are; power and all batch times are of one span, which ends when all of them are known
//! well enough.
//! Cases: a set that is still not warm after the longest warm-up is measured all the same, and said. A set whose members end
//! before it was measured gave nothing.

use std::ops::ControlFlow;

use gpumon_core::clock::Clock;
use gpumon_core::units::{MonoUs, US_PER_S};
use gpumon_monitor::device::{Device, ReadError};

use crate::meter::{Measured, Meter};
use crate::phases::{Run, enough, us};
use crate::protocol::Protocol;
use crate::warmth::Warmth;

/// How often members tell and are looked at, µs.
pub(super) const TICK_US: i64 = US_PER_S / 20;

/// Follows a set through its phases.
pub(super) struct Watch<'a> {
    protocol: &'a Protocol,
    device: &'a dyn Device,
    clock: &'a dyn Clock,
    began: MonoUs,
    phase: Phase<'a>,
    settled: bool,
}

enum Phase<'a> {
    WarmUp(Vec<(Warmth, bool)>),
    Settle { until: MonoUs },
    Measure { meter: Box<Meter<'a>>, began: MonoUs, from: Vec<usize> },
    Done(Result<Vec<Run>, ReadError>),
}

impl<'a> Watch<'a> {
    /// Before the first batches of so many members.
    pub(super) fn new(
        protocol: &'a Protocol,
        device: &'a dyn Device,
        clock: &'a dyn Clock,
        members: usize,
    ) -> Self {
        let began = clock.mono();
        let phase = Phase::WarmUp((0..members).map(|_| (Warmth::new(began), false)).collect());
        Self { protocol, device, clock, began, phase, settled: true }
    }

    /// The longest that a set may take, µs.
    pub(super) fn limit_us(&self) -> i64 {
        let p = self.protocol;
        us(p.warmup_max_s + p.settle_s + p.stretch_max_s.max(p.measure_max_s))
    }

    /// Looks at the batches of each member so far, ms.
    pub(super) fn tick(&mut self, times_ms: &[Vec<f64>]) -> ControlFlow<()> {
        let (p, now) = (self.protocol, self.clock.mono());
        match &mut self.phase {
            Phase::WarmUp(warmths) => {
                for ((warmth, warm), times) in warmths.iter_mut().zip(times_ms) {
                    *warm |= warmth.is_warm(p, now, times);
                }
                let warm = warmths.iter().all(|(_, warm)| *warm);
                if warm || now.since_us(self.began) >= us(p.warmup_max_s) {
                    self.settled = warm;
                    self.phase = Phase::Settle { until: now.plus_us(us(p.settle_s)) };
                }
            }
            Phase::Settle { until } => {
                if now >= *until {
                    let meter = Box::new(Meter::start(self.device, self.clock));
                    let (began, from) = (self.clock.mono(), times_ms.iter().map(Vec::len).collect());
                    self.phase = Phase::Measure { meter, began, from };
                }
            }
            Phase::Measure { meter, began, from } => {
                meter.tick();
                let span_s = now.since_us(*began) as f64 / US_PER_S as f64;
                let known = |(times, from): (&Vec<f64>, &usize)| {
                    enough(p, span_s, times.get(*from..).unwrap_or_default(), meter)
                };
                if times_ms.iter().zip(from.iter()).all(known) {
                    self.close(times_ms);
                }
            }
            Phase::Done(_) => {}
        }
        match self.phase {
            Phase::Done(_) => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    }

    /// A run a member; the inner error says why the set gave none.
    pub(super) fn finish(self) -> Result<Result<Vec<Run>, String>, ReadError> {
        match self.phase {
            Phase::Done(runs) => runs.map(Ok),
            Phase::WarmUp(_) => Ok(Err("a member ended before it was warm".into())),
            _ => Ok(Err("a member ended while the set was measured".into())),
        }
    }

    fn close(&mut self, times_ms: &[Vec<f64>]) {
        let placeholder = Phase::Settle { until: self.began };
        let settled = self.settled;
        self.phase = match std::mem::replace(&mut self.phase, placeholder) {
            Phase::Measure { meter, from, .. } => Phase::Done(meter.finish().map(|measured: Measured| {
                let run = |(times, from): (&Vec<f64>, usize)| Run {
                    times_ms: times.get(from..).unwrap_or_default().to_vec(),
                    measured: measured.clone(),
                    settled,
                };
                times_ms.iter().zip(from).map(run).collect()
            })),
            other => other,
        };
    }
}
