//! What a sweep will measure: rows of idle power at each clock, then each model's points, in order.
//!
//! Rule: the plan is made before anything runs, from the space, the design and what fits; a journal is taken up only for
//! the same plan.

use gpumon_core::profile::{IDLE, IDLE_CONTEXT, ProfileRow};
use gpumon_core::units::Megahertz;

use crate::choose::Chooser;
use crate::design::Design;
use crate::space::{Point, Space};
use crate::workload::Workload;

/// What a sweep will measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Clocks at which idle power is measured, without and with a context.
    pub idle: Vec<Megahertz>,
    /// The models, one after another.
    pub models: Vec<ModelPlan>,
}

/// What a sweep will measure of one model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelPlan {
    /// The model's name.
    pub model: String,
    /// Points, in order.
    pub points: Vec<Point>,
    /// Points of the space that cannot run, and why.
    pub left_out: Vec<(Point, String)>,
}

impl Plan {
    /// For each workload, the points of a design over those of `space` that fit. Each model has a design of its own,
    /// which depends on `seed` and on the model's place.
    pub fn new(space: &Space, design: Design, seed: u64, workloads: &[Box<dyn Workload>]) -> Self {
        let plan = |(place, workload): (usize, &dyn Workload)| {
            let mut left_out = Vec::new();
            let fits = |point: &Point| match workload.fits(point) {
                Ok(()) => true,
                Err(why) => {
                    left_out.push((*point, why));
                    false
                }
            };
            let points = design.points(space, seed.wrapping_add(place as u64), fits);
            ModelPlan { model: workload.name().into(), points, left_out }
        };
        let models: Vec<ModelPlan> = workloads.iter().map(Box::as_ref).enumerate().map(plan).collect();
        let used = |clock: &Megahertz| models.iter().flat_map(|m| &m.points).any(|p| p.clock == *clock);
        Self { idle: space.clocks().iter().copied().filter(used).collect(), models }
    }

    /// The part of it that a chooser is going to ask for.
    pub fn by(mut self, chooser: &dyn Chooser) -> Self {
        for model in &mut self.models {
            model.points = chooser.plan(&model.model, std::mem::take(&mut model.points));
        }
        let used = |clock: &Megahertz| self.models.iter().flat_map(|m| &m.points).any(|p| p.clock == *clock);
        self.idle.retain(used);
        self
    }

    /// Points of all models.
    pub fn points(&self) -> usize {
        self.models.iter().map(|m| m.points.len()).sum()
    }

    /// Rows that it makes.
    pub fn rows(&self) -> usize {
        2 * self.idle.len() + self.points()
    }

    /// Rows that it makes at most by a chooser.
    pub fn rows_by(&self, chooser: &dyn Chooser) -> usize {
        2 * self.idle.len() + self.points_by(chooser)
    }

    pub(crate) fn points_by(&self, chooser: &dyn Chooser) -> usize {
        self.models.iter().map(|m| chooser.most(m.points.len())).sum()
    }
}

/// What one row measures.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Idle(Megahertz, bool),
    /// A point of the model at this place.
    Point(usize, Point),
}

impl Step {
    /// Whether a row measures this.
    pub(crate) fn is_of(self, plan: &Plan, row: &ProfileRow) -> bool {
        let clock_is = |clock: Megahertz| i64::from(row.frequency) == i64::from(clock.0);
        match self {
            Self::Idle(clock, context) => {
                row.model == if context { IDLE_CONTEXT } else { IDLE } && clock_is(clock)
            }
            Self::Point(place, point) => {
                plan.models.get(place).is_some_and(|m| m.model == row.model)
                    && i64::from(row.batch_size) == i64::from(point.batch)
                    && row.mig_slices == point.share.slices().map(i32::from)
                    && (row.share - point.share.fraction()).abs() < 1e-6
                    && clock_is(point.clock)
                    && row.power_limit_w.map(i64::from) == point.limit_w.map(i64::from)
            }
        }
    }

    /// In words.
    pub(crate) fn text(self, plan: &Plan) -> String {
        match self {
            Self::Idle(clock, true) => format!("`{IDLE_CONTEXT}` at {clock}"),
            Self::Idle(clock, false) => format!("`{IDLE}` at {clock}"),
            Self::Point(place, point) => {
                let model = plan.models.get(place).map_or("", |m| m.model.as_str());
                format!("`{model}`, {point}")
            }
        }
    }

    /// Place of the workload that it needs; idle rows take the first.
    pub(crate) fn place(self) -> usize {
        match self {
            Self::Idle(..) => 0,
            Self::Point(place, _) => place,
        }
    }
}
