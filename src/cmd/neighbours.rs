//! What a model file's measured sets say of two models that share a GPU, for systems that look at neighbours.
//!
//! Rule: the mean slowdown that `predict --together` tells of both at their shares, batches and clock, each working all the time.
//! Cases: none under MIG, whose instances do not disturb each other, nor of a file without measured sets. A prediction that fails is
//! kept, and the plan is an error then ([`Neighbours::failed`]).
//! Answers are remembered, because systems ask for the same pairs again and again.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use anyhow::Result;
use gpumon_core::units::Megahertz;
use gpumon_core::workload::{Sharing, Workload};
use gpumon_fit::colocation::error::ColocationError;
use gpumon_fit::colocation::model::Asked;
use gpumon_fit::model_file::ModelFile;
use gpumon_fit::point::{Point, Share};
use gpumon_place::candidate;
use gpumon_place::slowdown::{Runs, Slowdown};

/// Model, batch, share in billionths, clock.
type Key = (String, u32, u64, u32);

/// A model file that answers for pairs.
pub struct Neighbours {
    models: ModelFile,
    known: Mutex<HashMap<[Key; 2], f64>>,
    failed: Mutex<Option<ColocationError>>,
}

impl Neighbours {
    /// Those of a file, where it has measured sets and the workload shares GPUs by MPS.
    pub fn of(models: ModelFile, workload: &Workload) -> Option<Self> {
        let is_mps = workload.cluster.sharing == Some(Sharing::Mps);
        let knows = is_mps && models.colocation.is_some();
        knows.then(|| Self { models, known: Mutex::default(), failed: Mutex::default() })
    }

    /// The first prediction that failed.
    ///
    /// # Errors
    ///
    /// That prediction's.
    pub fn failed(&self) -> Result<()> {
        match self.failed.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(error) => Err(anyhow::Error::new(error).context("how much neighbours slow each other down")),
            None => Ok(()),
        }
    }

    fn predicted(&self, pair: [Runs; 2]) -> Result<f64, ColocationError> {
        let asked = |runs: Runs| Asked {
            model: runs.model.to_owned(),
            point: Point {
                batch: runs.candidate.batch,
                share: match runs.candidate.share {
                    candidate::Share::Slices(n) => Share::Slices(n),
                    candidate::Share::Percent(pct) => Share::Sms(pct / 100.0),
                },
                frequency: Megahertz(runs.candidate.frequency_mhz),
                processes: runs.candidate.processes,
            },
            rate_rps: None,
        };
        let said = self.models.together(&pair.map(asked))?;
        Ok(said.members.first().map_or(1.0, |own| own.slowdown.value))
    }
}

fn key(runs: Runs) -> Key {
    let c = runs.candidate;
    (runs.model.to_owned(), c.batch, (c.share.amount() * 1e7).round() as u64, c.frequency_mhz)
}

impl Slowdown for Neighbours {
    fn factor(&self, own: Runs, neighbour: Runs) -> f64 {
        let pair = [own, neighbour];
        let keys = pair.map(key);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        *known.entry(keys).or_insert_with(|| {
            self.predicted(pair).unwrap_or_else(|error| {
                self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                1.0
            })
        })
    }
}

impl fmt::Debug for Neighbours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Neighbours").finish_non_exhaustive()
    }
}
