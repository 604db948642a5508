//! `gpumon predict`: what a model file says of given points, as CSV or JSON in the order of the points.
//!
//! Cases: rows of the idle GPU are left out with a notice, so that any profile can stand for the points. Points outside
//! the range of a fit are answered, marked and counted in a notice. A column `processes` says how many serve the model together in
//! a share, 1 where its cell is empty; where it says nothing at all it is as if it were not there. Of `mig_slices` and `share` the first
//! counts where some row has it; a row whose `share` says otherwise is refused.

use std::fs::File;
use std::io::{Chain, Cursor, Read as _};
use std::path::Path;

use anyhow::{Context, Result, bail};
use csv::{Reader, ReaderBuilder, StringRecord, WriterBuilder};
use gpumon_core::profile::{IDLE, IDLE_CONTEXT};
use gpumon_core::units::Megahertz;
use gpumon_fit::model_file::ModelFile;
use gpumon_fit::point::{Point, Share};
use gpumon_fit::predict::{Interval, Prediction};
use serde_json::{Map, Value, json};

use super::{DONE, together};
use crate::cli::pipeline::PredictArgs;
use crate::output::{self, note};

/// Figures that are predicted, each with `_low` and `_high`.
const FIGURES: [&str; 5] =
    ["pred_avg_power_draw", "pred_dynamic_power_draw", "pred_throughput", "pred_latency", "pred_latency_p99"];
/// Compute slices of a GPU under MIG.
const SLICES: f64 = 7.0;
/// How far `share` and `mig_slices` of seven may differ by rounding, as in a profile.
const SHARE_ROUNDING: f64 = 0.01;
/// Column of the processes in a share.
const PROCESSES: &str = "processes";
/// What stands behind the figures.
const MARKS: [&str; 2] = ["extrapolated", "simulated"];

/// Where the columns of a points file are.
pub(super) struct Columns {
    pub(super) model: usize,
    pub(super) batch: usize,
    pub(super) share: (usize, &'static str),
    /// The column `share` where `mig_slices` counts.
    beside: Option<usize>,
    pub(super) frequency: usize,
    /// Processes in a share, where some row says how many.
    processes: Option<usize>,
}

/// The points, whose first bytes were looked at.
pub(super) type Points = Reader<Chain<Cursor<Vec<u8>>, File>>;

/// One answer: the point's key cells and what the model says.
struct Answer {
    keys: [String; 4],
    point: Point,
    prediction: Prediction,
}

/// Predicts all points before anything is printed.
pub fn run(args: &PredictArgs) -> Result<u8> {
    let models = ModelFile::read(&args.models)?;
    let name = args.points.display();
    let mut file = File::open(&args.points).with_context(|| format!("cannot read the points `{name}`"))?;
    // A pipe cannot go back to its beginning.
    let mut head = Vec::new();
    file.by_ref()
        .take(4)
        .read_to_end(&mut head)
        .with_context(|| format!("cannot read the points `{name}`"))?;
    if head == b"PAR1" {
        bail!(
            "the points `{name}` are Parquet; give CSV with the columns model, batch_size, mig_slices or share, frequency"
        );
    }
    let reader: Points = ReaderBuilder::new().trim(csv::Trim::All).from_reader(Cursor::new(head).chain(file));
    if args.together {
        return together::run(&models, reader, args);
    }
    let (columns, answers) = predict(&models, reader, &args.points)?;
    let outside = answers.iter().filter(|a| a.prediction.extrapolated).count();
    if outside > 0 {
        note(format_args!(
            "gpumon: {outside} of {} points lie outside the ranges that their models were fitted on (`extrapolated`); their \
             intervals say too little",
            answers.len()
        ));
    }
    let keys = ["model", "batch_size", columns.share.1, "frequency"];
    let processes = columns.processes.is_some();
    if args.json {
        let shown = shown(&answers);
        let object = |answer| object(&keys, processes, answer, shown);
        let points: Vec<Value> = answers.iter().map(object).collect();
        output::print_json(&json!({ "simulated": models.simulated, "points": points }))?;
    } else {
        output::print(&csv(&keys, processes, &answers, models.simulated)?)?;
    }
    Ok(DONE)
}

fn predict(models: &ModelFile, reader: Points, path: &Path) -> Result<(Columns, Vec<Answer>)> {
    let (_, columns, points) = points(reader, path)?;
    let answer = |record: &StringRecord| {
        columns
            .answer(models, record)
            .with_context(|| format!("the points `{}`, line {}", path.display(), line(record)))
    };
    let answers = points.iter().map(answer).collect::<Result<_>>()?;
    Ok((columns, answers))
}

/// Header, where its columns are, and the rows that are not of the idle GPU.
pub(super) fn points(mut reader: Points, path: &Path) -> Result<(StringRecord, Columns, Vec<StringRecord>)> {
    let name = path.display();
    let headers = reader.headers().with_context(|| format!("the points `{name}`"))?.clone();
    let records = reader.records().collect::<Result<Vec<_>, _>>();
    let records = records.with_context(|| format!("the points `{name}`"))?;
    let columns = Columns::of(&headers, &records).with_context(|| format!("the points `{name}`, line 1"))?;
    let is_idle = |record: &StringRecord| matches!(record.get(columns.model), Some(IDLE | IDLE_CONTEXT));
    let (idle, points): (Vec<_>, Vec<_>) = records.into_iter().partition(|record| is_idle(record));
    if !idle.is_empty() {
        note(format_args!("gpumon: {name}: {} rows of the idle GPU are left out", idle.len()));
    }
    Ok((headers, columns, points))
}

/// The line of a row in its file.
pub(super) fn line(record: &StringRecord) -> u64 {
    record.position().map_or(0, csv::Position::line)
}

impl Columns {
    fn of(headers: &StringRecord, records: &[StringRecord]) -> Result<Self> {
        let find = |name: &str| headers.iter().position(|h| h == name);
        let need = |name: &str| find(name).with_context(|| format!("there is no column `{name}`"));
        let holds = |at: &usize| records.iter().any(|record| record.get(*at).is_some_and(|c| !c.is_empty()));
        // A profile has both columns, and under MPS no slices in the first.
        let (slices, sms) = (find("mig_slices"), find("share"));
        let share = (slices.filter(|at| sms.is_none() || holds(at)).map(|at| (at, "mig_slices")))
            .or(sms.map(|at| (at, "share")))
            .context("there is neither a column `mig_slices` nor `share`")?;
        let beside = sms.filter(|at| *at != share.0);
        let processes = find(PROCESSES).filter(holds);
        let (model, batch, frequency) = (need("model")?, need("batch_size")?, need("frequency")?);
        Ok(Self { model, batch, share, beside, frequency, processes })
    }

    fn answer(&self, models: &ModelFile, record: &StringRecord) -> Result<Answer> {
        let point = self.point(record)?;
        let prediction = models.predict(record.get(self.model).unwrap_or_default(), &point)?;
        Ok(Answer { keys: self.keys(record), point, prediction })
    }

    /// The cells that say where.
    pub(super) fn keys(&self, record: &StringRecord) -> [String; 4] {
        let text = |at: usize| record.get(at).unwrap_or_default().to_owned();
        [self.model, self.batch, self.share.0, self.frequency].map(text)
    }

    pub(super) fn point(&self, record: &StringRecord) -> Result<Point> {
        let text = |at: usize| record.get(at).unwrap_or_default();
        let share = number(text(self.share.0), self.share.1)?;
        let share = match self.share.1 {
            "mig_slices" => {
                let slices = whole(share, "mig_slices")?;
                let beside = self.beside.map(text).filter(|cell| !cell.is_empty());
                let beside = beside.map(|cell| number(cell, "share")).transpose()?;
                if let Some(other) = beside.filter(|s| (s - share / SLICES).abs() > SHARE_ROUNDING) {
                    bail!(
                        "`share` is {other} beside {slices} of 7 slices, which is {:.4}; expected the share that `mig_slices` is, or \
                         only one of the two",
                        share / SLICES
                    );
                }
                Share::Slices(slices as u8)
            }
            _ if share <= 1.0 => Share::Sms(share),
            _ => bail!("`share` is {share}; expected a share of the SMs, above 0 and at most 1"),
        };
        let processes = self.processes.map(text).filter(|cell| !cell.is_empty());
        let processes = processes.map(|cell| whole(number(cell, PROCESSES)?, PROCESSES)).transpose()?;
        Ok(Point {
            processes: processes.unwrap_or(1),
            batch: whole(number(text(self.batch), "batch_size")?, "batch_size")?,
            share,
            frequency: Megahertz(whole(number(text(self.frequency), "frequency")?, "frequency")?),
        })
    }
}

impl Answer {
    fn figures(&self) -> [Option<Interval>; 5] {
        let p = &self.prediction;
        [p.avg_power_draw, p.dynamic_power_draw, Some(p.throughput), p.latency, p.latency_p99]
    }
}

fn csv(keys: &[&str; 4], processes: bool, answers: &[Answer], simulated: bool) -> Result<String> {
    let mut writer = WriterBuilder::new().from_writer(Vec::new());
    let shown = shown(answers);
    let figures =
        FIGURES[..shown].iter().flat_map(|f| [(*f).to_owned(), format!("{f}_low"), format!("{f}_high")]);
    let marks = MARKS.map(str::to_owned);
    let keys = keys.iter().copied().chain(processes.then_some(PROCESSES)).map(str::to_owned);
    writer.write_record(keys.chain(figures).chain(marks))?;
    for answer in answers {
        let figures = &answer.figures()[..shown];
        let marks = [answer.prediction.extrapolated, simulated].map(|mark| mark.to_string());
        let keys = answer.keys.iter().cloned().chain(processes.then(|| answer.point.processes.to_string()));
        writer.write_record(keys.chain(figures.iter().flat_map(three)).chain(marks))?;
    }
    Ok(String::from_utf8(writer.into_inner()?)?)
}

/// How many figures have columns: the last one only where a model knows it.
fn shown(answers: &[Answer]) -> usize {
    let all = FIGURES.len();
    if answers.iter().any(|a| a.prediction.latency_p99.is_some()) { all } else { all - 1 }
}

/// A figure and its bounds; what is unknown is empty.
pub(super) fn three(interval: &Option<Interval>) -> [String; 3] {
    let text = |value: Option<f64>| value.map_or(String::new(), |v| v.to_string());
    match interval {
        Some(i) => [text(Some(i.value)), text(i.low), text(i.high)],
        None => [const { String::new() }; 3],
    }
}

/// The same columns as a JSON object; what is unknown is null.
fn object(keys: &[&str; 4], processes: bool, answer: &Answer, shown: usize) -> Value {
    let mut object = where_it_is(keys, &answer.keys[0], &answer.point);
    if processes {
        object.insert(PROCESSES.into(), json!(answer.point.processes));
    }
    for (name, figure) in FIGURES[..shown].iter().zip(answer.figures()) {
        insert(&mut object, name, figure);
    }
    object.insert(MARKS[0].into(), json!(answer.prediction.extrapolated));
    Value::Object(object)
}

/// The key columns as the beginning of a JSON object.
pub(super) fn where_it_is(keys: &[&str; 4], model: &str, point: &Point) -> Map<String, Value> {
    let share = match point.share {
        Share::Slices(slices) => json!(slices),
        Share::Sms(share) => json!(share),
    };
    let values = [json!(model), json!(point.batch), share, json!(point.frequency.0)];
    keys.iter().map(|key| (*key).to_owned()).zip(values).collect()
}

/// A figure and its bounds; what is unknown is null.
pub(super) fn insert(object: &mut Map<String, Value>, name: &str, figure: Option<Interval>) {
    object.insert(name.to_owned(), json!(figure.map(|i| i.value)));
    object.insert(format!("{name}_low"), json!(figure.and_then(|i| i.low)));
    object.insert(format!("{name}_high"), json!(figure.and_then(|i| i.high)));
}

pub(super) fn number(text: &str, column: &str) -> Result<f64> {
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
