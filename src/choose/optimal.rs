//! Points chosen together, before anything is measured.
//!
//! Rule: for each model a [`Belief`] over its points after the models of the prior profiles; its points are those from which
//! the least variance over all of them is expected. They are measured in the space's order, so a share's process starts once.
//! Cases: a prior profile's rows of the model itself are not used, so that a full grid can be its own prior. Models without a
//! prior that fit at the same points get the same ones.
//! Not done: using what this sweep measured of the models before; the plan would then not be known before it, nor could it be
//! shared out. A fit uses it.

use std::collections::BTreeSet;

use gpumon_core::profile::ProfileRow;
use gpumon_fit::active::Belief;
use gpumon_fit::base::BasePower;
use gpumon_fit::evaluate::models_of;
use gpumon_fit::point::{Observations, Point};
use gpumon_profile::choose::{Candidate, Choice, Chooser, InOrder};
use gpumon_profile::design::part;
use gpumon_profile::space;

use super::{evenly, to_fit};

/// Chooses points by what they are expected to tell.
pub struct Optimal {
    fraction: f64,
    seed: u64,
    known: Vec<Observations>,
    base: Option<BasePower>,
    cap_w: Option<f64>,
}

impl Optimal {
    /// This share of the points. `prior`: rows of profiles of the same kind of GPU; `cap_w`: its power limit, W.
    pub fn new(fraction: f64, seed: u64, prior: Vec<ProfileRow>, cap_w: Option<f64>) -> Self {
        let known = models_of(&prior).iter().map(|m| Observations::of(m, &prior)).collect();
        Self { fraction, seed, known, base: BasePower::of_rows(&prior).ok(), cap_w }
    }
}

impl Chooser for Optimal {
    fn plan(&self, model: &str, fit: Vec<space::Point>) -> Vec<space::Point> {
        let count = part(self.fraction, fit.len());
        let grid = evenly(&fit);
        let places: Vec<Point> = grid.iter().map(to_fit).collect();
        let others: Vec<Observations> = self.known.iter().filter(|m| m.model != model).cloned().collect();
        let Some(belief) = Belief::new(&places, &others, self.base.as_ref(), self.cap_w) else { return fit };
        let chosen: BTreeSet<usize> = belief.optimal(count, self.seed).into_iter().collect();
        grid.into_iter().enumerate().filter(|(i, _)| chosen.contains(i)).map(|(_, point)| point).collect()
    }

    fn next(&mut self, model: &str, rows: &[ProfileRow], left: &[Candidate]) -> Choice {
        InOrder.next(model, rows, left)
    }
}
