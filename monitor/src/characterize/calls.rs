//! What calls into the driver cost: a histogram a sensor.
//!
//! Rule: every call that characterisation makes is timed, in ns on the clock that it was given; histograms keep two
//! significant digits and go into the file in hdrhistogram's V2 format, base64, so that any of its tools can read them.
//! Cases: a call that fails is timed like any other; it costs the caller as much.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use gpumon_core::clock::Clock;
use gpumon_core::timing::CallCost;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Serializer, V2Serializer};

/// Histograms by the name of the call.
#[derive(Debug, Default)]
pub struct Calls(BTreeMap<&'static str, Histogram<u64>>);

impl Calls {
    /// Makes a call and keeps how long it took.
    pub fn time<T>(&mut self, clock: &dyn Clock, name: &'static str, call: impl FnOnce() -> T) -> T {
        let before_ns = clock.mono_ns();
        let answer = call();
        self.add(name, u64::try_from(clock.mono_ns() - before_ns).unwrap_or(0));
        answer
    }

    fn add(&mut self, name: &'static str, ns: u64) {
        if !self.0.contains_key(name)
            && let Ok(histogram) = Histogram::new(2)
        {
            self.0.insert(name, histogram);
        }
        if let Some(histogram) = self.0.get_mut(name) {
            // A histogram that grows takes any duration.
            let _ = histogram.record(ns);
        }
    }

    /// What was found, by name.
    pub fn costs(&self) -> Vec<CallCost> {
        let us = |ns: u64| ns as f64 / 1e3;
        let cost = |(name, histogram): (&&str, &Histogram<u64>)| {
            let mut bytes = Vec::new();
            let encoded = V2Serializer::new().serialize(histogram, &mut bytes).is_ok();
            CallCost {
                call: (*name).to_owned(),
                count: histogram.len(),
                p50_us: us(histogram.value_at_quantile(0.5)),
                p99_us: us(histogram.value_at_quantile(0.99)),
                max_us: us(histogram.max()),
                histogram: if encoded { STANDARD.encode(&bytes) } else { String::new() },
            }
        };
        self.0.iter().map(cost).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use gpumon_core::clock::VirtualClock;
    use gpumon_core::units::WallUs;
    use hdrhistogram::serialization::Deserializer;

    use super::*;

    #[test]
    fn the_file_holds_the_whole_histogram() {
        let clock = VirtualClock::new(WallUs(0));
        let mut calls = Calls::default();
        for us in 1..=100 {
            calls.time(&clock, "power", || clock.advance(Duration::from_micros(us)));
        }
        let [cost] = &calls.costs()[..] else { panic!("one call") };
        assert_eq!((cost.call.as_str(), cost.count), ("power", 100));
        assert!((cost.p50_us - 50.0).abs() < 0.6 && (cost.p99_us - 99.0).abs() < 1.0, "{cost:?}");
        assert!((cost.max_us - 100.0).abs() < 1.0);
        let bytes = STANDARD.decode(&cost.histogram).unwrap();
        let read: Histogram<u64> = Deserializer::new().deserialize(&mut &bytes[..]).unwrap();
        assert_eq!((read.len(), read.max()), (100, read.highest_equivalent(100_000)));
    }
}
