//! One GPU of the fake library: a simulated GPU and what NVML keeps beside it.
//!
//! Rule: the model is a function of the description and of the log's records, applied in order.

use gpumon_core::units::{Megahertz, Millijoules, Milliwatts, MonoUs};
use gpumon_simgpu::{Change as SimChange, Reading, SimGpu};

use crate::log::{Change, Record};
use crate::mig::{ComputeInstance, GpuInstance, Mig};

/// One GPU.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) sim: SimGpu,
    pub(crate) mig: Mig,
    pub(crate) persistence: bool,
    pub(crate) lost: bool,
    /// Counter resets so far: the faults that made them, and when the last one was.
    pub(crate) resets: Vec<usize>,
    reset_at: Option<MonoUs>,
}

impl Model {
    pub(crate) fn new(sim: SimGpu) -> Self {
        Self { sim, mig: Mig::default(), persistence: true, lost: false, resets: Vec::new(), reset_at: None }
    }

    /// With GPU instances, each with one compute instance, from the beginning.
    pub(crate) fn with_instances(mut self, instances: impl IntoIterator<Item = (u8, u8)>) -> Self {
        for (slices, start) in instances {
            let whole = ComputeInstance { id: 0, slices, start: 0 };
            let id = self.mig.next_id(slices);
            self.mig.instances.push(GpuInstance { id, slices, start, compute: vec![whole] });
            self.mig.on = true;
        }
        self
    }

    /// The energy counter: the simulated one's, or what came since it was reset.
    pub(crate) fn energy(&mut self, now: MonoUs) -> Reading<Millijoules> {
        let mut reading = self.sim.energy_counter(now);
        if let (Some(reset_at), Ok(value)) = (self.reset_at, &mut reading.value) {
            // A clone, because a question about the past must not hold up other calls.
            if let Ok(then) = self.sim.clone().energy_counter(reset_at).value {
                *value = Millijoules(value.0.saturating_sub(then.0));
            }
        }
        reading
    }

    /// Applies a record of the log. What was refused when it was made is not in the log.
    pub(crate) fn apply(&mut self, record: &Record) {
        let at = MonoUs(record.at_us);
        let sim = |sim: &mut SimGpu, change| drop(sim.apply(at, change));
        match record.change {
            Change::LockClocks { min_mhz, max_mhz } => {
                let range = (Megahertz(min_mhz), Megahertz(max_mhz));
                sim(&mut self.sim, SimChange::LockClocks(Some(range)));
            }
            Change::UnlockClocks => sim(&mut self.sim, SimChange::LockClocks(None)),
            Change::PowerLimit { limit_mw } => {
                sim(&mut self.sim, SimChange::PowerLimit(Milliwatts(limit_mw)));
            }
            Change::Persistence { on } => self.persistence = on,
            Change::Mig { on } => self.mig.on = on,
            Change::CreateGpuInstance { id, slices, start } => {
                self.mig.instances.push(GpuInstance { id, slices, start, compute: Vec::new() });
                self.mig.instances.sort_by_key(|i| i.id);
            }
            Change::DestroyGpuInstance { id } => self.mig.instances.retain(|i| i.id != id),
            Change::CreateComputeInstance { gpu_instance, id, slices, start } => {
                if let Some(instance) = self.mig.instances.iter_mut().find(|i| i.id == gpu_instance) {
                    instance.compute.push(ComputeInstance { id, slices, start });
                    instance.compute.sort_by_key(|c| c.id);
                }
            }
            Change::DestroyComputeInstance { gpu_instance, id } => {
                if let Some(instance) = self.mig.instances.iter_mut().find(|i| i.id == gpu_instance) {
                    instance.compute.retain(|c| c.id != id);
                }
            }
            Change::CounterReset { fault } => {
                self.resets.push(fault);
                self.reset_at = Some(at);
            }
            Change::Lost => self.lost = true,
        }
    }
}
