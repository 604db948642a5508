//! What a sweep runs on: a simulated GPU on a virtual clock, or a real one with the guards that put it back.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use gpumon_core::clock::{Clock, RealClock, VirtualClock};
use gpumon_core::share::Share;
use gpumon_core::units::{Megahertz, Milliwatts};
use gpumon_core::workload::Workload;
use gpumon_monitor::control::stage::{self as control, Step, Wants};
use gpumon_monitor::control::{self as controls, Controlled};
use gpumon_monitor::device::sim::{self, SimDevice};
use gpumon_monitor::device::{Access, Device, select};
use gpumon_profile::protocol::Protocol;
use gpumon_profile::space::Space;
use gpumon_profile::stage::{GpuStage, SimStage, Stage};
use gpumon_profile::workload::Context;

use super::super::{inputs, known, restore};
use crate::cli::pipeline::{Clocks, ProfileArgs};
use crate::output::{self, note};

/// Clocks of the sweep where none are named.
const CLOCKS: usize = 8;
/// Longest heating of a real card, s.
const HEAT_S: f64 = 120.0;
/// A sensor has forgotten the past after so many of its windows and lags.
const WINDOWS: f64 = 5.0;
/// Settling takes at least this, s: a GPU's clocks and voltage move for a while under a new load.
const SETTLE_MIN_S: f64 = 0.2;
/// What simulated models count shares by (simgpu/specs/models-a100.toml).
const SIMULATED_SMS: u16 = 108;
const SIMULATED_CAPABILITY: i32 = 8;
/// Without a ring, and not characterised: the driver's average looks back a second.
const SETTLE_POLLED_S: f64 = 2.0;

/// A GPU to sweep.
pub struct Ground {
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// The virtual one, if it is.
    pub virtual_clock: Option<Arc<VirtualClock>>,
    /// For reading.
    pub device: Arc<dyn Device>,
    /// The simulated GPU, if it is one.
    pub sim: Option<Arc<SimDevice>>,
    /// The real one, if it is.
    real: Option<Controlled>,
}

impl Ground {
    /// The one GPU that the arguments name.
    pub fn open(args: &ProfileArgs) -> Result<Self> {
        if let Some(name) = args.device.strip_prefix("sim:") {
            let virtual_clock = Arc::new(VirtualClock::new(RealClock.wall()));
            let all = sim::named(name, &(virtual_clock.clone() as Arc<dyn Clock>))?;
            let devices: Vec<Arc<dyn Device>> = all.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
            let chosen = select::select(&devices, args.gpu.as_deref().unwrap_or("0")).context("--gpu")?;
            let uuid = chosen.first().map(|device| device.identity().uuid.clone());
            let sim = all.into_iter().find(|d| Some(&d.identity().uuid) == uuid.as_ref());
            let sim = sim.context("no simulated GPU is described")?;
            let (clock, device) = (virtual_clock.clone(), sim.clone());
            return Ok(Self {
                clock,
                virtual_clock: Some(virtual_clock),
                device,
                sim: Some(sim),
                real: None,
            });
        }
        let clock: Arc<dyn Clock> = Arc::new(RealClock);
        let all = controls::open(&args.device, clock.clone(), Access { wake: true })?;
        let devices: Vec<Arc<dyn Device>> = all.iter().map(|gpu| gpu.device.clone()).collect();
        let chosen = select::select(&devices, args.gpu.as_deref().unwrap_or("all")).context("--gpu")?;
        let [one] = &chosen[..] else {
            bail!("{} GPUs are meant, and one at a time is swept; name it with --gpu", chosen.len());
        };
        let uuid = &one.identity().uuid;
        let real = all.into_iter().find(|gpu| gpu.device.identity().uuid == *uuid);
        let real = real.context("the GPU is gone")?;
        let device = real.device.clone();
        Ok(Self { clock, virtual_clock: None, device, sim: None, real: Some(real) })
    }

    /// Whether it is simulated.
    pub fn simulated(&self) -> bool {
        self.sim.is_some()
    }

    /// What workloads need. `clock` may be one that a recording looks at.
    pub fn context(&self, clock: &Arc<dyn Clock>, args: &ProfileArgs) -> Context {
        let native = std::env::current_exe()
            .ok()
            .map(|program| vec![program.to_string_lossy().into_owned(), crate::cli::WORKER.into()]);
        Context { clock: clock.clone(), sim: self.sim.clone(), python: args.python.clone(), native }
    }

    /// SMs and compute capability (major) of the GPU.
    pub fn sms(&self) -> Result<(u16, i32)> {
        match &self.sim {
            Some(_) => Ok((SIMULATED_SMS, SIMULATED_CAPABILITY)),
            None => Ok(gpumon_profile::native::gpu::sms_of(&self.device.identity().uuid)
                .context("cluster.sharing is `green`")?),
        }
    }

    /// Clocks to sweep, ascending, and whether they are locked.
    pub fn clocks(&self, args: &ProfileArgs, workload: &Workload) -> Result<(Vec<Megahertz>, bool)> {
        let supported = &self.device.identity().sm_clocks;
        let named = |mhz: &[u32]| mhz.iter().copied().map(Megahertz).collect::<Vec<_>>();
        match (&args.clocks, &workload.cluster.frequencies_mhz) {
            (Some(Clocks::Default), _) => {
                let highest = supported.last().context(
                    "the driver names no clocks of this GPU, so the one it runs at by default cannot be told; give --clocks",
                )?;
                Ok((vec![*highest], false))
            }
            (Some(Clocks::Listed(mhz)), _) | (None, Some(mhz)) => Ok((named(mhz), true)),
            (None, None) => Ok((spread(supported), true)),
        }
    }

    /// An error if one of these power limits, W, cannot be set on this GPU.
    pub fn can_limit(&self, limits_w: &[u32]) -> Result<()> {
        let bounds_w = match (&self.sim, &self.real) {
            (Some(sim), _) => {
                let gpu = sim.gpu();
                Some((gpu.spec().power.limit_min_w, gpu.spec().power.limit_max_w))
            }
            (None, Some(real)) if !limits_w.is_empty() => {
                let power = real.control.state()?.power;
                power.map(|p| (f64::from(p.min.0) / 1e3, f64::from(p.max.0) / 1e3))
            }
            _ => None,
        };
        let Some((least, most)) = bounds_w else { return Ok(()) };
        match limits_w.iter().find(|w| !(least..=most).contains(&f64::from(**w))) {
            Some(odd) => bail!("--power-limits: {odd} W is not possible; this GPU takes {least} to {most} W"),
            None => Ok(()),
        }
    }

    /// The measuring protocol: how long the GPU settles follows from its sensors, where they were characterised.
    pub fn protocol(&self, args: &ProfileArgs) -> Protocol {
        let (precision, idle_s) = (args.precision / 100.0, args.idle.as_secs_f64());
        let mut protocol = Protocol { precision, idle_s, ..Protocol::default() };
        if self.simulated() {
            return protocol;
        }
        let known = known::of(self.device.as_ref());
        let ring = known.as_ref().and_then(|k| k.ring).map(|ring| ring.window_ms + ring.lag_ms);
        let instant = known.as_ref().and_then(|k| k.instant).map(|p| p.update_ms + p.window_ms + p.lag_ms);
        match ring.or(instant) {
            Some(past_ms) => protocol.settle_s = (WINDOWS * past_ms / 1e3).max(SETTLE_MIN_S),
            None => {
                let ring = self.device.power_samples(self.clock.wall(), &mut Vec::new()).is_ok();
                protocol.settle_s = if ring { protocol.settle_s } else { SETTLE_POLLED_S };
                note(format_args!(
                    "gpumon: the sensors of this GPU are not characterised; it settles {} s at each point (`gpumon \
                     characterize` finds what it needs)",
                    protocol.settle_s
                ));
            }
        }
        protocol
    }

    /// Longest heating of a card that has cooled, s.
    pub fn heat_s(&self, args: &ProfileArgs) -> f64 {
        args.heat.map_or(if self.simulated() { 0.0 } else { HEAT_S }, |heat| heat.as_secs_f64())
    }

    /// The stage that sets the GPU. Says what is lacking before anything is measured.
    pub fn stage(&self, clock: &Arc<dyn Clock>, wants: Wants) -> Result<Box<dyn Stage>> {
        if let Some(sim) = &self.sim {
            return Ok(Box::new(SimStage::new(sim.clone(), clock.clone())));
        }
        let real = self.real.as_ref().context("the GPU is gone")?;
        let stage = control::Stage::open(real.control.clone(), wants, &restore::safety()?).map_err(|e| {
            let hint = match wants.clocks {
                true => "; `--clocks default` leaves clocks alone",
                false => "",
            };
            anyhow::anyhow!("{e}{hint}")
        })?;
        stage.notices().iter().for_each(|notice| note(format_args!("gpumon: {notice}")));
        Ok(Box::new(GpuStage::new(stage, wants, self.device.identity().uuid.clone())))
    }

    /// Prints what would be set on the GPU.
    pub fn dry_run(
        &self,
        wants: Wants,
        space: &Space,
        limits_w: &[u32],
        partitions: Vec<Vec<Share>>,
    ) -> Result<()> {
        let Some(real) = &self.real else {
            return output::print("nothing: a simulated GPU takes no privileged act\n");
        };
        let clocks = space.clocks().iter().filter(|_| wants.clocks).map(|clock| Step::Clock(*clock));
        let limits = limits_w.iter().map(|w| Step::PowerLimit(Milliwatts(w.saturating_mul(1_000))));
        let partitions = partitions.into_iter().map(Step::Partition);
        let steps: Vec<Step> = partitions.chain(limits).chain(clocks).collect();
        let (lines, lacks) = control::plan(real.control.clone(), wants, &steps, &restore::safety()?)?;
        lines.iter().try_for_each(|line| output::print(&format!("{line}\n")))?;
        lacks.iter().for_each(|lack| note(format_args!("gpumon: lacking: {lack}")));
        Ok(())
    }
}

/// What a sweep touches on the GPU.
pub fn wants(locked: bool, args: &ProfileArgs, shares: &[Share]) -> Wants {
    Wants {
        clocks: locked,
        power_limit: !args.power_limits.is_empty(),
        mig: shares.iter().any(|share| matches!(share, Share::Mig(_))),
        mps: shares.iter().any(|share| matches!(share, Share::Mps(_))),
    }
}

/// Files that a device specification names.
pub fn described(args: &ProfileArgs) -> Option<&Path> {
    let name = args.device.strip_prefix("sim:")?;
    Some(Path::new(name)).filter(|path| path.extension().is_some_and(|e| e == "toml"))
}

/// How the GPU is called in messages about the workload's kind.
pub fn same_kind(ground: &Ground, workload: &Workload, args: &ProfileArgs) -> Result<()> {
    inputs::same_kind(workload, &format!("`{}` is", args.device), &ground.device.identity().name)
}

/// A time in words: hours where there are some.
pub fn in_words(seconds: f64) -> String {
    match Duration::from_secs_f64(seconds.clamp(0.0, 1e9)).as_secs() {
        0..=119 => format!("{seconds:.0} s"),
        120..=7199 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3_600.0),
    }
}

/// Some clocks of those supported, the lowest and the highest among them.
fn spread(supported: &[Megahertz]) -> Vec<Megahertz> {
    let last = supported.len().saturating_sub(1);
    let mut clocks: Vec<_> =
        (0..CLOCKS).filter_map(|i| supported.get(i * last / (CLOCKS - 1)).copied()).collect();
    clocks.dedup();
    clocks
}
