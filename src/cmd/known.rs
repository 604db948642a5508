//! What earlier runs of `gpumon characterize` found, from the user's state folder.

use std::env;
use std::path::PathBuf;
use std::sync::Arc;

use gpumon_core::timing::Characterisation;
use gpumon_monitor::characterize::saved;
use gpumon_monitor::device::Device;

use crate::output::note;

/// The folder of characterisations, if this user has one.
pub fn folder() -> Option<PathBuf> {
    saved::folder(env::var_os("XDG_STATE_HOME"), env::var_os("HOME"))
}

/// What is known of one GPU. A file that cannot be used is said and changes nothing else.
pub fn of(device: &dyn Device) -> Option<Characterisation> {
    saved::load(&folder()?, device.identity()).unwrap_or_else(|e| {
        note(format_args!("gpumon: {e}"));
        None
    })
}

/// What is known of several.
pub fn all(devices: &[Arc<dyn Device>]) -> Vec<Characterisation> {
    devices.iter().filter_map(|device| of(device.as_ref())).collect()
}
