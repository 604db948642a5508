//! What is asked: models with their demands, what each can run as, and the GPUs.
//!
//! Rule: a workload, a profile and base powers make a problem; the load scales every model's rate.
//! Cases: clocks are the workload's list, or those of the profile; each must have a base power. The GPU count is
//! [`Ask::gpus`], else the workload's, else free. A model of the workload with a `max_load` is not scaled above that.
//! Where rates may be divided over partitions, a candidate need not keep up with a whole rate.
//! With arrivals, the SLO is of a request and holds for a percentile of them ([`crate::queue`]); without, of a batch.
//! How much neighbours slow each other down is known only where the asker hands it in ([`crate::slowdown`]).
//! A model that no candidate can serve is an error that names it, what binds and the nearest achievable.
//! Not done: choosing anything.
//!
//! Source: EnerTune (SOSP'26) for loads of 25 to 125 % of the rate; its artifact does not scale resnet50, gpt and its
//! two diffusion models above 100 %.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use gpumon_core::geometry::{MigGeometry, SEVEN_SLICES};
use gpumon_core::profile::ProfileRow;
use gpumon_core::workload::{Sharing, Unused, Workload};

use crate::base::BasePower;
use crate::candidate::{self, Binding, Candidate, Infeasible};
use crate::cost::{Carbon, Cost, Load, Objective};
use crate::queue::Queueing;
use crate::slowdown::Slowdown;

/// The part of requests that must be within the SLO where the workload does not say, %.
const PERCENTILE: f64 = 99.0;
/// Loads that can be asked for.
pub const LOAD: std::ops::RangeInclusive<f64> = 1e-6..=1e6;

/// The inputs of a problem.
#[derive(Clone, Debug)]
pub struct Ask<'a> {
    /// What is to be served.
    pub workload: &'a Workload,
    /// Measured or predicted rows.
    pub rows: &'a [ProfileRow],
    /// Base power by clock.
    pub base: &'a BasePower,
    /// What is to be least.
    pub objective: Objective,
    /// At most this many GPUs; the workload's count if absent.
    pub gpus: Option<u32>,
    /// Scale of every rate; 1 is the workload's.
    pub load: f64,
    /// Whether a rate may be divided over several partitions ([`crate::policy::Policy::splits`]): then no one candidate
    /// must keep up with it.
    pub split: bool,
    /// Longest search of the systems that could go on; what they give then depends on the machine's speed.
    pub time_limit: Duration,
    /// How much neighbours slow each other down, where that is known.
    pub slowdown: Option<Arc<dyn Slowdown>>,
}

impl<'a> Ask<'a> {
    /// At full load, on the workload's GPUs.
    pub fn new(
        workload: &'a Workload,
        rows: &'a [ProfileRow],
        base: &'a BasePower,
        objective: Objective,
    ) -> Self {
        let time_limit = Duration::from_secs(10);
        Self {
            workload,
            rows,
            base,
            objective,
            gpus: None,
            load: 1.0,
            split: false,
            time_limit,
            slowdown: None,
        }
    }
}

/// One model of a problem.
#[derive(Clone, Debug, PartialEq)]
pub struct Demand {
    /// Its name.
    pub name: String,
    /// Longest time of one batch, ms.
    pub latency_slo_ms: f64,
    /// Items a second, at the problem's load.
    pub rate_rps: f64,
    /// Everything that it could run as at the problem's clocks.
    pub candidates: Vec<Candidate>,
    /// Indices of the candidates that meet both demands; empty only where rates may be divided ([`Ask::split`]).
    pub feasible: Vec<usize>,
}

impl Demand {
    /// What a candidate of this model brings to the cost of a GPU when it serves `rate_rps`.
    pub fn load(&self, candidate: &Candidate, rate_rps: f64) -> Load {
        Load {
            latency_ms: candidate.latency_ms,
            dynamic_w: candidate.dynamic_w,
            duty: rate_rps / candidate.throughput_rps,
        }
    }
}

/// A problem that a policy can solve.
#[derive(Clone, Debug)]
pub struct Problem {
    /// Kind of GPU.
    pub gpu: String,
    /// How GPUs are shared.
    pub sharing: Sharing,
    /// Which MIG instances fit together.
    pub geometry: MigGeometry,
    /// The models, in the workload's order.
    pub models: Vec<Demand>,
    /// Clocks to choose from with their base power (MHz, W), ascending.
    pub clocks: Vec<(u32, f64)>,
    /// At most this many GPUs; free if absent.
    pub gpus: Option<u32>,
    /// Scale of the rates.
    pub load: f64,
    /// What a GPU costs.
    pub cost: Cost,
    /// How requests wait; nobody does if absent.
    pub queueing: Option<Queueing>,
    /// Whether any row comes from a simulated GPU.
    pub simulated: bool,
    /// Longest search of the systems that could go on.
    pub time_limit: Duration,
    /// How much neighbours slow each other down; nobody does if absent.
    pub slowdown: Option<Arc<dyn Slowdown>>,
}

/// Why there is no problem to solve.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum ProblemError {
    /// Nothing runs such a plan yet.
    #[error(
        "cluster.sharing is `green`, and plans are made for MIG and MPS; shares of SMs measured in green contexts can be \
         placed with `mps`"
    )]
    Green,
    /// Models that no candidate can serve.
    #[error("{}", join(.0))]
    Infeasible(Vec<Infeasible>),
    /// A clock has no base power.
    #[error(
        "no base power at {mhz} MHz; give a base table with that clock, or list others in cluster.frequencies_mhz"
    )]
    NoBase {
        /// The clock, MHz.
        mhz: u32,
    },
    /// A load is out of its range.
    #[error("the load {0} is not a finite number from 1e-6 to 1e6; 1 is the workload's rate")]
    Load(f64),
    /// GPUs that are not used draw power, but their number is free.
    #[error(
        "cluster.unused says what GPUs without a model do, but their number is free; give cluster.gpus or --gpus, or leave \
         it out"
    )]
    UnusedOfFree,
    /// The bound on GPUs is 0.
    #[error("0 GPUs serve nothing; ask for at least 1, or for as many as it takes")]
    NoGpus,
}

fn join(list: &[Infeasible]) -> String {
    list.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

impl Problem {
    /// The problem that these inputs make.
    pub fn new(ask: &Ask) -> Result<Self, ProblemError> {
        let Ask { workload, rows, base, .. } = ask;
        let cluster = &workload.cluster;
        if !LOAD.contains(&ask.load) {
            return Err(ProblemError::Load(ask.load));
        }
        let gpus = ask.gpus.or(cluster.gpus);
        if gpus == Some(0) {
            return Err(ProblemError::NoGpus);
        }
        let unused = cluster.unused.unwrap_or_default();
        if unused != Unused::Off && gpus.is_none() {
            return Err(ProblemError::UnusedOfFree);
        }
        let clocks = clocks(workload, rows, base)?;
        let unused_w = clocks.iter().filter_map(|(mhz, _)| base.unused_w(*mhz, unused)).reduce(f64::min);
        let queueing = cluster
            .arrivals
            .map(|arrivals| Queueing { arrivals, percentile: cluster.slo_percentile.unwrap_or(PERCENTILE) });
        let sharing = cluster.sharing.unwrap_or(Sharing::Mig);
        if sharing == Sharing::Green {
            return Err(ProblemError::Green);
        }
        let allowed = |mhz| clocks.iter().any(|(c, _)| *c == mhz);
        let of_name = candidate::by_model(rows);
        let mut infeasible = Vec::new();
        let mut models = Vec::new();
        for model in &workload.models {
            let load = model.max_load.map_or(ask.load, |max| ask.load.min(max));
            let (latency_slo_ms, rate_rps) = (model.latency_slo_ms, model.rate_rps * load);
            let rows = of_name.get(model.name.as_str()).map_or(&[][..], Vec::as_slice);
            let candidates = candidate::of_model(rows, sharing, &SEVEN_SLICES, allowed);
            let feasible: Vec<usize> = (0..candidates.len())
                .filter(|&i| serves(&candidates[i], queueing, latency_slo_ms, rate_rps))
                .collect();
            let name = model.name.clone();
            let least_rps = if ask.split { 0.0 } else { rate_rps };
            if !candidates.iter().any(|c| serves(c, queueing, latency_slo_ms, least_rps)) {
                let binding = candidate::binding(&candidates, latency_slo_ms, least_rps, queueing)
                    .unwrap_or_else(|| Binding::NoRows(candidate::unusable(rows, sharing, &SEVEN_SLICES)));
                infeasible.push(Infeasible { model: name, latency_slo_ms, rate_rps, binding });
            } else {
                models.push(Demand { name, latency_slo_ms, rate_rps, candidates, feasible });
            }
        }
        if !infeasible.is_empty() {
            return Err(ProblemError::Infeasible(infeasible));
        }
        let published = Carbon::default();
        let carbon = Carbon {
            g_per_kwh: cluster.carbon_g_per_kwh.unwrap_or(published.g_per_kwh),
            pue: cluster.pue.unwrap_or(published.pue),
        };
        let simulated = rows.iter().any(|row| row.simulated == Some(true));
        let total_rate_rps = models.iter().map(|m| m.rate_rps).sum();
        let cost =
            Cost { objective: ask.objective, carbon, total_rate_rps, unused_w: unused_w.unwrap_or(0.0) };
        let (gpu, geometry, load) = (cluster.gpu.clone(), SEVEN_SLICES, ask.load);
        let time_limit = ask.time_limit;
        let slowdown = ask.slowdown.clone();
        Ok(Self {
            gpu,
            sharing,
            geometry,
            models,
            clocks,
            gpus,
            load,
            cost,
            queueing,
            simulated,
            time_limit,
            slowdown,
        })
    }

    /// The same problem with every rate times `factor`; models that nothing can serve then keep no candidate.
    pub fn with_rates_times(&self, factor: f64) -> Self {
        let mut scaled = self.clone();
        scaled.load *= factor;
        scaled.cost.total_rate_rps *= factor;
        for model in &mut scaled.models {
            model.rate_rps *= factor;
            let of = |&i: &usize| {
                serves(&model.candidates[i], scaled.queueing, model.latency_slo_ms, model.rate_rps)
            };
            model.feasible = (0..model.candidates.len()).filter(of).collect();
        }
        scaled
    }

    /// What the GPUs draw that a plan on `used` of them leaves without a model, W.
    pub fn unused_w(&self, used: usize) -> f64 {
        self.gpus.map_or(0.0, |gpus| (f64::from(gpus) - used as f64).max(0.0) * self.cost.unused_w)
    }

    /// What any plan costs beyond the sum over its GPUs ([`Cost::of_unused`]).
    pub fn cost_of_unused(&self) -> f64 {
        self.gpus.map_or(0.0, |gpus| self.cost.of_unused(gpus))
    }

    /// Base power at this clock, W; `None` for a clock that the problem does not have.
    pub fn base_w(&self, frequency_mhz: u32) -> Option<f64> {
        self.clocks.iter().find(|(mhz, _)| *mhz == frequency_mhz).map(|(_, w)| *w)
    }
}

/// Whether a candidate serves this rate within the SLO, with all waiting. Nobody waits where nothing comes.
fn serves(c: &Candidate, queueing: Option<Queueing>, latency_slo_ms: f64, rate_rps: f64) -> bool {
    let in_time = |q: Queueing| rate_rps == 0.0 || q.meets(c, latency_slo_ms, rate_rps);
    c.meets(latency_slo_ms, rate_rps) && queueing.is_none_or(in_time)
}

fn clocks(
    workload: &Workload,
    rows: &[ProfileRow],
    base: &BasePower,
) -> Result<Vec<(u32, f64)>, ProblemError> {
    let mut clocks = match &workload.cluster.frequencies_mhz {
        Some(listed) => listed.clone(),
        None => {
            let names: HashSet<&str> = workload.models.iter().map(|m| m.name.as_str()).collect();
            let wanted = |row: &&ProfileRow| row.valid && names.contains(row.model.as_str());
            rows.iter().filter(wanted).filter_map(|row| u32::try_from(row.frequency).ok()).collect()
        }
    };
    clocks.sort_unstable();
    clocks.dedup();
    let with_base = |mhz| base.at_w(mhz).map(|w| (mhz, w)).ok_or(ProblemError::NoBase { mhz });
    clocks.into_iter().map(with_base).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKLOAD: &str =
        "[cluster]\ngpu = \"a100\"\n[[model]]\nname = \"m\"\nlatency_slo_ms = 5.0\nrate_rps = 10.0\n";

    fn row(frequency: i32) -> ProfileRow {
        ProfileRow {
            mig_slices: Some(1),
            latency: Some(4.0),
            throughput: Some(12.0),
            dynamic_power_draw: Some(10.0),
            ..ProfileRow::new("m", 1, 1.0 / 7.0, frequency)
        }
    }

    fn problem(
        load: f64,
        max: Option<f64>,
        rows: &[ProfileRow],
        text: &str,
    ) -> Result<Problem, ProblemError> {
        let mut workload = Workload::parse(text).unwrap();
        workload.models[0].max_load = max;
        let base = BasePower::parse("frequency_mhz,static_w,fan_w,idle_w\n600,1,2,3\n").unwrap();
        let mut ask = Ask::new(&workload, rows, &base, Objective::Power);
        ask.load = load;
        Problem::new(&ask)
    }

    #[test]
    fn load_scales_rates_up_to_a_models_own_limit() {
        assert_eq!(problem(1.2, None, &[row(600)], WORKLOAD).unwrap().models[0].rate_rps, 12.0);
        assert_eq!(problem(1.5, Some(1.0), &[row(600)], WORKLOAD).unwrap().models[0].rate_rps, 10.0);
        assert_eq!(problem(0.5, Some(1.0), &[row(600)], WORKLOAD).unwrap().models[0].rate_rps, 5.0);
    }

    #[test]
    fn errors_say_what_would_do() {
        let text = |r: Result<Problem, ProblemError>| r.unwrap_err().to_string();
        let too_much = text(problem(1.3, None, &[row(600)], WORKLOAD));
        assert!(too_much.contains("`m`: rate binds") && too_much.contains("12.0000 items/s"), "{too_much}");
        assert!(text(problem(1.0, None, &[], WORKLOAD)).contains("`m` has no usable row"));
        assert_eq!(
            problem(1.0, None, &[row(600), row(690)], WORKLOAD).unwrap_err(),
            ProblemError::NoBase { mhz: 690 }
        );
        let chosen = WORKLOAD.replace("[[model]]", "frequencies_mhz = [600]\n[[model]]");
        assert_eq!(problem(1.0, None, &[row(600), row(690)], &chosen).unwrap().clocks, [(600, 6.0)]);
        assert!(matches!(problem(f64::NAN, None, &[row(600)], WORKLOAD), Err(ProblemError::Load(_))));
    }
}
