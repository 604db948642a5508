//! Faults of GPUs that are changed.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use gpumon_core::units::Megahertz;
use gpumon_fakenvml::testing::Fake;
use serde_json::Value;

use super::helpers::*;
use super::until;

/// A GPU under all the load that it can take.
const FULL: &str = "base = \"h200\"\n[load]\nkind = \"constant\"\nlevel = 1.0\n";

fn changeable(script: &str) -> Fake {
    let script = format!("gpus = \"full.toml\"\nprivileged = true\n{script}");
    Fake::with_files(&script, &[("full.toml", FULL)]).unwrap()
}

fn hold(fake: &Fake, args: &[&str], script: &str) -> Command {
    let args = [&["hold"], args, &["--", "sh", "-c", script]].concat();
    let mut command = command(fake, &args);
    command.env("XDG_STATE_HOME", fake.folder().join("kept"));
    command
}

fn held(fake: &Fake, mhz: &str) -> (Value, String) {
    let output = hold(fake, &["--clock", mhz, "--json"], "sleep 1").output().unwrap();
    (json(&output)["clock"].clone(), text(&output.stderr))
}

#[test]
fn row_21_a_locked_clock_is_not_reached() {
    // The driver accepts the lock, and nothing follows.
    let fake = changeable("[[fault]]\nkind = \"no-effect\"\ncall = \"nvmlDeviceSetGpuLockedClocks\"\n");
    let (clock, said) = held(&fake, "900");
    assert_eq!((&clock["asked_mhz"], &clock["snapped_mhz"]), (&900.into(), &900.into()));
    assert!(clock["achieved_mhz"].as_u64().unwrap() > 1000, "{clock}");
    assert_eq!(clock["valid"], false);
    assert!(said.contains("not valid"), "{said}");
    // The power limit holds it down, and the GPU says so.
    let (clock, said) = held(&changeable(""), "1980");
    assert_eq!(clock["valid"], false, "{clock}");
    assert!(clock["achieved_mhz"].as_u64().unwrap() < 1900, "{clock}");
    assert_eq!(clock["reasons"], serde_json::json!(["SW power cap"]));
    assert!(said.contains("SW power cap"), "{said}");
    // One that follows is valid; of a GPU that idles nothing is known.
    assert_eq!(held(&changeable(""), "900").0["valid"], true);
    let idle = "base = \"h200\"\n[load]\nkind = \"idle\"\n";
    let idle = Fake::with_files("gpus = \"idle.toml\"\nprivileged = true", &[("idle.toml", idle)]).unwrap();
    let (clock, _) = held(&idle, "900");
    assert_eq!((&clock["valid"], &clock["achieved_mhz"]), (&Value::Null, &Value::Null));
}

#[test]
fn row_22_gpumon_dies_while_clocks_are_locked() {
    let fake = changeable("");
    let found = fake.settings(0).unwrap();
    let ready: PathBuf = fake.folder().join("ready");
    for janitor_too in [false, true] {
        let script = format!("touch '{}'; exec sleep 60", ready.display());
        let mut command = hold(&fake, &["--clock", "900", "--power-limit", "300", "--mig", "2"], &script);
        let mut running = command.stderr(Stdio::null()).spawn().unwrap();
        until(20, "the command runs", || ready.exists());
        assert_eq!(fake.settings(0).unwrap().locked, Some((Megahertz(900), Megahertz(900))));
        if janitor_too {
            // It is gpumon's child beside the command, and goes first, or it would be faster.
            let children = format!("/proc/{0}/task/{0}/children", running.id());
            let children = std::fs::read_to_string(children).unwrap();
            let is_janitor = |pid: &&str| {
                std::fs::read(format!("/proc/{pid}/cmdline"))
                    .is_ok_and(|line| line.windows(9).any(|w| w == b"__janitor"))
            };
            let janitor = children.split_whitespace().find(is_janitor).unwrap();
            assert!(Command::new("kill").args(["-9", janitor]).status().unwrap().success());
        }
        running.kill().unwrap();
        running.wait().unwrap();
        if janitor_too {
            let next = hold(&fake, &["--clock", "1200"], "true").output().unwrap();
            assert!(text(&next.stderr).contains("left from a run that died"), "{}", text(&next.stderr));
        }
        until(20, "all is as found", || fake.settings(0).unwrap() == found);
        std::fs::remove_file(&ready).unwrap();
    }
}

#[test]
fn row_23_no_permission_to_set_clocks() {
    let refused = |fake: &Fake, args: &[&str]| {
        let ran = fake.folder().join("ran");
        let output = hold(fake, args, &format!("touch '{}'", ran.display())).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{}", text(&output.stderr));
        assert!(!ran.exists(), "nothing is measured");
        text(&output.stderr)
    };
    // Whoever may not is told all of it at once, and nothing is tried.
    let fake = Fake::new("").unwrap();
    let said = refused(&fake, &["--clock", "900", "--power-limit", "300", "--mig", "3"]);
    for command in ["--lock-gpu-clocks", "--power-limit", "--multi-instance-gpu"] {
        assert!(said.contains(command), "{said}");
    }
    assert!(said.contains("CAP_SYS_ADMIN") && said.contains("sudo"), "{said}");
    assert_eq!(fake.calls("nvmlDeviceSetGpuLockedClocks", Some(0)).unwrap(), 0);
    // Where only the lock itself is refused, trying it first tells, before the command runs.
    let script =
        "[[fault]]\nkind = \"error\"\ncall = \"nvmlDeviceSetGpuLockedClocks\"\nerror = \"NO_PERMISSION\"\n";
    let said = refused(&changeable(script), &["--clock", "900", "--power-limit", "300"]);
    assert!(said.contains("lacking: locking the SM clock"), "{said}");
    // A GPU without MIG is another matter than a user without permission.
    let script = "[[fault]]\nkind = \"error\"\ncall = \"nvmlDeviceGetMigMode\"\nerror = \"NOT_SUPPORTED\"\n";
    let said = refused(&changeable(script), &["--mig", "3"]);
    assert!(said.contains("has no MIG") && !said.contains("CAP_SYS_ADMIN"), "{said}");
}
