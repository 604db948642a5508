//! An MPS daemon of our own.
//!
//! Rule: the daemon runs in a folder that only this user can enter, with its sockets and its logs; whatever daemon the user
//! has in CUDA_MPS_PIPE_DIRECTORY or in the default place is neither asked nor touched, and compute mode stays as it is. It
//! runs in the foreground of a session of its own, so that a Ctrl-C in the terminal does not reach it. It is up once it
//! answers `get_server_list`. It is told to `quit`; if it or its server is still there after a while, they are killed: they
//! are the processes that carry the folder in GPUMON_MPS_FOLDER, which clients do not.
//! Cases: no `nvidia-cuda-mps-control` on PATH is said; GPUMON_MPS_CONTROL names another program. A folder that is too long
//! for a socket is not taken.
//! Source: NVIDIA MPS documentation, "nvidia-cuda-mps-control" and "Environment Variables"; a socket's path has 107 bytes.
#![allow(unsafe_code)]

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::ControlError;
use crate::marks::runtime_folder;

/// Names another program than `nvidia-cuda-mps-control`.
pub const PROGRAM_VARIABLE: &str = "GPUMON_MPS_CONTROL";
/// Carries the folder in the environment of the daemon and its server.
const MARK: &str = "GPUMON_MPS_FOLDER";
const PROGRAM: &str = "nvidia-cuda-mps-control";
const PIPES: &str = "CUDA_MPS_PIPE_DIRECTORY";
const LOGS: &str = "CUDA_MPS_LOG_DIRECTORY";
const PERCENTAGE: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
/// What names of folders begin with; the process id follows.
const PREFIX: &str = "gpumon-mps-";
/// Longest path of a socket, and the longest name that the daemon gives one.
const SOCKET_MAX: usize = 107;
const LONGEST: &str = "/control_privileged";
/// How long the daemon may take to answer, to quit, and to die.
const UP_WITHIN: Duration = Duration::from_secs(10);
const QUITS_WITHIN: Duration = Duration::from_secs(5);
const DIES_WITHIN: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(50);

/// The program, if there is one.
pub fn program() -> Result<PathBuf, ControlError> {
    let named = std::env::var_os(PROGRAM_VARIABLE).filter(|name| !name.is_empty());
    let name = named.unwrap_or_else(|| PROGRAM.into());
    let path = PathBuf::from(&name);
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let found = match path.components().count() > 1 {
        true => Some(path.clone()).filter(|path| path.is_file()),
        false => std::env::split_paths(&folders).map(|folder| folder.join(&path)).find(|path| path.is_file()),
    };
    found.ok_or_else(|| {
        ControlError::NotSupported(format!(
            "`{}` is not found; it comes with the NVIDIA driver, and containers have it where the driver's \
             `utility` and `compute` capabilities are mounted",
            path.display()
        ))
    })
}

/// Makes a folder that nobody else can enter, short enough for sockets.
pub fn new_folder() -> Result<PathBuf, ControlError> {
    let fits = |place: &PathBuf| place.as_os_str().len() + PREFIX.len() + 16 + LONGEST.len() <= SOCKET_MAX;
    let place = [runtime_folder(), PathBuf::from("/tmp")].into_iter().find(fits);
    let place = place.ok_or_else(|| ControlError::Failed("no folder for sockets is short enough".into()))?;
    for number in 0..1000 {
        let folder = place.join(format!("{PREFIX}{}-{number}", std::process::id()));
        match DirBuilder::new().mode(0o700).create(&folder) {
            Ok(()) => return Ok(folder),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => {
                return Err(ControlError::Failed(format!("`{}` cannot be made: {e}", folder.display())));
            }
        }
    }
    Err(ControlError::Failed(format!("`{}` is full of folders of dead daemons", place.display())))
}

/// What a client of the daemon in a folder needs in its environment.
pub fn environment(folder: &Path, percent: u8) -> Vec<(String, OsString)> {
    vec![
        (PIPES.into(), folder.into()),
        (LOGS.into(), folder.into()),
        (PERCENTAGE.into(), percent.to_string().into()),
    ]
}

/// The program with the daemon's folder in its environment.
fn command(folder: &Path) -> Result<Command, ControlError> {
    let mut command = Command::new(program()?);
    command.env(PIPES, folder).env(LOGS, folder).env_remove(PERCENTAGE);
    Ok(command)
}

/// Starts a daemon for one GPU and waits until it answers.
pub fn start(folder: &Path, gpu_uuid: &str) -> Result<(), ControlError> {
    let failed = |e: io::Error| ControlError::Failed(format!("the MPS daemon cannot be started: {e}"));
    let log = File::create(folder.join("daemon.log")).map_err(failed)?;
    let mut command = command(folder)?;
    command.arg("-f").env("CUDA_VISIBLE_DEVICES", gpu_uuid).env(MARK, folder);
    command.stdin(Stdio::null()).stdout(log.try_clone().map_err(failed)?).stderr(log);
    // SAFETY: between fork and exec this calls setsid alone, which is safe there.
    unsafe {
        command.pre_exec(|| {
            libc::setsid();
            Ok(())
        });
    }
    let mut child = command.spawn().map_err(failed)?;
    let until = Instant::now() + UP_WITHIN;
    let why = loop {
        if let Ok(Some(status)) = child.try_wait() {
            break format!("it ended at once ({status})");
        }
        if ask(folder, "get_server_list", LOOK * 20) {
            // Whoever waits for it leaves no dead process behind.
            let waiting = thread::Builder::new().name("mps".into()).spawn(move || child.wait());
            drop(waiting);
            return Ok(());
        }
        if Instant::now() > until {
            break format!("it does not answer within {} s", UP_WITHIN.as_secs());
        }
        thread::sleep(LOOK);
    };
    let said = last_line(folder);
    kill_all(folder);
    let _ = child.wait();
    Err(ControlError::Failed(format!("the MPS daemon did not come up: {why}{said}")))
}

/// What the daemon said last, if anything.
fn last_line(folder: &Path) -> String {
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
    let texts = [read("control.log"), read("daemon.log")];
    let last = texts.iter().find_map(|text| text.lines().rfind(|line| !line.trim().is_empty()));
    last.map_or_else(String::new, |line| format!("; it said: {}", line.trim()))
}

/// Gives the daemon a command; whether it took it in time.
fn ask(folder: &Path, text: &str, patience: Duration) -> bool {
    let Ok(mut command) = command(folder) else { return false };
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(mut child) = command.spawn() else { return false };
    if let Some(mut stdin) = child.stdin.take() {
        // One that has ended already does not read, which its status tells.
        let _ = writeln!(stdin, "{text}");
    }
    let until = Instant::now() + patience;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return status.success(),
            Ok(None) if Instant::now() < until => thread::sleep(Duration::from_millis(10)),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return false;
            }
        }
    }
}

/// Stops the daemon of a folder with its server and removes the folder. A daemon that is not there is no failure.
pub fn stop(folder: &Path) -> Result<(), ControlError> {
    if !marked(folder).is_empty() {
        ask(folder, "quit", QUITS_WITHIN);
        if !gone(folder, QUITS_WITHIN) {
            kill_all(folder);
            if !gone(folder, DIES_WITHIN) {
                return Err(ControlError::Busy(format!(
                    "the MPS daemon of `{}` does not die; does it wait for the driver?",
                    folder.display()
                )));
            }
        }
    }
    remove(folder)
}

/// Removes a folder that [`new_folder`] made, and nothing else.
pub(super) fn remove(folder: &Path) -> Result<(), ControlError> {
    let ours = folder.file_name().is_some_and(|name| name.as_bytes().starts_with(PREFIX.as_bytes()));
    if !ours {
        return Err(ControlError::Refused(format!(
            "`{}` is no folder of an MPS daemon of gpumon",
            folder.display()
        )));
    }
    match fs::remove_dir_all(folder) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            Err(ControlError::Failed(format!("`{}` cannot be removed: {e}", folder.display())))
        }
        _ => Ok(()),
    }
}

fn gone(folder: &Path, within: Duration) -> bool {
    let until = Instant::now() + within;
    loop {
        if marked(folder).is_empty() {
            return true;
        }
        if Instant::now() > until {
            return false;
        }
        thread::sleep(LOOK);
    }
}

fn kill_all(folder: &Path) {
    for pid in marked(folder) {
        // SAFETY: takes plain integers.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }
}

/// The processes that carry a folder as their mark.
fn marked(folder: &Path) -> Vec<i32> {
    let mark = [MARK.as_bytes(), b"=", folder.as_os_str().as_bytes()].concat();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let carries = |pid: &i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|&byte| byte == 0).any(|variable| variable == mark)
    };
    pids.filter(carries).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_folders_of_daemons_are_removed() {
        let scratch = tempfile::tempdir().unwrap();
        assert!(matches!(remove(scratch.path()), Err(ControlError::Refused(_))));
        assert!(scratch.path().exists());
        let folder = new_folder().unwrap();
        assert!(folder.as_os_str().len() + LONGEST.len() <= SOCKET_MAX);
        remove(&folder).unwrap();
        assert!(!folder.exists());
        remove(&folder).unwrap();
    }
}
