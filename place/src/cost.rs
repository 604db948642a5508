//! What a shared GPU costs, for each objective.
//!
//! Symbols of one GPU: base power B (W), models i with dynamic powers d_i (W), batch times l_i (ms), rates r_i and
//! throughputs t_i (items/s); R is the rate of all models of the problem.
//!
//! [`Objective::formula`] has each objective's cost of one GPU and [`Objective::unit`] its unit. Energy is that of one
//! batch of each model, all started at once: Σ over the intervals between departures of (B + Σ d of those still
//! running) × interval.
//!
//! A plan costs the sum over its GPUs; a GPU without models costs nothing. Where unused GPUs draw U (W), a GPU with
//! models costs, by the last three objectives, what it draws beyond U, and the plan adds U for every GPU that there is:
//! so the cheapest plan is the same, and a policy need not know how many are unused.
//!
//! `carbon` is kept exactly as published: CI is in g/kWh while energy is in W·ms, and the lifetime is in seconds while
//! max l is in ms, so the operational part outweighs the embodied one by far and carbon plans follow energy plans. Its
//! numbers compare plans with each other; they are no grams. `carbon-per-request` has its units in order.
//!
//! The energy sum equals B × max l + Σ d_i l_i, because each model draws d_i from 0 to l_i. So every objective has
//! the form of [`Terms`]: fixed + per_latency × max l + Σ weight_i, which policies search with.
//!
//! Not done: interference between models (latency and dynamic power are those of the model alone in its share), and
//! power caps.
//!
//! Source: EnerTune (SOSP'26) and its published artifact for the first three, with PUE 1.1, CI 490 g/kWh, lifetime
//! 4 × 352 days and C_m for an A100; the last three add duty cycles r_i / t_i, this project's own.

use std::fmt;
use std::str::FromStr;

/// What is to be least.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Objective {
    /// Power while every model runs, W.
    Power,
    /// Energy of one batch of each model, W·ms.
    Energy,
    /// Carbon as EnerTune published it.
    Carbon,
    /// Power with duty cycles, W.
    AveragePower,
    /// Average power over the rate of requests, J.
    #[default]
    EnergyPerRequest,
    /// Operational and embodied carbon over the rate of requests, g.
    CarbonPerRequest,
}

/// Every objective, published ones first.
pub const OBJECTIVES: &[Objective] = &[
    Objective::Power,
    Objective::Energy,
    Objective::Carbon,
    Objective::AveragePower,
    Objective::EnergyPerRequest,
    Objective::CarbonPerRequest,
];

/// There is no objective of this name.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "no objective `{0}`; there are power, energy, carbon, average-power, energy-per-request, carbon-per-request"
)]
pub struct UnknownObjective(String);

impl Objective {
    /// Its name on the command line and in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Power => "power",
            Self::Energy => "energy",
            Self::Carbon => "carbon",
            Self::AveragePower => "average-power",
            Self::EnergyPerRequest => "energy-per-request",
            Self::CarbonPerRequest => "carbon-per-request",
        }
    }

    /// Its cost of one GPU, in the symbols of this module.
    pub fn formula(self) -> &'static str {
        match self {
            Self::Power => "B + Σ d_i",
            Self::Energy => "B × max l + Σ d_i l_i",
            Self::Carbon => "PUE × CI × energy + (max l / lifetime) × C_m",
            Self::AveragePower => "B + Σ d_i r_i / t_i",
            Self::EnergyPerRequest => "average power / R",
            Self::CarbonPerRequest => "(PUE × CI × average power / 3.6e6 + C_m / lifetime) / R",
        }
    }

    /// The unit of its cost.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Power | Self::AveragePower => "W",
            Self::Energy => "W*ms",
            Self::Carbon => "g/kWh*W*ms",
            Self::EnergyPerRequest => "J",
            Self::CarbonPerRequest => "g",
        }
    }
}

impl fmt::Display for Objective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Objective {
    type Err = UnknownObjective;

    fn from_str(text: &str) -> Result<Self, UnknownObjective> {
        let found = OBJECTIVES.iter().find(|o| o.name() == text);
        found.copied().ok_or_else(|| UnknownObjective(text.into()))
    }
}

/// Where the electricity comes from, and how much the building adds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Carbon {
    /// Carbon intensity, g/kWh.
    pub g_per_kwh: f64,
    /// Power usage effectiveness.
    pub pue: f64,
}

impl Default for Carbon {
    /// EnerTune's: 490 g/kWh and 1.1.
    fn default() -> Self {
        Self { g_per_kwh: 490.0, pue: 1.1 }
    }
}

/// A GPU's life, s: 4 × 352 days, as published.
pub const LIFETIME_S: f64 = 4.0 * 352.0 * 24.0 * 3600.0;

/// Carbon of making an A100, g, as published: chip area and yield, memory, packaging.
pub fn embodied_g() -> f64 {
    1.0 / 0.9 * (583.0 * 1.52 + 350.0 + 500.0) * 8.26 + 66.60 * 80.0 + 2.0 * 150.0
}

/// What the cost of a GPU needs to know of one model on it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Time of a batch, ms.
    pub latency_ms: f64,
    /// Power above the base, W.
    pub dynamic_w: f64,
    /// Rate over throughput, 0 to 1.
    pub duty: f64,
}

/// The parts of a GPU's cost that do not depend on which models run there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms {
    /// Paid once, in the objective's unit.
    pub fixed: f64,
    /// Paid for each ms of the longest batch.
    pub per_latency: f64,
}

/// Costs for one objective.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// What is to be least.
    pub objective: Objective,
    /// For both carbon objectives.
    pub carbon: Carbon,
    /// Rate of all models, items/s; for costs per request.
    pub total_rate_rps: f64,
    /// What a GPU without a model draws, W; for the objectives with duty cycles.
    pub unused_w: f64,
}

impl Cost {
    /// Cost of one GPU with base power `base_w` and these models.
    pub fn gpu(&self, base_w: f64, loads: &[Load]) -> f64 {
        if loads.is_empty() {
            return 0.0;
        }
        match self.objective {
            Objective::Power => base_w + loads.iter().map(|l| l.dynamic_w).sum::<f64>(),
            Objective::Energy => energy_w_ms(base_w, loads),
            Objective::Carbon => {
                let longest_ms = loads.iter().map(|l| l.latency_ms).fold(0.0, f64::max);
                self.carbon.pue * self.carbon.g_per_kwh * energy_w_ms(base_w, loads)
                    + longest_ms / LIFETIME_S * embodied_g()
            }
            Objective::AveragePower | Objective::EnergyPerRequest | Objective::CarbonPerRequest => {
                self.of_average(average_w(base_w - self.unused_w, loads), 1)
            }
        }
    }

    /// What this average power and the wear of this many GPUs cost; for the objectives with duty cycles.
    fn of_average(&self, power_w: f64, gpus: usize) -> f64 {
        match self.objective {
            Objective::EnergyPerRequest => power_w / self.total_rate_rps,
            Objective::CarbonPerRequest => self.carbon.per_second_g(power_w, gpus) / self.total_rate_rps,
            _ => power_w,
        }
    }

    /// What a plan on a cluster of this many GPUs costs beyond the sum over those with models: what all would draw
    /// unused.
    pub fn of_unused(&self, gpus: u32) -> f64 {
        let watts = self.unused_w * f64::from(gpus);
        match self.objective {
            Objective::Power | Objective::Energy | Objective::Carbon => 0.0,
            _ => self.of_average(watts, 0),
        }
    }

    /// What a GPU with base power `base_w` costs whatever runs on it.
    pub fn terms(&self, base_w: f64) -> Terms {
        let once = |fixed| Terms { fixed, per_latency: 0.0 };
        match self.objective {
            Objective::Power => once(base_w),
            Objective::Energy => Terms { fixed: 0.0, per_latency: base_w },
            Objective::Carbon => {
                let per_latency =
                    self.carbon.pue * self.carbon.g_per_kwh * base_w + embodied_g() / LIFETIME_S;
                Terms { fixed: 0.0, per_latency }
            }
            _ => once(self.of_average(base_w - self.unused_w, 1)),
        }
    }

    /// What one model adds to a GPU's cost, beyond [`Terms`].
    pub fn weight(&self, load: &Load) -> f64 {
        match self.objective {
            Objective::Power => load.dynamic_w,
            Objective::Energy => load.dynamic_w * load.latency_ms,
            Objective::Carbon => self.carbon.pue * self.carbon.g_per_kwh * load.dynamic_w * load.latency_ms,
            _ => self.of_average(load.dynamic_w * load.duty, 0),
        }
    }
}

impl Carbon {
    /// Carbon in a second of this power and the wear of this many GPUs, g.
    pub fn per_second_g(&self, power_w: f64, gpus: usize) -> f64 {
        self.pue * self.g_per_kwh * power_w / 3.6e6 + gpus as f64 * embodied_g() / LIFETIME_S
    }
}

/// Power with duty cycles, W.
pub fn average_w(base_w: f64, loads: &[Load]) -> f64 {
    base_w + loads.iter().map(|l| l.dynamic_w * l.duty).sum::<f64>()
}

/// The departures of one batch of each model, walked one by one.
fn energy_w_ms(base_w: f64, loads: &[Load]) -> f64 {
    let mut leaving = loads.to_vec();
    leaving.sort_by(|a, b| a.latency_ms.total_cmp(&b.latency_ms));
    let (mut energy_w_ms, mut now_ms) = (0.0, 0.0);
    for (gone, next) in leaving.iter().enumerate() {
        let running_w: f64 = leaving[gone..].iter().map(|l| l.dynamic_w).sum();
        energy_w_ms += (base_w + running_w) * (next.latency_ms - now_ms);
        now_ms = next.latency_ms;
    }
    energy_w_ms
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cost(objective: Objective) -> Cost {
        Cost { objective, carbon: Carbon::default(), total_rate_rps: 50.0, unused_w: 0.0 }
    }

    fn load(latency_ms: f64, dynamic_w: f64, duty: f64) -> Load {
        Load { latency_ms, dynamic_w, duty }
    }

    #[test]
    fn known_answers() {
        let loads = [load(30.0, 10.0, 0.5), load(10.0, 20.0, 0.25)];
        assert_eq!(cost(Objective::Power).gpu(50.0, &loads), 80.0);
        // 10 ms of 80 W, 20 ms of 60 W.
        assert_eq!(cost(Objective::Energy).gpu(50.0, &loads), 2000.0);
        let embodied = 30.0 / 121_651_200.0 * embodied_g();
        assert_eq!(cost(Objective::Carbon).gpu(50.0, &loads), 1.1 * 490.0 * 2000.0 + embodied);
        assert_eq!(cost(Objective::AveragePower).gpu(50.0, &loads), 60.0);
        assert_eq!(cost(Objective::EnergyPerRequest).gpu(50.0, &loads), 1.2);
        assert!((embodied_g() - 21_562.1).abs() < 0.1, "{}", embodied_g());
        assert_eq!(cost(Objective::Power).gpu(50.0, &[]), 0.0);
        // 20 W unused: 40 W more for this one, and 2 × 20 W for the cluster of two.
        let drawing = |objective| Cost { unused_w: 20.0, ..cost(objective) };
        assert_eq!(drawing(Objective::AveragePower).gpu(50.0, &loads), 40.0);
        assert_eq!(drawing(Objective::AveragePower).of_unused(2), 40.0);
        assert_eq!(drawing(Objective::Power).gpu(50.0, &loads), 80.0);
        assert_eq!(drawing(Objective::Power).of_unused(2), 0.0);
    }

    #[test]
    fn names_read_back() {
        for &objective in OBJECTIVES {
            assert_eq!(objective.name().parse(), Ok(objective));
        }
        assert!("watts".parse::<Objective>().unwrap_err().to_string().contains("energy-per-request"));
    }

    proptest! {
        #[test]
        fn every_objective_is_fixed_and_per_latency_and_weights(
            base_w in 20.0f64..100.0,
            unused_w in 0.0f64..20.0,
            loads in proptest::collection::vec((0.1f64..1e4, 0.0f64..200.0, 0.0f64..1.0), 1..7),
        ) {
            let loads: Vec<_> = loads.into_iter().map(|(l, d, u)| load(l, d, u)).collect();
            let longest_ms = loads.iter().map(|l| l.latency_ms).fold(0.0, f64::max);
            for &objective in OBJECTIVES {
                let cost = Cost { unused_w, ..cost(objective) };
                let terms = cost.terms(base_w);
                let weights: f64 = loads.iter().map(|l| cost.weight(l)).sum();
                let closed = terms.fixed + terms.per_latency * longest_ms + weights;
                let walked = cost.gpu(base_w, &loads);
                prop_assert!((closed - walked).abs() <= 1e-9 * walked, "{objective}: {closed} {walked}");
            }
        }
    }
}
