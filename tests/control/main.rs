//! `gpumon hold` and `gpumon restore` as a whole, on the NVML library of simulated GPUs: what is set, and that all is as it
//! was found again, however gpumon ends.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is a test's report, in its helpers too")]

mod deaths;
#[path = "../fakenvml/helpers.rs"]
#[allow(dead_code, reason = "shared with the tests of the library")]
mod helpers;
mod setup;
mod stay;

use gpumon_core::units::{Megahertz, Milliwatts};
use setup::*;

#[test]
fn clock_power_limit_and_instances_are_set_told_and_put_back() {
    let held = Held::new("");
    let said =
        held.run(&["--clock", "1204", "--power-limit", "400", "--mig", "3,4", "--json"], "env; sleep 0.6");
    let report = held.json(&said);
    assert_eq!(report["clock"]["asked_mhz"], 1204);
    assert_eq!(report["clock"]["snapped_mhz"], 1200);
    assert_eq!(report["clock"]["achieved_mhz"], 1200);
    assert_eq!(report["clock"]["valid"], true);
    assert_eq!(report["power_limit"]["found_w"], 700.0);
    assert_eq!(report["restored"].as_array().unwrap().len(), 5);
    let uuids: Vec<&str> =
        report["seats"].as_array().unwrap().iter().map(|seat| seat["mig_uuid"].as_str().unwrap()).collect();
    let error = helpers::text(&said.stderr);
    assert!(error.contains(&format!("CUDA_VISIBLE_DEVICES={}\n", uuids[0])), "{error}");
    assert!(error.contains(&format!("GPUMON_MIG_UUIDS={}\n", uuids.join(","))), "{error}");
    assert!(error.contains("NVML does not tell"), "{error}");
    held.is_as_found();
}

#[test]
fn while_the_command_runs_the_gpu_is_as_asked() {
    let held = Held::new("");
    let running = held.start(&["--clock", "1200", "--power-limit", "400", "--mig", "3,4"], "sleep 60");
    let now = held.settings();
    assert_eq!(now.locked, Some((Megahertz(1200), Megahertz(1200))));
    assert_eq!((now.limit, now.mig, &now.instances[..]), (Milliwatts(400_000), true, &[(3, 4), (4, 0)][..]));
    let second = held.run(&["--clock", "900"], "true");
    let error = helpers::text(&second.stderr);
    assert_eq!(second.status.code(), Some(125), "{error}");
    assert!(error.contains(&running.id().to_string()), "names who holds it: {error}");
    assert_eq!(helpers::text(&held.gpumon(&["restore"]).stdout), "nothing was left to put back\n");
    assert_eq!(held.settings(), now, "untouched");
    held.end(running, "-TERM");
    held.is_as_found();
}

#[test]
fn mps_has_a_folder_of_its_own_and_is_gone_afterwards() {
    for stubborn in [false, true] {
        let held = Held::new("");
        let mut command =
            held.command(&["--mps", "30", "--json"], "env; ls -ld \"$CUDA_MPS_PIPE_DIRECTORY\"");
        command.env("CUDA_MPS_PIPE_DIRECTORY", "/the/users/own");
        if stubborn {
            command.env("MPS_STUBBORN", "1");
        }
        let said = command.output().unwrap();
        let report = held.json(&said);
        let env: std::collections::BTreeMap<String, String> =
            serde_json::from_value(report["seats"][0]["env"].clone())
                .map(|list: Vec<(String, String)>| list.into_iter().collect())
                .unwrap();
        let folder = &env["CUDA_MPS_PIPE_DIRECTORY"];
        assert_eq!(env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"], "30");
        assert_eq!(&env["CUDA_MPS_LOG_DIRECTORY"], folder);
        let error = helpers::text(&said.stderr);
        assert!(error.contains(&format!("CUDA_MPS_PIPE_DIRECTORY={folder}\n")), "{error}");
        assert!(error.contains("drwx------"), "{error}");
        assert!(!std::path::Path::new(folder).exists(), "stubborn: {stubborn}");
        assert_eq!(carrying(folder), 0, "stubborn: {stubborn}");
        held.is_as_found();
    }
}

#[test]
fn mps_that_does_not_come_up_or_is_not_there_is_said() {
    let held = Held::new("");
    let broken =
        held.command(&["--mps", "30", "--clock", "900"], "true").env("MPS_BROKEN", "1").output().unwrap();
    assert_eq!(broken.status.code(), Some(125));
    assert!(helpers::text(&broken.stderr).contains("no such GPU"), "{}", helpers::text(&broken.stderr));
    held.is_as_found();
    let mut absent = held.command(&["--mps", "30"], "true");
    let absent = absent.env("GPUMON_MPS_CONTROL", "/nowhere/mps").output().unwrap();
    assert_eq!(absent.status.code(), Some(125));
    assert!(helpers::text(&absent.stderr).contains("`/nowhere/mps` is not found"));
    held.is_as_found();
}

#[test]
fn a_dry_run_says_each_act_and_does_none() {
    let held = Held::new("");
    let said = held.run(&["--clock", "1204", "--power-limit", "400", "--mig", "3", "--dry-run"], "touch ran");
    let lines = helpers::text(&said.stdout);
    let uuid = held.uuid();
    for line in [
        format!("nvidia-smi -i {uuid} --lock-gpu-clocks=1200,1200"),
        format!("nvidia-smi -i {uuid} --reset-gpu-clocks"),
        format!("nvidia-smi -i {uuid} --power-limit=400"),
        format!("nvidia-smi -i {uuid} --power-limit=700"),
        format!("nvidia-smi -i {uuid} --multi-instance-gpu=1"),
        format!("nvidia-smi mig -i {uuid} -cgi 9:4 -C"),
    ] {
        assert!(lines.contains(&line), "{line} is not in {lines}");
    }
    assert!(!held.fake.folder().join("ran").exists());
    assert_eq!(held.fake.calls("nvmlDeviceSetGpuLockedClocks", Some(0)).unwrap(), 0);
    held.is_as_found();
}

#[test]
fn what_cannot_be_is_refused_in_words_and_leaves_all_as_it_was() {
    let held = Held::new("");
    for (args, says) in [
        (&["--clock", "5000"][..], "345 MHz to 1980 MHz"),
        (&["--power-limit", "50"], "200 to 700 W"),
        (&["--mig", "3,3,1"], "do not fit"),
        (&["--mig", "5"], "no such share"),
        (&["--mps", "101"], "no such share"),
        (&[], "nothing to hold"),
        (&["--clock", "900", "--gpu", "7"], "no GPU fits"),
    ] {
        let said = held.run(args, "true");
        let error = helpers::text(&said.stderr);
        assert_eq!(said.status.code(), Some(125), "{error}");
        assert!(error.contains(says), "{args:?}: {error}");
        held.is_as_found();
    }
    assert_eq!(held.run(&["--clock", "900"], "exit 7").status.code(), Some(7));
}

#[test]
fn instances_of_others_stay() {
    let held = Held::new("[[instance]]\nslices = 3\nstart = 4\n");
    let report = held.json(&held.run(&["--mig", "4", "--json"], "true"));
    assert_eq!(report["restored"].as_array().unwrap().len(), 1, "{report}");
    held.is_as_found();
    let refused = held.run(&["--mig", "4,1"], "true");
    assert!(helpers::text(&refused.stderr).contains("beside those that exist"));
    let refused = held.run(&["--mps", "50"], "true");
    assert!(helpers::text(&refused.stderr).contains("has not made"), "{}", helpers::text(&refused.stderr));
    held.is_as_found();
}
