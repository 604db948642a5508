//! How noisy a GPU's ring readings are, found in the recording itself.
//!
//! Rule: what a reading differs from the line between its neighbours is noise where power stands still, and more
//! elsewhere. So of many short groups of readings the calmest tenth show the noise. Where power never stands still
//! the figure is too high, which is why it has a ceiling; there it hardly matters.
//! Not done here: noise that comes and goes, or that grows with power.

use std::collections::VecDeque;

use super::{NOISE_MOST_W, Reading};

/// Readings in a group.
const GROUP: u32 = 8;
/// Classes of the histogram of groups, a twentieth of a decade each, from a thousandth of a watt up.
const CLASSES: usize = 140;
/// The root mean square of the calmest tenth of groups over the noise, for normal noise (from simulation).
const CALMEST: f64 = 0.62;
/// What a recording too short to tell is given, W: the noise of an idle H200.
const DEFAULT_W: f64 = 1.0;
const LEAST_W: f64 = 0.05;

/// What of a reading the line between its neighbours does not explain, scaled to the deviation of one reading, W.
pub(super) fn residual_w(before: Reading, at: Reading, after: Reading) -> Option<f64> {
    let span = after.at_s - before.at_s;
    if span <= 0.0 {
        return None;
    }
    let share = (at.at_s - before.at_s) / span;
    let line = before.power_w + share * (after.power_w - before.power_w);
    Some((at.power_w - line) / (1.0 + share * share + (1.0 - share) * (1.0 - share)).sqrt())
}

/// What of the middle one of five readings the cubic through the others does not explain, scaled likewise, W.
///
/// A load that changes slowly is explained, so what is left tells power that jumps from power that bends.
pub(super) fn cubic_residual_w(readings: [Reading; 5]) -> Option<f64> {
    let [.., at, _, _] = readings;
    let (mut residual_w, mut scale) = (at.power_w, 1.0);
    for (i, one) in readings.iter().enumerate().filter(|(i, _)| *i != 2) {
        let mut weight = 1.0;
        for (_, other) in readings.iter().enumerate().filter(|(k, _)| *k != 2 && *k != i) {
            let apart_s = one.at_s - other.at_s;
            if apart_s == 0.0 {
                return None;
            }
            weight *= (at.at_s - other.at_s) / apart_s;
        }
        residual_w -= weight * one.power_w;
        scale += weight * weight;
    }
    Some(residual_w / scale.sqrt())
}

/// Finds the noise of one GPU's readings.
#[derive(Clone, Debug)]
pub struct NoiseFloor {
    recent: VecDeque<Reading>,
    sum_w2: f64,
    count: u32,
    groups: [u64; CLASSES],
}

impl Default for NoiseFloor {
    fn default() -> Self {
        Self { recent: VecDeque::with_capacity(3), sum_w2: 0.0, count: 0, groups: [0; CLASSES] }
    }
}

impl NoiseFloor {
    /// Adds a ring reading, in order of time.
    pub fn add(&mut self, at_us: i64, power_mw: f64) {
        self.recent.push_back(Reading::new(at_us, power_mw));
        if self.recent.len() < 3 {
            return;
        }
        let residual = residual_w(self.recent[0], self.recent[1], self.recent[2]);
        self.recent.pop_front();
        let Some(residual) = residual else { return };
        self.sum_w2 += residual * residual;
        self.count += 1;
        if self.count == GROUP {
            let rms_w = (self.sum_w2 / f64::from(GROUP)).sqrt();
            let class = ((rms_w.max(1e-3) / 1e-3).log10() * 20.0) as usize;
            self.groups[class.min(CLASSES - 1)] += 1;
            (self.sum_w2, self.count) = (0.0, 0);
        }
    }

    /// Standard deviation of a reading, W.
    pub fn noise_w(&self) -> f64 {
        let all: u64 = self.groups.iter().sum();
        let mut so_far = 0;
        let calmest = self.groups.iter().position(|groups| {
            so_far += groups;
            so_far * 10 >= all.max(1)
        });
        let found = calmest.filter(|_| all >= 3).map(|class| 1e-3 * 10f64.powf((class as f64 + 0.5) / 20.0));
        found.map_or(DEFAULT_W, |rms_w| (rms_w / CALMEST).clamp(LEAST_W, NOISE_MOST_W))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nearly normal, deviation 1: the sum of twelve even numbers less six.
    fn normal(k: u64) -> f64 {
        let even = |i: u64| {
            let mut x = (k * 12 + i).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            ((x ^ (x >> 31)) >> 11) as f64 / (1u64 << 53) as f64
        };
        (0..12).map(even).sum::<f64>() - 6.0
    }

    fn found(power_w: impl Fn(u64) -> f64) -> f64 {
        let mut floor = NoiseFloor::default();
        for k in 0..4_000 {
            floor.add(k as i64 * 20_000 + (k as i64 * 7_919) % 3_000, 1e3 * power_w(k));
        }
        floor.noise_w()
    }

    #[test]
    fn noise_is_found_on_a_flat_load_a_ramp_and_between_bursts() {
        let flat = found(|k| 300.0 + 1.5 * normal(k));
        assert!((1.3..1.7).contains(&flat), "{flat}");
        let ramp = found(|k| 100.0 + 0.1 * k as f64 + 0.7 * normal(k));
        assert!((0.6..0.8).contains(&ramp), "{ramp}");
        let bursts = found(|k| if k % 100 < 50 && k % 5 < 2 { 700.0 } else { 120.0 } + normal(k));
        assert!((0.8..1.5).contains(&bursts), "{bursts}");
    }

    #[test]
    fn cubics_explain_what_bends_and_not_what_jumps() {
        let at_s = [0.0, 0.018, 0.041, 0.057, 0.081];
        let residual_w =
            |power: fn(f64) -> f64| cubic_residual_w(at_s.map(|at_s| Reading { at_s, power_w: power(at_s) }));
        let bend = residual_w(|t| 100.0 + 3e3 * t - 5e4 * t * t + 4e5 * t * t * t).unwrap();
        assert!(bend.abs() < 1e-9, "{bend}");
        let jump = residual_w(|t| if t < 0.03 { 100.0 } else { 500.0 }).unwrap();
        assert!(jump.abs() > 50.0, "{jump}");
        assert_eq!(cubic_residual_w([Reading { at_s: 1.0, power_w: 1.0 }; 5]), None);
        // A deviation of 1 W each leaves one of 1 W.
        let noisy = (0..4_000).map(|k| {
            let readings =
                std::array::from_fn(|i| Reading { at_s: at_s[i], power_w: normal(5 * k + i as u64) });
            cubic_residual_w(readings).unwrap().powi(2)
        });
        let mean_w2 = noisy.sum::<f64>() / 4_000.0;
        assert!((0.93..1.07).contains(&mean_w2), "{mean_w2}");
    }

    #[test]
    fn where_power_never_stands_still_the_ceiling_holds() {
        assert_eq!(found(|k| if k % 5 < 2 { 700.0 } else { 120.0 }), NOISE_MOST_W);
        assert_eq!(NoiseFloor::default().noise_w(), DEFAULT_W);
    }
}
