//! How much power a load draws, and at which clock.
//!
//! Rule: with a context the GPU runs at the highest supported clock that the lock allows, and draws
//! `idle + (idle_context − idle + level × dynamic_full) × fraction(clock)`. If that is more than the
//! power limit, the clock is the highest supported one at which it is not, and the reason says
//! "SW power cap". Without a context the GPU stands at its idle clock and draws `idle`.
//! Cases: a limit that even the lowest clock exceeds leaves the lowest clock, as the driver cannot go
//! below it; the lock's lower end yields to the power cap; a lock does not move a GPU without context.
//! Source: the cap, the reasons and both idle powers are what an H200 did (docs/simulated-gpu.md);
//! that idle-with-context power shrinks with the clock along the same curve is assumed.
//! Not done here: the control loop's delay; a real H200 exceeds its limit for tens of milliseconds.

use gpumon_core::units::{Megahertz, Milliwatts};

use crate::programme::{Demand, PPM};
use crate::spec::Spec;

/// Bits of NVML's clock-event reasons that the simulation sets.
pub mod reasons {
    /// Nothing runs on the GPU and its clocks are down.
    pub const GPU_IDLE: u64 = 0x1;
    /// The clock is lowered to stay below the power limit.
    pub const SW_POWER_CAP: u64 = 0x4;
}

/// What an administrator can set at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Lowest and highest graphics clock allowed, if locked.
    pub locked: Option<(Megahertz, Megahertz)>,
    /// Power limit.
    pub limit: Milliwatts,
}

/// What the GPU does at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// Power.
    pub power: Milliwatts,
    /// Graphics and SM clock.
    pub clock: Megahertz,
    /// Load level, millionths of full load.
    pub level_ppm: u32,
    /// Whether a CUDA context exists.
    pub context: bool,
    /// Clock-event reasons, see [`reasons`].
    pub reasons: u64,
}

/// Power as a function of load level and clock, for one kind of GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct PowerLaw {
    clocks: Vec<Megahertz>,
    fractions: Vec<f64>,
    idle_mw: f64,
    context_mw: f64,
    dynamic_full_mw: f64,
    idle_clock: Megahertz,
}

impl PowerLaw {
    /// The law of a GPU that is described by `spec`.
    pub fn new(spec: &Spec) -> Self {
        let clocks = spec.clocks.graphics();
        let fractions =
            clocks.iter().map(|c| fraction(&spec.power.dynamic_curve_mhz_share, f64::from(c.0))).collect();
        Self {
            clocks,
            fractions,
            idle_mw: spec.power.idle_w * 1e3,
            context_mw: (spec.power.idle_context_w - spec.power.idle_w) * 1e3,
            dynamic_full_mw: spec.power.dynamic_full_w * 1e3,
            idle_clock: Megahertz(spec.clocks.idle_mhz),
        }
    }

    /// Supported graphics clocks, ascending.
    pub fn clocks(&self) -> &[Megahertz] {
        &self.clocks
    }

    /// Whether any supported clock lies within `min` and `max`.
    pub(crate) fn allows(&self, min: Megahertz, max: Megahertz) -> bool {
        self.clocks.iter().any(|&clock| (min..=max).contains(&clock))
    }

    /// What the GPU does under a demand.
    pub(crate) fn state(&self, demand: Demand, settings: &Settings) -> State {
        let Demand { level_ppm, context } = demand;
        if !context {
            let power = Milliwatts(self.idle_mw.round() as u32);
            return State { power, clock: self.idle_clock, level_ppm, context, reasons: reasons::GPU_IDLE };
        }
        let highest = settings.locked.map_or(Megahertz(u32::MAX), |(_, max)| max);
        let allowed = self.clocks.partition_point(|&clock| clock <= highest).max(1);
        let fitting = self.fractions[..allowed]
            .partition_point(|&fraction| self.power_mw(level_ppm, fraction) <= settings.limit.0)
            .max(1);
        State {
            power: Milliwatts(self.power_mw(level_ppm, self.fractions[fitting - 1])),
            clock: self.clocks[fitting - 1],
            level_ppm,
            context,
            reasons: if self.power_mw(level_ppm, self.fractions[allowed - 1]) > settings.limit.0 {
                reasons::SW_POWER_CAP
            } else {
                0
            },
        }
    }

    /// Power above idling with a context that a level draws at a supported clock, W.
    pub(crate) fn dynamic_w(&self, level: f64, clock: Megahertz) -> f64 {
        let fraction = self.clocks.iter().position(|c| *c == clock).map_or(1.0, |i| self.fractions[i]);
        level * self.dynamic_full_mw / 1e3 * fraction
    }

    /// The level that draws so much above idling with a context at a supported clock.
    pub(crate) fn level_of(&self, dynamic_w: f64, clock: Megahertz) -> f64 {
        dynamic_w / self.dynamic_w(1.0, clock)
    }

    fn power_mw(&self, level_ppm: u32, fraction: f64) -> u32 {
        let level = f64::from(level_ppm) / PPM;
        (self.idle_mw + (self.context_mw + level * self.dynamic_full_mw) * fraction).round() as u32
    }
}

/// The curve at a clock: linear between its points, flat beyond its ends.
fn fraction(curve: &[[f64; 2]], mhz: f64) -> f64 {
    let above = curve.partition_point(|[x, _]| *x <= mhz);
    match (above.checked_sub(1).and_then(|i| curve.get(i)), curve.get(above)) {
        (Some([x0, y0]), Some([x1, y1])) => y0 + (y1 - y0) * (mhz - x0) / (x1 - x0),
        (Some([_, y]), None) | (None, Some([_, y])) => *y,
        (None, None) => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn h200() -> (PowerLaw, Settings) {
        let spec = Spec::builtin("h200").unwrap();
        (PowerLaw::new(&spec), Settings { locked: None, limit: Milliwatts(700_000) })
    }

    const FULL: Demand = Demand { level_ppm: 1_000_000, context: true };
    const IDLE: Demand = Demand { level_ppm: 0, context: true };

    #[test]
    fn the_measured_points_come_out() {
        let (law, settings) = h200();
        assert_eq!(law.clocks().len(), 110);
        let none = law.state(Demand { level_ppm: 0, context: false }, &settings);
        assert_eq!((none.power, none.reasons), (Milliwatts(79_000), reasons::GPU_IDLE));
        let idle = law.state(IDLE, &settings);
        assert_eq!((idle.power, idle.clock, idle.reasons), (Milliwatts(121_000), Megahertz(1980), 0));
        let full = law.state(FULL, &settings);
        assert_eq!((full.clock, full.reasons), (Megahertz(1500), reasons::SW_POWER_CAP));
        assert!(full.power <= settings.limit);
    }

    #[test]
    fn a_lock_below_the_cap_is_no_cap() {
        let (law, settings) = h200();
        let locked = Settings { locked: Some((Megahertz(345), Megahertz(1000))), ..settings };
        let state = law.state(FULL, &locked);
        assert_eq!((state.clock, state.reasons), (Megahertz(990), 0));
        assert!(law.state(IDLE, &locked).power < Milliwatts(121_000));
    }

    #[test]
    fn the_lowest_clock_is_the_end_of_the_cap() {
        let (law, settings) = h200();
        let state = law.state(FULL, &Settings { limit: Milliwatts(1_000), ..settings });
        assert_eq!((state.clock, state.reasons), (Megahertz(345), reasons::SW_POWER_CAP));
    }

    #[test]
    fn the_curve_is_linear_between_its_points_and_flat_outside() {
        let curve = [[100.0, 0.2], [200.0, 1.0]];
        assert_eq!(fraction(&curve, 50.0), 0.2);
        assert!((fraction(&curve, 150.0) - 0.6).abs() < 1e-12);
        assert_eq!(fraction(&curve, 300.0), 1.0);
    }
}
