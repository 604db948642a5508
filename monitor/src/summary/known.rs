//! What must be known of each GPU before its windows can be summed up: a first pass over its power.

use gpumon_core::rows::{FastRow, RingRow};

use super::attribution::idle::IdleFinder;
use super::attribution::{Idle, corrected_mw};
use super::joined::{Joined, Step};
use super::{Options, of_gpu};
use crate::energy::{NoiseFloor, Timing};
use crate::store::{Reader, StoreError};

/// What is known of one GPU.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) timing: Timing,
    /// Noise of its ring, W.
    pub(super) noise_w: f64,
    /// What it draws idle.
    pub(super) idle: Option<Idle>,
    /// Whether the ring has readings of it.
    pub(super) has_ring: bool,
}

#[derive(Clone, Default)]
struct Finder {
    noise: NoiseFloor,
    idle: IdleFinder,
    has_ring: bool,
}

/// What is known of each GPU.
pub(super) fn all(reader: &Reader, options: &Options<'_>) -> Result<Vec<Known>, StoreError> {
    let gpus = &reader.header().gpus;
    let by = |gpu: i32| usize::try_from(gpu).ok().and_then(|gpu| options.correction(gpus.get(gpu)?));
    let mut finders = vec![Finder::default(); gpus.len()];
    let mut ring = Joined::<RingRow>::of(reader)?;
    while let Some(step) = ring.next()? {
        match step {
            Step::Power(row) => {
                if let Some(finder) = of_gpu(&mut finders, row.gpu) {
                    let mw = f64::from(row.power_mw);
                    finder.has_ring = true;
                    finder.noise.add(row.mono_us, mw);
                    finder.idle.power(row.mono_us, corrected_mw(by(row.gpu), mw));
                }
            }
            Step::Processes(group) => {
                of_gpu(&mut finders, group.gpu).into_iter().for_each(|f| f.idle.processes(&group));
            }
        }
    }
    if finders.iter().any(|f| !f.has_ring) {
        polled(reader, &mut finders, by)?;
    }
    let known = gpus.iter().zip(finders).map(|(gpu, finder)| {
        let mut timing = options.timing.iter();
        let timing = timing.find(|found| found.uuid == gpu.uuid && found.driver == gpu.driver);
        let given = options.idle_w.iter().find(|(uuid, _)| *uuid == gpu.uuid);
        Known {
            timing: Timing::new(timing),
            noise_w: finder.noise.noise_w(),
            idle: given.map(|(_, watts)| Idle::given(*watts)).or(finder.idle.found()),
            has_ring: finder.has_ring,
        }
    });
    Ok(known.collect())
}

/// Idle power of the GPUs without a ring. A repeated reading says nothing new.
fn polled<'a>(
    reader: &Reader,
    finders: &mut [Finder],
    by: impl Fn(i32) -> Option<&'a gpumon_core::calibration::Correction>,
) -> Result<(), StoreError> {
    for finder in finders.iter_mut().filter(|f| !f.has_ring) {
        finder.idle = IdleFinder::default();
    }
    let mut fast = Joined::<FastRow>::of(reader)?;
    while let Some(step) = fast.next()? {
        let gpu = match &step {
            Step::Power(row) => row.gpu,
            Step::Processes(group) => group.gpu,
        };
        let Some(finder) = of_gpu(finders, gpu).filter(|f| !f.has_ring) else { continue };
        match step {
            Step::Power(row) => {
                if let Some(mw) = polled_mw(&row).filter(|_| row.fresh) {
                    finder.idle.power(row.mono_us, corrected_mw(by(gpu), mw));
                }
            }
            Step::Processes(group) => finder.idle.processes(&group),
        }
    }
    Ok(())
}

/// Power of a tick, mW: over the short window, else the driver's average.
pub(super) fn polled_mw(row: &FastRow) -> Option<f64> {
    row.power_instant_mw.or(row.power_average_mw).map(f64::from)
}
