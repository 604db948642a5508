//! What a model can run as: batch, share and clock, with what that gives.
//!
//! Rule: each valid row of the profile with latency, throughput and dynamic power is one candidate; one is feasible
//! for a model when latency ≤ SLO and throughput ≥ rate.
//! Cases: MIG takes rows with `mig_slices`, MPS rows without; of rows with the same batch, share, processes and clock
//! the first counts; clocks that the problem does not list are left out.
//! A model without a feasible candidate is an answer, [`Infeasible`]: which constraint binds, and the nearest that
//! the profile has.
//! Not done: choosing. Latency is the profile's mean time of a batch, as EnerTune takes it, not its tail.
//!
//! Source: EnerTune (SOSP'26), step 0 of the planner.

use std::collections::HashSet;
use std::fmt;

use gpumon_core::geometry::MigGeometry;
use gpumon_core::profile::ProfileRow;
use gpumon_core::workload::Sharing;

/// How much of a GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Share {
    /// Compute slices of a MIG instance.
    Slices(u8),
    /// Percent of the SMs (MPS).
    Percent(f64),
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slices(1) => write!(f, "1 slice"),
            Self::Slices(n) => write!(f, "{n} slices"),
            Self::Percent(pct) => write!(f, "{pct:.4} % of the SMs"),
        }
    }
}

/// One way to run one model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Items in a batch.
    pub batch: u32,
    /// How much of the GPU.
    pub share: Share,
    /// Processes in this share.
    pub processes: u32,
    /// SM clock, MHz.
    pub frequency_mhz: u32,
    /// Mean time of a batch, ms.
    pub latency_ms: f64,
    /// Items a second.
    pub throughput_rps: f64,
    /// Power above the GPU's base, W.
    pub dynamic_w: f64,
}

impl Candidate {
    /// Whether it answers within the SLO and keeps up with the rate.
    pub fn meets(&self, latency_slo_ms: f64, rate_rps: f64) -> bool {
        self.latency_ms <= latency_slo_ms && self.throughput_rps >= rate_rps
    }

    /// Whether both are the same configuration, whatever they give.
    pub fn same_configuration(&self, other: &Self) -> bool {
        let share = match (self.share, other.share) {
            (Share::Percent(a), Share::Percent(b)) => (a - b).abs() < 1e-3,
            (a, b) => a == b,
        };
        share
            && (self.batch, self.processes, self.frequency_mhz)
                == (other.batch, other.processes, other.frequency_mhz)
    }
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "batch {}, {}, {} MHz", self.batch, self.share, self.frequency_mhz)
    }
}

/// The candidates of one model in the order of the rows.
pub fn of_model(
    model: &str,
    rows: &[ProfileRow],
    sharing: Sharing,
    geometry: &MigGeometry,
    allowed_mhz: impl Fn(u32) -> bool,
) -> Vec<Candidate> {
    let mut seen = HashSet::new();
    rows.iter()
        .filter(|row| row.valid && row.model == model)
        .filter_map(|row| {
            let candidate = of_row(row, sharing, geometry)?;
            (allowed_mhz(candidate.frequency_mhz) && seen.insert(row.key())).then_some(candidate)
        })
        .collect()
}

fn of_row(row: &ProfileRow, sharing: Sharing, geometry: &MigGeometry) -> Option<Candidate> {
    let share = match (sharing, row.mig_slices) {
        (Sharing::Mig, Some(slices)) => {
            let slices = u8::try_from(slices).ok()?;
            geometry.profile(slices)?;
            Share::Slices(slices)
        }
        (Sharing::Mps, None) if row.share > 0.0 && row.share <= 1.0 => Share::Percent(row.share * 100.0),
        _ => return None,
    };
    let positive = |v: Option<f64>| v.filter(|v| v.is_finite() && *v > 0.0);
    Some(Candidate {
        batch: u32::try_from(row.batch_size).ok().filter(|b| *b > 0)?,
        share,
        processes: row.processes.map_or(Some(1), |p| u32::try_from(p).ok().filter(|p| *p > 0))?,
        frequency_mhz: u32::try_from(row.frequency).ok()?,
        latency_ms: positive(row.latency)?,
        throughput_rps: positive(row.throughput)?,
        dynamic_w: row.dynamic_power_draw.filter(|w| w.is_finite())?,
    })
}

/// Which demand of a model no candidate meets.
#[derive(Clone, Debug, PartialEq)]
pub enum Binding {
    /// The profile has no usable row of the model.
    NoRows,
    /// No batch is answered within the SLO.
    Latency {
        /// The fastest candidate.
        nearest: Candidate,
    },
    /// Nothing keeps up with the rate.
    Rate {
        /// The candidate of the highest throughput.
        nearest: Candidate,
    },
    /// Each can be met, both together cannot.
    Together {
        /// The highest throughput within the SLO.
        in_time: Candidate,
        /// The lowest latency at the rate.
        at_rate: Candidate,
    },
}

/// A model that cannot be served with this profile.
#[derive(Clone, Debug, PartialEq)]
pub struct Infeasible {
    /// The model.
    pub model: String,
    /// Its longest time of a batch, ms.
    pub latency_slo_ms: f64,
    /// Its rate, items/s.
    pub rate_rps: f64,
    /// What binds.
    pub binding: Binding,
}

impl fmt::Display for Infeasible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { model, latency_slo_ms: slo, rate_rps: rate, .. } = self;
        match &self.binding {
            Binding::NoRows => write!(
                f,
                "`{model}` has no usable row in the profile at these clocks and this kind of sharing; profile it, or take \
                 it out of the workload"
            ),
            Binding::Latency { nearest } => write!(
                f,
                "`{model}`: latency binds: no batch is answered within {slo} ms; the nearest is {:.4} ms ({nearest}), \
                 so latency_slo_ms must be at least that",
                nearest.latency_ms
            ),
            Binding::Rate { nearest } => write!(
                f,
                "`{model}`: rate binds: nothing serves {rate} items/s; the nearest is {:.4} items/s ({nearest}), so \
                 rate_rps or the load must come down to that",
                nearest.throughput_rps
            ),
            Binding::Together { in_time, at_rate } => write!(
                f,
                "`{model}`: latency and rate bind together: within {slo} ms at most {:.4} items/s ({in_time}) of \
                 {rate}; at that rate at least {:.4} ms ({at_rate})",
                in_time.throughput_rps, at_rate.latency_ms
            ),
        }
    }
}

/// What binds when none of `candidates` meets both demands.
pub fn binding(candidates: &[Candidate], latency_slo_ms: f64, rate_rps: f64) -> Binding {
    let fastest = |list: &mut dyn Iterator<Item = &Candidate>| {
        list.min_by(|a, b| a.latency_ms.total_cmp(&b.latency_ms)).copied()
    };
    let widest = |list: &mut dyn Iterator<Item = &Candidate>| {
        list.max_by(|a, b| a.throughput_rps.total_cmp(&b.throughput_rps)).copied()
    };
    let in_time = widest(&mut candidates.iter().filter(|c| c.latency_ms <= latency_slo_ms));
    let at_rate = fastest(&mut candidates.iter().filter(|c| c.throughput_rps >= rate_rps));
    match (in_time, at_rate) {
        (Some(in_time), Some(at_rate)) => Binding::Together { in_time, at_rate },
        (None, _) => {
            fastest(&mut candidates.iter()).map_or(Binding::NoRows, |nearest| Binding::Latency { nearest })
        }
        (_, None) => {
            widest(&mut candidates.iter()).map_or(Binding::NoRows, |nearest| Binding::Rate { nearest })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpumon_core::geometry::SEVEN_SLICES;

    fn row(batch: i32, latency: f64, throughput: f64) -> ProfileRow {
        ProfileRow {
            mig_slices: Some(2),
            latency: Some(latency),
            throughput: Some(throughput),
            dynamic_power_draw: Some(10.0),
            ..ProfileRow::new("m", batch, 2.0 / 7.0, 600)
        }
    }

    fn some(rows: &[ProfileRow]) -> Vec<Candidate> {
        of_model("m", rows, Sharing::Mig, &SEVEN_SLICES, |_| true)
    }

    #[test]
    fn rows_that_cannot_be_used_are_left_out() {
        let broken = ProfileRow { valid: false, ..row(1, 1.0, 1.0) };
        let no_power = ProfileRow { dynamic_power_draw: None, ..row(2, 1.0, 1.0) };
        let five = ProfileRow { mig_slices: Some(5), ..row(4, 1.0, 1.0) };
        let repeated = row(8, 9.0, 9.0);
        assert_eq!(some(&[broken, no_power, five, row(8, 1.0, 1.0), repeated]).len(), 1);
    }

    #[test]
    fn what_binds_is_named_with_the_nearest() {
        let list = some(&[row(1, 2.0, 100.0), row(8, 9.0, 400.0)]);
        assert!(
            matches!(binding(&list, 1.0, 10.0), Binding::Latency { nearest } if nearest.latency_ms == 2.0)
        );
        assert!(
            matches!(binding(&list, 9.0, 500.0), Binding::Rate { nearest } if nearest.throughput_rps == 400.0)
        );
        assert!(matches!(binding(&list, 5.0, 300.0), Binding::Together { in_time, at_rate }
            if in_time.batch == 1 && at_rate.batch == 8));
        assert_eq!(binding(&[], 5.0, 300.0), Binding::NoRows);
        let text = Infeasible {
            model: "m".into(),
            latency_slo_ms: 1.0,
            rate_rps: 10.0,
            binding: binding(&list, 1.0, 10.0),
        };
        assert!(text.to_string().contains("2.0000 ms (batch 1, 2 slices, 600 MHz)"), "{text}");
    }
}
