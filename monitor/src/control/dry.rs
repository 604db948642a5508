//! A GPU that is not changed: each act is one line that says what would be done.
//!
//! Rule: what is set is read from the GPU underneath once; acts change that picture of it, under the checks that the GPU
//! would make, so that later acts meet what earlier ones would have left. Each act is said as the command of the same effect.
//! Cases: what is lacking is asked of the GPU underneath.
//! Not done here: acts of any kind.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gpumon_core::geometry::SEVEN_SLICES;
use gpumon_core::units::{Megahertz, Milliwatts};

use super::{Ability, Act, Control, ControlError, Instance, State};
use crate::device::Identity;

/// Where the lines go.
pub type Say = Box<dyn Fn(&str) + Send + Sync>;

/// A control that only says.
pub struct DryControl {
    real: Arc<dyn Control>,
    picture: Mutex<State>,
    say: Say,
}

impl DryControl {
    /// A picture of a GPU as it is now.
    pub fn new(real: Arc<dyn Control>, say: Say) -> Result<Self, ControlError> {
        let picture = Mutex::new(real.state()?);
        Ok(Self { real, picture, say })
    }

    fn picture(&self) -> MutexGuard<'_, State> {
        self.picture.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self, act: Act<'_>) {
        (self.say)(&act.command(&self.identity().uuid));
    }
}

impl Control for DryControl {
    fn identity(&self) -> &Identity {
        self.real.identity()
    }

    fn outlives_process(&self) -> bool {
        false
    }

    fn state(&self) -> Result<State, ControlError> {
        Ok(self.picture().clone())
    }

    fn may(&self, ability: Ability) -> Result<(), ControlError> {
        self.real.may(ability)
    }

    fn lock_clocks(&self, lowest: Megahertz, highest: Megahertz) -> Result<(), ControlError> {
        let possible = self.identity().sm_clocks.iter().any(|clock| (lowest..=highest).contains(clock));
        if !possible {
            return Err(ControlError::Refused(format!(
                "no supported clock lies within {lowest} to {highest}"
            )));
        }
        self.say(Act::LockClocks(lowest, highest));
        Ok(())
    }

    fn reset_clocks(&self) -> Result<(), ControlError> {
        self.say(Act::ResetClocks);
        Ok(())
    }

    fn set_power_limit(&self, limit: Milliwatts) -> Result<(), ControlError> {
        match &mut self.picture().power {
            None => return Err(ControlError::NotSupported("there is no power limit that can be set".into())),
            Some(power) if !(power.min..=power.max).contains(&limit) => {
                return Err(ControlError::Refused(format!("a power limit of {limit} is not possible")));
            }
            Some(power) => power.now = limit,
        }
        self.say(Act::PowerLimit(limit));
        Ok(())
    }

    fn set_mig(&self, on: bool) -> Result<(), ControlError> {
        let mut picture = self.picture();
        match picture.mig {
            None => return Err(ControlError::NotSupported("the GPU has no MIG".into())),
            Some(was) if was != on && !picture.instances.is_empty() => {
                return Err(ControlError::Busy("MIG instances exist, so its mode cannot be changed".into()));
            }
            Some(_) => picture.mig = Some(on),
        }
        self.say(Act::Mig(on));
        Ok(())
    }

    fn create_instance(&self, slices: u8, start: u8) -> Result<Instance, ControlError> {
        let mut picture = self.picture();
        if picture.mig != Some(true) {
            return Err(ControlError::NotSupported("MIG is off".into()));
        }
        let size = SEVEN_SLICES.profile(slices).filter(|size| size.starts.contains(&start));
        let size = size.ok_or_else(|| {
            ControlError::Refused(format!("a MIG instance of {slices} slices cannot start at slot {start}"))
        })?;
        let (first, end) = (start, start + size.memory_slots);
        if picture.instances.iter().any(|there| first < there.start + there.slots && there.start < end) {
            return Err(ControlError::Busy(
                "there is no room on the GPU beside the instances that exist".into(),
            ));
        }
        let from = u32::from(slices != SEVEN_SLICES.compute_slices);
        let id = (from..).find(|id| picture.instances.iter().all(|i| i.id != *id)).unwrap_or(from);
        // Which UUID the driver will give is not known before.
        let uuid = Some(format!("MIG-OF-INSTANCE-{id}"));
        let made = Instance { id, slices, start, slots: size.memory_slots, uuid };
        picture.instances.push(made.clone());
        picture.instances.sort_by_key(|instance| instance.id);
        self.say(Act::Create { slices, start });
        Ok(made)
    }

    fn destroy_instance(&self, instance: &Instance) -> Result<(), ControlError> {
        let mut picture = self.picture();
        match picture.instances.iter().position(|there| there.id == instance.id) {
            None => Ok(()),
            Some(at) if picture.instances[at].is(instance) => {
                picture.instances.remove(at);
                self.say(Act::Destroy(instance.id));
                Ok(())
            }
            Some(_) => Err(ControlError::Refused(format!(
                "the instance with id {} is not the one that was made here; it stays",
                instance.id
            ))),
        }
    }

    fn start_mps(&self, folder: &Path) -> Result<(), ControlError> {
        self.say(Act::StartMps(folder));
        Ok(())
    }

    fn stop_mps(&self, folder: &Path) -> Result<(), ControlError> {
        self.say(Act::StopMps(folder));
        super::mps::remove(folder)
    }
}
