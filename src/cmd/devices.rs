//! `gpumon devices`: each GPU with its limits, clocks and the sensors that work.

use std::fmt::Write as _;
use std::sync::Arc;

use anyhow::Result;
use gpumon_core::timing::{CounterTiming, PowerTiming, RingTiming};
use gpumon_core::units::WallUs;
use gpumon_monitor::control::left;
use gpumon_monitor::device::{Device, ReadError, Sensors};
use serde::Serialize;

use super::session::{self, Scope};
use super::{DONE, characterize, known, restore};
use crate::cli::DevicesArgs;
use crate::output;

#[derive(Serialize)]
struct Report {
    gpus: Vec<Gpu>,
}

#[derive(Serialize)]
struct Gpu {
    index: u32,
    name: String,
    uuid: String,
    pci_id: String,
    driver: String,
    simulated: bool,
    power_limit_w: Option<f64>,
    power_scope: Option<&'static str>,
    mem_total_bytes: Option<u64>,
    sm_clocks_mhz: Vec<u32>,
    mig_enabled: Option<bool>,
    mig_uuids: Vec<String>,
    sensors: Vec<String>,
    unsupported: Vec<String>,
    sensor_timing: Option<Timing>,
    /// What a gpumon that died left set on it.
    left_behind: Option<String>,
    error: Option<String>,
}

/// What `gpumon characterize` found of the power sensors.
#[derive(Serialize)]
struct Timing {
    made_wall_us: WallUs,
    instant: Option<PowerTiming>,
    average: Option<PowerTiming>,
    ring: Option<RingTiming>,
    counter: Option<CounterTiming>,
}

impl Timing {
    fn of(device: &dyn Device) -> Option<Self> {
        let known = known::of(device)?;
        Some(Self {
            made_wall_us: known.made_wall_us,
            instant: known.instant,
            average: known.average,
            ring: known.ring,
            counter: known.counter,
        })
    }

    fn text(&self) -> String {
        let power = |name: &str, timing: Option<PowerTiming>| {
            let t = timing?;
            let shape = characterize::shape(t.shape);
            Some(format!("{name} each {:.0} ms over {:.0} ms ({shape})", t.update_ms, t.window_ms))
        };
        let ring = self.ring.map(|t| {
            format!(
                "ring each {:.0} ms over {:.0} ms ({})",
                t.spacing_ms,
                t.window_ms,
                characterize::shape(t.shape)
            )
        });
        let counter = self.counter.map(|t| format!("counter each {:.0} ms", t.update_ms));
        let parts = [power("instant", self.instant), power("average", self.average), ring, counter];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

/// Lists GPUs. One that cannot be read is listed with the reason.
pub fn run(args: &DevicesArgs) -> Result<u8> {
    let devices = session::open(&args.device, Scope::Machine)?;
    let probed = Sensors::probe_patiently(&devices);
    let left = left_behind();
    let report = Report {
        gpus: devices.iter().zip(probed).map(|(device, probed)| describe(device, probed, &left)).collect(),
    };
    if args.json {
        output::print_json(&report)?
    } else {
        output::print(&text(&report))?
    }
    Ok(DONE)
}

/// What runs that died left on GPUs, by UUID. A journal that cannot be read is told.
fn left_behind() -> Vec<(String, String)> {
    let found = restore::folder().map(|folder| left::all(&folder)).unwrap_or_default();
    let told = found.into_iter().filter_map(|journal| match journal {
        Ok(journal) => Some((journal.uuid.clone(), restore::message(&journal))),
        Err(e) => {
            output::note(format_args!("gpumon: {e}"));
            None
        }
    });
    told.collect()
}

fn describe(device: &Arc<dyn Device>, probed: Result<Sensors, ReadError>, left: &[(String, String)]) -> Gpu {
    let id = device.identity();
    let (sensors, unsupported) = probed.as_ref().map(Sensors::names).unwrap_or_default();
    Gpu {
        index: id.index,
        name: id.name.clone(),
        uuid: id.uuid.clone(),
        pci_id: id.pci_id.clone(),
        driver: id.driver.clone(),
        simulated: id.simulated,
        power_scope: id.power_scope,
        power_limit_w: id.power_limit.map(|p| p.watts()),
        mem_total_bytes: id.mem_total_bytes,
        sm_clocks_mhz: id.sm_clocks.iter().map(|c| c.0).collect(),
        mig_enabled: id.mig,
        mig_uuids: id.mig_uuids.clone(),
        sensors,
        unsupported,
        sensor_timing: Timing::of(device.as_ref()),
        left_behind: left.iter().find(|(uuid, _)| *uuid == id.uuid).map(|(_, words)| words.clone()),
        error: probed.err().map(|e| e.to_string()),
    }
}

fn scope(scope: &str) -> String {
    match scope {
        "module" => "the whole module, as the GPU alone is not measured".into(),
        _ => "the GPU".into(),
    }
}

fn text(report: &Report) -> String {
    let mut text = String::new();
    for gpu in &report.gpus {
        let or_unknown = |value: Option<String>| value.unwrap_or_else(|| "unknown".into());
        let clocks = match (gpu.sm_clocks_mhz.first(), gpu.sm_clocks_mhz.last()) {
            (Some(low), Some(high)) => format!("{low} to {high} MHz ({} steps)", gpu.sm_clocks_mhz.len()),
            _ => "unknown".into(),
        };
        let mig = match gpu.mig_enabled {
            Some(true) => format!("on, {} instances", gpu.mig_uuids.len()),
            Some(false) => "off".into(),
            None => "none".into(),
        };
        let memory = gpu.mem_total_bytes.map(|b| format!("{:.0} GiB", b as f64 / (1u64 << 30) as f64));
        let rows = [
            ("uuid", gpu.uuid.clone()),
            ("PCI", gpu.pci_id.clone()),
            ("driver", gpu.driver.clone()),
            ("power limit", or_unknown(gpu.power_limit_w.map(|w| format!("{w:.0} W")))),
            ("power of", gpu.power_scope.map_or(String::new(), scope)),
            ("memory", or_unknown(memory)),
            ("SM clocks", clocks),
            ("MIG", mig),
            ("sensors", gpu.sensors.join(" ")),
            ("not supported", gpu.unsupported.join(" ")),
            ("power timing", gpu.sensor_timing.as_ref().map_or_else(String::new, Timing::text)),
        ];
        let _ = writeln!(text, "GPU {}  {}", gpu.index, gpu.name);
        for (name, value) in rows.iter().filter(|(_, value)| !value.is_empty()) {
            let _ = writeln!(text, "  {name:<14}{value}");
        }
        if let Some(left) = &gpu.left_behind {
            let _ = writeln!(text, "  {left}; `gpumon restore` puts it back");
        }
        if let Some(error) = &gpu.error {
            let _ = writeln!(text, "  {:<15}{error}", "cannot be read");
        }
    }
    text
}
