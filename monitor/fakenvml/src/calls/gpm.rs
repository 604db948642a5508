//! Performance counters.
//!
//! Rule: a sample remembers when it was taken; metrics are computed between two samples of one GPU.
//! Only as many metrics as the caller counts are touched, because the struct grew with the drivers.
//! Not done here: samples of MIG instances; metrics other than those of the simulated GPU, each of
//! which has NOT_SUPPORTED as its own return code.

use std::ffi::CStr;
use std::mem::offset_of;

use gpumon_simgpu::{GpmMetrics, Sensor};
use nvml_wrapper_sys::bindings as sys;

use crate::codes::{Answer, Code};
use crate::edge::{Out, exports};
use crate::handles::{Gpu, Sample};
use crate::world::Call;

/// Not a struct's size and version, but a plain number.
const VERSION: u32 = 1;

type Info = sys::nvmlGpmMetric_t__bindgen_ty_1;

/// Value, name and unit of a metric.
fn metric(metrics: &GpmMetrics, id: u32) -> Option<(f64, &'static CStr, &'static CStr)> {
    Some(match id {
        1 => (metrics.sm_util_pct, c"Graphics Util", c"%"),
        2 => (metrics.sm_util_pct, c"SM Util", c"%"),
        3 => (metrics.sm_occupancy_pct, c"SM Occupancy", c"%"),
        5 => (metrics.tensor_util_pct, c"Any Tensor Util", c"%"),
        10 => (metrics.dram_util_pct, c"DRAM BW Util", c"%"),
        20 => (metrics.pcie_tx_mib_per_s, c"PCIe TX per sec", c"MiB/s"),
        21 => (metrics.pcie_rx_mib_per_s, c"PCIe RX per sec", c"MiB/s"),
        _ => return None,
    })
}

fn alloc(_: &Call<'_>, to: Out<sys::nvmlGpmSample_t>) -> Answer {
    to.put(Sample::alloc());
    Ok(())
}

fn free(_: &Call<'_>, sample: Sample) -> Answer {
    sample.free();
    Ok(())
}

fn sample(call: &Call<'_>, Gpu(gpu): Gpu, sample: Sample) -> Answer {
    let mut at = call.world.now();
    call.read(gpu, |model, now| {
        at = now;
        model.sim.gpm_between(now, now)
    })?;
    sample.fill(gpu, at);
    Ok(())
}

fn metrics(call: &Call<'_>, to: Out<sys::nvmlGpmMetricsGet_t>) -> Answer {
    if to.version() != VERSION {
        return Err(Code::ARGUMENT_VERSION_MISMATCH);
    }
    let count = to.cast::<u32>(offset_of!(sys::nvmlGpmMetricsGet_t, numMetrics)).get();
    let handle = |at| Sample::of(to.cast::<sys::nvmlGpmSample_t>(at).get()).and_then(Sample::taken);
    let (gpu, from) = handle(offset_of!(sys::nvmlGpmMetricsGet_t, sample1))?;
    let (same_gpu, until) = handle(offset_of!(sys::nvmlGpmMetricsGet_t, sample2))?;
    if gpu != same_gpu || count > sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_MAX {
        return Err(Code::INVALID_ARGUMENT);
    }
    if call.world.look(gpu, |model, _| model.lost)? {
        return Err(Code::GPU_IS_LOST);
    }
    let metrics = call.read(gpu, |model, _| model.sim.gpm_between(from, until))?;
    let entries = to.cast::<sys::nvmlGpmMetric_t>(offset_of!(sys::nvmlGpmMetricsGet_t, metrics));
    for index in 0..count as usize {
        let mut entry = entries.get_nth(index);
        match metric(&metrics, entry.metricId) {
            Some((value, name, unit)) => {
                entry.nvmlReturn = 0;
                entry.value = value;
                // Read-only texts, which no caller writes to.
                let text = |text: &'static CStr| text.as_ptr().cast_mut();
                entry.metricInfo = Info { shortName: text(name), longName: text(name), unit: text(unit) };
            }
            None => entry.nvmlReturn = Code::NOT_SUPPORTED.0,
        }
        entries.put_nth(index, entry);
    }
    Ok(())
}

fn support(call: &Call<'_>, Gpu(gpu): Gpu, to: Out<sys::nvmlGpmSupport_t>) -> Answer {
    if to.version() != VERSION {
        return Err(Code::ARGUMENT_VERSION_MISMATCH);
    }
    let has = call.world.look(gpu, |model, _| model.sim.supports(Sensor::Gpm))?;
    to.put(sys::nvmlGpmSupport_t { version: VERSION, isSupportedDevice: u32::from(has) });
    Ok(())
}

fn streaming(_: &Call<'_>, _: Gpu, to: Out<u32>) -> Answer {
    to.put(0);
    Ok(())
}

exports! {
    nvmlGpmSampleAlloc(sample: Out<sys::nvmlGpmSample_t>) => alloc;
    nvmlGpmSampleFree(sample: Sample) => free;
    nvmlGpmSampleGet(device: Gpu, sample: Sample) => sample;
    nvmlGpmMetricsGet(request: Out<sys::nvmlGpmMetricsGet_t>) => metrics;
    nvmlGpmQueryDeviceSupport(device: Gpu, support: Out<sys::nvmlGpmSupport_t>) => support;
    nvmlGpmQueryIfStreamingEnabled(device: Gpu, state: Out<u32>) => streaming;
}
