//! The rows of a sweep in progress, in a file beside its output.
//!
//! Rule: JSON lines: first what is swept, then each row when it is made, forced to the disk. On opening, a last line
//! that was cut off is dropped; everything before it is taken up again, if it is of the same sweep.
//! Cases: a file without a whole first line begins anew; another sweep's file, or a broken line in the middle, is an
//! error that names file and line.
//! Whoever writes it holds a lock on it, which goes with the process; a second sweep is refused.
//! Not done here: locking on file systems without `flock`; whether the rows are those of the plan, which the sweep checks.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use gpumon_core::profile::ProfileRow;
use gpumon_core::units::Megahertz;
use serde::{Deserialize, Serialize};

use crate::protocol::Protocol;
use crate::space::Point;

/// What is swept. A journal belongs to one of these.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Heading {
    pub(crate) gpumon: String,
    pub(crate) gpu_uuid: String,
    pub(crate) protocol: Protocol,
    pub(crate) idle: Vec<Megahertz>,
    pub(crate) models: Vec<(String, Vec<Point>)>,
}

/// A row and when it was done, µs since the sweep's beginning.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) at_us: i64,
    pub(crate) row: ProfileRow,
}

/// Why a journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file system says no.
    #[error("cannot {doing} `{}`: {cause}", path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// The journal.
        path: PathBuf,
        /// Why not.
        cause: io::Error,
    },
    /// Another process sweeps into it right now.
    #[error("`{}` is being written by another sweep; wait for it, or name another output", .0.display())]
    Busy(PathBuf),
    /// It was begun by another sweep.
    #[error(
        "`{}` belongs to another sweep: its {what}; give the arguments of that sweep to finish it, another output, or \
         remove the file", path.display()
    )]
    Other {
        /// The journal.
        path: PathBuf,
        /// In what it differs.
        what: String,
    },
    /// A line is broken.
    #[error("`{}`, line {line}: {what}; remove this line and those after it to measure them again", path.display())]
    Broken {
        /// The journal.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// How.
        what: String,
    },
}

/// An open journal.
pub(crate) struct Journal {
    file: File,
    path: PathBuf,
}

/// The journal of an output.
pub fn path_of(output: &Path) -> PathBuf {
    let mut name = output.as_os_str().to_owned();
    name.push(".journal");
    PathBuf::from(name)
}

impl Journal {
    /// Opens or begins a journal; gives the entries that it already has.
    pub(crate) fn open(path: PathBuf, heading: &Heading) -> Result<(Self, Vec<Entry>), JournalError> {
        let fail = |doing| {
            let path = path.clone();
            move |cause| JournalError::Io { doing, path, cause }
        };
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let mut file = options.open(&path).map_err(fail("open"))?;
        if !try_lock(&file).map_err(fail("lock"))? {
            return Err(JournalError::Busy(path));
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(fail("read"))?;
        bytes.truncate(bytes.iter().rposition(|b| *b == b'\n').map_or(0, |end| end + 1));
        let entries = entries(&bytes, heading, &path)?;
        file.set_len(bytes.len() as u64).map_err(fail("shorten"))?;
        file.seek(SeekFrom::End(0)).map_err(fail("read"))?;
        let mut journal = Self { file, path };
        if bytes.is_empty() {
            journal.append(heading)?;
        }
        Ok((journal, entries))
    }

    /// Adds a line and waits until the disk has it.
    pub(crate) fn append(&mut self, line: &impl Serialize) -> Result<(), JournalError> {
        let written = serde_json::to_vec(line).map_err(io::Error::other).and_then(|mut text| {
            text.push(b'\n');
            self.file.write_all(&text)?;
            self.file.sync_data()
        });
        written.map_err(|cause| JournalError::Io { doing: "write", path: self.path.clone(), cause })
    }

    /// Removes the journal.
    pub(crate) fn remove(self) -> Result<(), JournalError> {
        std::fs::remove_file(&self.path).map_err(|cause| JournalError::Io {
            doing: "remove",
            path: self.path.clone(),
            cause,
        })
    }
}

/// Tries to lock a file without waiting; false if somebody else holds it.
#[allow(unsafe_code)]
fn try_lock(file: &File) -> io::Result<bool> {
    loop {
        // SAFETY: the descriptor is open as long as `file` is borrowed; flock touches no memory.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
            return Ok(true);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::EWOULDBLOCK) => return Ok(false),
            Some(libc::EOPNOTSUPP) => return Ok(true),
            _ => return Err(error),
        }
    }
}

fn entries(bytes: &[u8], heading: &Heading, path: &Path) -> Result<Vec<Entry>, JournalError> {
    let broken = |line: usize, what: String| JournalError::Broken { path: path.into(), line, what };
    let mut lines = bytes.split_inclusive(|b| *b == b'\n').enumerate();
    let Some((_, first)) = lines.next() else { return Ok(Vec::new()) };
    let found: Heading =
        serde_json::from_slice(first).map_err(|e| broken(1, format!("not the heading of a sweep ({e})")))?;
    if let Some(what) = difference(&found, heading) {
        return Err(JournalError::Other { path: path.into(), what });
    }
    let mut entries = Vec::new();
    for (i, line) in lines {
        entries.push(serde_json::from_slice(line).map_err(|e| broken(i + 1, format!("not a row ({e})")))?);
    }
    Ok(entries)
}

fn difference(found: &Heading, wanted: &Heading) -> Option<String> {
    if found.gpumon != wanted.gpumon {
        return Some(format!("gpumon is {}, this is {}", found.gpumon, wanted.gpumon));
    }
    if found.gpu_uuid != wanted.gpu_uuid {
        return Some(format!("GPU is {}, this is {}", found.gpu_uuid, wanted.gpu_uuid));
    }
    let names = |heading: &Heading| {
        heading.models.iter().map(|(model, _)| format!("`{model}`")).collect::<Vec<_>>().join(", ")
    };
    let (theirs, ours) = (names(found), names(wanted));
    if theirs != ours {
        return Some(format!("models are {theirs}, here they are {ours}"));
    }
    if found.protocol != wanted.protocol {
        return Some("times of measuring are others".into());
    }
    if found.models != wanted.models || found.idle != wanted.idle {
        return Some(
            "points are others (space, design, seed, or the prior profiles of a design that rests on some)"
                .into(),
        );
    }
    None
}
