//! The recording on disk: written so that it survives its writer, read in whatever state it is.
//!
//! ```text
//! Record ─▸ Store ─flush─▸ journal/N ─minute─▸ segments/N.lane ─hour, close─▸ lane.parquet …
//!                              │                    │                            │
//!                              └────────────────────┴─────── recover, Reader ────┘
//! ```
//!
//! A recording is a folder. While it is written it holds
//!
//! ```text
//! recording.json                     the header, state `recording`
//! recording.lock                     locked by the writer, holds its pid
//! journal/00000012.log               rows since the last segment
//! segments/00000011.fast.parquet …   a minute each, named after the journal they came from
//! reserve                            1 MiB to give up when the disk is full
//! ```
//!
//! and afterwards `recording.json`, `fast.parquet`, `ring.parquet`, `slow.parquet`,
//! `counter.parquet`, `events.parquet`, `process.parquet`, and further parts for every further hour.
//!
//! Rules: what [`Store::flush`] returned `Ok` for is never lost, neither to a kill nor to a power
//! cut nor to a full disk; no row is ever read twice; time is the rows' own. `layout` says which of
//! two places that hold the same rows counts.
//!
//! Not done here: sampling, the choice of what to record, exports (apart from [`ParquetStream`], which
//! encodes them as the store encodes its own files). Concurrent writers are refused
//! with a lock on `recording.lock`; a file system without locks is trusted. The writer of a process
//! with a file-size limit must ignore SIGXFSZ, or the kernel ends it instead of refusing the write.

mod compact;
mod disk;
mod error;
mod journal;
mod lane;
mod layout;
mod lock;
mod reader;
mod recover;
mod stream;
#[allow(unsafe_code)]
mod sys;
mod table;
#[cfg(test)]
mod tests;
mod writer;

pub use error::StoreError;
pub use lane::{Lane, PerLane, Row};
pub use reader::{Batches, Reader};
pub use recover::{Dropped, RecoverReport, recover};
pub use stream::ParquetStream;
pub use writer::{Closed, Store};
