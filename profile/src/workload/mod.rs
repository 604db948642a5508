//! What runs while it is measured: one trait, one file a kind, one list.
//!
//! ```text
//! sim:MODEL → open() → Workload → load at a point, run, …, quit
//! ```
//!
//! Rule: a workload serves one model, one batch after another without a pause. It is told where to run (a [`Point`] and
//! its [`Seat`]); clock and power limit are set by the [`crate::stage`] before. It measures the time of its batches;
//! power and clocks are read beside it, while it calls `tick`.
//! Not done here: deciding what a point is worth and when enough was measured; that is the protocol's.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use gpumon_core::clock::Clock;
use gpumon_monitor::device::sim::SimDevice;

use crate::native::NetFileError;
use crate::space::Point;
use crate::stage::Seat;

pub mod command;
mod native;
mod process;
pub(crate) mod sim;
pub mod torch;
mod wire;

pub(crate) use wire::VERSION as PROTOCOL_VERSION;

/// What a run tells meanwhile: the times of all its batches so far, ms. The answer is whether to go on.
pub type Tick<'a> = dyn FnMut(&[f64]) -> ControlFlow<()> + 'a;

/// One model that can be run at any point.
pub trait Workload: Send {
    /// The model's name, as the profile writes it.
    fn name(&self) -> &str;

    /// Whether a point is worth trying; the reason if not. Asked before anything runs.
    fn fits(&self, point: &Point) -> Result<(), String>;

    /// Told before the model's first point which seats it will have, where they exist side by side: what takes long to
    /// start is started then, for all of them at once. Waits until it is there.
    fn prepare(&mut self, seats: &[Seat]) -> Result<(), WorkloadError> {
        let _ = seats;
        Ok(())
    }

    /// Makes the model ready for batches of the point's size in that seat.
    fn load(&mut self, point: &Point, seat: &Seat) -> Result<(), WorkloadError>;

    /// Stops the model and gives its memory back; what was started for it stays.
    fn unload(&mut self) -> Result<(), WorkloadError>;

    /// Runs one batch; gives its time, ms.
    fn run_batch(&mut self) -> Result<f64, WorkloadError>;

    /// Runs batches until `limit_us` are over or `tick` breaks, and the last one to its end; gives their times, ms.
    /// Calls `tick` about every `tick_us` meanwhile. At least one batch is run.
    fn run(&mut self, limit_us: i64, tick_us: i64, tick: &mut Tick<'_>) -> Result<Vec<f64>, WorkloadError>;

    /// Device memory that the loaded model uses, bytes; `None` where that is not known.
    fn memory_bytes(&self) -> Option<u64>;

    /// What is special about how the loaded model runs, if anything.
    fn note(&self) -> Option<&str> {
        None
    }

    /// Stops the model and leaves the GPU without work, with a CUDA context or without one. `seat` is where that
    /// context is made.
    fn idle(&mut self, seat: &Seat, context: bool) -> Result<(), WorkloadError>;

    /// Stops the model and all that was started for it.
    fn quit(&mut self) -> Result<(), WorkloadError>;
}

/// How the reason of a point that is impossible begins.
pub(crate) const DOES_NOT_FIT: &str = "does not fit";

/// Why a workload did not do what it was told, sorted by what to do next.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkloadError {
    /// The point is impossible: note it and go on with the next.
    #[error("{DOES_NOT_FIT}: {0}")]
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
    /// The Python that runs PyTorch models, if it was named.
    pub python: Option<PathBuf>,
    /// How this program serves a native net: program and arguments, before the net's name; `None` if it cannot.
    pub native: Option<Vec<String>>,
}

/// A kind of workload.
pub struct Kind {
    /// What stands before the colon.
    pub scheme: &'static str,
    /// What stands behind it, and what it does.
    pub doc: &'static str,
    open: fn(name: &str, rest: &str, context: &Context) -> Opened,
}

type Opened = Result<Box<dyn Workload>, OpenError>;

/// All kinds.
pub const KINDS: &[Kind] = &[
    Kind { scheme: "sim", doc: "`sim:MODEL`: a simulated model on a simulated GPU", open: sim::open },
    Kind { scheme: "torch", doc: "`torch:MODEL`: a PyTorch model with random weights", open: torch::open },
    Kind {
        scheme: "native",
        doc: "`native:NET`: a net of matrix products, convolutions and passes over memory, or of a file NET.toml",
        open: native::open,
    },
];

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
    /// There is no Python that can run a PyTorch model.
    #[error("{0}")]
    Python(String),
    /// There is no such net.
    #[error(transparent)]
    Net(#[from] NetFileError),
    /// This program does not serve nets.
    #[error("`native:{0}` is served by the program gpumon, which is not there")]
    NoProgram(String),
}

/// The workload that a text such as `sim:resnet50-like` names. `name`: how the profile calls it.
pub fn open(name: &str, spec: &str, context: &Context) -> Opened {
    let (scheme, rest) = spec.split_once(':').unwrap_or((spec, ""));
    match KINDS.iter().find(|kind| kind.scheme == scheme) {
        Some(kind) => (kind.open)(name, rest, context),
        None => {
            let kinds: Vec<_> = KINDS.iter().map(|kind| kind.doc).collect();
            Err(OpenError::Unknown { found: spec.into(), expected: kinds.join("; ") })
        }
    }
}

/// The workload of a model. `run`: how its worker starts, if the user says so; on a simulated GPU it is the simulated
/// model of the same name.
pub fn of_model(name: &str, run: Option<&[String]>, context: &Context) -> Opened {
    match run {
        _ if context.sim.is_some() => open(name, &format!("sim:{name}"), context),
        Some([one])
            if KINDS.iter().any(|kind| one.split_once(':').is_some_and(|(s, _)| s == kind.scheme)) =>
        {
            open(name, one, context)
        }
        Some(argv) => Ok(Box::new(command::Commanded::new(name, argv.to_vec(), Arc::clone(&context.clock)))),
        None => open(name, &format!("torch:{name}"), context),
    }
}

#[cfg(test)]
mod tests;
