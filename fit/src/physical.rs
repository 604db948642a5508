//! The physical form: time of a batch from launching, computing and memory; power from rate, share and clock.
//!
//! Rule: [`BatchTime`] gives the time of a batch, throughput is batch / time, [`Power`] gives dynamic power from the
//! time that the model itself predicts, total power is base(f) + dynamic power, at most the cap. Latency is the time
//! of a batch times one factor: the median of latency over time.
//!
//! In the corrected form, time, latency and power are each multiplied by a smooth [`Residual`], and power is fitted on the
//! corrected time.
//!
//! Cases: a profile without power columns gives times only; one without a base gives average power only.
//!
//! Not done: latency under load; the factor is one number a model, and the correction knows batch, share and clock.
//!
//! Source: [`crate::batch_time`] and [`crate::power`].

use serde::{Deserialize, Serialize};

use crate::base::{BasePower, median};
use crate::batch_time::BatchTime;
use crate::error::FitError;
use crate::fit::{Central, too_few};
use crate::point::{Observation, Observations, Point};
use crate::power::{self, Power, PowerOf, PowerPoint};
use crate::residual::Residual;
use crate::variables::variables;

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
    /// Correction of the time of a batch; only in the corrected form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_residual: Option<Residual>,
    /// Correction of latency; only in the corrected form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_residual: Option<Residual>,
    /// Correction of [`Physical::power`]; only in the corrected form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_residual: Option<Residual>,
}

impl Physical {
    /// Fits what the observations have; throughput they must have. `corrected` adds the smooth corrections.
    ///
    /// # Errors
    ///
    /// [`FitError::TooFewPoints`] below [`FEWEST`] points with a throughput, [`FitError::NoSolution`].
    pub fn fit(
        seen: &Observations,
        base: Option<&BasePower>,
        cap_w: Option<f64>,
        corrected: bool,
    ) -> Result<Self, FitError> {
        Self::fit_with(&Self::batch_time(seen)?, seen, base, cap_w, corrected)
    }

    /// The time of a batch, the part that is the same with and without corrections.
    pub(crate) fn batch_time(seen: &Observations) -> Result<BatchTime, FitError> {
        let times = times(seen);
        if times.len() < FEWEST {
            return Err(too_few(seen, "throughput", "physical", times.len(), FEWEST));
        }
        let no_solution = || FitError::NoSolution { model: seen.model.clone(), target: "time of a batch" };
        BatchTime::fit(&times).filter(BatchTime::is_sound).ok_or_else(no_solution)
    }

    /// The fit with the time of a batch of the same observations.
    pub(crate) fn fit_with(
        batch_time: &BatchTime,
        seen: &Observations,
        base: Option<&BasePower>,
        cap_w: Option<f64>,
        corrected: bool,
    ) -> Result<Self, FitError> {
        let (batch_time, times) = (batch_time.clone(), times(seen));
        let no_solution = |target| FitError::NoSolution { model: seen.model.clone(), target };
        let mut factors: Vec<f64> =
            seen.points.iter().filter_map(|o| Some(o.latency_ms? / o.own_time_ms()?)).collect();
        let latency_factor = (!factors.is_empty()).then(|| median(&mut factors));
        let time_residual = if corrected { time_residual(&times, &batch_time) } else { None };
        let time_at = |point: &Point| corrected_time(point, &batch_time, time_residual.as_ref());
        let latency_residual = latency_factor.filter(|_| corrected).and_then(|factor| {
            let own_ms = |point: &Point| Some(point.processes_count() * time_at(point)?);
            let ratio =
                |o: &Observation| Some((o.point, (o.latency_ms? / (factor * own_ms(&o.point)?)).ln()));
            Residual::fit(&seen.points.iter().filter_map(ratio).collect::<Vec<_>>())
        });
        let of = if base.is_some() { PowerOf::Dynamic } else { PowerOf::Average };
        let points: Vec<PowerPoint> =
            seen.points.iter().filter_map(|o| power_point(o, base, time_at(&o.point)?)).collect();
        let power = match points.len() {
            0 => None,
            n if n < FEWEST => return Err(too_few(seen, "power", "physical", n, FEWEST)),
            _ => Some(Power::fit(&points, of, cap_w).ok_or_else(|| no_solution("power"))?),
        };
        let power_residual =
            power.as_ref().filter(|_| corrected).and_then(|p| power_residual(&points, p, cap_w));
        let physical = Self {
            batch_time,
            latency_factor,
            power,
            cap_w,
            time_residual,
            latency_residual,
            power_residual,
        };
        if physical.is_sound() { Ok(physical) } else { Err(no_solution("power")) }
    }

    /// What the form says at a point; `None` for a MIG instance that does not exist. `base` is the one of the fit.
    pub fn at(&self, point: &Point, base: Option<&BasePower>) -> Option<Central> {
        let residuals = [&self.time_residual, &self.latency_residual, &self.power_residual];
        let [time, latency, power] = if residuals.iter().any(|r| r.is_some()) {
            let place = variables(point)?;
            residuals.map(|r| r.as_ref().map_or(1.0, |r| r.factor_at(&place)))
        } else {
            [1.0; 3]
        };
        let batch_time_ms = self.batch_time.at_ms(point)? * time;
        let base_w = base.map(|b| b.at_w(point.frequency));
        let power_w = self.power.as_ref().map(|p| (p.of, power * p.at_w(point, batch_time_ms)));
        let (average_w, dynamic_w) = power::both_w(power_w, base_w, self.cap_w);
        let latency_ms =
            self.latency_factor.map(|factor| factor * latency * (point.processes_count() * batch_time_ms));
        Some(Central { average_w, dynamic_w, batch_time_ms, latency_ms })
    }

    pub(crate) fn is_sound(&self) -> bool {
        let positive = |v: Option<f64>| v.is_none_or(|v| v.is_finite() && v > 0.0);
        let power = |p: &Power| p.ln_watts.is_over(&power::VARIABLES) && positive(p.knee_mhz);
        self.batch_time.is_sound()
            && positive(self.latency_factor)
            && positive(self.cap_w)
            && self.power.as_ref().is_none_or(power)
            && [&self.time_residual, &self.latency_residual, &self.power_residual]
                .into_iter()
                .flatten()
                .all(Residual::is_sound)
    }
}

fn times(seen: &Observations) -> Vec<(Point, f64)> {
    seen.points.iter().filter_map(|o| Some((o.point, o.batch_time_ms()?))).collect()
}

fn corrected_time(point: &Point, time: &BatchTime, residual: Option<&Residual>) -> Option<f64> {
    Some(time.at_ms(point)? * residual.map_or(Some(1.0), |r| r.factor(point))?)
}

fn time_residual(times: &[(Point, f64)], time: &BatchTime) -> Option<Residual> {
    let ratio = |(point, ms): &(Point, f64)| Some((*point, (ms / time.at_ms(point)?).ln()));
    Residual::fit(&times.iter().map(ratio).collect::<Option<Vec<_>>>()?)
}

fn power_residual(points: &[PowerPoint], power: &Power, cap_w: Option<f64>) -> Option<Residual> {
    let ratio = |p: &PowerPoint| (p.point, (p.power_w / power.at_w(&p.point, p.batch_time_ms)).ln());
    Residual::fit(&points.iter().filter(|p| power::below_cap(p, cap_w)).map(ratio).collect::<Vec<_>>())
}

/// Dynamic power is the column's, or average power minus the base; without a base it is average power.
fn power_point(o: &Observation, base: Option<&BasePower>, batch_time_ms: f64) -> Option<PowerPoint> {
    let base_w = base.map(|b| b.at_w(o.point.frequency));
    let power_w = match base_w {
        Some(base) => o.dynamic_w.or_else(|| Some(o.average_w? - base)).filter(|w| *w > 0.0)?,
        None => o.average_w?,
    };
    let total_w = o.average_w.or_else(|| Some(base_w? + power_w))?;
    Some(PowerPoint { point: o.point, batch_time_ms, power_w, total_w })
}
