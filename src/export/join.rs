//! The lanes joined to the ticks of the fast lane.
//!
//! A moment is one tick on one GPU with what the other lanes said last (see [`asof`](super::asof)). The
//! performance counters are read once a second and absent from the slow rows between; a moment has those of
//! the last row that holds any, unless that row is older than [`COUNTERS_AGE_US`]: then reading them fails.
//! Every other column is the last slow row's, null where that reading failed.

use anyhow::Result;
use gpumon_core::rows::{CounterRow, EventRow, FastRow, RingRow, SlowRow};
use gpumon_monitor::store::{Reader, StoreError};

use super::CHUNK;
use super::asof::{AsOf, OpenWindows};
use super::rows::{Rows, Select};

/// Beyond this age performance counters no longer count, µs: two of their periods.
const COUNTERS_AGE_US: i64 = 2_000_000;

/// A tick of the fast lane on one GPU, and the rest as of then.
#[derive(Clone, Debug)]
pub struct Moment {
    /// The tick.
    pub fast: FastRow,
    /// The driver's last reading.
    pub ring: Option<RingRow>,
    /// The last slow readings.
    pub slow: Option<SlowRow>,
    /// The last reading of the energy counter.
    pub counter: Option<CounterRow>,
    /// Names of the open windows, joined by `;`.
    pub window: Option<String>,
}

/// Passes the moments to `put` in time order, [`CHUNK`] at a time.
pub fn moments(reader: &Reader, select: Select, mut put: impl FnMut(&[Moment]) -> Result<()>) -> Result<()> {
    // The fast lane first: what a live recording gains meanwhile is only in the lanes joined to it.
    let fast = Rows::<FastRow>::of(reader);
    let mut ring = AsOf::new(Rows::<RingRow>::of(reader));
    let mut slow = AsOf::new(Rows::<SlowRow>::of(reader));
    let with_counters = |row: &Result<SlowRow, StoreError>| row.as_ref().map_or(true, has_counters);
    let mut counters = AsOf::new(Rows::<SlowRow>::of(reader).filter(with_counters));
    let mut counter = AsOf::new(Rows::<CounterRow>::of(reader));
    let mut windows = OpenWindows::new(Rows::<EventRow>::of(reader));
    let mut chunk = Vec::new();
    for tick in fast {
        let fast = tick?;
        let (gpu, now) = (fast.gpu, fast.mono_us);
        if !select.takes(Some(gpu), now) {
            continue;
        }
        ring.advance(now)?;
        slow.advance(now)?;
        counters.advance(now)?;
        counter.advance(now)?;
        windows.advance(now)?;
        chunk.push(Moment {
            fast,
            ring: ring.get(gpu).cloned(),
            slow: slow.get(gpu).map(|row| with_counters_of(row, counters.get(gpu), now)),
            counter: counter.get(gpu).cloned(),
            window: windows.names(gpu),
        });
        if chunk.len() == CHUNK {
            put(&chunk)?;
            chunk.clear();
        }
    }
    put(&chunk)
}

fn has_counters(row: &SlowRow) -> bool {
    let columns = [
        row.sm_util_pct,
        row.sm_occupancy_pct,
        row.tensor_util_pct,
        row.dram_util_pct,
        row.pcie_tx_mib_per_s,
        row.pcie_rx_mib_per_s,
    ];
    columns.iter().any(Option::is_some)
}

/// `row` with the performance counters of `counters`, if these are not too old.
fn with_counters_of(row: &SlowRow, counters: Option<&SlowRow>, now: i64) -> SlowRow {
    let Some(last) = counters.filter(|c| now - c.mono_us <= COUNTERS_AGE_US) else {
        return row.clone();
    };
    SlowRow {
        sm_util_pct: last.sm_util_pct,
        sm_occupancy_pct: last.sm_occupancy_pct,
        tensor_util_pct: last.tensor_util_pct,
        dram_util_pct: last.dram_util_pct,
        pcie_tx_mib_per_s: last.pcie_tx_mib_per_s,
        pcie_rx_mib_per_s: last.pcie_rx_mib_per_s,
        ..row.clone()
    }
}
