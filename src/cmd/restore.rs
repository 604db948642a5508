//! `gpumon restore`: puts back what a gpumon that was killed, with its janitor, left on GPUs. And the janitor itself.

use std::env;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use gpumon_core::clock::RealClock;
use gpumon_monitor::control::dry::DryControl;
use gpumon_monitor::control::guard::Safety;
use gpumon_monitor::control::journal::{self, Journal, Kept};
use gpumon_monitor::control::restore::{PATIENCE, Restored};
use gpumon_monitor::control::{self, janitor, left, restore};

use super::DONE;
use crate::cli::control::{JanitorArgs, RestoreArgs};
use crate::output::{self, note};

/// Exit code: something could not be put back.
const NOT_ALL: u8 = 1;

/// The folder of journals.
pub fn folder() -> Result<PathBuf> {
    Ok(journal::folder(env::var_os("XDG_STATE_HOME"), env::var_os("HOME"))?)
}

/// Journals of this user, and this program as their janitor.
pub fn safety() -> Result<Safety> {
    // The file that this process runs from, even if another one has its name by now.
    let program = "/proc/self/exe".into();
    let janitor = janitor::Call { program, arguments: ["__janitor", "--journal"].map(Into::into).to_vec() };
    Ok(Safety { folder: folder()?, janitor })
}

/// Restores all GPUs on which something was left, or one.
pub fn run(args: &RestoreArgs) -> Result<u8> {
    let folder = folder()?;
    let (mut code, mut any) = (DONE, false);
    for found in left::all(&folder) {
        let journal = match found {
            Ok(journal) => journal,
            Err(e) => {
                note(format_args!("gpumon: {e}"));
                (code, any) = (NOT_ALL, true);
                continue;
            }
        };
        if args.gpu.as_deref().is_some_and(|gpu| !is(&journal, gpu)) {
            continue;
        }
        any = true;
        output::print(&format!("{}: {}\n", journal.name, message(&journal)))?;
        match one(&folder, &journal, args.dry_run) {
            Ok(restored) => {
                for command in &restored.done {
                    output::print(&format!("  put back: {command}\n"))?;
                }
                for (command, e) in &restored.failed {
                    note(format_args!("gpumon: not put back: `{command}`: {e}"));
                    code = NOT_ALL;
                }
            }
            Err(e) => {
                note(format_args!("gpumon: {}: {e:#}", journal.uuid));
                code = NOT_ALL;
            }
        }
    }
    if !any {
        output::print("nothing was left to put back\n")?;
    }
    Ok(code)
}

/// What was left, in words.
pub fn message(journal: &Journal) -> String {
    format!("left from a run that died (process {}): {}", journal.owner.pid, left::words(&journal.changed))
}

fn is(journal: &Journal, gpu: &str) -> bool {
    let bare = |uuid: &str| uuid.to_ascii_lowercase().trim_start_matches("gpu-").to_owned();
    journal.index.to_string() == gpu || (gpu.len() > 3 && bare(&journal.uuid).starts_with(&bare(gpu)))
}

fn one(folder: &std::path::Path, journal: &Journal, dry_run: bool) -> Result<Restored> {
    let control = control::of_uuid(&journal.uuid, Arc::new(RealClock)).map_err(anyhow::Error::msg)?;
    if dry_run {
        let control = DryControl::new(
            control,
            Box::new(|line| drop(output::print(&format!("  would run: {line}\n")))),
        )?;
        restore::put_back(&control, &journal.found, &mut journal.changed.clone(), PATIENCE);
        return Ok(Restored::default());
    }
    let kept = Kept::lock(folder, &journal.uuid, &journal.name)?;
    Ok(left::put_back(&kept, control.as_ref(), PATIENCE)?.unwrap_or_default())
}

/// The janitor of another gpumon.
pub fn janitor(args: &JanitorArgs) -> Result<u8> {
    let find = |uuid: &str| control::of_uuid(uuid, Arc::new(RealClock));
    janitor::live(&args.journal, find).context("the janitor")?;
    Ok(DONE)
}
