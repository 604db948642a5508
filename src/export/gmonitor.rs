//! The columns of `gmonitor`, the daemon that EnerTune ships, for tools that read its files.
//!
//! Rule: its column names in its order, one row a tick of the fast lane, with the values that the names
//! promise; what a recording does not have is empty. One GPU a file, as the daemon writes it.
//!
//! Where this differs from the daemon's own files: `energy_draw_j` holds joules (there millijoules under
//! that name); `util_sm` and `util_mem` hold the driver's utilisation (there always 0); a reading that failed
//! is empty (there the row before is repeated); `clock_graphics_mhz` and `clock_mem_max_mhz` are empty
//! (there the application-clock targets, which are no clocks that were measured).
#![allow(non_snake_case, reason = "the daemon's column names")]

use anyhow::Result;
use arrow::array::RecordBatch;
use gpumon_core::header::Gpu;
use gpumon_core::table::Table;
use gpumon_monitor::store::Reader;

use super::join::{Moment, moments};
use super::rows::Select;

gpumon_core::table! {
    /// One reading of the daemon.
    pub struct GmonitorRow in "gmonitor" {
        /// Wall clock, ns since 1970.
        timestamp: i64,
        /// GPU temperature, °C.
        temp: Option<i32>,
        /// SM clock, MHz.
        clock_sm_mhz: Option<i32>,
        /// Empty.
        clock_graphics_mhz: Option<i32>,
        /// Memory clock, MHz.
        clock_mem_mhz: Option<i32>,
        /// Empty.
        clock_mem_max_mhz: Option<i32>,
        /// Average power, or else instant power, mW.
        power_draw_mW: Option<i32>,
        /// Power limit at the start, mW.
        power_limit_mW: Option<i64>,
        /// Energy counter, J.
        energy_draw_j: Option<f64>,
        /// Share of time in which any kernel ran, %.
        util_sm: Option<i32>,
        /// Share of time in which memory was read or written, %.
        util_mem: Option<i32>,
        /// Memory in use, bytes.
        mem_used_bytes: Option<i64>,
        /// Total memory less memory in use, bytes.
        mem_free_bytes: Option<i64>,
        /// Performance state.
        pstate: Option<i32>,
        /// NVML's clock-event bit mask.
        clock_throttle_reason_active: Option<i64>,
    }
}

/// Passes the table to `put`, a batch at a time; `select` and `gpu` mean the same GPU.
pub fn batches(
    reader: &Reader,
    select: Select,
    gpu: &Gpu,
    mut put: impl FnMut(&RecordBatch) -> Result<()>,
) -> Result<()> {
    let start_us = reader.header().start_wall_us.0;
    put(&GmonitorRow::to_batch(&[]))?;
    moments(reader, select, |chunk| {
        let rows: Vec<_> = chunk.iter().map(|moment| row(moment, gpu, start_us)).collect();
        put(&GmonitorRow::to_batch(&rows))
    })
}

fn row(moment: &Moment, gpu: &Gpu, start_us: i64) -> GmonitorRow {
    let (fast, slow) = (&moment.fast, moment.slow.as_ref());
    let used = slow.and_then(|s| s.mem_used_bytes);
    let total = gpu.mem_total_bytes.and_then(|bytes| i64::try_from(bytes).ok());
    GmonitorRow {
        timestamp: (start_us + fast.mono_us).saturating_mul(1000),
        temp: slow.and_then(|s| s.temp_c),
        clock_sm_mhz: fast.sm_mhz,
        clock_graphics_mhz: None,
        clock_mem_mhz: slow.and_then(|s| s.mem_mhz),
        clock_mem_max_mhz: None,
        power_draw_mW: fast.power_average_mw.or(fast.power_instant_mw),
        power_limit_mW: gpu.power_limit_mw.map(|limit| i64::from(limit.0)),
        energy_draw_j: moment.counter.as_ref().map(|c| c.energy_mj as f64 / 1e3),
        util_sm: slow.and_then(|s| s.util_gpu_pct),
        util_mem: slow.and_then(|s| s.util_mem_pct),
        mem_used_bytes: used,
        mem_free_bytes: total.zip(used).map(|(total, used)| total - used),
        pstate: slow.and_then(|s| s.pstate),
        clock_throttle_reason_active: slow.and_then(|s| s.event_reasons),
    }
}
