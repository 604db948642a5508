//! Rows that are too few, too alike, broken or random: an answer or a reason, never a panic.

use gpumon_core::profile::{IDLE_CONTEXT, ProfileRow};
use gpumon_core::units::Megahertz;
use gpumon_fit::error::PredictError;
use gpumon_fit::evaluate::{Protocol, evaluate};
use gpumon_fit::fit::Form;
use gpumon_fit::model_file::ModelFile;
use gpumon_fit::models::{FitOptions, Fitted, fit_models};
use gpumon_fit::point::{Point, Share};
use gpumon_fit::sample::Mapping;
use proptest::prelude::*;

/// A model that obeys a simple law: 2 ms of launching, then 3 ms × items / (share × GHz).
fn row(batch: i32, slices: i32, mhz: i32) -> ProfileRow {
    let (b, s, f) = (f64::from(batch), f64::from(slices) / 7.0, f64::from(mhz) / 1e3);
    let ms = 2.0 + 3.0 * b / (s * f);
    let mut row = ProfileRow::new("law", batch, s, mhz);
    row.mig_slices = Some(slices);
    row.throughput = Some(1e3 * b / ms);
    row.latency = Some(1.05 * ms);
    row.dynamic_power_draw = Some(100.0 * s * f);
    row.avg_power_draw = Some(100.0 * s * f + 40.0 + 10.0 * f);
    row
}

fn grid(batches: &[i32], slices: &[i32], clocks: &[i32]) -> Vec<ProfileRow> {
    let cross = |&s: &i32| clocks.iter().flat_map(move |&f| batches.iter().map(move |&b| row(b, s, f)));
    slices.iter().flat_map(cross).collect()
}

fn full() -> Vec<ProfileRow> {
    grid(&[1, 2, 4, 8, 16], &[1, 2, 3, 4, 7], &[300, 600, 900, 1200, 1500])
}

fn fit(rows: &[ProfileRow], form: Form) -> Result<ModelFile, String> {
    let options = FitOptions { form, ..FitOptions::default() };
    fit_models(rows, &options).map(|fitted| ModelFile::new(fitted, &options)).map_err(|e| e.to_string())
}

fn point(batch: u32, slices: u8, mhz: u32) -> Point {
    Point { batch, share: Share::Slices(slices), frequency: Megahertz(mhz), processes: 1 }
}

#[test]
fn a_lawful_model_is_predicted_where_it_was_not_measured() {
    let file = fit(&full(), Form::Physical).unwrap();
    let answer = file.predict("law", &point(3, 4, 750)).unwrap();
    assert!(!answer.extrapolated);
    let ms = 2.0 + 3.0 * 3.0 / (4.0 / 7.0 * 0.75);
    assert!((answer.throughput.value / (3e3 / ms) - 1.0).abs() < 0.03, "{answer:?}");
    assert!((answer.latency.unwrap().value / (1.05 * ms) - 1.0).abs() < 0.03);
    let dynamic = answer.dynamic_power_draw.unwrap();
    assert!((dynamic.value / (400.0 / 7.0 * 0.75) - 1.0).abs() < 0.05, "{dynamic:?}");
    assert!(dynamic.low.unwrap() <= dynamic.value && dynamic.value <= dynamic.high.unwrap());
    assert!((answer.avg_power_draw.unwrap().value - dynamic.value - 47.5).abs() < 1e-6);
}

#[test]
fn outside_the_ranges_is_marked() {
    let file = fit(&full(), Form::Physical).unwrap();
    let extrapolated = |point| file.predict("law", &point).unwrap().extrapolated;
    assert!(!extrapolated(point(16, 7, 1500)));
    assert!(extrapolated(point(32, 7, 1500)) && extrapolated(point(16, 7, 210)));
    assert!(extrapolated(Point { share: Share::Sms(0.5), ..point(4, 1, 600) }));
    let error = file.predict("law", &point(4, 5, 600)).unwrap_err().to_string();
    assert!(error.contains("law") && error.contains("mig_slices is 5") && error.contains("1, 2, 3, 4 or 7"));
    assert!(file.predict("law", &Point { share: Share::Sms(1.5), ..point(4, 1, 600) }).is_err());
    assert!(file.predict("law", &point(0, 1, 600)).is_err() && file.predict("law", &point(1, 1, 0)).is_err());
    assert!(file.predict("other", &point(1, 1, 600)).unwrap_err().to_string().contains("it has law"));
}

#[test]
fn too_few_points_are_counted() {
    let rows = &full()[..9];
    let error = fit(rows, Form::Physical).unwrap_err();
    assert!(
        error.contains("`law`") && error.contains("9 usable points") && error.contains("at least 10"),
        "{error}"
    );
    let mut rows: Vec<ProfileRow> = full().into_iter().step_by(7).collect();
    rows.push(ProfileRow { valid: false, ..full()[1].clone() });
    let error = fit(&rows, Form::Polynomial).unwrap_err();
    assert!(error.contains("needs at least") && error.contains("1 × marked invalid"), "{error}");
    assert!(fit(&[], Form::Physical).unwrap_err().contains("no usable rows"));
}

#[test]
fn so_few_that_none_can_be_held_out_have_no_interval() {
    let spread: Vec<ProfileRow> = full().into_iter().step_by(12).take(10).collect();
    let file = fit(&spread, Form::Physical).unwrap();
    assert!(file.models[0].notes.iter().any(|n| n.contains("too few to leave any out")));
    assert_eq!(file.predict("law", &point(4, 2, 600)).unwrap().throughput.low, None);
}

#[test]
fn one_clock_one_batch_and_one_share_fit_with_a_note() {
    for (rows, what) in [
        (grid(&[1, 2, 4, 8], &[1, 2, 3, 4, 7], &[900]), "one clock"),
        (grid(&[4], &[1, 2, 3, 4, 7], &[300, 600, 900, 1200]), "one batch"),
        (grid(&[1, 2, 4, 8], &[7], &[300, 600, 900, 1200, 1500]), "one share"),
    ] {
        for form in Form::ALL {
            let file = fit(&rows, form).unwrap();
            assert!(file.models[0].notes.iter().any(|n| n.contains(what)));
            for r in &rows {
                let at = Point::of(r).unwrap();
                let ratio = file.predict("law", &at).unwrap().throughput.value / r.throughput.unwrap();
                assert!(
                    (ratio - 1.0).abs() < if form == Form::Polynomial { 0.5 } else { 0.05 },
                    "{what} {ratio}"
                );
            }
        }
    }
}

#[test]
fn dynamic_power_that_is_average_power_is_refused_or_replaced() {
    let mut rows = full();
    rows.iter_mut().for_each(|r| r.dynamic_power_draw = r.avg_power_draw);
    for form in Form::ALL {
        let file = fit(&rows, form).unwrap();
        let answer = file.predict("law", &point(4, 4, 600)).unwrap();
        assert_eq!(answer.dynamic_power_draw, None);
        assert!(answer.avg_power_draw.is_some());
        assert!(file.models[0].notes.iter().any(|n| n.contains("equals avg_power_draw")));
    }
    for mhz in [300, 600, 900, 1200, 1500] {
        let mut idle = ProfileRow::new(IDLE_CONTEXT, 0, 1.0, mhz);
        idle.avg_power_draw = Some(40.0 + f64::from(mhz) / 100.0);
        rows.push(idle);
    }
    for form in Form::ALL {
        let file = fit(&rows, form).unwrap();
        let dynamic = file.predict("law", &point(4, 4, 600)).unwrap().dynamic_power_draw.unwrap();
        assert!((dynamic.value / (400.0 / 7.0 * 0.6) - 1.0).abs() < 0.1, "{dynamic:?}");
        assert!(file.models[0].notes.iter().any(|n| n.contains("minus the base power")));
    }
}

#[test]
fn broken_figures_are_left_out_and_the_rest_fits() {
    let mut rows = full();
    rows[0].throughput = Some(f64::NAN);
    rows[1].throughput = Some(-3.0);
    rows[2].avg_power_draw = Some(f64::INFINITY);
    rows[3].latency = None;
    let file = fit(&rows, Form::Physical).unwrap();
    let notes = file.models[0].notes.join("\n");
    assert!(notes.contains("2 × `throughput` not a plausible number"), "{notes}");
    assert!(notes.contains("1 × `avg_power_draw`"), "{notes}");
}

#[test]
fn a_model_that_cannot_be_fitted_is_listed_beside_those_that_can() {
    let mut rows = full();
    rows.push(ProfileRow { model: "lonely".into(), ..rows[0].clone() });
    let Fitted { models, not_fitted, .. } = fit_models(&rows, &FitOptions::default()).unwrap();
    assert_eq!((models.len(), not_fitted.len()), (1, 1));
    assert!(not_fitted[0].reason.contains("`lonely`") && not_fitted[0].reason.contains("measure 4 more"));
}

#[test]
fn fractions_that_leave_too_few_or_too_many_points_say_what_would_do() {
    let note = |rows: &[ProfileRow], fraction: f64| {
        let (form, mapping) = (Form::Physical, Mapping::Level);
        let protocol = Protocol { form, mapping, fraction, seeds: vec![1, 2], cap_w: None, transfer: false };
        evaluate(rows, &[], None, &protocol).unwrap().models[0].note.clone().unwrap_or_default()
    };
    let few = note(&full(), 0.02);
    assert!(few.contains("is 3 for throughput, but the physical form needs at least 10"), "{few}");
    assert!(few.contains("at least 0.08"), "{few}");
    assert_eq!(note(&full(), 0.08), "");
    let all = note(&full(), 0.999);
    assert!(all.contains("leaves none to compare with"), "{all}");
    let small = note(&full()[..8], 0.5);
    assert!(small.contains("measure more than 10 in all"), "{small}");
}

#[test]
fn options_and_mixed_gpus_are_refused_by_name() {
    let options = FitOptions { cap_w: Some(-1.0), ..FitOptions::default() };
    assert!(fit_models(&full(), &options).unwrap_err().to_string().contains("power cap is -1 W"));
    let mut rows = full();
    rows[0].gpu_name = Some("A".into());
    rows[1].gpu_name = Some("B".into());
    assert!(fit(&rows, Form::Physical).unwrap_err().contains("A, B"));
    let none = Protocol {
        form: Form::Physical,
        mapping: Mapping::Level,
        fraction: 0.2,
        seeds: vec![],
        cap_w: None,
        transfer: false,
    };
    assert!(evaluate(&full(), &[], None, &none).unwrap_err().to_string().contains("seeds"));
}

#[test]
fn a_share_of_less_than_an_sm_is_left_out() {
    let rows: Vec<ProfileRow> = [1e-3, 9e-4, 1e-113, 0.0, -0.1, 1.1, f64::NAN]
        .iter()
        .map(|&share| ProfileRow { throughput: Some(10.0), ..ProfileRow::new("m", 1, share, 900) })
        .collect();
    assert_eq!(gpumon_fit::point::Observations::of("m", &rows).points.len(), 1);
}

fn any_figure() -> impl Strategy<Value = Option<f64>> {
    prop_oneof![
        4 => (1e-3..1e3f64).prop_map(Some),
        1 => any::<f64>().prop_map(Some),
        1 => Just(None),
    ]
}

prop_compose! {
    fn any_row()(
        batch in prop_oneof![1..64, any::<i32>()],
        slices in prop_oneof![Just(None), (0..9).prop_map(Some)],
        share in prop_oneof![0.0..1.2f64, any::<f64>()],
        mhz in prop_oneof![200..2000, any::<i32>()],
        figures in [any_figure(), any_figure(), any_figure(), any_figure()],
        valid in prop::bool::weighted(0.9),
    ) -> ProfileRow {
        let mut row = ProfileRow::new("random", batch, share, mhz);
        row.mig_slices = slices;
        [row.avg_power_draw, row.dynamic_power_draw, row.throughput, row.latency] = figures;
        row.valid = valid;
        row
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn random_rows_never_panic_and_never_give_nonsense(
        rows in proptest::collection::vec(any_row(), 0..60), form in proptest::sample::select(Form::ALL.to_vec()), cap in proptest::option::of(50.0..500.0f64),
    ) {
        let options = FitOptions { form, cap_w: cap, ..FitOptions::default() };
        if let Ok(fitted) = fit_models(&rows, &options) {
            let file = ModelFile::new(fitted, &options);
            let text = file.text().unwrap();
            let read = ModelFile::parse(&text, "random.json".as_ref()).unwrap();
            prop_assert_eq!(read.text().unwrap(), text);
            match file.predict("random", &point(4, 3, 900)) {
                Ok(answer) => prop_assert!(answer.throughput.value >= 0.0, "{:?}", answer),
                Err(error) => prop_assert!(matches!(error, PredictError::NoAnswer { .. }), "{}", error),
            }
        }
        let protocol = Protocol { form, mapping: Mapping::Physical, fraction: 0.5, seeds: vec![1], cap_w: cap, transfer: false };
        if let Ok(quality) = evaluate(&rows, &[], None, &protocol) {
            prop_assert!(quality.table().contains("mean over models"));
        }
    }
}

#[test]
fn rows_under_a_power_limit_are_told_apart() {
    let mut rows = full();
    // At the limit the clock fell to 900 MHz and the batch took as long as it takes there.
    let held = |limit: i32, achieved: Option<f64>| ProfileRow {
        power_limit_w: Some(limit),
        avg_power_draw: Some(f64::from(limit)),
        sm_mhz_achieved: achieved,
        throughput: row(16, 7, 900).throughput,
        ..row(16, 7, 1500)
    };
    rows.extend([held(140, Some(900.0)), held(141, None)]);
    // One that did not bind is a repeat.
    rows.push(ProfileRow { power_limit_w: Some(600), ..row(8, 7, 1500) });
    let model = fit(&rows, Form::Auto).unwrap().models.remove(0);
    let notes = model.notes.join("\n");
    assert!(notes.contains("1 rows were held down by their power limit"), "{notes}");
    assert!(notes.contains("1 × held down by its power limit to a clock that `sm_mhz_achieved`"), "{notes}");
    assert_eq!(model.rows.points, full().len());
    let answer = fit(&rows, Form::Auto).unwrap().predict("law", &point(16, 7, 1500)).unwrap();
    assert!((answer.throughput.value / row(16, 7, 1500).throughput.unwrap() - 1.0).abs() < 0.02);
}

#[test]
fn throttled_rows_count_at_the_clock_they_reached() {
    let mut rows = full();
    let throttled = row(4, 4, 1000);
    rows.push(ProfileRow {
        frequency: 1500,
        clock_locked: Some(true),
        sm_mhz_achieved: Some(1000.0),
        ..throttled
    });
    let model = fit(&rows, Form::Physical).unwrap().models.remove(0);
    assert!(model.notes.iter().any(|n| n.contains("1 rows were throttled")), "{:?}", model.notes);
    assert_eq!(model.rows.points, full().len() + 1);
    assert!(model.held_out.batch_time.unwrap().p90_pct < 2.0);
}

#[test]
fn units_off_by_a_thousand_are_said() {
    let notes = |change: fn(&mut ProfileRow)| {
        let mut rows = full();
        rows.iter_mut().for_each(change);
        let file = fit(&rows, Form::Physical);
        file.map_or_else(|e| e, |file| file.models[0].notes.join("\n"))
    };
    let seconds = notes(|r| r.latency = r.latency.map(|ms| ms / 1e3));
    assert!(seconds.contains("latency is a thousandth of batch / throughput"), "{seconds}");
    let micro = notes(|r| r.latency = r.latency.map(|ms| ms * 1e3));
    assert!(micro.contains("latency is a thousand times"), "{micro}");
    let milliwatts = notes(|r| {
        r.avg_power_draw = r.avg_power_draw.map(|w| w * 1e3);
        r.dynamic_power_draw = r.dynamic_power_draw.map(|w| w * 1e3);
    });
    assert!(
        milliwatts.contains("`avg_power_draw` not a plausible number of W; look at its unit"),
        "{milliwatts}"
    );
    let kilohertz = notes(|r| r.frequency *= 1000);
    assert!(kilohertz.contains("`frequency` is no SM clock in MHz; look at its unit"), "{kilohertz}");
}

#[test]
fn five_points_fit_and_four_say_how_many_are_missing() {
    let spread: Vec<ProfileRow> = full().into_iter().step_by(28).collect();
    assert_eq!(spread.len(), 5);
    let model = fit(&spread, Form::Auto).unwrap().models.remove(0);
    let answer = model.predict(&point(4, 3, 900), None).unwrap();
    assert!(answer.throughput.low.unwrap() < answer.throughput.high.unwrap());
    let error = fit(&spread[..4], Form::Auto).unwrap_err();
    assert!(error.contains("4 usable points") && error.contains("measure 1 more"), "{error}");
}

#[test]
fn the_99th_percentile_is_predicted_where_it_was_profiled() {
    let mut rows = full();
    assert!(fit(&rows, Form::Auto).unwrap().models[0].tail.is_none());
    for row in &mut rows {
        row.latency_p50 = row.latency;
        row.latency_p99 = row.latency.map(|ms| 1.3 * ms);
    }
    let answer = fit(&rows, Form::Auto).unwrap().predict("law", &point(3, 4, 750)).unwrap();
    let (latency, p99) = (answer.latency.unwrap(), answer.latency_p99.unwrap());
    assert!((p99.value / latency.value / 1.3 - 1.0).abs() < 0.01, "{answer:?}");
    assert!(p99.low.unwrap() <= p99.value && p99.value <= p99.high.unwrap());
}
