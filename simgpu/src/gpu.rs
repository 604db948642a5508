//! One simulated GPU: what NVML would answer about it, and what is true.
//!
//! Rule: a sensor shows the value of its latest update at or before the time of the call; updates lie
//! on a grid whose phase differs from GPU to GPU. A power update is the true power, weighed by the sensor's
//! window (see [`crate::update`]), plus noise. Values are a function of seed, time and
//! the changes applied so far, never of the calls made before, but for the last sample of [`SimGpu::gpm`].
//! Cases: calls may come out of time order and may lie before zero; sensors with the same window
//! show the same value; the noise of a mean falls with the root of its window's length.
//! Not done here: locking. A GPU that several threads ask is put in a mutex by its owner.
//! Source: docs/simulated-gpu.md.

use std::sync::Arc;

use gpumon_core::units::{Megahertz, Millijoules, Milliwatts, MonoUs};

use crate::gpm::{self, GpmMetrics};
use crate::hash;
use crate::law::{PowerLaw, Settings, State};
use crate::programme::PPM;
use crate::ring::{Ring, RingReading};
use crate::sensors::{Calls, Reading, Sensor};
use crate::spec::Spec;
use crate::timeline::{Change, ChangeError, Timeline};
use crate::update::{Grid, Shape, Window};

const STREAM_GPU: u64 = 0x01;
const STREAM_UUID: u64 = 0x02;
const STREAM_OFFSET: u64 = 0x04;
const STREAM_NOISE: u64 = 0x05;
const STREAM_RING_NOISE: u64 = 0x06;

/// First PCI bus, and how many GPUs a PCI domain takes.
const FIRST_BUS: u32 = 0x1B;
const GPUS_PER_DOMAIN: u32 = 200;

const NJ_PER_MJ: i128 = 1_000_000;

/// Busy shares of the last update, %.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Utilization {
    /// Time in which any load ran, %.
    pub gpu_pct: u32,
    /// Time in which memory was busy, %.
    pub mem_pct: u32,
}

/// One simulated GPU. Times are µs since it was opened.
#[derive(Clone, Debug)]
pub struct SimGpu {
    spec: Arc<Spec>,
    index: u32,
    seed: u64,
    timeline: Timeline,
    calls: Calls,
    ring: Ring,
    power_grid: Grid,
    clock_grid: Grid,
    slow_grid: Grid,
    counter_grid: Grid,
    windows: Windows,
    counter_offset_mj: i128,
    last_gpm: Option<MonoUs>,
}

/// Windows of the sensors; lengths in µs.
#[derive(Clone, Copy, Debug)]
struct Windows {
    instant: Window,
    average: Window,
    usage: Window,
    thermal: i64,
    gpm_min: i64,
}

fn us(ms: f64) -> i64 {
    ((ms * 1e3).round() as i64).max(1)
}

fn window(length_ms: f64, shape: Shape, lag_ms: f64) -> Window {
    Window { length_us: us(length_ms), shape, lag_us: (lag_ms * 1e3).round() as i64 }
}

impl SimGpu {
    /// GPU number `index` (from 0) of those that `spec` describes.
    pub fn new(spec: &Arc<Spec>, index: u32) -> Self {
        let seed = hash::bits(spec.seed, STREAM_GPU, i64::from(index));
        let limit = Milliwatts((spec.power.limit_w * 1e3).round() as u32);
        let settings = Settings { locked: None, limit };
        let law = Arc::new(PowerLaw::new(spec));
        let sensors = &spec.sensors;
        Self {
            timeline: Timeline::new(law, Arc::clone(&spec.programme), settings),
            calls: Calls::new(sensors, seed),
            ring: Ring::new(&sensors.ring, seed),
            power_grid: Grid::new(seed, 0, us(sensors.update_ms)).jittered(sensors.update_jitter_ms * 1e3),
            clock_grid: Grid::new(seed, 1, us(sensors.update_ms)),
            slow_grid: Grid::new(seed, 2, us(sensors.update_ms)),
            counter_grid: Grid::new(seed, 3, us(sensors.counter_update_ms)),
            windows: Windows {
                instant: window(sensors.instant_window_ms, sensors.instant_shape, sensors.instant_lag_ms),
                average: window(sensors.average_window_ms, sensors.average_shape, sensors.average_lag_ms),
                usage: window(sensors.usage_window_ms, sensors.usage_shape, sensors.usage_lag_ms),
                thermal: us(spec.thermal.window_ms),
                gpm_min: us(sensors.gpm_min_ms),
            },
            // Between 1 MJ and 1 GJ, the wear of a day to a few weeks.
            counter_offset_mj: 1_000_000_000
                + i128::from(hash::bits(seed, STREAM_OFFSET, 0) % 999_000_000_000),
            last_gpm: None,
            spec: Arc::clone(spec),
            index,
            seed,
        }
    }

    /// All GPUs that `spec` describes, in order.
    pub fn fleet(spec: &Spec) -> Vec<Self> {
        let spec = Arc::new(spec.clone());
        (0..spec.count).map(|index| Self::new(&spec, index)).collect()
    }

    /// The description that this GPU follows.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Number of this GPU, from 0.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// UUID in NVML's form. Its third group is 0000, which no real UUID has.
    pub fn uuid(&self) -> String {
        let (a, b) = (hash::bits(self.seed, STREAM_UUID, 0), hash::bits(self.seed, STREAM_UUID, 1));
        format!("GPU-{:08x}-{:04x}-0000-{:04x}-{:012x}", a >> 32, a >> 16 & 0xFFFF, a & 0xFFFF, b >> 16)
    }

    /// PCI address, `domain:bus:device.function`.
    pub fn pci_id(&self) -> String {
        let (domain, slot) = (self.index / GPUS_PER_DOMAIN, self.index % GPUS_PER_DOMAIN);
        format!("{domain:08X}:{:02X}:00.0", FIRST_BUS + slot)
    }

    /// Supported graphics clocks, ascending.
    pub fn graphics_clocks(&self) -> Vec<Megahertz> {
        self.spec.clocks.graphics()
    }

    /// Clock lock and power limit in force.
    pub fn settings(&self) -> &Settings {
        self.timeline.settings()
    }

    /// Whether the GPU has a sensor.
    pub fn supports(&self, sensor: Sensor) -> bool {
        self.calls.supported(sensor)
    }

    /// Changes load, clocks or power limit at an instant; returns when it took effect, which is
    /// later only if a later change was made before. Fails on clocks and limits that the GPU lacks.
    pub fn apply(&mut self, at: MonoUs, change: Change) -> Result<MonoUs, ChangeError> {
        if let Change::PowerLimit(limit) = change {
            let bound = |w: f64| Milliwatts((w * 1e3).round() as u32);
            let (min, max) = (bound(self.spec.power.limit_min_w), bound(self.spec.power.limit_max_w));
            if !(min..=max).contains(&limit) {
                return Err(ChangeError::LimitOutOfRange { limit, min, max });
            }
        }
        self.timeline.apply(at, change)
    }

    /// Power over the short window (field 186).
    pub fn power_instant(&self, now: MonoUs) -> Reading<Milliwatts> {
        self.power(Sensor::PowerInstant, now, self.windows.instant)
    }

    /// Power over the long window (field 185).
    pub fn power_average(&self, now: MonoUs) -> Reading<Milliwatts> {
        self.power(Sensor::PowerAverage, now, self.windows.average)
    }

    /// Power from the legacy call, whose window depends on the kind of GPU.
    pub fn power_usage(&self, now: MonoUs) -> Reading<Milliwatts> {
        self.power(Sensor::PowerUsage, now, self.windows.usage)
    }

    /// Power of the whole module; where there is such a sensor, the GPU's average power.
    pub fn module_power(&self, now: MonoUs) -> Reading<Milliwatts> {
        self.power(Sensor::ModulePower, now, self.windows.average)
    }

    /// Power of the memory over the long window.
    pub fn mem_power(&self, now: MonoUs) -> Reading<Milliwatts> {
        self.calls.call(Sensor::MemPower, now, || self.mem_mw(now, self.windows.average.length_us))
    }

    /// Power of the memory over the short window.
    pub fn mem_power_instant(&self, now: MonoUs) -> Reading<Milliwatts> {
        self.calls.call(Sensor::MemPowerInstant, now, || self.mem_mw(now, self.windows.instant.length_us))
    }

    /// SM clock.
    pub fn sm_clock(&self, now: MonoUs) -> Reading<Megahertz> {
        let value = || self.timeline.state(self.clock_grid.latest(now)).clock;
        self.calls.call(Sensor::SmClock, now, value)
    }

    /// Memory clock.
    pub fn mem_clock(&self, now: MonoUs) -> Reading<Megahertz> {
        self.calls.call(Sensor::MemClock, now, || Megahertz(self.spec.clocks.mem_mhz))
    }

    /// GPU temperature, °C: ambient plus a rise in proportion to the trailing mean power.
    pub fn temperature(&self, now: MonoUs) -> Reading<i32> {
        self.calls.call(Sensor::Temperature, now, || self.gpu_c(now).round() as i32)
    }

    /// Memory temperature, °C.
    pub fn mem_temperature(&self, now: MonoUs) -> Reading<i32> {
        let value = || (self.gpu_c(now) + self.spec.thermal.mem_above_gpu_c).round() as i32;
        self.calls.call(Sensor::MemTemperature, now, value)
    }

    /// Busy shares over the last update period.
    pub fn utilization(&self, now: MonoUs) -> Reading<Utilization> {
        self.calls.call(Sensor::Utilization, now, || {
            let update = self.slow_grid.latest(now);
            let span_us = self.slow_grid.period_us;
            let busy_us =
                self.timeline.totals(update).busy_us - self.timeline.totals(update.plus_us(-span_us)).busy_us;
            let gpu_pct = 100.0 * busy_us as f64 / span_us as f64;
            let mem_pct = 100.0 * self.level(update, span_us) * self.spec.activity.dram_share;
            Utilization { gpu_pct: gpu_pct.round() as u32, mem_pct: mem_pct.round() as u32 }
        })
    }

    /// Memory in use, bytes.
    pub fn mem_used(&self, now: MonoUs) -> Reading<u64> {
        self.calls.call(Sensor::MemUsed, now, || match self.timeline.state(now).context {
            true => self.spec.memory.used_context_bytes,
            false => self.spec.memory.used_idle_bytes,
        })
    }

    /// Performance state: 0, which data-centre GPUs keep even when idle.
    pub fn pstate(&self, now: MonoUs) -> Reading<u32> {
        self.calls.call(Sensor::Pstate, now, || 0)
    }

    /// Clock-event reasons, see [`reasons`](crate::reasons).
    pub fn event_reasons(&self, now: MonoUs) -> Reading<u64> {
        let value = || self.timeline.state(self.clock_grid.latest(now)).reasons;
        self.calls.call(Sensor::EventReasons, now, value)
    }

    /// Fan speed, %; a GPU without the sensor on its list of unsupported ones turns at 30 %.
    pub fn fan(&self, now: MonoUs) -> Reading<u32> {
        self.calls.call(Sensor::Fan, now, || 30)
    }

    /// Energy since a moment long before time zero. Other calls wait for this one.
    pub fn energy_counter(&mut self, now: MonoUs) -> Reading<Millijoules> {
        let taken_nj = self.timeline.totals(self.counter_grid.latest(now)).energy_nj;
        let total_mj = (self.counter_offset_mj + taken_nj.div_euclid(NJ_PER_MJ)).max(0);
        self.calls.call_counter(now, || Millijoules(u64::try_from(total_mj).unwrap_or(u64::MAX)))
    }

    /// Readings in the ring that are newer than `since`, oldest first.
    pub fn ring(&self, now: MonoUs, since: Option<MonoUs>) -> Reading<Vec<RingReading>> {
        let reading = |(k, stamp): (i64, MonoUs)| {
            let span_us = self.ring.spacing_us();
            let noise_mw = self.noise_mw(STREAM_RING_NOISE, k, span_us);
            RingReading { at: stamp, power: milliwatts(self.ring.smoothed_mw(&self.timeline, k) + noise_mw) }
        };
        self.calls.call(Sensor::Ring, now, || self.ring.drain(now, since).map(reading).collect())
    }

    /// Performance counters since the call before, and the sample that the next call starts from.
    pub fn gpm(&mut self, now: MonoUs) -> Reading<GpmMetrics> {
        let from = self.last_gpm.replace(now);
        self.gpm_since(from, now)
    }

    /// Performance counters between a sample at `from` and one at `now`.
    pub fn gpm_between(&self, from: MonoUs, now: MonoUs) -> Reading<GpmMetrics> {
        self.gpm_since(Some(from), now)
    }

    /// The truth: state at an instant.
    pub fn true_state(&self, at: MonoUs) -> State {
        self.timeline.state(at)
    }

    /// The truth: power at an instant, W.
    pub fn true_power_w(&self, at: MonoUs) -> f64 {
        self.timeline.state(at).power.watts()
    }

    /// The truth: energy of a span, mJ.
    pub fn true_energy_mj(&self, from: MonoUs, to: MonoUs) -> f64 {
        let taken = self.timeline.totals(to).since(&self.timeline.totals(from));
        taken.energy_nj as f64 / NJ_PER_MJ as f64
    }

    /// The truth: every reading that the ring held in a span (after `from`, up to `to`), without noise.
    pub fn true_ring(&self, from: MonoUs, to: MonoUs) -> Vec<RingReading> {
        self.ring.truth(&self.timeline, from, to)
    }

    fn power(&self, sensor: Sensor, now: MonoUs, window: Window) -> Reading<Milliwatts> {
        self.calls.call(sensor, now, || {
            let update = self.power_grid.latest(now);
            let stream = STREAM_NOISE ^ ((window.length_us as u64) << 16);
            let noise_mw = self.noise_mw(stream, update.0, window.length_us);
            milliwatts(window.mean_mw(&self.timeline, update) + noise_mw)
        })
    }

    fn mem_mw(&self, now: MonoUs, window_us: i64) -> Milliwatts {
        let memory = &self.spec.memory;
        let level = self.level(self.power_grid.latest(now), window_us);
        milliwatts(1e3 * (memory.idle_w + (memory.full_w - memory.idle_w) * level))
    }

    fn gpu_c(&self, now: MonoUs) -> f64 {
        let mean_mw = self.timeline.mean_mw(self.slow_grid.latest(now), self.windows.thermal);
        self.spec.thermal.ambient_c + self.spec.thermal.rise_c_per_w * mean_mw / 1e3
    }

    fn gpm_since(&self, from: Option<MonoUs>, now: MonoUs) -> Reading<GpmMetrics> {
        self.calls.call(Sensor::Gpm, now, || {
            gpm::between(&self.timeline, &self.spec.activity, self.windows.gpm_min, from, now)
        })
    }

    /// Mean load level over a span, 0 to 1.
    fn level(&self, end: MonoUs, span_us: i64) -> f64 {
        let taken = self.timeline.totals(end).since(&self.timeline.totals(end.plus_us(-span_us)));
        taken.level_ppm_us as f64 / PPM / span_us as f64
    }

    fn noise_mw(&self, stream: u64, index: i64, window_us: i64) -> f64 {
        let deviation_mw = 1e3 * self.spec.sensors.noise_w;
        let shorter = (self.windows.instant.length_us as f64 / window_us as f64).sqrt();
        deviation_mw * shorter * hash::normal(hash::bits(self.seed, stream, index))
    }
}

fn milliwatts(mw: f64) -> Milliwatts {
    Milliwatts(mw.round().max(0.0) as u32)
}
