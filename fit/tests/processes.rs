//! Several processes of one model in a MIG instance: ParvaGPU's profiles (A100, eleven models, one clock, no power).
//!
//! Points are drawn as a Latin hypercube by level index over share, batch and processes, with seeds 0 to 4; errors are those at all
//! other points.

#![allow(clippy::unwrap_used, reason = "helpers of tests: a panic is the report")]

mod common;

use std::path::{Path, PathBuf};

use gpumon_core::profile::ProfileRow;
use gpumon_core::profile_io;
use gpumon_fit::evaluate::{Protocol, Quality, evaluate};
use gpumon_fit::fit::Form;
use gpumon_fit::model_file::ModelFile;
use gpumon_fit::models::{FitOptions, fit_models};
use gpumon_fit::point::Point;
use gpumon_fit::sample::Mapping;

/// All models' rows; `None`, said aloud, if the reference is not there.
fn rows() -> Option<Vec<ProfileRow>> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(common::root()?.join("parvagpu/profiles"))
        .unwrap()
        .map(|f| f.unwrap().path())
        .collect();
    files.sort();
    Some(files.iter().flat_map(|file| profile_io::read(file).unwrap().rows).collect())
}

fn quality(rows: &[ProfileRow], form: Form, fraction: f64, transfer: bool) -> Quality {
    let mapping = Mapping::Level;
    let protocol = Protocol { form, mapping, fraction, seeds: (0..5).collect(), cap_w: None, transfer };
    let quality = evaluate(rows, &[], None, &protocol).unwrap();
    println!("{}", quality.table());
    quality
}

/// Medians of throughput and latency and how many points their 90 % intervals hold, %, means over models.
fn figures(quality: &Quality) -> [[f64; 2]; 2] {
    [quality.mean.batch_time, quality.mean.latency].map(|stats| {
        let stats = stats.unwrap();
        [stats.median_pct, stats.coverage_pct.unwrap()]
    })
}

#[test]
fn throughput_of_several_processes_is_known_from_a_tenth_of_the_points() {
    let Some(rows) = rows() else { return };
    // Form, fraction of the points, whether the other models are known, and what the medians must not exceed, %.
    for (form, fraction, transfer, targets) in [
        (Form::Physical, 0.1, false, [4.8, 5.0]),
        (Form::Auto, 0.1, false, [4.6, 4.9]),
        (Form::Auto, 0.05, false, [7.6, 7.7]),
        (Form::Auto, 0.05, true, [5.7, 6.0]),
    ] {
        let found = figures(&quality(&rows, form, fraction, transfer));
        println!("{}, {fraction} (median, points within 90 % intervals): {found:.2?}", form.name());
        for ([median, within], target) in found.into_iter().zip(targets) {
            assert!(median <= target && (80.0..=97.0).contains(&within), "{found:?}, targets {targets:?}");
        }
    }
}

/// Rows of a law: launching takes 3 ms in each process, computing is shared.
fn lawful(processes: &[i32]) -> Vec<ProfileRow> {
    let mut rows = Vec::new();
    for slices in [1, 2, 3, 4, 7] {
        for batch in [1, 4, 16] {
            for &n in processes {
                let mut row = ProfileRow::new("law", batch, f64::from(slices) / 7.0, 1410);
                let count = f64::from(n);
                let ms = (3.0 / count).hypot(f64::from(batch) / f64::from(slices));
                (row.mig_slices, row.processes) = (Some(slices), Some(n));
                row.throughput = Some(1e3 * f64::from(batch) / ms);
                row.latency = Some(count * ms);
                rows.push(row);
            }
        }
    }
    rows
}

#[test]
fn a_law_is_found_for_any_number_of_processes_and_kept_in_the_file() {
    let rows = lawful(&[1, 2, 4]);
    for form in Form::ALL {
        let options = FitOptions { form, ..FitOptions::default() };
        let file = ModelFile::new(fit_models(&rows, &options).unwrap(), &options);
        let read = ModelFile::parse(&file.text().unwrap(), Path::new("models.json")).unwrap();
        assert_eq!((read.schema, &read), (2, &file));
        assert_eq!(read.models[0].ranges.processes, [1, 4]);
        for row in lawful(&[3, 5]) {
            let point = Point::of(&row).unwrap();
            let at = read.predict("law", &point).unwrap();
            assert_eq!(at.extrapolated, point.processes > 4);
            let off = [
                at.throughput.value / row.throughput.unwrap(),
                at.latency.unwrap().value / row.latency.unwrap(),
            ];
            let most = if form == Form::Shared { 0.1 } else { 0.02 };
            let within = off.iter().all(|ratio| (ratio - 1.0).abs() < most);
            assert!(within || form == Form::Polynomial || point.processes > 4, "{form:?} {point:?}: {off:?}");
        }
        assert!(read.predict("law", &Point { processes: 0, ..Point::of(&rows[0]).unwrap() }).is_err());
    }
}

#[test]
fn a_file_of_one_process_is_as_it_was_before_there_were_several() {
    for form in Form::ALL {
        let options = FitOptions { form, ..FitOptions::default() };
        let said = ModelFile::new(fit_models(&lawful(&[1]), &options).unwrap(), &options);
        let text = said.text().unwrap();
        assert!(said.schema == 1 && !text.contains("processes"), "{form:?}");
        let read = ModelFile::parse(&text, Path::new("models.json")).unwrap();
        assert_eq!(read, said);
        assert!(read.predict("law", &Point::of(&lawful(&[2])[0]).unwrap()).unwrap().extrapolated);
    }
}
