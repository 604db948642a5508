//! Thirty faults that GPU monitors meet in the field, one test each, named after its row in docs/faults.md.
//!
//! Nearly all run the whole program on the NVML library of simulated GPUs with a scripted fault. Those of them whose
//! point lies inside one process (descriptors, forks, a sensor's period) play in a copy of this executable that loads
//! that library. Times are loose: a loaded machine with two cores must pass.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is a test's report, in its helpers too")]

mod control;
#[cfg(feature = "exporter")]
mod exporter;
mod gone;
#[path = "../fakenvml/helpers.rs"]
#[allow(dead_code, reason = "shared with the tests of the library")]
mod helpers;
mod process;
mod readings;
mod start;
mod table;
mod timing;

use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

use gpumon_fakenvml::testing::Fake;

/// Set in the process that plays a test's inside.
const PLAY: &str = "GPUMON_TEST_PLAY";

/// Whether this process is the one that plays.
fn is_played() -> bool {
    std::env::var_os(PLAY).is_some()
}

/// Runs the test of this name once more, in a process that loads the fake library.
#[track_caller]
fn play(fake: &Fake, test: &str) {
    let own = std::env::current_exe().unwrap();
    let mut command = Command::new(own);
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(PLAY, "1");
    let output = command.envs(fake.environment()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("1 passed"), "{test} is no test: {said}");
}

/// Waits until something is so.
#[track_caller]
fn until(seconds: u64, what: &str, mut so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !so() {
        assert!(started.elapsed() < Duration::from_secs(seconds), "{what}: not within {seconds} s");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits for the end, and says how long that took. A process that does not end is killed, and the test fails.
#[track_caller]
fn ends(seconds: u64, mut child: Child) -> (Output, Duration) {
    let asked = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if asked.elapsed() > Duration::from_secs(seconds) {
            child.kill().unwrap();
            panic!("it has not ended within {seconds} s");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    (child.wait_with_output().unwrap(), asked.elapsed())
}
