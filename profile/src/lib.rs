//! Sweeps a model over share × clock × batch size, and keeps what each point took.
//!
//! ```text
//! space     which points there are: shares × batch sizes × clocks
//!    ↓
//! design    which of them are measured: all, a Latin hypercube of some, or as a chooser says (choose)
//!    ↓                                                                   └─ shard: one part of several
//! sweep     one after another, each kept in a journal as it is made; a stopped sweep goes on from there
//!    ↓ for each point
//! protocol  load, warm up, settle, measure; what makes a point valid
//!    ├─ workload  one trait, sibling files: what runs (simulated models so far)
//!    └─ meter     what the GPU's sensors say meanwhile: power, clock, throttling, activity
//!    ↓
//! gpumon_core::profile_io   one Parquet or CSV file, a row a point; merge puts several together
//! ```
//!
//! replay answers from such a file instead of a GPU.

pub mod choose;
mod course;
pub mod design;
mod journal;
pub mod merge;
pub mod meter;
pub mod protocol;
pub mod replay;
pub mod shard;
pub mod space;
pub mod sweep;
pub mod workload;

pub use journal::{JournalError, path_of as journal_of};

#[cfg(test)]
mod tests;
