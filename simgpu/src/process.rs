//! Processes that share the load.
//!
//! Rule: a process has a share of the load while it lives; its SM utilisation over a span is that share of the time in
//! which any load ran, its memory utilisation the same share of the GPU's, both over its life within the span and in
//! whole per cent, as a driver gives them. The energy above idle at a moment is, in truth, shared in proportion to the
//! shares of those that live then.
//! Cases: shares of processes that live at one time add up to 100 % at most; what they leave is load of which nobody
//! says whose it is. A process that ended within a span was still at work in it and holds no memory any more.
//! Assumed: a share is time with a kernel of that process; kernels of two never run at once.
//! Not done here: a load that becomes smaller because a process ended.

use gpumon_core::units::MonoUs;
use serde::Deserialize;

use crate::check::wrong;
use crate::spec::SpecError;

/// A process that computes on each GPU of the description.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessSpec {
    /// Its id.
    pub pid: u32,
    /// What it calls itself.
    pub name: String,
    /// Its share of the load, %.
    pub share_pct: f64,
    /// Memory that it holds, bytes.
    #[serde(default)]
    pub mem_bytes: u64,
    /// The GPU instance that it runs on.
    #[serde(default)]
    pub mig_instance: Option<u32>,
    /// When it begins, ms after time zero.
    #[serde(default)]
    pub from_ms: f64,
    /// When it ends, ms after time zero; never if absent.
    #[serde(default)]
    pub to_ms: Option<f64>,
}

/// What one process did over a span.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessUse {
    /// Which process.
    pub process: ProcessSpec,
    /// Whether it still lives at the end of the span.
    pub lives: bool,
    /// Share of time with a kernel of it, %; nothing where the GPU does not say.
    pub sm_util_pct: Option<u32>,
    /// Share of time with memory traffic of it, %; likewise.
    pub mem_util_pct: Option<u32>,
}

impl ProcessSpec {
    fn from(&self) -> MonoUs {
        MonoUs((self.from_ms * 1e3) as i64)
    }

    fn to(&self) -> MonoUs {
        MonoUs(self.to_ms.map_or(i64::MAX, |ms| (ms * 1e3) as i64))
    }

    /// Whether it lives at a moment.
    pub fn lives(&self, at: MonoUs) -> bool {
        (self.from()..self.to()).contains(&at)
    }

    /// The part of a span in which it lives; nothing if there is none.
    pub(crate) fn within(&self, from: MonoUs, to: MonoUs) -> Option<(MonoUs, MonoUs)> {
        let (from, to) = (from.max(self.from()), to.min(self.to()));
        (from < to).then_some((from, to))
    }
}

/// Refuses processes that cannot be.
pub(crate) fn check(processes: &[ProcessSpec]) -> Result<(), SpecError> {
    for (process, i) in processes.iter().zip(0..) {
        let key = |name: &str| format!("process[{i}].{name}");
        if !(0.0..=100.0).contains(&process.share_pct) {
            return Err(wrong(&key("share_pct"), process.share_pct, "a share of the load, 0 to 100 %"));
        }
        if process.pid == 0 || i32::try_from(process.pid).is_err() {
            return Err(wrong(&key("pid"), process.pid, "the id of a process, 1 or more"));
        }
        if processes.iter().take(i).any(|other| other.pid == process.pid) {
            return Err(wrong(&key("pid"), process.pid, "an id that no other process has"));
        }
        const MOST_MS: f64 = 1e12;
        if !(0.0..=MOST_MS).contains(&process.from_ms) {
            return Err(wrong(&key("from_ms"), process.from_ms, "a time from 0 on, ms"));
        }
        if process.to_ms.is_some_and(|to| !(process.from_ms..=MOST_MS).contains(&to)) {
            return Err(wrong(&key("to_ms"), process.to_ms.unwrap_or(0.0), "a time after `from_ms`, ms"));
        }
        // The most live at once when one of them begins.
        let at_once = processes.iter().filter(|other| other.lives(process.from()));
        let sum: f64 = at_once.map(|other| other.share_pct).sum();
        if sum > 100.0 + 1e-9 {
            return Err(wrong(&key("share_pct"), sum, "shares that add up to 100 % at most at any time"));
        }
    }
    Ok(())
}
