//! What the default form reaches on the reference profiles (A100, nine models with a full grid), and must keep reaching.
//!
//! Points are drawn as a Latin hypercube by level index with seeds 0 to 4; errors are those at all other points: medians
//! over points, means over seeds and models. Dynamic power is without diffusion_256_256, whose dynamic power was never
//! separated from the base. 2 % are with the other eight models known in full, the others with nothing but the points drawn.

#![allow(clippy::unwrap_used, reason = "helpers of tests: a panic is the report")]

mod common;

use std::path::Path;

use gpumon_core::profile::ProfileRow;
use gpumon_fit::base::BasePower;
use gpumon_fit::evaluate::{ErrorStats, Errors, Protocol, Quality, evaluate};
use gpumon_fit::fit::Form;
use gpumon_fit::sample::Mapping;

/// Power limit of the card of the reference, W.
const CAP_W: f64 = 300.0;
/// Fraction of the points, whether the other models are known, and what the medians of total power, dynamic power and batch
/// time must not exceed, %.
const TARGETS: [(f64, bool, [f64; 3]); 4] = [
    (0.2, false, [1.1, 3.1, 1.2]),
    (0.1, false, [1.3, 3.8, 1.9]),
    (0.05, false, [1.8, 5.2, 2.7]),
    (0.02, true, [2.2, 5.5, 4.2]),
];
/// Its dynamic power equals its average power in every row.
const NEVER_SEPARATED: &str = "diffusion_256_256";
/// What the published form has with a fifth of the points, and may be off.
const PUBLISHED: [f64; 2] = [3.5, 9.0];

fn quality(rows: &[ProfileRow], form: Form, fraction: f64, transfer: bool) -> Quality {
    let mapping = Mapping::Level;
    let protocol =
        Protocol { form, mapping, fraction, seeds: (0..5).collect(), cap_w: Some(CAP_W), transfer };
    let quality = evaluate(rows, &[], None, &protocol).unwrap();
    println!("{}", quality.table());
    quality
}

/// Median and coverage, %, of total power, dynamic power and batch time, means over models.
fn figures(quality: &Quality) -> [[f64; 2]; 3] {
    let mean = |value: fn(&Errors) -> Option<ErrorStats>, all: bool| {
        let models = quality.models.iter().filter(|m| all || m.model != NEVER_SEPARATED);
        let stats: Vec<ErrorStats> = models.map(|m| value(&m.errors).unwrap()).collect();
        let mean = |v: fn(&ErrorStats) -> f64| stats.iter().map(v).sum::<f64>() / stats.len() as f64;
        [mean(|s| s.median_pct), mean(|s| s.coverage_pct.unwrap())]
    };
    [mean(|e| e.total_power, true), mean(|e| e.dynamic_power, false), mean(|e| e.batch_time, true)]
}

#[test]
fn the_default_form_stays_below_every_target_and_its_intervals_hold() {
    let Some(mut rows) = common::rows() else { return };
    rows.retain(|r| !common::SMALL.contains(&r.model.as_str()));
    let published = figures(&quality(&rows, Form::Polynomial, 0.2, false));
    for ([found, _], known) in published.iter().zip(PUBLISHED) {
        assert!((found - known).abs() < 0.3, "published form: {found}, known {known}");
    }
    for (fraction, transfer, targets) in TARGETS {
        let found = figures(&quality(&rows, Form::default(), fraction, transfer));
        println!("{fraction} (median, points within 90 % intervals): {found:.2?}");
        for ([median, within], target) in found.into_iter().zip(targets) {
            assert!(median <= target, "{fraction}: {found:?}, targets {targets:?}");
            assert!((85.0..=95.0).contains(&within), "{fraction}: {found:?}");
        }
    }
}

#[test]
fn the_two_models_with_one_batch_size_fit_from_five_points() {
    let Some(rows) = common::rows() else { return };
    let small = |r: &ProfileRow| common::SMALL.contains(&r.model.as_str());
    for with_others in [false, true] {
        let (own, others): (Vec<ProfileRow>, Vec<ProfileRow>) = rows.iter().cloned().partition(small);
        let prior = if with_others { others } else { vec![] };
        let protocol = Protocol {
            form: Form::default(),
            mapping: Mapping::Level,
            fraction: 5.0 / 36.0,
            seeds: (0..5).collect(),
            cap_w: Some(CAP_W),
            transfer: false,
        };
        let quality = evaluate(&own, &prior, None, &protocol).unwrap();
        println!("others known: {with_others}\n{}", quality.table());
        let mean = quality.mean.clone();
        for model in quality.models {
            let errors = [model.errors.total_power, model.errors.batch_time].map(|e| e.unwrap().median_pct);
            assert!((model.trained_on - 5.0).abs() < 1e-9);
            assert!(errors[0] < 6.0 && errors[1] < 8.0, "{}: {errors:?}", model.model);
        }
        // Dynamic power, 97 % without others, is held to less.
        for (stats, most) in [(mean.total_power, 95.0), (mean.dynamic_power, 98.0), (mean.batch_time, 95.0)] {
            let within = stats.unwrap().coverage_pct.unwrap();
            assert!((85.0..=most).contains(&within), "{with_others}: {within}, at most {most}");
        }
    }
}

#[test]
fn gross_outliers_cost_less_than_half_of_the_error() {
    let Some(mut rows) = common::rows() else { return };
    rows.retain(|r| !common::SMALL.contains(&r.model.as_str()));
    let clean = figures(&quality(&rows, Form::default(), 0.2, false));
    println!("clean {clean:.2?}");
    // One row of so many (of ten: one figure of twenty): a throughput or a power that is off by a factor of 1.5 to 10, up or down.
    for one_of in [20, 10, 7] {
        let mut rows = rows.clone();
        for (i, row) in rows.iter_mut().enumerate().filter(|(i, _)| i * 7919 % one_of == 0) {
            let factor = [3.0, 0.2, 1.5, 10.0, 0.5][i / one_of % 5];
            if i / one_of % 2 == 0 {
                row.throughput = row.throughput.map(|t| t * factor);
            } else {
                row.avg_power_draw = row.avg_power_draw.map(|w| w * factor);
                row.dynamic_power_draw = row.dynamic_power_draw.map(|w| w * factor);
            }
        }
        let spoilt = figures(&quality(&rows, Form::default(), 0.2, false));
        println!("one row of {one_of} spoilt {spoilt:.2?}");
        for ([clean, _], [spoilt, _]) in clean.iter().zip(spoilt) {
            assert!(spoilt < 1.5 * clean, "one of {one_of}: {clean} % grew to {spoilt} %");
        }
    }
}

#[test]
fn six_points_of_a_models_thirty_fit_on_an_h200_too() {
    let file =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/runs/2026-12-01-h200-profile/grid.parquet");
    let rows = gpumon_core::profile_io::read(&file).unwrap().rows;
    let base = BasePower::of_rows(&rows).unwrap();
    // One clock, and work that no other model shows by itself: errors are larger than on the reference.
    for (transfer, most) in [(false, [4.0, 8.0, 4.5]), (true, [3.0, 6.0, 3.5])] {
        let protocol = Protocol {
            form: Form::default(),
            mapping: Mapping::Level,
            fraction: 0.2,
            seeds: (1..=5).collect(),
            cap_w: Some(700.0),
            transfer,
        };
        let quality = evaluate(&rows, &[], Some(&base), &protocol).unwrap();
        println!("{}", quality.table());
        let found = figures(&quality);
        println!("H200, others known: {transfer}: {found:.2?}");
        assert!(quality.models.iter().all(|m| m.trained_on == 6.0 && m.note.is_none()));
        for ([median, within], most) in found.into_iter().zip(most) {
            assert!(median <= most && within >= 85.0, "{found:?}");
        }
    }
}
