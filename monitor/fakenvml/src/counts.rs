//! Call counts, which scripted faults need, shared between processes.
//!
//! Rule: one 64-bit counter for each function and GPU (and for calls without a GPU), and one for all
//! functions of a GPU. With a state file they lie in a mapped file beside it and are counted by atomic
//! additions, so that no process waits for another, and one that dies leaves nothing held.
#![allow(unsafe_code)]

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of `functions` + 1 rows and `gpus` + 1 columns.
#[derive(Debug)]
pub(crate) struct Counts {
    cells: Cells,
    columns: usize,
    functions: usize,
}

#[derive(Debug)]
enum Cells {
    Own(Vec<AtomicU64>),
    Mapped(Map),
}

#[derive(Debug)]
struct Map {
    at: NonNull<AtomicU64>,
    length: usize,
}

// SAFETY: the map is memory of atomics that stays mapped until it is dropped.
unsafe impl Send for Map {}
// SAFETY: as above; every access is atomic.
unsafe impl Sync for Map {}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: this range was mapped by `map`, and nobody borrows from it any more.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.length * 8) };
    }
}

fn map(path: &Path, length: usize) -> io::Result<Map> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    if file.metadata()?.len() < length as u64 * 8 {
        file.set_len(length as u64 * 8)?;
    }
    // SAFETY: a new shared mapping of a file that is long enough; it outlives the descriptor.
    let at = unsafe {
        let (protection, fd) = (libc::PROT_READ | libc::PROT_WRITE, file.as_raw_fd());
        libc::mmap(std::ptr::null_mut(), length * 8, protection, libc::MAP_SHARED, fd, 0)
    };
    match NonNull::new(at.cast::<AtomicU64>()) {
        Some(cells) if at != libc::MAP_FAILED => Ok(Map { at: cells, length }),
        _ => Err(io::Error::last_os_error()),
    }
}

impl Counts {
    /// Counters of this process alone, or those in a file.
    pub(crate) fn open(path: Option<&Path>, functions: usize, gpus: u32) -> io::Result<Self> {
        let columns = gpus as usize + 1;
        let length = (functions + 1) * columns;
        let cells = match path {
            Some(path) => Cells::Mapped(map(path, length)?),
            None => Cells::Own((0..length).map(|_| AtomicU64::new(0)).collect()),
        };
        Ok(Self { cells, columns, functions })
    }

    /// Counts a call; returns its number for its function and for all functions, from 1.
    pub(crate) fn next(&self, function: usize, gpu: Option<u32>) -> (u64, u64) {
        let add = |row| self.cell(row, gpu).map_or(0, |cell| cell.fetch_add(1, Ordering::Relaxed) + 1);
        (add(function), add(self.functions))
    }

    /// How often a function was called.
    pub(crate) fn get(&self, function: usize, gpu: Option<u32>) -> u64 {
        self.cell(function, gpu).map_or(0, |cell| cell.load(Ordering::Relaxed))
    }

    fn cell(&self, row: usize, gpu: Option<u32>) -> Option<&AtomicU64> {
        let cells = match &self.cells {
            Cells::Own(cells) => cells,
            // SAFETY: the mapping holds this many zeroed or counted cells for as long as `self` lives.
            Cells::Mapped(map) => unsafe { std::slice::from_raw_parts(map.at.as_ptr(), map.length) },
        };
        cells.get(row * self.columns + gpu.map_or(0, |gpu| gpu as usize + 1))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a panic is a test's report")]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_counts_is_one_for_all_who_open_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("counts");
        let one = Counts::open(Some(&path), 3, 2).unwrap();
        let two = Counts::open(Some(&path), 3, 2).unwrap();
        assert_eq!(one.next(2, Some(1)), (1, 1));
        assert_eq!(two.next(2, Some(1)), (2, 2));
        assert_eq!(two.next(0, Some(1)), (1, 3));
        assert_eq!(one.next(0, None), (1, 1));
        assert_eq!((one.get(2, Some(1)), one.get(2, Some(0))), (2, 0));
    }
}
