//! Batches as text or Parquet.
//!
//! Rule: null is an empty field in CSV and `null` in JSON lines; times are ISO 8601 in UTC with
//! microseconds. CSV has one header line, also for a table without rows.

use std::sync::Arc;

use anyhow::Result;
use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::csv;
use arrow::datatypes::{DataType, Field, Schema, TimestampMicrosecondType};
use arrow::json;
use gpumon_core::header::Header;
use gpumon_monitor::store::ParquetStream;

use super::file::Output;

const TIME_FORMAT: &str = "%Y-%m-%dT%H:%M:%S%.6fZ";

/// A file of a table in the making.
pub enum Sink<'a> {
    /// Comma-separated values; whether the header line is still to come.
    Csv(Output, bool),
    /// A JSON object a line.
    Jsonl(Output),
    /// A Parquet file, once its columns are known.
    Parquet(Box<ParquetStream<Output>>),
    /// A Parquet file before its first batch.
    NewParquet(Option<Output>, &'a Header, &'static str),
}

impl<'a> Sink<'a> {
    /// A Parquet file of the table `name`, made from the recording that `header` describes.
    pub fn parquet(out: Output, header: &'a Header, name: &'static str) -> Self {
        Self::NewParquet(Some(out), header, name)
    }

    /// Appends rows. The first batch shows the columns, if it has no rows.
    pub fn put(&mut self, rows: &RecordBatch) -> Result<()> {
        match self {
            Self::Csv(out, first) => {
                let mut bytes = Vec::new();
                let builder = csv::WriterBuilder::new().with_header(*first);
                builder
                    .with_timestamp_format(TIME_FORMAT.into())
                    .build(&mut bytes)
                    .write(&zoneless(rows)?)?;
                *first = false;
                out.put(&bytes)
            }
            Self::Jsonl(out) => {
                let mut bytes = Vec::new();
                let builder = json::WriterBuilder::new().with_explicit_nulls(true);
                builder
                    .with_timestamp_format(TIME_FORMAT.into())
                    .build::<_, json::writer::LineDelimited>(&mut bytes)
                    .write(&zoneless(rows)?)?;
                out.put(&bytes)
            }
            Self::Parquet(stream) => Ok(stream.write(rows)?),
            Self::NewParquet(out, header, name) => {
                if let Some(out) = out.take() {
                    let path = out.named().to_owned();
                    let mut stream = ParquetStream::new(out, &path, header, name, rows.schema())?;
                    stream.write(rows)?;
                    *self = Self::Parquet(Box::new(stream));
                }
                Ok(())
            }
        }
    }

    /// Ends the file and puts it in its place.
    pub fn commit(self) -> Result<()> {
        match self {
            Self::Csv(out, _) | Self::Jsonl(out) => out.commit(),
            Self::Parquet(stream) => stream.finish()?.commit(),
            Self::NewParquet(..) => Ok(()),
        }
    }
}

/// The batch with its UTC times without a zone: the text format names it, and the writers know no zones.
fn zoneless(rows: &RecordBatch) -> Result<RecordBatch> {
    let (mut fields, mut arrays) = (Vec::new(), Vec::<ArrayRef>::new());
    for (field, array) in rows.schema().fields().iter().zip(rows.columns()) {
        match array.as_primitive_opt::<TimestampMicrosecondType>() {
            Some(times) => {
                let times = times.clone().with_timezone_opt(None::<Arc<str>>);
                fields.push(field.as_ref().clone().with_data_type(DataType::clone(times.data_type())));
                arrays.push(Arc::new(times));
            }
            None => {
                fields.push(Field::clone(field));
                arrays.push(array.clone());
            }
        }
    }
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays)?)
}
