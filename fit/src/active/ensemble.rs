//! Imagined models: what times and powers a model can have, before any was measured.
//!
//! Rule: each has the time of a batch of [`crate::batch_time`] (launch floor, SMs, memory, smooth maximum) with parameters
//! drawn from wide ranges, and the dynamic power of SMs that are busy while the work runs, of memory, and of what is on
//! whenever anything runs; voltage is constant up to a knee and rises behind it. Their scatter says which surfaces are
//! likely; their level says little, and the covariance leaves it free.
//!
//! Cases: the same models on every machine and version, in the order of one stream of ChaCha8.
//!
//! Not done: the power cap; points at the cap are left out where they are seen.
//!
//! Source: the forms in `docs/fitting.md`; the ranges are assumptions, wide on purpose.

use std::sync::LazyLock;

use rand::rngs::ChaCha8Rng;

use crate::point::Point;
use crate::sample::{stream, unit};

/// How many are imagined.
pub(super) const MODELS: usize = 200;
/// Their deviations are taken times this: a covariance 1.5 times theirs.
fn widened() -> f64 {
    (1.5 / MODELS as f64).sqrt()
}

/// One imagined model.
struct Imagined {
    /// Work over 1/f, b/f, b/(s f), 1/(s f), b/m, ms at 1 GHz.
    work: [f64; 5],
    /// Launching over 1 and 1/f, ms.
    floor: [f64; 2],
    sharpness: f64,
    /// Dynamic power of busy SMs, of memory, and of anything at all, W.
    watts: [f64; 3],
    busy_power: f64,
    share_power: f64,
    clock_power: f64,
    memory_power: f64,
    rest_power: f64,
    knee_ghz: f64,
    volts_per_ghz: f64,
}

/// All of them.
pub(super) struct Ensemble(Vec<Imagined>);

impl Ensemble {
    /// The one there is.
    pub(super) fn shared() -> &'static Self {
        static ALL: LazyLock<Ensemble> = LazyLock::new(|| {
            let mut random = stream(1);
            Ensemble((0..MODELS).map(|_| Imagined::draw(&mut random)).collect())
        });
        &ALL
    }

    /// Mean, and each model's scaled deviation from it, of ln(ms) and ln(W) at a point; `None` for a MIG instance that does not
    /// exist.
    pub(super) fn features(&self, point: &Point) -> Option<([f64; 2], Vec<[f64; 2]>)> {
        let mut all = self.at(point)?;
        let sum = all.iter().fold([0.0; 2], |sum, v| [sum[0] + v[0], sum[1] + v[1]]);
        let mean = sum.map(|s| s / MODELS as f64);
        let scale = widened();
        all.iter_mut().for_each(|v| *v = [scale * (v[0] - mean[0]), scale * (v[1] - mean[1])]);
        Some((mean, all))
    }

    /// Mean plus the weighted sum of the scaled deviations.
    pub(super) fn weighted(&self, point: &Point, weights: &[f64]) -> Option<[f64; 2]> {
        let (mean, all) = self.features(point)?;
        Some(all.iter().zip(weights).fold(mean, |sum, (v, w)| [sum[0] + w * v[0], sum[1] + w * v[1]]))
    }

    /// ln(ms) and ln(W) of each at a point; `None` for a MIG instance that does not exist.
    fn at(&self, point: &Point) -> Option<Vec<[f64; 2]>> {
        self.0.iter().map(|model| model.at(point)).collect()
    }
}

impl Imagined {
    fn draw(random: &mut ChaCha8Rng) -> Self {
        let mut between = |low: f64, high: f64| low + (high - low) * unit(random);
        let mut weights = [0.0; 5];
        for weight in &mut weights {
            // Squares of exponential draws: mostly one or two terms rule.
            *weight = between(1e-12, 1.0).ln().powi(2);
        }
        let sum: f64 = weights.iter().sum();
        let mut ratio = |low: f64, high: f64| between(f64::ln(low), f64::ln(high)).exp();
        let (level, item, launch) = (ratio(1.0, 100.0), ratio(0.02, 2.0), ratio(0.1, 30.0));
        let scales = [1.0, 0.3 * item, item, 0.5, item];
        let work = [0, 1, 2, 3, 4].map(|i| level * weights[i] / sum * scales[i]);
        let watts = [ratio(10.0, 60.0), ratio(3.0, 40.0), ratio(2.0, 15.0)];
        let busy_power = ratio(0.5, 1.5);
        let host = between(0.0, 1.0);
        let sharpness = [1.5, 2.0, 3.0, 5.0][between(0.0, 3.999) as usize];
        Self {
            work,
            floor: [level * launch * host, level * launch * (1.0 - host)],
            sharpness,
            watts,
            busy_power,
            share_power: between(0.3, 1.0),
            clock_power: between(0.5, 1.1),
            memory_power: between(0.5, 1.0),
            rest_power: between(0.0, 1.0),
            knee_ghz: between(0.7, 1.1),
            volts_per_ghz: between(0.3, 1.2),
        }
    }

    fn at(&self, point: &Point) -> Option<[f64; 2]> {
        let (b, f, s, m) = (point.batch_items(), point.ghz(), point.share.sms(), point.share.memory()?);
        let n = point.processes_count();
        let terms = [1.0 / f / n, b / f / n, b / (s * f), 1.0 / (s * f), b / m];
        let work: f64 = self.work.iter().zip(terms).map(|(w, t)| w * t).sum();
        let floor = (self.floor[0] + self.floor[1] / f) / n;
        let p = self.sharpness;
        let ms = (work.powf(p) + floor.powf(p)).powf(1.0 / p);
        let busy = (work / ms).clamp(0.0, 1.0).powf(self.busy_power);
        let volts = 1.0 + self.volts_per_ghz * (f - self.knee_ghz).max(0.0);
        let [sms, memory, rest] = self.watts;
        let watts = sms * busy * s.powf(self.share_power) * f.powf(self.clock_power) * volts.powi(2)
            + memory * busy * m.powf(self.memory_power)
            + rest * s.powf(self.rest_power) * f.sqrt();
        Some([ms.ln(), watts.ln()])
    }
}
