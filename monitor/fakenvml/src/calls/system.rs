//! Initialisation, versions, and how GPUs are found.
//!
//! Assumed: CUDA 13.0, NVML 13.580 beside the driver's version, which the description gives.

use std::ffi::{c_char, c_int};

use nvml_wrapper_sys::bindings as sys;

use crate::codes::{self, Answer, Code};
use crate::edge::{self, Out, Text, exports};
use crate::handles::{Device, Index};
use crate::world::Call;

/// Functions that are not made by the list below, because they work without initialisation.
pub(super) const OWN_NAMES: &[&str] =
    &["nvmlErrorString", "nvmlInit", "nvmlInitWithFlags", "nvmlInit_v2", "nvmlShutdown"];

macro_rules! own {
    ($( $name:ident ( $($arg:ident : $ty:ty),* ) -> $result:ty { $body:expr } )*) => { $(
        #[allow(unsafe_code, non_snake_case, reason = "the library's own names")]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($arg: $ty),*) -> $result { $body }
    )* };
}

own! {
    nvmlInit() -> u32 { edge::guard(|| edge::init("nvmlInit")) }
    nvmlInit_v2() -> u32 { edge::guard(|| edge::init("nvmlInit_v2")) }
    nvmlInitWithFlags(_flags: u32) -> u32 { edge::guard(|| edge::init("nvmlInitWithFlags")) }
    nvmlShutdown() -> u32 { edge::guard(edge::shutdown) }
    nvmlErrorString(code: u32) -> *const c_char { codes::text(code).as_ptr() }
}

fn driver(call: &Call<'_>, to: Out<c_char>, length: u32) -> Answer {
    to.put_text(length, &call.world.script.spec.driver)
}

fn nvml(call: &Call<'_>, to: Out<c_char>, length: u32) -> Answer {
    to.put_text(length, &format!("13.{}", call.world.script.spec.driver))
}

fn cuda(_: &Call<'_>, to: Out<c_int>) -> Answer {
    to.put(13_000);
    Ok(())
}

fn process_name(call: &Call<'_>, pid: u32, to: Out<c_char>, length: u32) -> Answer {
    if !call.world.script.processes.iter().any(|p| p.pid == pid) {
        return Err(Code::NOT_FOUND);
    }
    let path = std::fs::read_link(format!("/proc/{pid}/exe"));
    let name = path.map_or_else(|_| format!("process-{pid}"), |path| path.display().to_string());
    to.put_text(length, &name)
}

fn count(call: &Call<'_>, to: Out<u32>) -> Answer {
    call.give32(&to, call.world.gpu_count())?;
    Ok(())
}

fn by_index(call: &Call<'_>, Index(index): Index, to: Out<sys::nvmlDevice_t>) -> Answer {
    call.world.present(index)?;
    to.put(Device::Gpu(index).handle(call.world));
    Ok(())
}

fn by_uuid(call: &Call<'_>, Text(uuid): Text, to: Out<sys::nvmlDevice_t>) -> Answer {
    for gpu in 0..call.world.gpu_count() {
        let found = call.world.look(gpu, |model, _| {
            let own = model.sim.uuid();
            let migs = model.mig.devices().into_iter().map(|(gi, ci)| Device::Mig { gpu, gi, ci });
            if own == uuid {
                return Some((Device::Gpu(gpu), model.lost));
            }
            let wanted = |device: &Device| super::identity::uuid_of(*device, &own) == uuid;
            migs.into_iter().find(wanted).map(|device| (device, model.lost))
        })?;
        match found {
            Some((_, true)) => return Err(Code::GPU_IS_LOST),
            Some((device, false)) => {
                call.world.present(gpu)?;
                to.put(device.handle(call.world));
                return Ok(());
            }
            None => {}
        }
    }
    Err(Code::NOT_FOUND)
}

/// `domain:bus:device.function` in numbers; the domain and the function may be left out.
fn pci_numbers(text: &str) -> Option<[u32; 3]> {
    let text = text.split('.').next()?;
    let parts: Option<Vec<u32>> = text.split(':').map(|part| u32::from_str_radix(part, 16).ok()).collect();
    match parts?[..] {
        [domain, bus, device] => Some([domain, bus, device]),
        [bus, device] => Some([0, bus, device]),
        _ => None,
    }
}

fn by_pci(call: &Call<'_>, Text(wanted): Text, to: Out<sys::nvmlDevice_t>) -> Answer {
    let wanted = pci_numbers(&wanted).ok_or(Code::INVALID_ARGUMENT)?;
    for gpu in 0..call.world.gpu_count() {
        let (id, lost) = call.world.look(gpu, |model, _| (model.sim.pci_id(), model.lost))?;
        if pci_numbers(&id) == Some(wanted) {
            if lost {
                return Err(Code::GPU_IS_LOST);
            }
            call.world.present(gpu)?;
            to.put(Device::Gpu(gpu).handle(call.world));
            return Ok(());
        }
    }
    Err(Code::NOT_FOUND)
}

exports! {
    nvmlSystemGetDriverVersion(version: Out<c_char>, length: u32) => driver;
    nvmlSystemGetNVMLVersion(version: Out<c_char>, length: u32) => nvml;
    nvmlSystemGetCudaDriverVersion(version: Out<c_int>) => cuda;
    nvmlSystemGetCudaDriverVersion_v2(version: Out<c_int>) => cuda;
    nvmlSystemGetProcessName(pid: u32, name: Out<c_char>, length: u32) => process_name;
    nvmlDeviceGetCount(count: Out<u32>) => count;
    nvmlDeviceGetCount_v2(count: Out<u32>) => count;
    nvmlDeviceGetHandleByIndex(index: Index, device: Out<sys::nvmlDevice_t>) => by_index;
    nvmlDeviceGetHandleByIndex_v2(index: Index, device: Out<sys::nvmlDevice_t>) => by_index;
    nvmlDeviceGetHandleByUUID(uuid: Text, device: Out<sys::nvmlDevice_t>) => by_uuid;
    nvmlDeviceGetHandleByPciBusId(id: Text, device: Out<sys::nvmlDevice_t>) => by_pci;
    nvmlDeviceGetHandleByPciBusId_v2(id: Text, device: Out<sys::nvmlDevice_t>) => by_pci;
}
