//! A real GPU, through the monitor's control half with its guards.
//!
//! Rule: only what the sweep sweeps is touched; what is not swept is left as it was found, and needs no privilege. A limit
//! of `None` is the one that was found. MIG instances stay for as long as points, or sets of them, ask for the same sizes.
//! Cases: a setting that the GPU refuses spoils the point, a missing privilege or a lost GPU ends the sweep.

use gpumon_core::share::Share;
use gpumon_core::units::{Megahertz, Milliwatts};
use gpumon_monitor::control::ControlError;
use gpumon_monitor::control::stage as control;

use super::{Seat, Stage, StageError};

/// Sets a real GPU.
pub struct GpuStage {
    stage: control::Stage,
    wants: control::Wants,
    uuid: String,
    limited: bool,
    /// The MIG instances that exist, by size.
    instances: Vec<Seat>,
}

impl GpuStage {
    /// A stage that touches what `wants` says. `uuid`: the GPU's.
    pub fn new(stage: control::Stage, wants: control::Wants, uuid: String) -> Self {
        Self { stage, wants, uuid, limited: false, instances: Vec::new() }
    }
}

impl Stage for GpuStage {
    fn clock(&mut self, clock: Megahertz) -> Result<bool, StageError> {
        if self.wants.clocks {
            self.stage.set_clock(clock)?;
        }
        Ok(self.wants.clocks)
    }

    fn limit(&mut self, limit_w: Option<u32>) -> Result<(), StageError> {
        let found = self.stage.guard().found().power_limit_mw;
        match limit_w {
            Some(w) => {
                self.limited = true;
                Ok(self.stage.set_power_limit(Milliwatts(w.saturating_mul(1_000)))?)
            }
            None if self.limited => match found {
                Some(found) => Ok(self.stage.set_power_limit(found)?),
                None => Ok(()),
            },
            None => Ok(()),
        }
    }

    fn stays(&self, shares: &[Share]) -> bool {
        !self.wants.mig || self.instances.iter().map(|seat| seat.share).eq(by_size(shares))
    }

    fn seat(&mut self, share: Share) -> Result<Seat, StageError> {
        let seats = self.seats(&[share])?;
        seats.into_iter().next().ok_or_else(|| StageError::Lost("there is no seat".into()))
    }

    fn seats(&mut self, shares: &[Share]) -> Result<Vec<Seat>, StageError> {
        if !self.wants.mig {
            let seats = self.stage.partition(shares)?;
            return Ok(seats.into_iter().map(|seat| Seat { share: seat.share, env: seat.env }).collect());
        }
        if !self.stays(shares) {
            self.instances.clear();
            let made = self.stage.partition(&by_size(shares))?;
            self.instances = made.into_iter().map(|seat| Seat { share: seat.share, env: seat.env }).collect();
        }
        let mut free = self.instances.clone();
        let mut take = |share: &Share| {
            let at = free.iter().position(|seat| seat.share == *share);
            at.map(|at| free.remove(at)).ok_or_else(|| StageError::Lost(format!("{share}: there is no seat")))
        };
        shares.iter().map(&mut take).collect()
    }

    fn whole(&mut self) -> Result<Seat, StageError> {
        let share = Share::Mps(100);
        match self.wants.mps {
            true => self.seat(share),
            false => Ok(Seat { share, env: vec![("CUDA_VISIBLE_DEVICES".into(), self.uuid.clone().into())] }),
        }
    }

    fn seats_coexist(&self) -> bool {
        !self.wants.mig
    }

    fn restore(&mut self) -> Result<(), StageError> {
        self.instances.clear();
        let failed = self.stage.restore().failed;
        match failed.is_empty() {
            true => Ok(()),
            false => {
                let all: Vec<_> = failed.iter().map(|(command, e)| format!("`{command}`: {e}")).collect();
                Err(StageError::Lost(all.join("; ")))
            }
        }
    }
}

/// The same sizes make the same instances, whoever of a set comes first.
fn by_size(shares: &[Share]) -> Vec<Share> {
    let mut shares = shares.to_vec();
    shares.sort();
    shares
}

impl From<ControlError> for StageError {
    fn from(error: ControlError) -> Self {
        match error {
            ControlError::NotSupported(_) | ControlError::Refused(_) | ControlError::Busy(_) => {
                Self::Point(error.to_string())
            }
            ControlError::NoPermission { .. } | ControlError::Lost(_) | ControlError::Failed(_) => {
                Self::Lost(error.to_string())
            }
        }
    }
}
