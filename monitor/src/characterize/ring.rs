//! Timing of the driver's ring of readings, which carry their own time stamps.
//!
//! Rule: spacing is the median distance of stamps (refined as in [`super::period`]), its range the shortest and the longest; readings that
//! the driver left out are in it as long ones. The window is fitted as for a polled sensor, at the stamps.
//! Cases: a window at the lower end of the range that is tried means that each reading is an instant, window 0.
//! A filter of two stages, as on an H200, comes out as a low-pass of the longer stage whose lag is about the shorter one.

use gpumon_core::timing::RingTiming;

use super::fit::{Fit, Seen};
use super::period;

/// Shorter windows than this are instants, ms.
const INSTANT_MS: f64 = 0.5;

/// The readings of a run, how many the ring holds, and their fit.
pub fn timing(readings: &[Seen], capacity: usize, fit: &Fit) -> Option<RingTiming> {
    let spacing_ms = period::of(readings)?.update_ms;
    let between = readings.windows(2).map(|pair| pair[1].to_ms - pair[0].to_ms);
    let range = between.fold([f64::INFINITY, 0.0], |[low, high]: [f64; 2], ms| [low.min(ms), high.max(ms)]);
    Some(RingTiming {
        spacing_ms,
        spacing_range_ms: range,
        capacity: u32::try_from(capacity).unwrap_or(u32::MAX),
        shape: fit.shape,
        window_ms: if fit.window_ms < INSTANT_MS { 0.0 } else { fit.window_ms },
        lag_ms: fit.lag_ms,
        residual_w: fit.residual_w,
    })
}
