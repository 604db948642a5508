//! Reading a recording, whatever state it is in.
//!
//! Rule: rows of a lane come out in time order; rows of one time by GPU, then in the order in which
//! they were recorded. At most one row group, and the rows that overlap with the next one, are in
//! memory. Parts come first, then segments, then journals, under the rules in
//! [`layout`](super::layout).
//!
//! Cases: a recording that is being written is read as it was at one moment, up to its last flush.
//! What cannot be read is an `Err` between the rows, which go on after it; a torn journal tail is
//! not damage.
//!
//! Not done here: following a recording as it grows; each call of [`Reader::batches`] looks anew.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arrow::error::ArrowError;
use gpumon_core::caught::caught;
use gpumon_core::header::{Header, State};
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder,
};

use super::compact::read_header;
use super::error::StoreError;
use super::journal;
use super::lane::{Row, sort_by_time};
use super::layout::Layout;
use super::lock;
use super::recover::scan_recording;
use super::table::{self, Footer};

/// How often a listing is tried again when its files have moved on meanwhile.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(10);

/// A recording to read.
#[derive(Debug)]
pub struct Reader {
    dir: PathBuf,
    header: Header,
    live: bool,
}

impl Reader {
    /// Opens the recording in the folder `dir`: complete, killed, or being written.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotARecording`], [`StoreError::NewerSchema`], [`StoreError::Damaged`]
    /// (`recording.json` is lost or broken: `gpumon recover` restores it), [`StoreError::Io`].
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        let layout = scan_recording(dir)?;
        if !layout.has_header {
            let what = "it is not there; expected the recording's header";
            return Err(StoreError::damaged(&dir.join(super::layout::HEADER), what));
        }
        let live = lock::is_held(dir)?;
        Ok(Self { dir: dir.to_owned(), header: read_header(dir)?, live })
    }

    /// What `recording.json` says.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// True if it was being written when it was opened.
    pub fn is_live(&self) -> bool {
        self.live
    }

    /// The rows of one table, a batch at a time.
    pub fn batches<R: Row>(&self) -> Batches<R> {
        let sources = self.snapshot::<R>().unwrap_or_else(|e| VecDeque::from([Source::failed(e)]));
        Batches::new(sources)
    }

    fn snapshot<R: Row>(&self) -> Result<VecDeque<Source<R>>, StoreError> {
        for _ in 0..TRIES {
            match self.try_snapshot() {
                Err(e) if e.is_vanished() && self.dir.is_dir() => std::thread::sleep(PAUSE),
                other => return other,
            }
        }
        self.try_snapshot()
    }

    /// Opens all that counts. Fails with a vanished file if it moved on before it was opened.
    fn try_snapshot<R: Row>(&self) -> Result<VecDeque<Source<R>>, StoreError> {
        let live = lock::is_held(&self.dir)?;
        let layout = Layout::scan(&self.dir)?;
        let mut journals = Vec::new();
        for (&number, path) in &layout.journals {
            journals.push((number, path, table::open(path)?));
        }
        let newest = layout.journals.last_key_value().map(|(&number, _)| number);

        let mut sources = VecDeque::new();
        let mut covered = None;
        for path in layout.parts[R::LANE].values() {
            let footer = Footer::of(path)
                .and_then(|footer| footer.check(path, R::NAME, &self.header).map(|()| footer));
            match footer {
                Ok(footer) => {
                    covered = covered.max(footer.covers_to());
                    push_groups(&mut sources, path, None, &footer);
                }
                Err(e) => sources.push_back(Source::failed(vanished_or(e)?)),
            }
        }
        let counts = |number: u32| covered.is_none_or(|last| number > last);
        for (number, path) in &layout.segments[R::LANE] {
            // Newer than the newest journal: being written since the listing of the journals.
            let too_new = live && newest.is_some_and(|newest| *number > newest);
            if !counts(*number) || too_new || layout.journals.contains_key(number) {
                continue;
            }
            let file = table::open(path)?;
            match Footer::read(path, &file) {
                Ok(footer) => push_groups(&mut sources, path, Some(&Arc::new(file)), &footer),
                Err(e) => sources.push_back(Source::failed(vanished_or(e)?)),
            }
        }
        let due = R::LANE.is_due(&self.header);
        let missing = due && layout.parts[R::LANE].is_empty() && !live && !layout.has_folders;
        if missing && self.header.state != State::Recording {
            let path = self.dir.join(format!("{}.parquet", R::NAME));
            sources.push_back(Source::failed(StoreError::damaged(&path, "it is missing")));
        }
        for (_, path, file) in journals.into_iter().filter(|(number, ..)| counts(*number)) {
            push_journal(&mut sources, path, file)?;
        }
        Ok(sources)
    }
}

/// A vanished file makes the whole listing void; any other failure concerns this file alone.
fn vanished_or(error: StoreError) -> Result<StoreError, StoreError> {
    if error.is_vanished() { Err(error) } else { Ok(error) }
}

/// Where a batch comes from, and the earliest time in it, µs.
#[derive(Debug)]
struct Source<R> {
    from_us: i64,
    kind: Kind<R>,
}

#[derive(Debug)]
enum Kind<R> {
    /// One row group. Parts stay where they are, so they are opened when it is their turn, and a
    /// long recording does not need as many descriptors as it has hours.
    Group {
        path: PathBuf,
        file: Option<Arc<File>>,
        footer: Footer,
        index: usize,
    },
    Rows(Vec<R>),
    Failed(StoreError),
}

impl<R> Source<R> {
    fn failed(error: StoreError) -> Self {
        Self { from_us: i64::MAX, kind: Kind::Failed(error) }
    }
}

fn push_groups<R>(sources: &mut VecDeque<Source<R>>, path: &Path, file: Option<&Arc<File>>, footer: &Footer) {
    for (index, group) in footer.0.row_groups().iter().enumerate() {
        // Without statistics it could begin anywhere.
        let from_us = table::time_range(group).map_or(i64::MIN, |(first, _)| first);
        let (path, file, footer) = (path.to_owned(), file.cloned(), footer.clone());
        sources.push_back(Source { from_us, kind: Kind::Group { path, file, footer, index } });
    }
}

fn push_journal<R: Row>(
    sources: &mut VecDeque<Source<R>>,
    path: &Path,
    mut file: File,
) -> Result<(), StoreError> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(|e| StoreError::io(path, "read", e))?;
    let mut rows = Vec::new();
    let bad = journal::parse(&bytes, |frame| rows.extend(R::of_frame(frame).into_iter().flatten()));
    if let Some(from_us) = rows.iter().map(R::mono_us).min() {
        sources.push_back(Source { from_us, kind: Kind::Rows(rows) });
    }
    for bad in bad.into_iter().filter(|bad| !bad.tail) {
        let what = format!("{} bytes at offset {} are no frame of a journal", bad.bytes, bad.offset);
        sources.push_back(Source::failed(StoreError::damaged(path, what)));
    }
    Ok(())
}

/// The rows of one table in time order, a batch at a time. An `Err` stands for what cannot be read;
/// the rest follows.
#[derive(Debug)]
pub struct Batches<R> {
    sources: VecDeque<Source<R>>,
    /// For each source the earliest time in it and all after it, µs.
    bounds: VecDeque<i64>,
    /// Rows that are not earlier than some row to come.
    held: Vec<R>,
}

impl<R: Row> Batches<R> {
    fn new(sources: VecDeque<Source<R>>) -> Self {
        let mut bounds = VecDeque::with_capacity(sources.len());
        let mut earliest = i64::MAX;
        for source in sources.iter().rev() {
            earliest = earliest.min(source.from_us);
            bounds.push_front(earliest);
        }
        Self { sources, bounds, held: Vec::new() }
    }

    /// The held rows that come before everything to come.
    fn release(&mut self) -> Vec<R> {
        let Some(&bound) = self.bounds.front() else {
            return std::mem::take(&mut self.held);
        };
        let ready = self.held.partition_point(|row| row.mono_us() < bound);
        let held = self.held.split_off(ready);
        std::mem::replace(&mut self.held, held)
    }
}

impl<R: Row> Iterator for Batches<R> {
    type Item = Result<Vec<R>, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        while let Some(source) = self.sources.pop_front() {
            self.bounds.pop_front();
            let mut rows = match source.read() {
                Ok(rows) => rows,
                Err(e) => return Some(Err(e)),
            };
            if self.held.is_empty() {
                self.held = rows;
            } else {
                self.held.append(&mut rows);
            }
            sort_by_time(&mut self.held);
            let ready = self.release();
            if !ready.is_empty() {
                return Some(Ok(ready));
            }
        }
        let rest = self.release();
        (!rest.is_empty()).then_some(Ok(rest))
    }
}

impl<R: Row> Source<R> {
    fn read(self) -> Result<Vec<R>, StoreError> {
        let (path, file, footer, index) = match self.kind {
            Kind::Rows(rows) => return Ok(rows),
            Kind::Failed(e) => return Err(e),
            Kind::Group { path, file, footer, index } => (path, file, footer, index),
        };
        let file = match file.as_deref() {
            Some(file) => file.try_clone().map_err(|e| StoreError::io(&path, "open", e))?,
            None => table::open(&path)?,
        };
        group(&path, file, footer, index)
    }
}

/// The rows of a row group. The Parquet library panics on some damage, which is damage like any other here.
pub(super) fn group<R: Row>(
    path: &Path,
    file: File,
    footer: Footer,
    index: usize,
) -> Result<Vec<R>, StoreError> {
    let senseless = || Err(StoreError::damaged(path, "cannot read rows: they make no sense"));
    caught(|| read_group(path, file, footer, index)).unwrap_or_else(senseless)
}

/// Rows that are decoded at once: more than a row group of the store's own has.
const ROWS_AT_ONCE: usize = 1 << 17;

fn read_group<R: Row>(path: &Path, file: File, footer: Footer, index: usize) -> Result<Vec<R>, StoreError> {
    let failed = |e| StoreError::parquet(path, "read rows", e);
    let length = usize::try_from(footer.0.row_group(index).num_rows()).unwrap_or_default();
    let length = length.min(ROWS_AT_ONCE);
    let metadata = ArrowReaderMetadata::try_new(footer.0, ArrowReaderOptions::new()).map_err(failed)?;
    let batches = ParquetRecordBatchReaderBuilder::new_with_metadata(file, metadata)
        .with_row_groups(vec![index])
        .with_batch_size(length)
        .build()
        .map_err(failed)?;
    let mut rows = Vec::new();
    for batch in batches {
        let batch = batch.map_err(|e| match e {
            ArrowError::IoError(_, e) => StoreError::io(path, "read", e),
            other => StoreError::damaged(path, format!("cannot read rows: {other}")),
        })?;
        let more = R::from_batch(&batch).map_err(|e| StoreError::damaged(path, e.to_string()))?;
        if rows.is_empty() {
            rows = more;
        } else {
            rows.extend(more);
        }
    }
    Ok(rows)
}
