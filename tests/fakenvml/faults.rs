//! Faults in what a driver answers.

use gpumon_core::rows::{EventKind, FastRow};

use super::helpers::*;

#[test]
fn error_a_failing_call_is_null_and_one_event_and_the_other_gpu_goes_on() {
    let script = "[[fault]]\nkind = \"error\"\ncall = \"nvmlDeviceGetFieldValues\"\ngpu = 0\nfrom_ms = 1500\n\
                  for_ms = 500\nerror = \"UNKNOWN\"\n";
    let (fake, summary) = record(&format!("{TWO}{script}"), "3");
    assert_eq!(summary["losses"]["gpus_lost"], 0);
    let failed = events(&fake, EventKind::ReadFailed);
    assert!(!failed.is_empty() && failed.iter().all(|e| e.gpu == Some(0)), "{failed:?}");
    let null = rows::<FastRow>(&recording(&fake));
    let null: Vec<_> = null.iter().filter(|r| r.gpu == 0 && r.power_instant_mw.is_none()).collect();
    assert!((3..=7).contains(&null.len()), "half a second of ten a second: {}", null.len());
    goes_on(&fake, 1, 3);
    energies_are_true(&fake, &summary, 0.02);
}

#[test]
fn garbage_power_is_left_out_and_counted() {
    let script = "[[fault]]\nkind = \"garbage\"\ncall = \"nvmlDeviceGetFieldValues\"\ngpu = 0\nfrom_ms = 1500\n\
                  for_ms = 500\nvalue = 4_000_000_000\n";
    let (fake, summary) = record(&format!("{TWO}{script}"), "3");
    let odd = events(&fake, EventKind::Implausible);
    assert!(!odd.is_empty() && odd.iter().all(|e| e.gpu == Some(0)), "{odd:?}");
    let fast = rows::<FastRow>(&recording(&fake));
    assert!(fast.iter().filter_map(|r| r.power_instant_mw).all(|mw| mw < 800_000));
    assert!(summary["gpus"][0]["power_max_w"].as_f64().unwrap() < 800.0);
    energies_are_true(&fake, &summary, 0.02);
}

#[test]
fn garbage_in_the_ring_does_not_become_energy() {
    let script = "[[fault]]\nkind = \"garbage\"\ncall = \"nvmlDeviceGetSamples\"\ngpu = 0\nfrom_ms = 1500\n\
                  for_ms = 700\nvalue = 4_000_000_000\n";
    let (fake, summary) = record(&format!("{TWO}{script}"), "3");
    assert!(summary["gpus"][0]["power_max_w"].as_f64().unwrap() < 800.0, "{summary}");
    energies_are_true(&fake, &summary, 0.25);
}

#[test]
fn garbage_in_the_counter_does_not_become_energy() {
    // Read once when sensors are tried, once at the start, once at the end.
    let script = "[[fault]]\nkind = \"garbage\"\ncall = \"nvmlDeviceGetTotalEnergyConsumption\"\ngpu = 0\n\
                  from_call = 3\nvalue = 1_000_000_000_000_000_000\n";
    let (fake, summary) = record(&format!("{TWO}{script}"), "2");
    let counter_j = summary["gpus"][0]["energy_counter_j"].as_f64();
    assert!(counter_j.is_none_or(|j| j < 5_000.0), "{counter_j:?}");
    energies_are_true(&fake, &summary, 0.02);
}

#[test]
fn delay_missed_ticks_are_counted_and_the_other_gpu_goes_on() {
    let script = "[[fault]]\nkind = \"delay\"\ncall = \"nvmlDeviceGetFieldValues\"\ngpu = 0\nfrom_ms = 1500\n\
                  for_ms = 500\ndelay_ms = 250\n";
    let (fake, summary) = record(&format!("{TWO}{script}"), "3");
    assert!(summary["missed_ticks"].as_u64().unwrap() >= 2, "{summary}");
    let missed = events(&fake, EventKind::MissedTicks);
    assert!(missed.iter().any(|e| e.gpu == Some(0)), "{missed:?}");
    goes_on(&fake, 1, 3);
    energies_are_true(&fake, &summary, 0.02);
}

#[test]
fn lost_rows_stop_for_the_gpu_and_the_other_goes_on() {
    let script = "[[fault]]\nkind = \"lost\"\ngpu = 0\nfrom_ms = 1500\n";
    let (fake, summary, _) = record_with(&format!("{TWO}{script}"), "3", &[], 4);
    let lost = events(&fake, EventKind::GpuLost);
    assert!(!lost.is_empty() && lost.iter().all(|e| e.gpu == Some(0)), "{lost:?}");
    assert_eq!(summary["losses"]["gpus_lost"], 1, "one GPU, one event");
    let last = rows::<FastRow>(&recording(&fake)).iter().filter(|r| r.gpu == 0).map(|r| r.mono_us).max();
    assert!(last.unwrap() < 2_000_000, "{last:?}");
    goes_on(&fake, 1, 3);
    let path = recording(&fake);
    let strict = command(&fake, &["summary", path.to_str().unwrap(), "--strict"]).output().unwrap();
    assert_eq!(strict.status.code(), Some(3));
    let listed = json(&devices(&fake));
    assert_eq!(listed["gpus"].as_array().unwrap().len(), 1, "a lost GPU does not hide the other");
}

#[test]
fn lost_when_all_are_the_recording_waits_for_them_and_says_so() {
    let fake = fake(&format!("{TWO}[[fault]]\nkind = \"lost\"\nfrom_ms = 1500\n"));
    let args = record_args(&fake, "4");
    let output = command(&fake, &args.iter().map(String::as_str).collect::<Vec<_>>()).output().unwrap();
    assert_eq!(output.status.code(), Some(4));
    assert!(text(&output.stderr).contains("is lost"), "{}", text(&output.stderr));
    assert_eq!(events(&fake, EventKind::Gap).len(), 2, "how long each was away");
    assert!(rows::<FastRow>(&recording(&fake)).len() > 10);
}

#[test]
fn counter_reset_begins_an_epoch_and_no_energy_is_negative_or_absurd() {
    let script = "[[fault]]\nkind = \"counter-reset\"\ngpu = 0\nfrom_ms = 1500\n";
    let (fake, summary) = record(&format!("{TWO}{script}"), "3");
    let resets = events(&fake, EventKind::CounterReset);
    assert!(resets.len() == 1 && resets[0].gpu == Some(0), "{resets:?}");
    let counter_j = summary["gpus"][0]["energy_counter_j"].as_f64();
    assert!(counter_j.is_none_or(|j| (0.0..5_000.0).contains(&j)), "{counter_j:?}");
    energies_are_true(&fake, &summary, 0.02);
}

fn missing(symbol: &str) -> String {
    format!("{TWO}[[fault]]\nkind = \"missing-symbol\"\ncall = \"{symbol}\"\n")
}

#[test]
fn missing_symbol_is_a_missing_sensor() {
    for (symbol, sensor, method) in [
        ("nvmlDeviceGetSamples", "ring", "counter"),
        ("nvmlDeviceGetTotalEnergyConsumption", "energy_mj", "ring"),
        ("nvmlDeviceGetFieldValues", "power_instant_mw", "ring"),
        ("nvmlGpmQueryDeviceSupport", "gpm", "ring"),
        ("nvmlDeviceGetMemoryInfo_v2", "mem_used_bytes", "ring"),
    ] {
        let (fake, summary) = record(&missing(symbol), "2");
        let listed = json(&devices(&fake));
        let unsupported = listed["gpus"][1]["unsupported"].as_array().unwrap();
        assert!(unsupported.contains(&sensor.into()), "{symbol}: {unsupported:?}");
        assert_eq!(summary["gpus"][0]["energy_method"], method, "{symbol}");
        energies_are_true(&fake, &summary, 0.1);
    }
}

#[test]
fn missing_symbol_for_event_reasons_has_an_older_name() {
    let (_, summary) = record(&missing("nvmlDeviceGetCurrentClocksEventReasons"), "2");
    assert_eq!(summary["losses"]["failed_reads"], 0, "{summary}");
}

#[track_caller]
fn does_not_open(kind: &str, says: &[&str]) {
    let fake = fake(&format!("[[fault]]\nkind = \"{kind}\"\n"));
    let output = devices(&fake);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert_eq!(error.trim().lines().count(), 1, "one sentence: {error}");
    says.iter().for_each(|part| assert!(error.contains(part), "`{part}` is not in: {error}"));
}

#[test]
fn driver_mismatch_is_one_sentence_with_two_ways_out() {
    does_not_open("driver-mismatch", &["different versions", "restart the machine", "modprobe"]);
}

#[test]
fn no_driver_is_one_sentence_that_names_the_simulated_gpu() {
    does_not_open("no-driver", &["no NVIDIA driver", "sim:h200"]);
}

#[test]
fn no_gpu_is_one_sentence() {
    let output = devices(&fake("count = 0"));
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("finds no GPU"), "{}", text(&output.stderr));
}

#[test]
fn missing_symbol_for_initialisation_is_said_in_one_sentence() {
    let output = devices(&fake(&missing("nvmlInit_v2")));
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("nvmlInit_v2") && error.trim().lines().count() == 1, "{error}");
}

#[test]
fn error_at_the_first_call_does_not_cost_a_sensor_for_the_whole_recording() {
    let script = "[[fault]]\nkind = \"error\"\ncall = \"nvmlDeviceGetFieldValues\"\nfor_calls = 2\n\
                  error = \"TIMEOUT\"\n";
    let (fake, _) = record(&format!("{TWO}{script}"), "2");
    goes_on(&fake, 0, 2);
}

#[test]
fn lost_before_the_start_the_other_gpu_is_recorded() {
    let script = format!("{TWO}[[fault]]\nkind = \"lost\"\ngpu = 0\ncall = \"nvmlDeviceGetTemperature\"\n");
    let (fake, summary) = record(&script, "2");
    let uuid = fake.truth().unwrap().gpus[1].uuid();
    let gpus = summary["gpus"].as_array().unwrap();
    let place = gpus.iter().position(|gpu| gpu["uuid"] == uuid.as_str()).unwrap();
    goes_on(&fake, place as i32, 2);
}

#[test]
fn error_of_the_whole_gpu_for_a_while_is_a_gap_and_not_the_end() {
    let script = "[[fault]]\nkind = \"error\"\ncall = \"*\"\ngpu = 0\nfrom_ms = 1500\nfor_ms = 800\n\
                  error = \"UNKNOWN\"\n";
    let (fake, _) = record(&format!("{TWO}{script}"), "4");
    let fast = rows::<FastRow>(&recording(&fake));
    let read = |r: &&FastRow| r.gpu == 0 && r.power_instant_mw.is_some();
    let last = fast.iter().filter(read).map(|r| r.mono_us).max().unwrap();
    assert!(last > 3_500_000, "it is read again: {last}");
    let absent = fast.iter().filter(|r| r.gpu == 0 && r.power_instant_mw.is_none()).count();
    assert!((5..=11).contains(&absent), "{absent} rows without power in 0.8 s");
    assert!(!events(&fake, EventKind::ReadFailed).is_empty());
    goes_on(&fake, 1, 4);
}

#[test]
fn field_error_that_is_there_from_the_start_is_a_missing_sensor() {
    let script = "[[fault]]\nkind = \"field-error\"\nfield = 186\nerror = \"NOT_SUPPORTED\"\n";
    let (fake, summary) = record(&format!("{TWO}{script}"), "2");
    let fast = rows::<FastRow>(&recording(&fake));
    assert!(fast.iter().all(|r| r.power_instant_mw.is_none() && r.power_average_mw.is_some()));
    assert_eq!(summary["losses"]["failed_reads"], 0, "{summary}");
    energies_are_true(&fake, &summary, 0.02);
}

#[test]
fn field_error_of_one_field_leaves_the_other_and_is_an_event() {
    let script = "[[fault]]\nkind = \"field-error\"\nfield = 186\nerror = \"UNKNOWN\"\ngpu = 0\nfrom_ms = 1500\n\
                  for_ms = 500\n";
    let (fake, _) = record(&format!("{TWO}{script}"), "3");
    let fast = rows::<FastRow>(&recording(&fake));
    let null: Vec<_> = fast.iter().filter(|r| r.gpu == 0 && r.power_instant_mw.is_none()).collect();
    assert!(null.len() >= 3, "{}", null.len());
    assert!(null.iter().all(|r| r.power_average_mw.is_some()), "the average was there");
    assert!(!events(&fake, EventKind::ReadFailed).is_empty(), "failures are data");
}

#[test]
fn field_type_another_number_type_is_read_for_what_it_is() {
    for kind in ["double", "unsigned-long-long", "signed-int"] {
        let script = format!("[[fault]]\nkind = \"field-type\"\nfield = 186\ntype = \"{kind}\"\n");
        let (fake, summary) = record(&format!("{TWO}{script}"), "2");
        let powers: Vec<i32> =
            rows::<FastRow>(&recording(&fake)).iter().filter_map(|r| r.power_instant_mw).collect();
        assert!(powers.len() > 30, "{kind}: {}", powers.len());
        assert!(powers.iter().all(|mw| (50_000..800_000).contains(mw)), "{kind}: {powers:?}");
        energies_are_true(&fake, &summary, 0.02);
    }
}

#[test]
fn field_type_that_is_unknown_is_no_number() {
    let script = "[[fault]]\nkind = \"field-type\"\nfield = 186\ntype = \"unknown\"\n";
    let (fake, summary) = record(&format!("{TWO}{script}"), "2");
    let fast = rows::<FastRow>(&recording(&fake));
    assert!(fast.iter().all(|r| r.power_instant_mw.is_none() && r.power_average_mw.is_some()));
    energies_are_true(&fake, &summary, 0.02);
}
