//! What is counted of one GPU over one span while the tables go by.

use gpumon_core::calibration::Correction;
use gpumon_core::header;
use gpumon_core::rows::{CounterRow, FastRow, RingRow, SlowRow};
use hdrhistogram::Histogram;

use super::energy::{Hold, Integral};
use super::gain;
use super::{ClockLimit, GpuSummary, Window, reasons};
use crate::energy::{Estimator, Timing};

/// Weights of the histogram of power are in units of this many µs.
const WEIGHT_US: i64 = 100;

/// Counts of one GPU over one span.
#[derive(Clone, Debug)]
pub(super) struct Tally {
    from_us: i64,
    to_us: i64,
    ring: Integral,
    instant: Integral,
    average: Integral,
    estimator: Estimator,
    ring_power: Power,
    fast_power: Power,
    ring_spacing_us: Histogram<u64>,
    last_ring_us: Option<i64>,
    sm_mhz: Clocks,
    util_rows: u64,
    idle_rows: u64,
    reason_rows: u64,
    limits: Vec<(&'static str, u64)>,
    temp_c_max: Option<i32>,
}

/// Statistics of one source of power.
#[derive(Clone, Debug)]
struct Power {
    weighted_mw: Histogram<u64>,
    max_mw: Option<i32>,
    readings: u64,
}

#[derive(Clone, Debug, Default)]
struct Clocks {
    sum: f64,
    count: u64,
    min: Option<i32>,
    max: Option<i32>,
}

fn histogram() -> Histogram<u64> {
    #[allow(clippy::expect_used, reason = "three significant digits are always accepted")]
    Histogram::new(3).expect("a valid precision")
}

impl Power {
    fn new() -> Self {
        Self { weighted_mw: histogram(), max_mw: None, readings: 0 }
    }

    fn reading(&mut self, mw: i32) {
        self.readings += 1;
        self.max_mw = self.max_mw.max(Some(mw));
    }

    fn held(&mut self, time_us: i64, mw: f64) {
        let weight = u64::try_from(time_us / WEIGHT_US).unwrap_or(0);
        // An auto-resizing histogram takes every value.
        let _ = self.weighted_mw.record_n(mw.max(0.0) as u64, weight);
    }

    fn p99_w(&self) -> Option<f64> {
        // The histogram's classes are a thousandth wide; no quantile lies above the largest reading.
        let max_mw = u64::try_from(self.max_mw?).ok()?;
        (!self.weighted_mw.is_empty())
            .then(|| self.weighted_mw.value_at_quantile(0.99).min(max_mw) as f64 / 1e3)
    }
}

impl Tally {
    /// Counts over `window` of a GPU whose sensors have this timing and whose ring has this noise.
    pub(super) fn new(window: &Window, timing: &Timing, noise_w: f64) -> Self {
        let (from_us, to_us) = (window.from_us, window.to_us);
        Self {
            from_us,
            to_us,
            ring: Integral::new(Hold::Halves, from_us, to_us),
            instant: Integral::new(Hold::Forward, from_us, to_us),
            average: Integral::new(Hold::Forward, from_us, to_us),
            estimator: Estimator::new(from_us, to_us, timing, noise_w),
            ring_power: Power::new(),
            fast_power: Power::new(),
            ring_spacing_us: histogram(),
            last_ring_us: None,
            sm_mhz: Clocks::default(),
            util_rows: 0,
            idle_rows: 0,
            reason_rows: 0,
            limits: Vec::new(),
            temp_c_max: None,
        }
    }

    fn holds(&self, at_us: i64) -> bool {
        (self.from_us..self.to_us).contains(&at_us)
    }

    pub(super) fn ring(&mut self, row: &RingRow) {
        self.estimator.ring(row.mono_us, f64::from(row.power_mw));
        let power = &mut self.ring_power;
        self.ring.add(row.mono_us, f64::from(row.power_mw), |time_us, mw| power.held(time_us, mw));
        if self.holds(row.mono_us) {
            self.ring_power.reading(row.power_mw);
            if let Some(last_us) = self.last_ring_us.replace(row.mono_us) {
                let _ = self.ring_spacing_us.record(u64::try_from(row.mono_us - last_us).unwrap_or(0));
            }
        }
    }

    pub(super) fn fast(&mut self, row: &FastRow) {
        if let Some(mw) = row.power_instant_mw {
            self.estimator.instant(row.mono_us, f64::from(mw));
            let power = &mut self.fast_power;
            self.instant.add(row.mono_us, f64::from(mw), |time_us, mw| power.held(time_us, mw));
        }
        if let Some(mw) = row.power_average_mw {
            self.average.add(row.mono_us, f64::from(mw), |_, _| {});
        }
        if !self.holds(row.mono_us) {
            return;
        }
        if let (true, Some(mw)) = (row.fresh, row.power_instant_mw.or(row.power_average_mw)) {
            self.fast_power.reading(mw);
        }
        if let Some(mhz) = row.sm_mhz {
            let clocks = &mut self.sm_mhz;
            clocks.sum += f64::from(mhz);
            clocks.count += 1;
            clocks.min = Some(clocks.min.map_or(mhz, |m| m.min(mhz)));
            clocks.max = clocks.max.max(Some(mhz));
        }
    }

    pub(super) fn slow(&mut self, row: &SlowRow) {
        if !self.holds(row.mono_us) {
            return;
        }
        if let Some(util) = row.util_gpu_pct {
            self.util_rows += 1;
            self.idle_rows += u64::from(util == 0);
        }
        if let Some(mask) = row.event_reasons {
            self.reason_rows += 1;
            for reason in reasons::limits(mask as u64) {
                match self.limits.iter_mut().find(|(known, _)| *known == reason) {
                    Some((_, count)) => *count += 1,
                    None => self.limits.push((reason, 1)),
                }
            }
        }
        self.temp_c_max = self.temp_c_max.max(row.temp_c);
    }

    pub(super) fn counter(&mut self, row: &CounterRow) {
        self.estimator.counter(row);
    }

    /// The figures; `correction` is what a meter said about this GPU.
    pub(super) fn summary(self, gpu: &header::Gpu, correction: Option<&Correction>) -> GpuSummary {
        let (ring, instant) = (self.ring.energy_j(), self.instant.energy_j());
        let best = self.estimator.finish(self.average.energy_j());
        let parts = best.and_then(|b| b.parts);
        let half_j = parts.map(|p| p.half_j());
        let bound = |sign: f64| best.zip(half_j).map(|(b, half_j)| (b.j + sign * half_j).max(0.0));
        let seconds = (self.to_us - self.from_us) as f64 / 1e6;
        let power = if ring.is_some() { &self.ring_power } else { &self.fast_power };
        let spacing = |us: u64| us as f64 / 1e3;
        let has_spacing = !self.ring_spacing_us.is_empty();
        let reasons = self.reason_rows;
        let summary = GpuSummary {
            uuid: gpu.uuid.clone(),
            name: gpu.name.clone(),
            energy_j: best.map(|b| b.j),
            energy_method: best.map(|b| b.method.name()),
            energy_low_j: bound(-1.0),
            energy_high_j: bound(1.0),
            energy_parts: parts,
            energy_counter_weight: best.map(|b| b.counter_weight),
            energy_too_short: best.and_then(|b| b.too_short),
            gain_pct: gain::UNKNOWN_PCT,
            gain_source: None,
            raw: None,
            energy_ring_j: ring,
            energy_counter_j: best.and_then(|b| b.counter_j),
            energy_instant_j: instant,
            power_mean_w: best.map(|b| b.j / seconds),
            power_p99_w: power.p99_w(),
            power_max_w: power.max_mw.map(|mw| f64::from(mw) / 1e3),
            distinct_power_per_s: if seconds > 0.0 { power.readings as f64 / seconds } else { 0.0 },
            ring_readings: self.ring_power.readings,
            ring_spacing_ms: has_spacing.then(|| spacing(self.ring_spacing_us.value_at_quantile(0.5))),
            ring_gap_max_ms: has_spacing.then(|| spacing(self.ring_spacing_us.max())),
            sm_mhz_mean: (self.sm_mhz.count > 0).then(|| self.sm_mhz.sum / self.sm_mhz.count as f64),
            sm_mhz_min: self.sm_mhz.min,
            sm_mhz_max: self.sm_mhz.max,
            temp_c_max: self.temp_c_max,
            idle_share: (self.util_rows > 0).then(|| self.idle_rows as f64 / self.util_rows as f64),
            attribution: None,
            clock_limits: self
                .limits
                .into_iter()
                .map(|(reason, count)| ClockLimit { reason, share: count as f64 / reasons as f64 })
                .collect(),
        };
        match correction {
            Some(correction) => gain::corrected(summary, correction, seconds),
            None => summary,
        }
    }
}
