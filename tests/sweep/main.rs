//! `gpumon profile` as a whole, with a worker that only sleeps, on the NVML library of simulated GPUs: what is set for
//! each point, what the worker gets, and that all is as it was found afterwards, however the sweep ends.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is a test's report, in its helpers too")]

mod deaths;
#[path = "../fakenvml/helpers.rs"]
#[allow(dead_code, reason = "shared with the tests of the library")]
mod helpers;
#[path = "../control/setup.rs"]
#[allow(dead_code, reason = "shared with the tests of `gpumon hold`")]
mod setup;
mod sweeps;

use std::collections::BTreeSet;

use gpumon_core::profile_io;
use helpers::text;
use setup::Held;
use sweeps::*;

#[test]
fn clocks_and_power_limits_are_set_for_each_point_and_put_back() {
    let held = Held::new("");
    let more = ["--shares", "50", "--clocks", "900,1200", "--power-limits", "500,600"];
    let report = held.json(&sweep(&held, "mps", &more).output().unwrap());
    assert_eq!(
        (&report["finished"], &report["rows"], &report["valid"]),
        (&true.into(), &8.into(), &8.into())
    );
    let rows = rows(&held);
    let points: BTreeSet<_> =
        rows.iter().filter(|r| !r.is_idle()).map(|r| (r.frequency, r.power_limit_w.unwrap())).collect();
    assert_eq!(points, [(900, 500), (900, 600), (1200, 500), (1200, 600)].into());
    for row in &rows {
        assert_eq!(row.clock_locked, Some(true), "{row:?}");
        let off_mhz = row.sm_mhz_achieved.unwrap() - f64::from(row.frequency);
        assert!(off_mhz.abs() < 7.5 && row.avg_power_draw > Some(50.0), "{row:?}");
    }
    for row in rows.iter().filter(|r| !r.is_idle()) {
        assert!(row.latency >= Some(2.0) && row.mem_bytes == Some(2_000_000), "{row:?}");
        assert!(row.wall_s > Some(1.0) && row.wall_energy_j > Some(0.0), "{row:?}");
    }
    let percents: Vec<_> =
        seats(&held).iter().map(|env| env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"].clone()).collect();
    assert_eq!(percents, ["100", "50"], "one for idling with a context at all clocks, and one for the share");
    assert!(seats(&held).iter().all(|env| env["CUDA_VISIBLE_DEVICES"] == held.uuid().as_str()));
    assert!(held.fake.calls("nvmlDeviceSetPowerManagementLimit", Some(0)).unwrap() >= 4);
    assert_eq!(workers(&held), 0);
    held.is_as_found();
}

#[test]
fn a_clock_that_does_not_follow_makes_a_row_that_is_not_valid() {
    let held = Held::new("[[fault]]\nkind = \"no-effect\"\ncall = \"nvmlDeviceSetGpuLockedClocks\"\n");
    let more = ["--shares", "100", "--clocks", "900"];
    let said = sweep(&held, "mps", &more).output().unwrap();
    assert_eq!(said.status.code(), Some(1), "nothing came of it");
    assert!(
        text(&said.stderr).contains("`mine`: no row is valid, the first because: ran at 1980 MHz"),
        "{}",
        text(&said.stderr)
    );
    let rows = rows(&held);
    let row = rows.iter().find(|r| !r.is_idle()).unwrap();
    assert!(!row.valid && row.reason.as_ref().unwrap().contains("ran at 1980 MHz"), "{row:?}");
    assert!(row.latency.is_some(), "what was measured stays");
    held.is_as_found();
}

#[test]
fn a_cold_card_is_heated_and_idle_power_is_told_before_and_after() {
    let held = Held::new("");
    let more = ["--shares", "50", "--clocks", "900", "--batches", "1,2", "--heat", "3s"];
    let said = sweep(&held, "mps", &more).output().unwrap();
    let (report, told) = (held.json(&said), text(&said.stderr));
    let heated = &report["heated"][0];
    assert_eq!(
        (&heated["model"], &heated["batch"], &heated["steady"]),
        (&"mine".into(), &2.into(), &false.into())
    );
    assert!(
        heated["took_s"].as_f64() >= Some(3.0) && heated["took_j"].as_f64() > Some(3.0 * 50.0),
        "{report}"
    );
    let rows = rows(&held);
    let rows_s: f64 = rows.iter().filter_map(|r| r.wall_s).sum();
    assert!(report["took_s"].as_f64().unwrap() > rows_s + heated["took_s"].as_f64().unwrap(), "{report}");
    assert!(told.contains("up to 3 s of heating") && told.contains("heated for"), "{told}");
    assert!(told.contains("idle with a context the GPU drew"), "{told}");
    let drift = &report["idle_drift"];
    assert!(drift["first_w"].as_f64() > Some(50.0) && drift["last_w"].as_f64() > Some(50.0), "{report}");
    let noted: Vec<_> = rows
        .iter()
        .filter(|r| r.reason.as_deref().is_some_and(|r| r.ends_with("after the points")))
        .collect();
    assert!(rows.len() == 4 && noted.len() == 1 && noted[0].model == "@idle-context", "{rows:?}");
    assert_eq!(seats(&held).len(), 2, "heating and idling with a context take one process");
    held.is_as_found();
}

#[test]
fn a_mig_slice_is_an_instance_that_its_worker_is_given() {
    let held = Held::new("");
    let more = ["--slices", "3,4", "--clocks", "900", "--batches", "1,2"];
    let report = held.json(&sweep(&held, "mig", &more).output().unwrap());
    assert_eq!((&report["rows"], &report["valid"]), (&6.into(), &6.into()), "{:?}", rows(&held));
    let seats = seats(&held);
    let devices: Vec<_> = seats.iter().map(|env| env["CUDA_VISIBLE_DEVICES"].as_str().unwrap()).collect();
    assert_eq!(devices[0], held.uuid(), "idle with a context");
    assert_eq!(devices.len(), 3, "points of one size share an instance and its worker: {devices:?}");
    assert!(devices[1..].iter().all(|device| device.starts_with("MIG-")), "{devices:?}");
    let made = held.fake.calls("nvmlDeviceCreateGpuInstanceWithPlacement", Some(0)).unwrap();
    assert_eq!(made, 2, "one of each size");
    assert_eq!(workers(&held), 0);
    held.is_as_found();
}

#[test]
fn without_permission_nothing_is_measured_and_clocks_can_be_left_alone() {
    let fake = helpers::fake("gpus = \"half.toml\"\n");
    let held = Held::of(fake);
    let more = ["--shares", "100", "--clocks", "900"];
    let said = sweep(&held, "mps", &more).output().unwrap();
    let error = text(&said.stderr);
    assert!(!said.status.success() && error.contains("`--clocks default` leaves clocks alone"), "{error}");
    assert!(error.contains("locking the SM clock: no permission"), "{error}");
    let left: Vec<_> =
        ["p.csv", "p.csv.journal", "seats"].map(|name| held.fake.folder().join(name).exists()).into();
    assert_eq!(left, [false; 3]);
    let said = sweep(&held, "mps", &["--shares", "100", "--clocks", "default"]).output().unwrap();
    held.json(&said);
    let rows = rows(&held);
    assert!(rows.iter().all(|r| r.valid && r.clock_locked == Some(false) && r.frequency == 1980), "{rows:?}");
    held.is_as_found();
}

#[test]
fn a_dry_run_says_what_would_be_set_and_sets_nothing() {
    let held = Held::new("");
    let more = ["--slices", "3", "--clocks", "900,1200", "--power-limits", "400", "--dry-run"];
    let said = sweep(&held, "mig", &more).output().unwrap();
    let (lines, uuid) = (text(&said.stdout), held.uuid());
    assert!(said.status.success(), "{}", text(&said.stderr));
    for line in [
        format!("nvidia-smi -i {uuid} --lock-gpu-clocks=900,900"),
        format!("nvidia-smi -i {uuid} --lock-gpu-clocks=1200,1200"),
        format!("nvidia-smi -i {uuid} --reset-gpu-clocks"),
        format!("nvidia-smi -i {uuid} --power-limit=400"),
        format!("nvidia-smi -i {uuid} --power-limit=700"),
        format!("nvidia-smi mig -i {uuid} -cgi 9:"),
    ] {
        assert!(lines.contains(&line), "{line} is not in {lines}");
    }
    assert!(!held.fake.folder().join("p.csv.journal").exists() && !held.fake.folder().join("seats").exists());
    assert_eq!(held.fake.calls("nvmlDeviceSetGpuLockedClocks", Some(0)).unwrap(), 0);
    held.is_as_found();
}

#[test]
fn a_worker_that_cannot_start_fails_the_points_and_says_why() {
    let held = Held::new("");
    let mut command =
        sweep(&held, "mps", &["--shares", "100", "--clocks", "900", "--batches", "1,2,3,4,5,6"]);
    std::fs::write(
        held.fake.folder().join("w.toml"),
        workload("mps", &["sh", "-c", "echo no model here >&2; exit 3"]),
    )
    .unwrap();
    let said = command.output().unwrap();
    let error = text(&said.stderr);
    assert!(!said.status.success() && error.contains("exit status: 3; it wrote: no model here"), "{error}");
    held.is_as_found();
}

#[test]
fn many_batches_that_do_not_fit_do_not_end_a_sweep() {
    let held = Held::new("");
    let mut command =
        sweep(&held, "mps", &["--shares", "100", "--clocks", "900", "--batches", "1,2,3,4,5,6,7"]);
    let worker = worker(&held);
    let run: Vec<&str> = worker.iter().map(String::as_str).chain(["--max-batch", "1"]).collect();
    std::fs::write(held.fake.folder().join("w.toml"), workload("mps", &run)).unwrap();
    let report = held.json(&command.output().unwrap());
    assert_eq!((&report["rows"], &report["valid"]), (&9.into(), &3.into()));
    let rows = rows(&held);
    let reasons = rows.iter().filter(|r| !r.valid).map(|r| r.reason.as_deref().unwrap());
    assert!(
        reasons.clone().count() == 6 && reasons.clone().all(|r| r.starts_with("does not fit: a batch of"))
    );
    assert_eq!(seats(&held).len(), 1, "one process served them all");
    held.is_as_found();
}

#[test]
fn sets_run_together_under_mps() {
    let held = Held::new("");
    let profile = ["--shares", "25,50", "--clocks", "900"];
    held.json(&sweep(&held, "mps", &profile).output().unwrap());
    let folder = held.fake.folder();
    std::fs::rename(folder.join("p.csv"), folder.join("alone.csv")).unwrap();
    let one = workload("mps", &worker(&held));
    let two = one.split_once("[[model]]").unwrap().1.replace("\"mine\"", "\"other\"");
    let mut command =
        sweep(&held, "mps", &[&profile[..], &["--together", "2", "--alone", "alone.csv"]].concat());
    std::fs::write(folder.join("w.toml"), format!("{one}[[model]]{two}")).unwrap();
    let report = held.json(&command.output().unwrap());
    assert_eq!(
        (&report["sets"], &report["valid"], &report["finished"]),
        (&2.into(), &2.into(), &true.into())
    );
    let rows = gpumon_core::set::read(&folder.join("p.csv")).unwrap();
    assert!(rows.len() == 4 && rows.iter().all(|r| r.valid && r.n_samples >= Some(10)), "{rows:?}");
    assert!(rows.iter().filter(|r| r.model == "mine").all(|r| r.slowdown > Some(0.5)), "{rows:?}");
    assert_eq!(workers(&held), 0);
    held.is_as_found();
    assert!(profile_io::read(&folder.join("alone.csv")).is_ok());
}

#[test]
fn sets_run_together_in_mig_instances_that_stay_while_sets_ask_for_the_same_sizes() {
    let held = Held::new("");
    let folder = held.fake.folder();
    let sets = || mig_sets(&held);
    let dry = sets().arg("--dry-run").output().unwrap();
    assert!(
        text(&dry.stdout).contains("-cgi 9:0") && text(&dry.stdout).contains("-cgi 5:"),
        "{}",
        text(&dry.stdout)
    );
    assert_eq!(held.fake.calls("nvmlDeviceCreateGpuInstanceWithPlacement", Some(0)).unwrap(), 0);
    let report = held.json(&sets().output().unwrap());
    assert_eq!(
        (&report["sets"], &report["valid"], &report["finished"]),
        (&4.into(), &4.into(), &true.into())
    );
    let rows = gpumon_core::set::read(&folder.join("p.csv")).unwrap();
    assert!(
        rows.len() == 8 && rows.iter().all(|r| r.valid && r.share_kind.as_deref() == Some("mig")),
        "{rows:?}"
    );
    let sizes: Vec<Vec<i32>> = (0..4)
        .map(|n| {
            let mut sizes: Vec<i32> =
                rows.iter().filter(|r| r.set == n).filter_map(|r| r.mig_slices).collect();
            sizes.sort_unstable();
            sizes
        })
        .collect();
    let mut partitions = sizes.clone();
    partitions.dedup();
    assert!(sizes.is_sorted() && partitions == [[3, 3], [3, 4]], "{sizes:?}");
    let made = held.fake.calls("nvmlDeviceCreateGpuInstanceWithPlacement", Some(0)).unwrap();
    assert_eq!(made, 4, "two for each of the two partitions");
    let devices: Vec<String> =
        seats(&held).iter().map(|env| env["CUDA_VISIBLE_DEVICES"].as_str().unwrap().to_owned()).collect();
    assert!(devices.iter().all(|device| device.starts_with("MIG-")), "{devices:?}");
    // Two for each partition, and two where models change their sizes.
    assert_eq!(devices.len(), 6, "{devices:?}");
    assert!(
        devices.chunks(2).all(|pair| pair[0] != pair[1]),
        "each member has an instance of its own: {devices:?}"
    );
    assert_eq!(workers(&held), 0);
    held.is_as_found();
}
