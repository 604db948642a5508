//! Simulated models: how long a batch takes and what it draws, on any share of a GPU, at any clock.
//!
//! ```text
//! TOML ─▶ models ─ kernel   each class of kernels: waves over the SMs, caches, memory, launches → time, energy
//!                 ─ together  several models side by side: what they leave each other of L2 and memory
//!                 ─ settle  the clock that a GPU with a power limit then runs at, and the load level that draws as much
//! ```
//!
//! Rule: the truth of a point is the sum over its kernels; what somebody would measure there is the truth times noise that
//! is a function of seed and point. Neither is a formula in share, clock and batch: waves, cache knees and launch floors
//! make steps. Units: ms, W above idling with a context, bytes.
//! Cases: a clock of 0 is taken as 1 MHz and a batch of 0 as 1.
//! Not done here: warm-up; the host's own slowness.
//! Source: the numbers are assumed (specs/models-a100.toml says which are not).

use std::sync::Arc;

use gpumon_core::share::Share;
use gpumon_core::units::Megahertz;

use crate::hash;

mod kernel;
mod models;
mod settle;
mod together;

pub use models::ModelError;
use models::{File, ModelSpec};
pub use settle::{Operating, Together};
pub use together::{SideBySide, Tenant};

const BUILTIN: &str = include_str!("../specs/models-a100.toml");

const STREAM_TIME: u64 = 0x101;
const STREAM_POWER: u64 = 0x102;
const STREAM_BATCH: u64 = 0x103;
const STREAM_TAIL: u64 = 0x104;
const STREAM_TAIL_SIZE: u64 = 0x105;

/// What a batch costs at a point, without noise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Truth {
    /// Time of one batch, ms.
    pub time_ms: f64,
    /// Power while batches follow each other, above idling with a context, W.
    pub dynamic_w: f64,
}

/// One simulated model.
#[derive(Clone, Debug)]
pub struct SimModel {
    file: Arc<File>,
    spec: Arc<ModelSpec>,
    seed: u64,
}

impl SimModel {
    /// All models of a description.
    pub fn parse(text: &str) -> Result<Vec<Self>, ModelError> {
        let file = Arc::new(File::parse(text)?);
        let models = file.models.iter().map(|spec| Self {
            file: Arc::clone(&file),
            seed: file.noise.seed ^ name_bits(&spec.name),
            spec: Arc::new(spec.clone()),
        });
        Ok(models.collect())
    }

    /// A built-in model.
    pub fn builtin(name: &str) -> Option<Self> {
        Self::builtins().into_iter().find(|m| m.name() == name)
    }

    /// All built-in models.
    pub fn builtins() -> Vec<Self> {
        Self::parse(BUILTIN).unwrap_or_default()
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// The same model in another campaign of measurements.
    pub fn with_seed(self, seed: u64) -> Self {
        Self { seed: seed ^ name_bits(&self.spec.name), ..self }
    }

    /// The truth at a point, at the SM clock that really runs.
    pub fn truth(&self, batch: u32, share: Share, sm: Megahertz) -> Truth {
        kernel::batch(&self.file.gpu, &self.spec, batch.max(1), share, f64::from(sm.0.max(1)))
    }

    /// Mean time of one batch as a campaign would measure it, ms.
    pub fn time_ms(&self, batch: u32, share: Share, sm: Megahertz) -> f64 {
        let noise = self.noise(STREAM_TIME, batch, share, sm) * self.file.noise.time;
        self.truth(batch, share, sm).time_ms * (1.0 + noise)
    }

    /// Dynamic power as a campaign would measure it, W.
    pub fn dynamic_w(&self, batch: u32, share: Share, sm: Megahertz) -> f64 {
        let noise = self.noise(STREAM_POWER, batch, share, sm) * self.file.noise.power;
        self.truth(batch, share, sm).dynamic_w * (1.0 + noise)
    }

    /// How much longer or shorter than the mean batch number `index` takes: a factor near 1, with a tail.
    pub fn jitter(&self, index: u64) -> f64 {
        let noise = &self.file.noise;
        let index = index as i64;
        let uniform = |stream| hash::uniform(hash::bits(self.seed, stream, index));
        let held_up = match uniform(STREAM_TAIL) < noise.tail_share {
            true => noise.tail[0] + (noise.tail[1] - noise.tail[0]) * uniform(STREAM_TAIL_SIZE),
            false => 0.0,
        };
        let mean_held_up = noise.tail_share * (noise.tail[0] + noise.tail[1]) / 2.0;
        let ordinary = noise.batch * hash::normal(hash::bits(self.seed, STREAM_BATCH, index));
        (1.0 + ordinary + held_up - mean_held_up).max(0.1)
    }

    /// Device memory that it needs, bytes.
    pub fn memory_bytes(&self, batch: u32) -> u64 {
        let mib = self.file.gpu.context_mib
            + self.spec.weights_mib
            + self.spec.memory_mib_per_item * f64::from(batch);
        (mib * MIB) as u64
    }

    /// Device memory that a share has, bytes.
    pub fn capacity_bytes(&self, share: Share) -> u64 {
        (self.file.gpu.memory_gib * 1024.0 * MIB * kernel::memory_share(share)) as u64
    }

    fn noise(&self, stream: u64, batch: u32, share: Share, sm: Megahertz) -> f64 {
        hash::normal(hash::bits(self.seed, stream, point_bits(batch, share, sm)))
    }
}

const MIB: f64 = 1_048_576.0;

fn point_bits(batch: u32, share: Share, sm: Megahertz) -> i64 {
    let share_ppm = (share.fraction() * 1e6).round() as i64;
    (i64::from(batch) << 40) ^ (share_ppm << 16) ^ i64::from(sm.0)
}

/// Different models see different noise.
fn name_bits(name: &str) -> u64 {
    name.bytes().fold(0, |sum, byte| hash::bits(sum, u64::from(byte), 0))
}

#[cfg(test)]
mod tests;
