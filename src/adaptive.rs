//! Lets what `fit` believes choose what `profile` measures; neither knows of the other.
//!
//! Rule: for each model a [`Belief`] over its points, after the models of the prior profiles and those that this sweep has
//! finished; it takes up the model's rows in their order. It ends at the goal's error or number of points, and not before
//! [`FEWEST`] points were measured.
//! Cases: a prior profile's rows of the model itself are not used, so that a full grid can be its own prior. Of more than
//! [`active::MOST`] points evenly taken ones are candidates. Points that failed count as measured and tell nothing.
//! Not done here: changing the base power while a model is swept; it is what is known when the model begins.

use gpumon_core::profile::ProfileRow;
use gpumon_fit::active::{self, Belief};
use gpumon_fit::base::BasePower;
use gpumon_fit::evaluate::models_of;
use gpumon_fit::point::{Observations, Point, Share};
use gpumon_profile::choose::{Candidate, Choice, Chooser, End};
use gpumon_profile::design::Goal;
use gpumon_profile::replay::point_of;
use gpumon_profile::space;

/// No model ends by its expected error before that many points.
const FEWEST: usize = 5;

/// Chooses points by what they would tell.
pub struct Adaptive {
    goal: Goal,
    prior: Vec<ProfileRow>,
    cap_w: Option<f64>,
    state: Option<State>,
}

/// One model, as far as its rows were taken up.
struct State {
    model: String,
    grid: Vec<space::Point>,
    belief: Option<Belief>,
    /// Rows of the sweep that were looked at.
    looked_at: usize,
    measured: usize,
}

impl Adaptive {
    /// `prior`: rows of profiles of the same kind of GPU; `cap_w`: its power limit, W.
    pub fn new(goal: Goal, prior: Vec<ProfileRow>, cap_w: Option<f64>) -> Self {
        Self { goal, prior, cap_w, state: None }
    }

    fn begin(&self, model: &str, rows: &[ProfileRow], left: &[Candidate]) -> State {
        // The same grid whether a sweep begins or goes on: the points left and those measured.
        let mut points: Vec<space::Point> = left.iter().map(|c| c.point).collect();
        points.extend(rows.iter().filter(|r| r.model == model).filter_map(point_of));
        points.sort_unstable();
        points.dedup();
        let count = points.len().min(active::MOST);
        let grid: Vec<space::Point> =
            (0..count).filter_map(|i| points.get(i * points.len() / count).copied()).collect();
        let before: Vec<ProfileRow> = rows.iter().take_while(|r| r.model != model).cloned().collect();
        let known: Vec<ProfileRow> =
            self.prior.iter().filter(|r| r.model != model).chain(&before).cloned().collect();
        let models: Vec<Observations> =
            models_of(&known).iter().map(|m| Observations::of(m, &known)).collect();
        // The sweep's own idle rows, where it has some.
        let base = BasePower::of_rows(&before).or_else(|_| BasePower::of_rows(&known)).ok();
        let fitted: Vec<Point> = grid.iter().map(to_fit).collect();
        let belief = Belief::new(&fitted, &models, base.as_ref(), self.cap_w);
        State { model: model.into(), grid, belief, looked_at: 0, measured: 0 }
    }
}

impl Chooser for Adaptive {
    fn next(&mut self, model: &str, rows: &[ProfileRow], left: &[Candidate]) -> Choice {
        let goes_on = |s: &State| s.model == model && s.looked_at <= rows.len();
        let mut state = match self.state.take().filter(goes_on) {
            Some(state) => state,
            None => self.begin(model, rows, left),
        };
        for row in rows.iter().skip(state.looked_at).filter(|r| r.model == model) {
            state.measured += 1;
            let seen = Observations::of(model, std::slice::from_ref(row));
            if let (Some(belief), Some(point)) = (&mut state.belief, seen.points.first()) {
                belief.see(point);
            }
        }
        state.looked_at = rows.len();
        let choice = state.choose(&self.goal, left);
        self.state = Some(state);
        choice
    }

    fn most(&self, of: usize) -> usize {
        self.goal.cap(of)
    }
}

impl State {
    fn choose(&self, goal: &Goal, left: &[Candidate]) -> Choice {
        let Some(belief) = &self.belief else { return Choice::Done(End::default()) };
        let expected = belief.expected_error().larger();
        let reached = goal.error.map(|error| self.measured >= FEWEST && expected <= error);
        let done = Choice::Done(End { expected_error: Some(expected), reached });
        if reached == Some(true) || self.measured >= goal.cap(self.measured + left.len()) {
            return done;
        }
        let places: Vec<(usize, f64)> = left
            .iter()
            .filter_map(|c| Some((self.grid.binary_search(&c.point).ok()?, c.expected_s)))
            .collect();
        let best = belief.best(&places).and_then(|place| self.grid.get(place));
        best.and_then(|point| left.iter().position(|c| c.point == *point)).map_or(done, Choice::Next)
    }
}

fn to_fit(point: &space::Point) -> Point {
    let share = match point.share {
        gpumon_core::share::Share::Mig(slices) => Share::Slices(slices),
        other => Share::Sms(other.fraction()),
    };
    Point { batch: point.batch, share, frequency: point.clock }
}
