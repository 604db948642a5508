//! One conformance suite over every way to change a GPU, and the guard around a panic.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is a test's report, in its helpers too")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use gpumon_core::clock::{RealClock, VirtualClock};
use gpumon_core::share::Share;
use gpumon_core::units::{Megahertz, Milliwatts, MonoUs, WallUs};
use gpumon_fakenvml::testing::Fake;
use gpumon_monitor::control::dry::DryControl;
use gpumon_monitor::control::guard::{Guard, Safety};
use gpumon_monitor::control::journal::{self, Changed, Kept};
use gpumon_monitor::control::stage::{Stage, StageError, Step, Wants, lacking, plan};
use gpumon_monitor::control::{self, Ability, Control, ControlError, Instance, State, janitor, restore};
use gpumon_monitor::device::{Access, Identity};

const CHILD: &str = "GPUMON_TEST_CHILD";
const ALL: Wants = Wants { clocks: true, power_limit: true, mig: true, mps: false };

/// Journals in a folder, and a janitor that never does anything, so that what is seen is the guard's work.
fn safety(folder: &Path) -> Safety {
    let janitor = janitor::Call { program: "true".into(), arguments: Vec::new() };
    Safety { folder: folder.join("kept"), janitor }
}

fn simulated() -> Arc<dyn Control> {
    let clock = VirtualClock::new(WallUs(1_800_000_000_000_000));
    clock.set(MonoUs(5_000_000));
    control::open("sim:h200", Arc::new(clock), Access::default()).unwrap().remove(0).control
}

fn nvml() -> Arc<dyn Control> {
    control::open("nvml", Arc::new(RealClock), Access::default()).unwrap().remove(0).control
}

/// Runs a test of this file again, in a process that loads a fake library; there, `inside`.
#[track_caller]
fn on_fake(test: &str, script: &str, inside: fn()) {
    if std::env::var_os(CHILD).is_some() {
        return inside();
    }
    let fake = Fake::new(script).unwrap();
    let found = fake.settings(0).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(CHILD, "1").envs(fake.environment());
    let child = command.output().unwrap();
    let text = String::from_utf8_lossy(&child.stdout) + String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success() && text.contains("1 passed"), "{text}");
    assert_eq!(fake.settings(0).unwrap(), found, "seen from another process");
}

/// What every control promises.
fn keeps_its_promises(control: &dyn Control) {
    let found = control.state().unwrap();
    for ability in [Ability::Clocks, Ability::PowerLimit, Ability::Mig] {
        control.may(ability).unwrap();
    }
    assert_eq!(control.state().unwrap(), found, "asking changes nothing");

    let clocks = control.identity().sm_clocks.clone();
    control.lock_clocks(clocks[0], clocks[0]).unwrap();
    control.reset_clocks().unwrap();
    let refused = control.lock_clocks(Megahertz(9000), Megahertz(9001)).unwrap_err();
    assert!(matches!(refused, ControlError::Refused(_)), "{refused}");

    let power = found.power.unwrap();
    control.set_power_limit(power.min).unwrap();
    assert_eq!(control.state().unwrap().power.unwrap().now, power.min);
    let refused = control.set_power_limit(Milliwatts(power.max.0 + 1)).unwrap_err();
    assert!(matches!(refused, ControlError::Refused(_)) && refused.left_all_as_it_was(), "{refused}");
    control.set_power_limit(power.now).unwrap();

    assert!(control.create_instance(3, 4).is_err(), "MIG is off");
    control.set_mig(true).unwrap();
    let made = control.create_instance(3, 4).unwrap();
    assert_eq!((made.slices, made.start, made.slots), (3, 4, 4));
    assert!(made.uuid.as_deref().is_some_and(|uuid| uuid.starts_with("MIG-")), "{made:?}");
    let there = control.state().unwrap().instances;
    assert!(there.len() == 1 && there[0].is(&made), "{there:?}");
    assert!(matches!(control.create_instance(3, 4), Err(ControlError::Busy(_))), "the place is taken");
    assert!(matches!(control.create_instance(3, 1), Err(ControlError::Refused(_))), "no such start");
    assert!(matches!(control.create_instance(5, 0), Err(ControlError::Refused(_))), "no such size");
    assert!(matches!(control.set_mig(false), Err(ControlError::Busy(_))), "instances exist");
    let another = Instance { start: 0, ..made.clone() };
    assert!(matches!(control.destroy_instance(&another), Err(ControlError::Refused(_))), "not as described");
    control.destroy_instance(&made).unwrap();
    control.destroy_instance(&made).unwrap();
    control.set_mig(false).unwrap();
    assert_eq!(control.state().unwrap(), found);
}

#[test]
fn a_simulated_gpu_keeps_the_promises() {
    keeps_its_promises(simulated().as_ref());
}

#[test]
fn a_rehearsal_keeps_the_promises_and_changes_nothing() {
    let real = simulated();
    let found = real.state().unwrap();
    let lines: Arc<Mutex<Vec<String>>> = Arc::default();
    let heard = lines.clone();
    let say = move |line: &str| heard.lock().unwrap().push(line.to_owned());
    keeps_its_promises(&DryControl::new(real.clone(), Box::new(say)).unwrap());
    assert_eq!(real.state().unwrap(), found);
    let lines = lines.lock().unwrap();
    assert!(lines.iter().all(|line| line.starts_with("nvidia-smi ")), "{lines:?}");
    assert_eq!(lines.len(), 8, "what was refused is not said: {lines:?}");
}

#[test]
fn an_nvidia_gpu_keeps_the_promises() {
    on_fake("an_nvidia_gpu_keeps_the_promises", "privileged = true", || keeps_its_promises(nvml().as_ref()));
}

#[test]
fn a_panic_puts_everything_back() {
    on_fake("a_panic_puts_everything_back", "privileged = true", || {
        let folder = tempfile::tempdir().unwrap();
        let found = nvml().state().unwrap();
        let inside = AssertUnwindSafe(|| {
            let mut stage = Stage::open(nvml(), ALL, &safety(folder.path())).unwrap();
            stage.set_clock(Megahertz(1000)).unwrap();
            stage.set_power_limit(Milliwatts(300_000)).unwrap();
            stage.seat(Share::Mig(2)).unwrap();
            assert_ne!(nvml().state().unwrap(), found);
            panic!("in the middle");
        });
        assert!(catch_unwind(inside).is_err());
        assert_eq!(nvml().state().unwrap(), found);
        let kept = Kept::lock(&folder.path().join("kept"), &nvml().identity().uuid, "").unwrap();
        assert_eq!(kept.left().unwrap(), None);
    });
}

#[test]
fn an_act_that_may_have_been_done_is_undone() {
    // The lock fails in a way that leaves open whether it was done.
    let script = "privileged = true\n[[fault]]\nkind = \"error\"\ncall = \"nvmlDeviceSetGpuLockedClocks\"\n\
                  error = \"TIMEOUT\"\n";
    on_fake("an_act_that_may_have_been_done_is_undone", script, || {
        let folder = tempfile::tempdir().unwrap();
        let mut guard = Guard::begin(nvml(), &safety(folder.path())).unwrap();
        assert!(guard.lock_clocks(Megahertz(900), Megahertz(900)).is_err());
        assert!(guard.changed().clocks, "it may have been done");
        assert_eq!(guard.restore().done.len(), 1);
        assert!(guard.changed().is_nothing());
    });
}

/// A GPU whose settings stay, and that looks into the journal at each act.
struct Looking {
    under: Arc<dyn Control>,
    journal: PathBuf,
}

impl Looking {
    fn listed(&self, what: impl Fn(&Changed) -> bool) {
        let journal = journal::load(&self.journal).unwrap().unwrap();
        assert!(what(&journal.changed), "{:?}", journal.changed);
    }
}

impl Control for Looking {
    fn identity(&self) -> &Identity {
        self.under.identity()
    }
    fn outlives_process(&self) -> bool {
        true
    }
    fn state(&self) -> Result<State, ControlError> {
        self.under.state()
    }
    fn may(&self, ability: Ability) -> Result<(), ControlError> {
        self.under.may(ability)
    }
    fn lock_clocks(&self, lowest: Megahertz, highest: Megahertz) -> Result<(), ControlError> {
        self.listed(|changed| changed.clocks);
        self.under.lock_clocks(lowest, highest)
    }
    fn reset_clocks(&self) -> Result<(), ControlError> {
        self.under.reset_clocks()
    }
    fn set_power_limit(&self, limit: Milliwatts) -> Result<(), ControlError> {
        self.listed(|changed| changed.power_limit);
        self.under.set_power_limit(limit)
    }
    fn set_mig(&self, on: bool) -> Result<(), ControlError> {
        self.listed(|changed| changed.mig);
        self.under.set_mig(on)
    }
    fn create_instance(&self, slices: u8, start: u8) -> Result<Instance, ControlError> {
        self.listed(|changed| {
            changed.instances.iter().any(|made| (made.slices, made.start) == (slices, start))
        });
        self.under.create_instance(slices, start)
    }
    fn destroy_instance(&self, instance: &Instance) -> Result<(), ControlError> {
        self.under.destroy_instance(instance)
    }
    fn start_mps(&self, folder: &Path) -> Result<(), ControlError> {
        self.listed(|changed| changed.mps.as_deref() == Some(folder));
        Ok(())
    }
    fn stop_mps(&self, folder: &Path) -> Result<(), ControlError> {
        self.under.stop_mps(folder)
    }
}

#[test]
fn each_act_is_on_disk_before_it_is_done() {
    let folder = tempfile::tempdir().unwrap();
    let safety = safety(folder.path());
    let under = simulated();
    let found = under.state().unwrap();
    let journal = journal::path(&safety.folder, &under.identity().uuid);
    let looking = Arc::new(Looking { under: under.clone(), journal: journal.clone() });
    let mut stage = Stage::open(looking.clone(), Wants { mps: true, ..ALL }, &safety).unwrap();
    stage.set_clock(Megahertz(900)).unwrap();
    stage.set_power_limit(Milliwatts(300_000)).unwrap();
    stage.seat(Share::Mig(3)).unwrap();
    stage.seat(Share::Mps(30)).unwrap();
    stage.seat(Share::Mig(2)).unwrap();
    let left = journal::load(&journal).unwrap().unwrap();
    assert_eq!(left.found.power_limit_mw, Some(Milliwatts(700_000)));
    // Killed before the driver's answer was written down: it is known by its place.
    let mut changed = left.changed.clone();
    changed.instances[0].instance = None;
    assert!(
        restore::put_back(looking.as_ref(), &left.found, &mut changed, restore::PATIENCE).failed.is_empty()
    );
    assert_eq!(under.state().unwrap(), found);
    drop(stage);
    assert!(!journal.exists());
}

#[test]
fn an_act_that_did_not_happen_is_not_undone() {
    let script = "privileged = true\n[[fault]]\nkind = \"error\"\ncall = \"nvmlDeviceSetGpuLockedClocks\"\n\
                  error = \"NO_PERMISSION\"\n";
    on_fake("an_act_that_did_not_happen_is_not_undone", script, || {
        let folder = tempfile::tempdir().unwrap();
        let mut guard = Guard::begin(nvml(), &safety(folder.path())).unwrap();
        assert!(guard.lock_clocks(Megahertz(900), Megahertz(900)).is_err());
        assert!(guard.changed().is_nothing());
        let wants = Wants { clocks: true, ..Wants::default() };
        drop(guard);
        // Asking says yes, as the power limit may be set; trying does not.
        assert!(lacking(nvml().as_ref(), wants).is_empty());
        let error = Stage::open(nvml(), wants, &safety(folder.path())).err().unwrap();
        assert!(matches!(error, StageError::Lacking(_)), "{error}");
    });
}

#[test]
fn mig_that_waits_for_a_reset_is_taken_back_and_said() {
    let script = "privileged = true\n[[fault]]\nkind = \"no-effect\"\ncall = \"nvmlDeviceSetMigMode\"\n";
    on_fake("mig_that_waits_for_a_reset_is_taken_back_and_said", script, || {
        let error = nvml().set_mig(true).unwrap_err();
        assert!(matches!(&error, ControlError::Refused(text) if text.contains("--gpu-reset")), "{error}");
    });
}

#[test]
fn what_is_lacking_is_said_without_changing_anything() {
    on_fake("what_is_lacking_is_said_without_changing_anything", "", || {
        let found = nvml().state().unwrap();
        let lacks = lacking(nvml().as_ref(), ALL);
        assert_eq!(lacks.len(), 3, "{lacks:?}");
        assert!(lacks[0].contains("--lock-gpu-clocks") && lacks[0].contains("CAP_SYS_ADMIN"), "{lacks:?}");
        assert_eq!(nvml().state().unwrap(), found);
    });
}

#[test]
fn a_stage_seats_shares_one_partition_after_the_other() {
    let folder = tempfile::tempdir().unwrap();
    let control = simulated();
    let found = control.state().unwrap();
    let wants = Wants { mps: true, ..ALL };
    let mut stage = Stage::open(control.clone(), wants, &safety(folder.path())).unwrap();
    let set = stage.set_clock(Megahertz(1001)).unwrap();
    assert_eq!((set.asked, set.snapped), (Megahertz(1001), Megahertz(1005)));
    let seats = stage.partition(&[Share::Mig(3), Share::Mig(4)]).unwrap();
    assert!(seats[0].mig_uuid.is_some() && seats[0].mig_uuid != seats[1].mig_uuid, "{seats:?}");
    let seat = stage.seat(Share::Mps(40)).unwrap();
    assert!(seat.env.contains(&("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE".into(), "40".into())), "{seat:?}");
    assert_eq!(control.state().unwrap().mig, Some(false), "MPS wants the whole GPU");
    let seat = stage.seat(Share::Green { sms: 10, of: 132 }).unwrap();
    assert!(seat.env.contains(&("GPUMON_GREEN_SMS".into(), "10".into())) && seat.env.len() == 2, "{seat:?}");
    assert!(stage.guard().changed().mps.is_none());
    assert!(stage.partition(&[Share::Mig(3), Share::Mps(50)]).is_err());
    stage.seat(Share::Mig(7)).unwrap();
    assert!(stage.restore().failed.is_empty());
    assert_eq!(control.state().unwrap(), found);
    assert!(!folder.path().join("kept").exists(), "a simulated GPU ends with its process");
}

#[test]
fn a_plan_is_what_would_be_done_and_undone() {
    let folder = tempfile::tempdir().unwrap();
    let control = simulated();
    let found = control.state().unwrap();
    let steps = [Step::Clock(Megahertz(1200)), Step::Partition(vec![Share::Mig(3)])];
    let (lines, lacks) = plan(control.clone(), ALL, &steps, &safety(folder.path())).unwrap();
    assert_eq!(lines.len(), 6, "{lines:?}");
    assert!(lacks.is_empty());
    assert_eq!(control.state().unwrap(), found);
}
