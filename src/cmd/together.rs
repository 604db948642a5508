//! `gpumon predict --together`: what a model file says of sets of models that share a GPU.
//!
//! Rule: rows with the same cell in `set` are a set, wherever they stand; the answers keep the order of the rows, and the
//! power of the whole GPU stands in each row of its set.
//!
//! Cases: a member with a number in `rate_rps` works only as long as that many items a second take. All sets are
//! predicted before anything is printed.

use std::collections::HashMap;

use anyhow::{Context, Result, bail};
use csv::{StringRecord, WriterBuilder};
use gpumon_fit::colocation::model::{Asked, MemberPrediction, SetPrediction};
use gpumon_fit::model_file::ModelFile;
use gpumon_fit::predict::Interval;
use serde_json::{Map, Value, json};

use super::DONE;
use super::predict::{Columns, Points, insert, line, number, points, three, where_it_is};
use crate::cli::pipeline::PredictArgs;
use crate::output::{self, note};

/// Figures that are predicted, each with `_low` and `_high`.
const FIGURES: [&str; 4] = ["pred_slowdown", "pred_latency", "pred_throughput", "pred_avg_power_draw"];
/// What stands behind the figures.
const MARKS: [&str; 5] = ["pred_duty", "pred_sm_mhz", "at_power_limit", "extrapolated", "simulated"];

/// A row: its set, where it is, and what is asked.
struct Row {
    set: String,
    keys: [String; 4],
    asked: Asked,
    line: u64,
}

/// Predicts all sets of a file.
pub fn run(models: &ModelFile, reader: Points, args: &PredictArgs) -> Result<u8> {
    let name = args.points.display();
    let (headers, columns, records) = points(reader, &args.points)?;
    let find = |name: &str| headers.iter().position(|h| h == name);
    let set = find("set").with_context(|| {
        format!(
            "the points `{name}`, line 1: there is no column `set`; --together wants one that says which rows share a GPU"
        )
    })?;
    let rate = find("rate_rps");
    let row = |record: &StringRecord| {
        let row = Row::of(models, &columns, set, rate, record);
        row.with_context(|| format!("the points `{name}`, line {}", line(record)))
    };
    let rows = records.iter().map(row).collect::<Result<Vec<_>>>()?;
    if models.colocation.is_none() {
        note(
            "gpumon: the model file knows no measured sets: no slowdown by contention is in these figures; `gpumon fit --sets` adds it",
        );
    }
    let sets = predict(models, &rows).with_context(|| format!("the points `{name}`"))?;
    let answers: Vec<(&Row, &SetPrediction, &MemberPrediction)> = (rows.iter().enumerate())
        .filter_map(|(i, row)| {
            let (members, said) = sets.get(row.set.as_str())?;
            let at = members.iter().position(|member| *member == i)?;
            Some((row, said, said.members.get(at)?))
        })
        .collect();
    let outside = answers.iter().filter(|(.., member)| member.extrapolated).count();
    if outside > 0 {
        note(format_args!(
            "gpumon: {outside} of {} points lie outside the ranges that their models were fitted on (`extrapolated`); their \
             intervals say too little",
            answers.len()
        ));
    }
    let keys = ["model", "batch_size", columns.share.1, "frequency"];
    if args.json {
        let points: Vec<Value> = answers.iter().map(|a| object(&keys, *a, models.simulated)).collect();
        output::print_json(&json!({ "simulated": models.simulated, "points": points }))?;
    } else {
        output::print(&csv(&keys, &answers, models.simulated)?)?;
    }
    Ok(DONE)
}

impl Row {
    fn of(
        models: &ModelFile,
        columns: &Columns,
        set: usize,
        rate: Option<usize>,
        record: &StringRecord,
    ) -> Result<Self> {
        let text = |at: usize| record.get(at).unwrap_or_default();
        if text(set).is_empty() {
            bail!("`set` is empty; expected what the rows of one GPU have in common, such as a number");
        }
        let (model, point) = (text(columns.model).to_owned(), columns.point(record)?);
        if point.processes > 1 {
            bail!("`processes` is {}; what models do together is known of one process each", point.processes);
        }
        // Here, so that an unknown model is told with its line.
        models.predict(&model, &point)?;
        let asked = rate.map(text).filter(|cell| !cell.is_empty());
        let rate_rps = asked.map(|cell| number(cell, "rate_rps")).transpose()?;
        let asked = Asked { model, point, rate_rps };
        Ok(Self { set: text(set).to_owned(), keys: columns.keys(record), asked, line: line(record) })
    }
}

/// Members of each set, as places in the rows, and what they do.
type Sets<'a> = HashMap<&'a str, (Vec<usize>, SetPrediction)>;

fn predict<'a>(models: &ModelFile, rows: &'a [Row]) -> Result<Sets<'a>> {
    let mut order: Vec<(&str, Vec<usize>)> = Vec::new();
    let mut places = HashMap::<&str, usize>::new();
    for (i, row) in rows.iter().enumerate() {
        let at = *places.entry(&row.set).or_insert(order.len());
        match order.get_mut(at) {
            Some((_, members)) => members.push(i),
            None => order.push((&row.set, vec![i])),
        }
    }
    let mut sets = Sets::new();
    for (set, members) in order {
        let asked: Vec<Asked> = members.iter().map(|i| rows[*i].asked.clone()).collect();
        let said = models.together(&asked).with_context(|| {
            let lines: Vec<String> = members.iter().map(|i| rows[*i].line.to_string()).collect();
            format!("set `{set}` (lines {})", lines.join(", "))
        })?;
        sets.insert(set, (members, said));
    }
    Ok(sets)
}

fn figures(said: &SetPrediction, member: &MemberPrediction) -> [Interval; 4] {
    [member.slowdown, member.latency_ms, member.throughput, said.power_w]
}

fn mhz(row: &Row, said: &SetPrediction) -> f64 {
    f64::from(row.asked.point.frequency.0) * said.clock
}

fn csv(
    keys: &[&str; 4],
    answers: &[(&Row, &SetPrediction, &MemberPrediction)],
    simulated: bool,
) -> Result<String> {
    let mut writer = WriterBuilder::new().from_writer(Vec::new());
    let columns = FIGURES.iter().flat_map(|f| [(*f).to_owned(), format!("{f}_low"), format!("{f}_high")]);
    let keys = ["set"].into_iter().chain(keys.iter().copied()).map(str::to_owned);
    writer.write_record(keys.chain(columns).chain(MARKS.map(str::to_owned)))?;
    for (row, said, member) in answers {
        let marks = [
            member.duty.to_string(),
            mhz(row, said).to_string(),
            said.limited.to_string(),
            member.extrapolated.to_string(),
            simulated.to_string(),
        ];
        let figures = figures(said, member);
        let figures = figures.into_iter().flat_map(|i| three(&Some(i)));
        let keys = [row.set.clone()].into_iter().chain(row.keys.iter().cloned());
        writer.write_record(keys.chain(figures).chain(marks))?;
    }
    Ok(String::from_utf8(writer.into_inner()?)?)
}

/// The same columns as a JSON object; what is unknown is null.
fn object(
    keys: &[&str; 4],
    (row, said, member): (&Row, &SetPrediction, &MemberPrediction),
    simulated: bool,
) -> Value {
    let mut object: Map<String, Value> = [("set".to_owned(), json!(row.set))].into_iter().collect();
    object.extend(where_it_is(keys, &row.asked.model, &row.asked.point));
    for (name, figure) in FIGURES.iter().zip(figures(said, member)) {
        insert(&mut object, name, Some(figure));
    }
    let marks = [
        json!(member.duty),
        json!(mhz(row, said)),
        json!(said.limited),
        json!(member.extrapolated),
        json!(simulated),
    ];
    object.extend(MARKS.iter().map(|m| (*m).to_owned()).zip(marks));
    Value::Object(object)
}
