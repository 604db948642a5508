//! What every stage of gpumon shares, and nothing that touches a GPU.
//!
//! ```text
//! units    numbers that carry their unit across crate borders
//! clock    time that is passed in: the machine's clock, or a virtual one for tests and soaks
//! caught   calls into libraries that panic on broken input
//! table    how a row type becomes a Parquet table and a chapter of docs/schema.md
//! rows     the tables of a recording: fast, ring, slow, counter, process, events
//! header   recording.json: who recorded what, on which GPUs, and how it ended
//! profile  the rows of a profile: one measured point of one model
//! profile_io profile files, ours and published ones: read, checked, written whole
//! timing   what was found out about a GPU's power sensors: periods, windows, lags
//! share    how a model shares a GPU: MIG slices, an MPS percentage, SMs
//! workload the workload file: what is to be served, on which GPUs
//! geometry which MIG slices fit on a GPU together, and where
//! ```

pub mod calibration;
pub mod caught;
pub mod clock;
#[doc(hidden)]
pub mod dev;
pub mod geometry;
pub mod header;
pub mod profile;
pub mod profile_io;
pub mod rows;
pub mod set;
pub mod share;
pub mod table;
pub mod timing;
pub mod units;
pub mod workload;
