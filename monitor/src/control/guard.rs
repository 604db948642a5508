//! Acts that are undone, however this process ends.
//!
//! Rule: what was found is read once. Before each act it is in the journal, on disk, that the act will have to be undone;
//! only then is it done. Undoing happens when the guard is dropped (so at a normal end, an error and a panic), by the
//! janitor (a signal that leaves at once, kill -9), or by the next start (the janitor was killed too).
//! Cases: an act that certainly did not happen is struck from the journal again; one that failed otherwise stays on it.
//! On a GPU whose settings end with the process there is neither journal nor janitor. A janitor that was killed is
//! replaced before the next act.
//! Not done here: deciding what to set ([`super::stage`]).

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use gpumon_core::units::{Megahertz, Milliwatts};

use super::janitor::{Call, Janitor};
use super::journal::{Changed, Found, Journal, JournalError, Kept, Made};
use super::restore::{self, PATIENCE, Restored};
use super::{Control, ControlError, Instance, left, mps};

/// Where the journal is kept and how a janitor is started.
#[derive(Clone, Debug)]
pub struct Safety {
    /// Folder of journals.
    pub folder: PathBuf,
    /// The janitor.
    pub janitor: Call,
}

/// Why a guard cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    /// What is found cannot be kept.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The GPU cannot be asked.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// No janitor.
    #[error("the process that puts the GPU back after a kill cannot be started: {0}; nothing was changed")]
    Janitor(std::io::Error),
    /// What a process before left cannot be put back.
    #[error(
        "what a gpumon that died left on {gpu} cannot be put back: `{command}`: {error}; see `gpumon restore`"
    )]
    Left {
        /// The GPU.
        gpu: String,
        /// What was tried.
        command: String,
        /// Why it failed.
        error: ControlError,
    },
}

struct Safe {
    kept: Kept,
    call: Call,
    janitor: Janitor,
}

/// One GPU, with what has to be undone on it.
pub struct Guard {
    control: Arc<dyn Control>,
    journal: Journal,
    safe: Option<Safe>,
    put_back_first: Option<Restored>,
    /// Nothing was done since the last try to put everything back.
    tried: bool,
}

impl Guard {
    /// Puts back what a process before left, reads what is set, and makes sure that it can be put back.
    pub fn begin(control: Arc<dyn Control>, safety: &Safety) -> Result<Self, GuardError> {
        let gpu = control.identity().clone();
        let kept = match control.outlives_process() {
            true => Some(Kept::lock(&safety.folder, &gpu.uuid, &gpu.name)?),
            false => None,
        };
        let put_back_first = match &kept {
            Some(kept) => left::put_back(kept, control.as_ref(), PATIENCE)?,
            None => None,
        };
        if let Some((command, error)) = put_back_first.as_ref().and_then(|restored| restored.failed.first()) {
            return Err(GuardError::Left {
                gpu: gpu.to_string(),
                command: command.clone(),
                error: error.clone(),
            });
        }
        let state = control.state()?;
        let found =
            Found { power_limit_mw: state.power.map(|p| p.now), mig: state.mig, instances: state.instances };
        let journal = Journal::begin(&gpu, found);
        let safe = match kept {
            None => None,
            Some(kept) => {
                kept.try_out(&journal)?;
                let call = safety.janitor.clone();
                let janitor = Janitor::start(&call, kept.path()).map_err(GuardError::Janitor)?;
                Some(Safe { kept, call, janitor })
            }
        };
        Ok(Self { control, journal, safe, put_back_first, tried: false })
    }

    /// The control underneath, for reading what is set.
    pub fn control(&self) -> &dyn Control {
        self.control.as_ref()
    }

    /// What was set when the guard began.
    pub fn found(&self) -> &Found {
        &self.journal.found
    }

    /// What has to be undone.
    pub fn changed(&self) -> &Changed {
        &self.journal.changed
    }

    /// What a process that died had left and was put back first.
    pub fn put_back_first(&self) -> Option<&Restored> {
        self.put_back_first.as_ref()
    }

    /// The janitor's process, if there is one.
    pub fn janitor_pid(&self) -> Option<u32> {
        self.safe.as_ref().map(|safe| safe.janitor.pid())
    }

    /// Writes down what will be changed. The disk comes first.
    fn keep(&mut self) -> Result<(), ControlError> {
        let Some(safe) = &mut self.safe else { return Ok(()) };
        safe.kept.keep(&self.journal).map_err(|e| ControlError::Failed(e.to_string()))?;
        if !safe.janitor.waits() {
            let replaced = Janitor::start(&safe.call, safe.kept.path());
            safe.janitor = replaced.map_err(|e| ControlError::Failed(GuardError::Janitor(e).to_string()))?;
        }
        Ok(())
    }

    /// Does one act after `plan` of it is on disk; what certainly did not happen is struck again.
    fn act<T>(
        &mut self,
        plan: impl FnOnce(&mut Changed),
        act: impl FnOnce(&dyn Control) -> Result<T, ControlError>,
    ) -> Result<T, ControlError> {
        self.tried = false;
        let before = self.journal.changed.clone();
        plan(&mut self.journal.changed);
        if self.journal.changed != before
            && let Err(e) = self.keep()
        {
            self.journal.changed = before;
            return Err(e);
        }
        let result = act(self.control.as_ref());
        if result.as_ref().is_err_and(ControlError::left_all_as_it_was) {
            self.journal.changed = before;
            self.keep()?;
        }
        result
    }

    /// Locks the SM clock to a range.
    pub fn lock_clocks(&mut self, lowest: Megahertz, highest: Megahertz) -> Result<(), ControlError> {
        self.act(|changed| changed.clocks = true, |control| control.lock_clocks(lowest, highest))
    }

    /// Sets the power limit.
    pub fn set_power_limit(&mut self, limit: Milliwatts) -> Result<(), ControlError> {
        self.act(|changed| changed.power_limit = true, |control| control.set_power_limit(limit))
    }

    /// Turns MIG on or off.
    pub fn set_mig(&mut self, on: bool) -> Result<(), ControlError> {
        self.act(|changed| changed.mig = true, |control| control.set_mig(on))
    }

    /// Makes a MIG instance.
    pub fn create_instance(&mut self, slices: u8, start: u8) -> Result<Instance, ControlError> {
        let about = Made { slices, start, instance: None };
        let made = self
            .act(|changed| changed.instances.push(about), |control| control.create_instance(slices, start))?;
        if let Some(last) = self.journal.changed.instances.last_mut() {
            last.instance = Some(made.clone());
        }
        self.keep()?;
        Ok(made)
    }

    /// Destroys the instances that were made here, and no others.
    pub fn destroy_instances(&mut self) -> Result<(), ControlError> {
        let mut restored = Restored::default();
        let Journal { found, changed, .. } = &mut self.journal;
        let until = Instant::now() + PATIENCE;
        restore::destroy(self.control.as_ref(), found, &mut changed.instances, until, &mut restored);
        self.keep()?;
        restored.failed.into_iter().next().map_or(Ok(()), |(_, e)| Err(e))
    }

    /// Starts an MPS daemon, unless ours runs, and tells its folder.
    pub fn start_mps(&mut self) -> Result<PathBuf, ControlError> {
        if let Some(running) = &self.journal.changed.mps {
            return Ok(running.clone());
        }
        let folder = mps::new_folder()?;
        let of_daemon = folder.clone();
        let started = self.act(|changed| changed.mps = Some(of_daemon), |control| control.start_mps(&folder));
        if let Err(e) = started {
            self.stop_mps()?;
            // What was struck from the journal may still have its folder.
            let _ = mps::remove(&folder);
            return Err(e);
        }
        Ok(folder)
    }

    /// Stops our MPS daemon, if it runs.
    pub fn stop_mps(&mut self) -> Result<(), ControlError> {
        let Some(folder) = self.journal.changed.mps.clone() else { return Ok(()) };
        self.control.stop_mps(&folder)?;
        self.journal.changed.mps = None;
        self.keep()
    }

    /// Puts everything back. What could not be put back stays in the journal, for the janitor and the next start.
    pub fn restore(&mut self) -> Restored {
        if self.journal.changed.is_nothing() {
            return Restored::default();
        }
        self.tried = true;
        let Journal { found, changed, .. } = &mut self.journal;
        let mut restored = restore::put_back(self.control.as_ref(), found, changed, PATIENCE);
        if let Err(e) = self.keep() {
            restored.failed.push(("the journal".into(), e));
        }
        restored
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.tried {
            // Whoever tried was told what failed; the janitor tries again.
            return;
        }
        for (command, error) in self.restore().failed {
            tracing::warn!("not put back: `{command}`: {error}; `gpumon restore` tries again");
        }
    }
}
