//! The Parquet files of a recording: how they are encoded, joined and inspected.
//!
//! Rule: zstd level 3; times and other 64-bit integers as DELTA_BINARY_PACKED, all else through a
//! dictionary; Parquet 1 pages; one row group a segment. Its rows are ordered by GPU and then time,
//! events by time alone: a GPU's readings repeat themselves, and next to those of other GPUs they
//! would take twice the room. A part is joined from segments by copying their column chunks,
//! without decoding them. The key-value metadata says `gpumon.version`, `gpumon.schema`,
//! `gpumon.simulated`, `gpumon.table`, `gpumon.segments` (the numbers that the file covers,
//! `first-last`) and `gpumon.recording` (`recording.json` as it was at the start).

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::datatypes::{DataType, Schema};
use gpumon_core::caught::caught;
use gpumon_core::header::{Header, SCHEMA_VERSION};
use gpumon_core::rows::{CounterRow, EventRow, FastRow, ProcessRow, RingRow, SlowRow};
use gpumon_core::table::Table;
use parquet::arrow::ArrowSchemaConverter;
use parquet::arrow::arrow_writer::{ArrowWriter, ArrowWriterOptions};
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::column::writer::ColumnCloseResult;
use parquet::errors::ParquetError;
use parquet::file::metadata::{
    KeyValue, PageIndexPolicy, ParquetMetaData, ParquetMetaDataReader, RowGroupMetaData, SortingColumn,
};
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder};
use parquet::file::statistics::Statistics;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::ColumnPath;

use super::disk::Disk;
use super::error::StoreError;
use super::lane::{Lane, Row};

const ZSTD_LEVEL: i32 = 3;
pub(super) const TIME: &str = "mono_us";
const SEGMENTS_KEY: &str = "gpumon.segments";
const RECORDING_KEY: &str = "gpumon.recording";
const TABLE_KEY: &str = "gpumon.table";

/// What a file says about itself.
pub(super) struct Meta<'a> {
    pub(super) header: &'a Header,
    pub(super) lane: Lane,
    /// First and last number of the segments in it.
    pub(super) covers: Option<(u32, u32)>,
}

impl Meta<'_> {
    fn key_values(&self) -> Vec<KeyValue> {
        let covers = self.covers.map_or_else(|| "none".into(), |(first, last)| format!("{first}-{last}"));
        let mut pairs = key_values(self.header, self.lane.name());
        pairs.push(KeyValue::new(SEGMENTS_KEY.to_owned(), covers));
        pairs
    }

    fn properties(&self) -> Result<WriterProperties, ParquetError> {
        let schema = schema(self.lane);
        let order: &[&str] = if self.lane == Lane::Events { &[TIME] } else { &["gpu", TIME] };
        let properties = properties(&schema, order, self.header, self.key_values())?;
        Ok(properties.set_max_row_group_row_count(None).build())
    }
}

/// What every file of a recording, and every file made from it, says about its origin.
pub(super) fn key_values(header: &Header, table: &str) -> Vec<KeyValue> {
    [
        ("gpumon.version", header.gpumon.clone()),
        ("gpumon.schema", SCHEMA_VERSION.to_string()),
        ("gpumon.simulated", header.simulated.to_string()),
        (TABLE_KEY, table.to_owned()),
        (RECORDING_KEY, header.to_json()),
    ]
    .map(|(key, value)| KeyValue::new(key.to_owned(), value))
    .to_vec()
}

/// Compression and encodings of a table with this schema, whose row groups are ordered by the columns `order`.
pub(super) fn properties(
    schema: &Schema,
    order: &[&str],
    header: &Header,
    key_values: Vec<KeyValue>,
) -> Result<WriterPropertiesBuilder, ParquetError> {
    let mut builder = WriterProperties::builder()
        .set_created_by(format!("gpumon {}", header.gpumon))
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(ZSTD_LEVEL)?))
        .set_key_value_metadata(Some(key_values));
    for field in schema.fields() {
        if matches!(field.data_type(), DataType::Int64 | DataType::Timestamp(..)) {
            let column = ColumnPath::from(field.name().as_str());
            builder = builder
                .set_column_dictionary_enabled(column.clone(), false)
                .set_column_encoding(column, Encoding::DELTA_BINARY_PACKED);
        }
    }
    let index = |name: &&str| i32::try_from(schema.index_of(name).ok()?).ok();
    let sorting = order.iter().filter_map(index);
    let sorting =
        sorting.map(|column_idx| SortingColumn { column_idx, descending: false, nulls_first: false });
    Ok(builder.set_sorting_columns(Some(sorting.collect())))
}

fn schema(lane: Lane) -> Arc<Schema> {
    match lane {
        Lane::Fast => FastRow::schema(),
        Lane::Ring => RingRow::schema(),
        Lane::Slow => SlowRow::schema(),
        Lane::Counter => CounterRow::schema(),
        Lane::Events => EventRow::schema(),
        Lane::Process => ProcessRow::schema(),
    }
}

/// Rows as a Parquet file of one row group.
pub(super) fn encode<R: Row>(rows: &[R], meta: &Meta) -> Result<Vec<u8>, StoreError> {
    let encode = || {
        // The Arrow schema that could ride along says nothing that the Parquet one does not.
        let options =
            ArrowWriterOptions::new().with_properties(meta.properties()?).with_skip_arrow_metadata(true);
        let mut writer = ArrowWriter::try_new_with_options(Vec::new(), R::schema(), options)?;
        if !rows.is_empty() {
            writer.write(&R::to_batch(rows))?;
        }
        writer.into_inner()
    };
    encode().map_err(|e| StoreError::parquet(Path::new(meta.lane.name()), "encode", e))
}

/// Joins segments into one file at `path`, one row group each, and syncs it. Holds one page of data
/// and all footers in memory.
pub(super) fn join(disk: &Disk, path: &Path, meta: &Meta, segments: &[PathBuf]) -> Result<(), StoreError> {
    write_groups(disk, path, meta, segments.iter().map(|segment| (segment.as_path(), None)))
}

/// Writes those row groups of the file at `from` that `wanted` names into a new file at `path`, and syncs it.
pub(super) fn pick(
    disk: &Disk,
    path: &Path,
    meta: &Meta,
    from: &Path,
    wanted: &[usize],
) -> Result<(), StoreError> {
    write_groups(disk, path, meta, std::iter::once((from, Some(wanted))))
}

/// Copies row groups of files, all or those named, into a new file at `path`, and syncs it.
fn write_groups<'a>(
    disk: &Disk,
    path: &Path,
    meta: &Meta,
    sources: impl Iterator<Item = (&'a Path, Option<&'a [usize]>)>,
) -> Result<(), StoreError> {
    let failed = |e| StoreError::parquet(path, "write", e);
    let schema = ArrowSchemaConverter::new().convert(&schema(meta.lane)).map_err(failed)?;
    let properties = Arc::new(meta.properties().map_err(failed)?);
    let out = disk.create(path)?;
    let mut writer = SerializedFileWriter::new(out, schema.root_schema_ptr(), properties).map_err(failed)?;
    for (source, wanted) in sources {
        let file = open(source)?;
        let footer = ParquetMetaDataReader::new()
            .with_page_index_policy(PageIndexPolicy::Optional)
            .parse_and_finish(&file)
            .map_err(|e| StoreError::parquet(source, "read the footer", e))?;
        let all: Vec<usize> = (0..footer.num_row_groups()).collect();
        for &index in wanted.unwrap_or(&all) {
            append_group(&mut writer, &file, &footer, index).map_err(|e| match failed(e) {
                // Not what is written is damaged but what is read.
                StoreError::Damaged { what, .. } => StoreError::damaged(source, what),
                other => other,
            })?;
        }
    }
    writer.finish().map_err(failed)?;
    writer.inner().sync()
}

fn append_group(
    writer: &mut SerializedFileWriter<super::disk::OutFile>,
    file: &File,
    footer: &ParquetMetaData,
    index: usize,
) -> Result<(), ParquetError> {
    let group = footer.row_group(index);
    let pages = footer.page_index();
    let mut out = writer.next_row_group()?;
    for (column_index, column) in group.columns().iter().enumerate() {
        let chunk = ColumnCloseResult {
            bytes_written: column.compressed_size().unsigned_abs(),
            rows_written: group.num_rows().unsigned_abs(),
            metadata: column.clone(),
            bloom_filter: None,
            column_index: pages.and_then(|p| p.column_index(index, column_index)).cloned(),
            offset_index: pages.and_then(|p| p.offset_index(index, column_index)).cloned(),
        };
        out.append_column(file, chunk)?;
    }
    out.close()?;
    Ok(())
}

/// Opens a file to read it.
pub(super) fn open(path: &Path) -> Result<File, StoreError> {
    File::open(path).map_err(|e| StoreError::io(path, "open", e))
}

/// The end of a Parquet file, which says what is in it.
#[derive(Clone, Debug)]
pub(super) struct Footer(pub(super) Arc<ParquetMetaData>);

impl Footer {
    /// Reads the footer; [`StoreError::Damaged`] if there is none that makes sense.
    pub(super) fn read(path: &Path, file: &File) -> Result<Self, StoreError> {
        let footer = caught(|| ParquetMetaDataReader::new().parse_and_finish(file))
            .ok_or_else(|| StoreError::damaged(path, "cannot read the footer: it makes no sense"))?;
        Ok(Self(Arc::new(footer.map_err(|e| StoreError::parquet(path, "read the footer", e))?)))
    }

    /// Opens the file at `path` for its footer alone.
    pub(super) fn of(path: &Path) -> Result<Self, StoreError> {
        Self::read(path, &open(path)?)
    }

    pub(super) fn rows(&self) -> u64 {
        self.0.file_metadata().num_rows().unsigned_abs()
    }

    /// Row groups in the file.
    pub(super) fn groups(&self) -> usize {
        self.0.num_row_groups()
    }

    /// Rows of a row group.
    pub(super) fn rows_of(&self, group: usize) -> u64 {
        self.0.row_group(group).num_rows().unsigned_abs()
    }

    /// The last number of the segments in it.
    pub(super) fn covers_to(&self) -> Option<u32> {
        Some(self.covers()?.1)
    }

    /// First and last number of the segments in it.
    pub(super) fn covers(&self) -> Option<(u32, u32)> {
        let (first, last) = self.value(SEGMENTS_KEY)?.split_once('-')?;
        Some((first.parse().ok()?, last.parse().ok()?))
    }

    /// `recording.json` as it was at the start.
    pub(super) fn recording(&self) -> Option<&str> {
        self.value(RECORDING_KEY)
    }

    fn value(&self, key: &str) -> Option<&str> {
        let all = self.0.file_metadata().key_value_metadata()?;
        all.iter().find(|kv| kv.key == key)?.value.as_deref()
    }

    /// Whether the file holds this table of this recording.
    pub(super) fn check(&self, path: &Path, table: &'static str, header: &Header) -> Result<(), StoreError> {
        if let Some(other) = self.value(TABLE_KEY).filter(|other| *other != table) {
            return Err(StoreError::damaged(path, format!("it holds the table `{other}`, not `{table}`")));
        }
        let of = |h: &Header| (h.start_wall_us, h.gpus.iter().map(|g| g.uuid.clone()).collect::<Vec<_>>());
        let own: Option<Header> = self.recording().and_then(|text| serde_json::from_str(text).ok());
        if own.is_some_and(|own| of(&own) != of(header)) {
            return Err(StoreError::damaged(path, "it belongs to another recording".to_owned()));
        }
        Ok(())
    }

    /// First and last time in the whole file, µs; nothing if it is empty.
    pub(super) fn last_us(&self) -> Option<i64> {
        self.0.row_groups().iter().filter_map(|group| Some(time_range(group)?.1)).max()
    }
}

/// First and last time in a row group, µs, if its statistics say so.
pub(super) fn time_range(group: &RowGroupMetaData) -> Option<(i64, i64)> {
    let column = group.columns().iter().find(|c| c.column_path().string() == TIME)?;
    match column.statistics()? {
        Statistics::Int64(s) => Some((*s.min_opt()?, *s.max_opt()?)),
        _ => None,
    }
}
