//! A simulated GPU.
//!
//! Rule: clock and limit are set on the simulation itself. Its shares need nothing set up: a simulated model takes its
//! share itself.

use std::sync::Arc;

use gpumon_core::clock::Clock;
use gpumon_core::share::Share;
use gpumon_core::units::{Megahertz, Milliwatts, MonoUs};
use gpumon_monitor::device::sim::SimDevice;
use gpumon_simgpu::Change;

use super::{Seat, Stage, StageError};

/// Sets a simulated GPU.
pub struct SimStage {
    device: Arc<SimDevice>,
    clock: Arc<dyn Clock>,
    found: Milliwatts,
}

impl SimStage {
    /// The stage of this GPU.
    pub fn new(device: Arc<SimDevice>, clock: Arc<dyn Clock>) -> Self {
        let found = device.gpu().settings().limit;
        Self { device, clock, found }
    }

    fn apply(&self, change: Change) -> Result<(), StageError> {
        let now = MonoUs(self.clock.mono().since_us(self.device.opened()));
        self.device.gpu().apply(now, change).map(|_| ()).map_err(|e| StageError::Point(e.to_string()))
    }
}

impl Stage for SimStage {
    fn clock(&mut self, clock: Megahertz) -> Result<bool, StageError> {
        self.apply(Change::LockClocks(Some((clock, clock)))).map(|()| true)
    }

    fn limit(&mut self, limit_w: Option<u32>) -> Result<(), StageError> {
        let limit = limit_w.map_or(self.found, |w| Milliwatts(w.saturating_mul(1_000)));
        self.apply(Change::PowerLimit(limit))
    }

    fn seat(&mut self, share: Share) -> Result<Seat, StageError> {
        Ok(Seat { share, env: Vec::new() })
    }

    fn whole(&mut self) -> Result<Seat, StageError> {
        self.seat(Share::Mps(100))
    }

    fn seats_coexist(&self) -> bool {
        true
    }

    fn restore(&mut self) -> Result<(), StageError> {
        self.apply(Change::LockClocks(None))?;
        self.apply(Change::PowerLimit(self.found))
    }
}
