//! What a fitted model says about a point, with how sure it is.
//!
//! Rule: the central values come from the form; each is multiplied by the two factors of the model's intervals for
//! the low and the high end of a 90 % interval. Throughput is batch / time of a batch, that of all processes of the share together.
//!
//! Cases: an interval of power ends at the power cap of the fit. Outside the ranges of the fit the answer is given and marked `extrapolated`; its interval says nothing about
//! the distance. A figure that was never measured is absent, and so are the ends where no point could be held out.

use serde::{Deserialize, Serialize};

use crate::base::BasePower;
use crate::error::PredictError;
use crate::model_file::ModelFile;
use crate::models::Model;
use crate::point::{Point, Share};

/// A value with its 90 % interval, in the unit of its figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Central value.
    pub value: f64,
    /// 5 % of measurements lie below; absent if no point was held out.
    pub low: Option<f64>,
    /// 5 % of measurements lie above.
    pub high: Option<f64>,
}

/// What a model says about a point.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// Mean power of the whole GPU with this model alone on it, W.
    pub avg_power_draw: Option<Interval>,
    /// Power above the base, W.
    pub dynamic_power_draw: Option<Interval>,
    /// Items a second.
    pub throughput: Interval,
    /// Latency of a batch, ms.
    pub latency: Option<Interval>,
    /// 99th percentile of the time of a batch, ms, where the profile has it.
    pub latency_p99: Option<Interval>,
    /// Whether the point lies outside the ranges of the fit.
    pub extrapolated: bool,
}

impl ModelFile {
    /// What `model` does at a point.
    ///
    /// # Errors
    ///
    /// [`PredictError::UnknownModel`] with the names there are, [`PredictError::BadPoint`].
    pub fn predict(&self, model: &str, point: &Point) -> Result<Prediction, PredictError> {
        let found = self.model(model).ok_or_else(|| {
            let names: Vec<&str> = self.models.iter().map(|m| m.name.as_str()).collect();
            let known = if names.is_empty() { "none".into() } else { names.join(", ") };
            PredictError::UnknownModel { model: model.to_owned(), known }
        })?;
        found.predict(point, self.base.as_ref())
    }
}

impl Model {
    /// What this model does at a point of a GPU whose base power is `base`, the one of its fit.
    ///
    /// # Errors
    ///
    /// [`PredictError::BadPoint`] for a batch or clock of 0, a share outside (0, 1], a MIG instance that does not exist.
    pub fn predict(&self, point: &Point, base: Option<&BasePower>) -> Result<Prediction, PredictError> {
        let bad = |field, found: String, expected| {
            Err(PredictError::BadPoint { model: self.name.clone(), field, found, expected })
        };
        match point.share {
            _ if point.batch == 0 => return bad("batch_size", "0".into(), "at least 1"),
            _ if point.processes == 0 => return bad("processes", "0".into(), "at least 1"),
            _ if point.frequency.0 == 0 => return bad("frequency", "0 MHz".into(), "an SM clock in MHz"),
            Share::Sms(s) if !(s > 0.0 && s <= 1.0) => {
                return bad("share", s.to_string(), "a share of the SMs above 0 and at most 1");
            }
            _ => {}
        }
        let no_answer = || PredictError::NoAnswer { model: self.name.clone() };
        let Some(central) = self.surfaces.at(point, base) else {
            let found = match point.share {
                Share::Slices(n) => n.to_string(),
                Share::Sms(s) => s.to_string(),
            };
            return bad("mig_slices", found, "1, 2, 3, 4 or 7");
        };
        let with = |value: f64, factors: Option<[f64; 2]>| Interval {
            value,
            low: factors.map(|f| f[0] * value),
            high: factors.map(|f| f[1] * value),
        };
        let figures = [central.average_w, central.dynamic_w, Some(central.batch_time_ms), central.latency_ms];
        if figures.into_iter().flatten().any(|v| !(v.is_finite() && v >= 0.0)) || central.batch_time_ms == 0.0
        {
            return Err(no_answer());
        }
        let up_to = |cap: Option<f64>, i: Interval| Interval {
            high: i.high.map(|high| cap.map_or(high, |cap| high.min(cap).max(i.value))),
            ..i
        };
        let intervals = &self.intervals;
        let cap = self.surfaces.cap_w();
        let above_base = cap.zip(base).map(|(cap, base)| (cap - base.at_w(point.frequency)).max(0.0));
        let (average, dynamic) = (intervals.avg_power_draw, intervals.dynamic_power_draw);
        Ok(Prediction {
            avg_power_draw: central.average_w.map(|v| up_to(cap, with(v, average))),
            dynamic_power_draw: central.dynamic_w.map(|v| up_to(above_base, with(v, dynamic))),
            throughput: with(1e3 * point.batch_items() / central.batch_time_ms, intervals.throughput),
            latency: central.latency_ms.map(|v| with(v, intervals.latency)),
            latency_p99: self
                .tail
                .as_ref()
                .and_then(|tail| Some(with(central.latency_ms? * tail.at(point)?, tail.interval))),
            extrapolated: !self.ranges.contain(point),
        })
    }
}
