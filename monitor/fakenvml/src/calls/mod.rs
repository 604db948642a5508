//! The exported functions, by what they are about.
//!
//! Each module ends with one `exports!` list: name, arguments, body. Adding a function is a body and a
//! line there, and its name in docs/fake-nvml.md (`GPUMON_BLESS=1 cargo test -p gpumon-fakenvml` writes
//! that list anew).

use std::sync::OnceLock;

mod clocks;
mod fields;
mod gpm;
mod identity;
mod instances;
mod mig;
mod power;
mod system;
mod usage;

/// Functions whose numbers a script can replace.
pub(crate) const GARBAGE: &[&str] = &[
    "nvmlDeviceGetClock",
    "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetCount",
    "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetFanSpeed",
    "nvmlDeviceGetFanSpeed_v2",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetPowerManagementLimit",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetSamples",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetTotalEnergyConsumption",
    "nvmlDeviceGetUtilizationRates",
];

/// Functions that change a GPU, which a script can rob of their effect.
pub(crate) const SETTERS: &[&str] = &[
    "nvmlComputeInstanceDestroy",
    "nvmlDeviceResetGpuLockedClocks",
    "nvmlDeviceSetGpuLockedClocks",
    "nvmlDeviceSetMigMode",
    "nvmlDeviceSetPersistenceMode",
    "nvmlDeviceSetPowerManagementLimit",
    "nvmlGpuInstanceDestroy",
];

/// Names of all exported functions, sorted.
pub fn functions() -> &'static [&'static str] {
    static ALL: OnceLock<Vec<&'static str>> = OnceLock::new();
    ALL.get_or_init(|| {
        let lists = [
            clocks::NAMES,
            fields::NAMES,
            gpm::NAMES,
            identity::NAMES,
            instances::NAMES,
            mig::NAMES,
            power::NAMES,
            system::NAMES,
            system::OWN_NAMES,
            usage::NAMES,
        ];
        let mut all = lists.concat();
        all.sort_unstable();
        all
    })
}
