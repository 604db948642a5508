//! At which clock a model runs on a simulated GPU, and as which load level.
//!
//! Rule: the GPU's power law decides the clock from a load level, and the model decides the level from a clock; the
//! answer is the highest clock, up to the one asked for, on which both agree.
//! Cases: where the limit lies between two clocks, the law's clock is taken. A model that draws more than the GPU's
//! full load draws its full load.

use std::sync::Arc;

use gpumon_core::share::Share;
use gpumon_core::units::{Megahertz, Milliwatts};

use super::SimModel;
use crate::gpu::SimGpu;
use crate::law::{PowerLaw, Settings};
use crate::programme::{Demand, PPM, Programme};

/// How a model runs on a GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Operating {
    /// SM clock that it runs at.
    pub clock: Megahertz,
    /// Power above idling with a context, W.
    pub dynamic_w: f64,
    /// Mean time of a batch, ms.
    pub time_ms: f64,
    /// The load that draws so much, for [`Change::Load`](crate::Change::Load).
    pub programme: Arc<Programme>,
}

impl SimModel {
    /// How the model runs on `gpu`, whose power limit is in force, with its clock locked to `asked`.
    pub fn settle(&self, gpu: &SimGpu, batch: u32, share: Share, asked: Megahertz) -> Operating {
        let law = PowerLaw::new(gpu.spec());
        let limit: Milliwatts = gpu.settings().limit;
        let settings = Settings { locked: Some((asked, asked)), limit };
        let allowed = law.clocks().partition_point(|clock| *clock <= asked).max(1);
        let mut demand = Demand { level_ppm: 0, context: true };
        let mut clock = asked;
        for &candidate in law.clocks().iter().take(allowed).rev() {
            let level = law.level_of(self.dynamic_w(batch, share, candidate), candidate).min(1.0);
            demand.level_ppm = (level * PPM).round() as u32;
            clock = law.state(demand, &settings).clock;
            if clock >= candidate {
                break;
            }
        }
        Operating {
            clock,
            dynamic_w: law.dynamic_w(f64::from(demand.level_ppm) / PPM, clock),
            time_ms: self.time_ms(batch, share, clock),
            programme: Arc::new(Programme { phases: Vec::new(), after: demand, repeat: false }),
        }
    }
}
