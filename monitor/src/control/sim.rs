//! Simulated GPUs, changed.
//!
//! Rule: clocks and power limit are the simulation's own; MIG is kept here, with the geometry of A100, H100 and H200, because
//! the simulation has no instances. Everything ends with the process.
//! Cases: an MPS daemon is imagined: nothing is started, and its seats have the same environment.
//! Not done here: privileges; everybody may do everything.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gpumon_core::clock::Clock;
use gpumon_core::geometry::SEVEN_SLICES;
use gpumon_core::units::{Megahertz, Milliwatts, MonoUs};
use gpumon_simgpu::Change;

use super::{Ability, Control, ControlError, Controlled, Instance, PowerLimits, State};
use crate::device::sim::{self, SimDevice};
use crate::device::{Access, Device, Identity, OpenError};

/// All GPUs of a built-in name or of a TOML file.
pub(super) fn open(rest: &str, clock: Arc<dyn Clock>, _: Access) -> Result<Vec<Controlled>, OpenError> {
    let devices = sim::named(rest, &clock)?;
    let controlled = devices.into_iter().map(|device| Controlled {
        control: Arc::new(SimControl::new(device.clone(), clock.clone())),
        device,
    });
    Ok(controlled.collect())
}

/// One simulated GPU.
pub struct SimControl {
    device: Arc<SimDevice>,
    clock: Arc<dyn Clock>,
    mig: Mutex<Mig>,
}

#[derive(Default)]
struct Mig {
    on: bool,
    instances: Vec<Instance>,
}

impl SimControl {
    /// Changes a GPU that others read, on the same clock.
    pub fn new(device: Arc<SimDevice>, clock: Arc<dyn Clock>) -> Self {
        Self { device, clock, mig: Mutex::default() }
    }

    fn mig(&self) -> MutexGuard<'_, Mig> {
        self.mig.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn apply(&self, change: Change) -> Result<(), ControlError> {
        let now = MonoUs(self.clock.mono().since_us(self.device.opened()));
        let applied = self.device.gpu().apply(now, change);
        applied.map(drop).map_err(|e| ControlError::Refused(e.to_string()))
    }
}

impl Control for SimControl {
    fn identity(&self) -> &Identity {
        self.device.identity()
    }

    fn outlives_process(&self) -> bool {
        false
    }

    fn state(&self) -> Result<State, ControlError> {
        let gpu = self.device.gpu();
        let bound = |w: f64| Milliwatts((w * 1e3).round() as u32);
        let power = &gpu.spec().power;
        let power = PowerLimits {
            now: gpu.settings().limit,
            min: bound(power.limit_min_w),
            max: bound(power.limit_max_w),
        };
        let mig = self.mig();
        Ok(State { power: Some(power), mig: Some(mig.on), instances: mig.instances.clone() })
    }

    fn may(&self, _: Ability) -> Result<(), ControlError> {
        Ok(())
    }

    fn lock_clocks(&self, lowest: Megahertz, highest: Megahertz) -> Result<(), ControlError> {
        self.apply(Change::LockClocks(Some((lowest, highest))))
    }

    fn reset_clocks(&self) -> Result<(), ControlError> {
        self.apply(Change::LockClocks(None))
    }

    fn set_power_limit(&self, limit: Milliwatts) -> Result<(), ControlError> {
        self.apply(Change::PowerLimit(limit))
    }

    fn set_mig(&self, on: bool) -> Result<(), ControlError> {
        let mut mig = self.mig();
        if !mig.instances.is_empty() && mig.on != on {
            return Err(ControlError::Busy("MIG instances exist, so its mode cannot be changed".into()));
        }
        mig.on = on;
        Ok(())
    }

    fn create_instance(&self, slices: u8, start: u8) -> Result<Instance, ControlError> {
        let mut mig = self.mig();
        if !mig.on {
            return Err(ControlError::NotSupported("MIG is off".into()));
        }
        let size = SEVEN_SLICES.profile(slices).filter(|size| size.starts.contains(&start));
        let size = size.ok_or_else(|| {
            ControlError::Refused(format!("a MIG instance of {slices} slices cannot start at slot {start}"))
        })?;
        let all: Vec<_> =
            mig.instances.iter().map(|i| (i.slices, i.start)).chain([(slices, start)]).collect();
        if !SEVEN_SLICES.is_legal(&all) {
            return Err(ControlError::Busy(
                "there is no room on the GPU beside the instances that exist".into(),
            ));
        }
        let from = u32::from(slices != SEVEN_SLICES.compute_slices);
        let id = (from..).find(|id| mig.instances.iter().all(|i| i.id != *id)).unwrap_or(from);
        let uuid = Some(format!("MIG-{}/{id}/0", self.identity().uuid));
        let made = Instance { id, slices, start, slots: size.memory_slots, uuid };
        mig.instances.push(made.clone());
        mig.instances.sort_by_key(|instance| instance.id);
        Ok(made)
    }

    fn destroy_instance(&self, instance: &Instance) -> Result<(), ControlError> {
        let mut mig = self.mig();
        match mig.instances.iter().position(|there| there.id == instance.id) {
            None => Ok(()),
            Some(at) if mig.instances[at].is(instance) => {
                mig.instances.remove(at);
                Ok(())
            }
            Some(_) => Err(ControlError::Refused(format!(
                "the instance with id {} is not the one that was made here; it stays",
                instance.id
            ))),
        }
    }

    fn start_mps(&self, _: &Path) -> Result<(), ControlError> {
        Ok(())
    }

    fn stop_mps(&self, folder: &Path) -> Result<(), ControlError> {
        super::mps::remove(folder)
    }
}
