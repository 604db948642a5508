//! The two figures of the process, as an observation has them.
//!
//! Rule: ln(time of a batch in ms) and ln(power in W). Power is what is above the base, or that of the whole GPU
//! where no base is known.
//!
//! Cases: a point at the power cap tells its time only.

use crate::base::BasePower;
use crate::point::Observation;
use crate::power::{AT_CAP, PowerOf};

/// Noise of ln(time) and ln(power) of one measurement.
pub(crate) const NOISE: [f64; 2] = [0.01, 0.02];

/// What is needed to tell the figures of an observation.
#[derive(Clone, Debug)]
pub(crate) struct Figures {
    pub(crate) base: Option<BasePower>,
    pub(crate) cap_w: Option<f64>,
    pub(crate) power: PowerOf,
}

impl Figures {
    /// Of power above the base where that is known, of the whole GPU's otherwise.
    pub(crate) fn new(base: Option<&BasePower>, cap_w: Option<f64>) -> Self {
        let power = if base.is_some() { PowerOf::Dynamic } else { PowerOf::Average };
        Self { base: base.cloned(), cap_w, power }
    }

    /// Both, where the observation has them.
    pub(crate) fn of(&self, o: &Observation) -> [Option<f64>; 2] {
        let base_w = self.base.as_ref().map(|b| b.at_w(o.point.frequency));
        let below = self.cap_w.is_none_or(|cap| o.average_w.is_none_or(|w| w < AT_CAP * cap));
        let power_w = match self.power {
            PowerOf::Dynamic => o.dynamic_w.or_else(|| Some(o.average_w? - base_w?)),
            PowerOf::Average => o.average_w,
        };
        [o.batch_time_ms().map(f64::ln), power_w.filter(|w| below && *w > 0.0).map(f64::ln)]
    }
}
