//! Standard output, where a closed pipe is an end and not a failure.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use serde::Serialize;

/// Whether standard output is kept free for a document that comes later.
static RESERVED: AtomicBool = AtomicBool::new(false);

/// From now on [`print()`] writes to standard error.
pub fn reserve_stdout() {
    RESERVED.store(true, Ordering::SeqCst);
}

/// Ends what [`reserve_stdout`] began.
pub fn release_stdout() {
    RESERVED.store(false, Ordering::SeqCst);
}

/// Writes text to standard output, or to standard error while standard output is reserved.
pub fn print(text: &str) -> Result<()> {
    if RESERVED.load(Ordering::SeqCst) {
        note(text.trim_end_matches('\n'));
        return Ok(());
    }
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// Writes a notice to standard error. One that cannot be written changes nothing else.
pub fn note(text: impl std::fmt::Display) {
    let _ = writeln!(io::stderr().lock(), "{}", shown(&text.to_string()));
}

/// A text with its control characters escaped, so that a name in a file cannot steer a terminal.
pub fn shown(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => shown.push(c),
            c if c.is_control() => shown.extend(c.escape_debug()),
            c => shown.push(c),
        }
    }
    shown
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
