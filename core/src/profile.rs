//! A profile: what a model does at each point of share × frequency × batch, one row a point.
//!
//! The columns from `model` to `latency` carry the names that EnerTune published, so its files and ours
//! read alike. A row that could not be measured stays, with `valid` false and the reason; a figure that was not
//! taken is null.
//!
//! Reserved models: [`IDLE`] and [`IDLE_CONTEXT`] are the GPU without work, without and with a CUDA context,
//! at each frequency; their batch is 0.

use crate::table;

/// The model name of rows that measure the GPU without a CUDA context.
pub const IDLE: &str = "@idle";
/// The model name of rows that measure the GPU with a CUDA context and no work.
pub const IDLE_CONTEXT: &str = "@idle-context";

table! {
    /// One measured point of one model.
    pub struct ProfileRow in "profile" {
        /// Product name of the GPU; null where the source does not say.
        gpu_name: Option<String>,
        /// UUID of the GPU that was measured.
        gpu_uuid: Option<String>,
        /// Whether that GPU is a simulated one; null where the source does not say.
        simulated: Option<bool>,
        /// Name of the model.
        model: String,
        /// Items in a batch.
        batch_size: i32,
        /// How the GPU was shared: `mig`, `mps` or `green`.
        share_kind: Option<String>,
        /// Share of the SMs, 0 to 1.
        share: f64,
        /// Compute slices of the MIG instance, of seven.
        mig_slices: Option<i32>,
        /// Processes that served the model together in this share.
        processes: Option<i32>,
        /// SM clock that was asked for, MHz; where clocks were left alone, the highest that the GPU may run at.
        frequency: i32,
        /// Whether the clock was locked to it; false where clocks were left alone.
        clock_locked: Option<bool>,
        /// SM clock that was reached, mean over the measurement, MHz.
        sm_mhz_achieved: Option<f64>,
        /// Power limit that was set for this point, W; null where the limit was left alone.
        power_limit_w: Option<i32>,
        /// Mean power of the whole GPU, W.
        avg_power_draw: Option<f64>,
        /// Half width of the 95 % interval of that mean, W; of the readings' scatter alone.
        power_ci95: Option<f64>,
        /// Power above the GPU idling with a context at this clock, W.
        dynamic_power_draw: Option<f64>,
        /// Items a second.
        throughput: Option<f64>,
        /// Mean time of a batch, ms.
        latency: Option<f64>,
        /// Half width of the 95 % interval of that mean, ms.
        latency_ci95: Option<f64>,
        /// Median time of a batch, ms.
        latency_p50: Option<f64>,
        /// 95th percentile of the time of a batch, ms.
        latency_p95: Option<f64>,
        /// 99th percentile of the time of a batch, ms.
        latency_p99: Option<f64>,
        /// Energy of the whole GPU for one item, J.
        energy_per_item: Option<f64>,
        /// Device memory in use, bytes.
        mem_bytes: Option<i64>,
        /// Share of SM time with at least one warp, %.
        sm_util_pct: Option<f64>,
        /// Warps resident over warps possible, %.
        sm_occupancy_pct: Option<f64>,
        /// Share of cycles in which the tensor pipe was active, %.
        tensor_util_pct: Option<f64>,
        /// Share of peak DRAM bandwidth in use, %.
        dram_util_pct: Option<f64>,
        /// Temperature of the GPU at the end of the measurement, °C.
        temp_c: Option<f64>,
        /// Batches measured.
        n_samples: Option<i64>,
        /// Time the row took, everything included (start, load, warm-up, measurement), s.
        wall_s: Option<f64>,
        /// Energy of the GPU over that time, J, by its counter.
        wall_energy_j: Option<f64>,
        /// Whether the point can be used.
        valid: bool,
        /// Why not, or what is special about the point.
        reason: Option<String>,
    }
}

/// What tells points apart: model, batch, share (in millionths), slices, processes, frequency, power limit.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PointKey {
    /// Name of the model.
    pub model: String,
    /// Items in a batch.
    pub batch_size: i32,
    /// Share of the SMs, millionths.
    pub share_ppm: i64,
    /// Compute slices of the MIG instance.
    pub mig_slices: Option<i32>,
    /// Processes in this share.
    pub processes: Option<i32>,
    /// SM clock asked for, MHz.
    pub frequency: i32,
    /// Power limit set, W.
    pub power_limit_w: Option<i32>,
}

impl ProfileRow {
    /// A point without figures.
    pub fn new(model: &str, batch_size: i32, share: f64, frequency: i32) -> Self {
        Self {
            gpu_name: None,
            gpu_uuid: None,
            simulated: None,
            model: model.to_owned(),
            batch_size,
            share_kind: None,
            share,
            mig_slices: None,
            processes: None,
            frequency,
            clock_locked: None,
            sm_mhz_achieved: None,
            power_limit_w: None,
            avg_power_draw: None,
            power_ci95: None,
            dynamic_power_draw: None,
            throughput: None,
            latency: None,
            latency_ci95: None,
            latency_p50: None,
            latency_p95: None,
            latency_p99: None,
            energy_per_item: None,
            mem_bytes: None,
            sm_util_pct: None,
            sm_occupancy_pct: None,
            tensor_util_pct: None,
            dram_util_pct: None,
            temp_c: None,
            n_samples: None,
            wall_s: None,
            wall_energy_j: None,
            valid: true,
            reason: None,
        }
    }

    /// What tells this point from others.
    pub fn key(&self) -> PointKey {
        PointKey {
            model: self.model.clone(),
            batch_size: self.batch_size,
            share_ppm: (self.share * 1e6).round() as i64,
            mig_slices: self.mig_slices,
            processes: self.processes,
            frequency: self.frequency,
            power_limit_w: self.power_limit_w,
        }
    }

    /// Whether this row measures the GPU without work.
    pub fn is_idle(&self) -> bool {
        self.model == IDLE || self.model == IDLE_CONTEXT
    }
}
