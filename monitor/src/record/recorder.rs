//! The running recorder: threads, live figures, marks, and an end that comes whatever the driver does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use gpumon_core::clock::{Clock, use_precise_wakeups};
use gpumon_core::header::OwnCost;
use gpumon_core::rows::{EventKind, EventRow, Record};
use gpumon_core::units::MonoUs;
use hdrhistogram::Histogram;

use super::Session;
use super::drive::{self, EndTime};
use super::usage::Usage;
use super::writer::{self, ChannelOutbox, Finish, Progress};
use crate::lane::{CounterReader, Flow, Live, Outbox};
use crate::marks::{Marked, Request};
use crate::store::{Store, StoreError};

/// How long the end of a recording waits for a lane whose call into the driver has not returned.
const STALL: Duration = Duration::from_millis(1_200);
/// The channel holds what the lanes make in this many seconds: longer than a disk usually stalls.
const CHANNEL_S: f64 = 8.0;

/// A recording in progress.
pub struct Recorder {
    clock: Arc<dyn Clock>,
    origin: MonoUs,
    end: Arc<EndTime>,
    live: Vec<Arc<Live>>,
    counters: Vec<Arc<CounterReader>>,
    outbox: ChannelOutbox,
    lanes: Vec<LaneThread>,
    all_lanes_done: Receiver<()>,
    finish: Sender<Finish>,
    writer: JoinHandle<Result<(), StoreError>>,
    progress: Arc<Progress>,
    usage_at_start: Usage,
}

struct LaneThread {
    label: String,
    gpu: i32,
    done: Arc<AtomicBool>,
}

/// Why a recording does not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// The end that was set has come.
    EndReached,
    /// Nothing more can be written.
    StorageFailed,
    /// No GPU is left to read.
    AllGpusLost,
}

/// How a recording ended.
#[derive(Debug)]
pub struct Closed {
    /// Its length, µs.
    pub duration_us: i64,
    /// Lanes whose call into the driver had not returned; their last rows are missing.
    pub stalled: Vec<String>,
    /// Why it ended before its time, if storage failed.
    pub storage: Result<(), StoreError>,
}

impl Recorder {
    /// Starts the threads of a prepared session. Rows are kept in `store` from the session's origin on.
    pub fn start(session: Session, clock: Arc<dyn Clock>, store: Store) -> std::io::Result<Self> {
        let rows_per_s: f64 = session.header.rate_hz + 64.0;
        let capacity = (rows_per_s * CHANNEL_S * session.live.len() as f64).max(4096.0) as usize;
        let (rows, from_lanes) = bounded::<Record>(capacity);
        let (lane_alive, all_lanes_done) = bounded::<()>(0);
        let (finish, told_to_finish) = bounded(1);
        let end = Arc::new(EndTime::open());
        let progress = Arc::<Progress>::default();

        let writer = {
            let (clock, end, progress) = (clock.clone(), end.clone(), progress.clone());
            thread::Builder::new()
                .name("writer".into())
                .spawn(move || writer::write(store, &from_lanes, &told_to_finish, &clock, &end, &progress))?
        };
        let mut lanes = Vec::new();
        for mut group in session.lanes {
            let done = Arc::new(AtomicBool::new(false));
            lanes.push(LaneThread { label: group.label.clone(), gpu: group.gpu, done: done.clone() });
            let mut outbox = ChannelOutbox::new(rows.clone(), Some(group.gpu));
            let (clock, end, alive) = (clock.clone(), end.clone(), lane_alive.clone());
            thread::Builder::new().name(group.label.clone()).spawn(move || {
                use_precise_wakeups();
                drive::run(&mut group, clock.as_ref(), &end, &mut outbox);
                done.store(true, Ordering::SeqCst);
                drop(alive);
            })?;
        }
        Ok(Self {
            clock,
            origin: session.origin,
            end,
            live: session.live,
            counters: session.counters,
            outbox: ChannelOutbox::new(rows, None),
            lanes,
            all_lanes_done,
            finish,
            writer,
            progress,
            usage_at_start: Usage::now(),
        })
    }

    /// When the first tick is due.
    pub fn origin(&self) -> MonoUs {
        self.origin
    }

    /// Time since the first tick, µs; negative before it.
    pub fn elapsed_us(&self) -> i64 {
        self.clock.mono().since_us(self.origin)
    }

    /// What each GPU's lanes have done so far.
    pub fn live(&self) -> &[Arc<Live>] {
        &self.live
    }

    /// Rows written so far.
    pub fn rows_kept(&self) -> u64 {
        self.progress.rows_kept.load(Ordering::Relaxed)
    }

    /// Sets when to end; the earliest end that was ever set counts.
    pub fn end_at(&self, end: MonoUs) {
        self.end.set(end);
    }

    /// Why nothing more will be recorded; `None` while something is.
    pub fn over(&self) -> Option<Over> {
        if self.progress.storage_failed.load(Ordering::SeqCst) {
            Some(Over::StorageFailed)
        } else if self.end.get() <= self.clock.mono() {
            Some(Over::EndReached)
        } else if self.lanes.iter().all(|l| l.done.load(Ordering::SeqCst)) {
            Some(Over::AllGpusLost)
        } else {
            None
        }
    }

    /// Adds an event at the present moment.
    pub fn event(&mut self, kind: EventKind, name: &str) {
        self.event_at(self.clock.mono(), kind, name);
    }

    /// Adds an event of a moment that may have passed.
    pub fn event_at(&mut self, at: MonoUs, kind: EventKind, name: &str) {
        let at_us = at.since_us(self.origin);
        let event = EventRow { name: Some(name.into()), ..EventRow::new(at_us, None, kind) };
        self.outbox.put(event.into());
    }

    /// Adds what another process asked for; the edges of a window also have the energy counters read.
    pub fn mark(&mut self, marked: Marked) {
        let Marked { request: Request { kind, name }, at } = marked;
        let is_edge = kind != EventKind::Mark;
        self.event_at(at, kind, &name);
        if is_edge {
            self.read_counters();
        }
    }

    /// Reads every GPU's energy counter now, as for a window's edge. Takes some milliseconds a GPU.
    pub fn read_counters(&mut self) {
        for counter in &self.counters {
            if counter.read(self.clock.as_ref(), &mut self.outbox) == Flow::Stop {
                tracing::warn!("a GPU was lost while its energy counter was read");
            }
        }
    }

    /// Ends the recording now, unless an end was set that has passed, and closes it within two seconds even
    /// if the driver never answers again.
    pub fn stop(mut self) -> Closed {
        let now = match self.over() {
            // Nothing was recorded after the last GPU was lost.
            Some(Over::AllGpusLost) => self.origin.plus_us(self.last_row_us() + 1),
            _ => self.clock.mono(),
        };
        let end = self.end.set(now);
        let duration_us = end.since_us(self.origin).max(0);
        let mut stalled = Vec::new();
        if self.all_lanes_done.recv_timeout(STALL) == Err(RecvTimeoutError::Timeout) {
            for lane in self.lanes.iter().filter(|l| !l.done.load(Ordering::SeqCst)) {
                let event = EventRow {
                    name: Some(lane.label.clone()),
                    detail: Some("a call into the driver had not returned when the recording ended".into()),
                    ..EventRow::new(duration_us, Some(lane.gpu), EventKind::Stall)
                };
                self.outbox.put(event.into());
                stalled.push(lane.label.clone());
            }
        }
        let own_cost = self.own_cost();
        // The writer listens until it is told, so this fails only if it panicked, which joining says.
        let _ = self.finish.send(Finish { duration_us, own_cost });
        let storage = self.writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Closed { duration_us, stalled, storage }
    }

    fn last_row_us(&self) -> i64 {
        self.live.iter().map(|live| live.last_us.load(Ordering::Relaxed)).max().unwrap_or(0)
    }

    fn own_cost(&self) -> OwnCost {
        let mut lateness: Option<Histogram<u64>> = None;
        for live in &self.live {
            if let Ok(one) = live.lateness_us.lock() {
                match &mut lateness {
                    Some(all) => all.add(&*one).unwrap_or_default(),
                    None => lateness = Some(one.clone()),
                }
            }
        }
        let lateness = lateness.filter(|l| !l.is_empty());
        let now = Usage::now();
        OwnCost {
            cpu_s: now.cpu_s - self.usage_at_start.cpu_s,
            max_rss_bytes: now.max_rss_bytes,
            lateness_p50_us: lateness.as_ref().map(|l| l.value_at_quantile(0.5)),
            lateness_p99_us: lateness.as_ref().map(|l| l.value_at_quantile(0.99)),
            lateness_max_us: lateness.as_ref().map(Histogram::max),
        }
    }
}
