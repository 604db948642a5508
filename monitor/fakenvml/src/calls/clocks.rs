//! Clocks and what holds them.
//!
//! Assumed: SM and graphics clock are one; the video clock is not there; application clocks are not
//! settable and stand at the highest.
//! Not done here: the special values of a clock lock (`NVML_CLOCK_LIMIT_ID_…`), memory clocks other
//! than the one there is.

use gpumon_core::units::Megahertz;
use gpumon_simgpu::{Change as SimChange, reasons};
use nvml_wrapper_sys::bindings as sys;

use crate::codes::{Answer, Code};
use crate::edge::{Out, exports, put_list};
use crate::handles::Gpu;
use crate::log::Change;
use crate::world::Call;

const GRAPHICS: u32 = sys::nvmlClockType_enum_NVML_CLOCK_GRAPHICS;
const SM: u32 = sys::nvmlClockType_enum_NVML_CLOCK_SM;
const MEM: u32 = sys::nvmlClockType_enum_NVML_CLOCK_MEM;
const VIDEO: u32 = sys::nvmlClockType_enum_NVML_CLOCK_VIDEO;

fn clock(call: &Call<'_>, Gpu(gpu): Gpu, kind: u32, to: Out<u32>) -> Answer {
    let clock = match kind {
        GRAPHICS | SM => call.read(gpu, |model, now| model.sim.sm_clock(now))?,
        MEM => call.read(gpu, |model, now| model.sim.mem_clock(now))?,
        VIDEO => return Err(Code::NOT_SUPPORTED),
        _ => return Err(Code::INVALID_ARGUMENT),
    };
    call.give32(&to, clock.0)
}

fn highest_mhz(call: &Call<'_>, kind: u32) -> Answer<u32> {
    let clocks = &call.world.script.spec.clocks;
    match kind {
        GRAPHICS | SM => Ok(clocks.graphics().last().map_or(clocks.graphics_max_mhz, |c| c.0)),
        MEM => Ok(clocks.mem_mhz),
        VIDEO => Err(Code::NOT_SUPPORTED),
        _ => Err(Code::INVALID_ARGUMENT),
    }
}

fn max_clock(call: &Call<'_>, _: Gpu, kind: u32, to: Out<u32>) -> Answer {
    to.put(highest_mhz(call, kind)?);
    Ok(())
}

fn clock_by_id(call: &Call<'_>, device: Gpu, kind: u32, id: u32, to: Out<u32>) -> Answer {
    match id {
        sys::nvmlClockId_enum_NVML_CLOCK_ID_CURRENT => clock(call, device, kind, to),
        id if id < sys::nvmlClockId_enum_NVML_CLOCK_ID_COUNT => max_clock(call, device, kind, to),
        _ => Err(Code::INVALID_ARGUMENT),
    }
}

fn memory_clocks(call: &Call<'_>, _: Gpu, count: Out<u32>, to: Option<Out<u32>>) -> Answer {
    put_list(&count, &to, &[call.world.script.spec.clocks.mem_mhz])
}

fn graphics_clocks(
    call: &Call<'_>,
    _: Gpu,
    memory_mhz: u32,
    count: Out<u32>,
    to: Option<Out<u32>>,
) -> Answer {
    let clocks = &call.world.script.spec.clocks;
    if memory_mhz != clocks.mem_mhz {
        return Err(Code::NOT_FOUND);
    }
    // The highest one first, as the driver lists them.
    let list: Vec<u32> = clocks.graphics().iter().rev().map(|c| c.0).collect();
    put_list(&count, &to, &list)
}

fn current_reasons(call: &Call<'_>, Gpu(gpu): Gpu, to: Out<u64>) -> Answer {
    to.put(call.read(gpu, |model, now| model.sim.event_reasons(now))?);
    Ok(())
}

fn supported_reasons(_: &Call<'_>, _: Gpu, to: Out<u64>) -> Answer {
    to.put(reasons::GPU_IDLE | reasons::SW_POWER_CAP);
    Ok(())
}

fn lock(call: &Call<'_>, Gpu(gpu): Gpu, min_mhz: u32, max_mhz: u32) -> Answer {
    call.needs_root()?;
    if min_mhz > max_mhz {
        return Err(Code::INVALID_ARGUMENT);
    }
    call.change(gpu, |model, now| {
        let range = (Megahertz(min_mhz), Megahertz(max_mhz));
        let tried = model.sim.clone().apply(now, SimChange::LockClocks(Some(range)));
        tried.map_err(|_| Code::INVALID_ARGUMENT)?;
        Ok((Change::LockClocks { min_mhz, max_mhz }, ()))
    })
}

fn unlock(call: &Call<'_>, Gpu(gpu): Gpu) -> Answer {
    call.needs_root()?;
    call.change(gpu, |_, _| Ok((Change::UnlockClocks, ())))
}

fn lock_memory(call: &Call<'_>, _: Gpu, min_mhz: u32, max_mhz: u32) -> Answer {
    call.needs_root()?;
    let there_is = call.world.script.spec.clocks.mem_mhz;
    if (min_mhz..=max_mhz).contains(&there_is) { Ok(()) } else { Err(Code::INVALID_ARGUMENT) }
}

fn unlock_memory(call: &Call<'_>, _: Gpu) -> Answer {
    call.needs_root()
}

exports! {
    nvmlDeviceGetClockInfo(device: Gpu, kind: u32, mhz: Out<u32>) => clock;
    nvmlDeviceGetMaxClockInfo(device: Gpu, kind: u32, mhz: Out<u32>) => max_clock;
    nvmlDeviceGetMaxCustomerBoostClock(device: Gpu, kind: u32, mhz: Out<u32>) => max_clock;
    nvmlDeviceGetApplicationsClock(device: Gpu, kind: u32, mhz: Out<u32>) => max_clock;
    nvmlDeviceGetDefaultApplicationsClock(device: Gpu, kind: u32, mhz: Out<u32>) => max_clock;
    nvmlDeviceGetClock(device: Gpu, kind: u32, id: u32, mhz: Out<u32>) => clock_by_id;
    nvmlDeviceGetSupportedMemoryClocks(device: Gpu, count: Out<u32>, mhz: Option<Out<u32>>) => memory_clocks;
    nvmlDeviceGetSupportedGraphicsClocks(
        device: Gpu, memory: u32, count: Out<u32>, mhz: Option<Out<u32>>,
    ) => graphics_clocks;
    nvmlDeviceGetCurrentClocksEventReasons(device: Gpu, bits: Out<u64>) => current_reasons;
    nvmlDeviceGetCurrentClocksThrottleReasons(device: Gpu, bits: Out<u64>) => current_reasons;
    nvmlDeviceGetSupportedClocksEventReasons(device: Gpu, bits: Out<u64>) => supported_reasons;
    nvmlDeviceGetSupportedClocksThrottleReasons(device: Gpu, bits: Out<u64>) => supported_reasons;
    nvmlDeviceSetGpuLockedClocks(device: Gpu, min: u32, max: u32) => lock;
    nvmlDeviceResetGpuLockedClocks(device: Gpu) => unlock;
    nvmlDeviceSetMemoryLockedClocks(device: Gpu, min: u32, max: u32) => lock_memory;
    nvmlDeviceResetMemoryLockedClocks(device: Gpu) => unlock_memory;
}
