//! A real GPU, through the monitor's control half with its guards.
//!
//! Rule: only what the sweep sweeps is touched; what is not swept is left as it was found, and needs no privilege. A limit
//! of `None` is the one that was found. A MIG instance stays for as long as points ask for its size.
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
    /// The MIG instance that exists.
    instance: Option<Seat>,
}

impl GpuStage {
    /// A stage that touches what `wants` says. `uuid`: the GPU's.
    pub fn new(stage: control::Stage, wants: control::Wants, uuid: String) -> Self {
        Self { stage, wants, uuid, limited: false, instance: None }
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

    fn stays(&self, share: Share) -> bool {
        !self.wants.mig || self.instance.as_ref().is_some_and(|seat| seat.share == share)
    }

    fn seat(&mut self, share: Share) -> Result<Seat, StageError> {
        if let Some(instance) = self.instance.as_ref().filter(|seat| seat.share == share) {
            return Ok(instance.clone());
        }
        self.instance = None;
        let seat = self.stage.seat(share)?;
        let seat = Seat { share, env: seat.env };
        self.instance = Some(&seat).filter(|_| self.wants.mig).cloned();
        Ok(seat)
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
        self.instance = None;
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
