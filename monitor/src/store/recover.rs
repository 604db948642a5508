//! Makes whole what a killed recorder, a power cut or a full disk left.
//!
//! Rule: journals become segments, segments become parts, `recording.json` says `recovered`; each
//! step removes its source only after its result is safe, so that recovery may itself be killed and
//! run again. A recording that is whole is left untouched.
//!
//! Cases: a torn journal tail is what a kill leaves, and is dropped; damage inside a journal costs
//! the frames it touches; a Parquet file that cannot be read is renamed to `*.damaged`, and those of its row groups (a
//! minute each) that can be read take its place. A
//! lost `recording.json` is restored from the copy that journals and tables carry. A recording that
//! was complete but for the removal of work files stays `complete`.
//!
//! Not done here: damage that still decodes; only journals have checksums.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use gpumon_core::caught::caught;
use gpumon_core::header::{Header, State};
use gpumon_core::rows::{CounterRow, EventRow, FastRow, ProcessRow, RingRow, SlowRow};

use super::compact::{Place, parse_header, read_header};
use super::disk::Disk;
use super::error::StoreError;
use super::journal::{self, Frame};
use super::lane::{Lane, Lanes, PerLane, Row};
use super::layout::{self, HEADER, JOURNAL, Layout, SEGMENTS};
use super::lock::Lock;
use super::reader::group;
use super::table::{self, Footer, Meta, open};

/// What a recovery found and kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoverReport {
    /// True if the recording was whole: nothing was changed.
    pub nothing_to_do: bool,
    /// State that `recording.json` says now.
    pub state: State,
    /// Rows in the tables now.
    pub rows: PerLane<u64>,
    /// Journal bytes that could not be read and are gone.
    pub dropped: Vec<Dropped>,
    /// Files that could not be read, as they are called now.
    pub set_aside: Vec<PathBuf>,
    /// True if `recording.json` had to be restored from a copy of its first state.
    pub header_restored: bool,
}

/// A stretch of a journal that is no frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// The journal.
    pub path: PathBuf,
    /// Where it begins, bytes from the start.
    pub offset: u64,
    /// Its length, bytes.
    pub bytes: u64,
    /// True at the end of the journal, where every kill may leave half a frame; false before frames
    /// that are whole, where only damage does.
    pub torn_tail: bool,
}

/// Makes the recording in the folder `dir` whole. May be run again at any time.
///
/// # Errors
///
/// [`StoreError::Busy`] while it is being written. [`StoreError::Full`]: free some space and run it
/// again. [`StoreError::Damaged`]: `recording.json` is lost and no copy of it is left. Others as
/// their texts say. What could be read before can be read after any of them.
pub fn recover(dir: &Path) -> Result<RecoverReport, StoreError> {
    recover_on(Disk::default(), dir)
}

pub(super) fn recover_on(disk: Disk, dir: &Path) -> Result<RecoverReport, StoreError> {
    let layout = scan_recording(dir)?;
    if let Ok(header) = read_header(dir)
        && layout.is_whole(&header)
        && header.state != State::Recording
        && check_identity(&layout, &header).is_ok()
        && check_rows(&layout).is_ok()
        && let Ok(rows) = rows_in_parts(&layout)
    {
        return Ok(RecoverReport { nothing_to_do: true, rows, ..RecoverReport::of(header.state) });
    }
    let lock = Lock::take(dir)?;
    let recovered = recover_locked(disk, dir);
    drop(lock);
    recovered
}

impl RecoverReport {
    fn of(state: State) -> Self {
        Self {
            nothing_to_do: false,
            state,
            rows: PerLane::default(),
            dropped: Vec::new(),
            set_aside: Vec::new(),
            header_restored: false,
        }
    }

    /// What was not kept, in words for the header. A torn tail is no damage: every kill leaves one.
    fn damage(&self) -> impl Iterator<Item = String> {
        let name = |path: &Path| path.file_name().map_or(String::new(), |n| n.to_string_lossy().into_owned());
        let dropped = self.dropped.iter().filter(|d| !d.torn_tail);
        let dropped =
            dropped.map(move |d| format!("{} bytes at {} of journal {}", d.bytes, d.offset, name(&d.path)));
        dropped.chain(self.set_aside.iter().map(move |path| format!("set aside as {}", name(path))))
    }
}

/// Tables that should be there and are not.
fn missing(layout: &Layout, header: &Header) -> Vec<String> {
    let nothing_left =
        layout.journals.is_empty() && Lane::ALL.into_iter().all(|l| layout.segments[l].is_empty());
    if header.state == State::Recording && !nothing_left
        || layout.has_folders && header.state != State::Recording
    {
        return Vec::new();
    }
    let due = |lane: &Lane| lane.is_due(header) && layout.parts[*lane].is_empty();
    let missing = Lane::ALL.into_iter().filter(due);
    missing.map(|lane| format!("the table {} was missing", lane.name())).collect()
}

/// Whether every part belongs to this recording and holds the table that its name says.
fn check_identity(layout: &Layout, header: &Header) -> Result<(), StoreError> {
    Lane::ALL.into_iter().try_for_each(|lane| {
        let mut paths = layout.parts[lane].values();
        paths.try_for_each(|path| Footer::of(path)?.check(path, lane.name(), header))
    })
}

/// Whether the rows of every part can be read.
fn check_rows(layout: &Layout) -> Result<(), StoreError> {
    Lane::ALL.into_iter().try_for_each(|lane| {
        layout.parts[lane].values().try_for_each(|path| {
            let footer = Footer::of(path)?;
            (0..footer.groups()).try_for_each(|index| check_group(path, lane, &footer, index))
        })
    })
}

/// Whether one row group can be read: memory holds no more than that.
fn check_group(path: &Path, lane: Lane, footer: &Footer, index: usize) -> Result<(), StoreError> {
    fn rows<R: Row>(path: &Path, footer: &Footer, index: usize) -> Result<usize, StoreError> {
        Ok(group::<R>(path, open(path)?, footer.clone(), index)?.len())
    }
    let found = match lane {
        Lane::Fast => rows::<FastRow>(path, footer, index),
        Lane::Ring => rows::<RingRow>(path, footer, index),
        Lane::Slow => rows::<SlowRow>(path, footer, index),
        Lane::Counter => rows::<CounterRow>(path, footer, index),
        Lane::Events => rows::<EventRow>(path, footer, index),
        Lane::Process => rows::<ProcessRow>(path, footer, index),
    }?;
    let told = footer.rows_of(index);
    if found as u64 == told {
        return Ok(());
    }
    Err(StoreError::damaged(path, format!("{found} rows where the footer says {told}")))
}

/// Lists `dir`, which must hold a recording.
pub(super) fn scan_recording(dir: &Path) -> Result<Layout, StoreError> {
    if dir.exists() && !dir.is_dir() {
        let what = "it is a file";
        return Err(StoreError::NotARecording { path: dir.to_owned(), what });
    }
    let layout = Layout::scan(dir)?;
    // Tables alone will do: they carry a copy of the header.
    let has_parts = Lane::ALL.into_iter().any(|lane| layout.parts[lane].contains_key(&0));
    if !layout.is_recording() && !has_parts {
        let what = "it holds no recording.json";
        return Err(StoreError::NotARecording { path: dir.to_owned(), what });
    }
    Ok(layout)
}

fn recover_locked(disk: Disk, dir: &Path) -> Result<RecoverReport, StoreError> {
    // Anew: another recovery may have been at work before the lock was taken.
    let layout = Layout::scan(dir)?;
    let mut report = RecoverReport::of(State::Recovered);
    let header = match read_header(dir) {
        Ok(header) => header,
        Err(e @ StoreError::NewerSchema { .. }) => return Err(e),
        Err(e) => {
            let header = restore_header(dir, &layout)?.ok_or(e)?;
            if layout.has_header {
                set_aside(&disk, dir, &dir.join(HEADER), &mut report)?;
            }
            report.header_restored = true;
            header
        }
    };
    let place = Place { disk, dir: dir.to_owned(), header: header.clone() };
    // Before anything is written: the disk may be full.
    place.release_room()?;
    layout.temps.iter().try_for_each(|path| place.disk.remove(path))?;

    let mut damage = header.damage.clone();
    damage.extend(missing(&layout, &header));
    let covered = check_parts(&place, &layout, &mut report)?;
    check_segments(&place, &layout, &covered, &mut report)?;
    let not_covered = |n: u32| Lane::ALL.into_iter().any(|lane| covered[lane].is_none_or(|last| n > last));
    for (&number, path) in &layout.journals {
        if not_covered(number) {
            journal_to_segments(&place, number, path, &covered, &mut report)?;
        }
        place.disk.remove(path)?;
    }
    // A journal that came back after a power cut would be taken before its segment.
    if layout.has_folders && layout::list(&dir.join(JOURNAL))?.is_some() {
        place.disk.sync_dir(&dir.join(JOURNAL))?;
    }
    place.finish_tables()?;

    let state = if header.state == State::Complete { State::Complete } else { State::Recovered };
    let parts = Layout::scan(dir)?;
    let duration_us = header.duration_us.or(last_us(&parts)?);
    damage.extend(report.damage());
    place.write_header(&Header { state, duration_us, damage, ..header })?;
    place.clean_up()?;
    report.state = state;
    report.rows = rows_in_parts(&parts)?;
    Ok(report)
}

/// Sets damaged parts aside; returns up to which number each lane's parts go.
fn check_parts(
    place: &Place,
    layout: &Layout,
    report: &mut RecoverReport,
) -> Result<PerLane<Option<u32>>, StoreError> {
    let mut covered: PerLane<Option<u32>> = PerLane::default();
    for lane in Lane::ALL {
        for path in layout.parts[lane].values() {
            if let Some(footer) = footer_or_aside(place, path, lane, report)? {
                covered[lane] = covered[lane].max(footer.covers_to());
            }
        }
    }
    Ok(covered)
}

/// Removes segments that a part covers or a journal will make again, and sets damaged ones aside.
fn check_segments(
    place: &Place,
    layout: &Layout,
    covered: &PerLane<Option<u32>>,
    report: &mut RecoverReport,
) -> Result<(), StoreError> {
    for lane in Lane::ALL {
        for (number, path) in &layout.segments[lane] {
            if covered[lane].is_some_and(|last| *number <= last) || layout.journals.contains_key(number) {
                place.disk.remove(path)?;
            } else {
                footer_or_aside(place, path, lane, report)?;
            }
        }
    }
    Ok(())
}

/// The footer of a file of this recording. A file that cannot be read, or not all of it, is set aside; the row groups of
/// it that can be read take its place.
fn footer_or_aside(
    place: &Place,
    path: &Path,
    lane: Lane,
    report: &mut RecoverReport,
) -> Result<Option<Footer>, StoreError> {
    let checked =
        Footer::of(path).and_then(|footer| footer.check(path, lane.name(), &place.header).map(|()| footer));
    let footer = match checked {
        Ok(footer) => footer,
        Err(StoreError::Damaged { .. }) => {
            set_aside(&place.disk, &place.dir, path, report)?;
            return Ok(None);
        }
        Err(other) => return Err(other),
    };
    let mut readable = Vec::new();
    for index in 0..footer.groups() {
        match check_group(path, lane, &footer, index) {
            Ok(()) => readable.push(index),
            Err(StoreError::Damaged { .. }) => {}
            Err(other) => return Err(other),
        }
    }
    if readable.len() == footer.groups() {
        return Ok(Some(footer));
    }
    let temp = layout::temp_of(path);
    let meta = Meta { header: &place.header, lane, covers: footer.covers() };
    let picked = caught(|| table::pick(&place.disk, &temp, &meta, path, &readable))
        .unwrap_or_else(|| Err(StoreError::damaged(path, "its row groups make no sense")));
    match picked {
        Ok(()) => {
            set_aside(&place.disk, &place.dir, path, report)?;
            place.disk.rename(&temp, path)?;
            Ok(Some(Footer::of(path)?))
        }
        Err(StoreError::Damaged { .. }) => {
            place.disk.remove(&temp)?;
            set_aside(&place.disk, &place.dir, path, report)?;
            Ok(None)
        }
        Err(other) => Err(other),
    }
}

fn set_aside(disk: &Disk, dir: &Path, path: &Path, report: &mut RecoverReport) -> Result<(), StoreError> {
    let aside = layout::damaged_of(dir, path);
    disk.rename(path, &aside)?;
    report.set_aside.push(aside);
    Ok(())
}

fn journal_to_segments(
    place: &Place,
    number: u32,
    path: &Path,
    covered: &PerLane<Option<u32>>,
    report: &mut RecoverReport,
) -> Result<(), StoreError> {
    let bytes = read(path)?;
    let mut lanes = Lanes::default();
    let bad = journal::parse(&bytes, |frame| lanes.extend(frame));
    report.dropped.extend(bad.into_iter().map(|bad| Dropped {
        path: path.to_owned(),
        offset: bad.offset as u64,
        bytes: bad.bytes as u64,
        torn_tail: bad.tail,
    }));
    if lanes.is_empty() {
        return Ok(());
    }
    place.disk.make_dir(&place.dir.join(SEGMENTS))?;
    place.write_segments(number, &mut lanes, covered)
}

/// The header as some journal or table remembers it.
fn restore_header(dir: &Path, layout: &Layout) -> Result<Option<Header>, StoreError> {
    let mut copies = Vec::new();
    for path in layout.journals.values() {
        journal::parse(&read(path)?, |frame| {
            if let Frame::Header(header) = frame {
                copies.push(header.recording);
            }
        });
    }
    for lane in Lane::ALL {
        for path in layout.parts[lane].values().chain(layout.segments[lane].values()) {
            let copy = Footer::of(path).ok().and_then(|f| f.recording().map(str::to_owned));
            copies.extend(copy);
        }
    }
    let headers = copies.iter().map(|copy| parse_header(&dir.join(HEADER), copy.as_bytes()));
    let mut restored = None;
    for header in headers {
        match header {
            Err(e @ StoreError::NewerSchema { .. }) => return Err(e),
            Err(_) => {}
            Ok(header) => restored = restored.or(Some(header)),
        }
    }
    Ok(restored)
}

fn rows_in_parts(layout: &Layout) -> Result<PerLane<u64>, StoreError> {
    let mut rows: PerLane<u64> = PerLane::default();
    for lane in Lane::ALL {
        for path in layout.parts[lane].values() {
            rows[lane] += Footer::of(path)?.rows();
        }
    }
    Ok(rows)
}

fn last_us(layout: &Layout) -> Result<Option<i64>, StoreError> {
    let mut last = None;
    for lane in Lane::ALL {
        for path in layout.parts[lane].values() {
            last = last.max(Footer::of(path)?.last_us());
        }
    }
    Ok(last)
}

fn read(path: &Path) -> Result<Vec<u8>, StoreError> {
    fs::read(path).map_err(|e: io::Error| StoreError::io(path, "read", e))
}
