//! Known errors on the reference profiles (A100, eleven models), with what they must not exceed.

#![allow(clippy::unwrap_used, reason = "helpers of tests: a panic is the report")]

mod common;

use gpumon_core::profile::ProfileRow;
use gpumon_fit::evaluate::{Protocol, Quality, evaluate, models_of};
use gpumon_fit::fit::Form;
use gpumon_fit::model_file::ModelFile;
use gpumon_fit::models::{FitOptions, Fitted, fit_models};
use gpumon_fit::point::Point;
use gpumon_fit::sample::{Mapping, sample};

/// Power limit of the card of the reference, W.
const CAP_W: f64 = 300.0;

/// The nine models with a full grid.
fn nine() -> Option<Vec<ProfileRow>> {
    let rows = common::rows()?;
    Some(rows.into_iter().filter(|r| !common::SMALL.contains(&r.model.as_str())).collect())
}

fn quality(rows: &[ProfileRow], form: Form, mapping: Mapping, fraction: f64) -> Quality {
    let protocol =
        Protocol { form, mapping, fraction, seeds: (0..5).collect(), cap_w: Some(CAP_W), transfer: false };
    let quality = evaluate(rows, &[], None, &protocol).unwrap();
    println!("{}", quality.table());
    quality
}

#[test]
fn the_polynomial_has_its_published_error() {
    let Some(rows) = nine() else { return };
    quality(&rows, Form::Polynomial, Mapping::Level, 0.2);
    let mean = quality(&rows, Form::Polynomial, Mapping::Physical, 0.2).mean;
    let median = mean.total_power.unwrap().median_pct;
    assert!((median - 4.2).abs() <= 0.7, "{median}");
}

#[test]
fn the_physical_form_is_better() {
    let Some(rows) = nine() else { return };
    quality(&rows, Form::Physical, Mapping::Level, 0.05);
    quality(&rows, Form::Physical, Mapping::Level, 0.1);
    quality(&rows, Form::Physical, Mapping::Physical, 0.2);
    let mean = quality(&rows, Form::Physical, Mapping::Level, 0.2).mean;
    let (power, time) = (mean.total_power.unwrap().median_pct, mean.batch_time.unwrap().median_pct);
    assert!(power <= 2.0 && time <= 4.0, "{power} {time}");
}

#[test]
fn the_correction_is_better_still() {
    let Some(rows) = nine() else { return };
    quality(&rows, Form::Corrected, Mapping::Level, 0.05);
    quality(&rows, Form::Corrected, Mapping::Level, 0.1);
    let mean = quality(&rows, Form::Corrected, Mapping::Level, 0.2).mean;
    let (power, time) = (mean.dynamic_power.unwrap().median_pct, mean.batch_time.unwrap().median_pct);
    assert!(power <= 3.5 && time <= 2.0, "{power} {time}");
}

#[test]
fn all_eleven_models_fit_and_small_ones_too() {
    let Some(rows) = common::rows() else { return };
    let options = FitOptions { cap_w: Some(CAP_W), ..FitOptions::default() };
    let fitted = fit_models(&rows, &options).unwrap();
    assert_eq!((fitted.models.len(), fitted.not_fitted.len()), (11, 0));
    for model in &fitted.models {
        let alone = Fitted { models: vec![model.clone()], ..fitted.clone() };
        let bytes = ModelFile::new(alone, &options).text().unwrap().len();
        println!("{}: {:.1} kB in the model file", model.name, bytes as f64 / 1e3);
        assert!(bytes <= 100_000, "{}: {bytes} bytes", model.name);
    }
    for model in &fitted.models {
        let e = &model.held_out;
        let [power, dynamic, time, latency] =
            [e.total_power, e.dynamic_power, e.batch_time, e.latency].map(|stats| stats.unwrap().median_pct);
        println!(
            "{:<22} {:>4} points  total {power:.2} %  dynamic {dynamic:.2} %  time {time:.2} %  latency {latency:.2} %",
            model.name, model.rows.points
        );
        assert!(power < 3.0 && time < 8.0, "{}", model.name);
    }
    let small: Vec<ProfileRow> =
        rows.into_iter().filter(|r| common::SMALL.contains(&r.model.as_str())).collect();
    assert_eq!(fit_models(&small, &options).unwrap().models.len(), 2);
}

#[test]
fn a_model_whose_dynamic_power_was_never_separated_is_refused_by_itself() {
    let Some(mut rows) = common::rows() else { return };
    rows.retain(|r| r.model == "diffusion_256_256");
    let options = FitOptions { cap_w: Some(CAP_W), ..FitOptions::default() };
    let model = fit_models(&rows, &options).unwrap().models.remove(0);
    assert!(model.notes.iter().any(|n| n.contains("dynamic power is not predicted")), "{:?}", model.notes);
    assert!(model.held_out.dynamic_power.is_none() && model.held_out.total_power.unwrap().median_pct < 3.0);
}

#[test]
fn intervals_hold_about_nine_of_ten_points_that_were_held_out() {
    let Some(rows) = nine() else { return };
    let options = FitOptions { cap_w: Some(CAP_W), ..FitOptions::default() };
    let models = models_of(&rows);
    let (mut training, mut held_out) = (Vec::new(), Vec::new());
    for name in &models {
        let own: Vec<&ProfileRow> = rows.iter().filter(|r| r.model == *name).collect();
        let points: Vec<_> = own.iter().map(|r| Point::of(r).unwrap().coordinates()).collect();
        let drawn = sample(&points, Mapping::Level, 0.2, 0).unwrap();
        for (i, row) in own.into_iter().enumerate() {
            if drawn.contains(&i) { &mut training } else { &mut held_out }.push(row.clone());
        }
    }
    let file = ModelFile::new(fit_models(&training, &options).unwrap(), &options);
    let mut inside = [(0.0, 0.0); 4];
    for row in &held_out {
        let p = file.predict(&row.model, &Point::of(row).unwrap()).unwrap();
        let figures = [
            (p.avg_power_draw, row.avg_power_draw),
            (p.dynamic_power_draw, row.dynamic_power_draw.filter(|w| *w < row.avg_power_draw.unwrap())),
            (Some(p.throughput), row.throughput),
            (p.latency, row.latency),
        ];
        for ((count, all), (interval, measured)) in inside.iter_mut().zip(figures) {
            let (i, Some(m)) = (interval.unwrap(), measured) else { continue };
            *count += f64::from(u8::from(i.low.unwrap() <= m && m <= i.high.unwrap()));
            *all += 1.0;
        }
    }
    let coverage = inside.map(|(count, all)| 100.0 * count / all);
    println!(
        "90 % intervals hold, % of points (average power, dynamic power, throughput, latency): {coverage:.1?}"
    );
    assert!(coverage.iter().all(|c| (85.0..=97.0).contains(c)), "{coverage:?}");
}

/// Median and 90th percentile, %.
fn spread(mut errors: Vec<f64>) -> [f64; 2] {
    errors.sort_by(f64::total_cmp);
    [0.5, 0.9].map(|q| 100.0 * errors[(q * (errors.len() - 1) as f64) as usize])
}

#[test]
fn beyond_the_points_the_physical_forms_stay_close() {
    let Some(rows) = nine() else { return };
    type Keep = fn(&ProfileRow) -> bool;
    let splits: [(&str, Keep); 2] = [
        ("batch 32 from 16 and less", |r| r.batch_size < 32),
        ("7 slices from 4 and less", |r| r.mig_slices < Some(7)),
    ];
    for (what, keep) in splits {
        for form in Form::ALL {
            let (within, beyond): (Vec<_>, Vec<_>) = rows.iter().cloned().partition(keep);
            let options = FitOptions { form, cap_w: Some(CAP_W), ..FitOptions::default() };
            let file = ModelFile::new(fit_models(&within, &options).unwrap(), &options);
            let (mut power, mut rate) = (Vec::new(), Vec::new());
            for row in &beyond {
                let p = file.predict(&row.model, &Point::of(row).unwrap()).unwrap();
                assert!(p.extrapolated);
                power.push((p.avg_power_draw.unwrap().value / row.avg_power_draw.unwrap() - 1.0).abs());
                rate.push((p.throughput.value / row.throughput.unwrap() - 1.0).abs());
            }
            let (power, rate) = (spread(power), spread(rate));
            println!(
                "{}, {what}: total power {power:.1?} %, throughput {rate:.1?} % (median, p90)",
                form.name()
            );
            assert!(form == Form::Polynomial || (power[0] < 6.0 && rate[0] < 8.0));
        }
    }
}
