//! Time and energy of one batch, kernel class by kernel class.
//!
//! Rule: a kernel's blocks run in waves over the SMs of the share. Its time is that of the slowest of three resources
//! (SMs, DRAM, L2) with a part of the second slowest on top, after a fixed number of cycles; launches by the host take
//! their own time and set a floor. Its energy is that of the SMs with work, of each operation, of each byte through L2
//! and of each byte from DRAM; what lies on the SM supply goes with the square of its voltage.
//! Cases: the last wave is rarely full: its blocks spread over the SMs, and an SM with few blocks is no faster than with
//! half of its blocks. Traffic that the L2 of the share holds mostly stays there; beyond its size the hits fall off.
//! What a kernel may use of the L2 and of memory is given to it: its share's part, or what others leave ([`super::together`]).
//! Not done here: kernels side by side on the same SMs.
//! Source: the usual roofline and wave arguments; the numbers are assumed.

use gpumon_core::geometry::SEVEN_SLICES;
use gpumon_core::share::Share;

use super::models::{Gpu, Kernel, ModelSpec, Power};
use super::{MIB, Truth};

const MB: f64 = 1e6;

/// The part of the memory, its bandwidth and the L2 that a share has.
pub(super) fn memory_share(share: Share) -> f64 {
    let profile = share.slices().and_then(|s| SEVEN_SLICES.profile(s));
    profile.map_or(1.0, |p| f64::from(p.memory_slots) / f64::from(SEVEN_SLICES.memory_slots))
}

fn sms(gpu: &Gpu, share: Share) -> f64 {
    let sms = match share {
        Share::Mig(slices) => f64::from(gpu.sms_per_slice) * f64::from(slices),
        Share::Mps(_) | Share::Green { .. } => (f64::from(gpu.sm_count) * share.fraction()).ceil(),
    };
    sms.clamp(1.0, f64::from(gpu.sm_count))
}

/// SM voltage at a clock, relative to the highest: linear between the points, in steps.
fn voltage(power: &Power, mhz: f64) -> f64 {
    let points = &power.voltage;
    let above = points.partition_point(|[x, _]| *x <= mhz);
    let volt = match (above.checked_sub(1).and_then(|i| points.get(i)), points.get(above)) {
        (Some([x0, y0]), Some([x1, y1])) => y0 + (y1 - y0) * (mhz - x0) / (x1 - x0),
        (Some([_, y]), None) | (None, Some([_, y])) => *y,
        (None, None) => 1.0,
    };
    (volt / power.voltage_step).ceil() * power.voltage_step
}

/// What a kernel may use of the memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    /// Room in the L2, bytes.
    pub(super) l2_bytes: f64,
    /// Rate of the L2, bytes a second.
    pub(super) l2_rate: f64,
    /// Rate of the DRAM, bytes a second.
    pub(super) dram_rate: f64,
}

impl Memory {
    /// All that a share has, with nobody else in it.
    pub(super) fn of(gpu: &Gpu, share: Share, mhz: f64) -> Self {
        let part = memory_share(share);
        Self {
            l2_bytes: gpu.l2_mib * MIB * part,
            l2_rate: gpu.l2_bytes_per_clock * part * (mhz * 1e6),
            dram_rate: gpu.dram_gb_per_s * 1e9 * part,
        }
    }
}

/// Where a kernel runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) items: f64,
    pub(super) share: Share,
    pub(super) mhz: f64,
}

/// What one kernel takes.
pub(super) struct Cost {
    /// Time, the host's launch included, s.
    pub(super) seconds: f64,
    /// Energy above idling, J.
    pub(super) joules: f64,
    /// Bytes through the L2.
    pub(super) l2_bytes: f64,
    /// Bytes from DRAM.
    pub(super) dram_bytes: f64,
}

/// Bytes that a kernel reads and writes, weights apart from the rest.
fn traffic(kernel: &Kernel, items: f64) -> (f64, f64) {
    (kernel.weight_mb * MB, kernel.traffic_mb_per_item * MB * items)
}

/// Bytes that a kernel would like to find in the L2.
pub(super) fn footprint(kernel: &Kernel, items: f64) -> f64 {
    let (weights, traffic) = traffic(kernel, items);
    weights + traffic
}

/// Time of a batch outside of kernels: the host's own and copies, s.
pub(super) fn outside_s(gpu: &Gpu, model: &ModelSpec, items: f64) -> f64 {
    model.host_ms / 1e3 + items * model.input_mb_per_item * MB / (gpu.copy_gb_per_s * 1e9)
}

/// The truth of one batch of a model.
pub(super) fn batch(gpu: &Gpu, model: &ModelSpec, batch: u32, share: Share, mhz: f64) -> Truth {
    let place = Place { items: f64::from(batch), share, mhz };
    let memory = Memory::of(gpu, share, mhz);
    let (mut seconds, mut joules) = (outside_s(gpu, model, place.items), 0.0);
    for kernel in &model.kernels {
        let cost = one_kernel(gpu, kernel, place, memory);
        let count = f64::from(kernel.count);
        seconds += count * cost.seconds;
        joules += count * cost.joules;
    }
    Truth { time_ms: seconds * 1e3, dynamic_w: joules / seconds }
}

/// What one kernel takes with this memory.
pub(super) fn one_kernel(gpu: &Gpu, kernel: &Kernel, place: Place, memory: Memory) -> Cost {
    let Place { items, share, mhz } = place;
    let hz = mhz * 1e6;
    let sms = sms(gpu, share);
    let flops = kernel.gflop_per_item * 1e9 * items;

    let blocks = (kernel.blocks_base + kernel.blocks_per_item * items).ceil().max(1.0);
    let per_sm = f64::from(kernel.blocks_per_sm);
    let block_cycles = flops / blocks / (gpu.flop_per_sm_clock * kernel.efficiency);
    let full_waves = (blocks / (sms * per_sm)).floor();
    let last = blocks - full_waves * sms * per_sm;
    let on_busiest = (last / sms).ceil();
    let last_cycles = if last > 0.0 { on_busiest.max(per_sm / 2.0) * block_cycles } else { 0.0 };
    let full_cycles = full_waves * per_sm * block_cycles;
    let compute_s = (full_cycles + last_cycles) / hz;

    let (weights, traffic) = traffic(kernel, items);
    let hits = gpu.l2_best_hit * (memory.l2_bytes / (traffic + weights).max(1.0)).min(1.0);
    let missed = weights + traffic * (1.0 - hits);
    let asking = sms.min(blocks);
    let dram_rate = memory.dram_rate.min(asking * gpu.dram_bytes_per_sm_clock * hz);
    let dram_s = missed / dram_rate;
    let l2_s = (weights + traffic) / memory.l2_rate;

    let mut sorted = [compute_s, dram_s, l2_s];
    sorted.sort_by(|a, b| b.total_cmp(a));
    let working_s = sorted[0] + gpu.overlap * sorted[1];

    // An SM without blocks in the last wave rests.
    let busy_share = match full_cycles + last_cycles > 0.0 {
        true => (full_cycles + last_cycles * (last / sms).min(1.0)) / (full_cycles + last_cycles),
        false => 0.0,
    };
    let power = &gpu.power;
    let square = voltage(power, mhz).powi(2);
    let joules = working_s * sms * busy_share * power.busy_sm_w * square * mhz / gpu.max_mhz
        + (flops * power.flop_pj + (weights + traffic) * power.l2_byte_pj) * 1e-12 * square
        + missed * power.dram_byte_pj * 1e-12;
    let seconds = (working_s + gpu.kernel_cycles / hz).max(gpu.launch_us / 1e6);
    Cost { seconds, joules, l2_bytes: weights + traffic, dram_bytes: missed }
}
