//! How long a prediction takes, and how long fitting eleven models takes with every form.
//!
//! The models are those of the reference (A100) where it is there, else made up like them: `cargo bench -p gpumon-fit`.
//! A prediction is asked over and over at one point, and at points that were not asked before: the shared form remembers what imagined
//! models do at a point.

#![allow(clippy::unwrap_used, missing_docs, reason = "a panic is the report")]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use gpumon_core::profile::ProfileRow;
use gpumon_core::units::Megahertz;
use gpumon_fit::fit::Form;
use gpumon_fit::models::{FitOptions, fit_models};
use gpumon_fit::point::{Point, Share};

#[path = "../tests/common/mod.rs"]
mod common;

const CLOCKS: [i32; 15] = [210, 300, 420, 510, 600, 690, 780, 870, 960, 1050, 1140, 1230, 1320, 1380, 1410];

/// The reference's eleven models: nine with a full grid of 300 to 450 points, two with 36.
fn rows() -> Vec<ProfileRow> {
    common::rows().unwrap_or_else(made_up)
}

/// The like of them.
fn made_up() -> Vec<ProfileRow> {
    let mut rows = Vec::new();
    for model in 0..11 {
        let (batches, shares): (&[i32], &[i32]) =
            if model < 9 { (&[1, 2, 4, 8, 16, 32], &[1, 2, 3, 4, 7]) } else { (&[1], &[2, 3, 4]) };
        let bulk = 0.3 * 1.6_f64.powi(model);
        for (&batch, &slices) in batches.iter().flat_map(|b| shares.iter().map(move |s| (b, s))) {
            for mhz in CLOCKS {
                let (b, s, f) = (f64::from(batch), f64::from(slices) / 7.0, f64::from(mhz) / 1e3);
                let wobble = 1.0 + 0.01 * (b * 12.9 + s * 78.2 + f * 37.7 + bulk).sin();
                let ms = wobble * ((2.0 + 1.0 / f).powi(3) + (bulk * b / (s * f)).powi(3)).cbrt();
                let watts = 12.0 + 140.0 * s * f * (bulk * b / (s * f) / ms).min(1.0);
                let mut row = ProfileRow::new(&format!("m{model}"), batch, s, mhz);
                row.mig_slices = Some(slices);
                row.throughput = Some(1e3 * b / ms);
                row.latency = Some(1.04 * ms);
                row.dynamic_power_draw = Some(watts);
                row.avg_power_draw = Some(watts + 50.0 + 10.0 * f);
                rows.push(row);
            }
        }
    }
    rows
}

fn predict(c: &mut Criterion) {
    let rows = rows();
    let point = Point { batch: 6, share: Share::Slices(3), frequency: Megahertz(1000), processes: 1 };
    for form in Form::ALL {
        let options = FitOptions { form, cap_w: Some(300.0), ..FitOptions::default() };
        let fitted = fit_models(&rows, &options).unwrap();
        let full = fitted.models.iter().max_by_key(|m| m.rows.points).unwrap();
        let at = |point: &Point| full.predict(point, fitted.base.as_ref());
        c.bench_function(&format!("predict {}", form.name()), |b| b.iter(|| at(black_box(&point))));
        let mut number = 0;
        c.bench_function(&format!("predict {} at new points", form.name()), |b| {
            b.iter(|| {
                number += 1;
                let frequency = Megahertz(210 + number % 1200);
                at(black_box(&Point { batch: 1 + number / 1200 % 64, frequency, ..point }))
            });
        });
    }
}

fn fit(c: &mut Criterion) {
    let rows = rows();
    let mut group = c.benchmark_group("cross-validate 11 models");
    group.sample_size(10);
    for form in Form::ALL {
        let options = FitOptions { form, cap_w: Some(300.0), ..FitOptions::default() };
        group.bench_function(form.name(), |b| b.iter(|| fit_models(black_box(&rows), &options).unwrap()));
    }
}

criterion_group!(benches, predict, fit);
criterion_main!(benches);
