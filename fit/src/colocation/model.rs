//! The colocation model of a model file: fitted on sets, and what it says of others.
//!
//! Rule: members are the model file's predictions, in the fit as in a prediction, so that both see the same errors. The
//! interval of a figure is that of the rule (held-out sets), which holds the errors of members at points that were
//! measured alone. Of members at other points their own intervals join it as independent deviations: their powers move the
//! shared power (and at the limit the clock), their times their latency and throughput.
//!
//! Cases: a model file without measured sets answers with a rule that knows no contention: right for MIG, and for other
//! shares without bounds. Bounds of MIG members are those of the members alone, because sets are measured under MPS. A
//! member alone is its own prediction.
//!
//! Not done: intervals that grow with the distance from the sets of the fit.

use gpumon_core::profile::ProfileRow;
use gpumon_core::set::SetRow;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::activity::Activity;
use super::contention::Contention;
use super::error::ColocationError;
use super::member::{self, Gpu, Member};
use super::quality::{Leave, RuleQuality, SetIntervals, quality};
use super::set::{self, Alone};
use super::{Rule, rules};
use crate::model_file::ModelFile;
use crate::point::Point;
use crate::predict::Interval;

/// No batch takes less than this part of its time alone, however wide its bounds.
const LEAST_STRETCH: f64 = 0.5;

/// What a model file says of sets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ColocationModel {
    /// Name of the rule.
    pub rule: String,
    /// Its coefficients.
    pub parameters: Contention,
    /// Power limit of the GPU, W, where it was given.
    pub cap_w: Option<f64>,
    /// What makes 90 % intervals.
    pub intervals: SetIntervals,
    /// Errors of all rules on sets left out.
    pub quality: Vec<RuleQuality>,
    /// What it was fitted on.
    pub sets: SetsUsed,
    /// SM and DRAM activity of the models alone.
    pub activity: Vec<Activity>,
    /// What a reader should know: sets left out.
    pub notes: Vec<String>,
}

/// The sets of a fit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetsUsed {
    /// How many.
    pub sets: usize,
    /// Members in them.
    pub members: usize,
    /// Sets whose clock was held down.
    pub at_limit: usize,
    /// SHA-256 over all rows of sets as JSON lines in sorted order.
    pub sha256: String,
}

/// A member that is asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    /// Model name.
    pub model: String,
    /// Where it is to run.
    pub point: Point,
    /// Items a second; `None`: as many as it can.
    pub rate_rps: Option<f64>,
}

/// What a member does in its set.
#[derive(Clone, Debug, PartialEq)]
pub struct MemberPrediction {
    /// Time of a batch over that alone.
    pub slowdown: Interval,
    /// Latency of a batch, ms.
    pub latency_ms: Interval,
    /// Items a second, at most those asked for.
    pub throughput: Interval,
    /// Share of the time that it works, 0 to 1.
    pub duty: f64,
    /// Whether its point lies outside the ranges of its fit.
    pub extrapolated: bool,
}

/// What a set does.
#[derive(Clone, Debug, PartialEq)]
pub struct SetPrediction {
    /// In the order asked.
    pub members: Vec<MemberPrediction>,
    /// Mean power of the whole GPU, W.
    pub power_w: Interval,
    /// Clock over the one asked for.
    pub clock: f64,
    /// Whether the power limit holds the clock down.
    pub limited: bool,
}

impl ColocationModel {
    /// Fits the rule on sets; `rows` are the profile that `models` was fitted on.
    ///
    /// # Errors
    ///
    /// [`ColocationError::TooFewSets`] with why sets were left out, [`ColocationError::OtherGpu`],
    /// [`ColocationError::NoBasePower`].
    pub fn fit(
        models: &ModelFile,
        rows: &[ProfileRow],
        sets: &[SetRow],
        cap_w: Option<f64>,
    ) -> Result<Self, ColocationError> {
        let names: Vec<String> = models.models.iter().map(|m| m.name.clone()).collect();
        let activity = Activity::of_rows(&names, rows);
        let (used, notes) = set::measured(sets, Alone::Models(models, &activity), cap_w)?;
        let mut parameters = Contention::default();
        parameters.fit(&used).map_err(|e| e.with_left_out(&notes))?;
        let mut qualities = Vec::new();
        let mut intervals = SetIntervals::default();
        for at in 0..rules().len() {
            let (found, own) = quality(&|| rules().swap_remove(at), &used, Leave::Members);
            if found.rule == parameters.name() {
                intervals = own;
                qualities.push(found);
                qualities.push(quality(&|| rules().swap_remove(at), &used, Leave::Models).0);
            } else {
                qualities.push(found);
            }
        }
        Ok(Self {
            rule: parameters.name().to_owned(),
            parameters,
            cap_w,
            intervals,
            quality: qualities,
            sets: SetsUsed {
                sets: used.len(),
                members: used.iter().map(|s| s.members.len()).sum(),
                at_limit: used.iter().filter(|s| s.is_limited()).count(),
                sha256: hash(sets),
            },
            activity,
            notes,
        })
    }

    /// Why a file with this cannot be used; `None` if it can.
    pub(crate) fn unsound(&self) -> Option<&'static str> {
        if self.rule != self.parameters.name() {
            return Some(
                "`colocation` has a rule that this gpumon does not know; take a newer gpumon, or fit again",
            );
        }
        let sound = self.parameters.is_sound()
            && self.intervals.are_sound()
            && self.activity.iter().all(Activity::is_sound)
            && self.cap_w.is_none_or(|w| w.is_finite() && w > 0.0);
        (!sound).then_some("`colocation` has numbers that no fit gives")
    }
}

impl ModelFile {
    /// What a set of models does on one GPU.
    ///
    /// # Errors
    ///
    /// [`ColocationError::Member`] for an unknown model or an odd point, [`ColocationError::BadSet`] for members that do not
    /// fit together, [`ColocationError::NoBasePower`], [`ColocationError::NoDynamicPower`].
    pub fn together(&self, asked: &[Asked]) -> Result<SetPrediction, ColocationError> {
        let fitted = self.colocation.as_ref();
        let activity = fitted.map_or(&[][..], |c| c.activity.as_slice());
        let member = |asked: &Asked| {
            let member = Member::of_models(self, activity, &asked.model, &asked.point)?;
            Ok(Member { rate_rps: asked.rate_rps, ..member })
        };
        let members = asked.iter().map(member).collect::<Result<Vec<_>, ColocationError>>()?;
        let base = self.base.as_ref().ok_or(ColocationError::NoBasePower)?;
        let of_models = || self.models.iter().find_map(|m| m.surfaces.cap_w());
        let cap_w = fitted.and_then(|c| c.cap_w).or_else(of_models);
        let clock = asked.first().map_or(gpumon_core::units::Megahertz(0), |a| a.point.frequency);
        let gpu = Gpu::at(base, clock, cap_w);
        member::check(&gpu, &members)?;
        let rule = fitted.map_or_else(Contention::default, |c| c.parameters);
        // What was learnt under MPS says nothing about MIG, and of a member alone nothing is left to learn.
        let learnt = members.len() > 1 && !members.iter().any(Member::is_mig);
        let intervals = fitted.filter(|_| learnt).map_or_else(SetIntervals::default, |c| c.intervals);
        let mut said = joined(&rule, &intervals, &gpu, &members);
        if members.len() > 1 && fitted.is_none() && !members.iter().any(Member::is_mig) {
            said.forget_bounds();
        }
        Ok(said)
    }
}

impl SetPrediction {
    /// Without sets nobody knows how far contention moves the figures.
    fn forget_bounds(&mut self) {
        let members = self.members.iter_mut();
        let figures = members.flat_map(|m| [&mut m.slowdown, &mut m.latency_ms, &mut m.throughput]);
        for figure in figures.chain([&mut self.power_w]) {
            (figure.low, figure.high) = (None, None);
        }
    }
}

/// The rule's answer, with intervals.
fn joined(rule: &Contention, intervals: &SetIntervals, gpu: &Gpu, members: &[Member]) -> SetPrediction {
    let said = rule.together(gpu, members);
    // Independent deviations of the members' powers, as a factor on all of them.
    let learnt = intervals.power;
    let total: f64 = members.iter().map(|m| m.dynamic_w.value).sum();
    let deviation = |end: fn(&Interval) -> Option<f64>| -> Option<f64> {
        let unseen = members.iter().filter(|m| !(m.seen && learnt.is_some()));
        let squares = unseen.map(|m| Some((end(&m.dynamic_w)? - m.dynamic_w.value).powi(2)));
        Some(squares.sum::<Option<f64>>()?.sqrt() / total.max(f64::MIN_POSITIVE))
    };
    let moved = |factor: f64| {
        let scaled = |m: &Member| {
            let dynamic_w = Interval { value: m.dynamic_w.value * factor.max(0.0), ..m.dynamic_w };
            Member { dynamic_w, ..m.clone() }
        };
        rule.together(gpu, &members.iter().map(scaled).collect::<Vec<_>>())
    };
    let less = deviation(|i| i.low).map(|d| moved(1.0 - d));
    let more = deviation(|i| i.high).map(|d| moved(1.0 + d));
    let alone = members.len() == 1;
    // A side is known if any source of deviation is.
    let side = |of_members: Option<f64>, of_rule: Option<f64>| match (of_members, of_rule) {
        (None, None) => None,
        (a, b) => Some(a.unwrap_or(0.0).hypot(b.unwrap_or(0.0))),
    };
    let power = said.power_w;
    let down = side(less.as_ref().map(|l| power - l.power_w), learnt.map(|[low, _]| power * (1.0 - low)));
    let up = side(more.as_ref().map(|m| m.power_w - power), learnt.map(|[_, high]| power * (high - 1.0)));
    let power_w = Interval {
        value: power,
        low: down.map(|d| (power - d).max(gpu.base_w.min(power))),
        high: up.map(|d| gpu.cap_w.map_or(power + d, |cap| (power + d).min(cap).max(power))),
    };
    let member = |(i, member): (usize, &Member)| {
        let value = said.members[i].slowdown;
        let clock =
            |end: &Option<super::Together>| end.as_ref().map(|t| (t.members[i].slowdown - value).abs());
        let bounded = |learnt: Option<[f64; 2]>, least: f64| {
            let down = side(clock(&less), learnt.map(|[low, _]| value - low));
            let up = side(clock(&more), learnt.map(|[_, high]| high - value));
            Interval { value, low: down.map(|d| (value - d).max(least)), high: up.map(|d| value + d) }
        };
        let slowdown = match alone {
            true => Interval { value, low: None, high: None },
            false => bounded(intervals.of_slowdown(value), 1.0),
        };
        let stretch = intervals.of_stretch(value).filter(|_| member.seen);
        let stretch = stretch.map(|learnt| bounded(Some(learnt), LEAST_STRETCH));
        let times = |own: &Interval| match stretch {
            Some(stretch) => product(&Interval { value: own.value, low: None, high: None }, &stretch),
            None => product(own, &slowdown),
        };
        let latency_ms = times(&member.latency_ms);
        let slower = times(&inverse(&member.throughput));
        let able = inverse(&slower);
        let upto = |items: f64| member.rate_rps.map_or(items, |rate| items.min(rate));
        MemberPrediction {
            slowdown,
            latency_ms,
            throughput: Interval {
                value: upto(able.value),
                low: able.low.map(upto),
                high: able.high.map(upto),
            },
            duty: said.members[i].duty,
            extrapolated: member.extrapolated,
        }
    };
    SetPrediction {
        members: members.iter().enumerate().map(member).collect(),
        power_w,
        clock: said.clock,
        limited: said.is_limited(),
    }
}

fn inverse(of: &Interval) -> Interval {
    Interval { value: 1.0 / of.value, low: of.high.map(|v| 1.0 / v), high: of.low.map(|v| 1.0 / v) }
}

/// The product of two independent figures; an end is known if either's is.
fn product(a: &Interval, b: &Interval) -> Interval {
    let value = a.value * b.value;
    let end = |end: fn(&Interval) -> Option<f64>| {
        let part = |of: &Interval| end(of).map(|v| (v / of.value).ln().abs());
        match (part(a), part(b)) {
            (None, None) => None,
            (a, b) => Some(a.unwrap_or(0.0).hypot(b.unwrap_or(0.0))),
        }
    };
    Interval {
        value,
        low: end(|i| i.low).map(|d| value * (-d).exp()),
        high: end(|i| i.high).map(|d| value * d.exp()),
    }
}

fn hash(rows: &[SetRow]) -> String {
    let mut lines: Vec<String> = rows.iter().filter_map(|r| serde_json::to_string(r).ok()).collect();
    lines.sort_unstable();
    Sha256::digest(lines.join("\n")).iter().map(|byte| format!("{byte:02x}")).collect()
}
