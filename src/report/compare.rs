//! Systems side by side, as text and as a page: tables, power by load, the plans drawn.
//!
//! Rule: one table an objective, one row a load and system; `-` where there is no plan. On the page the plans of one objective and load
//! stand below each other, each GPU a bar.
//! Cases: plans on more than 32 GPUs are not drawn, and their line says so.

use anyhow::Result;
use comfy_table::{CellAlignment, Table, TableComponent, presets};
use gpumon_core::workload::Sharing;
use gpumon_place::compare::{Answer, BASELINE, Case};
use gpumon_place::cost::Objective;
use gpumon_place::plan::{Input, Plan};
use serde::Serialize;

use super::Page;
use crate::plot::panels::{self, Axis, Panel};
use crate::plot::plan as picture;

/// Version of the comparison file's shape.
const SCHEMA: u32 = 1;
/// Plans on more GPUs are not drawn.
const DRAWN: usize = 32;

/// The comparison file.
#[derive(Debug, Serialize)]
pub struct Comparison {
    schema: u32,
    gpumon_version: &'static str,
    simulated: bool,
    gpu: String,
    sharing: Sharing,
    #[serde(skip_serializing_if = "Option::is_none")]
    gpus: Option<u32>,
    carbon_g_per_kwh: f64,
    pue: f64,
    inputs: Vec<Input>,
    cases: Vec<Case>,
}

impl Comparison {
    /// Of cases that share what `plan` was made from; `gpus` bounds all of them.
    pub fn new(plan: &Plan, gpus: Option<u32>, cases: Vec<Case>) -> Self {
        Self {
            schema: SCHEMA,
            gpumon_version: env!("CARGO_PKG_VERSION"),
            simulated: plan.simulated,
            gpu: plan.gpu.clone(),
            sharing: plan.sharing,
            gpus,
            carbon_g_per_kwh: plan.carbon_g_per_kwh,
            pue: plan.pue,
            inputs: plan.inputs.clone(),
            cases,
        }
    }

    fn objectives(&self) -> Vec<&'static str> {
        let mut names: Vec<&str> = Vec::new();
        for case in &self.cases {
            if !names.contains(&case.objective) {
                names.push(case.objective);
            }
        }
        names
    }

    fn of<'a>(&'a self, objective: &'a str) -> impl Iterator<Item = &'a Case> {
        self.cases.iter().filter(move |case| case.objective == objective)
    }
}

/// A load in percent, without digits that say nothing.
pub fn percent(load: f64) -> String {
    // Rounded, because 1.1 times 100 is a little above 110.
    ((load * 1e8).round() / 1e6).to_string()
}

/// Every objective's table, for a terminal.
pub fn tables(comparison: &Comparison) -> String {
    let mut text = String::new();
    if comparison.simulated {
        text += "From simulated GPUs: nothing here was measured on hardware.\n";
    }
    for objective in comparison.objectives() {
        text += &format!("\nPlanned for {objective}:\n{}\n", table(comparison, objective));
    }
    text
}

fn table(comparison: &Comparison, objective: &str) -> Table {
    let mut table = Table::new();
    let unit = comparison.of(objective).find_map(|c| c.figures).map_or("", |f| f.cost_unit);
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY).set_header([
        "load, %".into(),
        "system".into(),
        "GPUs".into(),
        format!("cost, {unit}"),
        format!("÷ {BASELINE}"),
        "above optimum, %".into(),
        "W, all busy".into(),
        "W, average".into(),
        format!("÷ {BASELINE}"),
        "J a request".into(),
        "g a request".into(),
        "least SLO slack, %".into(),
    ]);
    for case in comparison.of(objective) {
        let figure = |text: fn(&gpumon_place::compare::Figures) -> String| {
            case.figures.as_ref().map_or("-".into(), text)
        };
        let above = case
            .optimum
            .map_or("-".into(), |o| format!("{}{:.2}", if o.proven { "" } else { "≤ " }, o.above_pct + 0.0));
        let ratio = |value: Option<f64>| value.map_or("-".into(), |v| format!("{v:.3}"));
        table.add_row([
            percent(case.load),
            case.system.into(),
            figure(|f| f.gpus_used.to_string()),
            figure(|f| digits(f.cost)),
            ratio(case.to_enertune.map(|r| r.cost)),
            above,
            figure(|f| format!("{:.1}", f.power_w)),
            figure(|f| format!("{:.1}", f.average_power_w)),
            ratio(case.to_enertune.map(|r| r.average_power)),
            figure(|f| digits(f.energy_per_request_j)),
            figure(|f| digits(f.carbon_per_request_g)),
            figure(|f| format!("{:.1}", f.slo_slack_least_pct)),
        ]);
    }
    // The preset's lines between rows are one too many for long tables.
    table.remove_style(TableComponent::HorizontalLines).remove_style(TableComponent::MiddleIntersections);
    for (at, column) in table.column_iter_mut().enumerate() {
        column.set_cell_alignment(if at == 1 { CellAlignment::Left } else { CellAlignment::Right });
    }
    table
}

/// Five digits that count.
fn digits(value: f64) -> String {
    let whole = if value > 0.0 { value.log10().floor() as i32 + 1 } else { 1 };
    match usize::try_from(5 - whole) {
        Ok(decimals) if decimals <= 9 => format!("{value:.decimals$}"),
        Ok(_) => format!("{value:.4e}"),
        Err(_) => format!("{value:.0}"),
    }
}

/// The page; `answers` are those that the cases come from.
pub fn html(comparison: &Comparison, answers: &[Answer]) -> Result<String> {
    let title = format!("gpumon: systems that place models on {} GPUs", comparison.gpu);
    let mut page = Page::new(&title, comparison.simulated);
    page.text(
        "Every system plans for the same models, rates and latency SLOs; one checker and one cost model judge all of them. Power and energy are \
         predicted from profiles or models, not measured while these plans ran.",
    );
    page.text(&format!(
        "÷ {BASELINE}: the same figure of {BASELINE} at that objective and load is 1. Above optimum: how far the cost is above the proven least of all \
         plans that divide no rate, or at most (≤) above a bound of it. Least SLO slack: what the partition nearest to its latency SLO leaves of it.",
    ));
    for objective in comparison.objectives() {
        page.heading(&format!("Planned for {objective}"));
        if let Some(known) = answers.iter().find(|a| a.objective.name() == objective) {
            page.text(&format!("Cost of a GPU: {}", formula(known.objective)));
        }
        page.preformatted(&table(comparison, objective).to_string());
        if let Some(svg) = by_load(comparison, objective)? {
            page.svg(&svg);
        }
        for group in by_question(answers, objective) {
            drawn(&mut page, group)?;
        }
    }
    Ok(page.finish())
}

fn formula(objective: Objective) -> String {
    format!("{} ({})", objective.formula(), objective.unit())
}

/// Answers of one objective, grouped by load.
fn by_question<'a>(answers: &'a [Answer], objective: &'a str) -> impl Iterator<Item = &'a [Answer]> {
    let groups = answers.chunk_by(|a, b| a.objective == b.objective && a.load == b.load);
    groups.filter(move |group| group.first().is_some_and(|a| a.objective.name() == objective))
}

/// Average power and energy a request over the load, a line a system; none for a single load.
fn by_load(comparison: &Comparison, objective: &str) -> Result<Option<String>> {
    let mut systems: Vec<&str> = Vec::new();
    for case in comparison.of(objective) {
        if !systems.contains(&case.system) {
            systems.push(case.system);
        }
    }
    let panel = |name: &str, value: fn(&Case) -> Option<f64>| {
        let line = |system: &str| -> Vec<(f64, f64)> {
            let mut points: Vec<(f64, f64)> = comparison
                .of(objective)
                .filter(|c| c.system == system)
                .filter_map(|c| Some((100.0 * c.load, value(c)?)))
                .collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            points
        };
        let lines: Vec<(usize, Vec<(f64, f64)>)> =
            systems.iter().enumerate().map(|(at, system)| (at, line(system))).collect();
        let points = || lines.iter().flat_map(|(_, points)| points);
        let dots = lines.iter().flat_map(|(at, points)| points.iter().map(|(x, y)| (*at, *x, *y))).collect();
        let several = points().any(|p| Some(p.0) != points().next().map(|first| first.0));
        let x = Axis::of_values("load (%)", false, points().map(|p| p.0)).filter(|_| several)?;
        let y = Axis::of_values(name, false, points().map(|p| p.1).chain([0.0]))?;
        Some(Panel { x, y, reference: Vec::new(), lines: lines.clone(), dots })
    };
    let panels: Option<Vec<Panel>> = [
        panel("average power (W)", |c| c.figures.map(|f| f.average_power_w)),
        panel("energy a request (J)", |c| c.figures.map(|f| f.energy_per_request_j)),
    ]
    .into_iter()
    .collect();
    let legend: Vec<String> = systems.iter().map(|s| (*s).to_owned()).collect();
    let title = format!("Power and energy by load, planned for {objective}");
    panels.map(|panels| panels::svg(&title, &legend, panels::LOW, &[panels])).transpose()
}

/// The plans of one objective and load.
fn drawn(page: &mut Page, answers: &[Answer]) -> Result<()> {
    let Some(first) = answers.first() else { return Ok(()) };
    page.begin_details(&format!("The plans at load {} %", percent(first.load)));
    let plans = || answers.iter().filter_map(|a| a.plan.as_ref().ok());
    let models = picture::models(plans());
    for answer in answers {
        match &answer.plan {
            Ok(plan) => section(page, plan, &models)?,
            Err(reason) => page.text(&format!("{}: no plan: {reason}", answer.system)),
        }
    }
    page.end_details();
    Ok(())
}

/// The page of plans alone, each with the name of its file.
pub fn plans_html(plans: &[(String, Plan)]) -> Result<String> {
    let simulated = plans.iter().any(|(_, plan)| plan.simulated);
    let mut page = Page::new("gpumon: plans", simulated);
    page.text(
        "A bar is a GPU: its eight memory slots, or its SMs; an empty place is grey. A partition says model, share, batch, and how much of its \
         latency SLO a batch takes. All figures are predicted.",
    );
    let models = picture::models(plans.iter().map(|(_, plan)| plan));
    for (name, plan) in plans {
        page.heading(name);
        page.text(&format!(
            "Planned for {} at load {} %: {:.6} {}; least SLO slack {:.1} %.",
            plan.objective,
            percent(plan.load),
            plan.cost,
            plan.cost_unit,
            plan.least_slack_pct()
        ));
        section(&mut page, plan, &models)?;
    }
    Ok(page.finish())
}

/// One plan under its heading.
fn section(page: &mut Page, plan: &Plan, models: &[&str]) -> Result<()> {
    page.small_heading(&format!(
        "{}: {} GPU{}, {:.0} W all busy, {:.0} W on average, {:.4} J a request",
        plan.system,
        plan.total.gpus_used,
        if plan.total.gpus_used == 1 { "" } else { "s" },
        plan.total.power_w,
        plan.total.average_power_w,
        plan.total.energy_per_request_j
    ));
    if plan.gpus.len() > DRAWN {
        page.text(&format!("Not drawn: more than {DRAWN} GPUs."));
        return Ok(());
    }
    page.svg(&picture::svg(plan, models)?);
    Ok(())
}
