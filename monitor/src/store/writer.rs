//! The recorder's side: rows in, journal and segments out, tables at the end.
//!
//! Rule: a row is in memory until [`Store::flush`], then in the journal; at each new minute of the
//! rows' own time the journal becomes segments, at each new hour the segments become parts. No
//! clock is asked, so a simulated day is stored like a real one.
//!
//! Cases: a lane with more rows than [`Limits::rows`] is compacted early. The first failed write
//! ends the recording: later rows are refused, and [`Store::close`] makes what is there whole, or
//! leaves it as a killed recorder would. When the disk is full, the `reserve` is given up first,
//! which leaves room for the rows in memory and `recording.json`.
//!
//! Not done here: deciding when to flush; holding rows back while a segment or a part is written.
//! The part of an hour of eight GPUs at 1 kHz is some 56 MB to copy and sync, in one call of
//! [`Store::append`]: the channel before the store must hold the rows that come meanwhile.

use std::path::{Path, PathBuf};

use gpumon_core::header::{Header, SCHEMA_VERSION, State};
use gpumon_core::rows::Record;

use super::compact::Place;
use super::disk::{Disk, OutFile, parent};
use super::error::StoreError;
use super::journal;
use super::lane::{Lane, Lanes, PerLane, place_of};
use super::layout::{self, HEADER, JOURNAL, LOCK, Layout, RESERVE, SEGMENTS};
use super::lock::Lock;

const RESERVE_BYTES: usize = 1 << 20;

/// When rows move on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Length of a segment, µs of the rows' time.
    pub(super) segment_us: i64,
    /// Length of a part, µs of the rows' time.
    pub(super) part_us: i64,
    /// Rows of one lane in memory.
    pub(super) rows: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { segment_us: 60_000_000, part_us: 3_600_000_000, rows: 262_144 }
    }
}

/// A recording that is being written. Dropped without [`Store::close`] it stays as a killed
/// recorder leaves it.
pub struct Store {
    place: Place,
    limits: Limits,
    lanes: Lanes,
    /// Number of the journal that is being written, and its length up to which it is synced.
    number: u32,
    journal: OutFile,
    journal_len: u64,
    /// False once the journal's end is unknown: nothing more is written to it.
    journal_usable: bool,
    buffer: Vec<u8>,
    /// Times of the next segment and the next part, µs, once a row has come.
    next_segment_us: Option<i64>,
    next_part_us: i64,
    rows: PerLane<u64>,
    failure: Option<StoreError>,
    _lock: Lock,
}

/// How a recording was closed.
#[derive(Debug)]
pub struct Closed {
    /// What `recording.json` says: complete, or that storage failed.
    pub state: State,
    /// True if all tables are in their final files; false if rows stay in `journal/` and
    /// `segments/`, which [`Reader`](super::Reader) reads as well and [`recover`](super::recover)
    /// finishes.
    pub whole: bool,
    /// Rows that were appended.
    pub rows: PerLane<u64>,
    /// The first failure, if there was one.
    pub failure: Option<StoreError>,
}

impl Store {
    /// Starts a recording in the folder `path`, which is made, with its parents, if it is not
    /// there. The header's schema and state are set here.
    ///
    /// With `overwrite` a recording that is there is removed first: its own files, nothing else.
    ///
    /// # Errors
    ///
    /// [`StoreError::Exists`] and [`StoreError::NotARecording`]: nothing was touched.
    /// [`StoreError::Busy`]: somebody writes there. [`StoreError::Full`], [`StoreError::Io`]: the
    /// folder cannot be written.
    pub fn create(path: &Path, header: Header, overwrite: bool) -> Result<Self, StoreError> {
        Self::create_on(Disk::default(), path, header, overwrite)
    }

    pub(super) fn create_on(
        disk: Disk,
        path: &Path,
        header: Header,
        overwrite: bool,
    ) -> Result<Self, StoreError> {
        let header = Header { schema: SCHEMA_VERSION, state: State::Recording, ..header };
        let old = what_is_at(path)?;
        if old.is_some() && !overwrite {
            return Err(StoreError::Exists { path: path.to_owned() });
        }
        disk.make_dir(path)?;
        disk.sync_dir(parent(path))?;
        let lock = Lock::take(path)?;
        let place = Place { disk, dir: path.to_owned(), header };
        // Listed again: another recorder may have been here before the lock was taken.
        let now = Layout::scan(path)?;
        if now.has_header && !overwrite {
            return Err(StoreError::Exists { path: path.to_owned() });
        }
        match remove_recording(&place, &now).and_then(|()| place.start()) {
            Ok(journal) => Ok(Self::new(place, journal, lock)),
            Err(e) => {
                // The first failure is the one to report.
                let _ = Layout::scan(path).and_then(|layout| remove_recording(&place, &layout));
                let _ = place.clean_up();
                Err(e)
            }
        }
    }

    fn new(place: Place, (journal, journal_len): (OutFile, u64), lock: Lock) -> Self {
        Self {
            place,
            limits: Limits::default(),
            lanes: Lanes::default(),
            number: 0,
            journal,
            journal_len,
            journal_usable: true,
            buffer: Vec::new(),
            next_segment_us: None,
            next_part_us: 0,
            rows: PerLane::default(),
            failure: None,
            _lock: lock,
        }
    }

    /// From here on nothing is synced: the recording survives the end of the process, not a power
    /// cut. For simulated time, where minutes pass in milliseconds.
    pub fn without_sync(mut self) -> Self {
        self.place.disk.skip_sync = true;
        self
    }

    #[cfg(test)]
    pub(super) fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// The recording's folder.
    pub fn path(&self) -> &Path {
        &self.place.dir
    }

    /// Takes one row. Cheap, except once a minute of the rows' time, when a segment is written, and
    /// once an hour, when a part is.
    ///
    /// # Errors
    ///
    /// [`StoreError::Full`] or [`StoreError::Io`], from the first failure on every time: the
    /// recording is over, the row may be lost, and [`Store::close`] is next.
    pub fn append(&mut self, record: Record) -> Result<(), StoreError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let (lane, now_us) = place_of(&record);
        let moved_on = if self.next_segment_us.is_none_or(|next| now_us >= next) {
            self.begin_segment(now_us)
        } else {
            Ok(())
        };
        // Kept even if the rows before it did not reach their segment: the journal may take them yet.
        let held = self.lanes.push(record);
        self.rows[lane] += 1;
        if held >= self.limits.rows && moved_on.is_ok() {
            let compacted = self.compact();
            return self.noting(compacted);
        }
        self.noting(moved_on)
    }

    /// Puts all rows into the journal and syncs it. Called several times a second by the owner.
    ///
    /// # Errors
    ///
    /// As [`Store::append`].
    pub fn flush(&mut self) -> Result<(), StoreError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let written = self.write_journal();
        self.noting(written)
    }

    /// Ends the recording: every table in its final file, then `recording.json`, which `update` may
    /// complete (duration, own cost, another state than complete).
    ///
    /// A failure, now or before, is in [`Closed::failure`], and the state is then `storage_failed`.
    ///
    /// # Errors
    ///
    /// `recording.json` could not be written, or what the closed recording has no use for could not
    /// be removed. The recording is then as a killed recorder leaves it.
    pub fn close(mut self, update: impl FnOnce(&mut Header)) -> Result<Closed, StoreError> {
        let mut header = Header { state: State::Complete, ..self.place.header.clone() };
        update(&mut header);
        let flushed = self.write_journal();
        let _ = self.noting(flushed);
        if self.failure.is_some() {
            // Before the tables take what room there is.
            header.state = State::StorageFailed;
            self.place.write_last_header(&header)?;
        }
        let mut finished = self.finish();
        if self.failure.is_none() && matches!(finished, Err(StoreError::Full { .. })) {
            // The reserve may do: then nothing has failed.
            self.place.release_room()?;
            finished = self.finish();
        }
        let whole = self.noting(finished).is_ok();
        if self.failure.is_some() {
            header.state = State::StorageFailed;
        }
        self.place.write_last_header(&header)?;
        if whole {
            self.place.clean_up()?;
        } else {
            self.place.release_room()?;
            self.place.disk.remove(&self.place.dir.join(LOCK))?;
        }
        Ok(Closed { state: header.state, whole, rows: self.rows, failure: self.failure })
    }

    /// Brings all rows into their final files.
    fn finish(&mut self) -> Result<(), StoreError> {
        self.compact()?;
        self.place.finish_tables()
    }

    /// Remembers the first failure, and makes room for the rows in memory when there is none.
    fn noting(&mut self, done: Result<(), StoreError>) -> Result<(), StoreError> {
        if let Err(error) = &done
            && self.failure.is_none()
        {
            self.failure = Some(error.clone());
            if matches!(error, StoreError::Full { .. }) && self.place.release_room().is_ok() {
                // What does not fit now either is lost with this failure, which is reported.
                let _ = self.write_journal();
            }
        }
        done
    }

    /// Called with the first row of a new minute.
    fn begin_segment(&mut self, now_us: i64) -> Result<(), StoreError> {
        let next = |length_us: i64| now_us.div_euclid(length_us).saturating_add(1).saturating_mul(length_us);
        let first = self.next_segment_us.replace(next(self.limits.segment_us)).is_none();
        if first {
            self.next_part_us = next(self.limits.part_us);
            return Ok(());
        }
        self.compact()?;
        if now_us >= self.next_part_us {
            self.next_part_us = next(self.limits.part_us);
            let layout = Layout::scan(&self.place.dir)?;
            Lane::ALL.into_iter().try_for_each(|lane| self.place.roll(&layout, lane))?;
        }
        Ok(())
    }

    fn write_journal(&mut self) -> Result<(), StoreError> {
        if !self.journal_usable {
            return Ok(());
        }
        self.buffer.clear();
        for lane in Lane::ALL {
            self.lanes.get(lane).encode_pending(&mut self.buffer)?;
        }
        if self.buffer.is_empty() {
            return Ok(());
        }
        if let Err(e) = self.journal.write_bytes(&self.buffer).and_then(|()| self.journal.sync()) {
            // So that the rows can be written again without standing there twice.
            self.journal_usable = self.journal.truncate(self.journal_len).is_ok();
            return Err(e);
        }
        self.journal_len += self.buffer.len() as u64;
        Lane::ALL.into_iter().for_each(|lane| self.lanes.get(lane).mark_flushed());
        Ok(())
    }

    /// Turns the journal and the rows in memory into segments. They count once the journal is gone.
    fn compact(&mut self) -> Result<(), StoreError> {
        if self.lanes.is_empty() {
            return Ok(());
        }
        // After a failure the journal has been tried; compressed, the rows may still fit.
        if self.failure.is_none() {
            self.write_journal()?;
        }
        self.place.write_segments(self.number, &mut self.lanes, &PerLane::default())?;
        let next = self.number.saturating_add(1);
        // The next journal before the old one goes: a recording that is being written always has one.
        let (journal, len) = self.place.start_journal(next)?;
        self.place.disk.remove(&layout::journal_path(&self.place.dir, self.number))?;
        self.lanes.clear();
        (self.number, self.journal, self.journal_len) = (next, journal, len);
        self.journal_usable = true;
        Ok(())
    }
}

impl Place {
    /// Lays out the folder of a new recording.
    fn start(&self) -> Result<(OutFile, u64), StoreError> {
        self.disk.make_dir(&self.dir.join(JOURNAL))?;
        self.disk.make_dir(&self.dir.join(SEGMENTS))?;
        self.disk.write_file(&self.dir.join(RESERVE), &incompressible(RESERVE_BYTES))?;
        let journal = self.start_journal(0)?;
        self.write_header(&self.header)?;
        Ok(journal)
    }

    /// Writes the header, with the room of the reserve if there is no other.
    fn write_last_header(&self, header: &Header) -> Result<(), StoreError> {
        match self.write_header(header) {
            Err(StoreError::Full { .. }) => {
                self.release_room()?;
                self.write_header(header)
            }
            done => done,
        }
    }

    fn start_journal(&self, number: u32) -> Result<(OutFile, u64), StoreError> {
        let start = journal::file_header(&self.header)?;
        let mut file = self.disk.create(&layout::journal_path(&self.dir, number))?;
        file.write_bytes(&start)?;
        file.sync()?;
        self.disk.sync_dir(parent(file.path()))?;
        Ok((file, start.len() as u64))
    }
}

/// The recording at `path`, if there is one; nothing if there is no folder or an empty one.
fn what_is_at(path: &Path) -> Result<Option<Layout>, StoreError> {
    let not = |what| StoreError::NotARecording { path: path.to_owned(), what };
    if path.symlink_metadata().is_ok() && !path.is_dir() {
        return Err(not("it is a file"));
    }
    match layout::list(path)? {
        None => Ok(None),
        Some(entries) if entries.is_empty() => Ok(None),
        Some(_) => {
            let layout = Layout::scan(path)?;
            if layout.is_recording() { Ok(Some(layout)) } else { Err(not("it holds other files")) }
        }
    }
}

/// Removes the files of a recording; its header last, so that what is left is still known for one.
fn remove_recording(place: &Place, layout: &Layout) -> Result<(), StoreError> {
    let tables = |tables: &PerLane<std::collections::BTreeMap<u32, PathBuf>>| {
        Lane::ALL.into_iter().flat_map(|lane| tables[lane].values().cloned()).collect::<Vec<_>>()
    };
    let journals = layout.journals.values().cloned();
    let rest = layout.temps.iter().chain(&layout.damaged).cloned();
    for path in journals.chain(tables(&layout.segments)).chain(tables(&layout.parts)).chain(rest) {
        place.disk.remove(&path)?;
    }
    place.disk.remove(&place.dir.join(HEADER))?;
    place.disk.sync_dir(&place.dir)
}

/// Bytes that a file system cannot store in less room.
fn incompressible(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    for word in bytes.chunks_mut(size_of::<u64>()) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
    }
    bytes
}
