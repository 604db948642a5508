//! What gpumon itself costs while it records at its default rate.
//!
//! Rule: a recording into a temporary folder runs for some seconds; its CPU time over its length is the share of a
//! core. For the GPU's power, spans with and without a recording alternate; each span's mean power is that of the energy
//! counter between two of its steps, and the difference is the mean over the pairs, within Student's t at 95 %.
//! Cases: without a counter there is no difference in power. On a simulated GPU the CPU time holds the simulation, and calls
//! draw no power.
//! What it cannot tell: a difference below what an idle GPU's power varies from span to span, which is why the bounds are there.

use std::path::PathBuf;
use std::sync::Arc;

use gpumon_core::clock::{Clock, RealClock};
use gpumon_core::timing::OwnOverhead;

use super::Error;
use super::collect::Collector;
use crate::device::Device;
use crate::record::{Config, Recorder, Session};
use crate::store::{Reader, Store};

/// Rate of a recording unless another is asked for, Hz.
const RATE_HZ: f64 = 10.0;
const PAIRS: usize = 4;
/// One in so many parts of the time tells the CPU's share.
const CPU_PART: i64 = 4;
/// Student's t at 97.5 % with three degrees of freedom.
const T: f64 = 3.182;

/// A folder that goes when this does.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // What is left behind in a temporary folder harms nobody.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// CPU of a recording of `span_us` in real time, % of a core.
pub fn cpu_pct(device: &Arc<dyn Device>, span_us: i64) -> Result<f64, Error> {
    let (recorder, _scratch, path) = record(device)?;
    RealClock.sleep_until(recorder.origin().plus_us(span_us));
    closed(recorder, &path)
}

/// CPU and power of recordings on a real GPU, in about `total_us`.
pub(super) fn overhead(collector: &mut Collector<'_>, total_us: i64) -> Result<OwnOverhead, Error> {
    let device = collector.device.clone();
    // Apart from the pairs, where the counter is read again and again, which costs more than recording does.
    let cpu_pct = cpu_pct(&device, total_us / CPU_PART)?;
    let span_us = (total_us - total_us / CPU_PART) / (2 * PAIRS as i64);
    let mut differences = Vec::new();
    for pair in 0..PAIRS {
        // Each second pair begins with the recording, so that a GPU that cools down favours neither.
        let before_w = if pair % 2 == 0 { span(collector, span_us)? } else { None };
        let (recorder, _scratch, path) = record(&device)?;
        let with_w = span(collector, span_us);
        closed(recorder, &path)?;
        let without_w = if pair % 2 == 0 { before_w } else { span(collector, span_us)? };
        if let (Some(without_w), Some(with_w)) = (without_w, with_w?) {
            differences.push(with_w - without_w);
        }
    }
    let told = (differences.len() == PAIRS).then(|| {
        let mean_w = differences.iter().sum::<f64>() / PAIRS as f64;
        let squares: f64 = differences.iter().map(|d| (d - mean_w).powi(2)).sum();
        (mean_w, T * (squares / (PAIRS - 1) as f64 / PAIRS as f64).sqrt())
    });
    Ok(OwnOverhead {
        cpu_pct,
        gpu_w: told.map(|(mean_w, _)| mean_w),
        gpu_w_within: told.map(|(_, within_w)| within_w),
    })
}

/// Mean power between two steps of the counter about `span_us` apart.
fn span(collector: &mut Collector<'_>, span_us: i64) -> Result<Option<f64>, Error> {
    let until = collector.clock.mono().plus_us(span_us);
    let begin = collector.next_step()?;
    while collector.clock.mono() < until {
        if (collector.interrupted)() {
            return Err(Error::Interrupted);
        }
        collector.clock.sleep_until(until.min(collector.clock.mono().plus_us(100_000)));
    }
    let end = collector.next_step()?;
    let mean_w =
        begin.zip(end).map(|(begin, end)| end.mj.saturating_sub(begin.mj) as f64 / (end.at_ms - begin.at_ms));
    Ok(mean_w)
}

fn record(device: &Arc<dyn Device>) -> Result<(Recorder, Scratch, PathBuf), Error> {
    let failed = |what: String| Error::Recording(what);
    let clock: Arc<dyn Clock> = Arc::new(RealClock);
    let name = format!("gpumon-characterize-{}-{}", std::process::id(), clock.mono().0);
    let scratch = Scratch(std::env::temp_dir().join(name));
    std::fs::create_dir_all(&scratch.0).map_err(|e| failed(e.to_string()))?;
    let path = scratch.0.join("recording");
    let config = Config { rate_hz: RATE_HZ, command: Vec::new(), host: String::new() };
    let session = Session::prepare(std::slice::from_ref(device), clock.as_ref(), &config)?;
    let store = Store::create(&path, session.header().clone(), false).map_err(|e| failed(e.to_string()))?;
    let recorder = Recorder::start(session, clock, store).map_err(|e| failed(e.to_string()))?;
    Ok((recorder, scratch, path))
}

/// Ends a recording and tells its CPU, % of a core.
fn closed(recorder: Recorder, path: &std::path::Path) -> Result<f64, Error> {
    let ended = recorder.stop();
    ended.storage.map_err(|e| Error::Recording(e.to_string()))?;
    let reader = Reader::open(path).map_err(|e| Error::Recording(e.to_string()))?;
    let header = reader.header();
    let cost = header.own_cost.as_ref().zip(header.duration_us.filter(|us| *us > 0));
    let share = cost.map(|(cost, us)| 100.0 * cost.cpu_s / (us as f64 / 1e6));
    share.ok_or_else(|| Error::Recording("it says nothing of its cost".into()))
}

#[cfg(test)]
mod tests {
    use gpumon_simgpu::Spec;

    use super::*;
    use crate::device::sim;

    #[test]
    fn a_recording_costs_some_cpu_and_a_simulated_gpu_nothing() {
        let clock: Arc<dyn Clock> = Arc::new(RealClock);
        let mut spec = Spec::builtin("h200").unwrap();
        spec.programme = Arc::new(gpumon_simgpu::Programme::idle(true));
        let device: Arc<dyn Device> = sim::fleet(&spec, &clock).remove(0);
        let mut collector = Collector::new(device, clock.as_ref(), &|| false).unwrap();
        let own = overhead(&mut collector, 2_000_000).unwrap();
        assert!((0.01..50.0).contains(&own.cpu_pct), "{own:?}");
        // The counter counts true energy between its steps; when it stepped is known to a call's length.
        assert!(own.gpu_w.unwrap().abs() < 20.0 && own.gpu_w_within.unwrap() > 0.0, "{own:?}");
    }
}
