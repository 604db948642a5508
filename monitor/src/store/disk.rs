//! Every operation that changes a recording on disk, each with its file named in the error.
//!
//! Rule: no other module of the store writes, syncs, renames or removes. So a test can stop the
//! store before any single operation, as a crash does, or refuse it, as a full disk does.
//!
//! Cases: with `skip_sync` nothing is synced; the recording then survives the end of its process
//! but not a power cut.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::error::StoreError;

/// A kind of operation, for the tests' hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Create,
    Write,
    Truncate,
    Sync,
    Rename,
    Remove,
}

#[cfg(test)]
pub(super) type Hook = std::sync::Arc<std::sync::Mutex<dyn FnMut(Op, &Path) -> io::Result<()> + Send>>;

/// The disk, as the store sees it.
#[derive(Clone, Default)]
pub(super) struct Disk {
    pub(super) skip_sync: bool,
    #[cfg(test)]
    pub(super) hook: Option<Hook>,
}

type Done = Result<(), StoreError>;

impl Disk {
    #[cfg(test)]
    fn step(&self, op: Op, path: &Path) -> io::Result<()> {
        match &self.hook {
            Some(hook) => (hook.lock().unwrap())(op, path),
            None => Ok(()),
        }
    }

    #[cfg(not(test))]
    fn step(&self, _: Op, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn act<T>(
        &self,
        op: Op,
        path: &Path,
        doing: &'static str,
        act: impl FnOnce() -> io::Result<T>,
    ) -> Result<T, StoreError> {
        self.step(op, path).and_then(|()| act()).map_err(|e| StoreError::io(path, doing, e))
    }

    /// Creates a folder unless it is there.
    pub(super) fn make_dir(&self, path: &Path) -> Done {
        self.act(Op::Create, path, "create the folder", || fs::create_dir_all(path))
    }

    /// Creates an empty file, emptying one that is there. Writes go to its end.
    pub(super) fn create(&self, path: &Path) -> Result<OutFile, StoreError> {
        let file = self.act(Op::Create, path, "create", || {
            let file = OpenOptions::new().create(true).append(true).open(path)?;
            file.set_len(0)?;
            Ok(file)
        })?;
        Ok(OutFile { disk: self.clone(), path: path.to_owned(), file })
    }

    /// Writes a whole file and syncs it. The folder's entry is not synced.
    pub(super) fn write_file(&self, path: &Path, bytes: &[u8]) -> Done {
        let mut file = self.create(path)?;
        let written = file.write_bytes(bytes).and_then(|()| file.sync());
        if written.is_err() {
            // Half a file only takes room.
            let _ = self.remove(path);
        }
        written
    }

    /// Replaces a file so that either the old or the new one is there, whatever happens.
    pub(super) fn replace_file(&self, path: &Path, bytes: &[u8]) -> Done {
        let temp = super::layout::temp_of(path);
        self.write_file(&temp, bytes)?;
        self.rename(&temp, path)?;
        self.sync_dir(parent(path))
    }

    /// Renames within a file system.
    pub(super) fn rename(&self, from: &Path, to: &Path) -> Done {
        self.act(Op::Rename, from, "rename", || fs::rename(from, to))
    }

    /// Removes a file; one that is not there is removed already.
    pub(super) fn remove(&self, path: &Path) -> Done {
        self.act(Op::Remove, path, "remove", || ignore_missing(fs::remove_file(path)))
    }

    /// Removes a folder if it is there and empty: what else is in it is not the store's.
    pub(super) fn remove_dir(&self, path: &Path) -> Done {
        self.act(Op::Remove, path, "remove the folder", || match fs::remove_dir(path) {
            Err(e) if e.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
            other => ignore_missing(other),
        })
    }

    /// Syncs a folder's entries.
    pub(super) fn sync_dir(&self, path: &Path) -> Done {
        self.act(Op::Sync, path, "sync the folder", || {
            if self.skip_sync { Ok(()) } else { File::open(path)?.sync_all() }
        })
    }
}

fn ignore_missing(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// The folder that holds `path`.
pub(super) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    }
}

/// A file that is being written.
pub(super) struct OutFile {
    disk: Disk,
    path: PathBuf,
    file: File,
}

impl OutFile {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes all of `bytes` to the end.
    pub(super) fn write_bytes(&mut self, bytes: &[u8]) -> Done {
        self.write_all(bytes).map_err(|e| StoreError::io(&self.path, "write", e))
    }

    /// Syncs the content; a failure means that nothing written since the last sync can be relied
    /// on.
    pub(super) fn sync(&self) -> Done {
        self.disk.act(Op::Sync, &self.path, "sync", || {
            if self.disk.skip_sync { Ok(()) } else { self.file.sync_data() }
        })
    }

    /// Cuts the file to `len` bytes.
    pub(super) fn truncate(&self, len: u64) -> Done {
        self.disk.act(Op::Truncate, &self.path, "truncate", || self.file.set_len(len))
    }
}

impl Write for OutFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.disk.step(Op::Write, &self.path)?;
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
