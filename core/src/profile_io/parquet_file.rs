//! A profile as one Parquet file: the `profile` table, compressed, with its origin in the file's metadata.
//!
//! Rule: a table with a column `valid` is ours and read as it is. Any other, such as a data frame that somebody saved,
//! is read as the CSV that it would make; so the same layouts are understood and the same values refused.
//! Cases: the Parquet library panics on some damaged files; that is an error as any other damage is.

use std::path::Path;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;

use super::clean::{check, clean};
use super::text::{OURS, parse_csv, quoted, some};
use super::{Profile, ProfileError, SETS, is_of_sets};
use crate::caught::caught;
use crate::profile::ProfileRow;
use crate::table::Table;

/// How a Parquet file begins.
pub(super) const MAGIC: &[u8] = b"PAR1";
const ZSTD_LEVEL: i32 = 3;

pub(super) fn read(bytes: Vec<u8>, path: &Path) -> Result<Profile, ProfileError> {
    caught(|| decode(bytes, path)).unwrap_or_else(|| Err(broken(path, &"its parts contradict each other")))
}

fn broken(path: &Path, why: &dyn std::fmt::Display) -> ProfileError {
    ProfileError::file(path, format!("not readable as Parquet ({why}); was it cut off while it was copied?"))
}

/// The batches of a Parquet file, and their schema. The library panics on some damaged files; the caller catches that.
fn batches(bytes: Vec<u8>, path: &Path) -> Result<(Vec<RecordBatch>, Arc<Schema>), ProfileError> {
    let builder = ParquetRecordBatchReaderBuilder::try_new(bytes::Bytes::from(bytes));
    let builder = builder.map_err(|e| broken(path, &e))?;
    let schema = Arc::clone(builder.schema());
    let reader = builder.build().map_err(|e| broken(path, &e))?;
    let batches = reader.collect::<Result<Vec<_>, _>>().map_err(|e| broken(path, &e))?;
    Ok((batches, schema))
}

/// The rows of any table that gpumon wrote.
pub(crate) fn table_rows<T: Table>(bytes: Vec<u8>, path: &Path) -> Result<Vec<T>, ProfileError> {
    let rows = || {
        let mut rows = Vec::new();
        for batch in batches(bytes, path)?.0 {
            rows.extend(T::from_batch(&batch).map_err(|e| ProfileError::file(path, e.to_string()))?);
        }
        Ok(rows)
    };
    caught(rows).unwrap_or_else(|| Err(broken(path, &"its parts contradict each other")))
}

fn decode(bytes: Vec<u8>, path: &Path) -> Result<Profile, ProfileError> {
    let (batches, schema) = batches(bytes, path)?;
    match schema.column_with_name(OURS) {
        Some(_) => ours(&batches, &schema, path),
        None => parse_csv(&as_csv(&batches, path)?, path),
    }
}

fn ours(batches: &[RecordBatch], schema: &Schema, path: &Path) -> Result<Profile, ProfileError> {
    let name = path.display().to_string();
    let known: Vec<_> = ProfileRow::columns().into_iter().map(|c| c.name).collect();
    let fields = schema.fields().iter().map(|f| f.name().as_str());
    let unknown: Vec<_> = fields.clone().filter(|f| !known.contains(f)).map(quoted).collect();
    if is_of_sets(fields) {
        return Err(ProfileError::file(path, SETS));
    }
    let mut notices = Vec::new();
    if !unknown.is_empty() {
        notices
            .push(format!("{name}: columns that a profile does not have are left out: {}", some(&unknown)));
    }
    let mut rows = Vec::new();
    for batch in batches {
        rows.extend(
            ProfileRow::from_batch(batch).map_err(|e| {
                ProfileError::file(path, format!("not a profile: {e}; see docs/profiling.md"))
            })?,
        );
    }
    if rows.is_empty() {
        return Err(ProfileError::file(path, "a profile without rows; nothing can be learned from it"));
    }
    for (i, row) in rows.iter().enumerate() {
        check(row).map_err(|wrong| ProfileError::Value {
            path: path.into(),
            place: format!("row {}", i + 1),
            column: wrong.column.into(),
            found: wrong.found,
            expected: wrong.expected,
        })?;
    }
    let rows = clean(rows, &name, &mut notices);
    Ok(Profile { rows, notices })
}

/// A table as CSV; its row N is line N + 1.
fn as_csv(batches: &[RecordBatch], path: &Path) -> Result<String, ProfileError> {
    let mut text = Vec::new();
    let mut writer = arrow::csv::Writer::new(&mut text);
    for batch in batches {
        let odd =
            |e| ProfileError::file(path, format!("has columns that are neither numbers nor text ({e})"));
        writer.write(batch).map_err(odd)?;
    }
    drop(writer);
    String::from_utf8(text)
        .map_err(|e| ProfileError::file(path, format!("holds text that is not UTF-8 ({e})")))
}

pub(super) fn bytes(rows: &[ProfileRow], path: &Path) -> Result<Vec<u8>, ProfileError> {
    table_bytes(rows, rows.iter().any(|r| r.simulated == Some(true)), path)
}

/// Rows of any table. `simulated`: whether one of them is of a simulated GPU.
pub(crate) fn table_bytes<T: Table>(
    rows: &[T],
    simulated: bool,
    path: &Path,
) -> Result<Vec<u8>, ProfileError> {
    encode(rows, simulated).map_err(|e| ProfileError::file(path, format!("cannot be made into Parquet: {e}")))
}

fn encode<T: Table>(rows: &[T], simulated: bool) -> Result<Vec<u8>, ParquetError> {
    let says = |key: &str, value: String| KeyValue::new(key.to_owned(), value);
    let properties = WriterProperties::builder()
        .set_created_by(format!("gpumon {}", env!("CARGO_PKG_VERSION")))
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(ZSTD_LEVEL)?))
        .set_key_value_metadata(Some(vec![
            says("gpumon.version", env!("CARGO_PKG_VERSION").into()),
            says("gpumon.simulated", simulated.to_string()),
            says("gpumon.table", T::NAME.into()),
        ]))
        .build();
    let mut writer = ArrowWriter::try_new(Vec::new(), T::schema(), Some(properties))?;
    writer.write(&T::to_batch(rows))?;
    writer.into_inner()
}
