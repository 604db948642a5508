//! The page of the whole pipeline: plans, power while the sweep ran, held-out points.

use std::path::Path;

use anyhow::{Context, Result};
use gpumon_monitor::store::Reader;
use gpumon_place::plan::Plan;
use serde::Deserialize;

use super::Page;
use crate::export::rows::Select;
use crate::plot::held_out::Figure;
use crate::plot::{self, held_out, plan};

/// Length of the piece of the recording that is shown beside the whole, µs.
const PIECE_US: i64 = 120_000_000;

/// What the pipeline left behind, each stage's file.
pub struct Pipeline<'a> {
    /// Recording of the sweep.
    pub recording: &'a Path,
    /// Held-out points of the fit, CSV.
    pub held_out: &'a Path,
    /// Plans, a load each.
    pub plans: &'a [Plan],
    /// Table of the plans, as text.
    pub table: &'a str,
    /// The command lines that made all this.
    pub commands: &'a [String],
}

impl Pipeline<'_> {
    /// The page.
    pub fn html(&self) -> Result<String> {
        let reader = Reader::open(self.recording)?;
        let simulated = reader.header().simulated || self.plans.iter().any(|plan| plan.simulated);
        let mut page = Page::new("gpumon: sweep, fit, place", simulated);
        page.text("What the commands below did, from the readings of power to a plan for shared GPUs.");
        page.heading("Plans at five loads");
        page.text("Beside each plan what the same models would take with a GPU each, at the highest clock.");
        page.preformatted(self.table);

        page.heading("Power while the sweep ran");
        let all = Select { gpu: None, from_us: 0, to_us: i64::MAX };
        page.svg(&plot::power(&reader, all)?);
        let middle_us = reader.header().duration_us.unwrap_or(0) / 2;
        page.text("Two minutes of it:");
        page.svg(&plot::power(&reader, Select { from_us: middle_us, to_us: middle_us + PIECE_US, ..all })?);

        page.heading("The fit against points that it did not see");
        page.text("Each point is predicted by a fit on four fifths of the others.");
        page.svg(&held_out::svg(&page.title_of("Held-out points"), &figures(self.held_out)?)?);

        page.heading("The plans");
        page.text("A bar is a GPU with its eight memory slots; an empty place is grey. Hover over a model for its rate.");
        let models = plan::models(self.plans);
        for plan in self.plans {
            page.small_heading(&format!(
                "Load {:.0} %: {} GPU{}, {:.0} W on average, {:.3} J a request",
                plan.load * 100.0,
                plan.total.gpus_used,
                if plan.total.gpus_used == 1 { "" } else { "s" },
                plan.total.average_power_w,
                plan.total.energy_per_request_j
            ));
            page.svg(&plan::svg(plan, &models)?);
        }
        page.heading("The commands");
        page.preformatted(&self.commands.join("\n"));
        Ok(page.finish())
    }
}

/// A row of what `fit --held-out` writes, as far as it is drawn.
#[derive(Deserialize)]
struct HeldOut {
    model: String,
    avg_power_draw: Option<f64>,
    pred_avg_power_draw: Option<f64>,
    batch_time: Option<f64>,
    pred_batch_time: Option<f64>,
}

fn figures(path: &Path) -> Result<Vec<Figure>> {
    let name = || format!("the held-out points `{}`", path.display());
    let rows: Vec<HeldOut> = csv::Reader::from_path(path)
        .with_context(name)?
        .deserialize()
        .collect::<Result<_, _>>()
        .with_context(name)?;
    let figure = |name: &str, both: fn(&HeldOut) -> (Option<f64>, Option<f64>)| {
        let point = |row: &HeldOut| {
            let (measured, predicted) = both(row);
            Some((row.model.clone(), measured?, predicted?))
        };
        Figure { name: name.into(), points: rows.iter().filter_map(point).collect() }
    };
    Ok(vec![
        figure("power of the GPU (W)", |r| (r.avg_power_draw, r.pred_avg_power_draw)),
        figure("time of a batch (ms)", |r| (r.batch_time, r.pred_batch_time)),
    ])
}
