//! GPU performance-monitoring counters: means between two samples.
//!
//! Rule: a metric is the full load's figure times the mean load level between the samples.
//! Cases: samples closer together than the GPU's least distance (100 ms on Hopper) give zeros and NaN,
//! as an H200 does, *with success*; so does the first sample, which has none before it.
//! Which of the metrics are zero then and which NaN is assumed.
//! Source: which metrics there are, their values under a bf16 matrix product, and the zeros and NaN
//! were measured (docs/simulated-gpu.md).
//! Not done here: a mix of kernels; all metrics follow one level.

use gpumon_core::units::MonoUs;

use crate::programme::PPM;
use crate::spec::ActivitySpec;
use crate::timeline::Timeline;

/// Performance counters between two samples. Samples that are too close give 0 or NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpmMetrics {
    /// SM time with at least one warp, %.
    pub sm_util_pct: f64,
    /// Warps resident over warps possible, %.
    pub sm_occupancy_pct: f64,
    /// Cycles with the tensor pipe active, %.
    pub tensor_util_pct: f64,
    /// Peak DRAM bandwidth in use, %.
    pub dram_util_pct: f64,
    /// PCIe traffic sent by the GPU, MiB/s.
    pub pcie_tx_mib_per_s: f64,
    /// PCIe traffic received by the GPU, MiB/s.
    pub pcie_rx_mib_per_s: f64,
}

/// What samples that are too close together give.
const TOO_CLOSE: GpmMetrics = GpmMetrics {
    sm_util_pct: 0.0,
    sm_occupancy_pct: f64::NAN,
    tensor_util_pct: 0.0,
    dram_util_pct: f64::NAN,
    pcie_tx_mib_per_s: 0.0,
    pcie_rx_mib_per_s: 0.0,
};

/// The metrics between two samples; without a first one, as if they were too close.
pub(crate) fn between(
    line: &Timeline,
    activity: &ActivitySpec,
    min_us: i64,
    from: Option<MonoUs>,
    to: MonoUs,
) -> GpmMetrics {
    let Some(from) = from.filter(|from| to.since_us(*from) >= min_us) else { return TOO_CLOSE };
    let level_ppm_us = line.totals(to).since(&line.totals(from)).level_ppm_us as f64;
    let level = level_ppm_us / PPM / to.since_us(from) as f64;
    GpmMetrics {
        sm_util_pct: 100.0 * level * activity.sm_share,
        sm_occupancy_pct: 100.0 * level * activity.occupancy_share,
        tensor_util_pct: 100.0 * level * activity.tensor_share,
        dram_util_pct: 100.0 * level * activity.dram_share,
        pcie_tx_mib_per_s: level * activity.pcie_tx_mib_per_s,
        pcie_rx_mib_per_s: level * activity.pcie_rx_mib_per_s,
    }
}
