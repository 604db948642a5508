//! MIG instances by the calls that nvml-wrapper lacks, straight on its `-sys` crate.
//!
//! Rule: a size is named by its place in `NVML_GPU_INSTANCE_PROFILE_…`, whose profile number the driver tells; an instance
//! holds one compute instance as large as itself. Instances of every profile are listed, also those with media extensions.
//! Cases: a compute instance that cannot be made takes its GPU instance with it. An instance is destroyed only if id, size
//! and start are those that are asked for.
//! Source: `nvml.h` of driver 580, "Multi Instance GPU Management".
#![allow(unsafe_code)]

use gpumon_core::geometry::SEVEN_SLICES;
use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper_sys::bindings as sys;

use super::Instance;

/// Slices and their place among the profiles of GPU instances and of compute instances, which are numbered alike.
const POSITIONS: &[(u8, u32)] = &[
    (1, sys::NVML_GPU_INSTANCE_PROFILE_1_SLICE),
    (2, sys::NVML_GPU_INSTANCE_PROFILE_2_SLICE),
    (3, sys::NVML_GPU_INSTANCE_PROFILE_3_SLICE),
    (4, sys::NVML_GPU_INSTANCE_PROFILE_4_SLICE),
    (7, sys::NVML_GPU_INSTANCE_PROFILE_7_SLICE),
];
/// More instances than any GPU holds.
const ROOM: usize = 32;

/// What came of destroying an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Destroyed {
    Yes,
    WasGone,
    IsAnother,
}

/// What the driver says of a profile's place.
fn profile(device: &Device<'_>, position: u32) -> Result<sys::nvmlGpuInstanceProfileInfo_t, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetGpuInstanceProfileInfo.as_ref())?;
    // SAFETY: the struct holds only integers; all zeros is a value of it.
    let mut info: sys::nvmlGpuInstanceProfileInfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: the handle is valid while `device` lives, and `info` is a place for one item.
    nvml_try(unsafe { call(device.handle(), position, &mut info) })?;
    Ok(info)
}

/// Id, first slot and number of slots of an instance.
fn place(device: &Device<'_>, instance: sys::nvmlGpuInstance_t) -> Result<(u32, u8, u8), NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlGpuInstanceGetInfo.as_ref())?;
    // SAFETY: the struct holds only integers and a handle; all zeros is a value of it.
    let mut info: sys::nvmlGpuInstanceInfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: the driver gave the handle, and `info` is a place for one item.
    nvml_try(unsafe { call(instance, &mut info) })?;
    Ok((info.id, small(info.placement.start)?, small(info.placement.size)?))
}

fn small(number: u32) -> Result<u8, NvmlError> {
    u8::try_from(number).map_err(|_| NvmlError::Unknown)
}

/// All GPU instances, by their ids.
pub(super) fn instances(device: &Device<'_>) -> Result<Vec<Instance>, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetGpuInstances.as_ref())?;
    let devices = mig_devices(device);
    let mut found = Vec::new();
    for position in 0..sys::NVML_GPU_INSTANCE_PROFILE_COUNT {
        let info = match profile(device, position) {
            Err(NvmlError::NotSupported | NvmlError::InvalidArg) => continue,
            info => info?,
        };
        let mut handles = [std::ptr::null_mut(); ROOM];
        let mut count = 0;
        // SAFETY: the handle is valid while `device` lives, and `handles` has more room than there are instances.
        nvml_try(unsafe { call(device.handle(), info.id, handles.as_mut_ptr(), &mut count) })?;
        for &handle in handles.iter().take(count as usize) {
            let (id, start, slots) = place(device, handle)?;
            let uuid = devices.iter().find(|(gi, _)| *gi == id).map(|(_, uuid)| uuid.clone());
            found.push(Instance { id, slices: small(info.sliceCount)?, start, slots, uuid });
        }
    }
    found.sort_by_key(|instance| instance.id);
    Ok(found)
}

/// GPU instance and UUID of each MIG device.
fn mig_devices(device: &Device<'_>) -> Vec<(u32, String)> {
    let count = device.mig_device_count().unwrap_or(0);
    let of_index = |index| {
        let mig = device.mig_device_by_index(index).ok()?;
        Some((crate::device::gpu_instance_id(&mig).ok()?, mig.uuid().ok()?))
    };
    (0..count).filter_map(of_index).collect()
}

/// Makes an instance at a place.
pub(super) fn create(device: &Device<'_>, slices: u8, start: u8) -> Result<Instance, NvmlError> {
    let lib = device.nvml().lib();
    let create = nvml_sym(lib.nvmlDeviceCreateGpuInstanceWithPlacement.as_ref())?;
    let position = POSITIONS.iter().find(|(known, _)| *known == slices).ok_or(NvmlError::InvalidArg)?.1;
    let slots = SEVEN_SLICES.profile(slices).ok_or(NvmlError::InvalidArg)?.memory_slots;
    let info = profile(device, position)?;
    let at = sys::nvmlGpuInstancePlacement_t { start: start.into(), size: slots.into() };
    let mut handle = std::ptr::null_mut();
    // SAFETY: the handle is valid while `device` lives; `at` is read, and `handle` is a place for one item.
    nvml_try(unsafe { create(device.handle(), info.id, &at, &mut handle) })?;
    let filled = fill(device, handle, position);
    if let Err(e) = filled {
        if let Ok(destroy) = nvml_sym(lib.nvmlGpuInstanceDestroy.as_ref()) {
            // SAFETY: the driver gave the handle just now. The first failure is the one to tell.
            let _ = nvml_try(unsafe { destroy(handle) });
        }
        return Err(e);
    }
    let (id, start, slots) = place(device, handle)?;
    let uuid = mig_devices(device).into_iter().find(|(gi, _)| *gi == id).map(|(_, uuid)| uuid);
    Ok(Instance { id, slices, start, slots, uuid })
}

/// Makes a compute instance in all of a GPU instance.
fn fill(device: &Device<'_>, instance: sys::nvmlGpuInstance_t, position: u32) -> Result<(), NvmlError> {
    let lib = device.nvml().lib();
    let ask = nvml_sym(lib.nvmlGpuInstanceGetComputeInstanceProfileInfo.as_ref())?;
    let create = nvml_sym(lib.nvmlGpuInstanceCreateComputeInstance.as_ref())?;
    // SAFETY: the struct holds only integers; all zeros is a value of it.
    let mut info: sys::nvmlComputeInstanceProfileInfo_t = unsafe { std::mem::zeroed() };
    let mut compute = std::ptr::null_mut();
    // SAFETY: the driver gave the handle, and `info` and `compute` are places for one item each.
    unsafe {
        let shared = sys::NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED;
        nvml_try(ask(instance, position, shared, &mut info))?;
        nvml_try(create(instance, info.id, &mut compute))
    }
}

/// Destroys an instance with its compute instances, if it is the one that is described.
pub(super) fn destroy(device: &Device<'_>, wanted: &Instance) -> Result<Destroyed, NvmlError> {
    let lib = device.nvml().lib();
    let by_id = nvml_sym(lib.nvmlDeviceGetGpuInstanceById.as_ref())?;
    let compute_by_id = nvml_sym(lib.nvmlGpuInstanceGetComputeInstanceById.as_ref())?;
    let destroy_compute = nvml_sym(lib.nvmlComputeInstanceDestroy.as_ref())?;
    let destroy = nvml_sym(lib.nvmlGpuInstanceDestroy.as_ref())?;
    let there = match instances(device) {
        // Without MIG mode there are none.
        Err(NvmlError::NotSupported) => return Ok(Destroyed::WasGone),
        all => all?,
    };
    match there.iter().find(|instance| instance.id == wanted.id) {
        None => return Ok(Destroyed::WasGone),
        Some(found) if !found.is(wanted) => return Ok(Destroyed::IsAnother),
        Some(_) => {}
    }
    let mut handle = std::ptr::null_mut();
    // SAFETY: the handle is valid while `device` lives, and `handle` is a place for one item.
    nvml_try(unsafe { by_id(device.handle(), wanted.id, &mut handle) })?;
    for id in 0..ROOM as u32 {
        let mut compute = std::ptr::null_mut();
        // SAFETY: the driver gave `handle`, and `compute` is a place for one item.
        match nvml_try(unsafe { compute_by_id(handle, id, &mut compute) }) {
            Err(NvmlError::NotFound | NvmlError::InvalidArg) => continue,
            found => found?,
        }
        // SAFETY: the driver gave the handle just now.
        nvml_try(unsafe { destroy_compute(compute) })?;
    }
    // SAFETY: as before.
    nvml_try(unsafe { destroy(handle) })?;
    Ok(Destroyed::Yes)
}
