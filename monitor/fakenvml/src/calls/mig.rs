//! MIG mode, MIG devices, and GPU instances.
//!
//! Rule: instances need MIG mode, and making, removing and switching need root; a size is named by its
//! place in `NVML_GPU_INSTANCE_PROFILE_…` where its properties are asked for and by its profile number
//! everywhere else. What may stand where is [`crate::mig`]'s.
//! Assumed: 16 multiprocessors a slice, all of them on the whole GPU; listing needs no root; MIG mode
//! is switched at once and refused (IN_USE) while instances exist.

use nvml_wrapper_sys::bindings as sys;

use super::identity::{memory_of, size_name};
use crate::codes::{Answer, Code};
use crate::edge::{Out, exports, fixed_text};
use crate::handles::{Device, Gi, Gpu};
use crate::log::Change;
use crate::mig::{self, Mig, Profile};
use crate::world::Call;

const SLICES: u32 = 7;

fn look<T>(call: &Call<'_>, gpu: u32, look: impl FnOnce(&Mig) -> Answer<T>) -> Answer<T> {
    call.world.look(gpu, |model, _| look(&model.mig))?
}

fn is_on(mig: &Mig) -> Answer {
    if mig.on { Ok(()) } else { Err(Code::NOT_SUPPORTED) }
}

fn mode(call: &Call<'_>, Gpu(gpu): Gpu, current: Out<u32>, pending: Out<u32>) -> Answer {
    let on = look(call, gpu, |mig| Ok(u32::from(mig.on)))?;
    current.put(on);
    pending.put(on);
    Ok(())
}

fn set_mode(call: &Call<'_>, Gpu(gpu): Gpu, mode: u32, status: Out<u32>) -> Answer {
    call.needs_root()?;
    if mode > 1 {
        return Err(Code::INVALID_ARGUMENT);
    }
    call.change(gpu, |model, _| {
        if !model.mig.instances.is_empty() {
            return Err(Code::IN_USE);
        }
        Ok((Change::Mig { on: mode == 1 }, ()))
    })?;
    status.put(0);
    Ok(())
}

fn most_devices(call: &Call<'_>, Gpu(gpu): Gpu, to: Out<u32>) -> Answer {
    to.put(look(call, gpu, |mig| Ok(if mig.on { SLICES } else { 0 }))?);
    Ok(())
}

fn device_by_index(call: &Call<'_>, Gpu(gpu): Gpu, index: u32, to: Out<sys::nvmlDevice_t>) -> Answer {
    let found = look(call, gpu, |mig| {
        is_on(mig)?;
        mig.devices().get(index as usize).copied().ok_or(Code::NOT_FOUND)
    });
    let (gi, ci) = found?;
    to.put(Device::Mig { gpu, gi, ci }.handle(call.world));
    Ok(())
}

fn is_mig(_: &Call<'_>, device: Device, to: Out<u32>) -> Answer {
    to.put(u32::from(matches!(device, Device::Mig { .. })));
    Ok(())
}

fn gpu_instance_id(_: &Call<'_>, device: Device, to: Out<u32>) -> Answer {
    let Device::Mig { gi, .. } = device else { return Err(Code::INVALID_ARGUMENT) };
    to.put(gi);
    Ok(())
}

fn compute_instance_id(_: &Call<'_>, device: Device, to: Out<u32>) -> Answer {
    let Device::Mig { ci, .. } = device else { return Err(Code::INVALID_ARGUMENT) };
    to.put(ci);
    Ok(())
}

fn parent(call: &Call<'_>, device: Device, to: Out<sys::nvmlDevice_t>) -> Answer {
    let Device::Mig { gpu, .. } = device else { return Err(Code::INVALID_ARGUMENT) };
    to.put(Device::Gpu(gpu).handle(call.world));
    Ok(())
}

/// Multiprocessors of so many slices.
pub(super) fn multiprocessors(call: &Call<'_>, slices: u8) -> u32 {
    let all = call.world.script.spec.sm_count;
    if u32::from(slices) == SLICES { all } else { (u32::from(slices) * 16).min(all) }
}

fn attributes(call: &Call<'_>, device: Device, to: Out<sys::nvmlDeviceAttributes_st>) -> Answer {
    let Device::Mig { gpu, gi, ci } = device else { return Err(Code::NOT_SUPPORTED) };
    let (profile, compute) = look(call, gpu, |mig| {
        let instance = mig.instance(gi)?;
        Ok((instance.profile()?, instance.compute(ci)?))
    })?;
    to.put(sys::nvmlDeviceAttributes_st {
        multiprocessorCount: multiprocessors(call, compute.slices),
        sharedCopyEngineCount: u32::from(profile.size.slices),
        sharedDecoderCount: u32::from(profile.size.slices),
        sharedEncoderCount: 0,
        sharedJpegCount: u32::from(profile.size.slices),
        sharedOfaCount: 0,
        gpuInstanceSliceCount: u32::from(profile.size.slices),
        computeInstanceSliceCount: u32::from(compute.slices),
        memorySizeMB: memory_of(call, &profile.size) >> 20,
    });
    Ok(())
}

fn profile_info(
    call: &Call<'_>,
    Gpu(gpu): Gpu,
    position: u32,
    to: Out<sys::nvmlGpuInstanceProfileInfo_st>,
) -> Answer {
    let profile = mig::by_position(position)?;
    look(call, gpu, is_on)?;
    let slices = u32::from(profile.size.slices);
    to.put(sys::nvmlGpuInstanceProfileInfo_st {
        id: profile.gpu_id,
        isP2pSupported: 0,
        sliceCount: slices,
        instanceCount: profile.size.starts.len() as u32,
        multiprocessorCount: multiprocessors(call, profile.size.slices),
        copyEngineCount: slices,
        decoderCount: slices,
        encoderCount: 0,
        jpegCount: slices,
        ofaCount: 0,
        memorySizeMB: memory_of(call, &profile.size) >> 20,
    });
    Ok(())
}

fn profile_info_v(
    call: &Call<'_>,
    Gpu(gpu): Gpu,
    position: u32,
    to: Out<sys::nvmlGpuInstanceProfileInfo_v2_st>,
) -> Answer {
    let v3 = to.cast::<sys::nvmlGpuInstanceProfileInfo_v3_st>(0);
    let is_v3 = v3.has_version(3).is_ok();
    if !is_v3 {
        to.has_version(2)?;
    }
    let profile = mig::by_position(position)?;
    look(call, gpu, is_on)?;
    let slices = u32::from(profile.size.slices);
    let v2 = sys::nvmlGpuInstanceProfileInfo_v2_st {
        version: to.version(),
        id: profile.gpu_id,
        isP2pSupported: 0,
        sliceCount: slices,
        instanceCount: profile.size.starts.len() as u32,
        multiprocessorCount: multiprocessors(call, profile.size.slices),
        copyEngineCount: slices,
        decoderCount: slices,
        encoderCount: 0,
        jpegCount: slices,
        ofaCount: 0,
        memorySizeMB: memory_of(call, &profile.size) >> 20,
        name: fixed_text(&format!("MIG {}", size_name(call, &profile.size))),
    };
    if !is_v3 {
        to.put(v2);
        return Ok(());
    }
    v3.put(sys::nvmlGpuInstanceProfileInfo_v3_st {
        version: v2.version,
        id: v2.id,
        sliceCount: v2.sliceCount,
        instanceCount: v2.instanceCount,
        multiprocessorCount: v2.multiprocessorCount,
        copyEngineCount: v2.copyEngineCount,
        decoderCount: v2.decoderCount,
        encoderCount: v2.encoderCount,
        jpegCount: v2.jpegCount,
        ofaCount: v2.ofaCount,
        memorySizeMB: v2.memorySizeMB,
        name: v2.name,
        capabilities: 0,
    });
    Ok(())
}

fn placement(profile: &Profile, start: u8) -> sys::nvmlGpuInstancePlacement_st {
    sys::nvmlGpuInstancePlacement_st { start: start.into(), size: profile.size.memory_slots.into() }
}

fn placements(
    call: &Call<'_>,
    Gpu(gpu): Gpu,
    id: u32,
    to: Option<Out<sys::nvmlGpuInstancePlacement_st>>,
    count: Out<u32>,
) -> Answer {
    look(call, gpu, is_on)?;
    let profile = mig::by_gpu_id(id)?;
    let all: Vec<_> = profile.size.starts.iter().map(|&start| placement(&profile, start)).collect();
    count.put(all.len() as u32);
    to.iter().for_each(|to| to.put_all(&all));
    Ok(())
}

fn capacity(call: &Call<'_>, Gpu(gpu): Gpu, id: u32, to: Out<u32>) -> Answer {
    let profile = mig::by_gpu_id(id)?;
    to.put(look(call, gpu, |mig| is_on(mig).map(|()| mig.capacity(&profile.size)))?);
    Ok(())
}

fn make(call: &Call<'_>, gpu: u32, id: u32, start: Option<u8>) -> Answer<Gi> {
    call.needs_root()?;
    let profile = mig::by_gpu_id(id)?;
    call.change(gpu, |model, _| {
        is_on(&model.mig)?;
        let free = model.mig.free_starts(&profile.size);
        let start = match start {
            Some(wanted) if !profile.size.starts.contains(&wanted) => return Err(Code::INVALID_ARGUMENT),
            Some(wanted) => free.into_iter().find(|&s| s == wanted),
            None => free.last().copied(),
        };
        let start = start.ok_or(Code::INSUFFICIENT_RESOURCES)?;
        let slices = profile.size.slices;
        let id = model.mig.next_id(slices);
        Ok((Change::CreateGpuInstance { id, slices, start }, Gi { gpu, id }))
    })
}

fn create(call: &Call<'_>, Gpu(gpu): Gpu, id: u32, to: Out<sys::nvmlGpuInstance_t>) -> Answer {
    to.put(make(call, gpu, id, None)?.handle());
    Ok(())
}

fn create_at(
    call: &Call<'_>,
    Gpu(gpu): Gpu,
    id: u32,
    at: Out<sys::nvmlGpuInstancePlacement_st>,
    to: Out<sys::nvmlGpuInstance_t>,
) -> Answer {
    let wanted = at.get();
    let start = u8::try_from(wanted.start).map_err(|_| Code::INVALID_ARGUMENT)?;
    if wanted.size != u32::from(mig::by_gpu_id(id)?.size.memory_slots) {
        return Err(Code::INVALID_ARGUMENT);
    }
    to.put(make(call, gpu, id, Some(start))?.handle());
    Ok(())
}

fn destroy(call: &Call<'_>, gi: Gi) -> Answer {
    call.needs_root()?;
    call.change(gi.gpu, |model, _| match model.mig.instance(gi.id)?.compute.is_empty() {
        true => Ok((Change::DestroyGpuInstance { id: gi.id }, ())),
        false => Err(Code::IN_USE),
    })
}

fn list(call: &Call<'_>, Gpu(gpu): Gpu, id: u32, to: Out<sys::nvmlGpuInstance_t>, count: Out<u32>) -> Answer {
    let profile = mig::by_gpu_id(id)?;
    let found = look(call, gpu, |mig| {
        is_on(mig)?;
        let of_size = mig.instances.iter().filter(|i| i.slices == profile.size.slices);
        Ok(of_size.map(|i| Gi { gpu, id: i.id }.handle()).collect::<Vec<_>>())
    })?;
    count.put(found.len() as u32);
    to.put_all(&found);
    Ok(())
}

fn by_id(call: &Call<'_>, Gpu(gpu): Gpu, id: u32, to: Out<sys::nvmlGpuInstance_t>) -> Answer {
    look(call, gpu, |mig| is_on(mig).and_then(|()| mig.instance(id).map(drop)))?;
    to.put(Gi { gpu, id }.handle());
    Ok(())
}

fn info(call: &Call<'_>, gi: Gi, to: Out<sys::nvmlGpuInstanceInfo_st>) -> Answer {
    let (profile, start) = look(call, gi.gpu, |mig| {
        let instance = mig.instance(gi.id)?;
        Ok((instance.profile()?, instance.start))
    })?;
    to.put(sys::nvmlGpuInstanceInfo_st {
        device: Device::Gpu(gi.gpu).handle(call.world),
        id: gi.id,
        profileId: profile.gpu_id,
        placement: placement(&profile, start),
    });
    Ok(())
}

type Placement = sys::nvmlGpuInstancePlacement_st;

exports! {
    nvmlDeviceGetMigMode(device: Gpu, current: Out<u32>, pending: Out<u32>) => mode;
    nvmlDeviceSetMigMode(device: Gpu, mode: u32, status: Out<u32>) => set_mode;
    nvmlDeviceGetMaxMigDeviceCount(device: Gpu, count: Out<u32>) => most_devices;
    nvmlDeviceGetMigDeviceHandleByIndex(device: Gpu, index: u32, mig: Out<sys::nvmlDevice_t>) => device_by_index;
    nvmlDeviceIsMigDeviceHandle(device: Device, is_mig: Out<u32>) => is_mig;
    nvmlDeviceGetGpuInstanceId(device: Device, id: Out<u32>) => gpu_instance_id;
    nvmlDeviceGetComputeInstanceId(device: Device, id: Out<u32>) => compute_instance_id;
    nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig: Device, device: Out<sys::nvmlDevice_t>) => parent;
    nvmlDeviceGetAttributes_v2(device: Device, attributes: Out<sys::nvmlDeviceAttributes_st>) => attributes;
    nvmlDeviceGetGpuInstanceProfileInfo(
        device: Gpu, profile: u32, info: Out<sys::nvmlGpuInstanceProfileInfo_st>,
    ) => profile_info;
    nvmlDeviceGetGpuInstanceProfileInfoV(
        device: Gpu, profile: u32, info: Out<sys::nvmlGpuInstanceProfileInfo_v2_st>,
    ) => profile_info_v;
    nvmlDeviceGetGpuInstancePossiblePlacements(
        device: Gpu, id: u32, placements: Option<Out<Placement>>, count: Out<u32>,
    ) => placements;
    nvmlDeviceGetGpuInstancePossiblePlacements_v2(
        device: Gpu, id: u32, placements: Option<Out<Placement>>, count: Out<u32>,
    ) => placements;
    nvmlDeviceGetGpuInstanceRemainingCapacity(device: Gpu, id: u32, count: Out<u32>) => capacity;
    nvmlDeviceCreateGpuInstance(device: Gpu, id: u32, instance: Out<sys::nvmlGpuInstance_t>) => create;
    nvmlDeviceCreateGpuInstanceWithPlacement(
        device: Gpu, id: u32, placement: Out<Placement>, instance: Out<sys::nvmlGpuInstance_t>,
    ) => create_at;
    nvmlDeviceGetGpuInstances(
        device: Gpu, id: u32, instances: Out<sys::nvmlGpuInstance_t>, count: Out<u32>,
    ) => list;
    nvmlDeviceGetGpuInstanceById(device: Gpu, id: u32, instance: Out<sys::nvmlGpuInstance_t>) => by_id;
    nvmlGpuInstanceGetInfo(instance: Gi, info: Out<sys::nvmlGpuInstanceInfo_st>) => info;
    nvmlGpuInstanceDestroy(instance: Gi) => destroy;
}
