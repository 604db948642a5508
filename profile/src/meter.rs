//! What the GPU's sensors say over a span: mean power, mean clock, throttling, activity.
//!
//! Rule: power is the mean of the driver's own readings (its ring) with time stamps within the span; a GPU without a
//! ring is asked at each tick, short window before average. The clock is the mean over the ticks, the throttling
//! reasons are those seen at any tick.
//! Cases: a sensor that the GPU lacks gives nothing; one that fails at a tick is asked again at the next; a lost GPU
//! is an error at the end of the span.
//! Not done here: a step of the wall clock within the span, which loses the ring's readings on one side of it.

use gpumon_core::clock::Clock;
use gpumon_core::units::WallUs;
use gpumon_monitor::device::{Activity, Device, PowerSample, ReadError, SlowSensor};

use crate::interval::Mean;

/// Time between ticks, µs: the ring holds some two seconds, so it is emptied well before.
const RING_TICK_US: i64 = 500_000;
/// Without a ring: the update period of the slowest power sensors.
const POLL_TICK_US: i64 = 100_000;

/// Sensors read over a span. Make one, start the work, call [`Meter::tick`] about every [`Meter::tick_us`], then
/// [`Meter::finish`].
pub struct Meter<'a> {
    device: &'a dyn Device,
    clock: &'a dyn Clock,
    ring: bool,
    since: WallUs,
    start: WallUs,
    samples: Vec<PowerSample>,
    polled_w: Vec<f64>,
    clocks_mhz: Vec<f64>,
    reasons: u64,
    temp_c: Option<f64>,
    lost: Option<ReadError>,
}

/// What was read over a span. `None`: the GPU does not say, or nothing was read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// Mean power of the whole GPU, W.
    pub power: Option<Mean>,
    /// Power readings in that mean.
    pub readings: usize,
    /// Mean SM clock, MHz.
    pub sm_mhz: Option<f64>,
    /// NVML's clock-event reason bits, all that were seen.
    pub reasons: u64,
    /// Temperature of the GPU at the end, °C.
    pub temp_c: Option<f64>,
    /// What the GPU's units did.
    pub activity: Option<Activity>,
}

impl<'a> Meter<'a> {
    /// A meter whose span begins now.
    pub fn start(device: &'a dyn Device, clock: &'a dyn Clock) -> Self {
        // The first call begins the span of the performance counters and gives nothing.
        let primed = device.activity();
        let start = clock.wall();
        let ring = !device.power_samples(start, &mut Vec::new()).is_err_and(|e| e.is_final());
        let mut meter = Self {
            device,
            clock,
            ring,
            since: start,
            start,
            samples: Vec::new(),
            polled_w: Vec::new(),
            clocks_mhz: Vec::new(),
            reasons: 0,
            temp_c: None,
            lost: None,
        };
        meter.keep(primed);
        meter
    }

    /// How often [`Meter::tick`] should be called, µs.
    pub fn tick_us(&self) -> i64 {
        if self.ring { RING_TICK_US } else { POLL_TICK_US }
    }

    /// Reads the sensors once.
    pub fn tick(&mut self) {
        let clock = self.device.sm_clock();
        let clock = self.keep(clock);
        self.clocks_mhz.extend(clock.map(|mhz| f64::from(mhz.0)));
        let reasons = self.device.slow(SlowSensor::EventReasons);
        self.reasons |= self.keep(reasons).map_or(0, |bits| bits as u64);
        if self.ring {
            self.drain();
        } else {
            let power = self.device.power();
            let power = self.keep(power).and_then(|p| p.instant.or(p.average));
            self.polled_w.extend(power.map(|p| p.watts()));
        }
    }

    /// Mean power of the readings so far, W.
    pub fn power(&self) -> Option<Mean> {
        Mean::of(&self.readings_w(self.clock.wall()))
    }

    /// Power readings within the span, W, in time's order.
    fn readings_w(&self, end: WallUs) -> Vec<f64> {
        let within = self.samples.iter().filter(|s| s.time > self.start && s.time <= end);
        let ring_w: Vec<f64> = within.map(|s| s.power.watts()).collect();
        if ring_w.is_empty() { self.polled_w.clone() } else { ring_w }
    }

    /// Ends the span.
    pub fn finish(mut self) -> Result<Measured, ReadError> {
        let end = self.clock.wall();
        if self.clocks_mhz.is_empty() {
            self.tick();
        }
        let temp_c = self.device.slow(SlowSensor::Temperature);
        self.temp_c = self.keep(temp_c).map(|c| c as f64);
        let activity = self.device.activity();
        let activity = self.keep(activity);
        if self.ring {
            self.drain();
        }
        if let Some(lost) = self.lost {
            return Err(lost);
        }
        let power_w = self.readings_w(end);
        Ok(Measured {
            power: Mean::of(&power_w),
            readings: power_w.len(),
            sm_mhz: Mean::of(&self.clocks_mhz).map(|mhz| mhz.mean),
            reasons: self.reasons,
            temp_c: self.temp_c,
            activity,
        })
    }

    fn drain(&mut self) {
        let before = self.samples.len();
        let drained = self.device.power_samples(self.since, &mut self.samples);
        self.keep(drained);
        if let Some(last) = self.samples.get(before..).and_then(<[_]>::last) {
            self.since = last.time;
        }
    }

    /// The value, if there is one. A lost GPU is remembered.
    fn keep<T>(&mut self, read: Result<T, ReadError>) -> Option<T> {
        match read {
            Ok(value) => Some(value),
            Err(lost @ ReadError::Lost(_)) => {
                self.lost.get_or_insert(lost);
                None
            }
            Err(_) => None,
        }
    }
}
