//! At which clock a model runs on a simulated GPU, and as which load level.
//!
//! Rule: the GPU's power law decides the clock from a load level, and the model decides the level from a clock; the
//! answer is the highest clock, up to the one asked for, on which both agree.
//! Cases: where the limit lies between two clocks, the law's clock is taken. A model that draws more than the GPU's
//! full load draws its full load, and so do several that run side by side: their powers add up, and all of them run at the one clock.

use std::sync::Arc;

use gpumon_core::share::Share;
use gpumon_core::units::{Megahertz, Milliwatts};

use super::SimModel;
use super::together::Tenant;
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

/// How several models run on a GPU side by side.
#[derive(Clone, Debug, PartialEq)]
pub struct Together {
    /// SM clock that all of them run at.
    pub clock: Megahertz,
    /// Power of all above idling with a context, W.
    pub dynamic_w: f64,
    /// Mean time of a batch of each, ms.
    pub times_ms: Vec<f64>,
    /// The load that draws so much.
    pub programme: Arc<Programme>,
}

impl Tenant {
    /// How these models run on `gpu` side by side, whose power limit is in force, with its clock locked to `asked`.
    pub fn settle(tenants: &[Self], gpu: &SimGpu, asked: Megahertz) -> Together {
        let law = PowerLaw::new(gpu.spec());
        let settings = Settings { locked: Some((asked, asked)), limit: gpu.settings().limit };
        let at = |sm: Megahertz| {
            let level = law.level_of(Self::measured(tenants, sm).dynamic_w, sm).min(1.0);
            let demand = Demand { level_ppm: (level * PPM).round() as u32, context: true };
            (demand, law.state(demand, &settings).clock)
        };
        let clocks = law.clocks();
        let allowed = clocks.partition_point(|clock| *clock <= asked).max(1);
        // A lower clock draws less, so what agrees at one agrees at all below it; the lowest is what is left.
        let agreeing = clocks.get(1..allowed).unwrap_or_default().partition_point(|c| at(*c).1 >= *c);
        let (demand, clock) = at(clocks.get(agreeing).copied().unwrap_or(asked));
        Together {
            clock,
            dynamic_w: law.dynamic_w(f64::from(demand.level_ppm) / PPM, clock),
            times_ms: Self::measured(tenants, clock).times_ms,
            programme: Arc::new(Programme { phases: Vec::new(), after: demand, repeat: false }),
        }
    }
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
