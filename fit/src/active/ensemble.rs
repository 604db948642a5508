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

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, RwLock};

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
pub(super) struct Ensemble {
    models: Vec<Imagined>,
    /// What was asked for before: profiles and plans come back to the same points, model after model.
    known: RwLock<HashMap<Key, Arc<Features>>>,
}

/// Batch, share of the SMs, of the memory, clock, processes: all that a point has.
type Key = (u32, u64, u64, u32, u32);

/// Points that are kept, 3 kB each; when there are as many, all are forgotten.
const KEPT: usize = 2048;

/// What they say at a point.
pub(super) struct Features {
    /// Mean of ln(ms) and ln(W).
    pub(super) mean: [f64; 2],
    /// Each model's scaled deviation from it.
    pub(super) deviations: Vec<[f64; 2]>,
}

impl Features {
    /// Mean plus the weighted sum of the scaled deviations.
    pub(super) fn weighted(&self, weights: &[f64]) -> [f64; 2] {
        // Four sums side by side, because each addition would wait for the one before.
        let mut lanes = [[0.0; 2]; 4];
        for (deviations, weights) in self.deviations.chunks(4).zip(weights.chunks(4)) {
            for ((lane, v), w) in lanes.iter_mut().zip(deviations).zip(weights) {
                *lane = [lane[0] + w * v[0], lane[1] + w * v[1]];
            }
        }
        lanes.iter().fold(self.mean, |sum, lane| [sum[0] + lane[0], sum[1] + lane[1]])
    }
}

impl Ensemble {
    /// The one there is.
    pub(super) fn shared() -> &'static Self {
        static ALL: LazyLock<Ensemble> = LazyLock::new(|| {
            let mut random = stream(1);
            let models = (0..MODELS).map(|_| Imagined::draw(&mut random)).collect();
            Ensemble { models, known: RwLock::default() }
        });
        &ALL
    }

    /// What they say at a point; `None` for a MIG instance that does not exist.
    pub(super) fn at(&self, point: &Point) -> Option<Arc<Features>> {
        let (sms, memory) = (point.share.sms().to_bits(), point.share.memory()?.to_bits());
        let key = (point.batch, sms, memory, point.frequency.0, point.processes);
        if let Some(features) = self.known.read().ok().and_then(|known| known.get(&key).cloned()) {
            return Some(features);
        }
        let features = Arc::new(self.features(point)?);
        if let Ok(mut known) = self.known.write() {
            if known.len() >= KEPT {
                known.clear();
            }
            known.insert(key, Arc::clone(&features));
        }
        Some(features)
    }

    fn features(&self, point: &Point) -> Option<Features> {
        let here = Here::of(point)?;
        let mut all: Vec<[f64; 2]> = self.models.iter().map(|model| model.at(&here)).collect();
        let sum = all.iter().fold([0.0; 2], |sum, v| [sum[0] + v[0], sum[1] + v[1]]);
        let mean = sum.map(|s| s / MODELS as f64);
        let scale = widened();
        all.iter_mut().for_each(|v| *v = [scale * (v[0] - mean[0]), scale * (v[1] - mean[1])]);
        Some(Features { mean, deviations: all })
    }
}

/// What all models take of a point.
struct Here {
    /// 1/(f n), b/(f n), b/(s f), 1/(s f), b/m.
    terms: [f64; 5],
    f: f64,
    n: f64,
    ln_f: f64,
    ln_s: f64,
    ln_m: f64,
}

impl Here {
    fn of(point: &Point) -> Option<Self> {
        let (b, f, s, m) = (point.batch_items(), point.ghz(), point.share.sms(), point.share.memory()?);
        let n = point.processes_count();
        let terms = [1.0 / f / n, b / f / n, b / (s * f), 1.0 / (s * f), b / m];
        Some(Self { terms, f, n, ln_f: f.ln(), ln_s: s.ln(), ln_m: m.ln() })
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

    /// ln(ms) and ln(W).
    fn at(&self, here: &Here) -> [f64; 2] {
        let work: f64 = self.work.iter().zip(here.terms).map(|(w, t)| w * t).sum();
        let floor = (self.floor[0] + self.floor[1] / here.f) / here.n;
        let ln_ms = (self.raised(work) + self.raised(floor)).ln() / self.sharpness;
        let ln_busy = self.busy_power * (work.ln() - ln_ms).min(0.0);
        let volts = 1.0 + self.volts_per_ghz * (here.f - self.knee_ghz).max(0.0);
        let [sms, memory, rest] = self.watts;
        let watts = sms
            * (ln_busy + self.share_power * here.ln_s + self.clock_power * here.ln_f).exp()
            * volts.powi(2)
            + memory * (ln_busy + self.memory_power * here.ln_m).exp()
            + rest * (self.rest_power * here.ln_s).exp() * here.f.sqrt();
        [ln_ms, watts.ln()]
    }

    /// To the power of the sharpness.
    fn raised(&self, ms: f64) -> f64 {
        match self.sharpness {
            1.5 => ms * ms.sqrt(),
            p => ms.powi(p as i32),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch_time::tests::grid;

    #[test]
    fn what_was_asked_before_answers_only_for_the_same_processes() {
        let one = grid()[0];
        let time = |processes| Ensemble::shared().at(&Point { processes, ..one }).unwrap().mean[0];
        let (first, several) = (time(1), time(3));
        assert!(several < first, "{several} {first}");
        assert_eq!((time(1), time(3)), (first, several));
    }
}
