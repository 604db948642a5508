//! The description of a simulated GPU, in TOML.
//!
//! Rule: a text describes a GPU in full, or names a built-in one as its `base` and says what differs:
//! tables are merged key by key, everything else (arrays too) replaces the base's value. A `[load]`
//! with a `kind` replaces the base's load as a whole. Every key carries its unit; unknown keys are
//! errors.
//! Source of the built-in numbers: comments in `specs/*.toml`, and docs/simulated-gpu.md.
//! Not done here: files; a trace is fetched through the closure that the caller passes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gpumon_core::units::Megahertz;
use serde::Deserialize;
use toml::{Table, Value};

use crate::check;
use crate::load;
use crate::programme::Programme;
use crate::sensors::Sensor;
use crate::update::Shape;

const BUILTIN: &[(&str, &str)] =
    &[("h200", include_str!("../specs/h200.toml")), ("a100", include_str!("../specs/a100.toml"))];

/// Why a text does not describe a GPU.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// Not TOML.
    #[error("the GPU description is not valid TOML; correct it here:\n{message}")]
    Syntax {
        /// What the TOML parser says, with line and column.
        message: String,
    },
    /// A key that is unknown or missing, or a value of the wrong type.
    #[error(
        "in the GPU description, {message}\nsee docs/simulated-gpu.md for the keys, or start from `base = \"h200\"`"
    )]
    Shape {
        /// Which key and what was expected.
        message: String,
    },
    /// A base that is not built in.
    #[error("key `base`: there is no built-in GPU {found}; use one of {known}")]
    UnknownBase {
        /// What was found.
        found: String,
        /// Built-in names, comma-separated.
        known: String,
    },
    /// A value that cannot be.
    #[error("key `{key}`: found {found}, expected {expected}")]
    Value {
        /// Key with its tables, dotted.
        key: String,
        /// What was found.
        found: String,
        /// What it should be.
        expected: String,
    },
    /// A trace that cannot be fetched.
    #[error(
        "key `load.file`: cannot read `{file}`: {message}; give a CSV file with the columns time_ms,level"
    )]
    TraceFile {
        /// Name as the description gives it.
        file: String,
        /// What the reader says.
        message: String,
    },
    /// A trace that cannot be parsed.
    #[error("trace `{file}`, line {line}, column {column}: found {found}, expected {expected}")]
    Trace {
        /// Name as the description gives it.
        file: String,
        /// Line, counted from 1.
        line: usize,
        /// Name of the column.
        column: &'static str,
        /// What was found.
        found: String,
        /// What it should be.
        expected: String,
    },
}

/// One kind of simulated GPU, how many of it there are, and what runs on them.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Product name; always says that it is simulated.
    pub name: String,
    /// Number of GPUs.
    pub count: u32,
    /// Seed of all randomness.
    pub seed: u64,
    /// Driver version.
    pub driver: String,
    /// Streaming multiprocessors.
    pub sm_count: u32,
    /// Memory, bytes.
    pub mem_total_bytes: u64,
    /// Power limits and the power law.
    pub power: PowerSpec,
    /// Clocks.
    pub clocks: ClocksSpec,
    /// Memory use and power.
    pub memory: MemorySpec,
    /// Temperatures.
    pub thermal: ThermalSpec,
    /// What a full load looks like to performance counters.
    pub activity: ActivitySpec,
    /// Sensors.
    pub sensors: SensorsSpec,
    /// What runs.
    #[serde(skip, default = "idle")]
    pub programme: Arc<Programme>,
}

fn idle() -> Arc<Programme> {
    Arc::new(Programme::idle(false))
}

/// Power limits and the power law, W.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PowerSpec {
    /// Power limit in force, W.
    pub limit_w: f64,
    /// Lowest limit that can be set, W.
    pub limit_min_w: f64,
    /// Highest limit that can be set, W.
    pub limit_max_w: f64,
    /// Power without a CUDA context, W.
    pub idle_w: f64,
    /// Power with a context and no load at the highest clock, W.
    pub idle_context_w: f64,
    /// What a full load adds at the highest clock, W, whether or not the limit lets it.
    pub dynamic_full_w: f64,
    /// Points of clock (MHz) and share of `dynamic_full_w` at that clock (1 at the highest).
    pub dynamic_curve_mhz_share: Vec<[f64; 2]>,
}

/// Clocks, MHz.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClocksSpec {
    /// Lowest supported graphics clock, MHz.
    pub graphics_min_mhz: u32,
    /// Highest supported graphics clock, MHz.
    pub graphics_max_mhz: u32,
    /// Distance of supported graphics clocks, MHz.
    pub graphics_step_mhz: u32,
    /// Graphics clock without a context, MHz.
    pub idle_mhz: u32,
    /// Memory clock, MHz.
    pub mem_mhz: u32,
}

impl ClocksSpec {
    /// Supported graphics clocks, ascending.
    pub fn graphics(&self) -> Vec<Megahertz> {
        let step = self.graphics_step_mhz.max(1) as usize;
        (self.graphics_min_mhz..=self.graphics_max_mhz).step_by(step).map(Megahertz).collect()
    }
}

/// Memory use and power.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemorySpec {
    /// In use without a context, bytes.
    pub used_idle_bytes: u64,
    /// In use with a context, bytes.
    pub used_context_bytes: u64,
    /// Power without a load, W.
    pub idle_w: f64,
    /// Power under full load, W.
    pub full_w: f64,
}

/// Temperatures.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThermalSpec {
    /// Temperature at 0 W, °C.
    pub ambient_c: f64,
    /// Rise of the GPU, °C per W.
    pub rise_c_per_w: f64,
    /// How much warmer the memory is, °C.
    pub mem_above_gpu_c: f64,
    /// Span of the trailing mean power that sets the temperature, ms.
    pub window_ms: f64,
}

/// What a full load looks like to performance counters: shares (0 to 1) and PCIe traffic.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ActivitySpec {
    /// SM time with at least one warp, share.
    pub sm_share: f64,
    /// Warps resident over warps possible, share.
    pub occupancy_share: f64,
    /// Cycles with the tensor pipe active, share.
    pub tensor_share: f64,
    /// Peak DRAM bandwidth in use, share.
    pub dram_share: f64,
    /// PCIe traffic sent by the GPU, MiB/s.
    pub pcie_tx_mib_per_s: f64,
    /// PCIe traffic received by the GPU, MiB/s.
    pub pcie_rx_mib_per_s: f64,
}

/// Sensors: periods, windows, noise, costs.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SensorsSpec {
    /// Period at which every sensor but the counter and the ring changes, ms.
    pub update_ms: f64,
    /// Largest deviation of a power update from its place on the grid, ms.
    #[serde(default)]
    pub update_jitter_ms: f64,
    /// Window of the instant power: length or time constant, ms.
    pub instant_window_ms: f64,
    /// How the instant power weighs its window.
    #[serde(default)]
    pub instant_shape: Shape,
    /// From the end of the instant power's window to the update, ms.
    #[serde(default)]
    pub instant_lag_ms: f64,
    /// Window of the average power: length or time constant, ms.
    pub average_window_ms: f64,
    /// How the average power weighs its window.
    #[serde(default)]
    pub average_shape: Shape,
    /// From the end of the average power's window to the update, ms.
    #[serde(default)]
    pub average_lag_ms: f64,
    /// Window of the legacy power call: length or time constant, ms.
    pub usage_window_ms: f64,
    /// How the legacy power call weighs its window.
    #[serde(default)]
    pub usage_shape: Shape,
    /// From the end of the legacy power call's window to the update, ms.
    #[serde(default)]
    pub usage_lag_ms: f64,
    /// Period at which the energy counter changes, ms.
    pub counter_update_ms: f64,
    /// Least distance of two performance-counter samples that mean something, ms.
    pub gpm_min_ms: f64,
    /// Standard deviation of a reading over the instant window, W.
    pub noise_w: f64,
    /// The ring of power readings.
    pub ring: RingSpec,
    /// Sensors that this GPU lacks.
    pub unsupported: BTreeSet<Sensor>,
    /// Sensors whose calls wait for an energy-counter call in progress.
    pub waits_for_counter: BTreeSet<Sensor>,
    /// Median and 99th percentile of a call's duration, µs.
    pub cost_us: BTreeMap<Sensor, [f64; 2]>,
}

/// The ring of power readings.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RingSpec {
    /// Mean distance of readings, ms.
    pub spacing_ms: f64,
    /// Largest deviation of a reading from its place on the grid, ms.
    pub jitter_ms: f64,
    /// Readings that the ring holds.
    pub capacity: u32,
    /// Time constant over which power is smoothed before it is read, ms; 0 reads the instant.
    pub smoothing_ms: f64,
    /// How often the driver stamps the whole ring anew, ms.
    pub restamp_every_ms: f64,
    /// By how much a stamp may then be off, ms.
    pub restamp_ms: f64,
}

impl Spec {
    /// The GPU that a text describes. `load_file` returns the text of a trace by the name that the
    /// description gives it, or says why it cannot.
    pub fn parse(
        toml_text: &str,
        load_file: &mut dyn FnMut(&str) -> Result<String, String>,
    ) -> Result<Self, SpecError> {
        let mut table = merged(toml_text)?;
        let load = table.remove("load");
        let mut spec: Self = Table::try_into(table).map_err(|e| shape(&e))?;
        if !spec.name.to_lowercase().contains("simulated") {
            spec.name.push_str(" (simulated)");
        }
        check::check(&spec)?;
        spec.programme = Arc::new(load::programme(load, load_file)?);
        Ok(spec)
    }

    /// A built-in GPU, if there is one of that name.
    pub fn builtin(name: &str) -> Option<Self> {
        let (_, text) = BUILTIN.iter().find(|(known, _)| *known == name)?;
        Self::parse(text, &mut |_| Err("built-in GPUs have no trace".into())).ok()
    }

    /// Names of the built-in GPUs.
    pub fn builtin_names() -> impl Iterator<Item = &'static str> {
        BUILTIN.iter().map(|(name, _)| *name)
    }
}

pub(crate) fn shape(error: &toml::de::Error) -> SpecError {
    SpecError::Shape { message: error.to_string().trim().to_owned() }
}

fn merged(toml_text: &str) -> Result<Table, SpecError> {
    let mut own = parse_table(toml_text)?;
    let Some(base) = own.remove("base") else { return Ok(own) };
    let known = || BUILTIN.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    let text = BUILTIN.iter().find(|(name, _)| base.as_str() == Some(name)).map(|(_, text)| *text);
    let text = text.ok_or_else(|| SpecError::UnknownBase { found: check::shown(&base), known: known() })?;
    let mut table = parse_table(text)?;
    if own.get("load").is_some_and(|load| load.get("kind").is_some()) {
        table.remove("load");
    }
    merge(&mut table, own);
    Ok(table)
}

fn parse_table(text: &str) -> Result<Table, SpecError> {
    text.parse::<Table>().map_err(|e| SpecError::Syntax { message: e.to_string().trim().to_owned() })
}

fn merge(base: &mut Table, own: Table) {
    for (key, value) in own {
        match (base.get_mut(&key), value) {
            (Some(Value::Table(base)), Value::Table(own)) => merge(base, own),
            (_, value) => {
                base.insert(key, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Spec, SpecError> {
        Spec::parse(text, &mut |file| Err(format!("no file {file} here")))
    }

    fn error(text: &str) -> String {
        parse(text).unwrap_err().to_string()
    }

    #[test]
    fn every_builtin_parses_and_says_that_it_is_simulated() {
        for name in Spec::builtin_names() {
            let spec = Spec::builtin(name).unwrap_or_else(|| {
                let (_, text) = BUILTIN.iter().find(|(n, _)| *n == name).unwrap();
                panic!("{name}: {}", error(text))
            });
            assert!(spec.name.contains("(simulated)"));
            assert_ne!(*spec.programme, Programme::idle(false));
        }
        assert_eq!(Spec::builtin("h300"), None);
        let a100 = Spec::builtin("a100").unwrap();
        assert!(a100.sensors.unsupported.contains(&Sensor::PowerAverage));
        assert_eq!(a100.clocks.graphics().len(), 81);
    }

    #[test]
    fn a_description_overrides_only_what_it_names() {
        let spec = parse(
            "base = \"h200\"\ncount = 4\nname = \"Mine\"\n[sensors.ring]\ncapacity = 50\n[sensors.cost_us]\nring = [1, 2]\n",
        )
        .unwrap();
        let base = Spec::builtin("h200").unwrap();
        assert_eq!((spec.count, spec.sensors.ring.capacity, spec.name.as_str()), (4, 50, "Mine (simulated)"));
        assert_eq!(spec.sensors.ring.spacing_ms, base.sensors.ring.spacing_ms);
        assert_eq!(spec.sensors.cost_us[&Sensor::Ring], [1.0, 2.0]);
        assert_eq!(spec.sensors.cost_us[&Sensor::Fan], base.sensors.cost_us[&Sensor::Fan]);
        assert_eq!((&spec.power, &spec.programme), (&base.power, &base.programme));
    }

    #[test]
    fn a_load_with_a_kind_replaces_the_base_load() {
        let spec = parse("base = \"h200\"\n[load]\nkind = \"square\"\non_ms = 37\noff_ms = 61\nlevel = 0.5")
            .unwrap();
        assert_eq!(*spec.programme, Programme::square(37_000, 61_000, 0.5).unwrap());
    }

    #[test]
    fn errors_name_the_key_and_what_was_expected() {
        for (text, expected) in [
            ("count = ", &["line 1", "not valid TOML"][..]),
            ("base = \"b200\"", &["`base`", "\"b200\"", "h200, a100"]),
            ("base = 7", &["`base`", "h200"]),
            ("base = \"h200\"\nsped = 1", &["unknown field `sped`", "`seed`", "simulated-gpu.md"]),
            ("base = \"h200\"\n[sensors.ring]\nspacing = 1", &["`spacing`", "`spacing_ms`", "sensors.ring"]),
            ("base = \"h200\"\nseed = \"x\"", &["seed", "u64"]),
            ("base = \"h200\"\n[sensors]\nunsupported = [\"fans\"]", &["fans", "`fan`"]),
            ("name = \"x\"", &["missing field"]),
            (
                "base = \"h200\"\n[load]\nkind = \"trace\"\nfile = \"t.csv\"",
                &["load.file", "no file t.csv here"],
            ),
        ] {
            let found = error(text);
            for part in expected {
                assert!(found.contains(part), "{text:?} gives {found:?}, which lacks {part:?}");
            }
        }
    }
}
