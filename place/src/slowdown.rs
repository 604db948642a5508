//! How much models on one GPU slow each other down, where that is known.
//!
//! Rule: who asks for a plan hands in something with [`Slowdown`], for example a regression over measured pairs; policies that look
//! at neighbours ask it, others plan as if nobody were slowed down.
//! Cases: absent in a problem, every factor is 1. Figures of a plan stay those of a model alone in its share, as in the profile.
//! Not done: measuring, fitting, and judging plans by it; sets of more than two partitions.
//!
//! Source: GPUlets (ATC'22), whose neighbours are pairs.

use std::fmt::Debug;

use crate::candidate::Candidate;

/// A model in a partition.
#[derive(Clone, Copy, Debug)]
pub struct Runs<'a> {
    /// The model's name.
    pub model: &'a str,
    /// What it runs as.
    pub candidate: &'a Candidate,
}

/// Tells how much one model slows another one down.
pub trait Slowdown: Debug + Send + Sync {
    /// Time of a batch of `own` while `neighbour` works on the same GPU, over that alone. What is below 1, or no number, counts as 1.
    fn factor(&self, own: Runs, neighbour: Runs) -> f64;
}
