//! Journals: sweeps that were stopped go on, and what is no journal of theirs is left alone.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use gpumon_core::profile::ProfileRow;
use gpumon_core::profile_io;

use super::{rows, stage};
use crate::choose::{Candidate, Choice, Chooser, End};
use crate::design::Design;
use crate::protocol::Bench;
use crate::sweep::Sweep;

/// A file's rows without what depends on the GPU's past: its temperature, and a row's energy, as the counter moves in
/// steps.
fn comparable(path: &Path) -> Vec<ProfileRow> {
    let rows = profile_io::read(path).unwrap().rows;
    for row in &rows {
        assert!(row.wall_energy_j > Some(0.0) && row.wall_s > Some(0.0) && row.temp_c.is_some(), "{row:?}");
    }
    rows.into_iter().map(|row| ProfileRow { wall_energy_j: None, temp_c: None, ..row }).collect()
}

#[test]
fn a_sweep_cut_off_anywhere_gives_the_same_rows() {
    let plan = stage("a100", "densenet-like+mobilenet-like").plan(Design::Lhs(0.3));
    for name in ["p.parquet", "p.csv"] {
        let folder = tempfile::tempdir().unwrap();
        let whole = folder.path().join(format!("whole-{name}"));
        stage("a100", "densenet-like+mobilenet-like").sweep(&plan, &whole, 0).unwrap();
        let whole = comparable(&whole);
        for stop_after in [1, 3, 6, 7, 10, plan.rows() - 1] {
            for cut_bytes in [0, 1, 40] {
                let output = folder.path().join(format!("{stop_after}-{cut_bytes}-{name}"));
                let stopped =
                    stage("a100", "densenet-like+mobilenet-like").sweep(&plan, &output, stop_after).unwrap();
                let journal = stopped.journal.unwrap();
                assert_eq!(stopped.rows.len(), stop_after);
                assert!(!output.exists());
                let kept = std::fs::read(&journal).unwrap();
                std::fs::write(&journal, &kept[..kept.len() - cut_bytes]).unwrap();
                let outcome = stage("a100", "densenet-like+mobilenet-like").sweep(&plan, &output, 0).unwrap();
                assert_eq!(outcome.resumed, if cut_bytes == 0 { stop_after } else { stop_after - 1 });
                assert!(comparable(&output) == whole, "{name} after {stop_after}, {cut_bytes} bytes short");
                assert!(!journal.exists());
            }
        }
    }
}

/// Takes points from the end, four of each model.
struct FromTheEnd;

impl Chooser for FromTheEnd {
    fn next(&mut self, model: &str, rows: &[ProfileRow], left: &[Candidate]) -> Choice {
        let own = rows.iter().filter(|r| r.model == model).count();
        if own < 4 {
            Choice::Next(left.len() - 1)
        } else {
            Choice::Done(End { expected_error: Some(0.5), reached: None })
        }
    }

    fn most(&self, _: usize) -> usize {
        4
    }
}

#[test]
fn a_chooser_asks_for_points_and_is_asked_the_same_again_after_a_stop() {
    let folder = tempfile::tempdir().unwrap();
    let begin = || stage("a100", "densenet-like+mobilenet-like");
    let plan = begin().plan(Design::Full);
    assert_eq!((plan.rows(), plan.rows_by(&FromTheEnd)), (6 + 54, 6 + 8));
    let whole = folder.path().join("whole.csv");
    let outcome = begin().sweep_by(&mut FromTheEnd, &plan, &whole, 0).unwrap();
    assert_eq!(outcome.ends, [End { expected_error: Some(0.5), reached: None }; 2]);
    let last = plan.models[1].points.iter().rev().take(4).map(|p| (p.batch, p.clock.0));
    let made = rows(outcome).split_off(10);
    assert!(made.iter().map(|r| (r.batch_size as u32, r.frequency as u32)).eq(last));
    for stop_after in [3, 6, 8, 10, 13] {
        let output = folder.path().join(format!("{stop_after}.csv"));
        begin().sweep_by(&mut FromTheEnd, &plan, &output, stop_after).unwrap();
        let outcome = begin().sweep_by(&mut FromTheEnd, &plan, &output, 0).unwrap();
        assert_eq!((outcome.resumed, outcome.ends.len()), (stop_after, 2));
        assert!(comparable(&output) == comparable(&whole), "after {stop_after}");
    }
    // Another order finds a row that it would not have made.
    let output = folder.path().join("other.csv");
    begin().sweep_by(&mut FromTheEnd, &plan, &output, 8).unwrap();
    let error = begin().sweep(&plan, &output, 0).unwrap_err().to_string();
    assert!(error.contains("a row of another point than the sweep's"), "{error}");
}

#[test]
fn a_journal_cut_at_any_byte_is_taken_up() {
    let folder = tempfile::tempdir().unwrap();
    let begin = || stage("a100", "mobilenet-like");
    let plan = begin().plan(Design::Lhs(0.1));
    let whole = folder.path().join("whole.csv");
    begin().sweep(&plan, &whole, 0).unwrap();
    let cut = folder.path().join("cut.csv");
    begin().sweep(&plan, &cut, plan.rows() - 1).unwrap();
    let journal = folder.path().join("cut.csv.journal");
    let kept = std::fs::read(&journal).unwrap();
    for bytes in (0..kept.len()).step_by(311).chain([1, kept.len()]) {
        std::fs::write(&journal, &kept[..bytes]).unwrap();
        begin().sweep(&plan, &cut, 0).unwrap();
        assert!(comparable(&cut) == comparable(&whole), "cut to {bytes} bytes");
        std::fs::remove_file(&cut).unwrap();
    }
}

#[test]
fn a_journal_of_other_rows_than_the_plans_is_refused_with_the_line() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("p.csv");
    let begin = || stage("a100", "bert-like");
    let plan = begin().plan(Design::Lhs(0.2));
    begin().sweep(&plan, &output, plan.rows() - 1).unwrap();
    let journal = folder.path().join("p.csv.journal");
    let kept = std::fs::read_to_string(&journal).unwrap();
    let lines: Vec<&str> = kept.lines().collect();
    let refused = |lines: &[&str], says: &str| {
        std::fs::write(&journal, lines.join("\n") + "\n").unwrap();
        let error = begin().sweep(&plan, &output, 0).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    };
    let without =
        |i: usize| lines.iter().enumerate().filter(|(k, _)| *k != i).map(|(_, l)| *l).collect::<Vec<_>>();
    refused(&without(2), "line 3: a row of another point than the sweep's, which is `@idle` at 750 MHz");
    let points = 1 + 2 * plan.idle.len();
    refused(&without(points), &format!("line {}: a row of another point", points + 1));
    let last = *lines.last().unwrap();
    refused(&[&lines[..], &[last]].concat(), "a row of another point");
    refused(&[&lines[..], &[last, last]].concat(), &format!("line {}: a row of", lines.len() + 1));
    let mut turned = lines.clone();
    let late = lines[1].replacen("\"at_us\":", "\"at_us\":99999999", 1);
    turned[1] = &late;
    refused(&turned, "µs, before the row above or centuries late");
    std::fs::write(&journal, kept).unwrap();
    begin().sweep(&plan, &output, 0).unwrap();
}

#[test]
fn two_sweeps_do_not_write_one_output() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("p.csv");
    let plan = stage("a100", "bert-like").plan(Design::Lhs(0.2));
    let mut first = stage("a100", "bert-like");
    let stop = AtomicBool::new(false);
    let bench = Bench {
        protocol: &first.protocol,
        device: first.device.as_ref(),
        stage: &mut first.settings,
        clock: first.clock.as_ref(),
    };
    let workloads = &mut first.workloads;
    let (same_time, heat_s, closing) = (true, 0.0, false);
    let sweep =
        Sweep { bench, workloads, plan: &plan, output: &output, stop: &stop, same_time, heat_s, closing };
    let mut errors = 0;
    sweep
        .run(&mut |_| {
            let error = stage("a100", "bert-like").sweep(&plan, &output, 0).unwrap_err();
            assert!(error.to_string().contains("is being written by another sweep"), "{error}");
            errors += 1;
        })
        .unwrap();
    assert_eq!(errors, plan.rows());
}

#[test]
fn another_sweeps_journal_and_an_existing_output_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("p.csv");
    let plan = stage("a100", "bert-like").plan(Design::Lhs(0.2));
    stage("a100", "bert-like").sweep(&plan, &output, 2).unwrap();
    let mut other = stage("a100", "gpt-like");
    let others = other.plan(Design::Lhs(0.2));
    let error = other.sweep(&others, &output, 0).unwrap_err().to_string();
    assert!(error.contains("models are `bert-like`, here they are `gpt-like`"), "{error}");
    let other_plan = stage("a100", "bert-like").plan(Design::Full);
    let error = stage("a100", "bert-like").sweep(&other_plan, &output, 0).unwrap_err().to_string();
    assert!(error.contains("points are others"), "{error}");
    let journal = folder.path().join("p.csv.journal");
    let text = std::fs::read_to_string(&journal).unwrap();
    std::fs::write(&journal, text.replacen("{\"at_us\"", "{at_us", 1)).unwrap();
    let error = stage("a100", "bert-like").sweep(&plan, &output, 0).unwrap_err().to_string();
    assert!(error.contains("p.csv.journal`, line 2: not a row"), "{error}");
    std::fs::write(&output, "mine").unwrap();
    let error = stage("a100", "bert-like").sweep(&plan, &output, 0).unwrap_err().to_string();
    assert!(error.contains("exists already"), "{error}");
    let error =
        stage("a100", "bert-like").sweep(&plan, &folder.path().join("p.xls"), 0).unwrap_err().to_string();
    assert!(error.contains("`.parquet` or `.csv`"), "{error}");
}
