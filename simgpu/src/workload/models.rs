//! The description of simulated models, in TOML: a GPU, noise, and models of kernel classes.
//!
//! Rule: every key carries its unit; unknown keys are errors; every number is finite and in its range.

use serde::Deserialize;

/// Why a description of models cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// It is not TOML of this shape; the message gives line and column.
    #[error("{0}")]
    Shape(String),
    /// A value is out of its range.
    #[error("`{key}` is {found}; expected {expected}")]
    Value {
        /// Key, with the model's and the kernel's name.
        key: String,
        /// What it holds.
        found: String,
        /// What was expected.
        expected: &'static str,
    },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub(super) gpu: Gpu,
    pub(super) noise: Noise,
    #[serde(rename = "model")]
    pub(super) models: Vec<ModelSpec>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Gpu {
    pub(super) sm_count: u32,
    pub(super) sms_per_slice: u32,
    pub(super) max_mhz: f64,
    pub(super) flop_per_sm_clock: f64,
    pub(super) memory_gib: f64,
    pub(super) dram_gb_per_s: f64,
    pub(super) dram_bytes_per_sm_clock: f64,
    pub(super) l2_mib: f64,
    pub(super) l2_bytes_per_clock: f64,
    pub(super) l2_best_hit: f64,
    pub(super) launch_us: f64,
    pub(super) kernel_cycles: f64,
    pub(super) copy_gb_per_s: f64,
    pub(super) context_mib: f64,
    pub(super) overlap: f64,
    pub(super) power: Power,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Power {
    pub(super) voltage: Vec<[f64; 2]>,
    pub(super) voltage_step: f64,
    pub(super) busy_sm_w: f64,
    pub(super) flop_pj: f64,
    pub(super) l2_byte_pj: f64,
    pub(super) dram_byte_pj: f64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Noise {
    pub(super) seed: u64,
    pub(super) time: f64,
    pub(super) power: f64,
    pub(super) batch: f64,
    pub(super) tail_share: f64,
    pub(super) tail: [f64; 2],
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ModelSpec {
    pub(super) name: String,
    pub(super) weights_mib: f64,
    pub(super) memory_mib_per_item: f64,
    pub(super) input_mb_per_item: f64,
    pub(super) host_ms: f64,
    #[serde(rename = "kernel")]
    pub(super) kernels: Vec<Kernel>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Kernel {
    pub(super) name: String,
    pub(super) count: u32,
    pub(super) gflop_per_item: f64,
    pub(super) weight_mb: f64,
    pub(super) traffic_mb_per_item: f64,
    #[serde(default)]
    pub(super) blocks_base: f64,
    pub(super) blocks_per_item: f64,
    pub(super) blocks_per_sm: u32,
    pub(super) efficiency: f64,
}

impl File {
    pub(super) fn parse(text: &str) -> Result<Self, ModelError> {
        let file: Self = toml::from_str(text).map_err(|e| ModelError::Shape(e.to_string().trim().into()))?;
        file.check()?;
        Ok(file)
    }

    fn check(&self) -> Result<(), ModelError> {
        let gpu = &self.gpu;
        above_zero("gpu.sm_count", f64::from(gpu.sm_count))?;
        above_zero("gpu.sms_per_slice", f64::from(gpu.sms_per_slice))?;
        for (key, value) in [
            ("gpu.max_mhz", gpu.max_mhz),
            ("gpu.flop_per_sm_clock", gpu.flop_per_sm_clock),
            ("gpu.memory_gib", gpu.memory_gib),
            ("gpu.dram_gb_per_s", gpu.dram_gb_per_s),
            ("gpu.dram_bytes_per_sm_clock", gpu.dram_bytes_per_sm_clock),
            ("gpu.l2_mib", gpu.l2_mib),
            ("gpu.l2_bytes_per_clock", gpu.l2_bytes_per_clock),
            ("gpu.copy_gb_per_s", gpu.copy_gb_per_s),
            ("gpu.power.voltage_step", gpu.power.voltage_step),
        ] {
            above_zero(key, value)?;
        }
        for (key, value) in [
            ("gpu.launch_us", gpu.launch_us),
            ("gpu.kernel_cycles", gpu.kernel_cycles),
            ("gpu.context_mib", gpu.context_mib),
            ("gpu.power.busy_sm_w", gpu.power.busy_sm_w),
            ("gpu.power.flop_pj", gpu.power.flop_pj),
            ("gpu.power.l2_byte_pj", gpu.power.l2_byte_pj),
            ("gpu.power.dram_byte_pj", gpu.power.dram_byte_pj),
        ] {
            zero_or_above(key, value)?;
        }
        let noise = &self.noise;
        for (key, value) in [
            ("gpu.l2_best_hit", gpu.l2_best_hit),
            ("gpu.overlap", gpu.overlap),
            ("noise.tail_share", noise.tail_share),
            ("noise.time", noise.time),
            ("noise.power", noise.power),
            ("noise.batch", noise.batch),
            ("noise.tail", noise.tail[0]),
            ("noise.tail", noise.tail[1]),
        ] {
            within(key, value, (0.0..=1.0).contains(&value), "a number from 0 to 1")?;
        }
        let ascending = gpu.power.voltage.windows(2).all(|w| w[0][0] < w[1][0]);
        let sane = gpu.power.voltage.iter().flatten().all(|v| v.is_finite() && *v > 0.0);
        let count = gpu.power.voltage.len() as f64;
        within(
            "gpu.power.voltage",
            count,
            ascending && sane && count > 0.0,
            "ascending [MHz, share of the highest] pairs",
        )?;
        self.models.iter().try_for_each(|model| model.check())
    }
}

impl ModelSpec {
    fn check(&self) -> Result<(), ModelError> {
        let key = |key: &str| format!("{key} of `{}`", self.name);
        if self.name.is_empty() || self.name.starts_with('@') {
            let found = format!("`{}`", self.name);
            let expected = "a name that does not begin with @";
            return Err(ModelError::Value { key: "model.name".into(), found, expected });
        }
        zero_or_above(&key("weights_mib"), self.weights_mib)?;
        zero_or_above(&key("memory_mib_per_item"), self.memory_mib_per_item)?;
        zero_or_above(&key("input_mb_per_item"), self.input_mb_per_item)?;
        zero_or_above(&key("host_ms"), self.host_ms)?;
        above_zero(&key("number of kernels"), self.kernels.len() as f64)?;
        for kernel in &self.kernels {
            let key = |key: &str| format!("{key} of `{}` in `{}`", kernel.name, self.name);
            above_zero(&key("count"), f64::from(kernel.count))?;
            above_zero(&key("blocks_per_sm"), f64::from(kernel.blocks_per_sm))?;
            above_zero(&key("efficiency"), kernel.efficiency)?;
            above_zero(&key("gflop_per_item"), kernel.gflop_per_item)?;
            zero_or_above(&key("weight_mb"), kernel.weight_mb)?;
            zero_or_above(&key("traffic_mb_per_item"), kernel.traffic_mb_per_item)?;
            zero_or_above(&key("blocks_per_item"), kernel.blocks_per_item)?;
            zero_or_above(&key("blocks_base"), kernel.blocks_base)?;
        }
        Ok(())
    }
}

fn above_zero(key: &str, value: f64) -> Result<(), ModelError> {
    within(key, value, value.is_finite() && value > 0.0, "a finite number above 0")
}

fn zero_or_above(key: &str, value: f64) -> Result<(), ModelError> {
    within(key, value, value.is_finite() && value >= 0.0, "a finite number, 0 or above")
}

fn within(key: &str, value: f64, good: bool, expected: &'static str) -> Result<(), ModelError> {
    match good {
        true => Ok(()),
        false => Err(ModelError::Value { key: key.into(), found: value.to_string(), expected }),
    }
}
