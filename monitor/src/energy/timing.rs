//! What the estimators must know of the sensors' timing, from a characterisation or by default.
//!
//! Defaults are the H200's (docs/simulated-gpu.md), and wider uncertainty comes with them.

use gpumon_core::timing::{Characterisation, WindowShape};

/// How a ring reading lags behind power.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RingDelay {
    /// Pure delay, s.
    pub(super) shift_s: f64,
    /// Time constants of two stages of smoothing, s.
    pub(super) tau_s: [f64; 2],
    /// Deviation of the whole delay from what is said here, stamps included, s.
    pub(super) off_s: f64,
}

/// How a polled reading of the short window lags behind power.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PolledDelay {
    /// Time between two values, s.
    pub(super) update_s: f64,
    /// From the middle of the window to the value's appearance, s.
    pub(super) centre_s: f64,
    /// Deviation of that, s.
    pub(super) off_s: f64,
    /// Share of time that some window sees.
    pub(super) coverage: f64,
}

/// Timing of one GPU's sensors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    pub(super) ring: RingDelay,
    pub(super) instant: PolledDelay,
    /// Period of the energy counter, s, and whether it was measured.
    pub(super) counter_s: f64,
    pub(super) counter_known: bool,
}

/// The ring is stamped anew each 5 s, −0.45 to +0.23 ms off (data/runs/2026-11-30-h200-recorder): the deviation, s.
const STAMPS_S: f64 = 0.25e-3;
/// How far the delay of a ring that nobody characterised may be off (deviation), s.
const UNKNOWN_S: f64 = 2e-3;
/// The same once it is characterised: the fit's own error, s.
const FITTED_S: f64 = 0.4e-3;

impl Default for Timing {
    fn default() -> Self {
        Self {
            ring: RingDelay { shift_s: 0.0, tau_s: [0.014, 0.0042], off_s: UNKNOWN_S },
            instant: PolledDelay { update_s: 0.1, centre_s: 0.0125, off_s: 5e-3, coverage: 0.25 },
            counter_s: 0.1,
            counter_known: false,
        }
    }
}

impl Timing {
    /// The timing that was found, the rest by default.
    pub fn new(found: Option<&Characterisation>) -> Self {
        let mut timing = Self::default();
        let Some(found) = found else { return timing };
        if let Some(ring) = &found.ring {
            let (window_s, lag_s) = (ring.window_ms / 1e3, ring.lag_ms / 1e3);
            let off_s = STAMPS_S.hypot(FITTED_S);
            timing.ring = match ring.shape {
                // A small lag is a second stage that rounds the start of a rise.
                WindowShape::LowPass => {
                    let second_s = lag_s.clamp(0.0, 0.5 * window_s);
                    RingDelay { shift_s: lag_s - second_s, tau_s: [window_s, second_s], off_s }
                }
                // A box lags by half its length and blurs by its length over √12, as a stage of that constant does.
                WindowShape::Box => {
                    let tau_s = window_s / 12f64.sqrt();
                    RingDelay { shift_s: lag_s + window_s / 2.0 - tau_s, tau_s: [tau_s, 0.0], off_s }
                }
            };
        }
        if let Some(instant) = &found.instant {
            let window_s = instant.window_ms / 1e3;
            let middle_s = if instant.shape == WindowShape::Box { window_s / 2.0 } else { window_s };
            timing.instant = PolledDelay {
                update_s: (instant.update_ms / 1e3).max(1e-3),
                centre_s: instant.lag_ms / 1e3 + middle_s,
                off_s: 1e-3,
                coverage: instant.coverage.clamp(0.0, 1.0),
            };
        }
        if let Some(counter) = &found.counter {
            timing.counter_s = counter.update_ms / 1e3;
            timing.counter_known = true;
        }
        timing
    }
}

impl RingDelay {
    /// The whole delay, s.
    pub(super) fn total_s(&self) -> f64 {
        self.shift_s + self.tau_s[0] + self.tau_s[1]
    }
}
