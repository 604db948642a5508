//! What a driver answers: sensors that are missing, wrong, stale, or of another scope.

use std::sync::Arc;

use gpumon_core::clock::RealClock;
use gpumon_core::rows::{CounterRow, EventKind, FastRow, SlowRow};
use gpumon_monitor::device::{self, ReadError};
use serde_json::{Value, json};

use super::helpers::*;
use super::{is_played, play};
use gpumon_fakenvml::testing::Fake;

fn header(fake: &Fake) -> Value {
    serde_json::from_slice(&std::fs::read(recording(fake).join("recording.json")).unwrap()).unwrap()
}

fn fault(text: &str) -> String {
    format!("{TWO}[[fault]]\n{text}\n")
}

#[test]
fn row_01_energy_counter_is_not_supported() {
    let script =
        fault("kind = \"error\"\ncall = \"nvmlDeviceGetTotalEnergyConsumption\"\nerror = \"NOT_SUPPORTED\"");
    let (fake, summary, said) = record_with(&script, "2", &[], 0);
    assert_eq!(said.matches("has no energy counter").count(), 2, "once a GPU: {said}");
    for gpu in [0, 1] {
        assert_eq!(summary["gpus"][gpu]["energy_method"], "ring", "{summary}");
        assert!(summary["gpus"][gpu]["energy_counter_j"].is_null(), "absent, not 0");
        assert!(header(&fake)["gpus"][gpu]["unsupported"].as_array().unwrap().contains(&"energy_mj".into()));
        let calls = fake.calls("nvmlDeviceGetTotalEnergyConsumption", Some(gpu as u32)).unwrap();
        assert_eq!(calls, 1, "asked once");
    }
    assert!(rows::<CounterRow>(&recording(&fake)).is_empty());
    energies_are_true(&fake, &summary, 0.03);
}

#[test]
fn row_02_one_metric_is_unsupported_on_one_gpu() {
    let call = "nvmlDeviceGetUtilizationRates";
    let script = fault(&format!("kind = \"error\"\ncall = \"{call}\"\ngpu = 0\nerror = \"NOT_SUPPORTED\""));
    let (fake, summary) = record(&script, "2");
    let slow = rows::<SlowRow>(&recording(&fake));
    let has = |gpu: i32| slow.iter().filter(|r| r.gpu == gpu && r.util_gpu_pct.is_some()).count();
    assert_eq!(has(0), 0);
    assert!(has(1) > 8, "{}", has(1));
    assert!(slow.iter().filter(|r| r.gpu == 0).all(|r| r.temp_c.is_some()), "the others are there");
    // Two columns come from this call, and each was tried once.
    assert_eq!(fake.calls(call, Some(0)).unwrap(), 2);
    assert!(fake.calls(call, Some(1)).unwrap() > 8);
    assert_eq!(summary["losses"]["failed_reads"], 0, "what a GPU does not have is no loss");
}

#[test]
fn row_03_a_call_succeeds_with_garbage() {
    let garbage = |call: &str, value: &str| {
        format!(
            "[[fault]]\nkind = \"garbage\"\ncall = \"{call}\"\ngpu = 0\nfrom_ms = 1200\nvalue = {value}\n"
        )
    };
    let power = garbage("nvmlDeviceGetFieldValues", "4_000_000_000") + "for_ms = 600\n";
    let counter = garbage("nvmlDeviceGetTotalEnergyConsumption", "1_000_000_000_000_000_000");
    let (fake, summary) = record(&format!("{TWO}{power}{counter}"), "3");
    let odd = events(&fake, EventKind::Implausible);
    assert!(!odd.is_empty() && odd.iter().all(|e| e.gpu == Some(0)), "{odd:?}");
    assert!(summary["events"]["implausible"].as_u64().unwrap() >= 1, "{summary}");
    let fast = rows::<FastRow>(&recording(&fake));
    assert!(fast.iter().any(|r| r.gpu == 0 && r.power_instant_mw.is_none() && r.sm_mhz.is_some()));
    assert!(fast.iter().filter_map(|r| r.power_instant_mw).all(|mw| mw < 800_000));
    assert!(summary["gpus"][0]["energy_counter_j"].as_f64().is_none_or(|j| j < 5_000.0));
    energies_are_true(&fake, &summary, 0.03);
}

#[test]
fn row_04_a_field_has_its_own_return_code_and_type() {
    let script = "[[fault]]\nkind = \"field-type\"\nfield = 186\ngpu = 0\ntype = \"unknown\"\n\
                  [[fault]]\nkind = \"field-type\"\nfield = 185\ngpu = 0\ntype = \"double\"\n\
                  [[fault]]\nkind = \"field-error\"\nfield = 186\ngpu = 1\nfrom_ms = 1200\nerror = \"UNKNOWN\"\n";
    let (fake, _) = record(&format!("{TWO}{script}"), "3");
    let fast = rows::<FastRow>(&recording(&fake));
    for row in fast.iter().filter(|r| r.gpu == 0) {
        assert_eq!(row.power_instant_mw, None, "rubbish of an unknown type is no power");
        let average = row.power_average_mw.unwrap();
        assert!((50_000..800_000).contains(&average), "a double is read as one: {average}");
    }
    let late: Vec<_> = fast.iter().filter(|r| r.gpu == 1 && r.mono_us > 2_000_000).collect();
    assert!(late.iter().all(|r| r.power_instant_mw.is_none() && r.power_average_mw.is_some()));
    let failed = events(&fake, EventKind::ReadFailed);
    let of = |gpu: i32| failed.iter().find(|e| e.gpu == Some(gpu)).and_then(|e| e.detail.clone());
    assert!(of(0).unwrap().contains("a type that NVML does not define"), "{failed:?}");
    assert!(of(1).unwrap().contains("power_instant_mw"), "{failed:?}");
}

#[test]
fn row_05_energy_counter_goes_backwards() {
    let (fake, summary) = record(&fault("kind = \"counter-reset\"\ngpu = 0\nfrom_ms = 1200"), "3");
    let resets = events(&fake, EventKind::CounterReset);
    assert!(resets.len() == 1 && resets[0].gpu == Some(0), "{resets:?}");
    let counter = rows::<CounterRow>(&recording(&fake));
    let epochs = |gpu: i32| counter.iter().filter(|r| r.gpu == gpu).map(|r| r.epoch).collect::<Vec<_>>();
    assert_eq!(epochs(0), [0, 1]);
    assert_eq!(epochs(1), [0, 0]);
    let delta_j = summary["gpus"][0]["energy_counter_j"].as_f64();
    assert!(delta_j.is_none(), "the difference is missing: {delta_j:?}");
    energies_are_true(&fake, &summary, 0.03);
}

#[test]
fn row_06_mig_instances_do_not_multiply_power() {
    let fake = fake(TWO);
    fake.partition(0, &[3, 3]).unwrap();
    let listed = json(&devices(&fake));
    assert_eq!(listed["gpus"].as_array().unwrap().len(), 2, "physical GPUs");
    assert_eq!(listed["gpus"][0]["mig_uuids"].as_array().unwrap().len(), 2, "{listed}");
    let args = record_args(&fake, "2");
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let summary = json(&command(&fake, &args).output().unwrap());
    energies_are_true(&fake, &summary, 0.03);
    // What each instance drew is attributed from processes (tests/fakenvml/processes.rs); here there are none.
    let gpu = &summary["gpus"][0];
    let j = |key: &str| gpu["attribution"][key].as_f64().unwrap();
    let energy_j = gpu["energy_j"].as_f64().unwrap();
    assert!((j("idle_j") + j("unattributed_j") - energy_j).abs() < 1e-6 * energy_j, "{gpu}");
}

#[test]
fn row_19_duplicate_readings_are_kept_and_marked() {
    // From 2 s on, the sensor of the first GPU stands still.
    let script = fault(
        "kind = \"garbage\"\ncall = \"nvmlDeviceGetFieldValues\"\ngpu = 0\nfrom_ms = 2000\nvalue = 300_000",
    );
    let (fake, summary, _) = record_with(&script, "4", &["--rate", "100"], 0);
    let kept = summary["rows"].as_u64().unwrap() + summary["missed_ticks"].as_u64().unwrap();
    assert_eq!(kept, 800, "each tick is a row or counted");
    let fast = rows::<FastRow>(&recording(&fake));
    for pair in fast.windows(2).filter(|p| p[0].gpu == p[1].gpu) {
        let same = (pair[0].power_instant_mw, pair[0].power_average_mw)
            == (pair[1].power_instant_mw, pair[1].power_average_mw);
        assert_eq!(pair[1].fresh, !same, "{pair:?}");
    }
    let fresh = |gpu: i32| fast.iter().filter(|r| r.gpu == gpu && r.mono_us > 2_500_000 && r.fresh).count();
    assert_eq!(fresh(0), 0, "a stale sensor");
    assert!((8..=25).contains(&fresh(1)), "a flat load under a sensor that works: {}", fresh(1));
}

#[test]
fn row_24_performance_counters_are_not_read_below_their_period() {
    const NAME: &str = "readings::row_24_performance_counters_are_not_read_below_their_period";
    const CALL: &str = "nvmlGpmSampleGet";
    if is_played() {
        let gpu = device::open("nvml", Arc::new(RealClock)).unwrap().remove(0);
        assert!(gpu.activity().is_err(), "the first one only begins");
        for _ in 0..50 {
            let refused = gpu.activity().unwrap_err();
            let ReadError::Transient(why) = refused else { panic!("{refused:?}") };
            assert!(why.contains("less than 100 ms ago"), "{why}");
        }
        return;
    }
    let played = fake(TWO);
    play(&played, NAME);
    let calls = played.calls(CALL, Some(0)).unwrap();
    assert!(calls <= 2, "the driver was not asked: {calls}");
    let (fake, _, _) = record_with(TWO, "2", &["--rate", "1000"], 0);
    let calls = fake.calls(CALL, Some(0)).unwrap();
    assert!((2..=5).contains(&calls), "once a second, whatever the rate: {calls}");
}

#[test]
fn row_25_renumbered_fields_are_translated() {
    for (driver, id, there) in [
        ("575.57.08", 251, 251),
        ("580.65.06", 273, 273),
        ("580.82.07", 251, 269),
        ("580.82.07", 255, 273),
        ("580.82.07", 256, 251),
        ("590.10", 273, 268),
        ("590.10", 250, 250),
        ("580.82.07", 274, 274),
        ("580.82.07", 186, 186),
    ] {
        assert_eq!(device::field_id(driver, id), there, "field {id} of driver {driver}");
    }
    let mut all: Vec<u32> = (251..=273).map(|id| device::field_id("580.95.05", id)).collect();
    all.sort_unstable();
    assert_eq!(all, (251..=273).collect::<Vec<_>>(), "no two fields share a number");
}

#[test]
fn row_27_power_is_measured_over_the_module() {
    let grace = "base = \"h200\"\n[load]\nkind = \"constant\"\nlevel = 0.4\n[sensors]\nunsupported = [\"power_instant\", \
                 \"power_average\", \"power_usage\", \"ring\", \"energy_counter\", \"fan\"]\n";
    let fake = Fake::with_files("gpus = \"grace.toml\"", &[("grace.toml", grace)]).unwrap();
    let listed = json(&devices(&fake));
    assert_eq!(listed["gpus"][0]["power_scope"], "module", "{listed}");
    let words = text(&command(&fake, &["devices"]).output().unwrap().stdout);
    assert!(words.contains("the whole module"), "{words}");
    let args = record_args(&fake, "2");
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    json(&command(&fake, &args).output().unwrap());
    assert_eq!(header(&fake)["gpus"][0]["power_scope"], json!("module"));
    let fast = rows::<FastRow>(&recording(&fake));
    assert!(fast.iter().filter(|r| r.power_instant_mw.is_some()).count() > 10);
    let other = json(&devices(&super::helpers::fake(TWO)));
    assert_eq!(other["gpus"][0]["power_scope"], "gpu");
}
