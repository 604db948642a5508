//! The NVML calls that nvml-wrapper lacks, straight on its `-sys` crate.
//!
//! - power fields with a scope (`scopeId`), whose per-field return code and value type are checked;
//! - the numbers of fields, which drivers from 580.82 on changed in 251–273;
//! - the ring of power samples in one call into a buffer that is kept (the wrapper asks twice and
//!   allocates);
//! - the GPU instance of a MIG device, and where it lies;
//! - clock-event reasons as raw bits (the wrapper refuses bits it does not know).
//!
//! Source: `nvml.h` of driver 580, "Field Value Queries", `nvmlDeviceGetSamples`.
#![allow(unsafe_code)]

use gpumon_core::units::{Milliwatts, WallUs};
use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper_sys::bindings as sys;

use super::PowerSample;

/// Field 185, trailing average power.
pub(super) const POWER_AVERAGE: u32 = sys::field_id::NVML_FI_DEV_POWER_AVERAGE;
/// Field 186, power over a short window.
pub(super) const POWER_INSTANT: u32 = sys::field_id::NVML_FI_DEV_POWER_INSTANT;
/// Field 82, memory temperature.
pub(super) const MEMORY_TEMP: u32 = sys::field_id::NVML_FI_DEV_MEMORY_TEMP;

/// A field together with the part of the module that it is asked of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Field {
    pub(super) id: u32,
    pub(super) scope: u32,
}

impl Field {
    pub(super) const fn gpu(id: u32) -> Self {
        Self { id, scope: sys::NVML_POWER_SCOPE_GPU }
    }

    pub(super) const fn module(id: u32) -> Self {
        Self { id, scope: sys::NVML_POWER_SCOPE_MODULE }
    }

    /// The scope in a word.
    pub(super) fn scope_name(self) -> &'static str {
        match self.scope {
            sys::NVML_POWER_SCOPE_MODULE => "module",
            sys::NVML_POWER_SCOPE_MEMORY => "memory",
            _ => "gpu",
        }
    }

    pub(super) const fn memory(id: u32) -> Self {
        Self { id, scope: sys::NVML_POWER_SCOPE_MEMORY }
    }
}

/// How a driver numbers its fields.
///
/// Source: `nvml.h` of drivers 575 and 580.82. NVML 13 update 1 moved the five CLOCKS_EVENT_REASON and POWER_SYNC fields
/// from 251–255 to 269–273 and the power-smoothing fields from 256–273 to 251–268; the wrapper translates alike, in a
/// call that takes no scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Numbering {
    /// Up to 580.81, and the numbers that this code uses.
    Old,
    /// From 580.82 on.
    New,
}

impl Numbering {
    /// The numbering of a driver version such as `580.82.07`.
    pub(super) fn of(driver: &str) -> Self {
        let mut parts = driver.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
        let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
        if version >= (580, 82) { Self::New } else { Self::Old }
    }

    /// A field's number there.
    pub(super) fn translate(self, id: u32) -> u32 {
        match (self, id) {
            (Self::New, 251..=255) => id + 18,
            (Self::New, 256..=273) => id - 5,
            _ => id,
        }
    }
}

/// Values of up to `N` fields by one call.
pub(super) fn fields<const N: usize>(
    device: &Device<'_>,
    numbering: Numbering,
    wanted: [Field; N],
) -> Result<[Result<i64, NvmlError>; N], NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetFieldValues.as_ref())?;
    let mut values = wanted.map(|field| {
        // SAFETY: the struct holds only integers and a union of numbers; all zeros is a value of it.
        let mut value: sys::nvmlFieldValue_t = unsafe { std::mem::zeroed() };
        value.fieldId = numbering.translate(field.id);
        value.scopeId = field.scope;
        value
    });
    // SAFETY: the handle is valid while `device` lives, and `values` has room for N entries.
    nvml_try(unsafe { call(device.handle(), N as i32, values.as_mut_ptr()) })?;
    Ok(values.map(|value| {
        nvml_try(value.nvmlReturn)?;
        number(value.valueType, value.value)
    }))
}

fn number(value_type: sys::nvmlValueType_t, value: sys::nvmlValue_t) -> Result<i64, NvmlError> {
    // SAFETY: every bit pattern is a value of each member read here, and the tag says which was written.
    unsafe {
        match value_type {
            sys::nvmlValueType_enum_NVML_VALUE_TYPE_DOUBLE if value.dVal.is_finite() => Ok(value.dVal as i64),
            sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT => Ok(i64::from(value.uiVal)),
            sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG => to_i64(value.ulVal),
            sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG => to_i64(value.ullVal),
            sys::nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_LONG_LONG => Ok(value.sllVal),
            sys::nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_INT => Ok(i64::from(value.siVal)),
            sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_SHORT => Ok(i64::from(value.usVal)),
            other => Err(NvmlError::UnexpectedVariant(other)),
        }
    }
}

fn to_i64(value: u64) -> Result<i64, NvmlError> {
    i64::try_from(value).map_err(|_| NvmlError::Unknown)
}

/// Appends the power samples later than `newer_than`, in the driver's order, which is oldest first. `buffer` is kept between calls.
pub(super) fn power_samples(
    device: &Device<'_>,
    newer_than: WallUs,
    buffer: &mut Vec<sys::nvmlSample_t>,
    into: &mut Vec<PowerSample>,
) -> Result<(), NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetSamples.as_ref())?;
    let kind = sys::nvmlSamplingType_enum_NVML_TOTAL_POWER_SAMPLES;
    let since = u64::try_from(newer_than.0).unwrap_or(0);
    let mut value_type = 0;
    // SAFETY: the handle is valid while `device` lives; a null sample pointer asks for the ring's size.
    let mut ask = |count: &mut u32, at: *mut sys::nvmlSample_t| unsafe {
        call(device.handle(), kind, since, &mut value_type, count, at)
    };
    if buffer.is_empty() {
        let mut count = 0;
        nvml_try(ask(&mut count, std::ptr::null_mut()))?;
        // SAFETY: the struct holds only integers and a union of numbers; all zeros is a value of it.
        buffer.resize(count.max(128) as usize, unsafe { std::mem::zeroed() });
    }
    let mut count = buffer.len() as u32;
    match nvml_try(ask(&mut count, buffer.as_mut_ptr())) {
        // Nothing newer is not a failure.
        Err(NvmlError::NotFound) => return Ok(()),
        other => other?,
    }
    for sample in buffer.iter().take(count as usize) {
        let power = u32::try_from(number(value_type, sample.sampleValue)?).map_err(|_| NvmlError::Unknown)?;
        into.push(PowerSample { time: WallUs(to_i64(sample.timeStamp)?), power: Milliwatts(power) });
    }
    Ok(())
}

/// Why the clock is not higher, as raw bits; falls back to the name of the call in older drivers.
pub(super) fn event_reasons(device: &Device<'_>) -> Result<u64, NvmlError> {
    let lib = device.nvml().lib();
    let mut bits = 0;
    // SAFETY: the handle is valid while `device` lives, and `bits` is a place for one integer.
    unsafe {
        match lib.nvmlDeviceGetCurrentClocksEventReasons.as_ref() {
            Ok(call) => nvml_try(call(device.handle(), &mut bits))?,
            Err(_) => {
                let call = nvml_sym(lib.nvmlDeviceGetCurrentClocksThrottleReasons.as_ref())?;
                nvml_try(call(device.handle(), &mut bits))?;
            }
        }
    }
    Ok(bits)
}

/// The GPU instance that a MIG device is on.
pub(crate) fn gpu_instance_id(mig: &Device<'_>) -> Result<u32, NvmlError> {
    let call = nvml_sym(mig.nvml().lib().nvmlDeviceGetGpuInstanceId.as_ref())?;
    let mut id = 0;
    // SAFETY: the handle is valid while `mig` lives, and `id` is a place for one integer.
    nvml_try(unsafe { call(mig.handle(), &mut id) })?;
    Ok(id)
}

/// The first memory slot of a GPU's instance.
pub(super) fn gpu_instance_start(device: &Device<'_>, id: u32) -> Result<u32, NvmlError> {
    let lib = device.nvml().lib();
    let by_id = nvml_sym(lib.nvmlDeviceGetGpuInstanceById.as_ref())?;
    let get_info = nvml_sym(lib.nvmlGpuInstanceGetInfo.as_ref())?;
    let mut instance = std::ptr::null_mut();
    // SAFETY: the struct holds only integers and a handle; all zeros is a value of it.
    let mut info: sys::nvmlGpuInstanceInfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: the handle is valid while `device` lives; `instance` and `info` are places for one item each, and the
    // second call gets the handle that the first one gave.
    unsafe {
        nvml_try(by_id(device.handle(), id, &mut instance))?;
        nvml_try(get_info(instance, &mut info))?;
    }
    Ok(info.placement.start)
}
