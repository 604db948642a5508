//! Profile files: Parquet and CSV, ours and those that others published.
//!
//! Rule: [`read`] looks at the content, [`write()`] at the extension. What was read is whole and consistent: every
//! figure is finite and in its range, points are told apart by their key, rows that repeat one are averaged.
//! What had to be assumed, averaged or left out is said in a notice.
//!
//! | file | told by | read as |
//! |---|---|---|
//! | Parquet | its first bytes | with a column `valid` the `profile` table; without, as the CSV that it would make |
//! | our CSV | a column `valid` | the same columns; an empty cell is an absent figure |
//! | EnerTune's CSV, or a user's own | a column `model` | as ours, but power, dynamic power, throughput and latency must be there in each row; share = slices / 7 |
//! | ParvaGPU's CSV | a column `Workload Number` | see the cases below |
//!
//! Cases: in ParvaGPU's files the model is the file's name, throughput is that of one process (ours is that of all),
//! latency is in seconds, a row of zeros did not fit (it stays, with `valid` false), and no clock is named: the A100's
//! highest is taken, with a notice. Whole numbers may be written as `2.0`. A model whose dynamic power is its average
//! power in every row has had no idle power taken off: its dynamic power is left out, with a notice.
//! Columns that a profile does not have are left out, with a notice.
//! Not done here: empty texts are absent in CSV, and spaces around a model's name are not kept.
//! Sources: EnerTune's artifact (SOSP'26) and ParvaGPU's (SC'24), their profile files.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use crate::profile::ProfileRow;

mod clean;
pub(crate) mod parquet_file;
mod text;

pub use text::parse_csv;

/// A profile that was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// The points, in file order.
    pub rows: Vec<ProfileRow>,
    /// What had to be assumed, averaged or left out; a sentence each, with the file's name.
    pub notices: Vec<String>,
}

/// Why a profile cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The file system says no.
    #[error("cannot {doing} `{}`: {cause}", path.display())]
    Io {
        /// What was tried: `read` or `write`.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        cause: io::Error,
    },
    /// The file as a whole is not a profile, or cannot become one; the text says what was expected.
    #[error("`{}`: {what}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        what: String,
    },
    /// A line or row has another shape than the header promises.
    #[error("`{}`, {place}: {what}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// `line 3` of a text, `row 3` of a table.
        place: String,
        /// What is wrong, and what to do.
        what: String,
    },
    /// One value cannot be used.
    #[error("`{}`, {place}, column `{column}`: found {found}, expected {expected}; correct it or remove the row", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// `line 3` of a text, `row 3` of a table.
        place: String,
        /// The column.
        column: String,
        /// What stands there.
        found: String,
        /// What should.
        expected: &'static str,
    },
}

impl ProfileError {
    pub(crate) fn file(path: &Path, what: impl Into<String>) -> Self {
        Self::File { path: path.into(), what: what.into() }
    }

    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |cause| Self::Io { doing, path: path.into(), cause }
    }
}

/// Reads a profile: Parquet if it begins as Parquet does, CSV otherwise.
pub fn read(path: &Path) -> Result<Profile, ProfileError> {
    let bytes = fs::read(path).map_err(ProfileError::io("read", path))?;
    if bytes.starts_with(parquet_file::MAGIC) {
        return parquet_file::read(bytes, path);
    }
    let text = String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        let line = 1 + e.as_bytes()[..at].iter().filter(|&&b| b == b'\n').count();
        ProfileError::Line {
            path: path.into(),
            place: format!("line {line}"),
            what: "neither UTF-8 text nor Parquet; give a profile as CSV or Parquet".into(),
        }
    })?;
    parse_csv(&text, path)
}

/// Writes a profile as Parquet (`.parquet`) or CSV (`.csv`). The file appears whole or not at all: it is written under
/// another name beside its place, and renamed.
pub fn write(path: &Path, rows: &[ProfileRow]) -> Result<(), ProfileError> {
    let bytes = match extension(path).as_str() {
        "parquet" => parquet_file::bytes(rows, path)?,
        "csv" => text::bytes(rows, path)?,
        _ => return Err(ProfileError::file(path, "a profile ends in `.parquet` or `.csv`; name it so")),
    };
    write_whole(path, &bytes).map_err(ProfileError::io("write", path))
}

/// Whether [`write()`] can write a file of this name.
pub fn is_writable_name(path: &Path) -> bool {
    matches!(extension(path).as_str(), "parquet" | "csv")
}

/// What is said of a file of sets: its rows are of models beside others, and no profile.
pub(crate) const SETS: &str = "it holds sets of models that ran together (`profile --together`), not a profile; `gpumon fit` takes it as --sets";

/// Whether columns are those of sets.
pub(crate) fn is_of_sets<'a>(columns: impl Iterator<Item = &'a str>) -> bool {
    columns.filter(|column| matches!(*column, "set" | "members" | "latency_alone")).count() == 3
}

pub(crate) fn extension(path: &Path) -> String {
    path.extension().map_or(String::new(), |e| e.to_string_lossy().to_ascii_lowercase())
}

pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
    let temp = path.with_file_name(format!(".{name}.{}.tmp", std::process::id()));
    let written = File::create(&temp)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&temp, path));
    if written.is_err() {
        // The error that matters is the one above.
        let _ = fs::remove_file(&temp);
    }
    written
}

#[cfg(test)]
mod tests;
