//! The physical form: time of a batch from launching, computing and memory; power from rate, share and clock.
//!
//! Rule: [`BatchTime`] gives the time of a batch, throughput is batch / time, [`Power`] gives dynamic power from the
//! time that the model itself predicts, total power is base(f) + dynamic power, at most the cap. Latency is the time
//! of a batch times one factor: the median of latency over time.
//!
//! Cases: a profile without power columns gives times only; one without a base gives average power only.
//!
//! Not done: latency's own dependence on load and batch; the factor is one number a model.
//!
//! Source: [`crate::batch_time`] and [`crate::power`].

use serde::{Deserialize, Serialize};

use crate::base::{BasePower, median};
use crate::batch_time::BatchTime;
use crate::error::FitError;
use crate::fit::{Central, too_few};
use crate::point::{Observation, Observations, Point};
use crate::power::{self, Power, PowerOf, PowerPoint};

/// Fewest points for a fit: as many as the time has coefficients.
pub const FEWEST: usize = 10;

/// The physical form of one model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Physical {
    /// Time of a batch.
    pub batch_time: BatchTime,
    /// Latency over time of a batch; absent where no latency was measured.
    pub latency_factor: Option<f64>,
    /// Power above the base, or of the whole GPU.
    pub power: Option<Power>,
    /// Power that the GPU does not exceed, W.
    pub cap_w: Option<f64>,
}

impl Physical {
    /// Fits what the observations have; throughput they must have.
    ///
    /// # Errors
    ///
    /// [`FitError::TooFewPoints`] below [`FEWEST`] points with a throughput, [`FitError::NoSolution`].
    pub fn fit(seen: &Observations, base: Option<&BasePower>, cap_w: Option<f64>) -> Result<Self, FitError> {
        let times: Vec<(Point, f64)> =
            seen.points.iter().filter_map(|o| Some((o.point, o.batch_time_ms()?))).collect();
        if times.len() < FEWEST {
            return Err(too_few(seen, "throughput", "physical", times.len(), FEWEST));
        }
        let no_solution = |target| FitError::NoSolution { model: seen.model.clone(), target };
        let batch_time = BatchTime::fit(&times)
            .filter(BatchTime::is_sound)
            .ok_or_else(|| no_solution("time of a batch"))?;
        let mut factors: Vec<f64> =
            seen.points.iter().filter_map(|o| Some(o.latency_ms? / o.batch_time_ms()?)).collect();
        let latency_factor = (!factors.is_empty()).then(|| median(&mut factors));
        let of = if base.is_some() { PowerOf::Dynamic } else { PowerOf::Average };
        let points: Vec<PowerPoint> =
            seen.points.iter().filter_map(|o| power_point(o, base, &batch_time)).collect();
        let power = match points.len() {
            0 => None,
            n if n < FEWEST => return Err(too_few(seen, "power", "physical", n, FEWEST)),
            _ => Some(Power::fit(&points, of, cap_w).ok_or_else(|| no_solution("power"))?),
        };
        let physical = Self { batch_time, latency_factor, power, cap_w };
        if physical.is_sound() { Ok(physical) } else { Err(no_solution("power")) }
    }

    /// What the form says at a point; `None` for a MIG instance that does not exist. `base` is the one of the fit.
    pub fn at(&self, point: &Point, base: Option<&BasePower>) -> Option<Central> {
        let batch_time_ms = self.batch_time.at_ms(point)?;
        let base_w = base.map(|b| b.at_w(point.frequency));
        let cap = self.cap_w.unwrap_or(f64::INFINITY);
        let power_w = self.power.as_ref().map(|p| (p.of, p.at_w(point, batch_time_ms)));
        let (average_w, dynamic_w) = match (power_w, base_w) {
            (Some((PowerOf::Dynamic, w)), Some(base)) => {
                let w = w.min((cap - base).max(0.0));
                (Some(base + w), Some(w))
            }
            (Some((PowerOf::Dynamic, w)), None) => (None, Some(w)),
            (Some((PowerOf::Average, w)), _) => (Some(w.min(cap)), None),
            (None, _) => (None, None),
        };
        let latency_ms = self.latency_factor.map(|factor| factor * batch_time_ms);
        Some(Central { average_w, dynamic_w, batch_time_ms, latency_ms })
    }

    pub(crate) fn is_sound(&self) -> bool {
        let positive = |v: Option<f64>| v.is_none_or(|v| v.is_finite() && v > 0.0);
        let power = |p: &Power| p.ln_watts.is_over(&power::VARIABLES) && positive(p.knee_mhz);
        self.batch_time.is_sound()
            && positive(self.latency_factor)
            && positive(self.cap_w)
            && self.power.as_ref().is_none_or(power)
    }
}

/// Dynamic power is the column's, or average power minus the base; without a base it is average power.
fn power_point(o: &Observation, base: Option<&BasePower>, time: &BatchTime) -> Option<PowerPoint> {
    let batch_time_ms = time.at_ms(&o.point)?;
    let base_w = base.map(|b| b.at_w(o.point.frequency));
    let power_w = match base_w {
        Some(base) => o.dynamic_w.or_else(|| Some(o.average_w? - base)).filter(|w| *w > 0.0)?,
        None => o.average_w?,
    };
    let total_w = o.average_w.or_else(|| Some(base_w? + power_w))?;
    Some(PowerPoint { point: o.point, batch_time_ms, power_w, total_w })
}
