//! Temperatures, utilisation, memory, processes.
//!
//! Assumed: nothing is encoded or decoded; no memory is reserved; slowdown at 90 °C, shutdown at
//! 95 °C; no ECC errors; every scripted process computes. In MIG mode a GPU's utilisation is not
//! supported (`nvml.h`), and a MIG device's memory in use is 0.

use nvml_wrapper_sys::bindings as sys;

use crate::codes::{Answer, Code};
use crate::edge::{Out, exports, put_list};
use crate::handles::{Device, Gpu};
use crate::mig;
use crate::script::Process;
use crate::world::Call;

const UTIL_PERIOD_US: u32 = 166_667;
/// How far back samples of processes reach, µs.
const KEPT_US: i64 = 5_000_000;

fn temperature_c(call: &Call<'_>, gpu: u32, sensor: u32) -> Answer<i32> {
    if sensor != sys::nvmlTemperatureSensors_enum_NVML_TEMPERATURE_GPU {
        return Err(Code::INVALID_ARGUMENT);
    }
    call.read(gpu, |model, now| model.sim.temperature(now))
}

fn temperature(call: &Call<'_>, Gpu(gpu): Gpu, sensor: u32, to: Out<u32>) -> Answer {
    call.give32(&to, temperature_c(call, gpu, sensor)?.unsigned_abs())
}

fn temperature_v(call: &Call<'_>, Gpu(gpu): Gpu, to: Out<sys::nvmlTemperature_v1_t>) -> Answer {
    to.has_version(1)?;
    let asked = to.get();
    let temperature = temperature_c(call, gpu, asked.sensorType)?;
    to.put(sys::nvmlTemperature_v1_t { temperature, ..asked });
    Ok(())
}

fn threshold(_: &Call<'_>, _: Gpu, kind: u32, to: Out<u32>) -> Answer {
    match kind {
        sys::nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_SHUTDOWN => to.put(95),
        sys::nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_SLOWDOWN => to.put(90),
        _ => return Err(Code::NOT_SUPPORTED),
    }
    Ok(())
}

fn fan(call: &Call<'_>, gpu: Gpu, to: Out<u32>) -> Answer {
    fan_of(call, gpu, 0, to)
}

fn fan_of(call: &Call<'_>, Gpu(gpu): Gpu, fan: u32, to: Out<u32>) -> Answer {
    let speed = call.read(gpu, |model, now| model.sim.fan(now))?;
    if fan > 0 { Err(Code::INVALID_ARGUMENT) } else { call.give32(&to, speed) }
}

fn fans(call: &Call<'_>, Gpu(gpu): Gpu, to: Out<u32>) -> Answer {
    let has = call.world.look(gpu, |model, _| model.sim.supports(gpumon_simgpu::Sensor::Fan))?;
    to.put(u32::from(has));
    Ok(())
}

fn utilization(call: &Call<'_>, Gpu(gpu): Gpu, to: Out<sys::nvmlUtilization_st>) -> Answer {
    if call.world.look(gpu, |model, _| model.mig.on)? {
        return Err(Code::NOT_SUPPORTED);
    }
    let read = call.read(gpu, |model, now| model.sim.utilization(now))?;
    let (gpu, memory) = (call.number32(read.gpu_pct), call.number32(read.mem_pct));
    to.put(sys::nvmlUtilization_st { gpu, memory });
    Ok(())
}

fn nothing_coded(_: &Call<'_>, _: Gpu, to: Out<u32>, period_us: Out<u32>) -> Answer {
    to.put(0);
    period_us.put(UTIL_PERIOD_US);
    Ok(())
}

/// Total and used memory, bytes.
fn memory_bytes(call: &Call<'_>, device: Device) -> Answer<(u64, u64)> {
    match device {
        Device::Gpu(gpu) => {
            let used = call.read(gpu, |model, now| model.sim.mem_used(now))?;
            Ok((call.world.script.spec.mem_total_bytes, call.number(used)))
        }
        Device::Mig { gpu, gi, .. } => {
            let profile = call
                .world
                .look(gpu, |model, _| model.mig.instance(gi).and_then(mig::GpuInstance::profile))??;
            Ok((super::identity::memory_of(call, &profile.size), 0))
        }
    }
}

fn memory(call: &Call<'_>, device: Device, to: Out<sys::nvmlMemory_st>) -> Answer {
    let (total, used) = memory_bytes(call, device)?;
    to.put(sys::nvmlMemory_st { total, free: total.saturating_sub(used), used });
    Ok(())
}

fn memory_v2(call: &Call<'_>, device: Device, to: Out<sys::nvmlMemory_v2_st>) -> Answer {
    to.has_version(2)?;
    let (total, used) = memory_bytes(call, device)?;
    let free = total.saturating_sub(used);
    to.put(sys::nvmlMemory_v2_st { version: to.version(), total, reserved: 0, free, used });
    Ok(())
}

fn bar1(call: &Call<'_>, _: Device, to: Out<sys::nvmlBAR1Memory_st>) -> Answer {
    let total = call.world.script.spec.mem_total_bytes.next_power_of_two();
    to.put(sys::nvmlBAR1Memory_st { bar1Total: total, bar1Free: total, bar1Used: 0 });
    Ok(())
}

fn pcie(call: &Call<'_>, Gpu(gpu): Gpu, counter: u32, to: Out<u32>) -> Answer {
    let over_us = (call.world.script.spec.sensors.gpm_min_ms * 1e3) as i64;
    let metrics =
        call.world.look(gpu, |model, now| model.sim.gpm_between(now.plus_us(-over_us), now).value)?;
    let metrics = metrics.map_err(|_| Code::NOT_SUPPORTED)?;
    let mib_per_s = match counter {
        sys::nvmlPcieUtilCounter_enum_NVML_PCIE_UTIL_TX_BYTES => metrics.pcie_tx_mib_per_s,
        sys::nvmlPcieUtilCounter_enum_NVML_PCIE_UTIL_RX_BYTES => metrics.pcie_rx_mib_per_s,
        _ => return Err(Code::INVALID_ARGUMENT),
    };
    to.put((mib_per_s * 1024.0) as u32);
    Ok(())
}

fn ecc_errors(_: &Call<'_>, _: Gpu, _kind: u32, _counter: u32, to: Out<u64>) -> Answer {
    to.put(0);
    Ok(())
}

fn not_available() -> u32 {
    u32::MAX
}

fn v1(p: &Process) -> sys::nvmlProcessInfo_v1_st {
    sys::nvmlProcessInfo_v1_st { pid: p.pid, usedGpuMemory: p.used_bytes }
}

fn v2(p: &Process) -> sys::nvmlProcessInfo_t {
    sys::nvmlProcessInfo_t {
        pid: p.pid,
        usedGpuMemory: p.used_bytes,
        gpuInstanceId: p.gpu_instance.unwrap_or(not_available()),
        computeInstanceId: p.gpu_instance.map_or(not_available(), |_| 0),
    }
}

fn computing_v1(
    call: &Call<'_>,
    device: Device,
    count: Out<u32>,
    to: Option<Out<sys::nvmlProcessInfo_v1_st>>,
) -> Answer {
    let list: Vec<_> = call.processes(device).iter().map(v1).collect();
    put_list(&count, &to, &list)
}

fn computing(
    call: &Call<'_>,
    device: Device,
    count: Out<u32>,
    to: Option<Out<sys::nvmlProcessInfo_t>>,
) -> Answer {
    let list: Vec<_> = call.processes(device).iter().map(v2).collect();
    put_list(&count, &to, &list)
}

fn none_v1(_: &Call<'_>, _: Device, count: Out<u32>, to: Option<Out<sys::nvmlProcessInfo_v1_st>>) -> Answer {
    put_list(&count, &to, &[])
}

fn none(_: &Call<'_>, _: Device, count: Out<u32>, to: Option<Out<sys::nvmlProcessInfo_t>>) -> Answer {
    put_list(&count, &to, &[])
}

fn process_utilization(
    call: &Call<'_>,
    Gpu(gpu): Gpu,
    to: Option<Out<sys::nvmlProcessUtilizationSample_st>>,
    count: Out<u32>,
    last_seen_us: u64,
) -> Answer {
    if call.world.look(gpu, |model, _| model.mig.on)? {
        return Err(Code::NOT_SUPPORTED);
    }
    let (read, now) = call.world.look(gpu, |model, now| (model.sim.utilization(now).value, now))?;
    let read = read.map_err(|_| Code::NOT_SUPPORTED)?;
    let time_us = call.world.wall_us(now).unsigned_abs();
    let scripted = call.scripted(gpu);
    let alike_pct = 100.0 / scripted.len().max(1) as f64;
    let sample = |pid: u32, sm: u32, mem: u32| sys::nvmlProcessUtilizationSample_st {
        pid,
        timeStamp: time_us,
        smUtil: sm,
        memUtil: mem,
        encUtil: 0,
        decUtil: 0,
    };
    let part = |pct: u32, p: &Process| (f64::from(pct) * p.share_pct.unwrap_or(alike_pct) / 100.0) as u32;
    let mut samples: Vec<_> =
        scripted.iter().map(|p| sample(p.pid, part(read.gpu_pct, p), part(read.mem_pct, p))).collect();
    let since = call.world.at_wall_us(i64::try_from(last_seen_us).unwrap_or(i64::MAX));
    let from = since.max(now.plus_us(-KEPT_US)).min(now);
    let did = call.world.look(gpu, |model, _| model.sim.processes(from, now).value)?;
    let did = did.map_err(|_| Code::NOT_SUPPORTED)?;
    for process in did {
        let (Some(sm), Some(mem)) = (process.sm_util_pct, process.mem_util_pct) else {
            return Err(Code::NOT_SUPPORTED);
        };
        // The driver has samples of those alone that did something.
        if sm > 0 || mem > 0 {
            samples.push(sample(process.process.pid, sm, mem));
        }
    }
    if samples.is_empty() || last_seen_us >= time_us {
        return Err(Code::NOT_FOUND);
    }
    put_list(&count, &to, &samples)
}

fn process_details(call: &Call<'_>, device: Device, to: Out<sys::nvmlProcessDetailList_v1_t>) -> Answer {
    const COMPUTE: u32 = 0;
    to.has_version(1)?;
    let mut list = to.get();
    let processes = if list.mode == COMPUTE { call.processes(device) } else { Vec::new() };
    let detail = |p: &Process| sys::nvmlProcessDetail_v1_t {
        pid: p.pid,
        usedGpuMemory: p.used_bytes,
        gpuInstanceId: p.gpu_instance.unwrap_or(not_available()),
        computeInstanceId: p.gpu_instance.map_or(not_available(), |_| 0),
        usedGpuCcProtectedMemory: 0,
    };
    let room = list.numProcArrayEntries as usize;
    list.numProcArrayEntries = processes.len() as u32;
    to.put(list);
    if room < processes.len() {
        return Err(Code::INSUFFICIENT_SIZE);
    }
    let entries = to.inner(list.procArray);
    match entries {
        Some(entries) => entries.put_all(&processes.iter().map(detail).collect::<Vec<_>>()),
        None if processes.is_empty() => {}
        None => return Err(Code::INVALID_ARGUMENT),
    }
    Ok(())
}

exports! {
    nvmlDeviceGetTemperature(device: Gpu, sensor: u32, celsius: Out<u32>) => temperature;
    nvmlDeviceGetTemperatureV(device: Gpu, temperature: Out<sys::nvmlTemperature_v1_t>) => temperature_v;
    nvmlDeviceGetTemperatureThreshold(device: Gpu, kind: u32, celsius: Out<u32>) => threshold;
    nvmlDeviceGetFanSpeed(device: Gpu, speed: Out<u32>) => fan;
    nvmlDeviceGetFanSpeed_v2(device: Gpu, fan: u32, speed: Out<u32>) => fan_of;
    nvmlDeviceGetNumFans(device: Gpu, fans: Out<u32>) => fans;
    nvmlDeviceGetUtilizationRates(device: Gpu, utilization: Out<sys::nvmlUtilization_st>) => utilization;
    nvmlDeviceGetEncoderUtilization(device: Gpu, utilization: Out<u32>, period: Out<u32>) => nothing_coded;
    nvmlDeviceGetDecoderUtilization(device: Gpu, utilization: Out<u32>, period: Out<u32>) => nothing_coded;
    nvmlDeviceGetMemoryInfo(device: Device, memory: Out<sys::nvmlMemory_st>) => memory;
    nvmlDeviceGetMemoryInfo_v2(device: Device, memory: Out<sys::nvmlMemory_v2_st>) => memory_v2;
    nvmlDeviceGetBAR1MemoryInfo(device: Device, memory: Out<sys::nvmlBAR1Memory_st>) => bar1;
    nvmlDeviceGetPcieThroughput(device: Gpu, counter: u32, kilobytes: Out<u32>) => pcie;
    nvmlDeviceGetTotalEccErrors(device: Gpu, kind: u32, counter: u32, errors: Out<u64>) => ecc_errors;
    nvmlDeviceGetComputeRunningProcesses(
        device: Device, count: Out<u32>, processes: Option<Out<sys::nvmlProcessInfo_v1_st>>,
    ) => computing_v1;
    nvmlDeviceGetComputeRunningProcesses_v2(
        device: Device, count: Out<u32>, processes: Option<Out<sys::nvmlProcessInfo_t>>,
    ) => computing;
    nvmlDeviceGetComputeRunningProcesses_v3(
        device: Device, count: Out<u32>, processes: Option<Out<sys::nvmlProcessInfo_t>>,
    ) => computing;
    nvmlDeviceGetGraphicsRunningProcesses(
        device: Device, count: Out<u32>, processes: Option<Out<sys::nvmlProcessInfo_v1_st>>,
    ) => none_v1;
    nvmlDeviceGetGraphicsRunningProcesses_v2(
        device: Device, count: Out<u32>, processes: Option<Out<sys::nvmlProcessInfo_t>>,
    ) => none;
    nvmlDeviceGetGraphicsRunningProcesses_v3(
        device: Device, count: Out<u32>, processes: Option<Out<sys::nvmlProcessInfo_t>>,
    ) => none;
    nvmlDeviceGetMPSComputeRunningProcesses(
        device: Device, count: Out<u32>, processes: Option<Out<sys::nvmlProcessInfo_v1_st>>,
    ) => none_v1;
    nvmlDeviceGetMPSComputeRunningProcesses_v2(
        device: Device, count: Out<u32>, processes: Option<Out<sys::nvmlProcessInfo_t>>,
    ) => none;
    nvmlDeviceGetMPSComputeRunningProcesses_v3(
        device: Device, count: Out<u32>, processes: Option<Out<sys::nvmlProcessInfo_t>>,
    ) => none;
    nvmlDeviceGetProcessUtilization(
        device: Gpu, utilization: Option<Out<sys::nvmlProcessUtilizationSample_st>>, count: Out<u32>, since: u64,
    ) => process_utilization;
    nvmlDeviceGetRunningProcessDetailList(
        device: Device, list: Out<sys::nvmlProcessDetailList_v1_t>,
    ) => process_details;
}
