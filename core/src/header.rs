//! `recording.json`: who recorded what, on which GPUs, and how it ended.
//!
//! Written when the recording starts and again when it ends. Keys that a newer version adds are
//! ignored; a newer *schema* is refused, because rows may mean something else there.

use serde::{Deserialize, Serialize};

use crate::timing::Characterisation;
use crate::units::{Milliwatts, WallUs};

/// Version of the recording's schema that this code writes and reads.
pub const SCHEMA_VERSION: u32 = 1;

/// The whole of `recording.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Version of the schema.
    pub schema: u32,
    /// Version of gpumon that wrote the recording.
    pub gpumon: String,
    /// True if any device was simulated.
    pub simulated: bool,
    /// State of the recording.
    pub state: State,
    /// Host name.
    pub host: String,
    /// The command line, program first.
    pub command: Vec<String>,
    /// Wall-clock time at `mono_us` = 0.
    pub start_wall_us: WallUs,
    /// Length of the recording once it has ended, µs.
    pub duration_us: Option<i64>,
    /// Rate of the fast lane, Hz.
    pub rate_hz: f64,
    /// The GPUs, in the order that `gpu` columns count.
    pub gpus: Vec<Gpu>,
    /// What recording cost, once it has ended.
    pub own_cost: Option<OwnCost>,
    /// What `gpumon recover` could not keep, in words; empty in a recording that lost nothing but, perhaps,
    /// its last second.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub damage: Vec<String>,
}

/// How far a recording has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Being written, or its writer was killed.
    Recording,
    /// Closed by its writer.
    Complete,
    /// Closed by its writer before its time because storage failed.
    StorageFailed,
    /// Made whole by `gpumon recover`.
    Recovered,
}

/// One GPU of a recording.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    /// The driver's UUID.
    pub uuid: String,
    /// Product name.
    pub name: String,
    /// PCI address, `domain:bus:device.function`.
    pub pci_id: String,
    /// Driver version.
    pub driver: String,
    /// Enforced power limit at the start, mW.
    pub power_limit_mw: Option<Milliwatts>,
    /// Total memory, bytes.
    pub mem_total_bytes: Option<u64>,
    /// What power is measured over, `gpu` or `module` (GH200, GB200: not the GPU alone); absent where that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_scope: Option<String>,
    /// Sensors that answered when they were probed.
    pub sensors: Vec<String>,
    /// Sensors that do not exist on this GPU: their columns are null.
    pub unsupported: Vec<String>,
    /// The GPU instances at the start, if MIG was on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mig_instances: Vec<MigInstance>,
    /// What `gpumon characterize` had found of this GPU under this driver before the recording started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub characterisation: Option<Characterisation>,
}

/// One GPU instance of a GPU in MIG mode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigInstance {
    /// Its id, as `process` rows give it.
    pub id: u32,
    /// Compute slices.
    pub slices: Option<u32>,
    /// UUID of its first MIG device.
    pub uuid: Option<String>,
    /// First memory slot, if it can be asked.
    pub start: Option<u32>,
}

/// What a recording cost its host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OwnCost {
    /// CPU time of the process during the recording, s.
    pub cpu_s: f64,
    /// Largest resident size, bytes.
    pub max_rss_bytes: u64,
    /// Median lateness of fast ticks, µs.
    pub lateness_p50_us: Option<u64>,
    /// 99th percentile of the lateness of fast ticks, µs.
    pub lateness_p99_us: Option<u64>,
    /// Largest lateness of a fast tick, µs.
    pub lateness_max_us: Option<u64>,
}

impl Header {
    /// The file's text.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

pub(crate) fn markdown() -> String {
    format!(
        "Schema version: {SCHEMA_VERSION}. Keys of `recording.json`: `schema`, `gpumon` (version), `simulated`, `state` \
         (`recording`, `complete`, `storage_failed`, `recovered`), `host`, `command`, `start_wall_us` (wall-clock µs at \
         `mono_us` = 0), `duration_us`, `rate_hz`, `gpus` (each `uuid`, `name`, `pci_id`, `driver`, `power_limit_mw`, \
         `mem_total_bytes`, `power_scope` (`gpu` or `module`), `sensors`, `unsupported`, `mig_instances` (`id`, `slices`, `uuid`, `start`) if MIG was on, and `characterisation` if \
         there was one, see characterize.md), `own_cost` (`cpu_s`, `max_rss_bytes`, \
         `lateness_p50_us`, `lateness_p99_us`, `lateness_max_us`), `damage` (what `recover` could not keep).\n"
    )
}
