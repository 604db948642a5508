//! One model of a set, as it is alone, and the GPU that the set shares.
//!
//! Rule: a member comes from a measured row of its profile, or from a fitted model's prediction at its point. SM and DRAM
//! activity are shares of the whole GPU, as GPM counts them.
//!
//! Cases: without a request rate a member works all the time. Elasticities (how time and dynamic power follow the clock) are
//! known only from a fitted model that saw several clocks. Members share a GPU only if their shares fit: legal MIG
//! starts, or at most all SMs (percentages are rounded, so half a percent a member is forgiven), one kind, one clock.

use gpumon_core::geometry::SEVEN_SLICES;
use gpumon_core::profile::ProfileRow;
use gpumon_core::units::Megahertz;

use super::MOST_MEMBERS;
use super::activity::Activity;
use super::error::ColocationError;
use crate::base::BasePower;
use crate::model_file::ModelFile;
use crate::models::Model;
use crate::point::{Point, Share};
use crate::predict::Interval;

/// Half a percent of the SMs, by which each share may have been rounded.
const ROUNDING: f64 = 0.005;
/// Step of ln(share) and ln(clock) over which elasticities are taken.
const STEP: f64 = 0.1;
/// SMs are busy this part of the time where a batch takes the same time on any share. Of SM activity ÷ share on the elasticity
/// of time in share, over the members of `data/runs/2026-12-01-h200-profile/sets.parquet`: 0.33 + 0.64 e, rms 0.05.
const BUSY_WITHOUT_SCALING: f64 = 1.0 / 3.0;

/// One model at one point, as it is alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// Model name.
    pub model: String,
    /// Batch, share, clock.
    pub point: Point,
    /// Items a second.
    pub throughput: Interval,
    /// Latency of a batch, ms.
    pub latency_ms: Interval,
    /// Power above the base, W.
    pub dynamic_w: Interval,
    /// SM time with at least one warp, of the whole GPU's, 0 to 1; `None` where neither measured nor inferred.
    pub sm_util: Option<f64>,
    /// DRAM bandwidth in use, of the whole GPU's, 0 to 1; `None` where it was not measured.
    pub dram_util: Option<f64>,
    /// By how many percent time falls where the clock rises by one.
    pub time_per_clock: Option<f64>,
    /// By how many percent dynamic power rises where the clock rises by one.
    pub power_per_clock: Option<f64>,
    /// Items a second that are asked for; `None`: as many as it can.
    pub rate_rps: Option<f64>,
    /// Whether the point lies outside the ranges of the fit.
    pub extrapolated: bool,
    /// Whether the point is one that was measured alone, as far as is known.
    pub seen: bool,
}

/// What members share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gpu {
    /// Base power at the clock asked for, W.
    pub base_w: f64,
    /// The part of it that the GPU draws without any context, W.
    pub static_w: Option<f64>,
    /// Power limit, W.
    pub cap_w: Option<f64>,
}

impl Gpu {
    /// The GPU at a clock.
    pub fn at(base: &BasePower, clock: Megahertz, cap_w: Option<f64>) -> Self {
        let base_w = base.at_w(clock);
        let nearest = base.points.iter().filter(|p| p.static_w.is_some() && p.base_w > 0.0);
        let nearest = nearest.min_by_key(|p| p.frequency_mhz.abs_diff(clock.0));
        let static_w = nearest.and_then(|p| p.static_w.map(|w| base_w * w / p.base_w));
        Self { base_w, static_w, cap_w }
    }
}

impl Member {
    /// From a measured row; `None` if it has no time, no dynamic power or no point.
    pub fn of_row(row: &ProfileRow) -> Option<Self> {
        let point = Point::of(row).ok()?;
        let known = |value: f64| Interval { value, low: None, high: None };
        let usable = |v: Option<f64>| v.filter(|v| v.is_finite() && *v > 0.0);
        let throughput =
            usable(row.throughput).or_else(|| Some(1e3 * point.batch_items() / usable(row.latency)?))?;
        let latency = usable(row.latency).unwrap_or(1e3 * point.batch_items() / throughput);
        let part = |pct: Option<f64>| pct.map(|pct| pct / 100.0).filter(|p| (0.0..=1.0).contains(p));
        Some(Self {
            model: row.model.clone(),
            point,
            throughput: known(throughput),
            latency_ms: known(latency),
            dynamic_w: known(row.dynamic_power_draw.filter(|w| w.is_finite() && *w >= 0.0)?),
            sm_util: part(row.sm_util_pct),
            dram_util: part(row.dram_util_pct),
            time_per_clock: None,
            power_per_clock: None,
            rate_rps: None,
            extrapolated: false,
            seen: true,
        })
    }

    /// From a model file's prediction; activity as measured, or else inferred from how time falls with share.
    ///
    /// # Errors
    ///
    /// [`ColocationError::Member`], [`ColocationError::NoDynamicPower`].
    pub fn of_models(
        models: &ModelFile,
        activity: &[Activity],
        name: &str,
        point: &Point,
    ) -> Result<Self, ColocationError> {
        let prediction = models.predict(name, point)?;
        let no_power = || ColocationError::NoDynamicPower { model: name.to_owned() };
        let dynamic_w = prediction.dynamic_power_draw.ok_or_else(no_power)?;
        let throughput = prediction.throughput;
        let time = |items_per_s: f64| 1e3 * point.batch_items() / items_per_s;
        let latency_ms = prediction.latency.unwrap_or(Interval {
            value: time(throughput.value),
            low: throughput.high.map(time),
            high: throughput.low.map(time),
        });
        let known = activity.iter().find(|a| a.model == name);
        let model = models.model(name);
        let along = Along { models, model, point };
        let sms = point.share.sms();
        let inferred =
            || along.share().map(|e| sms * (BUSY_WITHOUT_SCALING + (1.0 - BUSY_WITHOUT_SCALING) * e));
        let (time_per_clock, power_per_clock) = along.clock().unzip();
        Ok(Self {
            model: name.to_owned(),
            point: *point,
            throughput,
            latency_ms,
            dynamic_w,
            sm_util: known.and_then(|a| a.sm_util(point)).or_else(inferred),
            dram_util: known.and_then(|a| a.dram_util(point)),
            time_per_clock,
            power_per_clock,
            rate_rps: None,
            extrapolated: prediction.extrapolated,
            seen: known.is_some_and(|a| a.was_measured(point)),
        })
    }

    /// Time of a batch alone, ms.
    pub fn batch_time_ms(&self) -> f64 {
        1e3 * self.point.batch_items() / self.throughput.value
    }

    /// Share of the time that it would work alone, above 1 where it cannot keep up.
    pub(crate) fn offered(&self) -> f64 {
        self.rate_rps.map_or(1.0, |rate| rate / self.throughput.value)
    }

    /// Whether its memory is its own.
    pub(crate) fn is_mig(&self) -> bool {
        matches!(self.point.share, Share::Slices(_))
    }
}

/// A model around a point.
struct Along<'a> {
    models: &'a ModelFile,
    model: Option<&'a Model>,
    point: &'a Point,
}

impl Along<'_> {
    /// Elasticity of throughput in share, 0 to 1.
    fn share(&self) -> Option<f64> {
        let Share::Sms(share) = self.point.share else { return None };
        let at = |share: f64| {
            let point = Point { share: Share::Sms(share), ..*self.point };
            Some(self.model?.predict(&point, self.models.base.as_ref()).ok()?.throughput.value)
        };
        let [low, high] = [share * (-STEP).exp(), (share * STEP.exp()).min(1.0)];
        Some(((at(high)? / at(low)?).ln() / (high / low).ln()).clamp(0.0, 1.0))
    }

    /// Elasticities of throughput and of dynamic power in clock, where several clocks were seen.
    fn clock(&self) -> Option<(f64, f64)> {
        let [lowest, highest] = self.model?.ranges.frequency_mhz;
        let mhz = f64::from(self.point.frequency.0);
        let high = self.point.frequency.0.min(highest);
        let low = ((mhz * (-STEP).exp()).round() as u32).max(lowest);
        if low >= high {
            return None;
        }
        let at = |mhz: u32| {
            let point = Point { frequency: Megahertz(mhz), ..*self.point };
            let p = self.model?.predict(&point, self.models.base.as_ref()).ok()?;
            Some((p.throughput.value, p.dynamic_power_draw?.value))
        };
        let ((time, power), (time_low, power_low)) = (at(high)?, at(low)?);
        let step = (f64::from(high) / f64::from(low)).ln();
        let slope = |up: f64, down: f64| (up / down).ln() / step;
        let both = (slope(time, time_low).clamp(0.0, 1.0), slope(power, power_low).clamp(1.0, 4.0));
        (both.0.is_finite() && both.1.is_finite()).then_some(both)
    }
}

/// Whether these can share this GPU.
///
/// # Errors
///
/// [`ColocationError::BadSet`] with what is odd.
pub fn check(gpu: &Gpu, members: &[Member]) -> Result<(), ColocationError> {
    let bad = |what: String, expected| Err(ColocationError::BadSet { what, expected });
    let Some(first) = members.first() else {
        return bad("the set has no members".into(), "at least one");
    };
    if members.len() > MOST_MEMBERS {
        return bad(format!("the set has {} members", members.len()), "at most 12");
    }
    if let Some(other) = members.iter().find(|m| m.point.frequency != first.point.frequency) {
        let what = format!(
            "`{}` is to run at {} MHz and `{}` at {} MHz",
            first.model, first.point.frequency.0, other.model, other.point.frequency.0
        );
        return bad(what, "one clock for all models of a GPU");
    }
    if members.iter().any(|m| m.is_mig() != first.is_mig()) {
        return bad("some members have MIG slices and some a share of all SMs".into(), "one kind of share");
    }
    let slices = members.iter().filter_map(|m| match m.point.share {
        Share::Slices(n) => Some(n),
        Share::Sms(_) => None,
    });
    let slices: Vec<u8> = slices.collect();
    if !slices.is_empty() && SEVEN_SLICES.place(&slices).is_none() {
        let text: Vec<String> = slices.iter().map(u8::to_string).collect();
        let what = format!("MIG instances of {} slices do not fit on one GPU", text.join(" + "));
        return bad(what, "instances with legal starts, such as 4 + 3 or 3 + 2 + 2");
    }
    let shares: f64 = members.iter().filter(|m| !m.is_mig()).map(|m| m.point.share.sms()).sum();
    if shares > 1.0 + ROUNDING * members.len() as f64 {
        let what = format!("the shares add up to {shares:.3} of the SMs");
        return bad(what, "at most 1");
    }
    if let Some(cap) = gpu.cap_w.filter(|cap| *cap <= gpu.base_w) {
        let what = format!("the power limit of {cap} W is not above the base power of {:.1} W", gpu.base_w);
        return bad(what, "a limit that leaves power to work with");
    }
    let odd = members.iter().find(|m| m.rate_rps.is_some_and(|r| !(r.is_finite() && r > 0.0)));
    if let Some(member) = odd {
        let rate = member.rate_rps.unwrap_or_default();
        return bad(format!("`{}` is asked for {rate} items a second", member.model), "a number above 0");
    }
    Ok(())
}
