//! A Parquet file made from a recording, written batch by batch outside its folder.
//!
//! Rule: rows come in time order; the file is encoded as the store encodes its own tables, and has the same
//! metadata about its origin, apart from `gpumon.segments`: it is no part of a recording. What is held in
//! memory is one row group, compressed.
//!
//! Not done here: opening, naming or syncing the file.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use gpumon_core::header::Header;
use parquet::arrow::arrow_writer::{ArrowWriter, ArrowWriterOptions};

use super::error::StoreError;
use super::table;

/// Rows of one row group: about a minute of eight GPUs at 250 Hz.
const GROUP_ROWS: usize = 128 * 1024;

/// A Parquet file that is being written.
#[derive(Debug)]
pub struct ParquetStream<W: Write + Send> {
    writer: ArrowWriter<W>,
    /// Names the file in errors.
    path: PathBuf,
}

impl<W: Write + Send> ParquetStream<W> {
    /// Starts a file of the table `name`, made from the recording that `header` describes. `path` names
    /// `out` in errors.
    ///
    /// # Errors
    ///
    /// [`StoreError::Io`] and [`StoreError::Full`] if `out` takes nothing.
    pub fn new(
        out: W,
        path: &Path,
        header: &Header,
        name: &str,
        schema: Arc<Schema>,
    ) -> Result<Self, StoreError> {
        let start = || {
            let properties =
                table::properties(&schema, &[table::TIME], header, table::key_values(header, name))?
                    .set_max_row_group_row_count(Some(GROUP_ROWS))
                    .build();
            let options =
                ArrowWriterOptions::new().with_properties(properties).with_skip_arrow_metadata(true);
            ArrowWriter::try_new_with_options(out, schema.clone(), options)
        };
        let writer = start().map_err(|e| StoreError::parquet(path, "write", e))?;
        Ok(Self { writer, path: path.to_owned() })
    }

    /// Appends rows, whose schema is the one that the file was started with.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn write(&mut self, rows: &RecordBatch) -> Result<(), StoreError> {
        self.writer.write(rows).map_err(|e| StoreError::parquet(&self.path, "write", e))
    }

    /// Writes the footer and hands the file back.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn finish(self) -> Result<W, StoreError> {
        let Self { writer, path } = self;
        writer.into_inner().map_err(|e| StoreError::parquet(&path, "write", e))
    }
}
