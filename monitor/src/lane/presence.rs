//! Whether a GPU is there: what its lanes share about it.
//!
//! Rule: any lane may find that the GPU is lost. The fast lane keeps the record of it: it writes one event when the GPU
//! goes, looks for it each second by its UUID, and writes the gap with its span when it comes back. While it is away
//! no lane reads, and the fast lane writes no rows; the ticks of that time are the gap's count.
//! Cases: a GPU that cannot come back (a replayed one) ends its lanes. A GPU whose every answer is a failure for
//! [`SILENT_US`] is away too: a container that loses its GPU says "Unknown Error" for ever.
//! Not done here: initialising NVML again, which leaks descriptors and would stop the other GPUs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use gpumon_core::rows::{EventKind, EventRow};
use gpumon_core::units::MonoUs;

use super::{Flow, Outbox};
use crate::device::Device;

/// Nothing but failures for so long means that the GPU is away.
pub(super) const SILENT_US: i64 = 2_000_000;
/// Between two looks for a GPU that is away.
const LOOK_EVERY_US: i64 = 1_000_000;

/// What the lanes of one GPU know of its whereabouts.
#[derive(Debug)]
pub struct Presence {
    can_return: bool,
    away: AtomicBool,
    /// Why a lane other than the fast one thinks that the GPU is lost.
    suspected: Mutex<Option<String>>,
}

impl Presence {
    /// A GPU that is there.
    pub fn of(device: &dyn Device) -> Arc<Self> {
        let can_return = device.can_return();
        Arc::new(Self { can_return, away: AtomicBool::new(false), suspected: Mutex::default() })
    }

    /// Whether nobody should read.
    pub(super) fn is_away(&self) -> bool {
        self.away.load(Ordering::SeqCst)
    }

    /// A lane found the GPU lost: tells the fast lane, and says whether the lane goes on.
    pub(super) fn suspect(&self, why: String) -> Flow {
        if !self.can_return {
            return Flow::Stop;
        }
        *self.suspected.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
        Flow::Continue
    }

    fn take_suspicion(&self) -> Option<String> {
        self.suspected.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// A time in which the GPU was away.
#[derive(Debug)]
struct Away {
    from_us: i64,
    why: String,
    ticks: i64,
    look_at: MonoUs,
}

/// The fast lane's part: notices, looks, writes.
pub(super) struct Keeper {
    device: Arc<dyn Device>,
    gpu: i32,
    shared: Arc<Presence>,
    away: Option<Away>,
    /// Since when there were only failures, how many, and the last one.
    silent: Option<(i64, u32, String)>,
}

impl Keeper {
    pub(super) fn new(device: Arc<dyn Device>, gpu: i32, shared: Arc<Presence>) -> Self {
        Self { device, gpu, shared, away: None, silent: None }
    }

    pub(super) fn is_away(&self) -> bool {
        self.away.is_some()
    }

    /// Counts ticks that were not taken because the GPU was away.
    pub(super) fn pass(&mut self, ticks: u64) {
        if let Some(away) = &mut self.away {
            away.ticks += ticks as i64;
        }
    }

    /// A tick at which something was read, or at which everything failed.
    pub(super) fn tick(&mut self, now: MonoUs, now_us: i64, failure: Option<String>, out: &mut dyn Outbox) {
        if let Some(why) = self.shared.take_suspicion() {
            self.leave(now, now_us, now_us, why, out);
            return;
        }
        let Some(why) = failure else {
            self.silent = None;
            return;
        };
        let (since_us, times, _) = self.silent.take().unwrap_or((now_us, 0, String::new()));
        if self.shared.can_return && now_us - since_us >= SILENT_US && times >= 2 {
            let seconds = (now_us - since_us) as f64 / 1e6;
            let why = format!("nothing could be read for {seconds:.1} s: {why}");
            self.leave(now, now_us, since_us, why, out);
        } else {
            self.silent = Some((since_us, times + 1, why));
        }
    }

    /// The GPU is lost: says so; the lane ends if it cannot come back.
    pub(super) fn lost(&mut self, now: MonoUs, now_us: i64, why: String, out: &mut dyn Outbox) -> Flow {
        self.leave(now, now_us, now_us, why, out);
        self.pass(1);
        if self.shared.can_return { Flow::Continue } else { Flow::Stop }
    }

    fn leave(&mut self, now: MonoUs, now_us: i64, from_us: i64, why: String, out: &mut dyn Outbox) {
        let event = EventRow {
            name: Some("fast".into()),
            detail: Some(why.clone()),
            ..EventRow::new(now_us, Some(self.gpu), EventKind::GpuLost)
        };
        out.put(event.into());
        self.silent = None;
        if self.shared.can_return {
            tracing::warn!("{} is lost ({why}); it is looked for each second", self.device.identity());
            self.shared.away.store(true, Ordering::SeqCst);
            self.away = Some(Away { from_us, why, ticks: 0, look_at: now.plus_us(LOOK_EVERY_US) });
        }
    }

    /// Looks for a GPU that is away, if it is time to; whether it is there.
    pub(super) fn look(&mut self, now: MonoUs, now_us: i64, out: &mut dyn Outbox) -> bool {
        let Some(away) = &mut self.away else { return true };
        if now < away.look_at {
            return false;
        }
        away.look_at = now.plus_us(LOOK_EVERY_US);
        if self.device.attach_again().is_err() {
            return false;
        }
        tracing::warn!("{} is back", self.device.identity());
        self.gap(now_us, "it was found again by its UUID", out);
        let _ = self.shared.take_suspicion();
        self.shared.away.store(false, Ordering::SeqCst);
        true
    }

    /// The end of the recording.
    pub(super) fn finish(&mut self, end_us: i64, out: &mut dyn Outbox) {
        self.gap(end_us, "it had not come back when the recording ended", out);
    }

    fn gap(&mut self, to_us: i64, how: &str, out: &mut dyn Outbox) {
        if let Some(away) = self.away.take() {
            let event = EventRow {
                name: Some("gpu".into()),
                from_us: Some(away.from_us),
                to_us: Some(to_us),
                count: Some(away.ticks),
                detail: Some(format!("the GPU was away ({}); {how}", away.why)),
                ..EventRow::new(to_us, Some(self.gpu), EventKind::Gap)
            };
            out.put(event.into());
        }
    }
}
