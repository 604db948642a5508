//! What is sampled when: one file a lane, all on absolute deadlines.
//!
//! A lane knows when it is due, reads its sensors at that time and puts rows into an [`Outbox`]. It
//! does not know whether a thread or a simulation drives it (see [`crate::record`]). Three lanes
//! instead of one, because NVML's calls get in each other's way: the energy counter takes 3 to 17 ms
//! and the ring and the slow sensors wait behind it, while power and SM clock do not.
//!
//! Rules for all: a deadline that has passed is missed, counted and never caught up; a failed reading
//! is null and becomes one event however often it repeats; a lost GPU stops its own rows and no others, and
//! they go on when it is back ([`Presence`]).

use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use gpumon_core::clock::Clock;
use gpumon_core::rows::Record;
use gpumon_core::units::{Milliwatts, MonoUs};
use hdrhistogram::Histogram;

mod counter;
mod fast;
mod grid;
mod presence;
mod process;
mod ring;
mod slow;
mod trouble;

pub(crate) use counter::COUNTER_PERIOD_US;
pub use counter::{CounterLane, CounterReader};
pub use fast::FastLane;
pub use grid::Grid;
pub use presence::Presence;
pub use process::ProcessLane;
pub use ring::RingLane;
pub use slow::SlowLane;

/// Where rows go. Never blocks.
pub trait Outbox {
    /// Takes a row, or counts it as dropped.
    fn put(&mut self, record: Record);
}

impl Outbox for Vec<Record> {
    fn put(&mut self, record: Record) {
        self.push(record);
    }
}

/// One kind of reading of one GPU.
pub trait Lane: Send {
    /// Name of the lane's table.
    fn name(&self) -> &'static str;
    /// When to tick next.
    fn due(&self) -> MonoUs;
    /// Reads what is due. Called at or after [`Lane::due`].
    fn tick(&mut self, clock: &dyn Clock, out: &mut dyn Outbox) -> Flow;
    /// Reads what the end of the recording leaves behind.
    fn finish(&mut self, clock: &dyn Clock, end: MonoUs, out: &mut dyn Outbox);
}

/// Whether a lane goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// It is due again.
    Continue,
    /// Its GPU is lost for good.
    Stop,
}

/// What one GPU's lanes have done so far, for progress lines and the recording's own cost.
#[derive(Debug)]
pub struct Live {
    /// Rows of the fast lane.
    pub fast_rows: AtomicU64,
    /// Missed ticks of the fast lane.
    pub missed_ticks: AtomicU64,
    /// Ring readings.
    pub ring_rows: AtomicU64,
    /// Time of the last row of the fast lane, µs since the start of the recording; negative before it.
    pub last_us: AtomicI64,
    /// The last power read, mW; negative before the first.
    pub power_mw: AtomicI64,
    /// Lateness of fast ticks, µs.
    pub lateness_us: Mutex<Histogram<u64>>,
}

impl Default for Live {
    fn default() -> Self {
        // Two digits over any lateness: about 20 KiB, however long the recording.
        #[allow(clippy::expect_used, reason = "two significant digits are always accepted")]
        let lateness = Histogram::new(2).expect("a valid precision");
        Self {
            fast_rows: AtomicU64::new(0),
            missed_ticks: AtomicU64::new(0),
            ring_rows: AtomicU64::new(0),
            last_us: AtomicI64::new(-1),
            power_mw: AtomicI64::new(-1),
            lateness_us: Mutex::new(lateness),
        }
    }
}

impl Live {
    fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }
}

/// What no GPU draws: three times its limit (peaks of 1.4 times are seen), or 10 kW where the limit is
/// unknown.
fn plausible_ceiling(limit: Option<Milliwatts>) -> Milliwatts {
    Milliwatts(limit.map_or(10_000_000, |l| l.0.saturating_mul(3)))
}
