//! The lanes of a recording, and rows of any of them held in memory.

use std::ops::{Index, IndexMut};

use gpumon_core::header::Header;
use gpumon_core::rows::{CounterRow, EventRow, FastRow, ProcessRow, Record, RingRow, SlowRow};
use gpumon_core::table::Table;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::StoreError;
use super::journal::{self, Frame, FrameRef};
use super::table;

/// One table of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// `fast.parquet`
    Fast,
    /// `ring.parquet`
    Ring,
    /// `slow.parquet`
    Slow,
    /// `counter.parquet`
    Counter,
    /// `events.parquet`
    Events,
    /// `process.parquet`
    Process,
}

impl Lane {
    /// Every lane.
    pub const ALL: [Self; 6] =
        [Self::Fast, Self::Ring, Self::Slow, Self::Counter, Self::Events, Self::Process];

    /// The table's name, which is the stem of its files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fast => FastRow::NAME,
            Self::Ring => RingRow::NAME,
            Self::Slow => SlowRow::NAME,
            Self::Counter => CounterRow::NAME,
            Self::Events => EventRow::NAME,
            Self::Process => ProcessRow::NAME,
        }
    }

    /// Whether a whole recording with this header has the table. Recordings from before there were rows of
    /// processes do not mention them among their sensors, and have none.
    pub(super) fn is_due(self, header: &Header) -> bool {
        let mentions = |names: &[String]| names.iter().any(|name| name == ProcessRow::NAME);
        self != Self::Process || header.gpus.iter().any(|g| mentions(&g.sensors) || mentions(&g.unsupported))
    }
}

/// One value for each lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerLane<T>([T; 6]);

impl<T> PerLane<T> {
    /// The value of each lane, as `value` gives it.
    pub fn new(value: impl FnMut(Lane) -> T) -> Self {
        Self(Lane::ALL.map(value))
    }
}

impl<T> Index<Lane> for PerLane<T> {
    type Output = T;
    fn index(&self, lane: Lane) -> &T {
        &self.0[lane as usize]
    }
}

impl<T> IndexMut<Lane> for PerLane<T> {
    fn index_mut(&mut self, lane: Lane) -> &mut T {
        &mut self.0[lane as usize]
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A row type that a recording has a table of.
pub trait Row: Table + Serialize + DeserializeOwned + Send + sealed::Sealed + 'static {
    /// The table.
    const LANE: Lane;
    /// Time that orders the rows, µs since the start of the recording.
    fn mono_us(&self) -> i64;
    /// Index of the GPU, which orders rows of one time; 0 where order of arrival is all (events).
    fn gpu(&self) -> i32;
    #[doc(hidden)]
    fn frame(rows: &[Self]) -> impl Serialize;
    #[doc(hidden)]
    fn of_frame(frame: Frame) -> Option<Vec<Self>>;
}

macro_rules! rows {
    ($($row:ident $lane:ident $gpu:expr,)*) => { $(
        impl sealed::Sealed for $row {}
        impl Row for $row {
            const LANE: Lane = Lane::$lane;
            fn mono_us(&self) -> i64 {
                self.mono_us
            }
            fn gpu(&self) -> i32 {
                let gpu: fn(&Self) -> i32 = $gpu;
                gpu(self)
            }
            fn frame(rows: &[Self]) -> impl Serialize {
                FrameRef::$lane(rows)
            }
            fn of_frame(frame: Frame) -> Option<Vec<Self>> {
                match frame {
                    Frame::$lane(rows) => Some(rows),
                    _ => None,
                }
            }
        }
    )* };
}

rows! {
    FastRow Fast |row| row.gpu,
    RingRow Ring |row| row.gpu,
    SlowRow Slow |row| row.gpu,
    CounterRow Counter |row| row.gpu,
    EventRow Events |_| 0,
    ProcessRow Process |row| row.gpu,
}

/// Puts rows in time order; rows of one time and GPU keep their order.
pub(super) fn sort_by_time<R: Row>(rows: &mut [R]) {
    sort(rows, |row| (row.mono_us(), row.gpu()));
}

/// Puts rows in the order in which a row group holds them.
fn sort_for_file<R: Row>(rows: &mut [R]) {
    sort(rows, |row| (row.gpu(), row.mono_us()));
}

fn sort<R, K: Ord>(rows: &mut [R], key: impl Fn(&R) -> K) {
    if !rows.is_sorted_by_key(&key) {
        rows.sort_by_key(key);
    }
}

/// Rows of one lane since the last segment; the first `flushed` are in the journal.
struct Buffer<R> {
    rows: Vec<R>,
    flushed: usize,
}

/// What the store does to a lane's rows without knowing their type.
pub(super) trait AnyBuffer {
    fn len(&self) -> usize;
    /// Appends the frames of the rows that are not in the journal yet.
    fn encode_pending(&self, out: &mut Vec<u8>) -> Result<(), StoreError>;
    fn mark_flushed(&mut self);
    /// The rows as a Parquet file.
    fn to_parquet(&mut self, meta: &table::Meta) -> Result<Vec<u8>, StoreError>;
    fn clear(&mut self);
}

impl<R: Row> AnyBuffer for Buffer<R> {
    fn len(&self) -> usize {
        self.rows.len()
    }

    fn encode_pending(&self, out: &mut Vec<u8>) -> Result<(), StoreError> {
        self.rows[self.flushed..]
            .chunks(journal::FRAME_ROWS)
            .try_for_each(|rows| journal::encode(&R::frame(rows), out))
    }

    fn mark_flushed(&mut self) {
        self.flushed = self.rows.len();
    }

    fn to_parquet(&mut self, meta: &table::Meta) -> Result<Vec<u8>, StoreError> {
        sort_for_file(&mut self.rows);
        table::encode(&self.rows, meta)
    }

    fn clear(&mut self) {
        self.rows.clear();
        self.flushed = 0;
    }
}

impl<R> Default for Buffer<R> {
    fn default() -> Self {
        Self { rows: Vec::new(), flushed: 0 }
    }
}

/// The rows of all lanes since the last segment.
#[derive(Default)]
pub(super) struct Lanes {
    fast: Buffer<FastRow>,
    ring: Buffer<RingRow>,
    slow: Buffer<SlowRow>,
    counter: Buffer<CounterRow>,
    events: Buffer<EventRow>,
    process: Buffer<ProcessRow>,
}

impl Lanes {
    /// Takes one row; returns how many its lane holds now.
    pub(super) fn push(&mut self, record: Record) -> usize {
        fn push<R>(buffer: &mut Buffer<R>, row: R) -> usize {
            buffer.rows.push(row);
            buffer.rows.len()
        }
        match record {
            Record::Fast(row) => push(&mut self.fast, row),
            Record::Ring(row) => push(&mut self.ring, row),
            Record::Slow(row) => push(&mut self.slow, *row),
            Record::Counter(row) => push(&mut self.counter, row),
            Record::Event(row) => push(&mut self.events, *row),
            Record::Process(row) => push(&mut self.process, *row),
        }
    }

    /// Takes the rows of a journal's frame.
    pub(super) fn extend(&mut self, frame: Frame) {
        match frame {
            Frame::Header(_) => {}
            Frame::Fast(rows) => self.fast.rows.extend(rows),
            Frame::Ring(rows) => self.ring.rows.extend(rows),
            Frame::Slow(rows) => self.slow.rows.extend(rows),
            Frame::Counter(rows) => self.counter.rows.extend(rows),
            Frame::Events(rows) => self.events.rows.extend(rows),
            Frame::Process(rows) => self.process.rows.extend(rows),
        }
    }

    pub(super) fn get(&mut self, lane: Lane) -> &mut dyn AnyBuffer {
        match lane {
            Lane::Fast => &mut self.fast,
            Lane::Ring => &mut self.ring,
            Lane::Slow => &mut self.slow,
            Lane::Counter => &mut self.counter,
            Lane::Events => &mut self.events,
            Lane::Process => &mut self.process,
        }
    }

    pub(super) fn is_empty(&mut self) -> bool {
        Lane::ALL.into_iter().all(|lane| self.get(lane).len() == 0)
    }

    pub(super) fn clear(&mut self) {
        Lane::ALL.into_iter().for_each(|lane| self.get(lane).clear());
    }
}

/// Lane of a record, and its time in µs since the start of the recording.
pub(super) fn place_of(record: &Record) -> (Lane, i64) {
    match record {
        Record::Fast(row) => (Lane::Fast, row.mono_us),
        Record::Ring(row) => (Lane::Ring, row.mono_us),
        Record::Slow(row) => (Lane::Slow, row.mono_us),
        Record::Counter(row) => (Lane::Counter, row.mono_us),
        Record::Event(row) => (Lane::Events, row.mono_us),
        Record::Process(row) => (Lane::Process, row.mono_us),
    }
}
