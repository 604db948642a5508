//! Changing a GPU, apart from reading it: one trait, one file a kind of GPU, and guards that put back what was found.
//!
//! ```text
//! Stage      what a sweep or `gpumon hold` wants: a clock, a power limit, seats (MIG instances, MPS shares)
//!   ↓        abilities are asked first: what is lacking is said before anything is measured
//! Guard      each act is in the journal, on disk, before it is done
//!   ↓        └─ journal ─ Janitor (a process of its own) and the next start put back what a dead process left
//! Control    nvml · sim · dry: one act a call; snaps nothing, decides nothing
//! ```
//!
//! Rule: a control does one act, or says why not ([`ControlError`], sorted by what the caller does next). Nothing here
//! reads sensors but to check an act. Acts that outlive the process go through a [`guard::Guard`].
//! Cases: a GPU of `replay:` cannot be controlled.
//! Not done here: memory clocks, compute mode, ECC, persistence mode; locked clocks cannot be read back from NVML, so what
//! was locked before is not known and clocks are put back to unlocked.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use gpumon_core::clock::Clock;
use gpumon_core::units::{Megahertz, Milliwatts};
use serde::{Deserialize, Serialize};

use crate::device::{Access, Device, Identity, OpenError, SlowSensor};

pub mod achieved;
pub mod act;
pub mod dry;
pub mod guard;
pub mod janitor;
pub mod journal;
pub mod left;
pub mod mps;
mod nvml;
mod nvml_mig;
pub mod restore;
mod sim;
pub mod stage;

pub use act::Act;
pub use sim::SimControl;

/// A GPU that can be changed. A call into a driver that does not return is given up after a minute.
pub trait Control: Send + Sync {
    /// Which GPU.
    fn identity(&self) -> &Identity;
    /// Whether what is set stays when this process ends, so that somebody has to put it back.
    fn outlives_process(&self) -> bool;
    /// What is set now, as far as it can be read.
    fn state(&self) -> Result<State, ControlError>;
    /// Whether a kind of act is possible here, found without changing anything.
    fn may(&self, ability: Ability) -> Result<(), ControlError>;
    /// Locks the SM clock to a range of supported clocks.
    fn lock_clocks(&self, lowest: Megahertz, highest: Megahertz) -> Result<(), ControlError>;
    /// Releases the SM clock.
    fn reset_clocks(&self) -> Result<(), ControlError>;
    /// Sets the power limit.
    fn set_power_limit(&self, limit: Milliwatts) -> Result<(), ControlError>;
    /// Turns MIG on or off, and fails if it is not so afterwards.
    fn set_mig(&self, on: bool) -> Result<(), ControlError>;
    /// Makes a GPU instance of this many slices at this start, with one compute instance in all of it.
    fn create_instance(&self, slices: u8, start: u8) -> Result<Instance, ControlError>;
    /// Destroys an instance with what is in it. One that is not there any more is no failure; one that is another than
    /// described is refused.
    fn destroy_instance(&self, instance: &Instance) -> Result<(), ControlError>;
    /// Starts an MPS daemon for this GPU in a private folder, and returns once it answers.
    fn start_mps(&self, folder: &Path) -> Result<(), ControlError> {
        mps::start(folder, &self.identity().uuid)
    }
    /// Stops the MPS daemon of a folder with its server, and removes the folder.
    fn stop_mps(&self, folder: &Path) -> Result<(), ControlError> {
        mps::stop(folder)
    }
}

/// What is set on a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The power limit and its bounds, where there is one.
    pub power: Option<PowerLimits>,
    /// Whether MIG is on; `None` where the GPU has no MIG.
    pub mig: Option<bool>,
    /// GPU instances.
    pub instances: Vec<Instance>,
}

/// Power limits of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PowerLimits {
    /// The one that is set.
    pub now: Milliwatts,
    /// Lowest that can be set.
    pub min: Milliwatts,
    /// Highest that can be set.
    pub max: Milliwatts,
}

/// A GPU instance and its compute instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    /// Id of the GPU instance.
    pub id: u32,
    /// Compute slices, of seven.
    pub slices: u8,
    /// First memory slot.
    pub start: u8,
    /// Memory slots covered, of eight.
    pub slots: u8,
    /// The MIG device's UUID, for CUDA_VISIBLE_DEVICES; `None` if it holds no compute instance.
    pub uuid: Option<String>,
}

impl Instance {
    /// Whether both are the same place on the GPU with the same id.
    pub fn is(&self, other: &Self) -> bool {
        (self.id, self.slices, self.start) == (other.id, other.slices, other.start)
    }
}

/// A kind of act, of which a GPU is capable or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ability {
    /// Locking SM clocks.
    Clocks,
    /// Setting the power limit.
    PowerLimit,
    /// MIG mode and instances.
    Mig,
    /// An MPS daemon.
    Mps,
}

impl fmt::Display for Ability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Clocks => "locking the SM clock",
            Self::PowerLimit => "setting the power limit",
            Self::Mig => "MIG instances",
            Self::Mps => "an MPS daemon",
        })
    }
}

/// Why an act was not done, sorted by what to do next.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// Get the privilege, then try again.
    #[error(
        "no permission for `{command}`: it takes root with CAP_SYS_ADMIN; use sudo, or in a container \
         `--cap-add SYS_ADMIN`"
    )]
    NoPermission {
        /// The command of the same effect.
        command: String,
    },
    /// Do without: this GPU or machine cannot.
    #[error("{0}")]
    NotSupported(String),
    /// Ask for something else.
    #[error("{0}")]
    Refused(String),
    /// Try again when others are done.
    #[error("{0}")]
    Busy(String),
    /// The GPU is gone: whatever is left to do has to wait until it is back.
    #[error("the GPU is lost: {0}")]
    Lost(String),
    /// It failed, and may have been done all the same.
    #[error("{0}")]
    Failed(String),
}

impl ControlError {
    /// Whether it is certain that nothing was changed.
    pub fn left_all_as_it_was(&self) -> bool {
        matches!(self, Self::NoPermission { .. } | Self::NotSupported(_) | Self::Refused(_))
    }
}

/// The nearest supported clock, the lower one of two that are as near. Beyond the supported range, and where nothing is
/// known of supported clocks, it is an error.
pub fn snap(asked: Megahertz, supported: &[Megahertz]) -> Result<Megahertz, ControlError> {
    let (Some(lowest), Some(highest)) = (supported.first(), supported.last()) else {
        return Err(ControlError::NotSupported(
            "the driver names no clocks that this GPU can be locked to".into(),
        ));
    };
    if !(lowest..=highest).contains(&&asked) {
        return Err(ControlError::Refused(format!(
            "a clock of {asked} is not possible; this GPU takes {lowest} to {highest}"
        )));
    }
    let nearest = supported.iter().min_by_key(|clock| clock.0.abs_diff(asked.0));
    Ok(*nearest.unwrap_or(lowest))
}

/// A GPU to read from and the same one to change.
#[derive(Clone)]
pub struct Controlled {
    /// For reading.
    pub device: Arc<dyn Device>,
    /// For changing.
    pub control: Arc<dyn Control>,
}

impl Controlled {
    /// SM clock and clock-event reasons now, if they can be read.
    pub fn clock_now(&self) -> Option<achieved::Reading> {
        let clock = self.device.sm_clock().ok()?;
        let reasons = self.device.slow(SlowSensor::EventReasons).ok().map(|bits| bits as u64);
        Some(achieved::Reading { clock, reasons })
    }
}

/// A way to get GPUs that can be changed.
struct Backend {
    scheme: &'static str,
    open: fn(rest: &str, clock: Arc<dyn Clock>, access: Access) -> Opened,
}

/// All GPUs of a backend.
type Opened = Result<Vec<Controlled>, OpenError>;

const BACKENDS: &[Backend] = &[
    Backend { scheme: "nvml", open: nvml::open },
    Backend { scheme: "sim", open: sim::open },
    Backend {
        scheme: "replay",
        open: |_, _, _| Err(OpenError::Replay("a recording cannot be controlled".into())),
    },
];

/// All GPUs of a device specification such as `nvml` or `sim:h200`, to be read and to be changed.
pub fn open(spec: &str, clock: Arc<dyn Clock>, access: Access) -> Opened {
    let (scheme, rest) = spec.split_once(':').unwrap_or((spec, ""));
    let backend = BACKENDS.iter().find(|backend| backend.scheme == scheme);
    (backend.ok_or_else(|| OpenError::UnknownSpec(spec.into()))?.open)(rest, clock, access)
}

/// The control of the NVIDIA GPU with this UUID, which may sleep, or why there is none.
pub fn of_uuid(uuid: &str, clock: Arc<dyn Clock>) -> Result<Arc<dyn Control>, String> {
    let all = open("nvml", clock, Access { wake: true }).map_err(|e| e.to_string())?;
    let found = all.into_iter().find(|gpu| gpu.control.identity().uuid == uuid);
    found.map(|gpu| gpu.control).ok_or_else(|| format!("no GPU has the UUID {uuid} now"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_snaps_to_the_nearest_supported_one_and_never_beyond() {
        let supported = [210, 225, 240, 1980].map(Megahertz);
        for (asked, snapped) in
            [(210, 210), (217, 210), (218, 225), (232, 225), (233, 240), (1000, 240), (1980, 1980)]
        {
            assert_eq!(snap(Megahertz(asked), &supported), Ok(Megahertz(snapped)), "{asked}");
        }
        for asked in [0, 209, 1981, u32::MAX] {
            let error = snap(Megahertz(asked), &supported).unwrap_err();
            assert!(
                matches!(&error, ControlError::Refused(text) if text.contains("210 MHz to 1980 MHz")),
                "{error}"
            );
        }
        assert!(matches!(snap(Megahertz(210), &[]), Err(ControlError::NotSupported(_))));
    }

    #[test]
    fn a_recording_cannot_be_controlled() {
        use gpumon_core::clock::RealClock;
        let error = open("replay:x", Arc::new(RealClock), Access::default()).err().unwrap();
        assert!(error.to_string().contains("cannot be controlled"));
        assert!(open("odd", Arc::new(RealClock), Access::default()).is_err());
    }
}
