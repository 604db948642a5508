//! What was found on a GPU and what of it was changed, on disk before it is.
//!
//! Rule: `STATE/gpumon/control/UUID.json`, STATE as for characterisations; one file a GPU, written in one piece and synced
//! with its folder before each act, removed when all is as it was found. Whoever controls or restores a GPU holds the lock
//! of `UUID.lock` beside it, which the kernel takes from a process that dies.
//! Cases: the owner is named by process id, start time and boot, so that a number that another process has got since is not
//! taken for it; where locks do not work (some network file systems) that alone decides.
//! Not done here: restoring ([`super::restore`]); two machines that share a STATE.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use gpumon_core::units::Milliwatts;
use serde::{Deserialize, Serialize};

use super::Instance;
use crate::characterize::saved;
use crate::device::Identity;

/// Version of the file.
const SCHEMA: u32 = 1;

/// Found and changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Journal {
    /// Version of this file.
    pub schema: u32,
    /// The GPU.
    pub uuid: String,
    /// Its number when it was changed.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Who changed it.
    pub owner: Owner,
    /// What was set before.
    pub found: Found,
    /// What was changed and has to be put back.
    pub changed: Changed,
}

/// What was set before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Found {
    /// Power limit, mW.
    pub power_limit_mw: Option<Milliwatts>,
    /// Whether MIG was on.
    pub mig: Option<bool>,
    /// GPU instances of others.
    pub instances: Vec<Instance>,
}

/// What has to be put back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Changed {
    /// Clocks were locked.
    pub clocks: bool,
    /// The power limit was set.
    pub power_limit: bool,
    /// MIG was turned on or off.
    pub mig: bool,
    /// Instances that were made, or were about to be.
    pub instances: Vec<Made>,
    /// Folder of the MPS daemon.
    pub mps: Option<PathBuf>,
}

/// An instance of ours.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Made {
    /// Compute slices.
    pub slices: u8,
    /// First memory slot.
    pub start: u8,
    /// What the driver made; `None` if it may not have been made.
    pub instance: Option<Instance>,
}

impl Changed {
    /// Whether all is as it was found.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// A process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Owner {
    /// Process id.
    pub pid: u32,
    /// Ticks from boot to its start.
    pub started_ticks: Option<u64>,
    /// The kernel's random id of that boot.
    pub boot: String,
}

impl Owner {
    /// This process.
    pub fn me() -> Self {
        let pid = std::process::id();
        Self { pid, started_ticks: started_ticks(pid), boot: boot() }
    }

    /// Whether it still runs.
    pub fn lives(&self) -> bool {
        self.boot == boot() && self.started_ticks.is_some() && started_ticks(self.pid) == self.started_ticks
    }
}

fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// Field 22 of `/proc/PID/stat`; the name before it may hold anything but its last `)`. A dead process that nobody has
/// waited for has ended.
fn started_ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    if fields.next() == Some("Z") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// Why a journal cannot be kept or read.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// It cannot be written, so nothing may be changed.
    #[error("what is found on the GPU cannot be kept in `{}`: {error}; nothing is changed without that", path.display())]
    NotKept {
        /// Where.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// There is no folder to keep it in.
    #[error(
        "neither XDG_STATE_HOME nor HOME names a folder to keep in what is found; nothing is changed without that"
    )]
    NoFolder,
    /// Somebody else controls the GPU.
    #[error("{name} ({uuid}) is controlled by gpumon, process {pid}; wait for its end")]
    Held {
        /// The GPU's name.
        name: String,
        /// Its UUID.
        uuid: String,
        /// The other process, if it is known.
        pid: String,
    },
    /// It is there and is no journal.
    #[error(
        "`{}` says what a gpumon that died has changed, and cannot be read: {message}; see to the GPU's clocks, power \
         limit and MIG with nvidia-smi, then delete the file",
        path.display()
    )]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        message: String,
    },
}

/// The folder, from the values of XDG_STATE_HOME and HOME.
pub fn folder(xdg_state_home: Option<OsString>, home: Option<OsString>) -> Result<PathBuf, JournalError> {
    let sensors = saved::folder(xdg_state_home, home).ok_or(JournalError::NoFolder)?;
    Ok(sensors.with_file_name("control"))
}

/// The file of a GPU.
pub fn path(folder: &Path, uuid: &str) -> PathBuf {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    folder.join(uuid.chars().map(plain).collect::<String>() + ".json")
}

/// A GPU's journal under its lock.
#[derive(Debug)]
pub struct Kept {
    path: PathBuf,
    /// Held for as long as this is.
    _lock: File,
}

impl Kept {
    /// Takes the lock of a GPU, unless somebody else holds it.
    pub fn lock(folder: &Path, uuid: &str, name: &str) -> Result<Self, JournalError> {
        let path = path(folder, uuid);
        let not_kept = |error| JournalError::NotKept { path: path.clone(), error };
        fs::create_dir_all(folder).map_err(not_kept)?;
        let lock = OpenOptions::new().create(true).append(true).open(path.with_extension("lock"));
        let lock = lock.map_err(not_kept)?;
        let known = load(&path)?;
        let alive = known.as_ref().filter(|journal| journal.owner.lives() && journal.owner != Owner::me());
        if !try_lock(&lock).map_err(not_kept)? || alive.is_some() {
            let pid = known.map_or_else(|| "unknown".into(), |journal| journal.owner.pid.to_string());
            return Err(JournalError::Held { name: name.into(), uuid: uuid.into(), pid });
        }
        Ok(Self { path, _lock: lock })
    }

    /// What a process before left, if anything.
    pub fn left(&self) -> Result<Option<Journal>, JournalError> {
        load(&self.path)
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes it down, or removes it if nothing is changed any more. Returns once it is on disk.
    pub fn keep(&self, journal: &Journal) -> Result<(), JournalError> {
        let kept = match journal.changed.is_nothing() {
            true => fs::remove_file(&self.path).or_else(|e| match e.kind() {
                io::ErrorKind::NotFound => Ok(()),
                _ => Err(e),
            }),
            false => write(&self.path, journal),
        };
        kept.map_err(|error| JournalError::NotKept { path: self.path.clone(), error })
    }

    /// Whether the file can be written, tried before anything is changed.
    pub fn try_out(&self, journal: &Journal) -> Result<(), JournalError> {
        let tried = self.path.with_extension("try");
        let written = write(&tried, journal);
        let _ = fs::remove_file(&tried);
        written.map_err(|error| JournalError::NotKept { path: self.path.clone(), error })
    }
}

fn write(path: &Path, journal: &Journal) -> io::Result<()> {
    saved::write(path, &(serde_json::to_string_pretty(journal)? + "\n"))?;
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

impl Journal {
    /// A journal of this process in which nothing is changed yet.
    pub fn begin(gpu: &Identity, found: Found) -> Self {
        Self {
            schema: SCHEMA,
            uuid: gpu.uuid.clone(),
            index: gpu.index,
            name: gpu.name.clone(),
            owner: Owner::me(),
            found,
            changed: Changed::default(),
        }
    }
}

/// The journal in a file, if there is one.
pub fn load(path: &Path) -> Result<Option<Journal>, JournalError> {
    let unreadable = |message: String| JournalError::Unreadable { path: path.into(), message };
    let text = match fs::read_to_string(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text.map_err(|e| unreadable(e.to_string()))?,
    };
    let journal: Journal = serde_json::from_str(&text).map_err(|e| unreadable(e.to_string()))?;
    match journal.schema {
        SCHEMA => Ok(Some(journal)),
        other => Err(unreadable(format!("its schema is {other}, and this gpumon knows {SCHEMA}"))),
    }
}

/// The files of all GPUs in a folder, by name.
pub fn all(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<_> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == "json"))
        .collect();
    files.sort();
    files
}

/// Whether nobody holds a GPU's lock and its owner is dead.
pub fn is_left(path: &Path, journal: &Journal) -> bool {
    let free = match File::open(path.with_extension("lock")) {
        Ok(lock) => try_lock(&lock).unwrap_or(true),
        Err(_) => true,
    };
    free && !journal.owner.lives()
}

/// Takes a file's lock without waiting; false if somebody else holds it.
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
            // The owner's id and start time decide.
            Some(libc::ENOLCK | libc::ENOSYS | libc::ENOTSUP) => return Ok(true),
            _ => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn journal() -> Journal {
        Journal {
            schema: SCHEMA,
            uuid: "GPU-1".into(),
            index: 0,
            name: "Test".into(),
            owner: Owner::me(),
            found: Found { power_limit_mw: Some(Milliwatts(700_000)), mig: Some(false), instances: vec![] },
            changed: Changed { clocks: true, ..Changed::default() },
        }
    }

    #[test]
    fn a_journal_is_there_until_nothing_is_changed() {
        let folder = tempfile::tempdir().unwrap();
        let kept = Kept::lock(folder.path(), "GPU-1", "Test").unwrap();
        let mut written = journal();
        kept.keep(&written).unwrap();
        assert_eq!(kept.left().unwrap(), Some(written.clone()));
        assert_eq!(all(folder.path()), [kept.path()]);
        written.changed.clocks = false;
        kept.keep(&written).unwrap();
        assert_eq!(kept.left().unwrap(), None);
        kept.keep(&written).unwrap();
    }

    #[test]
    fn one_process_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let kept = Kept::lock(folder.path(), "GPU-1", "Test").unwrap();
        kept.keep(&journal()).unwrap();
        let second = Kept::lock(folder.path(), "GPU-1", "Test").unwrap_err().to_string();
        assert!(second.contains(&std::process::id().to_string()), "{second}");
        assert!(!is_left(kept.path(), &journal()));
        Kept::lock(folder.path(), "GPU-2", "Test").unwrap();
    }

    #[test]
    fn a_number_that_another_process_has_got_is_not_the_owner() {
        let me = Owner::me();
        assert!(me.lives());
        assert!(!Owner { started_ticks: me.started_ticks.map(|t| t - 1), ..me.clone() }.lives());
        assert!(!Owner { boot: "earlier".into(), ..me.clone() }.lives());
        assert!(!Owner { started_ticks: None, ..me }.lives());
    }

    #[test]
    fn a_spoiled_file_is_said_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let file = path(folder.path(), "GPU-1");
        for text in ["", "{", "{\"schema\": 1}", "null"] {
            fs::write(&file, text).unwrap();
            let error = load(&file).unwrap_err().to_string();
            assert!(error.contains("GPU-1.json") && error.contains("delete the file"), "{error}");
            assert!(Kept::lock(folder.path(), "GPU-1", "Test").is_err(), "{text}");
            assert!(file.exists());
        }
    }
}
