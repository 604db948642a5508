//! The shared form: what other models of this GPU do, bent to the points of this one.
//!
//! Rule: ln(time of a batch) and ln(power) are one Gaussian process ([`crate::active`]) that expects what imagined and known
//! models do; the form is its mean after the points. Throughput is batch / time, total power is base(f) + dynamic power, at most
//! the cap. Latency is the time of a batch times its median factor, and from `SMOOTH_FROM` points on times a smooth correction.
//!
//! Cases: [`FEWEST`] points are enough. Without a base the process is over the power of the whole GPU, and
//! dynamic power is not predicted. Without known models the imagined ones are all that is expected.
//!
//! Not done: standard errors; the weights mean nothing by themselves.
//!
//! Source: [`crate::active`].

use serde::{Deserialize, Serialize};

use crate::active::{Figures, Function, Posterior};
use crate::base::{BasePower, median};
use crate::error::FitError;
use crate::fit::{Central, Context, too_few};
use crate::point::{Observation, Observations, Point};
use crate::power::{PowerOf, both_w};
use crate::residual::Residual;
use crate::variables::variables;

/// Fewest points for a fit.
pub const FEWEST: usize = 5;
/// Fewest points for a smooth correction of latency.
const SMOOTH_FROM: usize = 10;
/// Beyond e^±25 ms or W a surface says nothing; the bound keeps the answer finite.
const MOST_LN: f64 = 25.0;

/// The shared form of one model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Shared {
    /// ln(time of a batch in ms) and ln(power in W).
    pub surface: Function,
    /// What power it gives; absent where none was measured.
    pub power: Option<PowerOf>,
    /// Latency over time of a batch; absent where no latency was measured.
    pub latency_factor: Option<f64>,
    /// Correction of latency.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_residual: Option<Residual>,
    /// Power that the GPU does not exceed, W.
    pub cap_w: Option<f64>,
}

impl Shared {
    /// Fits what the observations have; throughput they must have.
    ///
    /// # Errors
    ///
    /// [`FitError::TooFewPoints`] below [`FEWEST`] points with a throughput, [`FitError::NoSolution`].
    pub fn fit(seen: &Observations, context: &Context<'_>) -> Result<Self, FitError> {
        Self::fit_from(FEWEST, seen, context)
    }

    /// The same from fewer points, for fits that leave one out.
    pub(crate) fn fit_from(
        fewest: usize,
        seen: &Observations,
        context: &Context<'_>,
    ) -> Result<Self, FitError> {
        let times = seen.points.iter().filter(|o| o.throughput.is_some()).count();
        if times < fewest {
            return Err(too_few(seen, "throughput", "shared", times, fewest));
        }
        let figures = Figures::new(context.base, context.cap_w);
        let no_solution = || FitError::NoSolution { model: seen.model.clone(), target: "surfaces" };
        let posterior = Posterior::new(context.expected(), &seen.points, &figures).ok_or_else(no_solution)?;
        let powers = seen.points.iter().filter(|o| figures.of(o)[1].is_some()).count();
        let mut shared = Self {
            surface: posterior.surface(),
            power: (powers > 0).then_some(figures.power),
            latency_factor: None,
            latency_residual: None,
            cap_w: context.cap_w,
        };
        let ratio = |o: &Observation| Some((o.point, o.latency_ms? / shared.own_time_ms(&o.point)?));
        let ratios: Vec<(Point, f64)> = seen.points.iter().filter_map(ratio).collect();
        if !ratios.is_empty() {
            let factor = median(&mut ratios.iter().map(|r| r.1).collect::<Vec<_>>());
            shared.latency_factor = Some(factor);
            let smooth = ratios.len() >= SMOOTH_FROM;
            let rest: Vec<_> = ratios.iter().map(|(point, r)| (*point, (r / factor).ln())).collect();
            shared.latency_residual = if smooth { Residual::fit(&rest) } else { None };
        }
        if shared.is_sound() { Ok(shared) } else { Err(no_solution()) }
    }

    /// Time of a batch in one of the point's processes.
    fn own_time_ms(&self, point: &Point) -> Option<f64> {
        Some(point.processes_count() * self.surface.at(point)?[0].clamp(-MOST_LN, MOST_LN).exp())
    }

    /// What the form says at a point; `None` for a MIG instance that does not exist. `base` is the one of the fit.
    pub fn at(&self, point: &Point, base: Option<&BasePower>) -> Option<Central> {
        let place = variables(point)?;
        let [time, power] = self.surface.at_place(point, &place)?.map(|v| v.clamp(-MOST_LN, MOST_LN).exp());
        let base_w = base.map(|b| b.at_w(point.frequency));
        let (average_w, dynamic_w) = both_w(self.power.map(|of| (of, power)), base_w, self.cap_w);
        let tail = self.latency_residual.as_ref().map_or(1.0, |r| r.factor_at(&place));
        let latency_ms = self.latency_factor.map(|factor| factor * tail * (point.processes_count() * time));
        Some(Central { average_w, dynamic_w, batch_time_ms: time, latency_ms })
    }

    pub(crate) fn is_sound(&self) -> bool {
        let positive = |v: Option<f64>| v.is_none_or(|v| v.is_finite() && v > 0.0);
        self.surface.is_sound()
            && positive(self.latency_factor)
            && positive(self.cap_w)
            && self.latency_residual.as_ref().is_none_or(Residual::is_sound)
    }
}
