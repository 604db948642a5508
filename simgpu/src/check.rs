//! Which descriptions of a GPU can be simulated.
//!
//! Rule: numbers are finite, periods and windows are positive, what is ordered is in order, and what
//! bounds another thing is not below it. The first thing that is wrong is reported, with its key.
//! Not done here: plausibility; a 3 kW GPU with a 2 µs ring is accepted.

use std::fmt::Display;

use toml::Value;

use crate::sensors::Sensor;
use crate::spec::{Spec, SpecError};
use crate::update::Shape;

/// Highest power of one GPU, W: keeps milliwatts within 32 bits with room to spare.
const MOST_GPUS: f64 = 1024.0;
const MOST_W: f64 = 100_000.0;
/// Longest period or window, ms: an hour.
const MOST_MS: f64 = 3_600_000.0;

/// The error on a key.
pub(crate) fn wrong(key: &str, found: impl Display, expected: impl Into<String>) -> SpecError {
    SpecError::Value { key: key.into(), found: found.to_string(), expected: expected.into() }
}

/// A value as the text has it, or its type if that would be long.
pub(crate) fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{text:?}"),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Boolean(flag) => flag.to_string(),
        other => format!("a value of type {}", other.type_str()),
    }
}

pub(crate) fn check(spec: &Spec) -> Result<(), SpecError> {
    within("count", f64::from(spec.count), 1.0, MOST_GPUS, " GPUs")?;
    power(spec)?;
    clocks(spec)?;
    memory_and_heat(spec)?;
    activity(spec)?;
    sensors(spec)
}

fn within(key: &str, value: f64, min: f64, max: f64, unit: &str) -> Result<(), SpecError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(wrong(key, value, format!("a number from {min} to {max}{unit}")))
}

fn power(spec: &Spec) -> Result<(), SpecError> {
    let p = &spec.power;
    within("power.limit_min_w", p.limit_min_w, 1.0, MOST_W, " W")?;
    within("power.limit_max_w", p.limit_max_w, p.limit_min_w, MOST_W, " W (`power.limit_min_w` or more)")?;
    within(
        "power.limit_w",
        p.limit_w,
        p.limit_min_w,
        p.limit_max_w,
        " W (between `power.limit_min_w` and `power.limit_max_w`)",
    )?;
    within("power.idle_w", p.idle_w, 0.0, MOST_W, " W")?;
    within("power.idle_context_w", p.idle_context_w, p.idle_w, MOST_W, " W (`power.idle_w` or more)")?;
    within("power.dynamic_full_w", p.dynamic_full_w, 0.0, MOST_W, " W")?;
    curve(spec)
}

fn curve(spec: &Spec) -> Result<(), SpecError> {
    const KEY: &str = "power.dynamic_curve_mhz_share";
    let points = &spec.power.dynamic_curve_mhz_share;
    for (point, i) in points.iter().zip(0..) {
        within(&format!("{KEY}[{i}][0]"), point[0], 0.0, 1e5, " MHz")?;
        within(&format!("{KEY}[{i}][1]"), point[1], 0.0, 1.0, "")?;
    }
    for (pair, i) in points.windows(2).zip(1..) {
        if pair[1][0] <= pair[0][0] {
            return Err(wrong(
                &format!("{KEY}[{i}][0]"),
                format!("{} MHz after {} MHz", pair[1][0], pair[0][0]),
                "clocks in ascending order",
            ));
        }
        if pair[1][1] < pair[0][1] {
            return Err(wrong(
                &format!("{KEY}[{i}][1]"),
                format!("{} after {}", pair[1][1], pair[0][1]),
                "shares that do not fall as the clock rises",
            ));
        }
    }
    match points.last() {
        Some([_, share]) if *share == 1.0 => Ok(()),
        Some([_, share]) => {
            Err(wrong(KEY, format!("{share} at the end"), "a curve that ends at a share of 1"))
        }
        None => Err(wrong(KEY, "no points", "at least one [MHz, share], the last with a share of 1")),
    }
}

fn clocks(spec: &Spec) -> Result<(), SpecError> {
    let c = &spec.clocks;
    let whole = |key: &str, value: u32, min: u32| within(key, f64::from(value), f64::from(min), 1e5, " MHz");
    whole("clocks.graphics_min_mhz", c.graphics_min_mhz, 1)?;
    whole("clocks.graphics_max_mhz", c.graphics_max_mhz, c.graphics_min_mhz)?;
    whole("clocks.graphics_step_mhz", c.graphics_step_mhz, 1)?;
    whole("clocks.idle_mhz", c.idle_mhz, 0)?;
    whole("clocks.mem_mhz", c.mem_mhz, 0)?;
    if !(c.graphics_max_mhz - c.graphics_min_mhz).is_multiple_of(c.graphics_step_mhz) {
        return Err(wrong(
            "clocks.graphics_step_mhz",
            c.graphics_step_mhz,
            format!("a step that leads from {} to {} MHz", c.graphics_min_mhz, c.graphics_max_mhz),
        ));
    }
    Ok(())
}

fn memory_and_heat(spec: &Spec) -> Result<(), SpecError> {
    let m = &spec.memory;
    for (key, bytes) in
        [("memory.used_idle_bytes", m.used_idle_bytes), ("memory.used_context_bytes", m.used_context_bytes)]
    {
        if bytes > spec.mem_total_bytes {
            return Err(wrong(key, bytes, format!("at most `mem_total_bytes`, {}", spec.mem_total_bytes)));
        }
    }
    within("memory.idle_w", m.idle_w, 0.0, MOST_W, " W")?;
    within("memory.full_w", m.full_w, m.idle_w, MOST_W, " W (`memory.idle_w` or more)")?;
    let t = &spec.thermal;
    within("thermal.ambient_c", t.ambient_c, -100.0, 200.0, " °C")?;
    within("thermal.rise_c_per_w", t.rise_c_per_w, 0.0, 10.0, " °C per W")?;
    within("thermal.mem_above_gpu_c", t.mem_above_gpu_c, -100.0, 100.0, " °C")?;
    within("thermal.window_ms", t.window_ms, 1.0, MOST_MS, " ms")
}

fn activity(spec: &Spec) -> Result<(), SpecError> {
    let a = &spec.activity;
    for (key, share) in [
        ("activity.sm_share", a.sm_share),
        ("activity.occupancy_share", a.occupancy_share),
        ("activity.tensor_share", a.tensor_share),
        ("activity.dram_share", a.dram_share),
    ] {
        within(key, share, 0.0, 1.0, "")?;
    }
    within("activity.pcie_tx_mib_per_s", a.pcie_tx_mib_per_s, 0.0, 1e9, " MiB/s")?;
    within("activity.pcie_rx_mib_per_s", a.pcie_rx_mib_per_s, 0.0, 1e9, " MiB/s")
}

fn sensors(spec: &Spec) -> Result<(), SpecError> {
    let s = &spec.sensors;
    for (key, ms) in [
        ("sensors.update_ms", s.update_ms),
        ("sensors.average_window_ms", s.average_window_ms),
        ("sensors.usage_window_ms", s.usage_window_ms),
        ("sensors.counter_update_ms", s.counter_update_ms),
        ("sensors.gpm_min_ms", s.gpm_min_ms),
    ] {
        within(key, ms, 0.001, MOST_MS, " ms")?;
    }
    within(
        "sensors.update_jitter_ms",
        s.update_jitter_ms,
        0.0,
        s.update_ms * 0.49,
        " ms (less than half of `sensors.update_ms`, or updates would change places)",
    )?;
    for (key, ms) in [
        ("sensors.instant_lag_ms", s.instant_lag_ms),
        ("sensors.average_lag_ms", s.average_lag_ms),
        ("sensors.usage_lag_ms", s.usage_lag_ms),
    ] {
        within(key, ms, 0.0, MOST_MS, " ms")?;
    }
    match s.instant_shape {
        Shape::Box => within(
            "sensors.instant_window_ms",
            s.instant_window_ms,
            0.001,
            s.update_ms,
            " ms (no longer than `sensors.update_ms`)",
        )?,
        Shape::LowPass => {
            within("sensors.instant_window_ms", s.instant_window_ms, 0.001, MOST_MS, " ms")?;
        }
    }
    within("sensors.noise_w", s.noise_w, 0.0, MOST_W, " W")?;
    within("sensors.ring.spacing_ms", s.ring.spacing_ms, 0.01, MOST_MS, " ms")?;
    within(
        "sensors.ring.jitter_ms",
        s.ring.jitter_ms,
        0.0,
        s.ring.spacing_ms * 0.49,
        " ms (less than half of `sensors.ring.spacing_ms`, or readings would change places)",
    )?;
    within("sensors.ring.smoothing_ms", s.ring.smoothing_ms, 0.0, MOST_MS, " ms")?;
    within("sensors.ring.restamp_every_ms", s.ring.restamp_every_ms, 1.0, MOST_MS, " ms")?;
    within(
        "sensors.ring.restamp_ms",
        s.ring.restamp_ms,
        0.0,
        s.ring.spacing_ms * 0.1,
        " ms (at most a tenth of `sensors.ring.spacing_ms`)",
    )?;
    within("sensors.ring.capacity", f64::from(s.ring.capacity), 1.0, 1e6, " readings")?;
    for sensor in Sensor::ALL {
        let key = format!("sensors.cost_us.{sensor}");
        let Some([median_us, p99_us]) = s.cost_us.get(sensor) else {
            return Err(wrong(&key, "nothing", "[median, 99th percentile] of the call's duration in µs"));
        };
        within(&format!("{key}[0]"), *median_us, 0.01, 1e8, " µs")?;
        within(&format!("{key}[1]"), *p99_us, *median_us, 1e9, " µs (the median or more)")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_cannot_be_are_named() {
        for (text, expected) in [
            ("count = 0", &["`count`", "from 1 to 1024"][..]),
            ("[power]\nidle_w = -3", &["`power.idle_w`", "-3", "from 0"]),
            ("[power]\ndynamic_full_w = nan", &["`power.dynamic_full_w`", "NaN"]),
            ("[power]\ndynamic_full_w = inf", &["`power.dynamic_full_w`", "inf"]),
            ("[power]\nlimit_w = 900", &["`power.limit_w`", "900", "limit_max_w"]),
            ("[power]\nidle_context_w = 5", &["`power.idle_context_w`", "idle_w` or more"]),
            ("[power]\ndynamic_curve_mhz_share = []", &["dynamic_curve_mhz_share", "at least one"]),
            ("[power]\ndynamic_curve_mhz_share = [[500, 0.2], [400, 1]]", &["share[1][0]", "ascending"]),
            ("[power]\ndynamic_curve_mhz_share = [[500, 0.2], [600, 0.1]]", &["share[1][1]", "do not fall"]),
            ("[power]\ndynamic_curve_mhz_share = [[500, 0.2]]", &["ends at a share of 1"]),
            ("[clocks]\ngraphics_step_mhz = 17", &["`clocks.graphics_step_mhz`", "17", "345 to 1980"]),
            ("[clocks]\ngraphics_min_mhz = 3000", &["`clocks.graphics_max_mhz`", "3000"]),
            (
                "[memory]\nused_context_bytes = 900000000000",
                &["`memory.used_context_bytes`", "mem_total_bytes"],
            ),
            ("[activity]\ndram_share = 16", &["`activity.dram_share`", "16", "0 to 1"]),
            ("[sensors]\nupdate_ms = 0", &["`sensors.update_ms`", "0.001"]),
            (
                "[sensors]\ninstant_window_ms = 200",
                &["`sensors.instant_window_ms`", "200", "sensors.update_ms"],
            ),
            ("[sensors]\nupdate_jitter_ms = 50", &["`sensors.update_jitter_ms`", "50", "half"]),
            ("[sensors]\naverage_lag_ms = -1", &["`sensors.average_lag_ms`", "-1"]),
            ("[sensors.ring]\njitter_ms = 10", &["`sensors.ring.jitter_ms`", "half"]),
            ("[sensors.cost_us]\nring = [5, 4]", &["`sensors.cost_us.ring[1]`", "median or more"]),
        ] {
            let text = format!("base = \"h200\"\n{text}");
            let found = Spec::parse(&text, &mut |_| Err(String::new())).unwrap_err().to_string();
            for part in expected {
                assert!(found.contains(part), "{text:?} gives {found:?}, which lacks {part:?}");
            }
        }
    }
}
