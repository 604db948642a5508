//! The tables of a recording, one a lane, and the record that travels from a sampler to the store.
//!
//! Time: `mono_us` counts microseconds from the recording's start on the monotonic clock and orders
//! everything; the anchor in `recording.json` gives the wall-clock time of zero. The ring carries the
//! driver's own wall-clock time beside it.
//!
//! Rule for every table: null means not supported or failed to read, never zero.

use serde::{Deserialize, Serialize};

use crate::table::{Cell, markdown};
use crate::units::WallUs;
use crate::{header, table};

table! {
    /// One tick of the fast lane on one GPU. A tick that could not be kept is not a row; it is
    /// counted in `events` as `missed_ticks`.
    pub struct FastRow in "fast" {
        /// Index of the GPU in `recording.json`.
        gpu: i32,
        /// When the reading was taken, µs since the start of the recording.
        mono_us: i64,
        /// How much later than its deadline the reading was taken, µs.
        lateness_us: i32,
        /// Power over the sensor's short window (field 186), mW.
        power_instant_mw: Option<i32>,
        /// Power averaged by the driver, over 1 s on Hopper (field 185), mW.
        power_average_mw: Option<i32>,
        /// SM clock, MHz.
        sm_mhz: Option<i32>,
        /// True if a power value differs from the one before it; false marks a reading that the sensor
        /// repeated.
        fresh: bool,
    }
}

table! {
    /// One reading out of the driver's ring of power samples (50 a second on Hopper), each once.
    pub struct RingRow in "ring" {
        /// Index of the GPU in `recording.json`.
        gpu: i32,
        /// The driver's own time stamp.
        time: WallUs,
        /// The same instant, µs since the start of the recording.
        mono_us: i64,
        /// Power, mW.
        power_mw: i32,
    }
}

table! {
    /// One tick of the slow lane on one GPU, about ten a second. The utilisation columns that end the
    /// table come from GPM counters, over the time since the GPM row before, about once a second.
    pub struct SlowRow in "slow" {
        /// Index of the GPU in `recording.json`.
        gpu: i32,
        /// When the readings were taken, µs since the start of the recording.
        mono_us: i64,
        /// Memory clock, MHz.
        mem_mhz: Option<i32>,
        /// GPU temperature, °C.
        temp_c: Option<i32>,
        /// Memory temperature, °C.
        mem_temp_c: Option<i32>,
        /// Share of time in which any kernel ran, as the driver sees it, %.
        util_gpu_pct: Option<i32>,
        /// Share of time in which memory was read or written, as the driver sees it, %.
        util_mem_pct: Option<i32>,
        /// Memory in use, bytes.
        mem_used_bytes: Option<i64>,
        /// Performance state, 0 (highest) to 15.
        pstate: Option<i32>,
        /// Why the clock is not higher: NVML's clock-event bit mask.
        event_reasons: Option<i64>,
        /// Fan speed, %.
        fan_pct: Option<i32>,
        /// Power of the memory, averaged by the driver, mW.
        mem_power_mw: Option<i32>,
        /// Share of SM time with at least one warp, %.
        sm_util_pct: Option<f64>,
        /// Warps resident over warps possible, %.
        sm_occupancy_pct: Option<f64>,
        /// Share of cycles in which the tensor pipe was active, %.
        tensor_util_pct: Option<f64>,
        /// Share of peak DRAM bandwidth in use, %.
        dram_util_pct: Option<f64>,
        /// PCIe traffic sent by the GPU, MiB/s.
        pcie_tx_mib_per_s: Option<f64>,
        /// PCIe traffic received by the GPU, MiB/s.
        pcie_rx_mib_per_s: Option<f64>,
    }
}

table! {
    /// One reading of the driver's energy counter: at the start, at the end, at window edges and about
    /// every ten seconds between, because the call is slow.
    pub struct CounterRow in "counter" {
        /// Index of the GPU in `recording.json`.
        gpu: i32,
        /// When the call returned, µs since the start of the recording.
        mono_us: i64,
        /// How long the call took, µs; the value belongs to a moment in this span.
        call_us: i32,
        /// The counter, mJ.
        energy_mj: i64,
        /// Counts the counter's resets: differences across epochs mean nothing.
        epoch: i32,
    }
}

table! {
    /// One process that has the GPU open, or ran on it, in the second before: about one row a process and second.
    /// Utilisation is over the time since the rows before. A second without rows had no process.
    pub struct ProcessRow in "process" {
        /// Index of the GPU in `recording.json`.
        gpu: i32,
        /// When the processes were listed, µs since the start of the recording.
        mono_us: i64,
        /// Process id as the driver gives it: the host's, also within a container.
        pid: i32,
        /// What the process calls itself (`/proc/PID/comm`); null if it was gone or cannot be seen.
        name: Option<String>,
        /// Id of the GPU instance that it runs on; null without MIG.
        mig_instance: Option<i32>,
        /// Share of time in which a kernel of this process ran, % of the whole GPU; 0 if the driver saw none, null where
        /// the driver does not say.
        sm_util_pct: Option<f64>,
        /// Share of time in which this process read or wrote memory, %; null likewise.
        mem_util_pct: Option<f64>,
        /// Memory that the process holds, bytes; null if unknown, or if the process has ended.
        mem_used_bytes: Option<i64>,
    }
}

table! {
    /// Something that happened: a mark, a window's edge, or a loss.
    pub struct EventRow in "events" {
        /// When it was noticed, µs since the start of the recording.
        mono_us: i64,
        /// Index of the GPU in `recording.json`; null when it concerns all.
        gpu: Option<i32>,
        /// What happened; see the list below.
        kind: EventKind,
        /// Name of a mark, window or lane.
        name: Option<String>,
        /// Start of the span concerned, µs since the start of the recording.
        from_us: Option<i64>,
        /// End of the span concerned, µs since the start of the recording.
        to_us: Option<i64>,
        /// How many things were concerned (missed ticks, dropped rows).
        count: Option<i64>,
        /// In words.
        detail: Option<String>,
    }
}

macro_rules! event_kinds {
    ($( $(#[doc = $doc:literal])* $kind:ident = $text:literal, )*) => {
        /// What an event is. Kinds of newer versions are kept as [`EventKind::Other`].
        #[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum EventKind {
            $( $(#[doc = $doc])* $kind, )*
            /// A kind that this version does not know.
            Other(String),
        }

        impl EventKind {
            /// The kind as it stands in the file.
            pub fn as_str(&self) -> &str {
                match self {
                    $( Self::$kind => $text, )*
                    Self::Other(text) => text,
                }
            }

            fn parse(text: &str) -> Self {
                match text {
                    $( $text => Self::$kind, )*
                    other => Self::Other(other.into()),
                }
            }

            fn described() -> Vec<(&'static str, String)> {
                vec![$( ($text, [$($doc),*].map(str::trim).join(" ")) ),*]
            }
        }
    };
}

event_kinds! {
    /// A named moment.
    Mark = "mark",
    /// A named window begins.
    WindowBegin = "window_begin",
    /// A named window ends.
    WindowEnd = "window_end",
    /// Ticks of the fast lane whose time passed before the thread got to run.
    MissedTicks = "missed_ticks",
    /// Readings that the driver's ring overwrote before they were fetched.
    RingLost = "ring_lost",
    /// Rows that were sampled but not kept because the writer could not follow.
    DroppedRows = "dropped_rows",
    /// A span in which nothing could be read from a GPU.
    Gap = "gap",
    /// A reading failed; the same failure in a row is one event, with its count.
    ReadFailed = "read_failed",
    /// A value beyond what the GPU can draw was read and left out.
    Implausible = "implausible",
    /// A call into the driver has not returned.
    Stall = "stall",
    /// The GPU is gone.
    GpuLost = "gpu_lost",
    /// The energy counter went backwards; a new epoch begins.
    CounterReset = "counter_reset",
    /// The wall clock was stepped against the monotonic clock.
    ClockStep = "clock_step",
    /// The recording ended because nothing more could be written.
    StorageFailed = "storage_failed",
}

impl Cell for EventKind {
    const NULLABLE: bool = false;

    fn data_type() -> arrow::datatypes::DataType {
        String::data_type()
    }

    fn to_array(cells: impl Iterator<Item = Self>) -> arrow::array::ArrayRef {
        String::to_array(cells.map(|k| k.as_str().to_owned()))
    }

    fn from_array(array: &dyn arrow::array::Array) -> Option<Vec<Self>> {
        Some(String::from_array(array)?.iter().map(|s| Self::parse(s)).collect())
    }
}

impl EventRow {
    /// An event of this kind at this time; the rest absent.
    pub fn new(mono_us: i64, gpu: Option<i32>, kind: EventKind) -> Self {
        Self { mono_us, gpu, kind, name: None, from_us: None, to_us: None, count: None, detail: None }
    }
}

/// One row on its way from a sampler to the store.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// A tick of the fast lane.
    Fast(FastRow),
    /// A ring reading.
    Ring(RingRow),
    /// A tick of the slow lane.
    Slow(Box<SlowRow>),
    /// A counter reading.
    Counter(CounterRow),
    /// A process in a second.
    Process(Box<ProcessRow>),
    /// An event.
    Event(Box<EventRow>),
}

impl From<EventRow> for Record {
    fn from(row: EventRow) -> Self {
        Self::Event(Box::new(row))
    }
}

/// The text of `docs/schema.md`.
pub fn schema_markdown() -> String {
    let mut text = String::from(include_str!("schema_intro.md"));
    text.push_str(&header::markdown());
    for chapter in [
        markdown::<FastRow>(),
        markdown::<RingRow>(),
        markdown::<SlowRow>(),
        markdown::<CounterRow>(),
        markdown::<ProcessRow>(),
        markdown::<EventRow>(),
    ] {
        text.push('\n');
        text.push_str(&chapter);
    }
    text.push_str("\nKinds of event:\n\n| kind | meaning |\n|---|---|\n");
    for (kind, doc) in EventKind::described() {
        text.push_str(&format!("| `{kind}` | {doc} |\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Table;

    #[test]
    fn schema_md_is_what_the_code_says() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/schema.md");
        if std::env::var_os("GPUMON_BLESS").is_some() {
            std::fs::write(path, schema_markdown()).unwrap();
        }
        let kept = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            kept == schema_markdown(),
            "docs/schema.md differs from the code; write it anew with GPUMON_BLESS=1 cargo test -p gpumon-core"
        );
    }

    #[test]
    fn unknown_kinds_of_event_are_kept() {
        let row = EventRow::new(1, None, EventKind::Other("from_the_future".into()));
        let back = EventRow::from_batch(&EventRow::to_batch(std::slice::from_ref(&row))).unwrap();
        assert_eq!(back, vec![row]);
    }
}
