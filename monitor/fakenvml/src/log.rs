//! The log of changes: what processes that use the same GPUs share.
//!
//! Rule: a simulated GPU is a function of time and of the changes made so far, so sharing time zero
//! and the changes, in order, shares the GPU: its energy counter, clocks, limits and instances. The
//! log is a text file of one JSON object a line, the first of which is the header. Whoever changes
//! something takes the file's lock, reads what others wrote, decides, and appends one line; everybody
//! else sees that the file has grown.
//! Cases: a process that dies gives up its lock with its files, and leaves at most a line without an
//! end, which readers do not see and the next writer cuts off. Without a file, the log is in memory.
//! Why not a mapped struct: a log cannot be left half-changed, needs no recovery, and can be read.
//! Not done here: steps of the wall clock (stamps keep the offset at time zero); network file systems.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use gpumon_core::units::{MonoUs, US_PER_S, WallUs};
use serde::{Deserialize, Serialize};

use crate::script::ScriptError;

/// The first line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Header {
    /// Of the log's format.
    pub(crate) fakenvml: u32,
    /// Monotonic time of time zero, µs.
    pub(crate) zero_mono_us: i64,
    /// Wall-clock time of time zero, µs.
    pub(crate) zero_wall_us: i64,
    /// Fingerprint of the GPUs and of the library's functions.
    pub(crate) gpus: String,
}

impl Header {
    pub(crate) fn new(mono: MonoUs, wall: WallUs, gpus: String) -> Self {
        Self { fakenvml: 1, zero_mono_us: mono.0, zero_wall_us: wall.0, gpus }
    }
}

/// One change of one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    /// Time since time zero, µs.
    pub(crate) at_us: i64,
    pub(crate) gpu: u32,
    pub(crate) change: Change,
}

/// What changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Change {
    LockClocks { min_mhz: u32, max_mhz: u32 },
    UnlockClocks,
    PowerLimit { limit_mw: u32 },
    Persistence { on: bool },
    Mig { on: bool },
    CreateGpuInstance { id: u32, slices: u8, start: u8 },
    DestroyGpuInstance { id: u32 },
    CreateComputeInstance { gpu_instance: u32, id: u32, slices: u8, start: u8 },
    DestroyComputeInstance { gpu_instance: u32, id: u32 },
    CounterReset { fault: usize },
    Lost,
}

/// Where the changes are kept.
#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) header: Header,
    file: Option<Reader>,
}

#[derive(Debug)]
struct Reader {
    path: PathBuf,
    file: File,
    /// How much was read: whole lines only.
    read: u64,
}

/// The file under its lock, until dropped. Opened anew each time, so that a process and its fork do
/// not share a lock.
struct Locked(File);

impl Locked {
    fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        loop {
            // SAFETY: the descriptor is open for as long as `file` lives.
            if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } == 0 {
                return Ok(Self(file));
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }

    /// Appends a line after the whole lines, over what a dead process left.
    fn append(&mut self, whole: u64, line: &impl Serialize) -> io::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        self.0.set_len(whole)?;
        self.0.seek(SeekFrom::Start(whole))?;
        self.0.write_all(&text)
    }
}

/// The whole lines from `from` on, and where they end.
fn whole_lines(file: &mut File, from: u64) -> io::Result<(Vec<u8>, u64)> {
    let mut text = Vec::new();
    file.seek(SeekFrom::Start(from))?;
    file.read_to_end(&mut text)?;
    text.truncate(text.iter().rposition(|&b| b == b'\n').map_or(0, |last| last + 1));
    let end = from + text.len() as u64;
    Ok((text, end))
}

/// Processes that start together look at the clock within this, µs.
const TOGETHER_US: i64 = 60 * US_PER_S;

impl Log {
    /// A log that this process keeps for itself.
    pub(crate) fn in_memory(header: Header) -> Self {
        Self { header, file: None }
    }

    /// The log in a file, which `fresh` begins if there is none. Fails on another's log.
    pub(crate) fn open(path: &Path, fresh: Header) -> Result<Self, ScriptError> {
        let error = |message: String| ScriptError::State { file: path.display().to_string(), message };
        let io = |e: io::Error| error(e.to_string());
        let mut locked = Locked::open(path).map_err(io)?;
        let (text, _) = whole_lines(&mut locked.0, 0).map_err(io)?;
        let Some(first) = text.split_inclusive(|&b| b == b'\n').next() else {
            let garbage = locked.0.metadata().map_err(io)?.len() > 0;
            if garbage && !is_cut_header(&mut locked.0).map_err(io)? {
                return Err(error("this is no state of a fake library; name another file".into()));
            }
            locked.append(0, &fresh).map_err(io)?;
            drop(locked);
            return Self::open(path, fresh);
        };
        let found: Header = serde_json::from_slice(first)
            .map_err(|_| error("this is no state of a fake library; name another file".into()))?;
        // Of processes that start together one may have looked at the clock before another began the state.
        if found.zero_mono_us.saturating_sub(fresh.zero_mono_us) > TOGETHER_US {
            return Err(error("it is from before this machine's last start; delete it".into()));
        }
        if (found.fakenvml, &found.gpus) != (fresh.fakenvml, &fresh.gpus) {
            return Err(error("it belongs to other GPUs or another version; delete it".into()));
        }
        let reader =
            Reader { path: path.to_owned(), file: File::open(path).map_err(io)?, read: first.len() as u64 };
        Ok(Self { header: found, file: Some(reader) })
    }

    /// Records that others appended since the last call.
    pub(crate) fn news(&mut self) -> io::Result<Vec<Record>> {
        let Some(reader) = &mut self.file else { return Ok(Vec::new()) };
        if reader.file.metadata()?.len() == reader.read {
            return Ok(Vec::new());
        }
        let (text, end) = whole_lines(&mut reader.file, reader.read)?;
        reader.read = end;
        let lines = text.split(|&b| b == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_slice(line).map_err(io::Error::from)).collect()
    }

    /// Under the lock: lets `decide` see what others appended, and appends what it decides.
    pub(crate) fn append<T, E: From<io::Error>>(
        &mut self,
        decide: impl FnOnce(Vec<Record>) -> Result<(Record, T), E>,
    ) -> Result<(Record, T), E> {
        let Some(path) = self.file.as_ref().map(|reader| reader.path.clone()) else {
            return decide(Vec::new());
        };
        let mut locked = Locked::open(&path)?;
        let decided = decide(self.news()?)?;
        if let Some(reader) = &mut self.file {
            locked.append(reader.read, &decided.0)?;
            reader.read = locked.0.stream_position()?;
        }
        Ok(decided)
    }
}

/// Whether a file without a whole line is what a process left that died while it began a log.
fn is_cut_header(file: &mut File) -> io::Result<bool> {
    let mut text = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_end(&mut text)?;
    Ok(text.starts_with(b"{\"fakenvml\"") || b"{\"fakenvml\"".starts_with(&text))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a panic is a test's report")]
mod tests {
    use super::*;

    fn header() -> Header {
        Header::new(MonoUs(5), WallUs(7), "x".into())
    }

    fn lost(at_us: i64) -> Record {
        Record { at_us, gpu: 0, change: Change::Lost }
    }

    fn put(log: &mut Log, at_us: i64) -> Vec<Record> {
        let (_, seen) = log.append(|news| Ok::<_, io::Error>((lost(at_us), news))).unwrap();
        seen
    }

    #[test]
    fn each_sees_what_the_other_appended_once_and_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let mut one = Log::open(&path, header()).unwrap();
        let mut two = Log::open(&path, Header::new(MonoUs(99), WallUs(1), "x".into())).unwrap();
        assert_eq!(two.header, header(), "the first one's time zero");
        assert_eq!(put(&mut one, 1), []);
        assert_eq!(put(&mut two, 2), [lost(1)]);
        assert_eq!(one.news().unwrap(), [lost(2)], "not its own");
        assert_eq!(one.news().unwrap(), []);
        assert_eq!(Log::open(&path, header()).unwrap().news().unwrap(), [lost(1), lost(2)]);
    }

    #[test]
    fn what_a_dead_process_left_half_written_is_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        std::fs::write(&path, "{\"fakenv").unwrap();
        let mut log = Log::open(&path, header()).unwrap();
        put(&mut log, 1);
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"at_us\":9,\"gp").unwrap();
        assert_eq!(log.news().unwrap(), []);
        assert_eq!(put(&mut log, 2), []);
        assert_eq!(Log::open(&path, header()).unwrap().news().unwrap(), [lost(1), lost(2)]);
    }

    #[test]
    fn another_state_and_another_file_are_refused_untouched() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        std::fs::write(&path, "years of work").unwrap();
        assert!(Log::open(&path, header()).unwrap_err().to_string().contains("no state"));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "years of work");
        std::fs::remove_file(&path).unwrap();
        Log::open(&path, header()).unwrap();
        let other = Log::open(&path, Header::new(MonoUs(5), WallUs(7), "y".into()));
        assert!(other.unwrap_err().to_string().contains("other GPUs"));
        let beside = Header::new(MonoUs(4), WallUs(7), "x".into());
        assert!(Log::open(&path, beside).is_ok(), "it started together with who began the state");
        let earlier = Log::open(&path, Header::new(MonoUs(-TOGETHER_US), WallUs(7), "x".into()));
        assert!(earlier.unwrap_err().to_string().contains("last start"));
    }
}
