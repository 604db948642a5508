//! The sensors that can be asked, what a call costs, and which calls wait for each other.
//!
//! Rule: a call returns after its cost, which is log-normal with the median and 99th percentile that
//! the spec gives, hashed from the seed, the sensor and the time. Calls listed as waiting for the
//! counter also wait until an energy-counter call in progress has returned; so does the counter
//! itself. Costs are cut off at 2.85 deviations, so a counter call takes 27 ms at most on an H200,
//! which is the longest wait that was measured.
//! Cases: a call on an unsupported sensor costs as much as one that answers.
//! Not done here: waiting of calls that were issued before the counter call was known: a caller that
//! asks out of time order sees the counter calls made so far.
//! Source: docs/simulated-gpu.md.

use std::collections::VecDeque;
use std::fmt;

use gpumon_core::units::MonoUs;
use serde::Deserialize;

use crate::hash;
use crate::spec::SensorsSpec;

macro_rules! sensors {
    ($( $(#[doc = $doc:literal])* $sensor:ident = $text:literal, )*) => {
        /// A question that NVML answers.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Sensor {
            $( $(#[doc = $doc])* $sensor, )*
        }

        impl Sensor {
            /// Every sensor.
            pub const ALL: &[Self] = &[$(Self::$sensor),*];

            /// The sensor's name in a spec.
            pub fn name(self) -> &'static str {
                match self { $(Self::$sensor => $text),* }
            }
        }
    };
}

sensors! {
    /// Power from the legacy call, mW.
    PowerUsage = "power_usage",
    /// Power averaged over the long window (field 185), mW.
    PowerAverage = "power_average",
    /// Power over the short window (field 186), mW.
    PowerInstant = "power_instant",
    /// Power of the whole module, mW.
    ModulePower = "module_power",
    /// Power of the memory, averaged, mW.
    MemPower = "mem_power",
    /// Power of the memory over the short window, mW.
    MemPowerInstant = "mem_power_instant",
    /// Energy since a moment before time zero, mJ.
    EnergyCounter = "energy_counter",
    /// The ring of power readings.
    Ring = "ring",
    /// SM clock, MHz.
    SmClock = "sm_clock",
    /// Memory clock, MHz.
    MemClock = "mem_clock",
    /// GPU temperature, °C.
    Temperature = "temperature",
    /// Memory temperature, °C.
    MemTemperature = "mem_temperature",
    /// Busy shares of GPU and memory, %.
    Utilization = "utilization",
    /// Memory in use, bytes.
    MemUsed = "mem_used",
    /// Performance state.
    Pstate = "pstate",
    /// Clock-event reasons.
    EventReasons = "event_reasons",
    /// Fan speed, %.
    Fan = "fan",
    /// GPU performance-monitoring counters.
    Gpm = "gpm",
    /// The processes on the GPU.
    Processes = "processes",
    /// What each process did, %.
    ProcessUtilization = "process_utilization",
}

impl fmt::Display for Sensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a call gave no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SensorError {
    /// The GPU has no such sensor; asking again gives the same answer.
    #[error("sensor `{sensor}` is not supported by this GPU; its column stays null")]
    Unsupported {
        /// The sensor asked.
        sensor: Sensor,
    },
}

/// The outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading<T> {
    /// The value that the call gave.
    pub value: Result<T, SensorError>,
    /// When the call returned.
    pub done: MonoUs,
}

/// Costs and waits of one GPU's calls.
#[derive(Clone, Debug)]
pub(crate) struct Calls {
    seed: u64,
    supported: Vec<bool>,
    waits: Vec<bool>,
    /// Median, µs, and deviation of the logarithm.
    costs: Vec<(f64, f64)>,
    /// Counter calls, as start and end, newest last.
    counter_calls: VecDeque<(MonoUs, MonoUs)>,
}

/// Longest cost, in deviations of its logarithm.
const CUT: f64 = 2.85;
const COUNTER_CALLS_KEPT: usize = 16;
const STREAM_COST: u64 = 0x100;

impl Calls {
    pub(crate) fn new(spec: &SensorsSpec, seed: u64) -> Self {
        let costs = Sensor::ALL.iter().map(|sensor| {
            let [median_us, p99_us] = spec.cost_us.get(sensor).copied().unwrap_or([1.0, 1.0]);
            (median_us, (p99_us / median_us).ln() / hash::NORMAL_P99)
        });
        Self {
            seed,
            supported: Sensor::ALL.iter().map(|s| !spec.unsupported.contains(s)).collect(),
            waits: Sensor::ALL.iter().map(|s| spec.waits_for_counter.contains(s)).collect(),
            costs: costs.collect(),
            counter_calls: VecDeque::new(),
        }
    }

    pub(crate) fn supported(&self, sensor: Sensor) -> bool {
        self.supported[sensor as usize]
    }

    /// A call issued at `now`: its value, if the sensor exists, and when it returns.
    pub(crate) fn call<T>(&self, sensor: Sensor, now: MonoUs, value: impl FnOnce() -> T) -> Reading<T> {
        let value = match self.supported(sensor) {
            true => Ok(value()),
            false => Err(SensorError::Unsupported { sensor }),
        };
        Reading { value, done: self.done(sensor, now) }
    }

    /// The same for the counter, for which later calls wait.
    pub(crate) fn call_counter<T>(&mut self, now: MonoUs, value: impl FnOnce() -> T) -> Reading<T> {
        let reading = self.call(Sensor::EnergyCounter, now, value);
        if self.counter_calls.len() == COUNTER_CALLS_KEPT {
            self.counter_calls.pop_front();
        }
        self.counter_calls.push_back((now, reading.done));
        reading
    }

    fn done(&self, sensor: Sensor, now: MonoUs) -> MonoUs {
        let (median_us, deviation) = self.costs[sensor as usize];
        let z = hash::normal(hash::bits(self.seed, STREAM_COST + sensor as u64, now.0)).min(CUT);
        let cost_us = (median_us * (deviation * z).exp()).round().max(1.0) as i64;
        let begin = match self.waits[sensor as usize] {
            true => self.counter_free(now),
            false => now,
        };
        begin.plus_us(cost_us)
    }

    /// When no counter call is in progress any more, seen from `now`.
    fn counter_free(&self, now: MonoUs) -> MonoUs {
        let in_progress = self.counter_calls.iter().filter(|(from, to)| (*from..*to).contains(&now));
        in_progress.map(|&(_, to)| to).max().unwrap_or(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Spec;

    fn calls() -> Calls {
        Calls::new(&Spec::builtin("h200").unwrap().sensors, 3)
    }

    #[test]
    fn costs_have_the_measured_median_and_99th_percentile() {
        for (sensor, median, p99) in [
            (Sensor::EnergyCounter, 3_000.0, 17_000.0),
            (Sensor::Ring, 290.0, 690.0),
            (Sensor::SmClock, 2.4, 12.0),
        ] {
            let calls = calls();
            let mut costs: Vec<i64> =
                (0..10_000).map(|t| calls.call(sensor, MonoUs(t * 1000), || ()).done.0 - t * 1000).collect();
            costs.sort_unstable();
            let near = |found: i64, expected: f64| (found as f64 - expected).abs() < 0.1 * expected + 0.6;
            assert!(near(costs[5_000], median), "{sensor}: {}", costs[5_000]);
            assert!(near(costs[9_900], p99), "{sensor}: {}", costs[9_900]);
            assert!(costs[0] >= 1 && costs[9_999] < 27_500);
        }
    }

    #[test]
    fn the_ring_and_slow_calls_wait_for_the_counter_and_fast_ones_do_not() {
        let mut calls = calls();
        let counter = calls.call_counter(MonoUs(1_000_000), || ());
        let during = MonoUs(1_000_100);
        assert!(counter.done > MonoUs(1_000_400));
        for sensor in [Sensor::Ring, Sensor::Temperature, Sensor::EnergyCounter, Sensor::EventReasons] {
            assert!(calls.call(sensor, during, || ()).done > counter.done, "{sensor}");
        }
        for sensor in [Sensor::PowerInstant, Sensor::PowerAverage, Sensor::PowerUsage, Sensor::SmClock] {
            assert!(calls.call(sensor, during, || ()).done < MonoUs(1_000_200), "{sensor}");
        }
        assert!(calls.call(Sensor::Temperature, MonoUs(999_000), || ()).done < MonoUs(1_000_000));
        assert!(calls.call(Sensor::Temperature, counter.done, || ()).done < counter.done.plus_us(100));
    }

    #[test]
    fn the_names_are_those_of_the_spec() {
        for sensor in Sensor::ALL {
            let parsed: Result<std::collections::BTreeMap<String, Sensor>, _> =
                toml::from_str(&format!("s = \"{sensor}\""));
            assert_eq!(parsed.unwrap()["s"], *sensor);
        }
    }
}
