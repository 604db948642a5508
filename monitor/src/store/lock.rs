//! Who may change a recording: the holder of an advisory lock on `recording.lock`.
//!
//! Rule: whoever writes or recovers a recording holds the lock exclusively for as long; the file
//! holds the process id for messages. Readers take it for a moment, shared, to learn whether
//! anybody writes. The lock goes with its process, so a file that is left over means nothing.
//!
//! Not done here: locking on file systems without `flock`; there the recording is taken to be free.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::error::StoreError;
use super::layout::LOCK;
use super::sys::try_lock;

/// A reader holds the lock for microseconds; a writer for as long as it writes.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(5);

/// The right to change a recording, until dropped.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock of the recording in `dir`, or says who has it.
    pub(super) fn take(dir: &Path) -> Result<Self, StoreError> {
        let path = dir.join(LOCK);
        let failed = |e| StoreError::io(&path, "lock", e);
        for _ in 0..TRIES {
            let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).clone();
            let mut file = options.open(&path).map_err(failed)?;
            let locked = match try_lock(&file, true) {
                Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => true,
                other => other.map_err(failed)?,
            };
            // Whoever had it may have removed the file since it was opened here.
            if locked && same_file(&file, &path) {
                // The pid serves messages only: on a full disk the lock holds without it.
                let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
                return Ok(Self { _file: file });
            }
            std::thread::sleep(PAUSE);
        }
        Err(StoreError::Busy { path: dir.to_owned(), pid: pid_in(&path) })
    }
}

/// Whether anybody is writing or recovering the recording in `dir` right now.
pub(super) fn is_held(dir: &Path) -> Result<bool, StoreError> {
    let path: PathBuf = dir.join(LOCK);
    match File::open(&path) {
        Ok(file) => match try_lock(&file, false) {
            Ok(free) => Ok(!free),
            Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(false),
            Err(e) => Err(StoreError::io(&path, "lock", e)),
        },
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(StoreError::io(&path, "open", e)),
    }
}

fn same_file(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::metadata(path)) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}

fn pid_in(path: &Path) -> Option<u32> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}
