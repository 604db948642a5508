//! Failures as data: the same failure in a row is one event with its span and count.

use gpumon_core::rows::{EventKind, EventRow};

use super::Outbox;

/// A run of one sensor's failures that has not ended yet.
#[derive(Debug)]
struct Run {
    kind: EventKind,
    detail: String,
    from_us: i64,
    to_us: i64,
    count: i64,
}

/// Collects the failures of one sensor.
#[derive(Debug)]
pub(super) struct Trouble {
    gpu: i32,
    sensor: &'static str,
    run: Option<Run>,
}

impl Trouble {
    pub(super) fn new(gpu: i32, sensor: &'static str) -> Self {
        Self { gpu, sensor, run: None }
    }

    /// Notes a failure at `now_us`.
    pub(super) fn failed(&mut self, now_us: i64, kind: EventKind, detail: String, out: &mut dyn Outbox) {
        match &mut self.run {
            Some(run) if run.kind == kind && run.detail == detail => {
                run.to_us = now_us;
                run.count += 1;
            }
            _ => {
                self.over(out);
                self.run = Some(Run { kind, detail, from_us: now_us, to_us: now_us, count: 1 });
            }
        }
    }

    /// Notes that the sensor answered, or that nobody will ask it again.
    pub(super) fn over(&mut self, out: &mut dyn Outbox) {
        if let Some(run) = self.run.take() {
            let event = EventRow {
                name: Some(self.sensor.into()),
                from_us: Some(run.from_us),
                to_us: Some(run.to_us),
                count: Some(run.count),
                detail: Some(run.detail),
                ..EventRow::new(run.to_us, Some(self.gpu), run.kind)
            };
            out.put(event.into());
        }
    }
}
