//! Lanes whose call into the driver does not return, noticed while the recording goes on.
//!
//! Rule: each lane thread says when it enters a tick and when it leaves it. The writer looks at all of them at each
//! flush; a lane that is inside the same tick at the [`LOOKS`]th look in a row has stalled: an event says so with the
//! time since when, and another with the span when the call returns after all, or at the end. Looks are counted, not
//! time, so that a process that was stopped as a whole finds no stall when it goes on.
//! Cases: a thread that the kernel holds (state D) is told so, because no signal ends it and the process stays until
//! the driver lets go.
//! Not done here: ending such a thread, which nobody can.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, Ordering};

use gpumon_core::rows::{EventKind, EventRow};
use gpumon_core::units::MonoUs;

/// Looks that find the same tick before it counts as a stall: with four a second, after 1 to 1.25 s.
const LOOKS: u32 = 5;
const IDLE: i64 = i64::MIN;

/// What one lane thread shows of itself.
#[derive(Debug)]
pub(super) struct Beat {
    pub(super) label: String,
    pub(super) gpu: i32,
    pub(super) done: AtomicBool,
    /// Monotonic time at which the present tick began.
    busy_since: AtomicI64,
    thread: AtomicI32,
    stalled: AtomicBool,
}

impl Beat {
    pub(super) fn new(label: &str, gpu: i32) -> Arc<Self> {
        Arc::new(Self {
            label: label.to_owned(),
            gpu,
            done: AtomicBool::new(false),
            busy_since: AtomicI64::new(IDLE),
            thread: AtomicI32::new(0),
            stalled: AtomicBool::new(false),
        })
    }

    /// Called by the thread itself.
    #[allow(unsafe_code)]
    pub(super) fn begin(&self) {
        // SAFETY: takes nothing and gives this thread's number.
        self.thread.store(unsafe { libc::gettid() }, Ordering::SeqCst);
    }

    pub(super) fn enter(&self, now: MonoUs) {
        self.busy_since.store(now.0, Ordering::SeqCst);
    }

    pub(super) fn leave(&self) {
        self.busy_since.store(IDLE, Ordering::SeqCst);
    }

    fn busy_since(&self) -> Option<MonoUs> {
        Some(self.busy_since.load(Ordering::SeqCst)).filter(|&us| us != IDLE).map(MonoUs)
    }

    /// Whether an event has said that it stalls.
    pub(super) fn is_stalled(&self) -> bool {
        self.stalled.load(Ordering::SeqCst)
    }

    /// Whether the kernel holds the thread where no signal reaches it.
    pub(super) fn is_held_by_kernel(&self) -> bool {
        let path = format!("/proc/self/task/{}/stat", self.thread.load(Ordering::SeqCst));
        let stat = std::fs::read_to_string(path).unwrap_or_default();
        stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('D'))
    }

    /// The span in which nothing came from the lane.
    pub(super) fn gap(&self, origin: MonoUs, to: MonoUs, how: &str) -> Option<EventRow> {
        let from = self.busy_since()?;
        Some(self.gap_from(from, origin, to, how))
    }

    fn gap_from(&self, from: MonoUs, origin: MonoUs, to: MonoUs, how: &str) -> EventRow {
        EventRow {
            name: Some(self.label.clone()),
            from_us: Some(from.since_us(origin)),
            to_us: Some(to.since_us(origin)),
            detail: Some(how.into()),
            ..EventRow::new(to.since_us(origin), Some(self.gpu), EventKind::Gap)
        }
    }

    /// The event of a call that has not returned.
    pub(super) fn stall(&self, origin: MonoUs, now: MonoUs) -> EventRow {
        let held = if self.is_held_by_kernel() { HELD } else { "" };
        self.stalled.store(true, Ordering::SeqCst);
        EventRow {
            name: Some(self.label.clone()),
            from_us: self.busy_since().map(|from| from.since_us(origin)),
            detail: Some(format!("a call into the driver has not returned{held}")),
            ..EventRow::new(now.since_us(origin), Some(self.gpu), EventKind::Stall)
        }
    }
}

const HELD: &str = "; the kernel holds it (state D), so the process cannot end before the driver lets go";

/// The writer's view of all lanes.
pub(super) struct Watch {
    origin: MonoUs,
    /// Each lane, the tick that it was in at the look before, and how many looks found it there.
    lanes: Vec<(Arc<Beat>, Option<MonoUs>, u32)>,
}

impl Watch {
    pub(super) fn new(beats: &[Arc<Beat>], origin: MonoUs) -> Self {
        Self { origin, lanes: beats.iter().map(|beat| (beat.clone(), None, 0)).collect() }
    }

    /// What is to be told now.
    pub(super) fn look(&mut self, now: MonoUs) -> Vec<EventRow> {
        let mut events = Vec::new();
        for (beat, before, looks) in &mut self.lanes {
            let busy = if beat.done.load(Ordering::SeqCst) { None } else { beat.busy_since() };
            if busy.is_some() && busy == *before {
                *looks += 1;
                if *looks == LOOKS {
                    tracing::warn!(
                        "GPU {}: a call into the driver has not returned ({})",
                        beat.gpu,
                        beat.label
                    );
                    events.push(beat.stall(self.origin, now));
                }
                continue;
            }
            if let (true, Some(from)) = (*looks >= LOOKS, *before) {
                beat.stalled.store(false, Ordering::SeqCst);
                events.push(beat.gap_from(from, self.origin, now, "a call into the driver took that long"));
            }
            (*before, *looks) = (busy, u32::from(busy.is_some()));
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(events: &[EventRow]) -> Vec<(EventKind, Option<i64>)> {
        events.iter().map(|e| (e.kind.clone(), e.from_us)).collect()
    }

    #[test]
    fn a_tick_that_stays_is_one_stall_and_one_gap() {
        let beat = Beat::new("fast-0", 0);
        let mut watch = Watch::new(std::slice::from_ref(&beat), MonoUs(1_000_000));
        beat.enter(MonoUs(1_500_000));
        for look in 1..10i64 {
            let events = watch.look(MonoUs(1_500_000 + look * 250_000));
            let expected = if look == 5 { vec![(EventKind::Stall, Some(500_000))] } else { vec![] };
            assert_eq!(kinds(&events), expected, "look {look}");
        }
        beat.leave();
        assert_eq!(kinds(&watch.look(MonoUs(5_000_000))), [(EventKind::Gap, Some(500_000))]);
        assert!(!beat.is_stalled() && watch.look(MonoUs(5_250_000)).is_empty());
    }

    #[test]
    fn ticks_one_after_another_and_a_stopped_process_are_no_stall() {
        let beat = Beat::new("fast-0", 0);
        let mut watch = Watch::new(std::slice::from_ref(&beat), MonoUs(0));
        for look in 0..20i64 {
            beat.enter(MonoUs(look));
            // Each look finds another tick, however long the process stood still between.
            assert!(watch.look(MonoUs(look * 60_000_000)).is_empty());
        }
    }
}
