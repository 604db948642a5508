//! The file that an export goes to.
//!
//! Rule: a regular file is written under a name of its own beside the final one and renamed when it is
//! whole, so that an error leaves nothing under the final name and a reader never sees half of it. What
//! exists is kept unless `force` is given. `-` is standard output; devices and pipes are written directly.
//!
//! Refused: a folder, and any place inside the recording, whose files an export could replace.
//!
//! Not done here: removing what a killed export left; its name begins with a dot and ends in `.part`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Where an export goes.
pub struct Output {
    out: BufWriter<Target>,
    /// The file as the user named it.
    named: PathBuf,
}

enum Target {
    Stdout(io::Stdout),
    /// A device or a pipe.
    Direct(File),
    Beside(Beside),
}

/// A file beside the final one, removed unless it is put in its place.
struct Beside {
    file: File,
    part: PathBuf,
    place: PathBuf,
    force: bool,
    done: bool,
}

impl Output {
    /// Opens the file `named`, which is not inside `recording`.
    pub fn create(named: &Path, force: bool, recording: &Path) -> Result<Self> {
        let target =
            if is_stdout(named) { Target::Stdout(io::stdout()) } else { open(named, force, recording)? };
        Ok(Self { out: BufWriter::with_capacity(1 << 16, target), named: named.to_owned() })
    }

    /// The file as the user named it.
    pub fn named(&self) -> &Path {
        &self.named
    }

    /// Writes all of `bytes`.
    pub fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).with_context(|| cannot("write", &self.named))
    }

    /// Brings all of it to the disk; what can go wrong without putting it in its place has then gone well.
    pub fn finish(&mut self) -> Result<()> {
        self.out.flush().with_context(|| cannot("write", &self.named))?;
        let Target::Beside(beside) = self.out.get_mut() else { return Ok(()) };
        beside.file.sync_all().with_context(|| cannot("write", &self.named))
    }

    /// Puts the file in its place.
    pub fn commit(mut self) -> Result<()> {
        self.finish()?;
        let Target::Beside(beside) = self.out.get_mut() else { return Ok(()) };
        if !beside.force && beside.place.exists() {
            bail!(exists(&self.named));
        }
        fs::rename(&beside.part, &beside.place).with_context(|| cannot("put in its place", &self.named))?;
        beside.done = true;
        Ok(())
    }
}

/// Whether the file means standard output.
pub fn is_stdout(named: &Path) -> bool {
    named == Path::new("-")
}

fn open(named: &Path, force: bool, recording: &Path) -> Result<Target> {
    let place = place_of(named)?;
    if let Ok(there) = fs::metadata(&place) {
        if there.is_dir() {
            bail!("`{}` is a folder; give the name of a file in it", named.display());
        }
        if !there.is_file() {
            let file = OpenOptions::new().write(true).open(&place);
            return Ok(Target::Direct(file.with_context(|| cannot("open", named))?));
        }
    }
    if fs::canonicalize(recording).is_ok_and(|recording| place.starts_with(recording)) {
        bail!(
            "`{}` is inside the recording `{}`, where gpumon keeps its own files; name a file outside it",
            named.display(),
            recording.display()
        );
    }
    if place.exists() && !force {
        bail!(exists(named));
    }
    let name = place.file_name().unwrap_or_default().to_string_lossy();
    let part = place.with_file_name(format!(".{name}.{}.part", std::process::id()));
    let file = File::create(&part).with_context(|| cannot("create", named))?;
    Ok(Target::Beside(Beside { file, part, place, force, done: false }))
}

/// Where a file is or will be, links followed, those that lead to nothing yet too.
pub fn place_of(named: &Path) -> Result<PathBuf> {
    /// As many links in a row as Linux follows.
    const LINKS: usize = 40;
    let mut path = named.to_owned();
    for _ in 0..LINKS {
        if let Ok(place) = fs::canonicalize(&path) {
            return Ok(place);
        }
        match fs::read_link(&path) {
            Ok(to) => path = path.parent().unwrap_or(Path::new("")).join(to),
            Err(_) => return in_folder(&path),
        }
    }
    bail!("`{}` is a link that leads back to itself", named.display())
}

/// The path of a file that is not there yet, its folder resolved.
fn in_folder(named: &Path) -> Result<PathBuf> {
    let Some(name) = named.file_name() else {
        bail!("`{}` is no name of a file", named.display());
    };
    let folder = match named.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let folder = fs::canonicalize(folder)
        .with_context(|| format!("cannot create `{}`: check its folder", named.display()))?;
    Ok(folder.join(name))
}

fn cannot(doing: &str, named: &Path) -> String {
    if is_stdout(named) {
        return format!("cannot {doing} standard output");
    }
    format!("cannot {doing} `{}`; check the path, its permissions and the disk", named.display())
}

fn exists(named: &Path) -> String {
    format!("`{}` exists; give another name, or --force to replace it", named.display())
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl Write for Target {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Stdout(out) => out.write(bytes),
            Self::Direct(file) => file.write(bytes),
            Self::Beside(beside) => beside.file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Stdout(out) => out.flush(),
            Self::Direct(file) => file.flush(),
            Self::Beside(beside) => beside.file.flush(),
        }
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        if !self.done {
            // The error that brought us here is the one to tell.
            let _ = fs::remove_file(&self.part);
        }
    }
}
