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
use super::watch::{Beat, Watch};
use super::writer::{self, ChannelOutbox, Finish, Progress};
use crate::lane::{CounterReader, Live, Outbox};
use crate::marks::{Marked, Request};
use crate::store::{Store, StoreError};

/// How long the end of a recording waits for a lane whose call into the driver has not returned.
const STALL: Duration = Duration::from_millis(1_200);
/// How long a window's edge waits for the energy counters.
const EDGE: Duration = Duration::from_millis(400);
/// The channel holds what the lanes make in this many seconds: longer than a disk usually stalls.
const CHANNEL_S: f64 = 8.0;

/// A recording in progress.
pub struct Recorder {
    clock: Arc<dyn Clock>,
    origin: MonoUs,
    end: Arc<EndTime>,
    live: Vec<Arc<Live>>,
    counters: Vec<EdgeReader>,
    outbox: ChannelOutbox,
    lanes: Vec<Arc<Beat>>,
    all_lanes_done: Receiver<()>,
    finish: Sender<Finish>,
    writer: JoinHandle<Result<(), StoreError>>,
    progress: Arc<Progress>,
    usage_at_start: Usage,
}

/// Reads one GPU's energy counter at a window's edge, on a thread of its own: a driver that hangs in this call must
/// not hold up whoever waits for Ctrl-C.
struct EdgeReader {
    counter: Arc<CounterReader>,
    busy: Arc<AtomicBool>,
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
    /// Those of them that the kernel holds (state D): the process does not end before the driver lets go.
    pub held_by_kernel: Vec<String>,
    /// Why it ended before its time, if storage failed.
    pub storage: Result<(), StoreError>,
}

impl EdgeReader {
    fn new(counter: Arc<CounterReader>) -> Self {
        Self { counter, busy: Arc::default() }
    }

    /// Starts reading, unless the reading before still hangs. `told` is dropped when it has been read.
    fn read(&self, clock: Arc<dyn Clock>, mut outbox: ChannelOutbox, told: Sender<()>) {
        if self.busy.swap(true, Ordering::SeqCst) {
            return;
        }
        let (counter, busy) = (self.counter.clone(), self.busy.clone());
        let started = thread::Builder::new().name("edge".into()).spawn(move || {
            counter.read(clock.as_ref(), &mut outbox);
            busy.store(false, Ordering::SeqCst);
            drop(told);
        });
        if started.is_err() {
            self.busy.store(false, Ordering::SeqCst);
        }
    }
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

        let lanes: Vec<_> = session.lanes.iter().map(|group| Beat::new(&group.label, group.gpu)).collect();
        let watch = Watch::new(&lanes, session.origin);
        let writer = {
            let (clock, end, progress) = (clock.clone(), end.clone(), progress.clone());
            thread::Builder::new().name("writer".into()).spawn(move || {
                writer::write(store, &from_lanes, &told_to_finish, &clock, &end, &progress, watch)
            })?
        };
        for (mut group, beat) in session.lanes.into_iter().zip(lanes.iter().cloned()) {
            let mut outbox = ChannelOutbox::new(rows.clone(), Some(group.gpu));
            let (clock, end, alive) = (clock.clone(), end.clone(), lane_alive.clone());
            thread::Builder::new().name(group.label.clone()).spawn(move || {
                use_precise_wakeups();
                drive::run(&mut group, clock.as_ref(), &end, &beat, &mut outbox);
                beat.done.store(true, Ordering::SeqCst);
                drop(alive);
            })?;
        }
        Ok(Self {
            clock,
            origin: session.origin,
            end,
            live: session.live,
            counters: session.counters.into_iter().map(EdgeReader::new).collect(),
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

    /// Reads every GPU's energy counter now, as for a window's edge, all at the same time. Takes some milliseconds, and
    /// never more than `EDGE`.
    pub fn read_counters(&mut self) {
        let (told, all_read) = bounded::<()>(0);
        for reader in &self.counters {
            reader.read(self.clock.clone(), self.outbox.another(), told.clone());
        }
        drop(told);
        let _ = all_read.recv_timeout(EDGE);
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
        let (mut stalled, mut held_by_kernel) = (Vec::new(), Vec::new());
        if self.all_lanes_done.recv_timeout(STALL) == Err(RecvTimeoutError::Timeout) {
            for lane in self.lanes.iter().filter(|l| !l.done.load(Ordering::SeqCst)) {
                if !lane.is_stalled() {
                    self.outbox.put(lane.stall(self.origin, end).into());
                }
                let how = "a call into the driver had not returned when the recording ended";
                lane.gap(self.origin, end, how).into_iter().for_each(|gap| self.outbox.put(gap.into()));
                stalled.push(lane.label.clone());
                if lane.is_held_by_kernel() {
                    held_by_kernel.push(lane.label.clone());
                }
            }
        }
        let own_cost = self.own_cost();
        // The writer listens until it is told, so this fails only if it panicked, which joining says.
        let _ = self.finish.send(Finish { duration_us, own_cost });
        let storage = self.writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Closed { duration_us, stalled, held_by_kernel, storage }
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
