//! Points that were left out of a fit, and what the fit said of them.
//!
//! Rule: [`HeldOut`] has them as they are, for a table; [`KeptPoint`] as a model file keeps them, for pictures: average power
//! and time of a batch, measured to five digits, predicted to 0.01 % of that. In the file `levels` has the different values of
//! batch, share, clock in MHz and processes, `of` four numbers of levels a point, and each figure two lists: `measured`, and `off`,
//! predicted ÷ measured − 1 in units of 1e-4. 450 points take 16 kB.
//!
//! Cases: a MIG instance stands as its number of compute slices below 0 (−3), another share as itself. A figure that was not measured is
//! null; one that no point has is absent. Lists of unequal length and values that no fit gives are refused.
//!
//! Not done: dynamic power, which is average power less the base of the file, and latency.

use gpumon_core::units::Megahertz;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::point::{Point, Share};
use crate::validate;

/// A point that was left out of a fit, and what the fit said of it.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldOut {
    /// The model.
    pub model: String,
    /// Where.
    pub point: Point,
    /// Average power of the GPU, W.
    pub average_w: Option<Compared>,
    /// Power above the base, W.
    pub dynamic_w: Option<Compared>,
    /// Time of a batch, ms.
    pub batch_time_ms: Option<Compared>,
    /// The latency column, ms.
    pub latency_ms: Option<Compared>,
}

/// A measured value and its prediction, in one unit; both above 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compared {
    /// What was measured.
    pub measured: f64,
    /// What was predicted.
    pub predicted: f64,
}

/// A point that was left out, as a model file keeps it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KeptPoint {
    /// Where.
    pub point: Point,
    /// Average power of the GPU, W.
    pub average_w: Option<Compared>,
    /// Time of a batch, ms.
    pub batch_time_ms: Option<Compared>,
}

impl HeldOut {
    pub(crate) fn of(model: &str, of: &validate::Compared) -> Self {
        let compared = |predicted: Option<f64>, ratio: Option<f64>| {
            predicted.zip(ratio).map(|(predicted, r)| Compared { measured: predicted * r, predicted })
        };
        let (central, ratios) = (of.central, of.ratios);
        Self {
            model: model.into(),
            point: of.point,
            average_w: compared(central.average_w, ratios[0]),
            dynamic_w: compared(central.dynamic_w, ratios[1]),
            batch_time_ms: compared(Some(central.batch_time_ms), ratios[2]),
            latency_ms: compared(central.latency_ms, ratios[3]),
        }
    }
}

/// Unit of `off`.
const OFF: f64 = 1e-4;

impl Compared {
    /// From a file's two numbers; `None` unless both values are above 0 and finite.
    fn stored(measured: f64, off: f64) -> Option<Self> {
        let predicted = measured * (1.0 + OFF * off);
        let sound = |v: f64| v.is_finite() && v > 0.0;
        (sound(measured) && sound(predicted)).then_some(Self { measured, predicted })
    }

    fn off(&self) -> f64 {
        ((self.predicted / self.measured - 1.0) / OFF).round()
    }

    /// As it comes back from a file; `None` if it is less than the file's last digit.
    fn rounded(&self) -> Option<Self> {
        Self::stored(format!("{:.4e}", self.measured).parse().ok()?, self.off())
    }
}

impl KeptPoint {
    pub(crate) fn of(of: &validate::Compared) -> Self {
        let HeldOut { point, average_w, batch_time_ms, .. } = HeldOut::of("", of);
        let rounded = |figure: Option<Compared>| figure.and_then(|c| c.rounded());
        let share = match point.share {
            Share::Sms(share) => Share::Sms((share * 1e6).round() / 1e6),
            slices @ Share::Slices(_) => slices,
        };
        Self {
            point: Point { share, ..point },
            average_w: rounded(average_w),
            batch_time_ms: rounded(batch_time_ms),
        }
    }
}

/// How they stand in a model file.
pub(crate) mod stored {
    use super::*;

    #[derive(Serialize, Deserialize)]
    struct Figure {
        measured: Vec<Option<f64>>,
        off: Vec<Option<i64>>,
    }

    #[derive(Serialize, Deserialize)]
    struct Table {
        levels: [Vec<f64>; 4],
        of: Vec<usize>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        total_power: Option<Figure>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        batch_time: Option<Figure>,
    }

    impl Figure {
        fn of(figures: impl Iterator<Item = Option<Compared>>) -> Option<Self> {
            let (measured, off): (Vec<_>, Vec<_>) =
                figures.map(|c| (c.map(|c| c.measured), c.map(|c| c.off() as i64))).unzip();
            measured.iter().any(Option::is_some).then_some(Self { measured, off })
        }
    }

    /// The figures of `points` points.
    fn values<E: Error>(figure: Option<Figure>, points: usize) -> Result<Vec<Option<Compared>>, E> {
        let Some(Figure { measured, off }) = figure else { return Ok(vec![None; points]) };
        if measured.len() != points || off.len() != points {
            return Err(E::custom(format!(
                "{} measured and {} predicted values at {points} points",
                measured.len(),
                off.len()
            )));
        }
        let value = |(measured, off): (Option<f64>, Option<i64>)| match (measured, off) {
            (None, None) => Ok(None),
            (Some(measured), Some(off)) => match Compared::stored(measured, off as f64) {
                Some(compared) => Ok(Some(compared)),
                None => Err(E::custom(format!("measured {measured}, off {off}: no such values"))),
            },
            _ => Err(E::custom("a point has only one of `measured` and `off`")),
        };
        measured.into_iter().zip(off).map(value).collect()
    }

    fn numbers(point: &Point) -> [f64; 4] {
        let share = match point.share {
            Share::Slices(slices) => -f64::from(slices),
            Share::Sms(share) => share,
        };
        [f64::from(point.batch), share, f64::from(point.frequency.0), f64::from(point.processes)]
    }

    fn point([batch, share, mhz, processes]: [f64; 4]) -> Option<Point> {
        let whole = |v: f64| (v >= 1.0 && v.fract() == 0.0 && v <= f64::from(u32::MAX)).then_some(v as u32);
        let share = match share {
            s if s > 0.0 && s <= 1.0 => Share::Sms(s),
            s if s >= -7.0 && s.fract() == 0.0 && s < 0.0 => Share::Slices(-s as u8),
            _ => return None,
        };
        let sound = Point {
            batch: whole(batch)?,
            share,
            frequency: Megahertz(whole(mhz)?),
            processes: whole(processes)?,
        };
        share.memory().map(|_| sound)
    }

    pub(crate) fn serialize<S: Serializer>(points: &[KeptPoint], to: S) -> Result<S::Ok, S::Error> {
        let mut levels: [Vec<f64>; 4] = Default::default();
        let mut of = Vec::with_capacity(4 * points.len());
        for kept in points {
            for (levels, value) in levels.iter_mut().zip(numbers(&kept.point)) {
                of.push(levels.iter().position(|l| *l == value).unwrap_or_else(|| {
                    levels.push(value);
                    levels.len() - 1
                }));
            }
        }
        Table {
            levels,
            of,
            total_power: Figure::of(points.iter().map(|p| p.average_w)),
            batch_time: Figure::of(points.iter().map(|p| p.batch_time_ms)),
        }
        .serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<KeptPoint>, D::Error> {
        let Table { levels, of, total_power, batch_time } = Table::deserialize(from)?;
        if !of.len().is_multiple_of(4) {
            return Err(D::Error::custom(format!(
                "`of` has {} numbers of levels; expected four a point",
                of.len()
            )));
        }
        let count = of.len() / 4;
        let (average, time) = (values(total_power, count)?, values(batch_time, count)?);
        let kept = |(at, (average_w, batch_time_ms)): (&[usize], _)| {
            let mut values = [0.0; 4];
            for (variable, (value, level)) in values.iter_mut().zip(at).enumerate() {
                *value = *levels[variable].get(*level).ok_or_else(|| {
                    D::Error::custom(format!(
                        "`of` names level {level} of variable {variable}, which has none"
                    ))
                })?;
            }
            let point = point(values)
                .ok_or_else(|| D::Error::custom(format!("no point has the levels {values:?}")))?;
            Ok(KeptPoint { point, average_w, batch_time_ms })
        };
        of.chunks_exact(4).zip(average.into_iter().zip(time)).map(kept).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Holder {
        #[serde(with = "stored")]
        points: Vec<KeptPoint>,
    }

    fn kept(share: Share, measured: f64, predicted: f64) -> KeptPoint {
        let point = Point { batch: 4, share, frequency: Megahertz(1410), processes: 2 };
        let compared = Compared { measured, predicted }.rounded();
        KeptPoint { point, average_w: compared, batch_time_ms: None }
    }

    #[test]
    fn points_come_back_as_they_were_kept() {
        let mut points = vec![
            kept(Share::Slices(3), 98.123_456, 97.0),
            kept(Share::Sms(0.29), 1.234_567e-5, 1.0),
            kept(Share::Sms(1.0), 400.0, 400.0),
        ];
        points[1].average_w = None;
        points[2].batch_time_ms = Compared { measured: 2.0, predicted: 2.5 }.rounded();
        let text = serde_json::to_string(&Holder { points: points.clone() }).unwrap();
        assert!(text.contains("[98.123,null,400.0]"), "{text}");
        assert_eq!(serde_json::from_str::<Holder>(&text).unwrap().points, points);
        let off = points[0].average_w.unwrap();
        assert!((off.predicted / off.measured - 97.0 / 98.123_456).abs() < 1e-4);
    }

    #[test]
    fn tables_that_no_fit_writes_are_refused() {
        let error = |table: &str| {
            serde_json::from_str::<Holder>(&format!("{{\"points\":{table}}}")).unwrap_err().to_string()
        };
        let of = r#""levels":[[1],[-3],[900],[1]],"of":[0,0,0,0]"#;
        assert!(error(&format!("{{{}}}", of.replace("-3", "-5"))).contains("no point has"));
        assert!(error(&format!("{{{}}}", of.replace("0,0]", "0,1]"))).contains("level 1 of variable 3"));
        assert!(error(&format!("{{{}}}", of.replace("0,0]", "0]"))).contains("four a point"));
        let figure = |text: &str| error(&format!("{{{of},\"total_power\":{text}}}"));
        assert!(figure(r#"{"measured":[1],"off":[]}"#).contains("1 measured and 0 predicted"));
        assert!(figure(r#"{"measured":[1],"off":[null]}"#).contains("only one of"));
        assert!(figure(r#"{"measured":[1],"off":[-10000]}"#).contains("no such values"));
    }
}
