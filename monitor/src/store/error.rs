//! What can go wrong with a recording, sorted by what the caller does next.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gpumon_core::header::SCHEMA_VERSION;

/// Why a recording cannot be written, read or recovered.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// Choose another name, or overwrite.
    #[error(
        "`{}` already holds a recording; give another name, or --force to replace it",
        path.display()
    )]
    Exists {
        /// The recording's folder.
        path: PathBuf,
    },
    /// Choose another path: nothing here was touched.
    #[error(
        "`{}` is not a recording: {what}; expected a folder that gpumon wrote (with recording.json); give another path",
        path.display()
    )]
    NotARecording {
        /// The path that was given.
        path: PathBuf,
        /// What is there instead.
        what: &'static str,
    },
    /// Wait for the writer, or end it.
    #[error(
        "`{}` is still being written{}; wait until it ends, or stop it with Ctrl-C",
        path.display(),
        pid.map(|pid| format!(" by pid {pid}")).unwrap_or_default()
    )]
    Busy {
        /// The recording's folder.
        path: PathBuf,
        /// The writing process, if it could be told.
        pid: Option<u32>,
    },
    /// Use a newer gpumon.
    #[error(
        "`{}` has schema version {schema} and was written by gpumon {gpumon}; this is gpumon {own}, which reads up to \
         schema version {SCHEMA_VERSION}: use gpumon {gpumon} or newer",
        path.display(),
        own = env!("CARGO_PKG_VERSION")
    )]
    NewerSchema {
        /// The file that says so.
        path: PathBuf,
        /// Its schema version.
        schema: u32,
        /// The gpumon that wrote it.
        gpumon: String,
    },
    /// Run `gpumon recover`, or go on without this part: the rest is readable.
    #[error("`{}` is damaged: {what}; `gpumon recover` sets it aside and keeps the rest", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong in it and what was expected.
        what: String,
    },
    /// Stop recording and make room: what has been flushed stays readable.
    #[error(
        "no room to {doing} `{}`: {cause}; what was recorded so far is kept: free some space or raise the quota or \
         file-size limit, then run `gpumon recover`",
        path.display()
    )]
    Full {
        /// The file that could not grow.
        path: PathBuf,
        /// What was being done to it.
        doing: &'static str,
        /// The system's answer.
        cause: Arc<io::Error>,
    },
    /// Stop: storage does not do what it is asked.
    #[error("cannot {doing} `{}`: {cause}; check the path, its permissions and the disk", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was being done to it.
        doing: &'static str,
        /// The system's answer.
        cause: Arc<io::Error>,
    },
}

impl StoreError {
    /// Sorts a failed operation: no room is [`StoreError::Full`], the rest [`StoreError::Io`].
    pub(super) fn io(path: &Path, doing: &'static str, source: io::Error) -> Self {
        let no_room = matches!(source.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG));
        let (path, cause) = (path.to_owned(), Arc::new(source));
        if no_room { Self::Full { path, doing, cause } } else { Self::Io { path, doing, cause } }
    }

    pub(super) fn damaged(path: &Path, what: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), what: what.into() }
    }

    /// Sorts what the Parquet library answers: an I/O error inside it is one here, too.
    pub(super) fn parquet(path: &Path, doing: &'static str, error: parquet::errors::ParquetError) -> Self {
        match error {
            parquet::errors::ParquetError::External(inner) => match inner.downcast::<io::Error>() {
                // The library also reports broken content this way, without a system error.
                Ok(inner) if inner.raw_os_error().is_some() => Self::io(path, doing, *inner),
                Ok(inner) => Self::damaged(path, format!("cannot {doing}: {inner}")),
                Err(inner) => Self::damaged(path, format!("cannot {doing}: {inner}")),
            },
            other => Self::damaged(path, format!("cannot {doing}: {other}")),
        }
    }

    /// True if a file vanished: a live recording has moved its rows on.
    pub(super) fn is_vanished(&self) -> bool {
        matches!(self, Self::Io { cause, .. } if cause.kind() == io::ErrorKind::NotFound)
    }
}
