//! A fake GPU that may be changed, and what was found on it.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use gpumon_fakenvml::testing::{Fake, Settings};
use serde_json::Value;

use super::helpers;

/// A stand-in for `nvidia-cuda-mps-control`.
const MPS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/control/mps.sh");

pub struct Held {
    pub fake: Fake,
    pub state: PathBuf,
    found: Settings,
}

impl Held {
    /// A GPU with a constant load, half of what it can, that may be changed.
    pub fn new(script: &str) -> Self {
        Self::of(helpers::fake(&format!("gpus = \"half.toml\"\nprivileged = true\n{script}")))
    }

    /// Another fake GPU.
    #[allow(dead_code, reason = "used by the tests of sweeps")]
    pub fn of(fake: Fake) -> Self {
        let found = fake.settings(0).unwrap();
        Self { state: fake.folder().join("kept"), found, fake }
    }

    pub fn gpumon(&self, args: &[&str]) -> Output {
        self.plain(args).output().unwrap()
    }

    pub fn plain(&self, args: &[&str]) -> Command {
        let mut command = helpers::command(&self.fake, args);
        command.env("XDG_STATE_HOME", &self.state).env("GPUMON_MPS_CONTROL", MPS);
        command.current_dir(self.fake.folder());
        command
    }

    /// `gpumon hold` with these arguments around a shell's script.
    pub fn command(&self, args: &[&str], script: &str) -> Command {
        self.plain(&[&["hold"], args, &["--", "sh", "-c", script]].concat())
    }

    pub fn run(&self, args: &[&str], script: &str) -> Output {
        self.command(args, script).output().unwrap()
    }

    /// Starts holding, and returns once the command runs.
    #[track_caller]
    pub fn start(&self, args: &[&str], script: &str) -> Child {
        let ready = self.fake.folder().join("ready");
        let _ = fs::remove_file(&ready);
        let script = format!("touch '{}'; {script}", ready.display());
        let mut command = self.command(args, &script);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        until("the command runs", || ready.exists());
        child
    }

    /// Sends a signal and waits for the end.
    #[track_caller]
    pub fn end(&self, mut child: Child, signal: &str) -> Option<i32> {
        helpers::signal(&child, signal);
        until("it ends", || child.try_wait().unwrap().is_some());
        child.wait().unwrap().code()
    }

    pub fn settings(&self) -> Settings {
        self.fake.settings(0).unwrap()
    }

    pub fn uuid(&self) -> String {
        self.fake.truth().unwrap().gpus[0].uuid()
    }

    pub fn journal(&self) -> PathBuf {
        self.state.join("gpumon/control").join(self.uuid() + ".json")
    }

    /// All is as it was found, and nothing says that something is left. Seen from this process, not from gpumon's.
    #[track_caller]
    pub fn is_as_found(&self) {
        until("all is as found", || self.settings() == self.found && !self.journal().exists());
        until("no janitor is left", || self.janitors().is_empty());
    }

    /// Whether something is set.
    pub fn is_changed(&self) -> bool {
        self.settings() != self.found
    }

    /// Janitors of this GPU's journal.
    pub fn janitors(&self) -> Vec<u32> {
        let journal = self.journal().to_str().unwrap().to_owned();
        pids(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).into_owned();
            line.contains("__janitor") && line.contains(&journal)
        })
    }

    #[track_caller]
    pub fn json(&self, output: &Output) -> Value {
        helpers::json(output)
    }
}

/// Processes whose environment names an MPS folder as theirs.
pub fn carrying(folder: &str) -> usize {
    let mark = format!("GPUMON_MPS_FOLDER={folder}");
    pids(|pid| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|&b| b == 0).any(|variable| variable == mark.as_bytes())
    })
    .len()
}

pub fn pids(is: impl Fn(u32) -> bool) -> Vec<u32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(|&pid| is(pid)).collect()
}

/// Waits until something is so; a loaded machine takes its time.
#[track_caller]
pub fn until(what: &str, mut so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !so() {
        assert!(started.elapsed() < Duration::from_secs(30), "{what}: not within 30 s");
        std::thread::sleep(Duration::from_millis(20));
    }
}
