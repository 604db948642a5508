//! Any command as a load: it runs in a process group that is stopped and continued (SIGSTOP, SIGCONT).
//!
//! Rule: the command is started once, is to load the GPU for as long as it runs, and is stopped until its first phase. It is
//! ready once the GPU draws clearly more than before, as the caller's `power_w` says; it is killed at the end.
//! Cases: a command that ends by itself, that never loads the GPU, or that cannot be started is an error that says so.
//! What this cannot do: SIGSTOP stops the host's part. Kernels that are queued already go on, so a load that queues ahead ends
//! late, and lags and windows come out wrong by that. Use one that waits for each short kernel; gpumon's own load does.
//! The command finds the GPU's UUID in CUDA_VISIBLE_DEVICES and GPUMON_GPU_UUID.
#![allow(unsafe_code)]

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use gpumon_core::clock::{Clock, use_precise_wakeups};
use gpumon_core::units::MonoUs;

use super::{LoadError, SquareLoad, Switched, edges};
use crate::characterize::phases::Phase;

/// How long a command may take until the GPU draws more, and how long it then warms up, µs.
const READY_WITHIN_US: i64 = 120_000_000;
const WARM_UP_US: i64 = 2_000_000;
const LOOK_US: i64 = 100_000;
/// What counts as more, W.
const MORE_W: f64 = 20.0;
/// Longest stretch in which a running phase does not look whether it is to stop, µs.
const PAUSE_US: i64 = 50_000;

/// Power of the GPU now, W, if it can be read.
pub type PowerNow = Box<dyn Fn() -> Option<f64>>;

/// A command that is stopped and continued.
pub struct CommandLoad {
    command: Vec<OsString>,
    uuid: String,
    clock: Arc<dyn Clock>,
    power_w: PowerNow,
    child: Option<Child>,
    stop: Arc<AtomicBool>,
    running: Option<JoinHandle<Vec<Switched>>>,
}

impl CommandLoad {
    /// A load by a command, program first, for the GPU with this UUID.
    pub fn new(command: Vec<OsString>, uuid: &str, clock: Arc<dyn Clock>, power_w: PowerNow) -> Self {
        Self { command, uuid: uuid.into(), clock, power_w, child: None, stop: Arc::default(), running: None }
    }

    fn failed(&self, message: impl Into<String>) -> LoadError {
        LoadError::Command { command: self.text(), message: message.into() }
    }

    fn text(&self) -> String {
        self.command.iter().map(|part| part.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    fn ended(&mut self) -> Result<(), LoadError> {
        match self.child.as_mut().map(Child::try_wait) {
            Some(Ok(Some(status))) => {
                // It has been waited for, so its number may become another's.
                self.child = None;
                Err(self.failed(format!("ended by itself ({status}); it has to run until it is stopped")))
            }
            _ => Ok(()),
        }
    }

    fn group(&self) -> Option<i32> {
        self.child.as_ref().and_then(|child| i32::try_from(child.id()).ok())
    }

    /// Waits until the GPU draws more than before.
    fn warm_up(&mut self, before_w: Option<f64>) -> Result<(), LoadError> {
        let until = self.clock.mono().plus_us(READY_WITHIN_US);
        while self.clock.mono() < until {
            self.clock.sleep_until(self.clock.mono().plus_us(LOOK_US));
            self.ended()?;
            let now_w = (self.power_w)();
            if before_w.zip(now_w).is_none_or(|(before, now)| now > before + MORE_W) {
                self.clock.sleep_until(self.clock.mono().plus_us(WARM_UP_US));
                return self.ended();
            }
        }
        let waited_s = READY_WITHIN_US / 1_000_000;
        Err(self.failed(format!(
            "has not raised the GPU's power by {MORE_W} W within {waited_s} s; does it use this GPU?"
        )))
    }
}

impl SquareLoad for CommandLoad {
    fn name(&self) -> String {
        format!("command: {}", self.text())
    }

    fn prepare(&mut self) -> Result<(), LoadError> {
        let (program, arguments) = self.command.split_first().ok_or_else(|| self.failed("is empty"))?;
        let before_w = (self.power_w)();
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env("CUDA_VISIBLE_DEVICES", &self.uuid)
            .env("GPUMON_GPU_UUID", &self.uuid)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .process_group(0);
        // SAFETY: between fork and exec this calls prctl alone, which is safe there. A stopped command would outlive a gpumon
        // that is killed; so the kernel kills it then.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let child = command.spawn().map_err(|e| self.failed(format!("cannot be started: {e}")))?;
        self.child = Some(child);
        let warm = self.warm_up(before_w);
        if let Some(group) = self.group() {
            signal(group, libc::SIGSTOP);
        }
        warm
    }

    fn start(&mut self, at: MonoUs, phases: &[Phase]) -> Result<(), LoadError> {
        self.ended()?;
        let group = self.group().ok_or_else(|| self.failed("does not run"))?;
        let (edges, end) = edges(at, phases);
        let (clock, stop) = (self.clock.clone(), self.stop.clone());
        let thread = thread::Builder::new().name("load".into());
        let running = thread.spawn(move || switch(group, &edges, end, clock.as_ref(), &stop));
        self.running = Some(running.map_err(|e| LoadError::Thread(format!("does not start: {e}")))?);
        Ok(())
    }

    fn finish(&mut self) -> Result<Vec<Switched>, LoadError> {
        let switched = match self.running.take().map(JoinHandle::join) {
            None => Vec::new(),
            Some(Ok(switched)) => switched,
            Some(Err(_)) => return Err(LoadError::Thread("panicked".into())),
        };
        self.ended()?;
        Ok(switched)
    }

    fn stop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(running) = self.running.take() {
            // What it would have told is not wanted any more.
            let _ = running.join();
        }
        if let Some(group) = self.group() {
            signal(group, libc::SIGKILL);
        }
        if let Some(mut child) = self.child.take() {
            let _ = child.wait();
        }
        self.stop.store(false, Ordering::SeqCst);
    }
}

impl Drop for CommandLoad {
    fn drop(&mut self) {
        self.stop();
    }
}

fn switch(
    group: i32,
    edges: &[Switched],
    end: MonoUs,
    clock: &dyn Clock,
    stop: &AtomicBool,
) -> Vec<Switched> {
    use_precise_wakeups();
    let mut switched = Vec::with_capacity(edges.len());
    let pause_until = |moment: MonoUs| {
        while clock.mono() < moment && !stop.load(Ordering::SeqCst) {
            clock.sleep_until(moment.min(clock.mono().plus_us(PAUSE_US)));
        }
    };
    for edge in edges {
        pause_until(edge.at);
        if stop.load(Ordering::SeqCst) {
            break;
        }
        signal(group, if edge.on { libc::SIGCONT } else { libc::SIGSTOP });
        switched.push(Switched { at: clock.mono(), on: edge.on });
    }
    pause_until(end);
    signal(group, libc::SIGSTOP);
    if switched.last().is_some_and(|last| last.on) {
        switched.push(Switched { at: clock.mono(), on: false });
    }
    switched
}

fn signal(group: i32, signal: libc::c_int) {
    // SAFETY: takes plain integers. The group is that of a child which has not been waited for, so its number is not
    // another's; a group that has ended already answers an error, which changes nothing.
    unsafe { libc::kill(-group, signal) };
}

#[cfg(test)]
mod tests {
    use gpumon_core::clock::RealClock;

    use super::*;

    fn load(command: &[&str]) -> CommandLoad {
        let command = command.iter().map(OsString::from).collect();
        CommandLoad::new(command, "GPU-0", Arc::new(RealClock), Box::new(|| None))
    }

    #[test]
    fn a_command_is_stopped_and_continued_and_killed() {
        let mut load = load(&["sleep", "1000"]);
        load.prepare().unwrap();
        let pid = load.group().unwrap();
        let state = || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
            stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
        };
        // Signals take a moment.
        let stopped = (0..100).any(|_| {
            thread::sleep(std::time::Duration::from_millis(10));
            state() == 'T'
        });
        assert!(stopped);
        let at = RealClock.mono().plus_us(20_000);
        let phases = [(false, 20_000), (true, 30_000), (false, 10_000), (true, 30_000)]
            .map(|(on, us)| Phase { on, us });
        load.start(at, &phases).unwrap();
        let switched = load.finish().unwrap();
        assert_eq!(switched.iter().map(|s| s.on).collect::<Vec<_>>(), [true, false, true, false]);
        for (found, asked_us) in switched.iter().zip([20_000, 50_000, 60_000, 90_000]) {
            let late_us = found.at.since_us(at.plus_us(asked_us));
            assert!((0..20_000).contains(&late_us), "{late_us} µs late");
        }
        load.stop();
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn a_command_that_ends_or_is_not_there_is_said() {
        assert!(load(&["true"]).prepare().unwrap_err().to_string().contains("ended by itself"));
        assert!(load(&["/no/such/thing"]).prepare().unwrap_err().to_string().contains("cannot be started"));
    }
}
