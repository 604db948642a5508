//! Loads that go on and off at given times, and say when they did: one trait, one file a kind.
//!
//! ```text
//! prepare()   whatever takes long: contexts, modules, warming up
//! start()     the phases, from a given moment on, on the load's own thread
//! finish()    waits for their end and tells the edges as they were
//! stop()      ends whatever still runs; also what dropping does
//! ```
//!
//! Rule: an edge is reported at the moment at which the load's owner saw it: before it hands in the first work, and once it
//! knows that the last is done. What the load draws is its own affair, as long as it is one level.

use gpumon_core::units::MonoUs;

use super::phases::Phase;

pub mod command;
pub mod cuda;
pub mod sim;

/// A moment at which a load went on or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switched {
    /// When.
    pub at: MonoUs,
    /// Whether it is on from then on.
    pub on: bool,
}

/// Why a load does not run. Each message says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// There is no CUDA driver.
    #[error(
        "the CUDA driver's library (libcuda.so.1) is not found, so gpumon cannot load the GPU itself; install the driver's CUDA \
         part, or give a load of your own with --load-cmd"
    )]
    NoLibrary,
    /// CUDA does not show the GPU.
    #[error(
        "CUDA shows no GPU with the UUID {wanted} (it shows {shown}); see CUDA_VISIBLE_DEVICES, and whether MIG is on"
    )]
    NotVisible {
        /// The GPU's UUID.
        wanted: String,
        /// What is there.
        shown: String,
    },
    /// A CUDA call failed.
    #[error("while gpumon's own load was {doing}: {message}; another load can be given with --load-cmd")]
    Cuda {
        /// The step.
        doing: &'static str,
        /// What the driver says.
        message: String,
    },
    /// The user's command.
    #[error("the load `{command}` {message}")]
    Command {
        /// The command.
        command: String,
        /// What happened.
        message: String,
    },
    /// The simulated GPU refuses it.
    #[error("the simulated load: {0}")]
    Simulated(String),
    /// Threads.
    #[error("the load's thread {0}")]
    Thread(String),
}

/// A load that goes on and off.
pub trait SquareLoad {
    /// What it is, for the file.
    fn name(&self) -> String;
    /// Makes it ready to be switched without delay; it is off afterwards.
    fn prepare(&mut self) -> Result<(), LoadError>;
    /// Begins the phases at a moment and returns.
    fn start(&mut self, at: MonoUs, phases: &[Phase]) -> Result<(), LoadError>;
    /// Waits for the end of the phases and tells what was switched when.
    fn finish(&mut self) -> Result<Vec<Switched>, LoadError>;
    /// Ends the load at once.
    fn stop(&mut self);
}

/// Phases as moments: what is to be on from when on, and the end.
pub(super) fn edges(at: MonoUs, phases: &[Phase]) -> (Vec<Switched>, MonoUs) {
    let (mut edges, mut end) = (Vec::<Switched>::new(), at);
    for phase in phases {
        // Two phases alike in a row are one.
        if edges.last().map_or(phase.on, |last| last.on != phase.on) {
            edges.push(Switched { at: end, on: phase.on });
        }
        end = end.plus_us(phase.us);
    }
    (edges, end)
}
