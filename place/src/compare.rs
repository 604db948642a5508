//! Systems side by side: the plan of each for each objective and load, judged by one checker and one cost model.
//!
//! Rule: every system × objective × load is one [`Case`]: its figures, or the words why there is no plan. Beside the figures stand their ratios
//! to EnerTune's of the same objective and load (above 1: more than EnerTune), and how far its cost is above the optimum: the cost of `optimal` where that is
//! proven, else the bound that `optimal` gives, and then the true distance is at most this.
//! Cases: `optimal` divides no rate, so a system that does may lie below it. Where EnerTune or `optimal` are not asked or have no plan, what
//! refers to them is absent.
//! Not done here: choosing a winner; measuring.
//!
//! Source: what is compared, and to what, is the evaluation of EnerTune (SOSP'26).

use std::time::Instant;

use serde::Serialize;

use crate::cost::Objective;
use crate::plan::Plan;
use crate::policy::{Policy, solve};
use crate::problem::{Ask, Problem};

/// The system that others are compared with.
pub const BASELINE: &str = "enertune";
/// The system whose costs the distances are from.
pub const OPTIMUM: &str = "optimal";

/// What is compared.
pub struct Questions {
    /// The systems.
    pub systems: Vec<&'static dyn Policy>,
    /// The objectives.
    pub objectives: Vec<Objective>,
    /// Scales of the workload's rates.
    pub loads: Vec<f64>,
}

/// One system's answer for one objective and load.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The system.
    pub system: &'static str,
    /// The objective.
    pub objective: Objective,
    /// Scale of the workload's rates.
    pub load: f64,
    /// What planning took, s.
    pub planning_s: f64,
    /// The plan, or why there is none.
    pub plan: Result<Plan, String>,
}

/// One answer in figures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Case {
    /// The system.
    pub system: &'static str,
    /// The objective.
    pub objective: &'static str,
    /// Scale of the workload's rates.
    pub load: f64,
    /// What planning took, s.
    pub planning_s: f64,
    /// The plan's figures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub figures: Option<Figures>,
    /// Ratios to EnerTune's figures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_enertune: Option<Ratios>,
    /// How far its cost is above the optimum.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optimum: Option<Distance>,
    /// Why there is no plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A plan in figures.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// GPUs with work.
    pub gpus_used: usize,
    /// Cost for the objective, in its unit.
    pub cost: f64,
    /// Unit of the cost.
    pub cost_unit: &'static str,
    /// Power while every model runs, W.
    pub power_w: f64,
    /// Power with duty cycles, W.
    pub average_power_w: f64,
    /// Average power over the rate of all models, J.
    pub energy_per_request_j: f64,
    /// Carbon over the rate of all models, g.
    pub carbon_per_request_g: f64,
    /// What the partition nearest to its SLO leaves of it, %.
    pub slo_slack_least_pct: f64,
    /// What partitions leave of their SLOs, mean, %.
    pub slo_slack_mean_pct: f64,
}

/// Figures over EnerTune's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratios {
    /// Of the cost.
    pub cost: f64,
    /// Of the power while every model runs.
    pub power: f64,
    /// Of the average power, and so of the energy a request.
    pub average_power: f64,
}

/// A cost above the least.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Distance {
    /// Cost over the optimum, less 1, %; at most this where not proven.
    pub above_pct: f64,
    /// Whether the optimum is proven, or only a bound of it known.
    pub proven: bool,
}

/// Asks each system each question, in the order of objectives, loads and systems; `None` once `stop` says so, which is asked before each.
pub fn answers(ask: &Ask, questions: &Questions, stop: impl Fn() -> bool) -> Option<Vec<Answer>> {
    let mut answers = Vec::new();
    for &objective in &questions.objectives {
        for &load in &questions.loads {
            for &system in &questions.systems {
                if stop() {
                    return None;
                }
                let begun = Instant::now();
                let ask = Ask { objective, load, split: system.splits(), ..ask.clone() };
                let plan = Problem::new(&ask).map_err(|e| e.to_string());
                let plan = plan.and_then(|problem| solve(&problem, system).map_err(|e| e.to_string()));
                let planning_s = begun.elapsed().as_secs_f64();
                answers.push(Answer { system: system.name(), objective, load, planning_s, plan });
            }
        }
    }
    Some(answers)
}

/// The answers in figures, in their order.
pub fn cases(answers: &[Answer]) -> Vec<Case> {
    answers.iter().map(|answer| case(answer, answers)).collect()
}

fn case(answer: &Answer, answers: &[Answer]) -> Case {
    let of = |system: &str| {
        let same =
            |a: &&Answer| a.system == system && a.objective == answer.objective && a.load == answer.load;
        answers.iter().find(same).and_then(|a| a.plan.as_ref().ok())
    };
    let plan = answer.plan.as_ref().ok();
    Case {
        system: answer.system,
        objective: answer.objective.name(),
        load: answer.load,
        planning_s: answer.planning_s,
        figures: plan.map(|plan| figures(plan, answer.objective)),
        to_enertune: plan.zip(of(BASELINE)).map(|(plan, baseline)| ratios(plan, baseline)),
        optimum: plan.zip(of(OPTIMUM)).and_then(|(plan, optimum)| distance(plan, optimum)),
        error: answer.plan.as_ref().err().cloned(),
    }
}

fn figures(plan: &Plan, objective: Objective) -> Figures {
    let slacks: Vec<f64> = plan.slacks_pct().collect();
    let Plan { total, cost, .. } = plan;
    Figures {
        gpus_used: total.gpus_used,
        cost: *cost,
        cost_unit: objective.unit(),
        power_w: total.power_w,
        average_power_w: total.average_power_w,
        energy_per_request_j: total.energy_per_request_j,
        carbon_per_request_g: total.carbon_per_request_g,
        slo_slack_least_pct: plan.least_slack_pct(),
        slo_slack_mean_pct: slacks.iter().sum::<f64>() / slacks.len().max(1) as f64,
    }
}

fn ratios(plan: &Plan, baseline: &Plan) -> Ratios {
    let (a, b) = (&plan.total, &baseline.total);
    Ratios {
        cost: plan.cost / baseline.cost,
        power: a.power_w / b.power_w,
        average_power: a.average_power_w / b.average_power_w,
    }
}

fn distance(plan: &Plan, optimum: &Plan) -> Option<Distance> {
    let proven = optimum.total.proven == Some(true);
    let least = if proven { optimum.cost } else { optimum.total.bound? };
    Some(Distance { above_pct: 100.0 * (plan.cost / least - 1.0), proven })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::BasePower;
    use crate::policy::policy;
    use gpumon_core::profile::ProfileRow;
    use gpumon_core::workload::Workload;

    fn rows() -> Vec<ProfileRow> {
        [(1, 8.0), (3, 12.0), (7, 20.0)]
            .map(|(slices, dynamic_w)| ProfileRow {
                mig_slices: Some(slices),
                latency: Some(40.0 / f64::from(slices)),
                throughput: Some(25.0 * f64::from(slices)),
                dynamic_power_draw: Some(dynamic_w),
                ..ProfileRow::new("m", 1, f64::from(slices) / 7.0, 600)
            })
            .into()
    }

    #[test]
    fn figures_and_what_they_are_compared_with() {
        let text = "[cluster]\ngpu = \"a100\"\n[[model]]\nname = \"m\"\nlatency_slo_ms = 50\nrate_rps = 20\n";
        let (workload, rows) = (Workload::parse(text).unwrap(), rows());
        let base = BasePower::parse("frequency_mhz,static_w,fan_w,idle_w\n600,30,5,5\n").unwrap();
        let ask = Ask::new(&workload, &rows, &base, Objective::Power);
        let systems = ["enertune", "dedicated", "optimal"].map(|name| policy(name).unwrap()).into();
        let questions = Questions { systems, objectives: vec![Objective::Power], loads: vec![1.0, 20.0] };
        assert!(answers(&ask, &questions, || true).is_none());
        let answers = answers(&ask, &questions, || false).unwrap();
        let cases = cases(&answers);
        assert_eq!(cases.len(), 6);

        // 40 W and 8 W in one slice; a GPU of its own takes 20 W more than base. 40 ms of 50 and 40/7 ms of 50.
        let [enertune, dedicated, optimal] = [&cases[0], &cases[1], &cases[2]];
        let figures = enertune.figures.unwrap();
        assert_eq!((figures.gpus_used, figures.cost, figures.power_w), (1, 48.0, 48.0));
        assert!((figures.slo_slack_least_pct - 20.0).abs() < 1e-9);
        assert_eq!(optimal.optimum, Some(Distance { above_pct: 0.0, proven: true }));
        assert_eq!(dedicated.to_enertune.unwrap().power, 60.0 / 48.0);
        assert!((dedicated.optimum.unwrap().above_pct - 25.0).abs() < 1e-9);

        // At twenty times the rate nothing serves it.
        assert!(cases[3..].iter().all(|c| c.figures.is_none() && c.to_enertune.is_none()));
        assert!(cases[3].error.as_ref().unwrap().contains("rate binds"));
    }

    #[test]
    fn a_bound_stands_in_for_an_optimum_that_is_not_proven() {
        let total = |bound, proven| {
            let text = r#"{"schema":1,"gpumon_version":"0","system":"s","objective":"power","cost":110,"cost_unit":"W","gpu":"a100",
                "sharing":"mig","load":1.0,"carbon_g_per_kwh":490,"pue":1.1,"gpus":[],"total":{"gpus_used":1,"power_w":1,
                "average_power_w":1,"energy_per_request_j":1,"carbon_per_request_g":1}}"#;
            let mut plan = Plan::parse(text).unwrap();
            (plan.total.bound, plan.total.proven) = (bound, proven);
            plan
        };
        let plan = total(None, None);
        let from = |bound, proven| distance(&plan, &total(bound, proven));
        assert_eq!(from(Some(88.0), Some(false)), Some(Distance { above_pct: 25.0, proven: false }));
        assert_eq!(from(Some(88.0), Some(true)), Some(Distance { above_pct: 0.0, proven: true }));
        assert_eq!(from(None, None), None);
    }
}
