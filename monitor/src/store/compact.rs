//! Rows on their way from memory to the tables of a closed recording. The recorder and the recovery
//! walk the same way.

use std::path::{Path, PathBuf};

use gpumon_core::header::Header;

use super::disk::Disk;
use super::error::StoreError;
use super::lane::{Lane, Lanes, PerLane};
use super::layout::{self, HEADER, JOURNAL, LOCK, Layout, RESERVE, SEGMENTS};
use super::table::{self, Footer, Meta};

/// A recording's folder, and what its files say about themselves.
pub(super) struct Place {
    pub(super) disk: Disk,
    pub(super) dir: PathBuf,
    /// As it was at the start.
    pub(super) header: Header,
}

impl Place {
    /// Writes the segments of one number and syncs them; lanes without rows get none. Rows of a
    /// lane whose parts cover this number already are left out.
    pub(super) fn write_segments(
        &self,
        number: u32,
        lanes: &mut Lanes,
        covered: &PerLane<Option<u32>>,
    ) -> Result<(), StoreError> {
        for lane in Lane::ALL {
            let rows = lanes.get(lane);
            if rows.len() == 0 || covered[lane].is_some_and(|last| number <= last) {
                continue;
            }
            let meta = Meta { header: &self.header, lane, covers: Some((number, number)) };
            let bytes = rows.to_parquet(&meta)?;
            self.disk.write_file(&layout::segment_path(&self.dir, number, lane), &bytes)?;
        }
        self.disk.sync_dir(&self.dir.join(SEGMENTS))
    }

    /// Joins the segments of a lane into its next part, then removes them. Those that a part
    /// covers, because their removal was cut off, are removed only.
    pub(super) fn roll(&self, layout: &Layout, lane: Lane) -> Result<(), StoreError> {
        let mut covered = None;
        for part in layout.parts[lane].values() {
            covered = covered.max(Footer::of(part)?.covers_to());
        }
        let segments = &layout.segments[lane];
        let new: Vec<_> = segments.iter().filter(|(number, _)| Some(**number) > covered).collect();
        if let (Some((first, _)), Some((last, _))) = (new.first(), new.last()) {
            let paths: Vec<_> = new.iter().map(|(_, path)| (*path).clone()).collect();
            self.write_part(lane, layout.next_part[lane], Some((**first, **last)), &paths)?;
        }
        segments.values().try_for_each(|path| self.disk.remove(path))
    }

    /// Rolls every lane, and gives an empty table to those that have none.
    pub(super) fn finish_tables(&self) -> Result<(), StoreError> {
        let layout = Layout::scan(&self.dir)?;
        for lane in Lane::ALL {
            self.roll(&layout, lane)?;
            let first = layout::part_path(&self.dir, lane, 0);
            if !first.exists() {
                self.write_part(lane, 0, None, &[])?;
            }
        }
        Ok(())
    }

    fn write_part(
        &self,
        lane: Lane,
        part: u32,
        covers: Option<(u32, u32)>,
        segments: &[PathBuf],
    ) -> Result<(), StoreError> {
        let path = layout::part_path(&self.dir, lane, part);
        let temp = layout::temp_of(&path);
        let meta = Meta { header: &self.header, lane, covers };
        let written = table::join(&self.disk, &temp, &meta, segments);
        if written.is_err() {
            // What is there of it only takes room; readers do not look at it.
            let _ = self.disk.remove(&temp);
        }
        written?;
        self.disk.rename(&temp, &path)?;
        self.disk.sync_dir(&self.dir)
    }

    pub(super) fn write_header(&self, header: &Header) -> Result<(), StoreError> {
        self.disk.replace_file(&self.dir.join(HEADER), header.to_json().as_bytes())
    }

    /// Removes what a closed recording has no use for.
    pub(super) fn clean_up(&self) -> Result<(), StoreError> {
        let layout = Layout::scan(&self.dir)?;
        let segments = Lane::ALL.into_iter().flat_map(|lane| layout.segments[lane].values());
        for path in layout.journals.values().chain(segments).chain(&layout.temps) {
            self.disk.remove(path)?;
        }
        self.disk.remove_dir(&self.dir.join(JOURNAL))?;
        self.disk.remove_dir(&self.dir.join(SEGMENTS))?;
        self.release_room()?;
        // Not synced: should a power cut bring any of it back, it still counts for nothing.
        self.disk.remove(&self.dir.join(LOCK))
    }

    pub(super) fn release_room(&self) -> Result<(), StoreError> {
        self.disk.remove(&self.dir.join(RESERVE))
    }
}

/// Reads and checks `recording.json`.
pub(super) fn read_header(dir: &Path) -> Result<Header, StoreError> {
    let path = dir.join(HEADER);
    let text = std::fs::read(&path).map_err(|e| StoreError::io(&path, "read", e))?;
    parse_header(&path, &text)
}

/// Checks the text of a `recording.json`, which stands in `path`.
pub(super) fn parse_header(path: &Path, text: &[u8]) -> Result<Header, StoreError> {
    /// What every version of the file has.
    #[derive(serde::Deserialize)]
    struct Version {
        schema: u32,
        gpumon: String,
    }
    let bad = |e: serde_json::Error| {
        StoreError::damaged(
            path,
            format!("not a recording's header ({e}); expected JSON as in docs/schema.md"),
        )
    };
    let version: Version = serde_json::from_slice(text).map_err(bad)?;
    if version.schema > gpumon_core::header::SCHEMA_VERSION {
        let Version { schema, gpumon } = version;
        return Err(StoreError::NewerSchema { path: path.to_owned(), schema, gpumon });
    }
    serde_json::from_slice(text).map_err(bad)
}
