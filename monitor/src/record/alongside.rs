//! Recording on a virtual clock while something else lives on it.
//!
//! Rule: whoever is to be recorded waits on this clock instead of the virtual one. Before time moves on for it, the
//! lanes read whatever is due until then, so the recording sees the GPU as it was left at each moment.
//! Cases: storage that fails ends the recording and is told at the end; what is recorded goes on undisturbed. A lane
//! whose call returns after the waiter's deadline has read a GPU that does not know yet what the waiter does next.
//! Not done here: the recording's own cost, which means nothing in virtual time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gpumon_core::clock::{Clock, VirtualClock};
use gpumon_core::rows::{EventKind, EventRow, Record};
use gpumon_core::units::{MonoUs, WallUs};

use super::Session;
use super::drive::Simulation;
use crate::lane::Outbox;
use crate::store::{Store, StoreError};

/// Virtual time between two flushes of the journal, µs.
const FLUSH_EVERY_US: i64 = 10_000_000;

/// A recording in progress on a virtual clock, which is a clock itself.
pub struct Alongside {
    clock: Arc<VirtualClock>,
    origin: MonoUs,
    recording: Mutex<Recording>,
}

struct Recording {
    simulation: Simulation,
    keep: Keep,
    next_flush: MonoUs,
}

/// Rows on their way into the store, until it fails.
struct Keep {
    store: Store,
    failed: bool,
}

impl Outbox for Keep {
    fn put(&mut self, record: Record) {
        // The store remembers why it failed; closing it tells.
        self.failed = self.failed || self.store.append(record).is_err();
    }
}

impl Alongside {
    /// Starts a prepared session: moves the clock to its first tick.
    pub fn start(session: Session, clock: Arc<VirtualClock>, store: Store) -> Self {
        let origin = session.origin;
        clock.sleep_until(origin);
        let simulation = Simulation::new(session.lanes);
        let keep = Keep { store, failed: false };
        let recording = Recording { simulation, keep, next_flush: origin.plus_us(FLUSH_EVERY_US) };
        Self { clock, origin, recording: Mutex::new(recording) }
    }

    /// Adds an event at the present moment.
    pub fn event(&self, kind: EventKind, name: &str) {
        let at_us = self.clock.mono().since_us(self.origin);
        let event = EventRow { name: Some(name.into()), ..EventRow::new(at_us, None, kind) };
        self.recording().keep.put(event.into());
    }

    /// Ends the recording now and closes it.
    pub fn finish(self) -> Result<(), StoreError> {
        let end = self.clock.mono();
        let Recording { mut simulation, mut keep, .. } =
            self.recording.into_inner().unwrap_or_else(PoisonError::into_inner);
        simulation.run_until(&self.clock, end, &mut keep);
        simulation.finish(&self.clock, end, &mut keep);
        let duration_us = end.since_us(self.origin);
        let closed = keep.store.close(|header| header.duration_us = Some(duration_us))?;
        closed.failure.map_or(Ok(()), Err)
    }

    fn recording(&self) -> MutexGuard<'_, Recording> {
        self.recording.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for Alongside {
    fn mono(&self) -> MonoUs {
        self.clock.mono()
    }

    fn wall(&self) -> WallUs {
        self.clock.wall()
    }

    fn sleep_until(&self, deadline: MonoUs) {
        let present = self.clock.mono();
        if deadline <= present {
            return;
        }
        let mut recording = self.recording();
        let Recording { simulation, keep, next_flush } = &mut *recording;
        simulation.run_until(&self.clock, deadline, keep);
        if deadline >= *next_flush {
            keep.failed = keep.failed || keep.store.flush().is_err();
            *next_flush = deadline.plus_us(FLUSH_EVERY_US);
        }
        self.clock.set(deadline);
    }
}
