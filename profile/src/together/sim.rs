//! Simulated members on a simulated GPU, without threads.
//!
//! Rule: where they settle together, and how long a batch of each takes then, the simulation says ([`Tenant::settle`]). Their batches
//! end one after another in the order of time, and in the set's order where two end at once, so the same set at the same time gives the same.
//! Cases: members that do not fit into the memory together spoil the set: under MPS all of them into the GPU's, under MIG each into its
//! instance's.

use std::sync::Arc;

use gpumon_core::clock::Clock;
use gpumon_core::units::MonoUs;
use gpumon_monitor::device::sim::SimDevice;
use gpumon_simgpu::{Change, Programme, SimModel, Tenant, Together};

use super::Set;
use super::crew::{Crew, Look, Spoilt, sorted};
use super::watch::TICK_US;
use crate::stage::Seat;
use crate::workload::WorkloadError;
use crate::workload::sim::{LOAD_US, first_batch};

/// Models of a set.
pub(super) struct Simulated<'a> {
    names: Vec<&'a str>,
    device: &'a SimDevice,
    clock: &'a dyn Clock,
    tenants: Vec<Tenant>,
    /// How they run, and the number of each one's next batch.
    running: Option<(Together, Vec<u64>)>,
}

impl<'a> Simulated<'a> {
    /// The models of these names.
    pub(super) fn new(names: Vec<&'a str>, device: &'a SimDevice, clock: &'a dyn Clock) -> Self {
        Self { names, device, clock, tenants: Vec::new(), running: None }
    }

    fn apply(&self, change: Change) -> Result<(), String> {
        let now = MonoUs(self.clock.mono().since_us(self.device.opened()));
        self.device.gpu().apply(now, change).map(|_| ()).map_err(|e| e.to_string())
    }

    fn rest(&self) -> Result<(), String> {
        self.apply(Change::Load(Arc::new(Programme::idle(true))))
    }

    fn fits(&self) -> Result<(), String> {
        let (mut together, mut room) = (0, 0);
        for Tenant { model, batch, share } in &self.tenants {
            let (needs, has) = (model.memory_bytes(*batch), model.capacity_bytes(*share));
            match share.slices() {
                Some(_) if needs > has => {
                    let what = format!("batch {batch} needs {needs} bytes of memory, {share} has {has}");
                    let error = WorkloadError::DoesNotFit(what);
                    return Err(format!("`{}` {error}", model.name()));
                }
                Some(_) => {}
                None => (together, room) = (together + needs, has),
            }
        }
        match together > room {
            true => {
                let what = format!("the set needs {together} bytes of memory, the GPU has {room}");
                Err(WorkloadError::DoesNotFit(what).to_string())
            }
            false => Ok(()),
        }
    }
}

impl Crew for Simulated<'_> {
    fn load(&mut self, set: &Set, _: &[Seat]) -> Spoilt<()> {
        self.tenants.clear();
        for (name, member) in self.names.iter().zip(&set.members) {
            let Some(model) = SimModel::builtin(name) else {
                return sorted(name, WorkloadError::Lost("is no simulated model".into())).map(Err);
            };
            self.tenants.push(Tenant { model, batch: member.point.batch, share: member.point.share });
        }
        let Some(clock) = set.members.first().map(|member| member.point.clock) else {
            return Ok(Err("a set without members".into()));
        };
        if let Err(why) = self.fits().and_then(|()| self.rest()) {
            return Ok(Err(why));
        }
        let settled = Tenant::settle(&self.tenants, &self.device.gpu(), clock);
        self.clock.sleep_until(self.clock.mono().plus_us(LOAD_US));
        let others = set.members.iter().fold(0u64, |sum, m| sum.rotate_left(7) ^ first_batch(&m.point));
        let batches = set.members.iter().map(|m| first_batch(&m.point) ^ others.rotate_left(3)).collect();
        self.running = Some((settled, batches));
        Ok(Ok(()))
    }

    fn run(&mut self, limit_us: i64, look: &mut Look<'_>) -> Spoilt<()> {
        let Some((settled, mut batches)) = self.running.take() else {
            return Ok(Err("no set is loaded".into()));
        };
        let start = self.clock.mono();
        if let Err(why) = self.apply(Change::Load(Arc::clone(&settled.programme))) {
            return Ok(Err(why));
        }
        let next = |i: usize, batches: &mut [u64]| -> f64 {
            let number = batches.get_mut(i).map_or(0, |number| {
                *number = number.wrapping_add(1);
                *number
            });
            let jitter = self.tenants.get(i).map_or(1.0, |tenant| tenant.model.jitter(number));
            settled.times_ms.get(i).copied().unwrap_or(f64::INFINITY) * jitter
        };
        // The batch that each is at: when it ends, µs, and what it takes, ms.
        let mut at: Vec<(f64, f64)> = (0..self.tenants.len())
            .map(|i| {
                let ms = next(i, &mut batches);
                (ms * 1e3, ms)
            })
            .collect();
        let mut times_ms: Vec<Vec<f64>> = at.iter().map(|_| Vec::new()).collect();
        for tick in 1..=(limit_us / TICK_US).max(1) {
            let tick_us = (tick * TICK_US) as f64;
            for (i, ((end_us, ms), times)) in at.iter_mut().zip(&mut times_ms).enumerate() {
                while *end_us <= tick_us {
                    times.push(*ms);
                    *ms = next(i, &mut batches);
                    *end_us += *ms * 1e3;
                }
            }
            self.clock.sleep_until(start.plus_us(tick * TICK_US));
            if look(&times_ms).is_break() {
                break;
            }
        }
        Ok(self.rest())
    }

    fn memory_bytes(&self) -> Vec<Option<u64>> {
        self.tenants.iter().map(|tenant| Some(tenant.model.memory_bytes(tenant.batch))).collect()
    }

    fn unload(&mut self) {
        self.running = None;
        // A GPU that takes no load any more shows at the next set.
        let _ = self.rest();
    }
}
