//! Ways in which gpumon may end while a GPU is held. After each, all is as it was found.

use std::process::Command;

use super::helpers::{signal, text};
use super::setup::*;

/// Everything at once.
const ALL: &[&str] = &["--clock", "1200", "--power-limit", "400", "--mig", "3"];

fn kill_9(pid: u32) {
    assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
}

#[test]
fn normal_end() {
    let held = Held::new("");
    assert_eq!(held.run(ALL, "true").status.code(), Some(0));
    held.is_as_found();
}

#[test]
fn the_commands_error() {
    let held = Held::new("");
    assert_eq!(held.run(ALL, "kill -SEGV $$").status.code(), Some(139));
    held.is_as_found();
}

#[test]
fn an_error_of_gpumon_in_the_middle() {
    // The first three calls ask whether it is allowed.
    let held = Held::new(
        "[[fault]]\nkind = \"error\"\ncall = \"nvmlDeviceSetPowerManagementLimit\"\nfrom_call = 4\nfor_calls = 1\n\
         error = \"UNKNOWN\"\n",
    );
    let said = held.run(ALL, "touch ran");
    assert_eq!(said.status.code(), Some(125), "{}", text(&said.stderr));
    assert!(!held.fake.folder().join("ran").exists());
    held.is_as_found();
}

#[test]
fn sigint_sigterm_and_sighup() {
    for name in ["-INT", "-TERM", "-HUP"] {
        let held = Held::new("");
        let running = held.start(ALL, "exec sleep 60");
        assert!(held.is_changed());
        let code = held.end(running, name);
        assert!(matches!(code, Some(129 | 130 | 143)), "{name}: {code:?}");
        assert!(!held.is_changed(), "{name}: gpumon itself put it back");
        held.is_as_found();
    }
}

#[test]
fn sigint_twice_leaves_at_once_and_the_janitor_restores() {
    let held = Held::new("");
    let running = held.start(ALL, "trap '' INT; sleep 60 & wait");
    signal(&running, "-INT");
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(held.end(running, "-INT"), Some(130));
    held.is_as_found();
}

#[test]
fn kill_9_and_the_janitor_restores_also_mps() {
    for args in [ALL, &["--clock", "1200", "--mps", "30"]] {
        let held = Held::new("");
        let mut running = held.start(args, "echo $CUDA_MPS_PIPE_DIRECTORY > folder; exec sleep 60");
        running.kill().unwrap();
        running.wait().unwrap();
        held.is_as_found();
        let folder = std::fs::read_to_string(held.fake.folder().join("folder")).unwrap();
        if let Some(folder) = Some(folder.trim()).filter(|folder| !folder.is_empty()) {
            assert!(!std::path::Path::new(folder).exists());
            assert_eq!(carrying(folder), 0);
        }
    }
}

#[test]
fn a_janitor_hears_no_signal_but_its_gpumons_end() {
    let held = Held::new("");
    let mut running = held.start(ALL, "exec sleep 60");
    let janitor = held.janitors()[0];
    for name in ["-INT", "-TERM", "-HUP", "-QUIT"] {
        assert!(Command::new("kill").args([name, &janitor.to_string()]).status().unwrap().success());
    }
    let session = std::fs::read_to_string(format!("/proc/{janitor}/stat")).unwrap();
    let session: Vec<&str> = session.rsplit_once(')').unwrap().1.split_whitespace().collect();
    assert_eq!(session[3], janitor.to_string(), "a session of its own");
    for descriptor in [1, 2] {
        let open = std::fs::read_link(format!("/proc/{janitor}/fd/{descriptor}")).unwrap();
        assert_eq!(open.to_str(), Some("/dev/null"));
    }
    assert_eq!(held.janitors(), [janitor]);
    running.kill().unwrap();
    running.wait().unwrap();
    held.is_as_found();
}

/// Kills gpumon and its janitor. The janitor goes first, or it would be faster.
fn kill_both(held: &Held) {
    let mut running = held.start(ALL, "exec sleep 60");
    held.janitors().into_iter().for_each(kill_9);
    running.kill().unwrap();
    running.wait().unwrap();
    until("the janitor is gone", || held.janitors().is_empty());
    assert!(held.is_changed(), "nobody is left to put it back");
}

#[test]
fn kill_9_of_both_and_the_next_start_restores() {
    let held = Held::new("");
    kill_both(&held);
    let listed = held.gpumon(&["devices"]);
    let said = text(&listed.stdout);
    assert!(said.contains("left from a run that died") && said.contains("`gpumon restore`"), "{said}");
    assert!(held.is_changed(), "reading changes nothing");
    let next = held.run(&["--clock", "900", "--json"], "true");
    let notices = held.json(&next)["notices"].to_string();
    assert!(notices.contains("put back first"), "{notices}");
    held.is_as_found();
}

#[test]
fn kill_9_of_both_and_restore_restores() {
    let held = Held::new("");
    kill_both(&held);
    let dry = text(&held.gpumon(&["restore", "--dry-run"]).stdout);
    assert!(dry.contains("--power-limit=700") && dry.contains("--reset-gpu-clocks"), "{dry}");
    assert!(held.is_changed());
    assert_eq!(text(&held.gpumon(&["restore", "--gpu", "5"]).stdout), "nothing was left to put back\n");
    assert!(held.is_changed());
    let restored = held.gpumon(&["restore", "--gpu", "0"]);
    assert!(restored.status.success(), "{}", text(&restored.stderr));
    held.is_as_found();
    assert_eq!(text(&held.gpumon(&["restore"]).stdout), "nothing was left to put back\n");
}

#[test]
fn the_gpu_goes_away_in_between_and_is_put_back_when_it_returns() {
    // Away for twelve seconds, among them those in which the command ends.
    let held =
        Held::new("[[fault]]\nkind = \"vanish\"\nerror = \"GPU_IS_LOST\"\nfrom_ms = 5000\nfor_ms = 12000\n");
    let said = held.run(ALL, "sleep 6");
    assert_eq!(said.status.code(), Some(125), "{}", text(&said.stderr));
    assert!(text(&said.stderr).contains("not put back"), "{}", text(&said.stderr));
    assert!(held.journal().exists(), "what is left to do is kept");
    until("the janitor gave up", || held.janitors().is_empty());
    until("it is put back", || held.gpumon(&["restore"]).status.success());
    held.is_as_found();
}
