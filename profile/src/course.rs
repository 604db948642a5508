//! The rows of a sweep one after another: idle power at all clocks without a context, then with one, so that what makes the
//! context starts once; then each model's points as a chooser asks for them.

use gpumon_core::profile::ProfileRow;

use crate::choose::{Candidate, Choice, Chooser, End};
use crate::plan::{Plan, Step};

/// Where a sweep is.
pub(crate) struct Course<'a> {
    plan: &'a Plan,
    point_s: f64,
    /// The model whose points are asked for.
    place: usize,
    left: Vec<Candidate>,
    /// How the models before it ended.
    ends: Vec<End>,
}

impl<'a> Course<'a> {
    /// From the beginning; each point is expected to take `point_s`, s.
    pub(crate) fn new(plan: &'a Plan, point_s: f64) -> Self {
        let mut course = Self { plan, point_s, place: 0, left: vec![], ends: vec![] };
        course.load();
        course
    }

    /// What the row after `rows` measures; `None` after the last.
    pub(crate) fn next(&mut self, rows: &[ProfileRow], chooser: &mut dyn Chooser) -> Option<Step> {
        let idle = &self.plan.idle;
        if let Some(&clock) = idle.iter().chain(idle).nth(rows.len()) {
            return Some(Step::Idle(clock, rows.len() >= idle.len()));
        }
        while let Some(model) = self.plan.models.get(self.place) {
            let end = match chooser.next(&model.model, rows, &self.left) {
                Choice::Next(i) if i < self.left.len() => {
                    return Some(Step::Point(self.place, self.left.remove(i).point));
                }
                Choice::Next(_) => End::default(),
                Choice::Done(end) => end,
            };
            self.ends.push(end);
            self.place += 1;
            self.load();
        }
        None
    }

    /// How the models ended that are done, in the plan's order.
    pub(crate) fn ends(self) -> Vec<End> {
        self.ends
    }

    fn load(&mut self) {
        let points = self.plan.models.get(self.place).map_or(&[][..], |m| &m.points);
        self.left = points.iter().map(|&point| Candidate { point, expected_s: self.point_s }).collect();
    }
}
