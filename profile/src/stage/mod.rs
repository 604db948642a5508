//! What a GPU is set to for a point, apart from the workload that runs on it.
//!
//! ```text
//! point ─ stage ─ clock, power limit: set on the GPU, or left alone
//!              └─ seat: the variables by which a process gets the point's share
//! ```
//!
//! Rule: what is set is set before the workload is loaded, and `restore` gives the GPU back as it was found. A stage
//! that leaves clocks alone says so, and the row says it too.
//! Cases: seats under MPS exist side by side, so the processes of all shares can be started together; a MIG instance
//! exists only while its layout does, and whatever runs on it has to go before another takes its place.
//! Not done here: how a GPU is set ([`gpumon_monitor`]'s control half), and whether the clock was reached, which the
//! protocol looks at.

use std::ffi::OsString;

use gpumon_core::share::Share;
use gpumon_core::units::Megahertz;

mod gpu;
mod sim;

pub use gpu::GpuStage;
pub use sim::SimStage;

/// Where a workload runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat {
    /// The share.
    pub share: Share,
    /// Variables for the environment of its process.
    pub env: Vec<(String, OsString)>,
}

/// Why a GPU could not be set, sorted by what to do next.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StageError {
    /// This point cannot be had: note it and go on with the next.
    #[error("could not be set up: {0}")]
    Point(String),
    /// Nothing can be set any more: stop the sweep.
    #[error("the GPU cannot be set any more: {0}")]
    Lost(String),
}

/// Sets a GPU for points.
pub trait Stage {
    /// Asks for a clock; false if clocks are left alone.
    fn clock(&mut self, clock: Megahertz) -> Result<bool, StageError>;

    /// Sets a power limit, W; `None` is the limit that was found.
    fn limit(&mut self, limit_w: Option<u32>) -> Result<(), StageError>;

    /// Whether seats of these shares can be had while what sits on others stays there.
    fn stays(&self, shares: &[Share]) -> bool {
        let _ = shares;
        self.seats_coexist()
    }

    /// The seat of a share.
    fn seat(&mut self, share: Share) -> Result<Seat, StageError>;

    /// Seats of these shares that exist at the same time, in order.
    fn seats(&mut self, shares: &[Share]) -> Result<Vec<Seat>, StageError> {
        shares.iter().map(|share| self.seat(*share)).collect()
    }

    /// A seat of the whole GPU, without sharing.
    fn whole(&mut self) -> Result<Seat, StageError>;

    /// Whether seats of several shares exist side by side.
    fn seats_coexist(&self) -> bool;

    /// Gives the GPU back as it was found.
    fn restore(&mut self) -> Result<(), StageError>;
}
