//! What was found out about one GPU's power sensors: how often they change, over which window, how late.
//!
//! Rule: nothing here is assumed; each figure was measured on the GPU with this UUID under this driver, and what could
//! not be found is absent. The file is JSON, a GPU each; a newer schema is refused by whoever reads it.
//!
//! Definitions. A sensor shows a new value every `update_ms`. The value shown is the power averaged over a window; a box
//! window of `window_ms` ends `lag_ms` before the value appears, a low-pass has the time constant `window_ms` and lags
//! likewise. The centre of a box lies lag + window / 2 before the value appears, that of a low-pass lag + window.
//! Coverage is the share of time that some window sees: min(1, window / update) for a box, 1 for a low-pass.

use serde::{Deserialize, Serialize};

use crate::units::WallUs;

/// Version of the file's shape.
pub const TIMING_SCHEMA: u32 = 1;

/// The characterisation of one GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Characterisation {
    /// Version of the shape.
    pub schema: u32,
    /// Version of gpumon that found it.
    pub gpumon: String,
    /// Whether the GPU is simulated.
    pub simulated: bool,
    /// The GPU.
    pub uuid: String,
    /// Its product name.
    pub gpu_name: String,
    /// Its driver; another one needs another characterisation.
    pub driver: String,
    /// When it was found, µs since 1970 UTC.
    pub made_wall_us: WallUs,
    /// What loaded the GPU meanwhile.
    pub load: String,
    /// The short-window power field (186).
    pub instant: Option<PowerTiming>,
    /// The average power field (185).
    pub average: Option<PowerTiming>,
    /// The ring of readings.
    pub ring: Option<RingTiming>,
    /// The energy counter.
    pub counter: Option<CounterTiming>,
    /// What calls cost.
    pub calls: Vec<CallCost>,
    /// What recording at the default rate costs.
    pub own_cost: Option<OwnOverhead>,
    /// What could not be found, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// How a sensor weighs the past.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WindowShape {
    /// All of the window alike.
    Box,
    /// The past fades exponentially.
    LowPass,
}

/// Timing of a polled power sensor.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PowerTiming {
    /// Median time between two values, ms.
    pub update_ms: f64,
    /// Half of the span that holds 90 % of the times between two values, ms.
    pub update_jitter_ms: f64,
    /// Shape of the window.
    pub shape: WindowShape,
    /// Length of a box window, or time constant of a low-pass, ms.
    pub window_ms: f64,
    /// From the end of the window to the appearance of the value, ms.
    pub lag_ms: f64,
    /// Share of time that is seen, 0 to 1.
    pub coverage: f64,
    /// What is left unexplained, standard deviation, W.
    pub residual_w: f64,
}

/// Timing of the ring of readings.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RingTiming {
    /// Median time between two readings, ms.
    pub spacing_ms: f64,
    /// Shortest and longest time between two readings, ms.
    pub spacing_range_ms: [f64; 2],
    /// Readings that the ring holds.
    pub capacity: u32,
    /// Shape of the window.
    pub shape: WindowShape,
    /// Length of a box window, or time constant of a low-pass, ms; 0 where each reading is an instant.
    pub window_ms: f64,
    /// From the end of the window to the time stamp, ms.
    pub lag_ms: f64,
    /// What is left unexplained, standard deviation, W.
    pub residual_w: f64,
}

/// The energy counter.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CounterTiming {
    /// Median time between two steps, ms.
    pub update_ms: f64,
    /// Smallest difference of two values, mJ.
    pub step_mj: f64,
    /// Energy by the counter over energy by the best power readings, over the whole load; 1 if they agree.
    pub ratio_to_integral: Option<f64>,
    /// From the end of what a value counts to its appearance, ms, where it could be found.
    pub lag_ms: Option<f64>,
}

/// What a call into the driver costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallCost {
    /// The sensor that is asked.
    pub call: String,
    /// Calls made.
    pub count: u64,
    /// Median, µs.
    pub p50_us: f64,
    /// 99th percentile, µs.
    pub p99_us: f64,
    /// Longest, µs.
    pub max_us: f64,
    /// The histogram in hdrhistogram's V2 format, base64.
    pub histogram: String,
}

/// What gpumon itself costs at its default rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct OwnOverhead {
    /// CPU, % of one core.
    pub cpu_pct: f64,
    /// Difference of the GPU's mean power with and without recording, W, as far as it can be told.
    pub gpu_w: Option<f64>,
    /// How far that difference may be off, 95 %, W.
    pub gpu_w_within: Option<f64>,
}
