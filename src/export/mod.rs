//! A recording as one table.
//!
//! ```text
//! Reader → select → one lane as it is ──────────────────┐
//!             └───▸ moments (the lanes joined) ─▸ wide ─┤─▸ batches → Sink → File → FILE
//!                                            └▸ gmonitor┘
//! ```
//!
//! Memory holds no more than a row group a lane and the footers of the tables (about 1 MiB an hour): each
//! lane is read a row group at a time and written [`CHUNK`] rows at a time.

use anyhow::Result;
use arrow::array::RecordBatch;
use gpumon_core::rows::{CounterRow, EventRow, FastRow, ProcessRow, RingRow, SlowRow};
use gpumon_monitor::store::{Reader, Row};

pub mod asof;
pub mod file;
pub mod gmonitor;
mod join;
pub mod rows;
pub mod sink;
pub mod wide;

use rows::{Rows, Select};

/// Rows that are turned into columns at once.
const CHUNK: usize = 8192;

/// Passes the table `R` to `put`, a batch at a time; the first has no rows and shows the columns.
pub fn table<R: Row + rows::OfGpu>(
    reader: &Reader,
    select: Select,
    mut put: impl FnMut(&RecordBatch) -> Result<()>,
) -> Result<()> {
    put(&R::to_batch(&[]))?;
    let mut chunk: Vec<R> = Vec::new();
    for row in Rows::<R>::of(reader) {
        let row = row?;
        if select.takes(row.of_gpu(), row.mono_us()) {
            chunk.push(row);
        }
        if chunk.len() == CHUNK {
            put(&R::to_batch(&chunk))?;
            chunk.clear();
        }
    }
    put(&R::to_batch(&chunk))
}

/// As [`table`], for the table with this name.
pub fn table_named(
    name: crate::cli::TableName,
    reader: &Reader,
    select: Select,
    put: impl FnMut(&RecordBatch) -> Result<()>,
) -> Result<()> {
    use crate::cli::TableName;
    match name {
        TableName::Fast => table::<FastRow>(reader, select, put),
        TableName::Ring => table::<RingRow>(reader, select, put),
        TableName::Slow => table::<SlowRow>(reader, select, put),
        TableName::Counter => table::<CounterRow>(reader, select, put),
        TableName::Events => table::<EventRow>(reader, select, put),
        TableName::Process => table::<ProcessRow>(reader, select, put),
    }
}
