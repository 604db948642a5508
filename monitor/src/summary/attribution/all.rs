//! The attributions of all GPUs, each from the source of power that it has.

use gpumon_core::header::Header;
use gpumon_core::rows::{FastRow, RingRow};

use super::super::joined::Group;
use super::super::known::{Known, polled_mw};
use super::super::{GpuSummary, Options, Window, of_gpu};
use super::Attributor;

/// Which readings of power go by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::summary) enum Source {
    /// The driver's ring.
    Ring,
    /// The fast lane.
    Polled,
}

/// One attributor a GPU.
pub(in crate::summary) struct Attributors(Vec<(Source, Attributor)>);

impl Attributors {
    /// Over all `windows`.
    pub(in crate::summary) fn new(
        header: &Header,
        windows: &[Window],
        known: &[Known],
        options: &Options<'_>,
    ) -> Self {
        let gpus = header.gpus.iter().zip(known).map(|(gpu, known)| {
            let source = if known.has_ring { Source::Ring } else { Source::Polled };
            (source, Attributor::new(gpu, windows, known.idle, options.correction(gpu)))
        });
        Self(gpus.collect())
    }

    fn with(&mut self, source: Source, gpu: i32) -> Option<&mut Attributor> {
        of_gpu(&mut self.0, gpu).filter(|(own, _)| *own == source).map(|(_, attributor)| attributor)
    }

    /// Adds a ring reading.
    pub(in crate::summary) fn ring(&mut self, row: &RingRow) {
        if let Some(attributor) = self.with(Source::Ring, row.gpu) {
            attributor.power(row.mono_us, f64::from(row.power_mw));
        }
    }

    /// Adds a tick of the fast lane.
    pub(in crate::summary) fn fast(&mut self, row: &FastRow) {
        if let (Some(attributor), Some(mw)) = (self.with(Source::Polled, row.gpu), polled_mw(row)) {
            attributor.power(row.mono_us, mw);
        }
    }

    /// Adds the processes of a time, among the readings of a source.
    pub(in crate::summary) fn processes(&mut self, source: Source, group: Group) {
        if let Some(attributor) = self.with(source, group.gpu) {
            attributor.processes(group);
        }
    }

    /// Puts attributions into the summaries, a list of GPUs a window.
    pub(in crate::summary) fn finish(self, windows: &mut [Vec<GpuSummary>]) {
        for (index, (_, attributor)) in self.0.into_iter().enumerate() {
            let of_gpu = |gpus: &Vec<GpuSummary>| gpus.get(index).and_then(|gpu| gpu.energy_j);
            let found = attributor.finish(windows.iter().map(of_gpu).collect::<Vec<_>>());
            for (gpus, attribution) in windows.iter_mut().zip(found) {
                if let Some(gpu) = gpus.get_mut(index) {
                    gpu.attribution = attribution;
                }
            }
        }
    }
}
