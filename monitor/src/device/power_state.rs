//! Which GPUs sleep: PCI runtime power management, read from sysfs without touching a GPU.
//!
//! Rule: a PCI device of vendor 10de and class 03 (display) is a GPU; `power/runtime_status` says `suspended` or
//! `suspending` where it sleeps. Reading these files wakes nothing.
//! Cases: no sysfs, or an unreadable file: nothing sleeps. Another folder than the machine's own can be named by
//! [`VARIABLE`], for tests and for containers that see sysfs elsewhere; that is said each time.
//! Not done here: a GPU that would fall asleep while it is recorded stays awake as long as it is read.
//! Source: the kernel's Documentation/ABI/testing/sysfs-devices-power; NVIDIA driver README, "PCI-Express Runtime D3
//! (RTD3) Power Management".

use std::fs;
use std::path::{Path, PathBuf};

/// The variable that names another folder of PCI devices.
const VARIABLE: &str = "GPUMON_PCI_DEVICES";
const DEVICES: &str = "/sys/bus/pci/devices";

/// One GPU on the PCI bus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PciGpu {
    /// `domain:bus:device.function`.
    pub(super) address: String,
    /// Whether it sleeps.
    pub(super) suspended: bool,
}

/// The NVIDIA GPUs of this machine in order of their addresses.
pub(super) fn gpus() -> Vec<PciGpu> {
    match std::env::var_os(VARIABLE).filter(|folder| !folder.is_empty()) {
        Some(folder) => {
            let folder = PathBuf::from(folder);
            tracing::warn!(
                "which GPUs are asleep is read from {} ({VARIABLE}), not from {DEVICES}",
                folder.display()
            );
            in_folder(&folder)
        }
        None => in_folder(Path::new(DEVICES)),
    }
}

fn in_folder(folder: &Path) -> Vec<PciGpu> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut gpus: Vec<PciGpu> = entries.filter_map(|entry| gpu(&entry.path())).collect();
    gpus.sort_by(|a, b| a.address.cmp(&b.address));
    gpus
}

fn gpu(device: &Path) -> Option<PciGpu> {
    let read = |file: &str| fs::read_to_string(device.join(file)).unwrap_or_default();
    let is_gpu = read("vendor").trim() == "0x10de" && read("class").starts_with("0x03");
    let suspended = matches!(read("power/runtime_status").trim(), "suspended" | "suspending");
    is_gpu.then(|| Some(PciGpu { address: device.file_name()?.to_str()?.to_owned(), suspended }))?
}
