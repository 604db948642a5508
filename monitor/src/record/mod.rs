//! A recording from start to end.
//!
//! ```text
//! Session::prepare   probes each GPU once, builds its lanes and the header
//!   → Recorder::start   three threads a GPU (fast | slow and processes | ring and counter) and one writer thread, which also
//!                       looks whether a lane hangs in the driver
//!   → Recorder::stop    lanes finish, the writer closes the store; a lane that hangs is left behind
//! Session::simulate  the same lanes, one at a time, on a virtual clock
//! Alongside      the same again, beside something else that lives on that virtual clock
//! Observer       the same threads as a recorder's, for whoever wants the latest readings and keeps none
//! ```
//!
//! Threads meet in one bounded channel. A sampler never waits for it: what does not fit is dropped,
//! counted, and becomes an event. The writer looks into the channel every 250 ms instead of being woken
//! by each row, and flushes the journal each time.

use std::sync::Arc;

use gpumon_core::clock::Clock;
use gpumon_core::header::{self, Header, State};
use gpumon_core::timing::Characterisation;
use gpumon_core::units::{MonoUs, WallUs};

use crate::device::{Device, ReadError, Sensors};
use crate::lane::{
    CounterLane, CounterReader, FastLane, Lane, Live, Presence, ProcessLane, RingLane, SlowLane,
};

mod alongside;
mod drive;
mod observer;
mod recorder;
mod usage;
mod watch;
mod writer;

pub use alongside::Alongside;
pub use observer::{LOSSES, Latest, Observer};
pub use recorder::{Closed, Over, Recorder};

/// What to record.
#[derive(Clone, Debug)]
pub struct Config {
    /// Rate of the fast lane, Hz; see [`RATE_HZ`].
    pub rate_hz: f64,
    /// The command line, for the header.
    pub command: Vec<String>,
    /// Host name, for the header.
    pub host: String,
}

/// What is sampled beside the fast lane, and how often.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Rate of the slow lane, Hz; performance counters are read once a second at most.
    pub slow_hz: f64,
    /// Whether processes are listed.
    pub processes: bool,
}

impl Pace {
    /// That of a recording.
    pub const RECORDING: Self = Self { slow_hz: 10.0, processes: true };
}

/// Rates that the fast lane can be asked for, Hz.
pub const RATE_HZ: std::ops::RangeInclusive<f64> = 0.1..=1000.0;

/// The time between preparing and the first tick, µs: threads start and files are made in it.
const LEAD_US: i64 = 100_000;

/// A recording that is ready to start.
pub struct Session {
    header: Header,
    origin: MonoUs,
    start_wall: WallUs,
    lanes: Vec<LaneGroup>,
    live: Vec<Arc<Live>>,
    counters: Vec<Arc<CounterReader>>,
}

/// The lanes that share one thread.
struct LaneGroup {
    label: String,
    gpu: i32,
    lanes: Vec<Box<dyn Lane>>,
}

impl Session {
    /// Asks each GPU's sensors once and lays out its lanes. A GPU that is lost already, or whose driver does
    /// not return from a call, is left out, with a warning; if none is left, the error is that of the last.
    pub fn prepare(
        devices: &[Arc<dyn Device>],
        clock: &dyn Clock,
        config: &Config,
    ) -> Result<Self, ReadError> {
        Self::prepare_at(devices, clock, config, Pace::RECORDING)
    }

    /// The same at another pace.
    pub fn prepare_at(
        devices: &[Arc<dyn Device>],
        clock: &dyn Clock,
        config: &Config,
        pace: Pace,
    ) -> Result<Self, ReadError> {
        let mut last_error = None;
        let answers = devices.iter().zip(Sensors::probe_patiently(devices));
        let probed = answers.filter_map(|(device, answer)| match answer {
            Ok(sensors) => {
                if !sensors.energy_counter {
                    tracing::warn!(
                        "{} has no energy counter; its energy is integrated from power",
                        device.identity()
                    );
                }
                Some((device.clone(), sensors))
            }
            Err(e) => {
                tracing::warn!("{} is left out: {e}", device.identity());
                last_error = Some(e);
                None
            }
        });
        let (devices, sensors): (Vec<_>, Vec<_>) = probed.unzip();
        if let (true, Some(e)) = (devices.is_empty(), last_error) {
            return Err(e);
        }
        let origin = clock.mono().plus_us(LEAD_US);
        let start_wall = clock.wall().plus_us(LEAD_US);
        let mut session = Self {
            header: header(&devices, &sensors, start_wall, config),
            origin,
            start_wall,
            lanes: Vec::new(),
            live: Vec::new(),
            counters: Vec::new(),
        };
        for (gpu, (device, sensors)) in (0..).zip(devices.iter().zip(&sensors)) {
            session.add_lanes(gpu, device, sensors, config.rate_hz, pace);
        }
        Ok(session)
    }

    fn add_lanes(&mut self, gpu: i32, device: &Arc<dyn Device>, sensors: &Sensors, rate_hz: f64, pace: Pace) {
        let (origin, live) = (self.origin, Arc::<Live>::default());
        let presence = Presence::of(device.as_ref());
        let fast =
            FastLane::new(device.clone(), sensors, gpu, origin, rate_hz, live.clone(), presence.clone());
        let mut slow: Vec<Box<dyn Lane>> = vec![Box::new(SlowLane::new(
            device.clone(),
            sensors,
            gpu,
            origin,
            pace.slow_hz,
            presence.clone(),
        ))];
        if sensors.process && pace.processes {
            slow.push(Box::new(ProcessLane::new(device.clone(), gpu, origin, presence.clone())));
        }
        let mut rare: Vec<Box<dyn Lane>> = Vec::new();
        if sensors.energy_counter {
            let reader = Arc::new(CounterReader::new(device.clone(), gpu, origin, presence.clone()));
            rare.push(Box::new(CounterLane::new(reader.clone())));
            self.counters.push(reader);
        }
        if sensors.power_samples {
            let ring =
                RingLane::new(device.clone(), gpu, origin, self.start_wall, live.clone(), presence.clone());
            rare.push(Box::new(ring));
        }
        let groups: [(&str, Vec<Box<dyn Lane>>); 3] =
            [("fast", vec![Box::new(fast)]), ("slow", slow), ("ring", rare)];
        for (name, lanes) in groups {
            if !lanes.is_empty() {
                self.lanes.push(LaneGroup { label: format!("{name}-{gpu}"), gpu, lanes });
            }
        }
        self.live.push(live);
    }

    /// The header to create the store with.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Puts what is known of the GPUs' sensors into the header; what belongs to other GPUs or drivers is left out.
    pub fn know(&mut self, known: impl IntoIterator<Item = Characterisation>) {
        for found in known {
            let fits = |gpu: &&mut header::Gpu| gpu.uuid == found.uuid && gpu.driver == found.driver;
            if let Some(gpu) = self.header.gpus.iter_mut().find(fits) {
                gpu.characterisation = Some(found);
            }
        }
    }

    /// When the first tick is due.
    pub fn origin(&self) -> MonoUs {
        self.origin
    }

    /// What each GPU's lanes have done so far.
    pub fn live(&self) -> &[Arc<Live>] {
        &self.live
    }
}

fn header(devices: &[Arc<dyn Device>], sensors: &[Sensors], start_wall: WallUs, config: &Config) -> Header {
    let gpus = devices.iter().zip(sensors).map(|(device, sensors)| {
        let id = device.identity();
        let (works, unsupported) = sensors.names();
        header::Gpu {
            uuid: id.uuid.clone(),
            name: id.name.clone(),
            pci_id: id.pci_id.clone(),
            driver: id.driver.clone(),
            power_limit_mw: id.power_limit,
            mem_total_bytes: id.mem_total_bytes,
            power_scope: id.power_scope.map(str::to_owned),
            sensors: works,
            unsupported,
            mig_instances: id.mig_instances.clone(),
            characterisation: None,
        }
    });
    Header {
        schema: header::SCHEMA_VERSION,
        gpumon: env!("CARGO_PKG_VERSION").into(),
        simulated: devices.iter().any(|d| d.identity().simulated),
        state: State::Recording,
        host: config.host.clone(),
        command: config.command.clone(),
        start_wall_us: start_wall,
        duration_us: None,
        rate_hz: config.rate_hz,
        gpus: gpus.collect(),
        own_cost: None,
        damage: Vec::new(),
    }
}
