//! What a process that died left on GPUs, and putting it back at the next start.
//!
//! Rule: a journal whose owner is dead and whose lock is free was left. Whoever is about to control that GPU puts it back
//! first; `gpumon restore` does so for all GPUs; who only reads says that it is there.
//! Cases: a journal that cannot be read is an error that names it, for the caller to tell; the GPU is not controlled then.

use std::path::Path;
use std::time::Duration;

use super::Control;
use super::journal::{self, Changed, Journal, JournalError, Kept};
use super::restore::{self, Restored};

/// What was left in a folder. Journals of processes that live are not.
pub fn all(folder: &Path) -> Vec<Result<Journal, JournalError>> {
    let found = journal::all(folder).into_iter().filter_map(|path| {
        let loaded = journal::load(&path).transpose()?;
        Some((path, loaded))
    });
    found
        .filter(|(path, loaded)| loaded.as_ref().map_or(true, |journal| journal::is_left(path, journal)))
        .map(|(_, loaded)| loaded)
        .collect()
}

/// Puts back what was left on one GPU, if anything, and keeps the lock.
pub fn put_back(
    kept: &Kept,
    control: &dyn Control,
    patience: Duration,
) -> Result<Option<Restored>, JournalError> {
    let Some(mut left) = kept.left()? else { return Ok(None) };
    let restored = restore::put_back(control, &left.found, &mut left.changed, patience);
    kept.keep(&left)?;
    Ok(Some(restored))
}

/// What is still set, in words.
pub fn words(changed: &Changed) -> String {
    let parts = [
        changed.clocks.then(|| "locked clocks".to_owned()),
        changed.power_limit.then(|| "a power limit".to_owned()),
        changed.mig.then(|| "MIG mode".to_owned()),
        (!changed.instances.is_empty()).then(|| format!("{} MIG instances", changed.instances.len())),
        changed.mps.is_some().then(|| "an MPS daemon".to_owned()),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}
