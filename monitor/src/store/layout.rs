//! Names of a recording's files, and which of them count.
//!
//! Rule: rows move from `journal/N` to `segments/N` to a part, and each step removes its source
//! only after its result is safe. So of two places that hold the same rows the earlier one counts
//! between journal and segment (the segment may be half written), and the later one between segment
//! and part (a part gets its name only when it is whole, and says which numbers it covers).
//!
//! Not done here: looking into files. What a part covers is asked of its footer, in
//! [`table`](super::table).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use gpumon_core::header::Header;

use super::error::StoreError;
use super::lane::{Lane, PerLane};

pub(super) const HEADER: &str = "recording.json";
pub(super) const LOCK: &str = "recording.lock";
pub(super) const RESERVE: &str = "reserve";
pub(super) const JOURNAL: &str = "journal";
pub(super) const SEGMENTS: &str = "segments";
const TEMP: &str = ".tmp";
const DAMAGED: &str = ".damaged";

pub(super) fn journal_path(dir: &Path, number: u32) -> PathBuf {
    dir.join(JOURNAL).join(format!("{number:08}.log"))
}

pub(super) fn segment_path(dir: &Path, number: u32, lane: Lane) -> PathBuf {
    dir.join(SEGMENTS).join(format!("{number:08}.{}.parquet", lane.name()))
}

/// Part 0 is `fast.parquet`, part 1 `fast.0001.parquet`.
pub(super) fn part_path(dir: &Path, lane: Lane, part: u32) -> PathBuf {
    let name = lane.name();
    dir.join(if part == 0 { format!("{name}.parquet") } else { format!("{name}.{part:04}.parquet") })
}

/// Where a file is written before it gets its name.
pub(super) fn temp_of(path: &Path) -> PathBuf {
    with_suffix(path, TEMP)
}

/// Where a damaged file is set aside: in the recording's folder, whichever folder it was in.
pub(super) fn damaged_of(dir: &Path, path: &Path) -> PathBuf {
    with_suffix(&dir.join(path.file_name().unwrap_or_default()), DAMAGED)
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    PathBuf::from(name)
}

/// The files of a recording, by number.
#[derive(Debug, Default)]
pub(super) struct Layout {
    pub(super) journals: BTreeMap<u32, PathBuf>,
    pub(super) segments: PerLane<BTreeMap<u32, PathBuf>>,
    pub(super) parts: PerLane<BTreeMap<u32, PathBuf>>,
    /// The first part number that no file has, not even a damaged one.
    pub(super) next_part: PerLane<u32>,
    /// Files whose writing was cut off, and files that were set aside.
    pub(super) temps: Vec<PathBuf>,
    pub(super) damaged: Vec<PathBuf>,
    pub(super) has_header: bool,
    pub(super) has_lock: bool,
    pub(super) has_reserve: bool,
    pub(super) has_folders: bool,
}

impl Layout {
    /// Lists a recording. Journals come first and parts last, the way rows move: what moves on
    /// meanwhile is listed twice, and the rule above counts it once, or vanishes before it is
    /// opened.
    pub(super) fn scan(dir: &Path) -> Result<Self, StoreError> {
        let mut layout = Self::default();
        for path in list(&dir.join(JOURNAL))?.into_iter().flatten() {
            layout.has_folders = true;
            if let Some(number) = name_of(&path).strip_suffix(".log").and_then(number) {
                layout.journals.insert(number, path);
            }
        }
        for path in list(&dir.join(SEGMENTS))?.into_iter().flatten() {
            layout.has_folders = true;
            if let Some((lane, number)) = segment_of(name_of(&path)) {
                layout.segments[lane].insert(number, path);
            }
        }
        let Some(files) = list(dir)? else {
            return Err(StoreError::io(dir, "open", io::Error::from(io::ErrorKind::NotFound)));
        };
        files.into_iter().for_each(|path| layout.take(path));
        Ok(layout)
    }

    fn take(&mut self, path: PathBuf) {
        let name = name_of(&path);
        match name {
            HEADER => self.has_header = true,
            LOCK => self.has_lock = true,
            RESERVE => self.has_reserve = true,
            JOURNAL | SEGMENTS => self.has_folders = true,
            _ => {
                if let Some(whole) = name.strip_suffix(TEMP) {
                    if whole == HEADER || part_of(whole).is_some() {
                        self.temps.push(path);
                    }
                } else if let Some(whole) = name.strip_suffix(DAMAGED) {
                    if let Some((lane, part)) = part_of(whole) {
                        self.next_part[lane] = self.next_part[lane].max(part.saturating_add(1));
                    } else if whole != HEADER && segment_of(whole).is_none() {
                        return;
                    }
                    self.damaged.push(path);
                } else if let Some((lane, part)) = part_of(name) {
                    self.next_part[lane] = self.next_part[lane].max(part.saturating_add(1));
                    self.parts[lane].insert(part, path);
                }
            }
        }
    }

    /// True if gpumon wrote this folder.
    pub(super) fn is_recording(&self) -> bool {
        self.has_header || self.has_lock || self.has_folders && !self.journals.is_empty()
    }

    /// True if nothing but the files of a closed recording with this header is here.
    pub(super) fn is_whole(&self, header: &Header) -> bool {
        self.has_header
            && !(self.has_lock || self.has_reserve || self.has_folders)
            && self.temps.is_empty()
            && Lane::ALL.into_iter().all(|lane| self.parts[lane].contains_key(&0) || !lane.is_due(header))
    }
}

/// The paths in a folder, in order; nothing if there is no such folder.
pub(super) fn list(dir: &Path) -> Result<Option<Vec<PathBuf>>, StoreError> {
    let listed = fs::read_dir(dir).and_then(|entries| {
        let mut paths = entries.map(|e| Ok(e?.path())).collect::<io::Result<Vec<_>>>()?;
        paths.sort();
        Ok(paths)
    });
    match listed {
        Ok(paths) => Ok(Some(paths)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(StoreError::io(dir, "list", e)),
    }
}

fn name_of(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

fn number(digits: &str) -> Option<u32> {
    digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())?
}

fn segment_of(name: &str) -> Option<(Lane, u32)> {
    let (digits, table) = name.strip_suffix(".parquet")?.split_once('.')?;
    let lane = Lane::ALL.into_iter().find(|lane| lane.name() == table)?;
    Some((lane, number(digits)?))
}

fn part_of(name: &str) -> Option<(Lane, u32)> {
    let stem = name.strip_suffix(".parquet")?;
    Lane::ALL.into_iter().find_map(|lane| match stem.strip_prefix(lane.name())? {
        "" => Some((lane, 0)),
        rest => number(rest.strip_prefix('.')?).map(|part| (lane, part)),
    })
}
