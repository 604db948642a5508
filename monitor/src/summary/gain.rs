//! What a meter's word does to a GPU's figures.
//!
//! Rule: true power is gain × reading + offset, so energy is gain × energy + offset × time. Everything in W or J is
//! corrected, the interval and its parts too; what there was before stays in `raw`. The meter's own uncertainty becomes
//! `gain_pct`, which takes the place of the 5 % that an uncalibrated sensor has.
//! Cases: a figure that is absent stays absent; a corrected figure is never below 0.
//! Source of the 5 %: cards were −5.8 to −2 % off against a meter ("Part-time Power Measurements", SC'24; one Turing
//! card +13 %).

use gpumon_core::calibration::Correction;
use serde::Serialize;

use super::GpuSummary;

/// How far the gain of a sensor may be off that no meter was held against, %.
pub(super) const UNKNOWN_PCT: f64 = 5.0;

/// Figures before a correction.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Raw {
    /// Energy, J.
    pub energy_j: Option<f64>,
    /// Energy over time, W.
    pub power_mean_w: Option<f64>,
    /// 99th percentile of power over time, W.
    pub power_p99_w: Option<f64>,
    /// Largest reading, W.
    pub power_max_w: Option<f64>,
}

/// The figures of a GPU over `seconds`, corrected.
pub(super) fn corrected(mut gpu: GpuSummary, by: &Correction, seconds: f64) -> GpuSummary {
    gpu.raw = Some(Raw {
        energy_j: gpu.energy_j,
        power_mean_w: gpu.power_mean_w,
        power_p99_w: gpu.power_p99_w,
        power_max_w: gpu.power_max_w,
    });
    for power_w in [&mut gpu.power_mean_w, &mut gpu.power_p99_w, &mut gpu.power_max_w] {
        *power_w = power_w.map(|w| (by.gain * w + by.offset_w).max(0.0));
    }
    let energies = [
        &mut gpu.energy_j,
        &mut gpu.energy_low_j,
        &mut gpu.energy_high_j,
        &mut gpu.energy_ring_j,
        &mut gpu.energy_counter_j,
        &mut gpu.energy_instant_j,
    ];
    for energy_j in energies {
        *energy_j = energy_j.map(|j| (by.gain * j + by.offset_w * seconds).max(0.0));
    }
    gpu.energy_parts = gpu.energy_parts.map(|parts| parts.times(by.gain));
    let offset_pct = match gpu.power_mean_w {
        Some(mean_w) if mean_w > 0.0 => 100.0 * by.offset_within_w / mean_w,
        _ => 0.0,
    };
    gpu.gain_pct = by.gain_within_pct.hypot(offset_pct);
    gpu.gain_source = Some(by.source.clone());
    gpu
}
