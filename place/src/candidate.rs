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

use std::collections::{HashMap, HashSet};
use std::fmt;

use gpumon_core::geometry::MigGeometry;
use gpumon_core::profile::ProfileRow;
use gpumon_core::workload::Sharing;

use crate::queue::Queueing;

/// How much of a GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Share {
    /// Compute slices of a MIG instance.
    Slices(u8),
    /// Percent of the SMs (MPS).
    Percent(f64),
}

impl Share {
    /// Compute slices, of a MIG instance.
    pub fn slices(&self) -> Option<u8> {
        match self {
            Self::Slices(n) => Some(*n),
            Self::Percent(_) => None,
        }
    }

    /// Slices or percent, to compare shares of one kind.
    pub fn amount(&self) -> f64 {
        match self {
            Self::Slices(n) => f64::from(*n),
            Self::Percent(pct) => *pct,
        }
    }
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
    /// What else it takes of the GPU.
    pub uses: Uses,
}

/// What the profile says a candidate takes of a GPU beside its share; absent where that was not measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Uses {
    /// Warps resident over warps possible on the whole GPU, 0 to 1.
    pub occupancy: Option<f64>,
    /// Memory, bytes.
    pub mem_bytes: Option<f64>,
}

impl Uses {
    fn of_row(row: &ProfileRow) -> Self {
        Self {
            occupancy: row.sm_occupancy_pct.filter(|p| (0.0..=100.0).contains(p)).map(|p| p / 100.0),
            mem_bytes: row.mem_bytes.filter(|b| *b > 0).map(|b| b as f64),
        }
    }
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

/// Each model's rows in their order.
pub fn by_model(rows: &[ProfileRow]) -> HashMap<&str, Vec<&ProfileRow>> {
    let mut by_model: HashMap<&str, Vec<&ProfileRow>> = HashMap::new();
    for row in rows {
        by_model.entry(&row.model).or_default().push(row);
    }
    by_model
}

/// The candidates of one model, of which these are all rows, in their order.
pub fn of_model(
    rows: &[&ProfileRow],
    sharing: Sharing,
    geometry: &MigGeometry,
    allowed_mhz: impl Fn(u32) -> bool,
) -> Vec<Candidate> {
    let mut seen = HashSet::new();
    rows.iter()
        .filter(|row| row.valid)
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
        (Sharing::Mps | Sharing::Green, None) if row.share > 0.0 && row.share <= 1.0 => {
            Share::Percent(row.share * 100.0)
        }
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
        uses: Uses::of_row(row),
    })
}

/// Why no row of a model can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// There is none of this model.
    NotThere,
    /// None of them is valid; the reason of the first.
    Invalid(Option<String>),
    /// None is of this kind of sharing.
    Sharing(Sharing),
    /// None of those of this kind of sharing has dynamic power, or times.
    Figures,
    /// None of those is at a clock of the problem; the clocks that they are at, MHz.
    Clocks(Vec<u32>),
}

/// Why [`of_model`] finds nothing for these arguments.
pub fn unusable(rows: &[&ProfileRow], sharing: Sharing, geometry: &MigGeometry) -> Unusable {
    let Some(first) = rows.first() else { return Unusable::NotThere };
    let valid: Vec<&ProfileRow> = rows.iter().copied().filter(|row| row.valid).collect();
    if valid.is_empty() {
        return Unusable::Invalid(first.reason.clone());
    }
    let shared = |row: &&&ProfileRow| row.mig_slices.is_some() == (sharing == Sharing::Mig);
    if valid.iter().filter(shared).count() == 0 {
        return Unusable::Sharing(sharing);
    }
    let mut clocks: Vec<u32> = valid
        .iter()
        .filter_map(|row| of_row(row, sharing, geometry))
        .map(|candidate| candidate.frequency_mhz)
        .collect();
    clocks.sort_unstable();
    clocks.dedup();
    if clocks.is_empty() { Unusable::Figures } else { Unusable::Clocks(clocks) }
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotThere => {
                f.write_str("the profile has no row of it; profile it, or take it out of the workload")
            }
            Self::Invalid(reason) => write!(
                f,
                "none of its rows is valid ({}); measure it again",
                reason.as_deref().unwrap_or("no reason is given")
            ),
            Self::Sharing(Sharing::Mig) => f.write_str(
                "none of its rows is of a MIG instance, but cluster.sharing is `mig`; profile it with `mig_slices`, or \
                 let cluster.sharing be `mps`",
            ),
            Self::Sharing(Sharing::Mps | Sharing::Green) => f.write_str(
                "its rows are of MIG instances, but cluster.sharing is `mps`; profile it with a `share`, or let \
                 cluster.sharing be `mig`",
            ),
            Self::Figures => f.write_str(
                "none of its rows has a dynamic power beside latency and throughput; measure the idle GPU at each clock \
                 and take it off avg_power_draw",
            ),
            Self::Clocks(clocks) => {
                let clocks: Vec<_> = clocks.iter().map(u32::to_string).collect();
                write!(
                    f,
                    "none of its rows is at a clock of cluster.frequencies_mhz; they are at {} MHz",
                    clocks.join(", ")
                )
            }
        }
    }
}

/// Which demand of a model no candidate meets.
#[derive(Clone, Debug, PartialEq)]
pub enum Binding {
    /// The profile has no usable row of the model.
    NoRows(Unusable),
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
    /// Batches are in time and keep up, but requests wait too long.
    Waiting {
        /// The candidate whose requests take the shortest.
        nearest: Candidate,
        /// What they take at the percentile, ms.
        request_ms: f64,
        /// The percentile, %.
        percentile: f64,
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
            Binding::NoRows(why) => write!(f, "`{model}` has no usable row: {why}"),
            Binding::Latency { nearest } => write!(
                f,
                "`{model}`: latency binds: no batch is answered within {slo} ms; the nearest is {:.4} ms ({nearest}), \
                 so latency_slo_ms must be at least that",
                at_least(nearest.latency_ms)
            ),
            Binding::Rate { nearest } => write!(
                f,
                "`{model}`: rate binds: nothing serves {rate} items/s; the nearest is {:.4} items/s ({nearest}), so \
                 rate_rps or the load must come down to that",
                at_most(nearest.throughput_rps)
            ),
            Binding::Together { in_time, at_rate } => write!(
                f,
                "`{model}`: latency and rate bind together: within {slo} ms at most {:.4} items/s ({in_time}) of \
                 {rate}; at that rate at least {:.4} ms ({at_rate})",
                at_most(in_time.throughput_rps),
                at_least(at_rate.latency_ms)
            ),
            Binding::Waiting { nearest, request_ms, percentile } => write!(
                f,
                "`{model}`: waiting binds: at {rate} items/s no candidate answers {percentile} % of requests within {slo} ms, \
                 gathering and waiting included; the nearest is {:.4} ms ({nearest}), so latency_slo_ms must be at least \
                 that, or the profile needs smaller batches or larger shares",
                at_least(*request_ms)
            ),
        }
    }
}

/// A number with four decimals that is no less, so that what it promises holds.
fn at_least(value: f64) -> f64 {
    let near = (value * 1e4).round() / 1e4;
    if near >= value { near } else { (value * 1e4).ceil() / 1e4 }
}

/// A number with four decimals that is no more.
fn at_most(value: f64) -> f64 {
    -at_least(-value)
}

/// What binds when none of `candidates` meets the demands; `None` if there are none.
pub fn binding(
    candidates: &[Candidate],
    latency_slo_ms: f64,
    rate_rps: f64,
    queueing: Option<Queueing>,
) -> Option<Binding> {
    if let Some(queueing) = queueing.filter(|_| candidates.iter().any(|c| c.meets(latency_slo_ms, rate_rps)))
    {
        let waits = candidates.iter().filter_map(|c| Some((*c, queueing.request_ms(c, rate_rps)?)));
        let shortest = waits.min_by(|a, b| a.1.total_cmp(&b.1));
        if let Some((nearest, request_ms)) = shortest {
            return Some(Binding::Waiting { nearest, request_ms, percentile: queueing.percentile });
        }
    }
    let fastest = |list: &mut dyn Iterator<Item = &Candidate>| {
        list.min_by(|a, b| a.latency_ms.total_cmp(&b.latency_ms)).copied()
    };
    let widest = |list: &mut dyn Iterator<Item = &Candidate>| {
        list.max_by(|a, b| a.throughput_rps.total_cmp(&b.throughput_rps)).copied()
    };
    let in_time = widest(&mut candidates.iter().filter(|c| c.latency_ms <= latency_slo_ms));
    let at_rate = fastest(&mut candidates.iter().filter(|c| c.throughput_rps >= rate_rps));
    match (in_time, at_rate) {
        (Some(in_time), Some(at_rate)) => Some(Binding::Together { in_time, at_rate }),
        (None, _) => fastest(&mut candidates.iter()).map(|nearest| Binding::Latency { nearest }),
        (_, None) => widest(&mut candidates.iter()).map(|nearest| Binding::Rate { nearest }),
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
        of_model(&rows.iter().collect::<Vec<_>>(), Sharing::Mig, &SEVEN_SLICES, |_| true)
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
            matches!(binding(&list, 1.0, 10.0, None), Some(Binding::Latency { nearest }) if nearest.latency_ms == 2.0)
        );
        assert!(
            matches!(binding(&list, 9.0, 500.0, None), Some(Binding::Rate { nearest }) if nearest.throughput_rps == 400.0)
        );
        assert!(matches!(binding(&list, 5.0, 300.0, None), Some(Binding::Together { in_time, at_rate })
            if in_time.batch == 1 && at_rate.batch == 8));
        assert_eq!(binding(&[], 5.0, 300.0, None), None);
        let text = Infeasible {
            model: "m".into(),
            latency_slo_ms: 1.0,
            rate_rps: 10.0,
            binding: binding(&list, 1.0, 10.0, None).unwrap(),
        };
        assert!(text.to_string().contains("2.0000 ms (batch 1, 2 slices, 600 MHz)"), "{text}");
    }

    #[test]
    fn the_nearest_is_rounded_so_that_it_holds() {
        assert_eq!((at_least(2.00001), at_most(399.99999)), (2.0001, 399.9999));
        for value in [2.0, 0.1 + 0.2, 1.1, 4.015, 1e-9, 123_456.789_012] {
            let parsed = |v: f64| format!("{v:.4}").parse::<f64>().unwrap();
            assert!(parsed(at_least(value)) >= value && parsed(at_most(value)) <= value, "{value}");
        }
    }

    #[test]
    fn causes_of_no_usable_row_are_told_apart() {
        let of =
            |rows: &[ProfileRow], sharing| unusable(&rows.iter().collect::<Vec<_>>(), sharing, &SEVEN_SLICES);
        let good = row(1, 1.0, 1.0);
        let reason = Some("too hot".to_owned());
        let broken = ProfileRow { valid: false, reason: reason.clone(), ..good.clone() };
        let no_power = ProfileRow { dynamic_power_draw: None, ..good.clone() };
        let share = ProfileRow { mig_slices: None, ..good.clone() };
        assert_eq!(of(&[], Sharing::Mig), Unusable::NotThere);
        assert_eq!(of(&[broken], Sharing::Mig), Unusable::Invalid(reason));
        assert_eq!(of(std::slice::from_ref(&good), Sharing::Mps), Unusable::Sharing(Sharing::Mps));
        assert_eq!(of(&[share], Sharing::Mig), Unusable::Sharing(Sharing::Mig));
        assert_eq!(of(&[no_power], Sharing::Mig), Unusable::Figures);
        assert_eq!(of(&[good], Sharing::Mig), Unusable::Clocks(vec![600]));
    }
}
