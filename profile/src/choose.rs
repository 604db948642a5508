//! What decides which point is measured next, and when a model is done.
//!
//! ```text
//! rows so far, points left → Chooser → the next point, or done
//! ```
//!
//! Rule: a chooser's answer depends on the rows and the points left only, so a sweep that goes on from its journal chooses
//! what it would have chosen without the stop. Points of one model are asked for until it is done; then come those of the
//! next. Before anything is measured it may say which of the points that fit it is going to ask for ([`Chooser::plan`]): these are
//! the sweep's plan, which can be shared out and is compared on going on.
//! Cases: [`InOrder`] takes what a design listed, one after another. Choosers that fit as they go live outside this crate,
//! which knows nothing of fitting.

use gpumon_core::profile::ProfileRow;

use crate::space::Point;

/// A point that could be measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Where.
    pub point: Point,
    /// What measuring it is expected to take, s.
    pub expected_s: f64,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Choice {
    /// Measure this one of the candidates.
    Next(usize),
    /// The model is done.
    Done(End),
}

/// How a model ended.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct End {
    /// The error that a fit of these rows is expected to have at other points, the larger of batch time's and total power's
    /// medians, relative; `None` where nobody expects one.
    pub expected_error: Option<f64>,
    /// Whether that was what the model was to reach; `None` where nothing was.
    pub reached: Option<bool>,
}

/// Chooses points.
pub trait Chooser {
    /// The next point of `model`. `rows`: all that were made so far, idle rows and other models' included, in their
    /// order. `left`: its points that were not measured yet, in the space's order.
    fn next(&mut self, model: &str, rows: &[ProfileRow], left: &[Candidate]) -> Choice;

    /// The points of `model` that it is going to ask for, in their order, of those that fit; all where it decides as it goes.
    fn plan(&self, _model: &str, fit: Vec<Point>) -> Vec<Point> {
        fit
    }

    /// What its choices rest on beside the rows and the points, in words; `None` if on nothing.
    fn rests_on(&self) -> Option<&'static str> {
        None
    }

    /// How many points of a model it asks for at most, of so many.
    fn most(&self, of: usize) -> usize {
        of
    }
}

/// The candidates one after another, all of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct InOrder;

impl Chooser for InOrder {
    fn next(&mut self, _: &str, _: &[ProfileRow], left: &[Candidate]) -> Choice {
        if left.is_empty() { Choice::Done(End::default()) } else { Choice::Next(0) }
    }
}
