//! What runs while it is measured: one trait, one file a kind, one list.
//!
//! ```text
//! sim:MODEL → open() → Workload → load at a point, run, …, quit
//! ```
//!
//! Rule: a workload serves one model, one batch after another without a pause. It is told where to run ([`Point`]) and
//! sets up share and clock itself, because how that is done differs from kind to kind. It measures the time of its
//! batches; power and clocks are read beside it, while it calls `tick`.
//! Not done here: deciding what a point is worth; that is the protocol's.

use std::sync::Arc;

use gpumon_core::clock::Clock;
use gpumon_core::units::Megahertz;
use gpumon_monitor::device::sim::SimDevice;

use crate::space::Point;

mod sim;

/// One model that can be run at any point.
pub trait Workload {
    /// The model's name, as the profile writes it.
    fn name(&self) -> &str;

    /// Whether a point is worth trying; the reason if not. Asked before anything runs.
    fn fits(&self, point: &Point) -> Result<(), String>;

    /// Sets the clock and the share up, and makes the model ready for batches of the point's size.
    fn load(&mut self, point: &Point) -> Result<(), WorkloadError>;

    /// Runs one batch; gives its time, ms.
    fn run_batch(&mut self) -> Result<f64, WorkloadError>;

    /// Runs batches for `span_us`, and the last one to its end; gives their times, ms. Calls `tick` about every
    /// `tick_us` meanwhile. At least one batch is run.
    fn run_for(
        &mut self,
        span_us: i64,
        tick_us: i64,
        tick: &mut dyn FnMut(),
    ) -> Result<Vec<f64>, WorkloadError>;

    /// Device memory that the loaded model uses, bytes; `None` where that is not known.
    fn memory_bytes(&self) -> Option<u64>;

    /// Stops the model and leaves the GPU without work at a clock: with a CUDA context, or without one.
    fn idle(&mut self, clock: Megahertz, context: bool) -> Result<(), WorkloadError>;

    /// Stops the model and gives the GPU back as it was found.
    fn quit(&mut self) -> Result<(), WorkloadError>;
}

/// Why a workload did not do what it was told, sorted by what to do next.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkloadError {
    /// The point is impossible: note it and go on with the next.
    #[error("does not fit: {0}")]
    DoesNotFit(String),
    /// This point failed: note it, load anew for the next.
    #[error("failed: {0}")]
    Failed(String),
    /// Nothing can be run any more: stop the sweep.
    #[error("cannot run any more: {0}")]
    Lost(String),
}

/// What workloads may need in order to run.
pub struct Context {
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// The simulated GPU to run on, if it is one.
    pub sim: Option<Arc<SimDevice>>,
}

/// A kind of workload.
pub struct Kind {
    /// What stands before the colon.
    pub scheme: &'static str,
    /// What stands behind it, and what it does.
    pub doc: &'static str,
    open: fn(rest: &str, context: &Context) -> Opened,
}

type Opened = Result<Box<dyn Workload>, OpenError>;

/// All kinds.
pub const KINDS: &[Kind] =
    &[Kind { scheme: "sim", doc: "`sim:MODEL`: a simulated model on a simulated GPU", open: sim::open }];

/// Why there is no such workload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The text names no kind.
    #[error("`{found}` is no workload; expected one of {expected}")]
    Unknown {
        /// What was given.
        found: String,
        /// What there is.
        expected: String,
    },
    /// A simulated model was to run on a real GPU.
    #[error("`sim:{0}` runs on a simulated GPU only; give `--device sim:a100`")]
    NotSimulated(String),
}

/// The workload that a text such as `sim:resnet50-like` names.
pub fn open(spec: &str, context: &Context) -> Opened {
    let (scheme, rest) = spec.split_once(':').unwrap_or((spec, ""));
    match KINDS.iter().find(|kind| kind.scheme == scheme) {
        Some(kind) => (kind.open)(rest, context),
        None => {
            let kinds: Vec<_> = KINDS.iter().map(|kind| kind.doc).collect();
            Err(OpenError::Unknown { found: spec.into(), expected: kinds.join("; ") })
        }
    }
}
