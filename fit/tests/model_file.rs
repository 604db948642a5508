//! The model file: what is written is read again, and what is not ours is refused by name.

#![allow(clippy::unwrap_used, reason = "helpers of tests: a panic is the report")]

use std::path::Path;

use gpumon_core::profile::ProfileRow;
use gpumon_core::units::Megahertz;
use gpumon_fit::error::ModelFileError;
use gpumon_fit::fit::Form;
use gpumon_fit::model_file::ModelFile;
use gpumon_fit::models::{FitOptions, fit_models};
use gpumon_fit::point::{Point, Share};
use serde_json::{Value, json};

fn rows() -> Vec<ProfileRow> {
    let mut rows = Vec::new();
    for (share, mhz) in
        [(0.25, 500), (0.5, 500), (1.0, 500), (0.25, 900), (0.5, 900), (1.0, 900), (1.0, 1300)]
    {
        for batch in [1, 2, 4, 8, 16] {
            let mut row = ProfileRow::new("m", batch, share, mhz);
            let ms = 3.0 + 2e3 * f64::from(batch) / (share * f64::from(mhz));
            row.throughput = Some(1e3 * f64::from(batch) / ms);
            row.latency = Some(ms);
            row.avg_power_draw = Some(60.0 + share * f64::from(mhz) / 8.0);
            row.dynamic_power_draw = Some(share * f64::from(mhz) / 8.0);
            rows.push(row);
        }
    }
    rows
}

fn file(form: Form) -> ModelFile {
    let options = FitOptions { form, simulated: true, cap_w: Some(300.0), ..FitOptions::default() };
    ModelFile::new(fit_models(&rows(), &options).unwrap(), &options)
}

fn parse_changed(change: impl FnOnce(&mut Value)) -> Result<ModelFile, ModelFileError> {
    let mut value: Value = serde_json::from_str(&file(Form::Physical).text().unwrap()).unwrap();
    change(&mut value);
    ModelFile::parse(&value.to_string(), Path::new("models.json"))
}

#[test]
fn what_is_written_is_read_again() {
    for form in Form::ALL {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("models.json");
        file(form).write(&path).unwrap();
        assert_eq!(ModelFile::read(&path).unwrap(), file(form));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}

#[test]
fn a_model_says_form_parameters_ranges_errors_and_hash() {
    let value: Value = serde_json::from_str(&file(Form::Physical).text().unwrap()).unwrap();
    let model = &value["models"][0];
    assert_eq!((&value["schema"], &value["simulated"]), (&json!(1), &json!(true)));
    assert_eq!((&model["name"], &model["form"]), (&json!("m"), &json!("physical")));
    assert!(model["parameters"]["batch_time"]["sm_cycles_per_item"]["std_error"].as_f64().unwrap() >= 0.0);
    assert_eq!(model["ranges"]["frequency_mhz"], json!([500, 1300]));
    assert!(model["held_out"]["batch_time"]["median_pct"].is_number());
    assert_eq!(model["shares"], json!([0.25, 0.5, 1.0]));
    assert_eq!(model["rows"]["sha256"].as_str().unwrap().len(), 64);
}

#[test]
fn newer_schemas_and_unknown_forms_are_refused_by_name() {
    let error = parse_changed(|v| v["schema"] = json!(99)).unwrap_err();
    assert!(matches!(error, ModelFileError::NewerSchema { found: 99, .. }));
    assert!(error.to_string().contains("models.json: model file of schema 99"), "{error}");
    let error = parse_changed(|v| v["models"][0]["form"] = json!("oracle")).unwrap_err();
    assert!(matches!(error, ModelFileError::UnknownForm { .. }));
    assert!(error.to_string().contains(
        "`m` has the form `oracle`; known forms are auto, physical, corrected, shared, polynomial"
    ));
}

#[test]
fn damaged_files_are_refused_with_the_model() {
    for (change, text) in [
        (
            |v: &mut Value| v["models"][0]["parameters"]["batch_time"]["sharpness"] = json!(0),
            "form cannot have",
        ),
        (|v: &mut Value| v["models"][0]["parameters"] = json!({}), "model `m`"),
        (|v: &mut Value| v["models"][0]["intervals"]["latency"] = json!([2.0, 1.0]), "model `m`"),
        (|v: &mut Value| v["base"]["points"] = json!([]), "`base`"),
        (|v: &mut Value| v["base"]["points"][0]["base_w"] = json!(1e9), "`base`"),
        (|v: &mut Value| v["models"][0]["ranges"]["batch"] = json!([8, 1]), "`ranges`"),
        (|v: &mut Value| v["models"][0]["shares"] = json!([0.5, 7.0]), "`ranges` or `shares`"),
        (|v: &mut Value| v["schema"] = json!(0), "`schema` is 0"),
        (|v: &mut Value| v["schema"] = json!("one"), "`schema`"),
        (
            |v: &mut Value| {
                let twice = v["models"][0].clone();
                v["models"].as_array_mut().unwrap().push(twice);
            },
            "listed twice",
        ),
    ] as [(fn(&mut Value), &str); 10]
    {
        let error = parse_changed(change).unwrap_err().to_string();
        assert!(error.contains(text) && error.contains("models.json"), "{error}");
    }
    assert!(
        ModelFile::parse("[", Path::new("x")).unwrap_err().to_string().contains("`gpumon fit` writes one")
    );
    let error = ModelFile::read(Path::new("/nowhere/m.json")).unwrap_err();
    assert!(error.to_string().contains("cannot read the model file `/nowhere/m.json`"), "{error}");
    assert!(std::error::Error::source(&error).is_none(), "what the system said is told once");
}

#[test]
fn intervals_end_at_the_cap_and_points_above_it_are_noted() {
    let cap = 200.0;
    let options = FitOptions { form: Form::Physical, cap_w: Some(cap), ..FitOptions::default() };
    let fitted = fit_models(&rows(), &options).unwrap();
    let model = &fitted.models[0];
    let note = model.notes.iter().find(|n| n.contains("above the cap of 200 W: 5 points, up to 222.5 W"));
    assert!(note.is_some(), "{:?}", model.notes);
    let point = Point { batch: 16, share: Share::Sms(1.0), frequency: Megahertz(1300), processes: 1 };
    let base = fitted.base.as_ref();
    let told = model.predict(&point, base).unwrap();
    let (average, dynamic) = (told.avg_power_draw.unwrap(), told.dynamic_power_draw.unwrap());
    assert!(average.value > 190.0 && average.high.unwrap() <= cap, "{average:?}");
    assert!(dynamic.high.unwrap() <= cap - base.unwrap().at_w(point.frequency) + 1e-9, "{dynamic:?}");
}

#[test]
fn keys_of_later_versions_are_ignored() {
    let read = parse_changed(|v| {
        v["later"] = json!(1);
        v["models"][0]["later"] = json!({"a": 1});
    });
    assert_eq!(read.unwrap(), file(Form::Physical));
}
