//! Compute instances.
//!
//! Rule: as for GPU instances, one level further down.

use nvml_wrapper_sys::bindings as sys;

use super::identity::size_name;
use super::mig::multiprocessors;
use crate::codes::{Answer, Code};
use crate::edge::{Out, exports, fixed_text};
use crate::handles::{Ci, Device, Gi};
use crate::log::Change;
use crate::mig::{self, GpuInstance, Profile};
use crate::world::Call;

fn look<T>(call: &Call<'_>, gi: Gi, look: impl FnOnce(&GpuInstance) -> Answer<T>) -> Answer<T> {
    call.world.look(gi.gpu, |model, _| model.mig.instance(gi.id).and_then(look))?
}

/// The profile at a place of `NVML_COMPUTE_INSTANCE_PROFILE_…`, if it fits into the instance.
fn profile_at(call: &Call<'_>, gi: Gi, position: u32, engine: u32) -> Answer<(Profile, GpuInstance)> {
    let counts = (sys::NVML_COMPUTE_INSTANCE_PROFILE_COUNT, sys::NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT);
    if position >= counts.0 || engine >= counts.1 {
        return Err(Code::INVALID_ARGUMENT);
    }
    let profile = mig::by_position(position)?;
    let instance = look(call, gi, |instance| Ok(instance.clone()))?;
    if profile.size.slices > instance.slices { Err(Code::NOT_SUPPORTED) } else { Ok((profile, instance)) }
}

fn profile_info(
    call: &Call<'_>,
    gi: Gi,
    position: u32,
    engine: u32,
    to: Out<sys::nvmlComputeInstanceProfileInfo_st>,
) -> Answer {
    let (profile, instance) = profile_at(call, gi, position, engine)?;
    let shared = u32::from(instance.slices);
    to.put(sys::nvmlComputeInstanceProfileInfo_st {
        id: profile.compute_id,
        sliceCount: u32::from(profile.size.slices),
        instanceCount: u32::from(instance.slices / profile.size.slices),
        multiprocessorCount: multiprocessors(call, profile.size.slices),
        sharedCopyEngineCount: shared,
        sharedDecoderCount: shared,
        sharedEncoderCount: 0,
        sharedJpegCount: shared,
        sharedOfaCount: 0,
    });
    Ok(())
}

fn profile_info_v(
    call: &Call<'_>,
    gi: Gi,
    position: u32,
    engine: u32,
    to: Out<sys::nvmlComputeInstanceProfileInfo_v2_st>,
) -> Answer {
    let v3 = to.cast::<sys::nvmlComputeInstanceProfileInfo_v3_st>(0);
    let is_v3 = v3.has_version(3).is_ok();
    if !is_v3 {
        to.has_version(2)?;
    }
    let (profile, instance) = profile_at(call, gi, position, engine)?;
    let shared = u32::from(instance.slices);
    let whole = size_name(call, &instance.profile()?.size);
    let name = match profile.size.slices == instance.slices {
        true => format!("MIG {whole}"),
        false => format!("MIG {}c.{whole}", profile.size.slices),
    };
    to.put(sys::nvmlComputeInstanceProfileInfo_v2_st {
        version: to.version(),
        id: profile.compute_id,
        sliceCount: u32::from(profile.size.slices),
        instanceCount: u32::from(instance.slices / profile.size.slices),
        multiprocessorCount: multiprocessors(call, profile.size.slices),
        sharedCopyEngineCount: shared,
        sharedDecoderCount: shared,
        sharedEncoderCount: 0,
        sharedJpegCount: shared,
        sharedOfaCount: 0,
        name: fixed_text(&name),
    });
    if is_v3 {
        // The third version only adds this at the end.
        let at = std::mem::offset_of!(sys::nvmlComputeInstanceProfileInfo_v3_st, capabilities);
        v3.cast::<u32>(at).put(0);
    }
    Ok(())
}

fn capacity(call: &Call<'_>, gi: Gi, id: u32, to: Out<u32>) -> Answer {
    let profile = mig::by_compute_id(id)?;
    to.put(look(call, gi, |instance| Ok(instance.compute_capacity(profile.size.slices)))?);
    Ok(())
}

type Placement = sys::nvmlComputeInstancePlacement_st;

fn placements(call: &Call<'_>, gi: Gi, id: u32, to: Option<Out<Placement>>, count: Out<u32>) -> Answer {
    let size = mig::by_compute_id(id)?.size.slices;
    let all = look(call, gi, |instance| {
        let at = |start: u8| Placement { start: start.into(), size: size.into() };
        Ok(instance.compute_starts(size).map(at).collect::<Vec<_>>())
    })?;
    count.put(all.len() as u32);
    to.iter().for_each(|to| to.put_all(&all));
    Ok(())
}

fn make(call: &Call<'_>, gi: Gi, id: u32, start: Option<u8>) -> Answer<Ci> {
    call.needs_root()?;
    let slices = mig::by_compute_id(id)?.size.slices;
    call.change(gi.gpu, |model, _| {
        let instance = model.mig.instance(gi.id)?;
        let free = instance.free_compute_starts(slices);
        let found = start.map_or(free.first(), |wanted| free.iter().find(|&&s| s == wanted)).copied();
        let start = found.ok_or(Code::INSUFFICIENT_RESOURCES)?;
        let id = instance.next_compute_id();
        let change = Change::CreateComputeInstance { gpu_instance: gi.id, id, slices, start };
        Ok((change, Ci { gi, id }))
    })
}

fn create(call: &Call<'_>, gi: Gi, id: u32, to: Out<sys::nvmlComputeInstance_t>) -> Answer {
    to.put(make(call, gi, id, None)?.handle());
    Ok(())
}

fn create_at(
    call: &Call<'_>,
    gi: Gi,
    id: u32,
    at: Out<Placement>,
    to: Out<sys::nvmlComputeInstance_t>,
) -> Answer {
    let wanted = at.get();
    if wanted.size != u32::from(mig::by_compute_id(id)?.size.slices) {
        return Err(Code::INVALID_ARGUMENT);
    }
    let start = u8::try_from(wanted.start).map_err(|_| Code::INVALID_ARGUMENT)?;
    to.put(make(call, gi, id, Some(start))?.handle());
    Ok(())
}

fn list(call: &Call<'_>, gi: Gi, id: u32, to: Out<sys::nvmlComputeInstance_t>, count: Out<u32>) -> Answer {
    let slices = mig::by_compute_id(id)?.size.slices;
    let found = look(call, gi, |instance| {
        let of_size = instance.compute.iter().filter(|c| c.slices == slices);
        Ok(of_size.map(|c| Ci { gi, id: c.id }.handle()).collect::<Vec<_>>())
    })?;
    count.put(found.len() as u32);
    to.put_all(&found);
    Ok(())
}

fn by_id(call: &Call<'_>, gi: Gi, id: u32, to: Out<sys::nvmlComputeInstance_t>) -> Answer {
    look(call, gi, |instance| instance.compute(id))?;
    to.put(Ci { gi, id }.handle());
    Ok(())
}

fn info(call: &Call<'_>, ci: Ci, to: Out<sys::nvmlComputeInstanceInfo_st>) -> Answer {
    let found = look(call, ci.gi, |instance| instance.compute(ci.id))?;
    let profile = mig::profiles().find(|p| p.size.slices == found.slices).ok_or(Code::UNKNOWN)?;
    to.put(sys::nvmlComputeInstanceInfo_st {
        device: Device::Gpu(ci.gi.gpu).handle(call.world),
        gpuInstance: ci.gi.handle(),
        id: ci.id,
        profileId: profile.compute_id,
        placement: Placement { start: found.start.into(), size: found.slices.into() },
    });
    Ok(())
}

fn destroy(call: &Call<'_>, ci: Ci) -> Answer {
    call.needs_root()?;
    call.change(ci.gi.gpu, |model, _| {
        model.mig.instance(ci.gi.id)?.compute(ci.id)?;
        Ok((Change::DestroyComputeInstance { gpu_instance: ci.gi.id, id: ci.id }, ()))
    })
}

exports! {
    nvmlGpuInstanceGetComputeInstanceProfileInfo(
        instance: Gi, profile: u32, engine: u32, info: Out<sys::nvmlComputeInstanceProfileInfo_st>,
    ) => profile_info;
    nvmlGpuInstanceGetComputeInstanceProfileInfoV(
        instance: Gi, profile: u32, engine: u32, info: Out<sys::nvmlComputeInstanceProfileInfo_v2_st>,
    ) => profile_info_v;
    nvmlGpuInstanceGetComputeInstanceRemainingCapacity(instance: Gi, id: u32, count: Out<u32>) => capacity;
    nvmlGpuInstanceGetComputeInstancePossiblePlacements(
        instance: Gi, id: u32, placements: Option<Out<Placement>>, count: Out<u32>,
    ) => placements;
    nvmlGpuInstanceCreateComputeInstance(
        instance: Gi, id: u32, compute: Out<sys::nvmlComputeInstance_t>,
    ) => create;
    nvmlGpuInstanceCreateComputeInstanceWithPlacement(
        instance: Gi, id: u32, placement: Out<Placement>, compute: Out<sys::nvmlComputeInstance_t>,
    ) => create_at;
    nvmlGpuInstanceGetComputeInstances(
        instance: Gi, id: u32, list: Out<sys::nvmlComputeInstance_t>, count: Out<u32>,
    ) => list;
    nvmlGpuInstanceGetComputeInstanceById(
        instance: Gi, id: u32, compute: Out<sys::nvmlComputeInstance_t>,
    ) => by_id;
    nvmlComputeInstanceGetInfo(compute: Ci, info: Out<sys::nvmlComputeInstanceInfo_st>) => info;
    nvmlComputeInstanceGetInfo_v2(compute: Ci, info: Out<sys::nvmlComputeInstanceInfo_st>) => info;
    nvmlComputeInstanceDestroy(compute: Ci) => destroy;
}
