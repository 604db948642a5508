//! Putting back what was found.
//!
//! Rule: last things first: the MPS daemon, own instances, MIG mode, clocks, power limit. Each is tried whatever became of
//! the others; what is in use by others is tried again for a while. What was put back is struck from the list, what was not
//! stays on it with the reason.
//! Cases: an instance that was about to be made when the process died is looked for at its place; if it was not there
//! before, it is ours. MIG mode waits for instances of ours that could not be destroyed.
//! Not done here: locks that were on the clocks before, which NVML does not tell; clocks are released.

use std::thread;
use std::time::{Duration, Instant};

use super::journal::{Changed, Found, Made};
use super::{Act, Control, ControlError, Instance};

/// How long the guard and the janitor try what is in use.
pub const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(200);

/// What was put back and what was not, as commands of the same effect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Done.
    pub done: Vec<String>,
    /// Not done, with the reason.
    pub failed: Vec<(String, ControlError)>,
}

impl Restored {
    fn note<T>(&mut self, command: String, result: Result<T, ControlError>) -> bool {
        match result {
            Ok(_) => self.done.push(command),
            Err(e) => {
                self.failed.push((command, e));
                return false;
            }
        }
        true
    }
}

/// Puts everything back that `changed` lists, and strikes it from there.
pub fn put_back(control: &dyn Control, found: &Found, changed: &mut Changed, patience: Duration) -> Restored {
    let mut restored = Restored::default();
    let uuid = control.identity().uuid.clone();
    let until = Instant::now() + patience;
    if let Some(folder) = changed.mps.clone() {
        let stopped = control.stop_mps(&folder);
        if restored.note(Act::StopMps(&folder).command(&uuid), stopped) {
            changed.mps = None;
        }
    }
    destroy(control, found, &mut changed.instances, until, &mut restored);
    if changed.mig && changed.instances.is_empty() {
        let on = found.mig.unwrap_or(false);
        if restored.note(Act::Mig(on).command(&uuid), patiently(until, || control.set_mig(on))) {
            changed.mig = false;
        }
    }
    if changed.clocks && restored.note(Act::ResetClocks.command(&uuid), control.reset_clocks()) {
        changed.clocks = false;
    }
    if let Some(limit) = found.power_limit_mw.filter(|_| changed.power_limit)
        && restored.note(Act::PowerLimit(limit).command(&uuid), control.set_power_limit(limit))
    {
        changed.power_limit = false;
    }
    restored
}

/// Destroys instances of ours, and strikes those that are gone.
pub(super) fn destroy(
    control: &dyn Control,
    found: &Found,
    ours: &mut Vec<Made>,
    until: Instant,
    restored: &mut Restored,
) {
    if ours.is_empty() {
        return;
    }
    let uuid = control.identity().uuid.clone();
    let there = match control.state() {
        Ok(state) => state.instances,
        Err(e) => {
            let lost =
                ours.iter().map(|made| Act::Create { slices: made.slices, start: made.start }.command(&uuid));
            restored.failed.extend(lost.map(|command| (format!("undo `{command}`"), e.clone())));
            return;
        }
    };
    ours.retain(|made| {
        let Some(instance) = which(made, &there, found) else { return false };
        let destroyed = patiently(until, || control.destroy_instance(&instance));
        !restored.note(Act::Destroy(instance.id).command(&uuid), destroyed)
    });
}

/// The instance that was made, or one at the place where it was about to be made and where none was before.
fn which(made: &Made, there: &[Instance], found: &Found) -> Option<Instance> {
    let at_place = |other: &&Instance| {
        (other.slices, other.start) == (made.slices, made.start)
            && !found.instances.iter().any(|f| f.is(other))
    };
    match &made.instance {
        Some(instance) => there.iter().find(|other| other.is(instance)).cloned(),
        None => there.iter().find(at_place).cloned(),
    }
}

/// Tries what is in use by others again and again.
fn patiently(until: Instant, act: impl Fn() -> Result<(), ControlError>) -> Result<(), ControlError> {
    loop {
        match act() {
            Err(ControlError::Busy(_)) if Instant::now() < until => thread::sleep(PAUSE),
            result => return result,
        }
    }
}
