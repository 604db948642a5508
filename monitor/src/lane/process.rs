//! The process lane: which processes are on a GPU and what each did, once a second and at the end.
//!
//! Rule: the rows of one time are about the span since the rows before; a second without processes has no rows. It
//! shares the slow lane's thread, because its calls wait behind the energy counter as the slow sensors do.
//! Cases: a failed call is an event, and its span has no rows. At the end the rest of a second gets rows of its own
//! unless it is shorter than [`LEAST_US`].
//! Not done here: whose energy it was (`summary::attribution`).

use std::sync::Arc;

use gpumon_core::clock::Clock;
use gpumon_core::rows::{EventKind, ProcessRow, Record};
use gpumon_core::units::MonoUs;

use super::trouble::Trouble;
use super::{Flow, Grid, Lane, Outbox, Presence};
use crate::device::{Device, Process, ReadError};

/// Ticks a second.
const RATE_HZ: f64 = 1.0;
/// A rest shorter than this is not worth rows: the driver itself looks at processes a few times a second, µs.
const LEAST_US: i64 = 200_000;

/// Lists one GPU's processes.
pub struct ProcessLane {
    device: Arc<dyn Device>,
    gpu: i32,
    origin: MonoUs,
    grid: Grid,
    last: Option<MonoUs>,
    trouble: Trouble,
    presence: Arc<Presence>,
}

impl ProcessLane {
    /// A lane whose first tick is due at `origin`.
    pub fn new(device: Arc<dyn Device>, gpu: i32, origin: MonoUs, presence: Arc<Presence>) -> Self {
        let (grid, trouble) = (Grid::new(origin, RATE_HZ), Trouble::new(gpu, "process"));
        Self { device, gpu, origin, grid, last: None, trouble, presence }
    }

    fn sample(&mut self, now: MonoUs, out: &mut dyn Outbox) -> Result<(), ReadError> {
        let mono_us = now.since_us(self.origin);
        match self.device.processes() {
            Ok(processes) => {
                self.trouble.over(out);
                self.last = Some(now);
                for process in processes.list {
                    if let Some(row) = row(self.gpu, mono_us, process) {
                        out.put(Record::Process(Box::new(row)));
                    }
                }
            }
            Err(lost @ ReadError::Lost(_)) => return Err(lost),
            Err(e) => self.trouble.failed(mono_us, EventKind::ReadFailed, e.to_string(), out),
        }
        Ok(())
    }
}

/// A row; nothing for an id that no system gives.
fn row(gpu: i32, mono_us: i64, process: Process) -> Option<ProcessRow> {
    Some(ProcessRow {
        gpu,
        mono_us,
        pid: i32::try_from(process.pid).ok()?,
        name: process.name,
        mig_instance: process.mig_instance.and_then(|id| i32::try_from(id).ok()),
        sm_util_pct: process.sm_util_pct,
        mem_util_pct: process.mem_util_pct,
        mem_used_bytes: process.mem_used_bytes.and_then(|bytes| i64::try_from(bytes).ok()),
    })
}

impl Lane for ProcessLane {
    fn name(&self) -> &'static str {
        "process"
    }

    fn due(&self) -> MonoUs {
        self.grid.due()
    }

    fn tick(&mut self, clock: &dyn Clock, out: &mut dyn Outbox) -> Flow {
        let now = clock.mono();
        if self.grid.arrive(now).is_none() {
            return Flow::Continue;
        }
        if self.presence.is_away() {
            self.trouble.over(out);
            return Flow::Continue;
        }
        match self.sample(now, out) {
            Ok(()) => Flow::Continue,
            Err(e) => self.presence.suspect(e.to_string()),
        }
    }

    fn finish(&mut self, clock: &dyn Clock, end: MonoUs, out: &mut dyn Outbox) {
        if !self.presence.is_away() && self.last.is_some_and(|last| end.since_us(last) >= LEAST_US) {
            // Whether the GPU is lost, the other lanes say.
            let _ = self.sample(clock.mono(), out);
        }
        self.trouble.over(out);
    }
}
