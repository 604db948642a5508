//! The writer thread: takes rows from the channel, keeps them in the store, flushes, closes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TrySendError};
use gpumon_core::clock::Clock;
use gpumon_core::header::OwnCost;
use gpumon_core::rows::{EventKind, EventRow, Record};

use super::drive::EndTime;
use super::watch::Watch;
use crate::lane::Outbox;
use crate::store::{Store, StoreError};

/// How often the channel is emptied and the journal flushed.
const FLUSH_EVERY: Duration = Duration::from_millis(250);

/// A lane's end of the channel. Rows that do not fit are counted, and said in an event once there is
/// room again.
pub(super) struct ChannelOutbox {
    rows: Sender<Record>,
    dropped: i64,
    gpu: Option<i32>,
}

impl ChannelOutbox {
    pub(super) fn new(rows: Sender<Record>, gpu: Option<i32>) -> Self {
        Self { rows, dropped: 0, gpu }
    }

    /// Another end, which counts for itself what it drops.
    pub(super) fn another(&self) -> Self {
        Self::new(self.rows.clone(), self.gpu)
    }
}

impl Outbox for ChannelOutbox {
    fn put(&mut self, record: Record) {
        if self.dropped > 0 {
            let event = EventRow {
                count: Some(self.dropped),
                detail: Some("the writer could not follow".into()),
                ..EventRow::new(time_of(&record), self.gpu, EventKind::DroppedRows)
            };
            if self.rows.try_send(event.into()).is_ok() {
                self.dropped = 0;
            }
        }
        if let Err(TrySendError::Full(_)) = self.rows.try_send(record) {
            self.dropped += 1;
        }
    }
}

fn time_of(record: &Record) -> i64 {
    match record {
        Record::Fast(r) => r.mono_us,
        Record::Ring(r) => r.mono_us,
        Record::Slow(r) => r.mono_us,
        Record::Counter(r) => r.mono_us,
        Record::Event(r) => r.mono_us,
        Record::Process(r) => r.mono_us,
    }
}

/// What the writer has done so far.
#[derive(Debug, Default)]
pub(super) struct Progress {
    pub(super) rows_kept: AtomicU64,
    pub(super) storage_failed: AtomicBool,
}

/// How a recording ended, from the recorder to the writer.
pub(super) struct Finish {
    pub(super) duration_us: i64,
    pub(super) own_cost: OwnCost,
}

/// Writes until told to finish. A store that fails ends the recording by setting its end.
pub(super) fn write(
    mut store: Store,
    rows: &Receiver<Record>,
    finish: &Receiver<Finish>,
    clock: &Arc<dyn Clock>,
    end: &EndTime,
    progress: &Progress,
    mut watch: Watch,
) -> Result<(), StoreError> {
    let mut failed = false;
    let finish = loop {
        let told = finish.recv_timeout(FLUSH_EVERY);
        // After the end the recorder itself waits for the lanes, and tells.
        let news =
            if told.is_err() && end.get() > clock.mono() { watch.look(clock.mono()) } else { Vec::new() };
        let kept = || -> Result<(), StoreError> {
            news.into_iter().try_for_each(|event| store.append(event.into()))?;
            drain(&mut store, rows, &progress.rows_kept)
        };
        if !failed && kept().is_err() {
            // The store remembers why; what is left to do is to end.
            end.set(clock.mono());
            progress.storage_failed.store(true, Ordering::SeqCst);
            failed = true;
        }
        match told {
            Ok(finish) => break Some(finish),
            Err(RecvTimeoutError::Disconnected) => break None,
            Err(RecvTimeoutError::Timeout) => {}
        }
    };
    let closed = store.close(|header| {
        if let Some(finish) = finish {
            header.duration_us = Some(finish.duration_us);
            header.own_cost = Some(finish.own_cost);
        }
    })?;
    closed.failure.map_or(Ok(()), Err)
}

fn drain(store: &mut Store, rows: &Receiver<Record>, kept: &AtomicU64) -> Result<(), StoreError> {
    let mut n = 0;
    for record in rows.try_iter() {
        store.append(record)?;
        n += 1;
    }
    kept.fetch_add(n, Ordering::Relaxed);
    store.flush()
}
