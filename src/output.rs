//! Standard output, where a closed pipe is an end and not a failure.

use std::io::{self, Write};

use anyhow::Result;
use serde::Serialize;

/// Writes text to standard output.
pub fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// Writes a notice to standard error. One that cannot be written changes nothing else.
pub fn note(text: impl std::fmt::Display) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Writes one JSON document to standard output.
pub fn print_json(value: &impl Serialize) -> Result<()> {
    print(&(serde_json::to_string_pretty(value)? + "\n"))
}

/// Whether an error is that nobody reads our output any more.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .any(|cause| cause.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe))
}
