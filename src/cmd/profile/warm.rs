//! What is told of heating and of idle power's drift.

use gpumon_profile::{Drift, Heated};
use serde::Serialize;

/// A heating.
#[derive(Serialize)]
pub struct HeatReport<'a> {
    model: &'a str,
    batch: u32,
    from_c: Option<f64>,
    to_c: Option<f64>,
    took_s: f64,
    took_j: Option<f64>,
    steady: bool,
}

impl<'a> HeatReport<'a> {
    pub fn new(heated: &'a Heated) -> Self {
        let Heated { model, batch, from_c, to_c, seconds, joules, steady } = heated;
        Self {
            model,
            batch: *batch,
            from_c: *from_c,
            to_c: *to_c,
            took_s: *seconds,
            took_j: *joules,
            steady: *steady,
        }
    }
}

/// Idle power with a context before and after the points.
#[derive(Serialize)]
pub struct DriftReport {
    frequency_mhz: i32,
    first_w: f64,
    first_c: Option<f64>,
    last_w: f64,
    last_c: Option<f64>,
    w_per_k: Option<f64>,
}

impl DriftReport {
    pub fn new(drift: &Drift) -> Self {
        Self {
            frequency_mhz: drift.clock_mhz,
            first_w: drift.first_w,
            first_c: drift.first_c,
            last_w: drift.last_w,
            last_c: drift.last_c,
            w_per_k: drift.w_per_k(),
        }
    }
}
