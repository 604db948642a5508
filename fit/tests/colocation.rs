//! Sets of models on one GPU: quality on the H200 data set, and on the groups of the reference (A100).

#![allow(clippy::unwrap_used, reason = "helpers of tests: a panic is the report")]

mod common;

use std::path::{Path, PathBuf};

use gpumon_core::profile::ProfileRow;
use gpumon_core::set::SetRow;
use gpumon_core::{profile_io, set};
use gpumon_fit::base::BasePower;
use gpumon_fit::colocation::model::{Asked, ColocationModel};
use gpumon_fit::colocation::quality::{self, Leave, RuleQuality, quality};
use gpumon_fit::colocation::rules;
use gpumon_fit::colocation::set::{Alone, MeasuredSet, measured};
use gpumon_fit::model_file::ModelFile;
use gpumon_fit::models::{FitOptions, fit_models};
use gpumon_fit::point::Point;

/// Power limit of the H200, W.
const CAP_W: f64 = 700.0;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/runs/2026-12-01-h200-profile")
}

fn h200() -> (Vec<ProfileRow>, Vec<SetRow>) {
    let grid = profile_io::read(&folder().join("grid.parquet")).unwrap().rows;
    (grid, set::read(&folder().join("sets.parquet")).unwrap())
}

fn fitted(grid: &[ProfileRow], sets: &[SetRow]) -> ModelFile {
    let options = FitOptions { cap_w: Some(CAP_W), ..FitOptions::default() };
    let mut file = ModelFile::new(fit_models(grid, &options).unwrap(), &options);
    file.colocation = Some(ColocationModel::fit(&file, grid, sets, Some(CAP_W)).unwrap());
    file
}

fn of<'a>(all: &'a [RuleQuality], rule: &str) -> &'a RuleQuality {
    all.iter().find(|q| q.rule == rule && q.leave == Leave::Members).unwrap()
}

fn point(row: &SetRow) -> Point {
    let mut at = ProfileRow::new(&row.model, row.batch_size, row.share, row.frequency);
    at.mig_slices = row.mig_slices;
    Point::of(&at).unwrap()
}

fn asked(rows: &[&SetRow]) -> Vec<Asked> {
    let one = |r: &&SetRow| Asked { model: r.model.clone(), point: point(r), rate_rps: None };
    rows.iter().map(one).collect()
}

#[test]
fn sets_of_the_h200_are_predicted_without_having_been_seen() {
    let (grid, rows) = h200();
    let file = fitted(&grid, &rows);
    let model = file.colocation.as_ref().unwrap();
    println!("members by the model file:\n{}", quality::table(&model.quality));
    println!("{:?}\n{:?}", model.parameters, model.intervals);
    assert_eq!((model.sets.sets, model.sets.members, model.sets.at_limit), (40, 115, 7));
    assert!(model.notes.is_empty(), "{:?}", model.notes);
    let ours = of(&model.quality, "contention");
    let power = ours.power.all.unwrap();
    assert!(power.mean_pct <= 3.0 && power.worst_pct <= 6.0, "{power:?}");
    assert!(ours.slowdown.all.unwrap().mean_pct <= 5.0, "{:?}", ours.slowdown);
    for figure in [ours.power, ours.slowdown] {
        let held = figure.intervals.unwrap().held_pct;
        assert!((80.0..=97.6).contains(&held), "{held}");
    }
    for other in ["enertune", "additive", "gpulets"] {
        let other = of(&model.quality, other);
        assert!(other.power.all.unwrap().mean_pct > power.mean_pct, "{}", other.rule);
        assert!(other.slowdown.all.unwrap().mean_pct > ours.slowdown.all.unwrap().mean_pct, "{}", other.rule);
    }
}

/// The same with each member as it was measured alone, without a fitted surface between.
#[test]
fn members_as_measured_say_the_same_on_average() {
    let (grid, rows) = h200();
    let base = BasePower::of_rows(&grid).unwrap();
    let (sets, left_out) = measured(&rows, Alone::Rows(&grid, &base), Some(CAP_W)).unwrap();
    assert!(left_out.is_empty(), "{left_out:?}");
    let all: Vec<RuleQuality> =
        (0..rules().len()).map(|i| quality(&|| rules().swap_remove(i), &sets, Leave::Members).0).collect();
    println!("members as measured:\n{}", quality::table(&all));
    let ours = of(&all, "contention");
    assert!(ours.power.all.unwrap().mean_pct <= 3.0 && ours.slowdown.all.unwrap().mean_pct <= 5.0);
    // Without counters, SM activity is inferred from how time falls with share.
    let bare: Vec<ProfileRow> =
        grid.iter().map(|r| ProfileRow { sm_util_pct: None, dram_util_pct: None, ..r.clone() }).collect();
    let model = fitted(&bare, &rows).colocation.unwrap();
    println!("members by the model file, without counters:\n{}", quality::table(&model.quality));
    assert!(model.activity.is_empty());
    let ours = of(&model.quality, "contention");
    assert!(ours.power.all.unwrap().mean_pct <= 3.0 && ours.slowdown.all.unwrap().mean_pct <= 5.0);
}

#[test]
fn predictions_stay_within_the_limit_and_hold_what_was_measured() {
    let (grid, rows) = h200();
    let file = fitted(&grid, &rows);
    let (mut power, mut slow, mut sets, mut members, mut width) = (0, 0, 0, 0, [0.0; 2]);
    for number in 0..40 {
        let rows: Vec<&SetRow> = rows.iter().filter(|r| r.set == number).collect();
        let said = file.together(&asked(&rows)).unwrap();
        let within =
            |i: &gpumon_fit::predict::Interval, v: f64| (i.low.unwrap()..=i.high.unwrap()).contains(&v);
        assert!(said.power_w.high.unwrap() <= CAP_W, "{number}");
        power += i32::from(within(&said.power_w, rows[0].avg_power_draw.unwrap()));
        width[0] += (said.power_w.high.unwrap() - said.power_w.low.unwrap()) / said.power_w.value;
        sets += 1;
        for (row, member) in rows.iter().zip(&said.members) {
            slow += i32::from(within(&member.latency_ms, row.latency.unwrap()));
            width[1] +=
                (member.latency_ms.high.unwrap() - member.latency_ms.low.unwrap()) / member.latency_ms.value;
            members += 1;
        }
    }
    println!("of what predict says, inside: power {power} of {sets}, latency {slow} of {members}");
    println!(
        "mean width {:.1} % and {:.1} %",
        100.0 * width[0] / 40.0,
        100.0 * width[1] / f64::from(members)
    );
    // Members at points that nobody measured are known less well.
    let mut elsewhere = asked(&rows.iter().filter(|r| r.set == 0).collect::<Vec<_>>());
    elsewhere.iter_mut().for_each(|a| a.point.batch = 6);
    let said = file.together(&elsewhere).unwrap();
    let wider = (said.power_w.high.unwrap() - said.power_w.low.unwrap()) / said.power_w.value;
    assert!(wider > 1.2 * width[0] / 40.0, "{wider}");
    assert!(power >= 36 && f64::from(slow) >= 0.9 * f64::from(members));
}

#[test]
fn a_model_alone_is_its_own_prediction_and_the_file_comes_back() {
    let (grid, rows) = h200();
    let file = fitted(&grid, &rows);
    let text = file.text().unwrap();
    let back = ModelFile::parse(&text, Path::new("m.json")).unwrap();
    assert_eq!(back, file);
    for model in &file.models {
        let row = rows.iter().find(|r| r.model == model.name).unwrap();
        let alone = file.predict(&model.name, &point(row)).unwrap();
        let said = back.together(&asked(&[row])).unwrap();
        let member = &said.members[0];
        assert_eq!((member.slowdown.value, member.slowdown.low), (1.0, None));
        assert!((member.throughput.value / alone.throughput.value - 1.0).abs() < 1e-12);
        assert!((member.latency_ms.value / alone.latency.unwrap().value - 1.0).abs() < 1e-12);
        let power = alone.avg_power_draw.unwrap().value;
        assert!((said.power_w.value / power - 1.0).abs() < 1e-9, "{} {power}", said.power_w.value);
    }
    // A file without the section still reads; one with an unknown rule does not.
    let mut older: serde_json::Value = serde_json::from_str(&text).unwrap();
    older.as_object_mut().unwrap().remove("colocation");
    let older = ModelFile::parse(&older.to_string(), Path::new("m.json")).unwrap();
    assert_eq!(older.colocation, None);
    let pair: Vec<&SetRow> = rows.iter().filter(|r| r.set == 0).collect();
    let said = older.together(&asked(&pair)).unwrap();
    assert_eq!(
        (said.members[0].slowdown.value, said.members[0].slowdown.high, said.power_w.low),
        (1.0, None, None)
    );
    let unknown = text
        .replace("\"rule\": \"contention\",\n    \"parameters\"", "\"rule\": \"later\",\n    \"parameters\"");
    assert!(unknown != text);
    let error = ModelFile::parse(&unknown, Path::new("m.json")).unwrap_err().to_string();
    assert!(error.contains("rule that this gpumon does not know"), "{error}");
}

/// Members of the groups of the reference: the rows of `model_datastore.csv`, base power of `base_power.csv`.
fn groups() -> Option<Vec<MeasuredSet>> {
    let root = common::root()?;
    let lines = |name: &str| -> Vec<Vec<String>> {
        let text = std::fs::read_to_string(root.join("a100").join(name)).unwrap();
        text.lines().skip(1).map(|l| l.split(',').map(str::to_owned).collect()).collect()
    };
    let number = |text: &String| text.parse::<f64>().unwrap();
    let store: Vec<ProfileRow> =
        lines("model_datastore.csv").iter().map(|cells| common::row(cells)).collect();
    let table: Vec<_> = (lines("base_power.csv").iter())
        .map(|c| {
            (gpumon_core::units::Megahertz(number(&c[0]) as u32), number(&c[1]), number(&c[2]), number(&c[3]))
        })
        .collect();
    let base = BasePower::of_table(&table).unwrap();
    let groups = lines("colocated_groups.csv");
    let rows = groups.iter().map(|cells| {
        let (batch, slices) = (number(&cells[3]) as i32, number(&cells[4]));
        let mut row = ProfileRow::new(&cells[2], batch, slices / 7.0, number(&cells[1]) as i32);
        (row.mig_slices, row.avg_power_draw) = (Some(slices as i32), Some(number(&cells[5])));
        let members = groups.iter().filter(|other| other[0] == cells[0]).count();
        SetRow::of(number(&cells[0]) as i32, members as i32, row, None)
    });
    let rows: Vec<SetRow> = rows.collect();
    let (sets, left_out) = measured(&rows, Alone::Rows(&store, &base), Some(300.0)).unwrap();
    assert!(left_out.is_empty(), "{left_out:?}");
    Some(sets)
}

#[test]
fn groups_of_the_reference_have_their_published_errors() {
    let Some(sets) = groups() else { return };
    let mut means = Vec::new();
    for rule in rules() {
        // Nothing is fitted: no group is used but to be compared with.
        let errors: Vec<f64> = (sets.iter())
            .map(|s| 100.0 * (rule.together(&s.gpu, &s.members).power_w / s.power_w.unwrap() - 1.0))
            .collect();
        let mean = errors.iter().map(|e| e.abs()).sum::<f64>() / errors.len() as f64;
        println!("{:<12} mean {mean:.2} %: {errors:.1?}", rule.name());
        means.push((rule.name(), mean));
    }
    let of = |name: &str| means.iter().find(|m| m.0 == name).unwrap().1;
    assert!((of("enertune") - 9.48).abs() < 0.01 && (of("additive") - 30.94).abs() < 0.01, "{means:?}");
    assert!(of("contention") <= of("enertune") + 1e-9);
}
