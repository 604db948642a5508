//! How far off a rule is on measured sets that it was not fitted on.
//!
//! Rule: each set is left out in turn, and with it every set that has two of its members at the same points (or, with
//! [`Leave::Models`], two of its models at any points); the rule is fitted on the others. Errors are |predicted ÷ measured − 1|.
//!
//! An interval of power is predicted × the 5 % and 95 % order statistics of measured ÷ predicted. One of a slowdown s is
//! s + q · (s − 1 + 0.1), with q those of (measured − s) / (s − 1 + 0.1), because a large slowdown is known less well; it never
//! begins below 1, and a measured ratio below 1 counts as 1. Latency over the one predicted alone has such an interval as well, which holds that prediction's own error. How many sets an interval holds is counted with the order statistics of the *other* sets, and with the bounds of
//! power at the limit.
//!
//! Cases: a set for which too few others remain is not counted.
//!
//! Source: Vovk, Gammerman and Shafer, *Algorithmic Learning in a Random World*, 2nd ed., 4 (order statistics of held-out
//! residuals as prediction intervals).

use serde::{Deserialize, Serialize};

use super::set::MeasuredSet;
use super::{Rule, Together};
use crate::base::median;

/// Added to the excess of a slowdown, so that one near 1 has an interval as well. Of 0, 0.02, 0.05, 0.1 and 0.2 it gave the
/// narrowest intervals on the H200 sets, by a tenth.
const EXCESS: f64 = 0.1;

/// What goes with a set that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Leave {
    /// Sets with two of its members at the same points.
    Members,
    /// Sets with two of its models at any points.
    Models,
}

/// Errors over sets or members, %.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Errors {
    /// How many there are.
    pub count: usize,
    /// Their mean.
    pub mean_pct: f64,
    /// Their median.
    pub median_pct: f64,
    /// The largest.
    pub worst_pct: f64,
}

/// What 90 % intervals hold.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Held {
    /// Measured values inside, %.
    pub held_pct: f64,
    /// Mean width over the predicted value, %.
    pub width_pct: f64,
}

/// A figure over all sets, and over those at the power limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// All sets.
    pub all: Option<Errors>,
    /// Sets whose clock was held down.
    pub at_limit: Option<Errors>,
    /// Intervals, over all sets.
    pub intervals: Option<Held>,
}

/// Quality of one rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RuleQuality {
    /// Name of the rule.
    pub rule: String,
    /// What was left out with each set.
    pub leave: Leave,
    /// Sets that were predicted.
    pub sets: usize,
    /// Power of the GPU.
    pub power: Figure,
    /// Slowdown of each member.
    pub slowdown: Figure,
}

/// Order statistics that make intervals; absent where nothing was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SetIntervals {
    /// Factors on power.
    pub power: Option<[f64; 2]>,
    /// Multiples of (slowdown − 1 + 0.1), added to a slowdown.
    pub slowdown: Option<[f64; 2]>,
    /// The same for latency over the one predicted alone, at points that the prediction was fitted on.
    pub stretch: Option<[f64; 2]>,
}

impl SetIntervals {
    pub(crate) fn are_sound(&self) -> bool {
        self.power.is_none_or(|[low, high]| low > 0.0 && low <= 1.0 && high >= 1.0 && high.is_finite())
            && [self.slowdown, self.stretch]
                .into_iter()
                .flatten()
                .all(|[low, high]| low <= 0.0 && high >= 0.0 && (high - low).is_finite())
    }

    /// Bounds of a slowdown.
    pub(crate) fn of_slowdown(&self, slowdown: f64) -> Option<[f64; 2]> {
        let [low, high] = around(slowdown, self.slowdown?);
        Some([low.max(1.0), high])
    }

    /// Bounds of latency over the latency predicted alone, at a point that was fitted.
    pub(crate) fn of_stretch(&self, slowdown: f64) -> Option<[f64; 2]> {
        self.stretch.map(|q| around(slowdown, q))
    }

    fn of_power(&self, power_w: f64, cap_w: Option<f64>) -> Option<[f64; 2]> {
        let [low, high] = self.power?;
        let high = high * power_w;
        Some([low * power_w, cap_w.map_or(high, |cap| high.min(cap).max(power_w))])
    }
}

fn around(slowdown: f64, [low, high]: [f64; 2]) -> [f64; 2] {
    let scale = slowdown - 1.0 + EXCESS;
    [slowdown + low * scale, slowdown + high * scale]
}

/// A set that was left out, and what the rule said of it.
struct Out<'a> {
    set: &'a MeasuredSet,
    said: Together,
}

impl Out<'_> {
    fn power(&self) -> Option<(f64, f64)> {
        Some((self.set.power_w?, self.said.power_w))
    }

    fn slowdowns(&self) -> impl Iterator<Item = (f64, f64)> {
        self.beside(&self.set.slowdowns)
    }

    fn stretches(&self) -> impl Iterator<Item = (f64, f64)> {
        self.beside(&self.set.stretches)
    }

    fn beside(&self, measured: &[Option<f64>]) -> impl Iterator<Item = (f64, f64)> {
        let pairs = measured.iter().zip(&self.said.members);
        pairs.filter_map(|(measured, said)| Some(((*measured)?, said.slowdown)))
    }
}

/// Leaves each set out in turn. `rule` makes a rule that is not fitted.
pub fn quality(
    rule: &dyn Fn() -> Box<dyn Rule>,
    sets: &[MeasuredSet],
    leave: Leave,
) -> (RuleQuality, SetIntervals) {
    let mut out = Vec::new();
    for set in sets {
        let goes = |other: &MeasuredSet| match leave {
            _ if other.number == set.number => true,
            Leave::Members => set.shares_a_pair(other),
            Leave::Models => set.shares_two_models(other),
        };
        let others: Vec<MeasuredSet> = sets.iter().filter(|other| !goes(other)).cloned().collect();
        let mut rule = rule();
        if rule.fit(&others).is_ok() {
            out.push(Out { set, said: rule.together(&set.gpu, &set.members) });
        }
    }
    let quality = RuleQuality {
        rule: rule().name().to_owned(),
        leave,
        sets: out.len(),
        power: Figure {
            all: errors(out.iter().filter_map(Out::power)),
            at_limit: errors(out.iter().filter(|o| o.set.is_limited()).filter_map(Out::power)),
            intervals: held(&out, |intervals, o| {
                let bounds = o.power().zip(intervals.of_power(o.said.power_w, o.set.gpu.cap_w));
                bounds.map(|((measured, said), bounds)| (measured, said, bounds)).into_iter().collect()
            }),
        },
        slowdown: Figure {
            all: errors(out.iter().flat_map(Out::slowdowns)),
            at_limit: errors(out.iter().filter(|o| o.set.is_limited()).flat_map(Out::slowdowns)),
            intervals: held(&out, |intervals, o| {
                // A ratio below 1 is the noise of two times that are the same.
                let bounds =
                    |(m, s): (f64, f64)| intervals.of_slowdown(s).map(|bounds| (m.max(1.0), s, bounds));
                o.slowdowns().filter_map(bounds).collect()
            }),
        },
    };
    (quality, intervals(out.iter()))
}

fn errors(pairs: impl Iterator<Item = (f64, f64)>) -> Option<Errors> {
    let mut all: Vec<f64> = pairs.map(|(measured, said)| 100.0 * (said / measured - 1.0).abs()).collect();
    let count = all.len();
    (count > 0).then(|| Errors {
        count,
        mean_pct: all.iter().sum::<f64>() / count as f64,
        worst_pct: all.iter().copied().fold(0.0, f64::max),
        median_pct: median(&mut all),
    })
}

fn intervals<'a>(out: impl Iterator<Item = &'a Out<'a>> + Clone) -> SetIntervals {
    let power = out.clone().filter_map(Out::power).map(|(measured, said)| measured / said).collect();
    let multiple = |(measured, said): (f64, f64)| (measured - said) / (said - 1.0 + EXCESS);
    let slowdown = out.clone().flat_map(Out::slowdowns).map(multiple).collect();
    let stretch = out.flat_map(Out::stretches).map(multiple).collect();
    let holding = |middle: f64| move |[low, high]: [f64; 2]| [low.min(middle), high.max(middle)];
    SetIntervals {
        power: order_statistics(power).map(holding(1.0)),
        slowdown: order_statistics(slowdown).map(holding(0.0)),
        stretch: order_statistics(stretch).map(holding(0.0)),
    }
}

/// The 5 % and 95 % order statistics.
fn order_statistics(mut all: Vec<f64>) -> Option<[f64; 2]> {
    all.sort_by(f64::total_cmp);
    let n = all.len();
    let low = (0.05 * (n + 1) as f64).floor().max(1.0) as usize;
    Some([*all.get(low - 1)?, *all.get(n - low)?])
}

/// Measured value, predicted value and bounds.
type Bounded = (f64, f64, [f64; 2]);

fn held(out: &[Out<'_>], bounded: impl Fn(&SetIntervals, &Out<'_>) -> Vec<Bounded>) -> Option<Held> {
    let (mut count, mut inside, mut width) = (0usize, 0usize, 0.0);
    for one in out {
        let others = intervals(out.iter().filter(|o| o.set.number != one.set.number));
        for (measured, said, [low, high]) in bounded(&others, one) {
            count += 1;
            inside += usize::from((low..=high).contains(&measured));
            width += (high - low) / said;
        }
    }
    let pct = |part: f64| 100.0 * part / count as f64;
    (count > 0).then(|| Held { held_pct: pct(inside as f64), width_pct: pct(width) })
}

/// Qualities as a table.
pub fn table(qualities: &[RuleQuality]) -> String {
    use std::fmt::Write as _;
    let mut text = format!(
        "{:<12} {:<8} {:>4}  {:<21} {:<15} {:<21} {:<15} {:<13} {:<13}\n",
        "rule",
        "left out",
        "sets",
        "shared power",
        "at the limit",
        "slowdown",
        "at the limit",
        "power 90 %",
        "slowdown 90 %"
    );
    let three = |e: &Option<Errors>| match e {
        Some(e) => format!("{:.2} / {:.2} / {:.2}", e.mean_pct, e.median_pct, e.worst_pct),
        None => "–".into(),
    };
    let two = |e: &Option<Errors>| match e {
        Some(e) => format!("{:.2} / {:.2}", e.mean_pct, e.worst_pct),
        None => "–".into(),
    };
    let interval = |h: &Option<Held>| match h {
        Some(h) => format!("{:.0} / {:.1}", h.held_pct, h.width_pct),
        None => "–".into(),
    };
    for q in qualities {
        let leave = match q.leave {
            Leave::Members => "members",
            Leave::Models => "models",
        };
        let line = format!(
            "{:<12} {:<8} {:>4}  {:<21} {:<15} {:<21} {:<15} {:<13} {:<13}",
            q.rule,
            leave,
            q.sets,
            three(&q.power.all),
            two(&q.power.at_limit),
            three(&q.slowdown.all),
            two(&q.slowdown.at_limit),
            interval(&q.power.intervals),
            interval(&q.slowdown.intervals)
        );
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}
