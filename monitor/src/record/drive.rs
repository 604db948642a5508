//! Runs lanes: on a thread against real deadlines, or one at a time on a virtual clock.

use std::sync::atomic::{AtomicI64, Ordering};

use gpumon_core::clock::{Clock, VirtualClock};
use gpumon_core::units::MonoUs;

use super::watch::Beat;
use super::{LaneGroup, Session};
use crate::lane::{Flow, Lane, Outbox};

/// How long a lane thread sleeps at most before it looks whether the end has come, µs.
const LOOK_US: i64 = 200_000;

/// When the recording ends; not known at first.
pub(super) struct EndTime(AtomicI64);

impl EndTime {
    pub(super) fn open() -> Self {
        Self(AtomicI64::new(i64::MAX))
    }

    /// Sets the end; the earliest one that was set stays.
    pub(super) fn set(&self, end: MonoUs) -> MonoUs {
        MonoUs(self.0.fetch_min(end.0, Ordering::SeqCst).min(end.0))
    }

    pub(super) fn get(&self) -> MonoUs {
        MonoUs(self.0.load(Ordering::SeqCst))
    }
}

/// Runs a group's lanes in order of their deadlines until the end, then finishes them.
pub(super) fn run(
    group: &mut LaneGroup,
    clock: &dyn Clock,
    end: &EndTime,
    beat: &Beat,
    out: &mut dyn Outbox,
) {
    beat.begin();
    let mut end_now = None;
    loop {
        let next = group.lanes.iter().enumerate().min_by_key(|(_, lane)| lane.due());
        let Some((index, due)) = next.map(|(i, lane)| (i, lane.due())) else { break };
        let now = clock.mono();
        if due.min(now) >= end.get() {
            break;
        }
        if due > now {
            clock.sleep_until(due.min(now.plus_us(LOOK_US)));
            continue;
        }
        beat.enter(now);
        let flow = group.lanes[index].tick(clock, out);
        beat.leave();
        if flow == Flow::Stop {
            // The GPU is lost; the thread's other lanes get what there still is.
            group.lanes.remove(index);
            end_now = Some(clock.mono());
            break;
        }
    }
    let end = end_now.unwrap_or(end.get());
    for lane in &mut group.lanes {
        beat.enter(clock.mono());
        lane.finish(clock, end, out);
        beat.leave();
    }
}

/// All lanes of a session on a virtual clock, moved on piece by piece. Each lane lives in its own present, as
/// on its own thread: a slow call makes only its own lane late.
pub(super) struct Simulation {
    /// Each lane, and when its last call returned.
    lanes: Vec<(Box<dyn Lane>, MonoUs)>,
}

impl Simulation {
    pub(super) fn new(groups: Vec<LaneGroup>) -> Self {
        let lanes = groups.into_iter().flat_map(|group| group.lanes);
        Self { lanes: lanes.map(|lane| (lane, MonoUs(i64::MIN))).collect() }
    }

    /// Runs everything that is due before `until`. The clock is left where the last call ended.
    pub(super) fn run_until(&mut self, clock: &VirtualClock, until: MonoUs, out: &mut dyn Outbox) {
        loop {
            let next = self.lanes.iter().enumerate().min_by_key(|(_, (lane, free))| lane.due().max(*free));
            let Some((index, (lane, free))) = next else { break };
            let now = lane.due().max(*free);
            if now >= until {
                break;
            }
            clock.set(now);
            if self.lanes[index].0.tick(clock, out) == Flow::Stop {
                self.lanes.remove(index);
            } else {
                self.lanes[index].1 = clock.mono();
            }
        }
    }

    /// Finishes the lanes at `end`.
    pub(super) fn finish(mut self, clock: &VirtualClock, end: MonoUs, out: &mut dyn Outbox) {
        for (lane, free) in &mut self.lanes {
            clock.set(end.max(*free));
            lane.finish(clock, end, out);
        }
    }
}

impl Session {
    /// Runs all lanes on a virtual clock for `duration_us` from the origin.
    pub fn simulate(&mut self, clock: &VirtualClock, duration_us: i64, out: &mut dyn Outbox) {
        let end = self.origin.plus_us(duration_us);
        let mut simulation = Simulation::new(std::mem::take(&mut self.lanes));
        simulation.run_until(clock, end, out);
        simulation.finish(clock, end, out);
    }
}
