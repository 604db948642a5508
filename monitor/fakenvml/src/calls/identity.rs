//! Which GPU it is, and the modes it is in.
//!
//! Assumed: architecture and compute capability follow from the name (A100: Ampere, 8.0; otherwise
//! Hopper, 9.0); 128 cores a multiprocessor on Hopper, 64 on Ampere; serial numbers; device ids.

use std::ffi::{c_char, c_int};

use nvml_wrapper_sys::bindings as sys;

use crate::codes::{Answer, Code};
use crate::edge::{Out, exports, fixed_text};
use crate::handles::{Device, Gpu};
use crate::log::Change;
use crate::mig;
use crate::model::Model;
use crate::world::{Call, fingerprint};

const NVIDIA: u32 = 0x10DE;
const BRAND_NVIDIA: u32 = 14;

/// UUID of a GPU, or of a MIG device on the GPU with the UUID `own`.
pub(super) fn uuid_of(device: Device, own: &str) -> String {
    let Device::Mig { gi, ci, .. } = device else { return own.to_owned() };
    let (a, b) = (fingerprint(&format!("{own} {gi} {ci}")), fingerprint(&format!("{ci} {gi} {own}")));
    format!("MIG-{:08x}-{:04x}-0000-{:04x}-{:012x}", a >> 32, a >> 16 & 0xFFFF, a & 0xFFFF, b >> 16)
}

/// Size of a GPU instance as NVML's names give it, `3g.71gb`: its share of the whole GPU's memory in
/// GiB rounded up. Fits the names that the MIG User Guide lists for A100, H100 and H200.
pub(super) fn size_name(call: &Call<'_>, size: &gpumon_core::geometry::MigProfile) -> String {
    let whole_gib = call.world.script.spec.mem_total_bytes.div_ceil(1 << 30) as f64;
    let slots = f64::from(gpumon_core::geometry::SEVEN_SLICES.memory_slots);
    format!("{}g.{}gb", size.slices, (whole_gib * f64::from(size.memory_slots) / slots).round())
}

/// Memory of a GPU instance, bytes.
pub(super) fn memory_of(call: &Call<'_>, size: &gpumon_core::geometry::MigProfile) -> u64 {
    let slots = gpumon_core::geometry::SEVEN_SLICES.memory_slots;
    call.world.script.spec.mem_total_bytes / u64::from(slots) * u64::from(size.memory_slots)
}

fn look<T>(call: &Call<'_>, device: Device, look: impl FnOnce(&mut Model) -> T) -> Answer<T> {
    call.world.look(device.physical(), |model, _| look(model))
}

fn name(call: &Call<'_>, device: Device, to: Out<c_char>, length: u32) -> Answer {
    let own = &call.world.script.spec.name;
    let Device::Mig { gi, .. } = device else { return to.put_text(length, own) };
    let profile = look(call, device, |model| model.mig.instance(gi).and_then(mig::GpuInstance::profile))??;
    to.put_text(length, &format!("{own} MIG {}", size_name(call, &profile.size)))
}

fn uuid(call: &Call<'_>, device: Device, to: Out<c_char>, length: u32) -> Answer {
    let own = look(call, device, |model| model.sim.uuid())?;
    to.put_text(length, &uuid_of(device, &own))
}

fn serial(call: &Call<'_>, Gpu(gpu): Gpu, to: Out<c_char>, length: u32) -> Answer {
    let uuid = look(call, Device::Gpu(gpu), |model| model.sim.uuid())?;
    to.put_text(length, &format!("{:013}", fingerprint(&uuid) % 10_000_000_000_000))
}

fn index(call: &Call<'_>, device: Device, to: Out<u32>) -> Answer {
    let Device::Mig { gi, ci, .. } = device else {
        to.put(device.physical());
        return Ok(());
    };
    let devices = look(call, device, |model| model.mig.devices())?;
    let place = devices.iter().position(|&found| found == (gi, ci)).ok_or(Code::NOT_FOUND)?;
    to.put(place as u32);
    Ok(())
}

fn minor(_: &Call<'_>, Gpu(gpu): Gpu, to: Out<u32>) -> Answer {
    to.put(gpu);
    Ok(())
}

fn pci(call: &Call<'_>, device: Device, to: Out<sys::nvmlPciInfo_t>) -> Answer {
    let id = look(call, device, |model| model.sim.pci_id())?;
    let mut numbers =
        id.split([':', '.']).map(|part| u32::from_str_radix(part, 16).map_err(|_| Code::UNKNOWN));
    let mut next = || numbers.next().unwrap_or(Err(Code::UNKNOWN));
    let (domain, bus, device) = (next()?, next()?, next()?);
    to.put(sys::nvmlPciInfo_t {
        busIdLegacy: fixed_text(&format!("{domain:04X}:{bus:02X}:{device:02X}.0")),
        domain,
        bus,
        device,
        pciDeviceId: device_id(call) << 16 | NVIDIA,
        pciSubSystemId: NVIDIA,
        busId: fixed_text(&id),
    });
    Ok(())
}

fn is_ampere(call: &Call<'_>) -> bool {
    call.world.script.spec.name.contains("A100")
}

fn device_id(call: &Call<'_>) -> u32 {
    if is_ampere(call) { 0x20B2 } else { 0x2335 }
}

fn brand(_: &Call<'_>, _: Gpu, to: Out<u32>) -> Answer {
    to.put(BRAND_NVIDIA);
    Ok(())
}

fn architecture(call: &Call<'_>, _: Device, to: Out<u32>) -> Answer {
    to.put(if is_ampere(call) { sys::NVML_DEVICE_ARCH_AMPERE } else { sys::NVML_DEVICE_ARCH_HOPPER });
    Ok(())
}

fn capability(call: &Call<'_>, _: Device, major: Out<c_int>, minor: Out<c_int>) -> Answer {
    major.put(if is_ampere(call) { 8 } else { 9 });
    minor.put(0);
    Ok(())
}

fn cores(call: &Call<'_>, _: Gpu, to: Out<u32>) -> Answer {
    to.put(call.world.script.spec.sm_count * if is_ampere(call) { 64 } else { 128 });
    Ok(())
}

fn off(_: &Call<'_>, _: Gpu, to: Out<u32>) -> Answer {
    to.put(0);
    Ok(())
}

fn not_on_linux(_: &Call<'_>, _: Gpu, _: Out<u32>, _: Option<Out<u32>>) -> Answer {
    Err(Code::NOT_SUPPORTED)
}

fn no_c2c(_: &Call<'_>, _: Gpu, _: Out<u32>) -> Answer {
    Err(Code::NOT_SUPPORTED)
}

fn persistence(call: &Call<'_>, Gpu(gpu): Gpu, to: Out<u32>) -> Answer {
    to.put(u32::from(look(call, Device::Gpu(gpu), |model| model.persistence)?));
    Ok(())
}

fn set_persistence(call: &Call<'_>, Gpu(gpu): Gpu, mode: u32) -> Answer {
    call.needs_root()?;
    if mode > 1 {
        return Err(Code::INVALID_ARGUMENT);
    }
    call.change(gpu, |_, _| Ok((Change::Persistence { on: mode == 1 }, ())))
}

exports! {
    nvmlDeviceGetName(device: Device, name: Out<c_char>, length: u32) => name;
    nvmlDeviceGetUUID(device: Device, uuid: Out<c_char>, length: u32) => uuid;
    nvmlDeviceGetSerial(device: Gpu, serial: Out<c_char>, length: u32) => serial;
    nvmlDeviceGetIndex(device: Device, index: Out<u32>) => index;
    nvmlDeviceGetMinorNumber(device: Gpu, minor: Out<u32>) => minor;
    nvmlDeviceGetPciInfo(device: Device, pci: Out<sys::nvmlPciInfo_t>) => pci;
    nvmlDeviceGetPciInfo_v2(device: Device, pci: Out<sys::nvmlPciInfo_t>) => pci;
    nvmlDeviceGetPciInfo_v3(device: Device, pci: Out<sys::nvmlPciInfo_t>) => pci;
    nvmlDeviceGetBrand(device: Gpu, brand: Out<u32>) => brand;
    nvmlDeviceGetArchitecture(device: Device, architecture: Out<u32>) => architecture;
    nvmlDeviceGetCudaComputeCapability(device: Device, major: Out<c_int>, minor: Out<c_int>) => capability;
    nvmlDeviceGetNumGpuCores(device: Gpu, cores: Out<u32>) => cores;
    nvmlDeviceGetDisplayMode(device: Gpu, on: Out<u32>) => off;
    nvmlDeviceGetDisplayActive(device: Gpu, on: Out<u32>) => off;
    nvmlDeviceGetComputeMode(device: Gpu, mode: Out<u32>) => off;
    nvmlDeviceGetDriverModel(device: Gpu, current: Out<u32>, pending: Option<Out<u32>>) => not_on_linux;
    nvmlDeviceGetDriverModel_v2(device: Gpu, current: Out<u32>, pending: Option<Out<u32>>) => not_on_linux;
    nvmlDeviceGetC2cModeInfoV(device: Gpu, info: Out<u32>) => no_c2c;
    nvmlDeviceGetPersistenceMode(device: Gpu, mode: Out<u32>) => persistence;
    nvmlDeviceSetPersistenceMode(device: Gpu, mode: u32) => set_persistence;
}
