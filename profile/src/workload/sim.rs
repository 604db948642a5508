//! Simulated models on a simulated GPU.
//!
//! Rule: loading asks the model where it settles at the point's clock under the GPU's power limit; running puts its load
//! on the GPU and lets time pass batch by batch; between runs the GPU idles with a context.
//! Cases: on a virtual clock no time is spent. Batches that end late because a sensor was slow do not delay the next.
//! Not done here: warm-up effects; other tenants ([`crate::together`]).

use std::ops::ControlFlow;
use std::sync::Arc;

use gpumon_core::clock::Clock;
use gpumon_core::units::MonoUs;
use gpumon_monitor::device::sim::SimDevice;
use gpumon_simgpu::{Change, Operating, Programme, SimModel};

use super::{Context, OpenError, Opened, Tick, Workload, WorkloadError};
use crate::space::Point;
use crate::stage::Seat;

/// How long a simulated model takes to load, µs.
pub(crate) const LOAD_US: i64 = 500_000;

pub(super) fn open(_: &str, name: &str, context: &Context) -> Opened {
    let model = SimModel::builtin(name).ok_or_else(|| {
        let names: Vec<_> = SimModel::builtins().iter().map(|m| format!("`sim:{}`", m.name())).collect();
        OpenError::Unknown { found: format!("sim:{name}"), expected: names.join(", ") }
    })?;
    let device = context.sim.clone().ok_or_else(|| OpenError::NotSimulated(name.into()))?;
    Ok(Box::new(Simulated { model, device, clock: Arc::clone(&context.clock), running: None }))
}

/// The number of a point's first batch, which its jitter depends on.
pub(crate) fn first_batch(point: &Point) -> u64 {
    let share_ppm = (point.share.fraction() * 1e6) as u64;
    (u64::from(point.batch) << 42) ^ (share_ppm << 22) ^ (u64::from(point.clock.0) << 44)
}

struct Simulated {
    model: SimModel,
    device: Arc<SimDevice>,
    clock: Arc<dyn Clock>,
    running: Option<Running>,
}

/// A loaded model.
struct Running {
    point: Point,
    operating: Operating,
    /// Batches so far, counted from a number of the point's own.
    batch: u64,
}

impl Simulated {
    fn apply(&self, change: Change) -> Result<(), WorkloadError> {
        let now = MonoUs(self.clock.mono().since_us(self.device.opened()));
        let applied = self.device.gpu().apply(now, change);
        applied.map(|_| ()).map_err(|e| WorkloadError::Failed(e.to_string()))
    }

    fn rest(&self, context: bool) -> Result<(), WorkloadError> {
        self.apply(Change::Load(Arc::new(Programme::idle(context))))
    }
}

impl Workload for Simulated {
    fn name(&self) -> &str {
        self.model.name()
    }

    fn fits(&self, point: &Point) -> Result<(), String> {
        let (needs, has) = (self.model.memory_bytes(point.batch), self.model.capacity_bytes(point.share));
        match needs <= has {
            true => Ok(()),
            false => Err(format!("{point} needs {needs} bytes of memory, the share has {has}")),
        }
    }

    fn load(&mut self, point: &Point, _: &Seat) -> Result<(), WorkloadError> {
        self.running = None;
        self.fits(point).map_err(WorkloadError::DoesNotFit)?;
        self.rest(true)?;
        let operating = self.model.settle(&self.device.gpu(), point.batch, point.share, point.clock);
        self.clock.sleep_until(self.clock.mono().plus_us(LOAD_US));
        self.running = Some(Running { point: *point, operating, batch: first_batch(point) });
        Ok(())
    }

    fn unload(&mut self) -> Result<(), WorkloadError> {
        self.running = None;
        self.rest(true)
    }

    fn run_batch(&mut self) -> Result<f64, WorkloadError> {
        let times = self.run(0, i64::MAX, &mut |_| ControlFlow::Continue(()))?;
        times.first().copied().ok_or_else(|| WorkloadError::Failed("no batch ran".into()))
    }

    fn run(&mut self, limit_us: i64, tick_us: i64, tick: &mut Tick<'_>) -> Result<Vec<f64>, WorkloadError> {
        let Some(mut running) = self.running.take() else {
            return Err(WorkloadError::Failed("no point is loaded; load one first".into()));
        };
        let start = self.clock.mono();
        self.apply(Change::Load(Arc::clone(&running.operating.programme)))?;
        let (mut times, mut past_us, mut next_tick_us) = (Vec::new(), 0.0, tick_us.max(1));
        let mut goes_on = true;
        while times.is_empty() || (goes_on && past_us < limit_us as f64) {
            let time_ms = running.operating.time_ms * self.model.jitter(running.batch);
            running.batch = running.batch.wrapping_add(1);
            past_us += time_ms * 1e3;
            while goes_on && (next_tick_us as f64) <= past_us {
                self.clock.sleep_until(start.plus_us(next_tick_us));
                goes_on = tick(&times).is_continue();
                next_tick_us += tick_us.max(1);
            }
            self.clock.sleep_until(start.plus_us(past_us as i64));
            times.push(time_ms);
        }
        self.running = Some(running);
        self.rest(true)?;
        Ok(times)
    }

    fn memory_bytes(&self) -> Option<u64> {
        self.running.as_ref().map(|r| self.model.memory_bytes(r.point.batch))
    }

    fn idle(&mut self, _: &Seat, context: bool) -> Result<(), WorkloadError> {
        self.running = None;
        self.rest(context)
    }

    fn quit(&mut self) -> Result<(), WorkloadError> {
        self.running = None;
        self.rest(false)
    }
}
