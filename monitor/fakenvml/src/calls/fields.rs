//! Field values, and the ring of power samples.
//!
//! Rule: each field has a return code and a value type of its own inside a call that succeeds; fields
//! that are not here are NOT_SUPPORTED. Power is an unsigned int in mW, energy an unsigned long long.
//! Cases: power at module and memory scope answers where the GPU has such a sensor; the ring gives
//! what is newer than the time asked for, oldest first, or NOT_FOUND.
//! Source: `nvml.h` of driver 580, "Field Value Queries"; types as an H200 gave them.

use std::ffi::c_int;

use nvml_wrapper_sys::bindings as sys;
use sys::field_id as id;

use crate::codes::{Answer, Code};
use crate::edge::{Out, exports};
use crate::faults::What;
use crate::handles::Gpu;
use crate::world::Call;

const UNSIGNED_INT: u32 = sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT;
const UNSIGNED_LONG_LONG: u32 = sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;

const GPU: u32 = sys::NVML_POWER_SCOPE_GPU;
const MODULE: u32 = sys::NVML_POWER_SCOPE_MODULE;
const MEMORY: u32 = sys::NVML_POWER_SCOPE_MEMORY;

/// A field's value and its type.
fn field(call: &Call<'_>, gpu: u32, id: u32, scope: u32) -> Answer<(u32, u64)> {
    let int = |value: u32| Ok((UNSIGNED_INT, u64::from(call.number32(value))));
    match (id, scope) {
        (id::NVML_FI_DEV_POWER_AVERAGE, GPU) => {
            int(call.read(gpu, |model, now| model.sim.power_average(now))?.0)
        }
        (id::NVML_FI_DEV_POWER_INSTANT, GPU) => {
            int(call.read(gpu, |model, now| model.sim.power_instant(now))?.0)
        }
        (id::NVML_FI_DEV_POWER_AVERAGE | id::NVML_FI_DEV_POWER_INSTANT, MODULE) => {
            int(call.read(gpu, |model, now| model.sim.module_power(now))?.0)
        }
        (id::NVML_FI_DEV_POWER_AVERAGE, MEMORY) => {
            int(call.read(gpu, |model, now| model.sim.mem_power(now))?.0)
        }
        (id::NVML_FI_DEV_POWER_INSTANT, MEMORY) => {
            int(call.read(gpu, |model, now| model.sim.mem_power_instant(now))?.0)
        }
        (id::NVML_FI_DEV_MEMORY_TEMP, _) => {
            int(call.read(gpu, |model, now| model.sim.mem_temperature(now))?.unsigned_abs())
        }
        (id::NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, _) => {
            let energy = call.read(gpu, |model, now| model.energy(now))?;
            Ok((UNSIGNED_LONG_LONG, call.number(energy.0)))
        }
        (id::NVML_FI_DEV_POWER_MIN_LIMIT, GPU) => int(super::power::limits_mw(call)[0]),
        (id::NVML_FI_DEV_POWER_MAX_LIMIT, GPU) => int(super::power::limits_mw(call)[1]),
        (id::NVML_FI_DEV_POWER_DEFAULT_LIMIT, GPU) => int(super::power::limits_mw(call)[2]),
        (id::NVML_FI_DEV_POWER_CURRENT_LIMIT | id::NVML_FI_DEV_POWER_REQUESTED_LIMIT, GPU) => {
            int(super::power::limit_mw(call, gpu)?)
        }
        (id::NVML_FI_DEV_ECC_CURRENT, _) => int(1),
        _ => Err(Code::NOT_SUPPORTED),
    }
}

/// A number as a value of a type; an unknown type leaves what the driver would: rubbish.
fn value(value_type: u32, number: u64) -> sys::nvmlValue_t {
    const RUBBISH: u64 = 0xDEAD_BEEF_DEAD_BEEF;
    let mut value = sys::nvmlValue_t { ullVal: 0 };
    match value_type {
        sys::nvmlValueType_enum_NVML_VALUE_TYPE_DOUBLE => value.dVal = number as f64,
        UNSIGNED_INT => value.uiVal = number as u32,
        sys::nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_INT => value.siVal = number as i32,
        sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_SHORT => value.usVal = number as u16,
        t if t < sys::nvmlValueType_enum_NVML_VALUE_TYPE_COUNT => value.ullVal = number,
        _ => value.ullVal = RUBBISH,
    }
    value
}

fn field_values(call: &Call<'_>, Gpu(gpu): Gpu, count: c_int, values: Out<sys::nvmlFieldValue_st>) -> Answer {
    let count = usize::try_from(count).ok().filter(|&c| c > 0).ok_or(Code::INVALID_ARGUMENT)?;
    for index in 0..count {
        let mut entry = values.get_nth(index);
        let started = call.world.now();
        let mut answer = field(call, gpu, entry.fieldId, entry.scopeId);
        for fault in &call.fields {
            match *fault {
                What::FieldError(wanted, code) if wanted.is_none_or(|id| id == entry.fieldId) => {
                    answer = Err(code);
                }
                What::FieldType(wanted, other) if wanted.is_none_or(|id| id == entry.fieldId) => {
                    answer = answer.map(|(_, number)| (other, number));
                }
                _ => {}
            }
        }
        entry.timestamp = call.world.wall_us(started);
        entry.latencyUsec = call.world.now().since_us(started);
        match answer {
            Ok((value_type, number)) => {
                entry.nvmlReturn = 0;
                entry.valueType = value_type;
                entry.value = value(value_type, number);
            }
            Err(Code(code)) => entry.nvmlReturn = code,
        }
        values.put_nth(index, entry);
    }
    Ok(())
}

fn samples(
    call: &Call<'_>,
    Gpu(gpu): Gpu,
    kind: u32,
    last_seen_us: u64,
    value_type: Out<u32>,
    count: Out<u32>,
    to: Option<Out<sys::nvmlSample_st>>,
) -> Answer {
    match kind {
        sys::nvmlSamplingType_enum_NVML_TOTAL_POWER_SAMPLES => {}
        k if k < sys::nvmlSamplingType_enum_NVML_SAMPLINGTYPE_COUNT => return Err(Code::NOT_SUPPORTED),
        _ => return Err(Code::INVALID_ARGUMENT),
    }
    value_type.put(UNSIGNED_INT);
    let Some(to) = to else {
        if !call.world.look(gpu, |model, _| model.sim.supports(gpumon_simgpu::Sensor::Ring))? {
            return Err(Code::NOT_SUPPORTED);
        }
        count.put(call.world.script.spec.sensors.ring.capacity);
        return Ok(());
    };
    let since = call.world.at_wall_us(i64::try_from(last_seen_us).unwrap_or(i64::MAX));
    let readings = call.read(gpu, |model, now| model.sim.ring(now, Some(since)))?;
    if readings.is_empty() {
        return Err(Code::NOT_FOUND);
    }
    let sample = |reading: &gpumon_simgpu::RingReading| sys::nvmlSample_st {
        timeStamp: call.world.wall_us(reading.at).unsigned_abs(),
        sampleValue: value(UNSIGNED_INT, u64::from(call.number32(reading.power.0))),
    };
    let room = count.get() as usize;
    let given: Vec<_> = readings.iter().take(room).map(sample).collect();
    count.put(given.len() as u32);
    to.put_all(&given);
    Ok(())
}

exports! {
    nvmlDeviceGetFieldValues(device: Gpu, count: c_int, values: Out<sys::nvmlFieldValue_st>) => field_values;
    nvmlDeviceGetSamples(
        device: Gpu, kind: u32, since: u64, value_type: Out<u32>, count: Out<u32>,
        samples: Option<Out<sys::nvmlSample_st>>,
    ) => samples;
}
