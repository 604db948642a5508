//! NVIDIA GPUs through libnvidia-ml.so, changed.
//!
//! Rule: NVML is the one that reading initialised. Each act finds the GPU anew by its UUID, so that one that came back after
//! it was lost is found; each is done on a thread of its own, and one that the driver does not return from is given up.
//! Whether an act is possible is asked without changing anything: the power limit is set to what it is already, which the
//! driver refuses to whom it would refuse the other acts too; where there is no power limit to set, the capabilities of
//! this process decide. That a clock lock is accepted is tried by the stage, under its guard.
//! Cases: MIG mode that is accepted but waits for a reset of the GPU is taken back and refused.
//! Not done here: restoring, snapping, deciding; MIG instances are `nvml_mig`'s.
//! Source: NVML API reference, "Device Commands"; the kernel module asks for CAP_SYS_ADMIN.

use std::sync::Arc;
use std::time::Duration;

use gpumon_core::clock::Clock;
use gpumon_core::units::{Megahertz, Milliwatts};
use nvml_wrapper::Device as Handle;
use nvml_wrapper::enum_wrappers::device::ComputeMode;
use nvml_wrapper::enums::device::GpuLockedClocksSetting;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings as sys;

use super::{Ability, Act, Control, ControlError, Controlled, Instance, PowerLimits, State, mps, nvml_mig};
use crate::device::{self, Access, Identity, OpenError, patience};

/// How long an act may take: switching MIG takes seconds.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bit of CAP_SYS_ADMIN among the capabilities.
const CAP_SYS_ADMIN: u64 = 1 << 21;

/// A return code that the wrapper does not name.
const INSUFFICIENT_RESOURCES: u32 = sys::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_RESOURCES;

/// All NVIDIA GPUs that reading opens.
pub(super) fn open(rest: &str, clock: Arc<dyn Clock>, access: Access) -> Result<Vec<Controlled>, OpenError> {
    let spec = if rest.is_empty() { "nvml".to_owned() } else { format!("nvml:{rest}") };
    let devices = device::open_as(&spec, clock, access)?;
    let controlled = devices.into_iter().map(|device| Controlled {
        control: Arc::new(NvmlControl { identity: device.identity().clone() }),
        device,
    });
    Ok(controlled.collect())
}

/// One NVIDIA GPU.
struct NvmlControl {
    identity: Identity,
}

impl NvmlControl {
    fn refused(&self, act: Act<'_>) -> impl FnOnce(NvmlError) -> ControlError {
        let command = act.command(&self.identity.uuid);
        move |e| error(e, command)
    }

    /// Asks the driver about this GPU, with patience.
    fn ask<T: Send + 'static>(
        &self,
        act: Act<'_>,
        ask: impl FnOnce(&mut Handle<'static>) -> Result<T, NvmlError> + Send + 'static,
    ) -> Result<T, ControlError> {
        let nvml = device::nvml_library().map_err(|e| ControlError::Failed(e.to_string()))?;
        let uuid = self.identity.uuid.clone();
        let asked = patience::answer_within(PATIENCE, move || match nvml.device_by_uuid(uuid) {
            Ok(mut device) => ask(&mut device).map_err(Some),
            // It was there when it was opened.
            Err(NvmlError::NotFound | NvmlError::InvalidArg) => Err(None),
            Err(e) => Err(Some(e)),
        });
        let gone = || ControlError::Lost("no GPU has its UUID any more".into());
        match asked {
            Some(answer) => answer.map_err(|e| e.map_or_else(gone, self.refused(act))),
            None => Err(ControlError::Failed(format!(
                "`{}`: a call into the driver has not returned for {} s",
                act.command(&self.identity.uuid),
                PATIENCE.as_secs()
            ))),
        }
    }

    fn power(&self) -> Result<Option<PowerLimits>, ControlError> {
        let read = self.ask(Act::PowerLimit(Milliwatts(0)), |device| {
            let bounds = device.power_management_limit_constraints()?;
            Ok(PowerLimits {
                now: Milliwatts(device.power_management_limit()?),
                min: Milliwatts(bounds.min_limit),
                max: Milliwatts(bounds.max_limit),
            })
        });
        match read {
            Err(ControlError::NotSupported(_)) => Ok(None),
            other => other.map(Some),
        }
    }

    /// Whether the driver lets this process change anything.
    fn privileged(&self, act: Act<'_>) -> Result<(), ControlError> {
        let as_it_is = match self.power()? {
            Some(limits) => self.set_power_limit(limits.now),
            None => Err(ControlError::NotSupported(String::new())),
        };
        match as_it_is {
            Err(ControlError::NoPermission { .. }) => {
                Err(ControlError::NoPermission { command: act.command(&self.identity.uuid) })
            }
            Err(ControlError::NotSupported(_)) if !has_capability() => {
                Err(ControlError::NoPermission { command: act.command(&self.identity.uuid) })
            }
            Err(ControlError::NotSupported(_)) => Ok(()),
            other => other,
        }
    }
}

/// Whether this process has CAP_SYS_ADMIN; if that cannot be read, the act will tell.
fn has_capability() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective
        .is_none_or(|hex| u64::from_str_radix(hex.trim(), 16).is_ok_and(|caps| caps & CAP_SYS_ADMIN != 0))
}

/// Sorted by what the caller does next.
fn error(e: NvmlError, command: String) -> ControlError {
    match e {
        NvmlError::NoPermission => ControlError::NoPermission { command },
        NvmlError::NotSupported | NvmlError::FunctionNotFound | NvmlError::FailedToLoadSymbol(_) => {
            ControlError::NotSupported(format!("this GPU or its driver does not support `{command}`"))
        }
        NvmlError::InvalidArg => {
            ControlError::Refused(format!("the driver refuses the values of `{command}`"))
        }
        NvmlError::UnexpectedVariant(INSUFFICIENT_RESOURCES) => ControlError::Busy(format!(
            "`{command}`: there is no room on the GPU beside the instances that exist"
        )),
        NvmlError::InUse => ControlError::Busy(format!("`{command}`: the GPU is in use by other processes")),
        NvmlError::GpuLost | NvmlError::ResetRequired | NvmlError::OperatingSystem => {
            ControlError::Lost(e.to_string())
        }
        other => ControlError::Failed(format!("`{command}`: {other}")),
    }
}

impl Control for NvmlControl {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn outlives_process(&self) -> bool {
        true
    }

    fn state(&self) -> Result<State, ControlError> {
        let power = self.power()?;
        let mode = self.ask(Act::Mig(true), |device| device.mig_mode());
        let mig = match mode {
            Ok(mode) => Some(mode.current != 0),
            Err(ControlError::NotSupported(_)) => None,
            Err(e) => return Err(e),
        };
        let instances = match mig {
            Some(true) => self.ask(Act::Mig(true), |device| nvml_mig::instances(device))?,
            _ => Vec::new(),
        };
        Ok(State { power, mig, instances })
    }

    fn may(&self, ability: Ability) -> Result<(), ControlError> {
        let lacks = |what: &str| Err(ControlError::NotSupported(format!("{} has no {what}", self.identity)));
        let clocks = &self.identity.sm_clocks;
        match (ability, clocks.first()) {
            (Ability::Clocks, None) => lacks("SM clocks that it can be locked to"),
            (Ability::Clocks, Some(&lowest)) => self.privileged(Act::LockClocks(lowest, lowest)),
            (Ability::PowerLimit, _) => match self.power()? {
                None => lacks("power limit that can be set"),
                Some(limits) => self.privileged(Act::PowerLimit(limits.now)),
            },
            (Ability::Mig, _) => match self.state()?.mig {
                None => lacks("MIG"),
                Some(_) => self.privileged(Act::Mig(true)),
            },
            (Ability::Mps, _) => {
                let mode = self.ask(Act::ResetClocks, |device| device.compute_mode());
                if matches!(mode, Ok(ComputeMode::Prohibited)) {
                    return Err(ControlError::NotSupported(format!(
                        "the compute mode of {} is `prohibited`, so nothing can compute on it; see `nvidia-smi -c`",
                        self.identity
                    )));
                }
                mps::program().map(drop)
            }
        }
    }

    fn lock_clocks(&self, lowest: Megahertz, highest: Megahertz) -> Result<(), ControlError> {
        let range = GpuLockedClocksSetting::Numeric { min_clock_mhz: lowest.0, max_clock_mhz: highest.0 };
        self.ask(Act::LockClocks(lowest, highest), move |device| device.set_gpu_locked_clocks(range))
    }

    fn reset_clocks(&self) -> Result<(), ControlError> {
        self.ask(Act::ResetClocks, |device| device.reset_gpu_locked_clocks())
    }

    fn set_power_limit(&self, limit: Milliwatts) -> Result<(), ControlError> {
        self.ask(Act::PowerLimit(limit), move |device| device.set_power_management_limit(limit.0))
    }

    fn set_mig(&self, on: bool) -> Result<(), ControlError> {
        let mode = self.ask(Act::Mig(on), move |device| {
            device.set_mig_mode(on)?;
            let mode = device.mig_mode()?;
            if (mode.current != 0) != on {
                // What waits for a reset would come as a surprise at the next one.
                device.set_mig_mode(!on)?;
            }
            Ok(mode)
        })?;
        if (mode.current != 0) == on {
            return Ok(());
        }
        Err(ControlError::Refused(format!(
            "`{}` was accepted but waits for a reset of the GPU, so it was taken back; do it once by hand, with \
             `nvidia-smi -i {} --gpu-reset` after it",
            Act::Mig(on).command(&self.identity.uuid),
            self.identity.uuid
        )))
    }

    fn create_instance(&self, slices: u8, start: u8) -> Result<Instance, ControlError> {
        self.ask(Act::Create { slices, start }, move |device| nvml_mig::create(device, slices, start))
    }

    fn destroy_instance(&self, instance: &Instance) -> Result<(), ControlError> {
        let wanted = instance.clone();
        let other =
            format!("the instance with id {} is not the one that was made here; it stays", instance.id);
        match self.ask(Act::Destroy(instance.id), move |device| nvml_mig::destroy(device, &wanted))? {
            nvml_mig::Destroyed::Yes | nvml_mig::Destroyed::WasGone => Ok(()),
            nvml_mig::Destroyed::IsAnother => Err(ControlError::Refused(other)),
        }
    }
}
