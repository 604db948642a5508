//! Energy and statistics of a recording and of its windows, finished or still being written.
//!
//! ```text
//! events → windows → one pass over each table, a row at a time → Tally a GPU and window → Summary
//! ```
//!
//! What processes had of it is [`attribution`]'s.
//!
//! Memory does not grow with the recording; the ring is read twice, first for the noise of its readings. Energy with its
//! interval is [`energy`](crate::energy)'s. What a meter said about a GPU's sensors ([`Options::calibration`]) corrects
//! every power and energy of that GPU, and the raw figures stay beside them.

use std::collections::BTreeMap;

use gpumon_core::calibration::{Calibration, Correction};
use gpumon_core::header::{self, Header, OwnCost, State};
use gpumon_core::rows::{CounterRow, EventKind, EventRow, FastRow, RingRow, SlowRow};
use gpumon_core::timing::Characterisation;
use serde::Serialize;

use crate::energy::{Parts, TooShort};
use crate::store::{Reader, Row, StoreError};

pub mod attribution;
mod energy;
mod gain;
mod joined;
mod known;
pub mod reasons;
mod tally;

use attribution::Attribution;
use attribution::all::{Attributors, Source};
pub use gain::Raw;
use joined::{Joined, Step};
use tally::Tally;

/// What is known of the GPUs beside the recording.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'a> {
    /// Characterisations of sensors; one counts for the GPU and the driver that it names.
    pub timing: &'a [Characterisation],
    /// What meters said.
    pub calibration: Option<&'a Calibration>,
    /// What GPUs draw idle with a context, by UUID, W; where it is not said, the recording tells.
    pub idle_w: &'a [(String, f64)],
}

impl<'a> Options<'a> {
    /// What a meter said about a GPU.
    fn correction(&self, gpu: &header::Gpu) -> Option<&'a Correction> {
        self.calibration.and_then(|c| c.of(&gpu.uuid))
    }
}

/// A span of a recording, µs since its start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Its name.
    pub name: String,
    /// Start, µs.
    pub from_us: i64,
    /// End, µs.
    pub to_us: i64,
}

/// What a recording says, all GPUs and windows.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Whether the GPUs were simulated.
    pub simulated: bool,
    /// How far the recording has come.
    pub state: State,
    /// Host name.
    pub host: String,
    /// Length so far, s.
    pub duration_s: f64,
    /// Rate of the fast lane, Hz.
    pub rate_hz: f64,
    /// Rows of the fast lane, all GPUs.
    pub rows: u64,
    /// Ticks of the fast lane that were missed, all GPUs.
    pub missed_ticks: u64,
    /// How many events of each kind there are.
    pub events: BTreeMap<String, u64>,
    /// What recording cost, once it has ended.
    pub own_cost: Option<OwnCost>,
    /// What `gpumon recover` could not keep, in words.
    pub damage: Vec<String>,
    /// The whole recording, a GPU each.
    pub gpus: Vec<GpuSummary>,
    /// The named windows in order of their start.
    pub windows: Vec<WindowSummary>,
    /// Names of windows that were ended without having begun, each once, in order of time.
    pub never_begun: Vec<String>,
}

/// One window, all GPUs.
#[derive(Clone, Debug, Serialize)]
pub struct WindowSummary {
    /// Its name.
    pub name: String,
    /// Start, s since the start of the recording.
    pub from_s: f64,
    /// End, s since the start of the recording.
    pub to_s: f64,
    /// Length, s.
    pub duration_s: f64,
    /// A GPU each.
    pub gpus: Vec<GpuSummary>,
}

/// One GPU over one span.
#[derive(Clone, Debug, Serialize)]
pub struct GpuSummary {
    /// The driver's UUID.
    pub uuid: String,
    /// Product name.
    pub name: String,
    /// Energy, J; absent if no sensor covers the span.
    pub energy_j: Option<f64>,
    /// Where most of the energy comes from: `ring`, `counter`, `instant` or `average`.
    pub energy_method: Option<&'static str>,
    /// Lower end of the 90 % interval, J; the gain of the sensor (`gain_pct`) is not in it.
    /// Absent where energy comes from `average`, which shows nothing of what it smears.
    pub energy_low_j: Option<f64>,
    /// Upper end likewise, J.
    pub energy_high_j: Option<f64>,
    /// What the interval is made of: half widths, J.
    pub energy_parts: Option<Parts>,
    /// How much of the energy is the counter's, 0 to 1.
    pub energy_counter_weight: Option<f64>,
    /// Set if the interval is wide for the energy.
    pub energy_too_short: Option<TooShort>,
    /// How far the sensor's gain may be off (90 %), % of the energy, apart from the interval: 5 unless a meter
    /// said better.
    pub gain_pct: f64,
    /// The meter's word, if figures are corrected by one.
    pub gain_source: Option<String>,
    /// The figures before that correction.
    pub raw: Option<Raw>,
    /// The ring's readings integrated as they are, J.
    pub energy_ring_j: Option<f64>,
    /// Difference of the driver's energy counter, J, corrected to the window's edges, if it was read near both.
    pub energy_counter_j: Option<f64>,
    /// The short-window readings integrated as they are, J.
    pub energy_instant_j: Option<f64>,
    /// Energy over time, W.
    pub power_mean_w: Option<f64>,
    /// 99th percentile of power over time, W.
    pub power_p99_w: Option<f64>,
    /// Largest reading, W.
    pub power_max_w: Option<f64>,
    /// New power readings a second, from the source of the power figures.
    pub distinct_power_per_s: f64,
    /// Readings of the ring.
    pub ring_readings: u64,
    /// Median time between ring readings, ms.
    pub ring_spacing_ms: Option<f64>,
    /// Longest time between ring readings, ms.
    pub ring_gap_max_ms: Option<f64>,
    /// Mean SM clock, MHz.
    pub sm_mhz_mean: Option<f64>,
    /// Lowest SM clock, MHz.
    pub sm_mhz_min: Option<i32>,
    /// Highest SM clock, MHz.
    pub sm_mhz_max: Option<i32>,
    /// Highest GPU temperature, °C.
    pub temp_c_max: Option<i32>,
    /// Share of time in which no kernel ran, as the driver's utilisation sees it.
    pub idle_share: Option<f64>,
    /// Why the clock was not higher, and for which share of time.
    pub clock_limits: Vec<ClockLimit>,
    /// Whose energy it was; absent without energy or without a power reading near the span.
    pub attribution: Option<Attribution>,
}

/// One reason for a lower clock.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClockLimit {
    /// In words.
    pub reason: &'static str,
    /// Share of time, 0 to 1.
    pub share: f64,
}

/// Sums up a recording, its named windows, and `extra` windows.
pub fn summarize(reader: &Reader, extra: &[Window], options: Options<'_>) -> Result<Summary, StoreError> {
    let header = reader.header();
    let events = read_all::<EventRow>(reader)?;
    let counters = read_all::<CounterRow>(reader)?;
    let duration_us = match header.duration_us {
        Some(us) => us,
        None => last_time(reader)?,
    };
    let mut windows = vec![Window { name: String::new(), from_us: 0, to_us: duration_us }];
    let (named, never_begun) = named_windows(&events, duration_us);
    windows.extend(named);
    windows.extend(extra.iter().map(|w| Window { to_us: w.to_us.min(duration_us), ..w.clone() }));
    windows[1..].sort_by_key(|w| (w.from_us, w.to_us));

    let known = known::all(reader, &options)?;
    let tally = |w: &Window| known.iter().map(|k| Tally::new(w, &k.timing, k.noise_w)).collect();
    let mut tallies: Vec<Vec<Tally>> = windows.iter().map(tally).collect();
    let mut attributors = Attributors::new(header, &windows, &known, &options);
    let mut rows = 0;
    let mut ring = Joined::<RingRow>::of(reader)?;
    while let Some(step) = ring.next()? {
        match step {
            Step::Power(row) => {
                each(&mut tallies, row.gpu, |t| t.ring(&row));
                attributors.ring(&row);
            }
            Step::Processes(group) => attributors.processes(Source::Ring, group),
        }
    }
    let mut fast = Joined::<FastRow>::of(reader)?;
    while let Some(step) = fast.next()? {
        match step {
            Step::Power(row) => {
                rows += 1;
                each(&mut tallies, row.gpu, |t| t.fast(&row));
                attributors.fast(&row);
            }
            Step::Processes(group) => attributors.processes(Source::Polled, group),
        }
    }
    for batch in reader.batches::<SlowRow>() {
        for row in batch? {
            each(&mut tallies, row.gpu, |t| t.slow(&row));
        }
    }
    for row in &counters {
        each(&mut tallies, row.gpu, |t| t.counter(row));
    }

    let mut summaries: Vec<_> =
        tallies.into_iter().map(|tallies| gpu_summaries(header, tallies, &options)).collect();
    attributors.finish(&mut summaries);
    let mut spans = windows.iter().zip(summaries);
    let whole = spans.next().map(|(_, gpus)| gpus).unwrap_or_default();
    Ok(Summary {
        simulated: header.simulated,
        state: header.state,
        host: header.host.clone(),
        duration_s: duration_us as f64 / 1e6,
        rate_hz: header.rate_hz,
        rows,
        missed_ticks: missed_ticks(&events),
        events: count_kinds(&events),
        own_cost: header.own_cost.clone(),
        damage: header.damage.clone(),
        gpus: whole,
        windows: spans.map(|(w, gpus)| window_summary(w, gpus)).collect(),
        never_begun,
    })
}

/// Applies `add` to a GPU's tallies.
fn each(tallies: &mut [Vec<Tally>], gpu: i32, add: impl Fn(&mut Tally)) {
    for window in tallies {
        if let Some(tally) = of_gpu(window, gpu) {
            add(tally);
        }
    }
}

/// What belongs to a GPU. A row of a GPU that the header does not list belongs to none.
fn of_gpu<T>(all: &mut [T], gpu: i32) -> Option<&mut T> {
    all.get_mut(usize::try_from(gpu).ok()?)
}

fn gpu_summaries(header: &Header, tallies: Vec<Tally>, options: &Options<'_>) -> Vec<GpuSummary> {
    let gpus = header.gpus.iter().zip(tallies);
    gpus.map(|(gpu, tally)| tally.summary(gpu, options.correction(gpu))).collect()
}

fn window_summary(window: &Window, gpus: Vec<GpuSummary>) -> WindowSummary {
    let s = |us: i64| us as f64 / 1e6;
    WindowSummary {
        name: window.name.clone(),
        from_s: s(window.from_us),
        to_s: s(window.to_us),
        duration_s: s(window.to_us - window.from_us),
        gpus,
    }
}

fn read_all<T: Row>(reader: &Reader) -> Result<Vec<T>, StoreError> {
    let mut rows = Vec::new();
    for batch in reader.batches::<T>() {
        rows.extend(batch?);
    }
    Ok(rows)
}

/// The time of the last row of the lanes that go on all the time, for a recording that has no end yet.
fn last_time(reader: &Reader) -> Result<i64, StoreError> {
    Ok(last_of::<FastRow>(reader)?.max(last_of::<RingRow>(reader)?).max(last_of::<SlowRow>(reader)?))
}

fn last_of<R: Row>(reader: &Reader) -> Result<i64, StoreError> {
    let mut last = 0;
    for batch in reader.batches::<R>() {
        last = batch?.iter().map(Row::mono_us).fold(last, i64::max);
    }
    Ok(last)
}

/// Windows from begin and end events, one that never ended reaches to the end; and names that were ended without having begun.
fn named_windows(events: &[EventRow], duration_us: i64) -> (Vec<Window>, Vec<String>) {
    let mut open: Vec<Window> = Vec::new();
    let (mut closed, mut never_begun) = (Vec::new(), Vec::new());
    for event in events {
        let Some(name) = &event.name else { continue };
        match event.kind {
            EventKind::WindowBegin => {
                open.push(Window { name: name.clone(), from_us: event.mono_us, to_us: duration_us });
            }
            EventKind::WindowEnd => {
                // The innermost of that name.
                match open.iter().rposition(|w| w.name == *name) {
                    Some(at) => closed.push(Window { to_us: event.mono_us, ..open.remove(at) }),
                    None if never_begun.contains(name) => {}
                    None => never_begun.push(name.clone()),
                }
            }
            _ => {}
        }
    }
    closed.extend(open);
    (closed, never_begun)
}

fn missed_ticks(events: &[EventRow]) -> u64 {
    let missed = events.iter().filter(|e| e.kind == EventKind::MissedTicks);
    missed.filter_map(|e| u64::try_from(e.count?).ok()).sum()
}

fn count_kinds(events: &[EventRow]) -> BTreeMap<String, u64> {
    let mut kinds = BTreeMap::new();
    for event in events {
        *kinds.entry(event.kind.as_str().to_owned()).or_insert(0) += 1;
    }
    kinds
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edge(mono_us: i64, kind: EventKind, name: &str) -> EventRow {
        EventRow { name: Some(name.into()), ..EventRow::new(mono_us, None, kind) }
    }

    #[test]
    fn windows_nest_and_an_open_one_reaches_to_the_end() {
        let events = [
            edge(10, EventKind::WindowBegin, "a"),
            edge(20, EventKind::WindowBegin, "a"),
            edge(30, EventKind::WindowEnd, "a"),
            edge(40, EventKind::WindowEnd, "never begun"),
            edge(50, EventKind::WindowBegin, "b"),
        ];
        let (windows, never_begun) = named_windows(&events, 100);
        assert_eq!(never_begun, ["never begun"]);
        let spans: Vec<_> = windows.into_iter().map(|w| (w.name, w.from_us, w.to_us)).collect();
        assert_eq!(spans, [("a".into(), 20, 30), ("a".into(), 10, 100), ("b".into(), 50, 100)]);
    }
}
