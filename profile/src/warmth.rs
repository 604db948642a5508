//! When a model that was just loaded is warm.
//!
//! Rule: its batches are taken in blocks of a fixed length; it is warm when two blocks in a row have medians that agree.

use gpumon_core::units::MonoUs;

use crate::phases::{percentile, us};
use crate::protocol::Protocol;

/// A block has at least so many batches.
const BLOCK_BATCHES: usize = 2;

/// Follows one model's warm-up.
pub(crate) struct Warmth {
    block_began: MonoUs,
    from: usize,
    before_ms: Option<f64>,
}

impl Warmth {
    /// Before the first batch.
    pub(crate) fn new(now: MonoUs) -> Self {
        Self { block_began: now, from: 0, before_ms: None }
    }

    /// Whether it is warm, by the times of all batches so far.
    pub(crate) fn is_warm(&mut self, p: &Protocol, now: MonoUs, times_ms: &[f64]) -> bool {
        let block = times_ms.get(self.from..).unwrap_or_default();
        if now.since_us(self.block_began) < us(p.block_s) || block.len() < BLOCK_BATCHES {
            return false;
        }
        let ms = percentile(block, 0.5);
        let warm = self.before_ms.is_some_and(|before| (ms - before).abs() <= p.agreement * before);
        *self = Self { block_began: now, from: times_ms.len(), before_ms: Some(ms) };
        warm
    }
}
