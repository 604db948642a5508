//! A process that outlives ours and puts back what we could not.
//!
//! ```text
//! gpumon ── write end of a pipe, held by nobody else ──▶ janitor (gpumon again, in a session of its own)
//!    ✗ killed                                              end of file: restores what the journal says, and ends
//! ```
//!
//! Rule: the janitor waits for the end of its standard input, which comes when the process that started it is gone, however
//! that went. Then it takes the GPU's lock, and puts back what the journal of that process lists. It ignores SIGINT,
//! SIGTERM, SIGHUP and SIGQUIT, because it ends by itself, and keeps neither terminal nor output open.
//! Cases: nothing left to do: it ends at once. Somebody else restored or took the GPU meanwhile: it ends too. What it did is
//! in `UUID.janitor` beside the journal, and what it could not do stays in the journal for the next start.
//! Not done here: surviving a kill of its own; the next start does its work then.
#![allow(unsafe_code)]

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, PipeWriter, Read as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::Control;
use super::journal::{self, JournalError, Kept};
use super::restore::{self, Restored};

/// How long the process before may take to let the lock go.
const LOCK_WITHIN: Duration = Duration::from_secs(30);
/// How long our own end waits for the janitor's.
const ENDS_WITHIN: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(20);

/// How a janitor is started: the program and what stands before the journal's path.
#[derive(Clone, Debug)]
pub struct Call {
    /// The program.
    pub program: OsString,
    /// Arguments before the journal's path.
    pub arguments: Vec<OsString>,
}

/// A janitor that waits.
#[derive(Debug)]
pub struct Janitor {
    child: Child,
    pipe: Option<PipeWriter>,
}

impl Janitor {
    /// Starts one for a journal.
    pub fn start(call: &Call, journal: &Path) -> io::Result<Self> {
        // Neither end is inherited, but for the one that becomes standard input.
        let (read, pipe) = io::pipe()?;
        let mut command = Command::new(&call.program);
        command.args(&call.arguments).arg(journal);
        command.stdin(read).stdout(Stdio::null()).stderr(Stdio::null());
        // SAFETY: between fork and exec only signals' actions are set, a session is begun and descriptors are marked, all by
        // calls that are safe there.
        unsafe {
            command.pre_exec(|| {
                for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT] {
                    libc::signal(signal, libc::SIG_IGN);
                }
                libc::setsid();
                // What our caller left open for us is not for the janitor. Kernels before 5.11 refuse, and it stays open.
                libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC);
                Ok(())
            });
        }
        Ok(Self { child: command.spawn()?, pipe: Some(pipe) })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it still waits.
    pub fn waits(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Janitor {
    fn drop(&mut self) {
        self.pipe = None;
        let until = Instant::now() + ENDS_WITHIN;
        while self.waits() && Instant::now() < until {
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// The janitor's whole life: waits for the end of standard input, then restores. `find` gives the GPU of a UUID.
pub fn live(
    path: &Path,
    find: impl Fn(&str) -> Result<std::sync::Arc<dyn Control>, String>,
) -> Result<(), JournalError> {
    let mut nothing = [0; 64];
    let mut input = io::stdin().lock();
    while let Ok(1..) | Err(_) = input.read(&mut nothing).or_else(again) {}
    let Some(first) = journal::load(path)? else { return Ok(()) };
    let folder = path.parent().unwrap_or(Path::new("."));
    let until = Instant::now() + LOCK_WITHIN;
    let kept = loop {
        match Kept::lock(folder, &first.uuid, &first.name) {
            Err(JournalError::Held { .. }) if Instant::now() < until => thread::sleep(LOOK),
            kept => break kept?,
        }
    };
    let Some(mut left) = kept.left()?.filter(|now| now.owner == first.owner) else { return Ok(()) };
    let restored = match find(&left.uuid) {
        Ok(control) => restore::put_back(control.as_ref(), &left.found, &mut left.changed, restore::PATIENCE),
        Err(why) => return tell(path, &format!("nothing was put back: {why}\n")),
    };
    kept.keep(&left)?;
    tell(path, &text(&restored))
}

/// An interrupted read is tried again; one that fails is taken for the end.
fn again(e: io::Error) -> Result<usize, io::Error> {
    if e.kind() == io::ErrorKind::Interrupted { Err(e) } else { Ok(0) }
}

fn text(restored: &Restored) -> String {
    let done = restored.done.iter().map(|command| format!("put back: {command}\n"));
    let failed = restored.failed.iter().map(|(command, e)| format!("not put back: {command}: {e}\n"));
    done.chain(failed).collect()
}

/// Writes down what was done, where somebody may look for it.
fn tell(path: &Path, text: &str) -> Result<(), JournalError> {
    let file = path.with_extension("janitor");
    let written = File::create(&file).and_then(|_| fs::write(&file, text));
    written.map_err(|error| JournalError::NotKept { path: file, error })
}
