//! `gpumon predict`: what a model file says of given points, as CSV in the order of the points.

use std::path::Path;

use anyhow::{Context, Result, bail};
use csv::{ReaderBuilder, StringRecord, WriterBuilder};
use gpumon_core::units::Megahertz;
use gpumon_fit::model_file::ModelFile;
use gpumon_fit::point::{Point, Share};
use gpumon_fit::predict::{Interval, Prediction};

use super::DONE;
use crate::cli::pipeline::PredictArgs;
use crate::output;

/// Figures that are predicted, each with `_low` and `_high`.
const FIGURES: [&str; 4] =
    ["pred_avg_power_draw", "pred_dynamic_power_draw", "pred_throughput", "pred_latency"];

/// Where the columns of a points file are.
struct Columns {
    model: usize,
    batch: usize,
    share: (usize, &'static str),
    frequency: usize,
}

/// Predicts all points before anything is printed.
pub fn run(args: &PredictArgs) -> Result<u8> {
    let models = ModelFile::read(&args.models)?;
    output::print(&predict(&models, &args.points)?)?;
    Ok(DONE)
}

fn predict(models: &ModelFile, path: &Path) -> Result<String> {
    let name = path.display();
    let mut reader = ReaderBuilder::new()
        .trim(csv::Trim::All)
        .from_path(path)
        .with_context(|| format!("cannot read the points `{name}`"))?;
    let columns = Columns::of(reader.headers().with_context(|| format!("the points `{name}`"))?)
        .with_context(|| format!("the points `{name}`, line 1"))?;
    let mut writer = WriterBuilder::new().from_writer(Vec::new());
    let figures = FIGURES.iter().flat_map(|f| [(*f).to_owned(), format!("{f}_low"), format!("{f}_high")]);
    let keys = ["model", "batch_size", columns.share.1, "frequency"].map(str::to_owned);
    writer.write_record(keys.into_iter().chain(figures))?;
    for record in reader.records() {
        let record = record.with_context(|| format!("the points `{name}`"))?;
        let line = record.position().map_or(0, csv::Position::line);
        let row =
            columns.predict(models, &record).with_context(|| format!("the points `{name}`, line {line}"))?;
        writer.write_record(row)?;
    }
    Ok(String::from_utf8(writer.into_inner()?)?)
}

impl Columns {
    fn of(headers: &StringRecord) -> Result<Self> {
        let find = |name: &str| headers.iter().position(|h| h == name);
        let need = |name: &str| find(name).with_context(|| format!("there is no column `{name}`"));
        let share = find("mig_slices")
            .map(|at| (at, "mig_slices"))
            .or_else(|| find("share").map(|at| (at, "share")))
            .context("there is neither a column `mig_slices` nor `share`")?;
        Ok(Self { model: need("model")?, batch: need("batch_size")?, share, frequency: need("frequency")? })
    }

    fn predict(&self, models: &ModelFile, record: &StringRecord) -> Result<Vec<String>> {
        let text = |at: usize| record.get(at).unwrap_or_default();
        let share = number(text(self.share.0), self.share.1)?;
        let share = match self.share.1 {
            "mig_slices" => Share::Slices(whole(share, "mig_slices")? as u8),
            _ if share <= 1.0 => Share::Sms(share),
            _ => bail!("`share` is {share}; expected a share of the SMs, above 0 and at most 1"),
        };
        let point = Point {
            batch: whole(number(text(self.batch), "batch_size")?, "batch_size")?,
            share,
            frequency: Megahertz(whole(number(text(self.frequency), "frequency")?, "frequency")?),
        };
        let Prediction { avg_power_draw, dynamic_power_draw, throughput, latency, .. } =
            models.predict(text(self.model), &point)?;
        let keys = [self.model, self.batch, self.share.0, self.frequency].map(|at| text(at).to_owned());
        let figures = [avg_power_draw, dynamic_power_draw, Some(throughput), latency];
        Ok(keys.into_iter().chain(figures.iter().flat_map(three)).collect())
    }
}

/// A figure and its bounds; what is unknown is empty.
fn three(interval: &Option<Interval>) -> [String; 3] {
    let text = |value: Option<f64>| value.map_or(String::new(), |v| v.to_string());
    match interval {
        Some(i) => [text(Some(i.value)), text(i.low), text(i.high)],
        None => [const { String::new() }; 3],
    }
}

fn number(text: &str, column: &str) -> Result<f64> {
    let value = text.parse::<f64>().ok().filter(|v| v.is_finite() && *v > 0.0);
    value.with_context(|| format!("`{column}` is `{text}`; expected a number above 0"))
}

fn whole(value: f64, column: &str) -> Result<u32> {
    let bound = if column == "mig_slices" { 7.0 } else { 1e6 };
    if value.fract() != 0.0 || value > bound {
        bail!("`{column}` is {value}; expected a whole number up to {bound}");
    }
    Ok(value as u32)
}
