//! What the exporter shows: one line a metric in [`METRICS`], from which docs/exporter.md has its table.
//!
//! Rule: base units, and the unit in the name. Every series of a GPU has the label `uuid`, and one more where a metric has
//! several series a GPU (`reason`, `kind`, `direction`), with a fixed set of values; what else is known of a GPU is in
//! `gpumon_gpu_info`, so that no label is ever said twice and none grows with time. A reading that is absent is no series.
//! Not done here: processes, whose ids would be labels without end.

use gpumon_core::rows::{FastRow, SlowRow};
use gpumon_monitor::device::Identity;
use gpumon_monitor::record::{Latest, Observer};
use gpumon_monitor::summary::reasons;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

/// A value and, where a metric has several a GPU, which.
type Values = Vec<(Option<String>, f64)>;

/// One metric of a GPU.
struct Metric {
    /// Name without unit and suffix.
    name: &'static str,
    unit: Option<&'static str>,
    kind: MetricType,
    /// The label beside `uuid`.
    label: Option<&'static str>,
    help: &'static str,
    values: fn(&Latest) -> Values,
}

fn one(value: Option<f64>) -> Values {
    value.map(|value| (None, value)).into_iter().collect()
}

fn slow(latest: &Latest, value: impl Fn(&SlowRow) -> Option<i32>, factor: f64) -> Values {
    one(latest.slow.as_ref().and_then(value).map(|v| f64::from(v) * factor))
}

fn activity(latest: &Latest, value: impl Fn(&SlowRow) -> Option<f64>) -> Values {
    one(latest.activity.as_ref().and_then(value).map(|pct| pct / 100.0))
}

const MILLI: f64 = 1e-3;
const MEGA: f64 = 1e6;
const PERCENT: f64 = 1e-2;
const MIB: f64 = 1_048_576.0;

const fn gauge(
    name: &'static str,
    unit: Option<&'static str>,
    help: &'static str,
    values: fn(&Latest) -> Values,
) -> Metric {
    Metric { name, unit, kind: MetricType::Gauge, label: None, help, values }
}

const fn counter(
    name: &'static str,
    unit: Option<&'static str>,
    help: &'static str,
    values: fn(&Latest) -> Values,
) -> Metric {
    Metric { name, unit, kind: MetricType::Counter, label: None, help, values }
}

impl Metric {
    /// The same with several series a GPU.
    const fn by(self, label: &'static str) -> Self {
        Self { label: Some(label), ..self }
    }
}

fn fast(latest: &Latest, value: impl Fn(&FastRow) -> Option<i32>, factor: f64) -> Values {
    one(latest.fast.as_ref().and_then(value).map(|v| f64::from(v) * factor))
}

fn limits(latest: &Latest) -> Values {
    let mask = latest.slow.as_ref().and_then(|r| r.event_reasons).map(i64::cast_unsigned);
    let states = mask.into_iter().flat_map(reasons::states);
    states.map(|(reason, on)| (Some(reason.to_owned()), f64::from(u8::from(on)))).collect()
}

fn pcie(latest: &Latest) -> Values {
    let row = latest.activity.as_ref();
    let ways = [
        ("sent", row.and_then(|r| r.pcie_tx_mib_per_s)),
        ("received", row.and_then(|r| r.pcie_rx_mib_per_s)),
    ];
    ways.into_iter().filter_map(|(way, mib)| Some((Some(way.to_owned()), mib? * MIB))).collect()
}

/// All metrics of a GPU, in the order in which they are shown.
const METRICS: &[Metric] = &[
    gauge("up", None, "Whether the GPU answers; if not, its readings are absent", |l| {
        one(Some(f64::from(u8::from(l.up))))
    }),
    gauge("power", Some("watts"), "Power over the sensor's short window", |l| {
        fast(l, |r| r.power_instant_mw, MILLI)
    }),
    gauge("power_average", Some("watts"), "Power averaged by the driver, over 1 s on Hopper", |l| {
        fast(l, |r| r.power_average_mw, MILLI)
    }),
    gauge("memory_power", Some("watts"), "Power of the memory, averaged by the driver", |l| {
        slow(l, |r| r.mem_power_mw, MILLI)
    }),
    counter("energy", Some("joules"), "Energy since the exporter first read the GPU's counter", |l| {
        one(l.energy.map(|mj| mj.0 as f64 * MILLI))
    }),
    gauge("sm_clock", Some("hertz"), "SM clock", |l| fast(l, |r| r.sm_mhz, MEGA)),
    gauge("memory_clock", Some("hertz"), "Memory clock", |l| slow(l, |r| r.mem_mhz, MEGA)),
    gauge("clock_limited", None, "Whether this holds the clock down", limits).by("reason"),
    gauge("performance_state", None, "Performance state, 0 (highest) to 15", |l| slow(l, |r| r.pstate, 1.0)),
    gauge("temperature", Some("celsius"), "Temperature of the GPU", |l| slow(l, |r| r.temp_c, 1.0)),
    gauge("memory_temperature", Some("celsius"), "Temperature of the memory", |l| {
        slow(l, |r| r.mem_temp_c, 1.0)
    }),
    gauge("fan", Some("ratio"), "Fan speed, of its most", |l| slow(l, |r| r.fan_pct, PERCENT)),
    gauge("memory_used", Some("bytes"), "Memory in use", |l| {
        one(l.slow.as_ref().and_then(|r| r.mem_used_bytes).map(|bytes| bytes as f64))
    }),
    gauge("utilization", Some("ratio"), "Share of time with a kernel running, as the driver sees it", |l| {
        slow(l, |r| r.util_gpu_pct, PERCENT)
    }),
    gauge("memory_utilization", Some("ratio"), "Share of time in which memory was read or written", |l| {
        slow(l, |r| r.util_mem_pct, PERCENT)
    }),
    gauge("sm_active", Some("ratio"), "Share of SM time with at least one warp", |l| {
        activity(l, |r| r.sm_util_pct)
    }),
    gauge("sm_occupancy", Some("ratio"), "Warps resident over warps possible", |l| {
        activity(l, |r| r.sm_occupancy_pct)
    }),
    gauge("tensor_active", Some("ratio"), "Share of cycles in which the tensor pipe was active", |l| {
        activity(l, |r| r.tensor_util_pct)
    }),
    gauge("dram_active", Some("ratio"), "Share of peak DRAM bandwidth in use", |l| {
        activity(l, |r| r.dram_util_pct)
    }),
    gauge("pcie_traffic", Some("bytes_per_second"), "PCIe traffic, seen from the GPU", pcie).by("direction"),
    counter("fast_readings", None, "Readings of power and SM clock", |l| one(Some(l.fast_readings as f64))),
    counter("ring_readings", None, "Readings out of the driver's own ring", |l| {
        one(Some(l.ring_readings as f64))
    }),
    counter("losses", None, "What went wrong while sampling: kinds of events as in docs/schema.md", |l| {
        l.losses.iter().map(|(kind, n)| (Some(kind.clone()), *n as f64)).collect()
    })
    .by("kind"),
];

/// A GPU that was found, and where the observer has it; `None` if it could not be read at the start.
#[derive(Debug)]
pub struct Gpu {
    /// What is known of it.
    pub identity: Identity,
    /// Its place among those that are sampled.
    pub place: Option<usize>,
}

/// All that a scrape shows.
pub struct Shown {
    /// The sampling threads' readings.
    pub observer: Observer,
    /// The GPUs.
    pub gpus: Vec<Gpu>,
}

impl std::fmt::Debug for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shown").field("gpus", &self.gpus).finish_non_exhaustive()
    }
}

type Labels = Vec<(&'static str, String)>;

fn info(identity: &Identity) -> Labels {
    let mut labels = vec![
        ("uuid", identity.uuid.clone()),
        ("name", identity.name.clone()),
        ("pci_id", identity.pci_id.clone()),
        ("driver", identity.driver.clone()),
        ("simulated", identity.simulated.to_string()),
    ];
    labels.extend(identity.power_scope.map(|scope| ("power_scope", scope.to_owned())));
    labels
}

impl Collector for Shown {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let seen = self.observer.look();
        let nothing = Latest::default();
        encoder
            .encode_descriptor("gpumon_build", "The exporter's version", None, MetricType::Info)?
            .encode_info(&vec![("version", env!("CARGO_PKG_VERSION"))])?;
        let mut gpus = encoder.encode_descriptor("gpumon_gpu", "The GPUs", None, MetricType::Info)?;
        self.gpus.iter().try_for_each(|gpu| gpus.encode_info(&info(&gpu.identity)))?;
        for metric in METRICS {
            let of_gpu = |gpu: &Gpu| {
                let latest = gpu.place.and_then(|place| seen.get(place)).unwrap_or(&nothing);
                let uuid = ("uuid", gpu.identity.uuid.clone());
                let with = move |other: Option<String>| {
                    let other = metric.label.zip(other);
                    std::iter::once(uuid.clone()).chain(other).collect::<Labels>()
                };
                let values = (metric.values)(latest).into_iter();
                values.map(move |(other, value)| (with(other), value)).collect::<Vec<_>>()
            };
            let series: Vec<_> = self.gpus.iter().flat_map(of_gpu).collect();
            if series.is_empty() {
                continue;
            }
            let (name, unit) =
                (format!("gpumon_{}", metric.name), metric.unit.map(|u| Unit::Other(u.into())));
            let mut family = encoder.encode_descriptor(&name, metric.help, unit.as_ref(), metric.kind)?;
            for (labels, value) in &series {
                let mut one = family.encode_family(labels)?;
                match metric.kind {
                    MetricType::Counter => one.encode_counter::<NoLabelSet, f64, f64>(value, None)?,
                    _ => one.encode_gauge(value)?,
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Metric {
        /// The name of its series.
        fn full_name(&self) -> String {
            let unit = self.unit.map(|unit| format!("_{unit}")).unwrap_or_default();
            let total = if self.kind == MetricType::Counter { "_total" } else { "" };
            format!("gpumon_{}{unit}{total}", self.name)
        }
    }

    fn table() -> String {
        let mut text = String::from("| metric | kind | labels | what |\n|---|---|---|---|\n");
        for metric in METRICS {
            let kind = if metric.kind == MetricType::Counter { "counter" } else { "gauge" };
            let labels = metric.label.map_or("`uuid`".into(), |label| format!("`uuid`, `{label}`"));
            text += &format!("| `{}` | {kind} | {labels} | {} |\n", metric.full_name(), metric.help);
        }
        text
    }

    #[test]
    fn the_page_lists_every_metric() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/exporter.md");
        let page = std::fs::read_to_string(path).unwrap();
        let (before, rest) = page.split_once("<!-- metrics -->\n").unwrap();
        let (kept, after) = rest.split_once("<!-- end -->").unwrap();
        if std::env::var_os("GPUMON_BLESS").is_some() {
            let text = format!("{before}<!-- metrics -->\n{}<!-- end -->{after}", table());
            std::fs::write(path, text).unwrap();
        } else {
            assert_eq!(
                kept,
                table(),
                "write it anew with GPUMON_BLESS=1 cargo test -p gpumon the_page_lists"
            );
        }
    }

    #[test]
    fn no_metric_is_named_twice() {
        let mut names: Vec<_> = METRICS.iter().map(Metric::full_name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), METRICS.len());
    }
}
