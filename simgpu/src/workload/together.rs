//! Several models side by side on one GPU: what they leave each other.
//!
//! ```text
//! each tenant: host ─ kernel class ─ kernel class ─ … ─ host ─ …        at any moment one of these each: the mix
//! mix → room in the L2, rate of the L2, rate of the DRAM of each → how fast each one's kernel goes on → the next end
//! ```
//!
//! Rule: tenants work through their batches at the same time, event by event. Under MPS, and in green contexts, they have SMs of
//! their own and one memory: the L2's room is parted in proportion to what the kernels that run touch. Of a rate a kernel gets what the
//! others leave of it, if all that they would take by themselves is less than there is; else a part in proportion to what it would take.
//! A kernel with less memory takes longer by the same rule of resources as alone ([`super::kernel`]), and SMs that wait draw power
//! for longer. A MIG instance has slices of the memory to itself, and nobody disturbs it but by the clock that all share.
//! Cases: which kernels meet is a matter of when each tenant began, so the course is followed from several beginnings and its
//! mean is taken. One tenant alone takes exactly what it takes alone. MPS shares that add up to more than the SMs are taken as
//! if they did not.
//! Not done here: copies in each other's way; a host that serves all of them; kernels on the same SMs.
//! Source: proportional parts of a saturated resource are the usual fluid model of sharing; the rest follows from the kernels.

use gpumon_core::share::Share;
use gpumon_core::units::Megahertz;

use super::kernel::{self, Memory, Place};
use super::models::{Gpu, Kernel, ModelSpec};
use super::{STREAM_POWER, STREAM_TIME, SimModel, point_bits};
use crate::hash;

/// Beginnings from which the course is followed.
const BEGINNINGS: usize = 8;
/// Whole batches of each tenant in each of them.
const BATCHES: u32 = 2;

/// A model with its point on a GPU that others use too.
#[derive(Clone, Debug)]
pub struct Tenant {
    /// The model.
    pub model: SimModel,
    /// Items in a batch.
    pub batch: u32,
    /// Its share.
    pub share: Share,
}

/// What models take side by side.
#[derive(Clone, Debug, PartialEq)]
pub struct SideBySide {
    /// Mean time of a batch of each, ms.
    pub times_ms: Vec<f64>,
    /// Power of all, above idling with a context, W.
    pub dynamic_w: f64,
}

impl Tenant {
    /// The truth, at the SM clock that really runs. Tenants are of one description.
    pub fn truth(tenants: &[Self], sm: Megahertz) -> SideBySide {
        let Some(first) = tenants.first() else { return SideBySide { times_ms: vec![], dynamic_w: 0.0 } };
        let mhz = f64::from(sm.0.max(1));
        let works: Vec<Work> = tenants.iter().map(|tenant| Work::new(tenant, mhz)).collect();
        let mut courses = Vec::with_capacity(BEGINNINGS);
        for beginning in 0..BEGINNINGS {
            courses.push(Course::new(&first.model.file.gpu, &works, beginning).run());
        }
        let mean = |of: &dyn Fn(&SideBySide) -> f64| {
            courses.iter().map(of).sum::<f64>() / courses.len().max(1) as f64
        };
        SideBySide {
            times_ms: (0..tenants.len())
                .map(|i| mean(&|c| c.times_ms.get(i).copied().unwrap_or(f64::NAN)))
                .collect(),
            dynamic_w: mean(&|c| c.dynamic_w),
        }
    }

    /// As a campaign would measure it: the truth times noise that is a function of seeds and of the whole set.
    pub fn measured(tenants: &[Self], sm: Megahertz) -> SideBySide {
        let truth = Self::truth(tenants, sm);
        let set = tenants
            .iter()
            .fold(0, |sum, t| hash::bits(sum ^ t.model.seed, STREAM_TIME, point_bits(t.batch, t.share, sm)));
        let noise =
            |t: &Self, stream, i: usize| hash::normal(hash::bits(set ^ t.model.seed, stream, i as i64));
        let times_ms = tenants.iter().zip(&truth.times_ms).enumerate().map(|(i, (tenant, ms))| {
            ms * (1.0 + noise(tenant, STREAM_TIME, i) * tenant.model.file.noise.time)
        });
        let power = tenants.first().map_or(0.0, |t| noise(t, STREAM_POWER, 0) * t.model.file.noise.power);
        SideBySide { times_ms: times_ms.collect(), dynamic_w: truth.dynamic_w * (1.0 + power) }
    }
}

/// What a tenant works through, again and again.
struct Work<'a> {
    model: &'a ModelSpec,
    place: Place,
    outside_s: f64,
    /// What its share has with nobody else in it.
    memory: Memory,
    /// Whether others are in it.
    common: bool,
}

impl<'a> Work<'a> {
    fn new(tenant: &'a Tenant, mhz: f64) -> Self {
        let (model, gpu) = (tenant.model.spec.as_ref(), &tenant.model.file.gpu);
        let place = Place { items: f64::from(tenant.batch.max(1)), share: tenant.share, mhz };
        Self {
            model,
            place,
            outside_s: kernel::outside_s(gpu, model, place.items),
            memory: Memory::of(gpu, tenant.share, mhz),
            common: tenant.share.slices().is_none(),
        }
    }

    /// The first phase is the host's, each other one a class of kernels.
    fn phases(&self) -> usize {
        1 + self.model.kernels.len()
    }

    fn kernel(&self, phase: usize) -> Option<&'a Kernel> {
        self.model.kernels.get(phase.checked_sub(1)?)
    }
}

/// Where a tenant is.
struct At {
    phase: usize,
    /// What is left of the phase, 0 to 1.
    left: f64,
    /// When its first whole batch began, s.
    began_s: Option<f64>,
    /// Whole batches, and when the last of them ended, s.
    batches: u32,
    ended_s: f64,
}

/// What a phase takes in a mix.
#[derive(Clone, Copy, Default)]
struct Pace {
    seconds: f64,
    joules: f64,
}

struct Course<'a> {
    gpu: &'a Gpu,
    works: &'a [Work<'a>],
    at: Vec<At>,
}

impl<'a> Course<'a> {
    fn new(gpu: &'a Gpu, works: &'a [Work<'a>], beginning: usize) -> Self {
        let start = |(i, work): (usize, &Work)| {
            let place = hash::uniform(hash::bits(i as u64, 0, beginning as i64)) * work.phases() as f64;
            let phase = (place as usize).min(work.phases() - 1);
            At { phase, left: 1.0 - place.fract(), began_s: None, batches: 0, ended_s: 0.0 }
        };
        Self { gpu, works, at: works.iter().enumerate().map(start).collect() }
    }

    /// Until each tenant has ended its batches.
    fn run(mut self) -> SideBySide {
        let (mut now_s, mut joules) = (0.0, 0.0);
        while self.at.iter().any(|at| at.batches < BATCHES) {
            let paces = self.paces();
            let ends = self.at.iter().zip(&paces).map(|(at, pace)| at.left * pace.seconds);
            let (next, step_s) = ends
                .enumerate()
                .fold((0, f64::INFINITY), |best, end| if end.1 < best.1 { end } else { best });
            now_s += step_s;
            for (i, (at, pace)) in self.at.iter_mut().zip(&paces).enumerate() {
                let done = if i == next { at.left } else { (step_s / pace.seconds).min(at.left) };
                at.left -= done;
                joules += done * pace.joules;
            }
            self.turn(next, now_s);
        }
        let time_ms = |at: &At| (at.ended_s - at.began_s.unwrap_or(0.0)) * 1e3 / f64::from(at.batches.max(1));
        SideBySide { times_ms: self.at.iter().map(time_ms).collect(), dynamic_w: joules / now_s }
    }

    /// The next phase of a tenant.
    fn turn(&mut self, tenant: usize, now_s: f64) {
        if let Some((at, work)) = self.at.get_mut(tenant).zip(self.works.get(tenant)) {
            at.left = 1.0;
            at.phase = (at.phase + 1) % work.phases();
            if at.phase == 0 {
                match at.began_s {
                    Some(_) => {
                        at.batches += 1;
                        at.ended_s = now_s;
                    }
                    None => at.began_s = Some(now_s),
                }
            }
        }
    }

    /// What each tenant's phase takes in all, with the phases that the others are in.
    fn paces(&self) -> Vec<Pace> {
        let kernels: Vec<Option<&Kernel>> =
            self.works.iter().zip(&self.at).map(|(work, at)| work.kernel(at.phase)).collect();
        let sharing = |i: usize| self.works.get(i).is_some_and(|work| work.common);
        let touched: Vec<f64> = self
            .works
            .iter()
            .zip(&kernels)
            .map(|(work, kernel)| kernel.map_or(0.0, |k| kernel::footprint(k, work.place.items)))
            .collect();
        let sum = |values: &[f64]| {
            values.iter().enumerate().filter(|(i, _)| sharing(*i)).map(|(_, value)| value).sum::<f64>()
        };
        let all_touched = sum(&touched);
        let roomy = |i: usize, work: &Work| {
            let part = touched.get(i).copied().unwrap_or(0.0) / all_touched.max(1.0);
            let l2_bytes =
                if work.common { work.memory.l2_bytes * part.min(1.0) } else { work.memory.l2_bytes };
            Memory { l2_bytes, ..work.memory }
        };
        // What each would take of the rates, were it not for the others.
        let (mut l2, mut dram) = (Vec::new(), Vec::new());
        for (i, (work, kernel)) in self.works.iter().zip(&kernels).enumerate() {
            let cost = kernel.map(|k| kernel::one_kernel(self.gpu, k, work.place, roomy(i, work)));
            l2.push(cost.as_ref().map_or(0.0, |c| c.l2_bytes / c.seconds));
            dram.push(cost.as_ref().map_or(0.0, |c| c.dram_bytes / c.seconds));
        }
        let (all_l2, all_dram) = (sum(&l2), sum(&dram));
        let pace = |(i, (work, kernel)): (usize, (&Work, &Option<&Kernel>))| {
            let Some(kernel) = kernel else { return Pace { seconds: work.outside_s.max(1e-9), joules: 0.0 } };
            let mut memory = roomy(i, work);
            if work.common {
                let own = |rates: &[f64]| rates.get(i).copied().unwrap_or(0.0);
                memory.l2_rate = part(memory.l2_rate, own(&l2), all_l2);
                memory.dram_rate = part(memory.dram_rate, own(&dram), all_dram);
            }
            let cost = kernel::one_kernel(self.gpu, kernel, work.place, memory);
            let count = f64::from(kernel.count);
            Pace { seconds: count * cost.seconds, joules: count * cost.joules }
        };
        self.works.iter().zip(&kernels).enumerate().map(pace).collect()
    }
}

/// What is there for one of those who share a rate, by what it and all would take.
fn part(rate: f64, own: f64, all: f64) -> f64 {
    if all <= rate { rate - (all - own) } else { rate * own / all }
}
