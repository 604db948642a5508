//! What a sweep or `gpumon hold` wants of a GPU: a clock, a power limit, and seats for what runs.
//!
//! Rule: what is lacking is found before anything is measured: each kind of act that is wanted is asked for, and a clock lock
//! over all supported clocks is tried under the guard. Clocks snap to the nearest supported one. Seats of one partition are
//! all MIG instances, all MPS shares, or all green contexts; a new partition takes the place of the one before.
//! Cases: MIG instances of others stay, and ours are placed beside them. MPS needs MIG off, and MIG the MPS daemon of ours gone.
//! A green context needs no privilege: its process makes it, of as many SMs as its environment says.
//! Not done here: measuring; starting what sits on a seat.

use std::ffi::OsString;
use std::sync::{Arc, Mutex, PoisonError};

use gpumon_core::geometry::SEVEN_SLICES;
use gpumon_core::share::{GREEN_SMS, Share};
use gpumon_core::units::{Megahertz, Milliwatts};

use super::dry::DryControl;
use super::guard::{Guard, GuardError, Safety};
use super::restore::Restored;
use super::{Ability, Control, ControlError, mps, snap};

/// Which kinds of act are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wants {
    /// Locked clocks.
    pub clocks: bool,
    /// A power limit.
    pub power_limit: bool,
    /// MIG instances.
    pub mig: bool,
    /// MPS shares.
    pub mps: bool,
}

impl Wants {
    fn abilities(self) -> impl Iterator<Item = Ability> {
        let all = [
            (self.clocks, Ability::Clocks),
            (self.power_limit, Ability::PowerLimit),
            (self.mig, Ability::Mig),
            (self.mps, Ability::Mps),
        ];
        all.into_iter().filter(|(wanted, _)| *wanted).map(|(_, ability)| ability)
    }
}

/// Something to set, for a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A clock.
    Clock(Megahertz),
    /// A power limit.
    PowerLimit(Milliwatts),
    /// A partition.
    Partition(Vec<Share>),
}

/// Why there is no stage.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// Something that is wanted is not possible here.
    #[error("{}", .0.join("\n"))]
    Lacking(Vec<String>),
    /// The guard cannot begin.
    #[error(transparent)]
    Guard(#[from] GuardError),
    /// An act failed.
    #[error(transparent)]
    Control(#[from] ControlError),
}

/// A clock that was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Set {
    /// As asked.
    pub asked: Megahertz,
    /// The supported clock that is locked.
    pub snapped: Megahertz,
}

/// A place for a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat {
    /// What it is.
    pub share: Share,
    /// Variables for the process that sits there.
    pub env: Vec<(String, OsString)>,
    /// The MIG device.
    pub mig_uuid: Option<String>,
}

/// One sentence for each wanted act that is not possible here. Changes nothing.
pub fn lacking(control: &dyn Control, wants: Wants) -> Vec<String> {
    let asked = wants.abilities().filter_map(|ability| Some((ability, control.may(ability).err()?)));
    asked.map(|(ability, e)| format!("{ability}: {e}")).collect()
}

/// A GPU with what was set on it. Dropped, it puts everything back.
pub struct Stage {
    guard: Guard,
}

impl Stage {
    /// Finds out what is possible, and makes sure that everything can be put back. Nothing stays changed if it fails.
    pub fn open(control: Arc<dyn Control>, wants: Wants, safety: &Safety) -> Result<Self, StageError> {
        let lacks = lacking(control.as_ref(), wants);
        if !lacks.is_empty() {
            return Err(StageError::Lacking(lacks));
        }
        let clocks = control.identity().sm_clocks.clone();
        let mut guard = Guard::begin(control, safety)?;
        if let Some((&lowest, &highest)) = clocks.first().zip(clocks.last()).filter(|_| wants.clocks) {
            let tried = guard.lock_clocks(lowest, highest);
            tried.map_err(|e| match e.left_all_as_it_was() {
                true => StageError::Lacking(vec![format!("{}: {e}", Ability::Clocks)]),
                false => e.into(),
            })?;
        }
        Ok(Self { guard })
    }

    /// The GPU's UUID.
    fn uuid(&self) -> String {
        self.guard.control().identity().uuid.clone()
    }

    /// The guard, for what was found and for the janitor's process.
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Locks the SM clock to the supported one that is nearest.
    pub fn set_clock(&mut self, asked: Megahertz) -> Result<Set, ControlError> {
        let snapped = snap(asked, &self.guard.control().identity().sm_clocks)?;
        self.guard.lock_clocks(snapped, snapped)?;
        Ok(Set { asked, snapped })
    }

    /// Sets the power limit.
    pub fn set_power_limit(&mut self, limit: Milliwatts) -> Result<(), ControlError> {
        if let Some(power) = self.guard.control().state()?.power
            && !(power.min..=power.max).contains(&limit)
        {
            return Err(ControlError::Refused(format!(
                "a power limit of {} W is not possible; this GPU takes {} to {} W",
                limit.watts(),
                power.min.watts(),
                power.max.watts()
            )));
        }
        self.guard.set_power_limit(limit)
    }

    /// One seat; the partition before is gone.
    pub fn seat(&mut self, share: Share) -> Result<Seat, ControlError> {
        let seats = self.partition(&[share])?;
        seats.into_iter().next().ok_or_else(|| ControlError::Failed("there is no seat".into()))
    }

    /// A seat for each share, in order; the partition before is gone.
    pub fn partition(&mut self, shares: &[Share]) -> Result<Vec<Seat>, ControlError> {
        if let Some(odd) = shares.iter().find(|share| !share.exists()) {
            return Err(ControlError::Refused(format!("{odd}: there is no such share of a GPU")));
        }
        let Some(first) = shares.first() else { return Ok(Vec::new()) };
        if shares.iter().any(|share| share.kind() != first.kind()) {
            return Err(ControlError::Refused("a GPU is shared by MIG or by MPS, not by both".into()));
        }
        self.guard.destroy_instances()?;
        match first {
            Share::Mig(_) => self.mig(shares),
            Share::Mps(_) => {
                self.without_mig()?;
                let folder = self.guard.start_mps()?;
                let seat = |share: &Share| match share {
                    Share::Mps(percent) => self.plain(*share, mps::environment(&folder, *percent)),
                    other => self.plain(*other, Vec::new()),
                };
                Ok(shares.iter().map(seat).collect())
            }
            Share::Green { .. } => {
                self.guard.stop_mps()?;
                self.without_mig()?;
                let seat = |share: &Share| {
                    let sms = match share {
                        Share::Green { sms, .. } => vec![(GREEN_SMS.into(), sms.to_string().into())],
                        _ => Vec::new(),
                    };
                    self.plain(*share, sms)
                };
                Ok(shares.iter().map(seat).collect())
            }
        }
    }

    fn plain(&self, share: Share, mut env: Vec<(String, OsString)>) -> Seat {
        env.insert(0, ("CUDA_VISIBLE_DEVICES".into(), self.uuid().into()));
        Seat { share, env, mig_uuid: None }
    }

    fn without_mig(&mut self) -> Result<(), ControlError> {
        let state = self.guard.control().state()?;
        match (state.mig, state.instances.is_empty()) {
            (Some(true), true) => self.guard.set_mig(false),
            (Some(true), false) => Err(ControlError::Busy(
                "MIG is on, with instances that gpumon has not made; destroy them first, with `nvidia-smi mig -dci` \
                 and `nvidia-smi mig -dgi`"
                    .into(),
            )),
            _ => Ok(()),
        }
    }

    fn mig(&mut self, shares: &[Share]) -> Result<Vec<Seat>, ControlError> {
        self.guard.stop_mps()?;
        let state = self.guard.control().state()?;
        let sizes: Vec<u8> = shares.iter().filter_map(|share| share.slices()).collect();
        let standing: Vec<_> =
            state.instances.iter().map(|i| i.start..i.start.saturating_add(i.slots)).collect();
        let starts = SEVEN_SLICES.place_beside(&standing, &sizes).ok_or_else(|| {
            let beside = if standing.is_empty() { "" } else { " beside those that exist" };
            ControlError::Refused(format!("MIG instances of {sizes:?} slices do not fit on a GPU{beside}"))
        })?;
        if state.mig != Some(true) {
            self.guard.set_mig(true)?;
        }
        let mut seats = Vec::new();
        for ((&share, slices), start) in shares.iter().zip(sizes).zip(starts) {
            let made = self.guard.create_instance(slices, start)?;
            let uuid = made.uuid.ok_or_else(|| {
                ControlError::Failed(format!(
                    "the driver names no MIG device for the instance with id {}",
                    made.id
                ))
            })?;
            let env = vec![("CUDA_VISIBLE_DEVICES".into(), uuid.clone().into())];
            seats.push(Seat { share, env, mig_uuid: Some(uuid) });
        }
        Ok(seats)
    }

    /// What whoever uses the stage should be told.
    pub fn notices(&self) -> Vec<String> {
        let clocks = self.guard.changed().clocks.then(|| {
            "clocks are put back to unlocked: if they were locked before, NVML does not tell to what"
                .to_owned()
        });
        let first = self.guard.put_back_first();
        let died = first.map(|restored| {
            format!("left from a run that died, and put back first: {}", restored.done.join("; "))
        });
        died.into_iter().chain(clocks).collect()
    }

    /// Puts everything back, now.
    pub fn restore(&mut self) -> Restored {
        self.guard.restore()
    }
}

/// The commands that would be run for these steps and after them, one line each; and what would be lacking.
pub fn plan(
    real: Arc<dyn Control>,
    wants: Wants,
    steps: &[Step],
    safety: &Safety,
) -> Result<(Vec<String>, Vec<String>), StageError> {
    let lacks = lacking(real.as_ref(), wants);
    let lines: Arc<Mutex<Vec<String>>> = Arc::default();
    let heard = lines.clone();
    let say = move |line: &str| heard.lock().unwrap_or_else(PoisonError::into_inner).push(line.to_owned());
    let dry = DryControl::new(real, Box::new(say))?;
    let mut stage = Stage { guard: Guard::begin(Arc::new(dry), safety)? };
    for step in steps {
        match step {
            Step::Clock(clock) => drop(stage.set_clock(*clock)?),
            Step::PowerLimit(limit) => stage.set_power_limit(*limit)?,
            Step::Partition(shares) => drop(stage.partition(shares)?),
        }
    }
    stage.restore();
    drop(stage);
    let lines = lines.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Ok((lines, lacks))
}
