//! The load of a simulated GPU: its programme is replaced, so edges lie exactly where they were asked for.

use std::sync::Arc;

use gpumon_core::units::MonoUs;
use gpumon_simgpu::{Change, Phase as SimPhase, Programme};

use super::{LoadError, SquareLoad, Switched, edges};
use crate::characterize::phases::Phase;
use crate::device::sim::SimDevice;

/// Share of the full load: below the power limit of the built-in GPUs.
const LEVEL: f64 = 0.55;

/// Switches a simulated GPU's load.
pub struct SimLoad {
    device: Arc<SimDevice>,
    switched: Vec<Switched>,
}

impl SimLoad {
    /// The load of this GPU.
    pub fn new(device: Arc<SimDevice>) -> Self {
        Self { device, switched: Vec::new() }
    }

    fn run(&self, at: MonoUs, phases: &[SimPhase]) -> Result<(), LoadError> {
        let programme = Programme::steps(phases, false).map_err(|e| LoadError::Simulated(e.to_string()))?;
        let at = MonoUs(at.since_us(self.device.opened()));
        let changed = self.device.gpu().apply(at, Change::Load(Arc::new(programme)));
        changed.map(|_| ()).map_err(|e| LoadError::Simulated(e.to_string()))
    }
}

impl SquareLoad for SimLoad {
    fn name(&self) -> String {
        "simulated".into()
    }

    fn prepare(&mut self) -> Result<(), LoadError> {
        let opened = self.device.opened();
        self.run(opened, &[SimPhase { duration_us: 1, level: 0.0, context: true }])
    }

    fn start(&mut self, at: MonoUs, phases: &[Phase]) -> Result<(), LoadError> {
        let level = |on| if on { LEVEL } else { 0.0 };
        let steps = phases.iter().map(|p| SimPhase { duration_us: p.us, level: level(p.on), context: true });
        self.switched = edges(at, phases).0;
        self.run(at, &steps.collect::<Vec<_>>())
    }

    fn finish(&mut self) -> Result<Vec<Switched>, LoadError> {
        Ok(std::mem::take(&mut self.switched))
    }

    fn stop(&mut self) {}
}
