//! Processes and MIG instances: who is on a GPU, and whose energy it was.

use gpumon_core::header::Header;
use gpumon_core::rows::{EventKind, ProcessRow};
use serde_json::Value;

use super::helpers::*;

fn header(fake: &gpumon_fakenvml::testing::Fake) -> Header {
    let text = std::fs::read_to_string(recording(fake).join("recording.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Parts, idle share and the rest add up to the GPU's energy, and none is negative.
#[track_caller]
fn adds_up(gpu: &Value) -> &Value {
    let found = &gpu["attribution"];
    let j = |value: &Value| value.as_f64().unwrap();
    let parts = found["parts"].as_array().unwrap().iter().map(|p| j(&p["energy_j"]));
    let all: Vec<f64> = parts.chain([j(&found["idle_j"]), j(&found["unattributed_j"])]).collect();
    assert!(all.iter().all(|part| *part >= 0.0), "{found}");
    let energy_j = j(&gpu["energy_j"]);
    assert!((all.iter().sum::<f64>() - energy_j).abs() < 1e-6 * energy_j, "{found}");
    found
}

fn part(found: &Value, pid: u32) -> f64 {
    let parts = found["parts"].as_array().unwrap();
    parts.iter().find(|p| p["pid"] == pid).unwrap()["energy_j"].as_f64().unwrap()
}

#[test]
fn processes_are_listed_with_what_they_did_and_share_the_energy() {
    let own = std::process::id();
    let processes = format!(
        "base = \"h200\"\n[load]\nkind = \"steps\"\nrepeat = true\nsteps = [{{ duration_ms = 2000, level = 0.4 }}, \
         {{ duration_ms = 1200, level = 0 }}]\n[[process]]\npid = {own}\nname = \"own\"\nshare_pct = 70\n\
         mem_bytes = 1000\n[[process]]\npid = 1999999999\nname = \"gone\"\nshare_pct = 30\n"
    );
    let files = [("busy.toml", processes.as_str())];
    let fake = gpumon_fakenvml::testing::Fake::with_files("gpus = \"busy.toml\"", &files).unwrap();
    let args = record_args(&fake, "5");
    let summary =
        json(&command(&fake, &args.iter().map(String::as_str).collect::<Vec<_>>()).output().unwrap());
    let rows = rows::<ProcessRow>(&recording(&fake));
    assert!((10..=12).contains(&rows.len()), "two processes at 0 to 5 s: {}", rows.len());
    let (ours, others): (Vec<_>, Vec<_>) = rows.iter().partition(|r| r.pid == own as i32);
    assert!(ours.iter().all(|r| r.name.is_some() && r.mem_used_bytes == Some(1000)));
    assert!(others.iter().all(|r| r.name.is_none() && r.mig_instance.is_none()), "no such process here");
    assert!(rows.iter().all(|r| r.sm_util_pct.is_some()));
    assert!(ours.iter().any(|r| r.sm_util_pct.is_some_and(|u| (60.0..=70.0).contains(&u))));
    let found = adds_up(&summary["gpus"][0]);
    assert_eq!(found["method"], "sm-utilisation");
    let share = part(found, own) / (part(found, own) + part(found, 1_999_999_999));
    assert!((share - 0.7).abs() < 0.03, "{share}");
    assert!(events(&fake, EventKind::ReadFailed).is_empty());
    assert_eq!(header(&fake).gpus[0].unsupported, ["fan_pct"]);
    let path = recording(&fake).to_str().unwrap().to_owned();
    let words = text(&command(&fake, &["summary", &path]).output().unwrap().stdout);
    assert!(words.contains("SM utilisation") && words.contains(&own.to_string()), "{words}");
    let exported = command(&fake, &["export", &path, "--table", "process"]).output().unwrap();
    assert!(text(&exported.stdout).starts_with("gpu,mono_us,pid,name,mig_instance,sm_util_pct"));
}

#[test]
fn mig_instances_share_the_power_of_their_gpu_and_none_is_given_all_of_it() {
    let script = "gpus = \"half.toml\"\n\
        [[instance]]\nslices = 3\nstart = 0\n[[instance]]\nslices = 2\nstart = 4\n[[instance]]\nslices = 1\nstart = 6\n\
        [[process]]\npid = 501\nused_bytes = 1000\ngpu_instance = 1\n\
        [[process]]\npid = 502\nused_bytes = 2000\ngpu_instance = 2\n\
        [[process]]\npid = 503\nused_bytes = 3000\ngpu_instance = 2\n";
    let fake = fake(script);
    let args = record_args(&fake, "4");
    json(&command(&fake, &args.iter().map(String::as_str).collect::<Vec<_>>()).output().unwrap());
    let gpu = &header(&fake).gpus[0];
    let instances: Vec<_> = gpu.mig_instances.iter().map(|i| (i.id, i.slices, i.start)).collect();
    assert_eq!(instances, [(1, Some(3), Some(0)), (2, Some(2), Some(4)), (3, Some(1), Some(6))]);
    assert!(gpu.mig_instances.iter().all(|i| i.uuid.as_ref().unwrap().starts_with("MIG-")));
    assert!(
        gpu.sensors.contains(&"process".to_owned()) && gpu.unsupported.contains(&"process_util".to_owned())
    );
    assert_eq!(fake.calls("nvmlDeviceGetProcessUtilization", Some(0)).unwrap(), 1, "asked once");

    let rows = rows::<ProcessRow>(&recording(&fake));
    assert!(rows.iter().all(|r| r.sm_util_pct.is_none() && r.mem_used_bytes.is_some()));
    let at = |pid| rows.iter().find(|r| r.pid == pid).unwrap().mig_instance;
    assert_eq!((at(501), at(502), at(503)), (Some(1), Some(2), Some(2)));
    let path = recording(&fake).to_str().unwrap().to_owned();
    let args = ["summary", &path, "--json", "--idle-power", "121"];
    let summary = json(&command(&fake, &args).output().unwrap());
    let found = adds_up(&summary["gpus"][0]);
    assert_eq!(
        (&found["method"], &found["idle_source"]),
        (&"slices-of-busy-instances".into(), &"given".into())
    );
    // 3 and 2 of the 5 slices of instances with processes; the third instance has none.
    let (one, two) = (part(found, 501), part(found, 502) + part(found, 503));
    assert!((one / (one + two) - 0.6).abs() < 1e-6, "{found}");
    let of_instances = found["mig_instances"].as_array().unwrap();
    assert_eq!(of_instances.len(), 2);
    let sum: f64 = of_instances.iter().map(|i| i["energy_j"].as_f64().unwrap()).sum();
    assert!((sum - one - two).abs() < 1e-6 * sum);
    assert!(sum < summary["gpus"][0]["energy_j"].as_f64().unwrap());
    let words = text(&command(&fake, &["summary", &path]).output().unwrap().stdout);
    assert!(words.contains("the slices of MIG instances"), "{words}");
}

#[test]
fn a_driver_without_lists_of_processes_is_asked_once_and_a_failing_one_is_an_event() {
    let call = "call = \"nvmlDeviceGetComputeRunningProcesses_v3\"";
    let (fake, summary) = record(
        &format!("gpus = \"half.toml\"\n[[fault]]\nkind = \"error\"\nerror = \"NOT_SUPPORTED\"\n{call}"),
        "3",
    );
    assert_eq!(fake.calls("nvmlDeviceGetComputeRunningProcesses_v3", Some(0)).unwrap(), 1);
    assert!(header(&fake).gpus[0].unsupported.contains(&"process".to_owned()));
    assert!(
        rows::<ProcessRow>(&recording(&fake)).is_empty() && events(&fake, EventKind::ReadFailed).is_empty()
    );
    assert_eq!(adds_up(&summary["gpus"][0])["method"], "none");

    let script = format!(
        "gpus = \"half.toml\"\n[[process]]\npid = 9\n[[fault]]\nkind = \"error\"\nerror = \"UNKNOWN\"\nfrom_call = 5\n{call}"
    );
    let (fake, summary) = record(&script, "4");
    let failed = events(&fake, EventKind::ReadFailed);
    assert_eq!((failed.len(), failed[0].name.as_deref()), (1, Some("process")));
    assert!(!rows::<ProcessRow>(&recording(&fake)).is_empty());
    adds_up(&summary["gpus"][0]);
    goes_on(&fake, 0, 4);
}
