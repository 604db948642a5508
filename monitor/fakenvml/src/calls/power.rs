//! Power, limits, energy.

use gpumon_core::units::Milliwatts;
use gpumon_simgpu::Change as SimChange;

use crate::codes::{Answer, Code};
use crate::edge::{Out, exports};
use crate::handles::Gpu;
use crate::log::Change;
use crate::world::Call;

fn usage(call: &Call<'_>, Gpu(gpu): Gpu, to: Out<u32>) -> Answer {
    let power = call.read(gpu, |model, now| model.sim.power_usage(now))?;
    call.give32(&to, power.0)
}

fn energy(call: &Call<'_>, Gpu(gpu): Gpu, to: Out<u64>) -> Answer {
    let energy = call.read(gpu, |model, now| model.energy(now))?;
    to.put(call.number(energy.0));
    Ok(())
}

/// The limit in force.
pub(super) fn limit_mw(call: &Call<'_>, gpu: u32) -> Answer<u32> {
    call.world.look(gpu, |model, _| model.sim.settings().limit.0)
}

/// Lowest, highest and first limit.
pub(super) fn limits_mw(call: &Call<'_>) -> [u32; 3] {
    let power = &call.world.script.spec.power;
    [power.limit_min_w, power.limit_max_w, power.limit_w].map(|w| (w * 1e3).round() as u32)
}

fn limit(call: &Call<'_>, Gpu(gpu): Gpu, to: Out<u32>) -> Answer {
    call.give32(&to, limit_mw(call, gpu)?)
}

fn default_limit(call: &Call<'_>, _: Gpu, to: Out<u32>) -> Answer {
    to.put(limits_mw(call)[2]);
    Ok(())
}

fn constraints(call: &Call<'_>, _: Gpu, min: Out<u32>, max: Out<u32>) -> Answer {
    let [lowest, highest, _] = limits_mw(call);
    min.put(lowest);
    max.put(highest);
    Ok(())
}

fn management(_: &Call<'_>, _: Gpu, to: Out<u32>) -> Answer {
    to.put(1);
    Ok(())
}

fn state(call: &Call<'_>, Gpu(gpu): Gpu, to: Out<u32>) -> Answer {
    to.put(call.read(gpu, |model, now| model.sim.pstate(now))?);
    Ok(())
}

fn set_limit(call: &Call<'_>, Gpu(gpu): Gpu, limit_mw: u32) -> Answer {
    call.needs_root()?;
    call.change(gpu, |model, now| {
        let tried = model.sim.clone().apply(now, SimChange::PowerLimit(Milliwatts(limit_mw)));
        tried.map_err(|_| Code::INVALID_ARGUMENT)?;
        Ok((Change::PowerLimit { limit_mw }, ()))
    })
}

exports! {
    nvmlDeviceGetPowerUsage(device: Gpu, power: Out<u32>) => usage;
    nvmlDeviceGetTotalEnergyConsumption(device: Gpu, energy: Out<u64>) => energy;
    nvmlDeviceGetPowerManagementMode(device: Gpu, mode: Out<u32>) => management;
    nvmlDeviceGetPowerManagementLimit(device: Gpu, limit: Out<u32>) => limit;
    nvmlDeviceGetEnforcedPowerLimit(device: Gpu, limit: Out<u32>) => limit;
    nvmlDeviceGetPowerManagementDefaultLimit(device: Gpu, limit: Out<u32>) => default_limit;
    nvmlDeviceGetPowerManagementLimitConstraints(device: Gpu, min: Out<u32>, max: Out<u32>) => constraints;
    nvmlDeviceGetPerformanceState(device: Gpu, state: Out<u32>) => state;
    nvmlDeviceGetPowerState(device: Gpu, state: Out<u32>) => state;
    nvmlDeviceSetPowerManagementLimit(device: Gpu, limit: u32) => set_limit;
}
