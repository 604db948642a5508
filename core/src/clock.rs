//! Time that is passed in.
//!
//! Samplers, stores and simulators never ask the machine for the time; they are given a [`Clock`].
//! [`RealClock`] is CLOCK_MONOTONIC and CLOCK_REALTIME. [`VirtualClock`] stands still until somebody
//! sleeps on it or sets it, so that a simulated day takes seconds.
//!
//! Not done here: scheduling several sleepers on a virtual clock. A caller that simulates
//! concurrency runs its sleepers one at a time and sets the clock to each one's own time.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use crate::units::{MonoUs, WallUs};

/// A source of time that can be waited on.
pub trait Clock: Send + Sync {
    /// Monotonic time, µs. Orders everything that is recorded.
    fn mono(&self) -> MonoUs;
    /// The same time in ns, for what takes less than a few µs.
    fn mono_ns(&self) -> i64 {
        self.mono().0 * 1_000
    }
    /// Wall-clock time, µs since 1970 UTC. May step.
    fn wall(&self) -> WallUs;
    /// Returns at `deadline` or as soon after it as the scheduler allows; at once when it has passed.
    fn sleep_until(&self, deadline: MonoUs);
}

/// The machine's own clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealClock;

/// A sleep shorter than this is spun, because the kernel cannot wake a thread that soon.
const SPIN_US: i64 = 30;

impl Clock for RealClock {
    fn mono(&self) -> MonoUs {
        MonoUs(libc_clock::read_us(libc::CLOCK_MONOTONIC))
    }

    fn mono_ns(&self) -> i64 {
        libc_clock::read_ns(libc::CLOCK_MONOTONIC)
    }

    fn wall(&self) -> WallUs {
        WallUs(libc_clock::read_us(libc::CLOCK_REALTIME))
    }

    fn sleep_until(&self, deadline: MonoUs) {
        if deadline.since_us(self.mono()) < SPIN_US {
            while self.mono() < deadline {
                std::hint::spin_loop();
            }
            return;
        }
        libc_clock::sleep_until_us(deadline.0);
    }
}

/// Asks the kernel to wake the calling thread without the usual 50 µs of slack.
///
/// Costs nothing but power: the thread is woken at its deadline instead of together with others.
pub fn use_precise_wakeups() {
    libc_clock::set_timer_slack_ns(1);
}

/// A clock that moves only when it is told to.
#[derive(Debug)]
pub struct VirtualClock {
    mono_us: AtomicI64,
    wall_at_zero_us: AtomicI64,
}

impl VirtualClock {
    /// A virtual clock at monotonic time zero and the given wall-clock time.
    pub fn new(wall: WallUs) -> Self {
        Self { mono_us: AtomicI64::new(0), wall_at_zero_us: AtomicI64::new(wall.0) }
    }

    /// Sets the monotonic time, backwards too: each simulated sleeper has its own present.
    pub fn set(&self, now: MonoUs) {
        self.mono_us.store(now.0, Ordering::SeqCst);
    }

    /// Moves the monotonic time forward.
    pub fn advance(&self, by: Duration) {
        self.mono_us.fetch_add(by.as_micros() as i64, Ordering::SeqCst);
    }

    /// Steps the wall clock, as NTP does, without touching monotonic time.
    pub fn step_wall_us(&self, by_us: i64) {
        self.wall_at_zero_us.fetch_add(by_us, Ordering::SeqCst);
    }
}

impl Clock for VirtualClock {
    fn mono(&self) -> MonoUs {
        MonoUs(self.mono_us.load(Ordering::SeqCst))
    }

    fn wall(&self) -> WallUs {
        WallUs(self.wall_at_zero_us.load(Ordering::SeqCst) + self.mono().0)
    }

    fn sleep_until(&self, deadline: MonoUs) {
        self.mono_us.fetch_max(deadline.0, Ordering::SeqCst);
    }
}

/// The libc edge of this crate.
#[allow(unsafe_code)]
mod libc_clock {
    pub(super) fn read_us(id: libc::clockid_t) -> i64 {
        read_ns(id) / 1_000
    }

    pub(super) fn read_ns(id: libc::clockid_t) -> i64 {
        let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `ts` is a valid place for one timespec; these clock ids exist on every Linux.
        unsafe { libc::clock_gettime(id, &mut ts) };
        ts.tv_sec * 1_000_000_000 + ts.tv_nsec
    }

    pub(super) fn sleep_until_us(deadline_us: i64) {
        let ts = libc::timespec {
            tv_sec: deadline_us.div_euclid(1_000_000),
            tv_nsec: deadline_us.rem_euclid(1_000_000) * 1_000,
        };
        // SAFETY: `ts` outlives the call; the remaining-time pointer may be null for absolute sleeps.
        while unsafe {
            libc::clock_nanosleep(libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME, &ts, std::ptr::null_mut())
        } == libc::EINTR
        {}
    }

    pub(super) fn set_timer_slack_ns(ns: libc::c_ulong) {
        // SAFETY: takes plain integers; a kernel that does not know it answers an error.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, ns, 0, 0, 0) };
    }

    const _: () = assert!(size_of::<libc::time_t>() == 8, "64-bit time is required");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtual_time_moves_only_when_told() {
        let clock = VirtualClock::new(WallUs(1_000));
        assert_eq!(clock.mono(), MonoUs(0));
        clock.sleep_until(MonoUs(500));
        clock.sleep_until(MonoUs(200));
        assert_eq!(clock.mono(), MonoUs(500));
        assert_eq!(clock.wall(), WallUs(1_500));
        clock.step_wall_us(-1_000);
        assert_eq!(clock.mono(), MonoUs(500));
        assert_eq!(clock.wall(), WallUs(500));
    }

    #[test]
    fn the_real_clock_never_wakes_early() {
        for ahead_us in [-10, 5, 200, 2_000] {
            let deadline = RealClock.mono().plus_us(ahead_us);
            RealClock.sleep_until(deadline);
            assert!(RealClock.mono() >= deadline);
        }
    }
}
