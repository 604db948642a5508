//! Sweeps a model over share × clock × batch size, and keeps what each point took.
//!
//! ```text
//! space     which points there are: shares × batch sizes × clocks
//!    ↓
//! design    which of them are measured: all, a Latin hypercube of some, or as a chooser says (choose)
//!    ↓
//! plan      what is measured: idle power at each clock, then each model's points; shard: one part of several
//!    ↓
//! course    the order: the plan's, or a chooser's
//!    ↓
//! sweep     one after another, each kept in a journal as it is made; a stopped sweep goes on from there
//!    ↓ for each point
//! protocol  sets the GPU, loads the model, runs it once, and makes a row of it
//!    ├─ stage     what the GPU is set to: clock, power limit, and the seat that gives a process its share
//!    ├─ workload  one trait, sibling files: what runs
//!    │     └─ native  nets on an NVIDIA GPU without PyTorch, in a process of their own
//!    ├─ heat      before it, where the card has cooled; drift: what idle power did meanwhile
//!    ├─ phases    warm up, settle, measure until it is known well enough (interval)
//!    ├─ meter     what the GPU's sensors say meanwhile: power, clock, throttling, activity
//!    └─ judge     what makes a row valid
//!    ↓
//! gpumon_core::profile_io   one Parquet or CSV file, a row a point; merge puts several together
//! ```
//!
//! replay answers from such a file instead of a GPU.

pub mod choose;
mod course;
pub mod design;
mod drift;
mod heat;
pub mod interval;
mod journal;
mod judge;
pub mod merge;
pub mod meter;
pub mod native;
mod outcome;
mod phases;
pub mod plan;
pub mod protocol;
pub mod replay;
pub mod shard;
pub mod space;
pub mod stage;
pub mod sweep;
pub mod together;
mod warmth;
pub mod workload;

pub use drift::Drift;
pub use heat::Heated;
pub use journal::{JournalError, path_of as journal_of};

#[cfg(test)]
mod tests;
