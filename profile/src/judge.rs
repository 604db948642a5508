//! What a run is worth as a row.
//!
//! | what happened | the row |
//! |---|---|
//! | the point does not fit, or failed | not valid |
//! | too few batches in the longest span allowed | not valid |
//! | no power reading | not valid |
//! | a locked clock that did not come, with the power cap as the reason | valid, noted |
//! | a locked clock that did not come, without that reason | not valid |
//! | clocks left alone, and the power cap lowered them | valid, noted |
//! | thermal or hardware slowdown seen | not valid |
//! | latency still moved when warm-up was over | valid, noted |
//! | mean power or batch time known less well than asked for | valid, noted |
//! | power at or below idle | valid, dynamic power 0, noted |
//!
//! Rule: power is that of the whole GPU over the measuring span; dynamic power is what of it lies above the GPU idling
//! with a context at the clock that was asked for. Throughput is items over the time of the batches.

use gpumon_core::profile::ProfileRow;
use gpumon_monitor::summary::reasons;

use crate::interval::Mean;
use crate::phases::{Run, percentile};
use crate::protocol::Protocol;

/// SW power cap.
const POWER_CAP: u64 = 0x4;
/// HW slowdown, SW and HW thermal slowdown, HW power brake.
const SLOWDOWNS: u64 = 0x8 | 0x20 | 0x40 | 0x80;
/// One step of the clocks of data-centre GPUs, MHz.
const CLOCK_STEP_MHZ: f64 = 15.0;

/// The row of a run. `row` says which point it was, and in its reason what is special about it. `idle_w`: power of the GPU idling with a context at its clock, W.
pub(crate) fn judge(protocol: &Protocol, mut row: ProfileRow, run: &Run, idle_w: Option<f64>) -> ProfileRow {
    let Run { times_ms, measured, settled } = run;
    let (mut wrong, mut notes) = (Vec::new(), Vec::from_iter(row.reason.take()));
    let total_s = times_ms.iter().sum::<f64>() / 1e3;
    let items = times_ms.len() as f64 * f64::from(row.batch_size);
    let (latency, power) = (Mean::of(times_ms), &measured.power);
    if let Some(latency) = latency {
        row.latency = Some(latency.mean);
        row.latency_ci95 = latency.half_width;
        row.latency_p50 = Some(percentile(times_ms, 0.5));
        row.latency_p95 = Some(percentile(times_ms, 0.95));
        row.latency_p99 = Some(percentile(times_ms, 0.99));
        row.throughput = Some(items / total_s);
        row.energy_per_item = power.map(|w| w.mean * total_s / items);
    }
    row.n_samples = Some(times_ms.len() as i64);
    row.sm_mhz_achieved = measured.sm_mhz;
    row.temp_c = measured.temp_c;
    row.avg_power_draw = power.map(|w| w.mean);
    row.power_ci95 = power.and_then(|w| w.half_width);
    if let Some(activity) = measured.activity {
        row.sm_util_pct = activity.sm_util_pct;
        row.sm_occupancy_pct = activity.sm_occupancy_pct;
        row.tensor_util_pct = activity.tensor_util_pct;
        row.dram_util_pct = activity.dram_util_pct;
    }
    match (power.map(|w| w.mean), idle_w) {
        (None, _) => wrong.push("no power reading".to_owned()),
        (_, None) => notes.push("no idle power at this clock, so no dynamic power".into()),
        (Some(w), Some(idle)) if w > idle => row.dynamic_power_draw = Some(w - idle),
        (Some(w), Some(idle)) => {
            row.dynamic_power_draw = Some(0.0);
            notes.push(format!("drew {w:.2} W, not more than the {idle:.2} W of idling"));
        }
    }
    if times_ms.is_empty() {
        wrong.push("no batch ended within the measurement".into());
    } else if times_ms.len() < protocol.min_batches {
        let needed = protocol.min_batches;
        wrong.push(format!("{} batches in {total_s:.1} s, {needed} are needed", times_ms.len()));
    }
    if !settled {
        notes.push(format!("latency still moved after {} s of warm-up", protocol.warmup_max_s));
    }
    for (what, mean) in [("power", *power), ("batch time", latency)] {
        if let Some(half) = mean.filter(|m| m.half_width.is_some() && m.relative() > protocol.precision) {
            notes.push(format!("mean {what} is known to {:.1} %", 100.0 * half.relative()));
        }
    }
    let capped = measured.reasons & POWER_CAP != 0;
    let asked_mhz = f64::from(row.frequency);
    if let Some(mhz) = measured.sm_mhz.filter(|mhz| (mhz - asked_mhz).abs() > CLOCK_STEP_MHZ / 2.0) {
        match row.clock_locked {
            _ if capped && mhz < asked_mhz => notes.push(format!("power cap: ran at {mhz:.0} MHz")),
            Some(false) => {}
            _ => wrong.push(format!("ran at {mhz:.0} MHz")),
        }
    }
    if measured.reasons & SLOWDOWNS != 0 {
        wrong.extend(reasons::limits(measured.reasons & SLOWDOWNS).map(str::to_owned));
    }
    row.valid = wrong.is_empty();
    wrong.extend(notes);
    row.reason = (!wrong.is_empty()).then(|| wrong.join("; "));
    row
}
