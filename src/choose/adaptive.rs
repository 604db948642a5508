//! Points chosen one after another, by what those before them told.
//!
//! Rule: for each model a [`Belief`] over its points, after the models of the prior profiles and those that this sweep has
//! finished; it takes up the model's rows in their order. It ends at the goal's error or number of points, and not before
//! [`FEWEST`] points were measured.
//! A point's seconds are those of any, more where batches are expected to be long, and more for the first point of a share, by
//! what such points took longer so far in this sweep: a process starts there.
//! Cases: a prior profile's rows of the model itself are not used, so that a full grid can be its own prior. Of more than
//! [`gpumon_fit::active::MOST`] points evenly taken ones are candidates. Points that failed count as measured and tell nothing.
//! Not done here: changing the base power while a model is swept; it is what is known when the model begins.

use std::collections::BTreeSet;

use gpumon_core::profile::ProfileRow;
use gpumon_fit::active::Belief;
use gpumon_fit::base::BasePower;
use gpumon_fit::evaluate::models_of;
use gpumon_fit::point::{Observations, Point};
use gpumon_profile::choose::{Candidate, Choice, Chooser, End};
use gpumon_profile::design::Goal;
use gpumon_profile::protocol::Protocol;
use gpumon_profile::replay::point_of;
use gpumon_profile::space;

use super::{evenly, to_fit};

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
        let grid = evenly(&points);
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
        let choice = state.choose(&self.goal, rows, left);
        self.state = Some(state);
        choice
    }

    fn rests_on(&self) -> Option<&'static str> {
        Some("the profiles of --prior and on --cap-w")
    }

    fn most(&self, of: usize) -> usize {
        self.goal.cap(of)
    }
}

impl State {
    fn choose(&self, goal: &Goal, rows: &[ProfileRow], left: &[Candidate]) -> Choice {
        let Some(belief) = &self.belief else { return Choice::Done(End::default()) };
        let expected = belief.expected_error().larger();
        let reached = goal.error.map(|error| self.measured >= FEWEST && expected <= error);
        let done = Choice::Done(End { expected_error: Some(expected), reached });
        if reached == Some(true) || self.measured >= goal.cap(self.measured + left.len()) {
            return done;
        }
        let cost = Cost::of(&self.model, rows);
        let seconds = |c: &Candidate, place: usize| {
            let batch_s = belief.at(place).map_or(0.0, |e| e.batch_time_ms / 1e3);
            c.expected_s + Protocol::default().longer_s(batch_s) + cost.start_s(&c.point)
        };
        let places: Vec<(usize, f64)> = left
            .iter()
            .filter_map(|c| self.grid.binary_search(&c.point).ok().map(|place| (place, seconds(c, place))))
            .collect();
        let best = belief.best(&places).and_then(|place| self.grid.get(place));
        best.and_then(|point| left.iter().position(|c| c.point == *point)).map_or(done, Choice::Next)
    }
}

/// What the first point of a share takes longer.
struct Cost {
    start_s: f64,
    /// Shares of the model in which it was measured already, in millionths of the SMs.
    begun: BTreeSet<i64>,
}

impl Cost {
    fn of(model: &str, rows: &[ProfileRow]) -> Self {
        let (mut first_s, mut later_s, mut seen) = (Vec::new(), Vec::new(), BTreeSet::new());
        for row in rows.iter().filter(|row| !row.is_idle()) {
            let is_first = seen.insert((row.model.as_str(), millionths(row.share)));
            if let Some(wall_s) = row.wall_s.filter(|_| row.valid) {
                if is_first { first_s.push(wall_s) } else { later_s.push(wall_s) }
            }
        }
        let start_s =
            median(first_s).zip(median(later_s)).map_or(0.0, |(first, later)| (first - later).max(0.0));
        let begun = seen.into_iter().filter(|(of, _)| *of == model).map(|(_, share)| share).collect();
        Self { start_s, begun }
    }

    fn start_s(&self, point: &space::Point) -> f64 {
        if self.begun.contains(&millionths(point.share.fraction())) { 0.0 } else { self.start_s }
    }
}

fn millionths(share: f64) -> i64 {
    (share * 1e6).round() as i64
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use gpumon_core::profile::IDLE_CONTEXT;
    use gpumon_core::share::Share as Of;
    use gpumon_core::units::Megahertz;

    use super::*;

    /// A made-up model; `bulk` is its work.
    fn row(model: &str, point: &space::Point, bulk: f64) -> ProfileRow {
        let (b, f, s) = (f64::from(point.batch), f64::from(point.clock.0) / 1e3, point.share.fraction());
        let ms = 3.0 + 2.0 / f + bulk * b / (s * f);
        let mut row = ProfileRow::new(model, point.batch as i32, s, point.clock.0 as i32);
        row.mig_slices = point.share.slices().map(i32::from);
        let dynamic_w = 12.0 + 120.0 * s * f * (bulk * b / (s * f) / ms);
        (row.avg_power_draw, row.dynamic_power_draw) = (Some(60.0 + dynamic_w), Some(dynamic_w));
        (row.throughput, row.latency) = (Some(1e3 * b / ms), Some(ms));
        row
    }

    fn candidates() -> Vec<Candidate> {
        let mut all = Vec::new();
        for share in [1, 2, 3, 4, 7].map(Of::Mig) {
            for batch in [1, 4, 16] {
                for clock in [210, 510, 810, 1110, 1410].map(Megahertz) {
                    let point = space::Point { share, batch, clock, limit_w: None };
                    all.push(Candidate { point, expected_s: 4.0 });
                }
            }
        }
        all
    }

    fn idle() -> Vec<ProfileRow> {
        let idle =
            |mhz| ProfileRow { avg_power_draw: Some(60.0), ..ProfileRow::new(IDLE_CONTEXT, 0, 1.0, mhz) };
        [210, 510, 810, 1110, 1410].map(idle).into()
    }

    /// Measures a model until the chooser is done; gives how it ended.
    fn sweep(chooser: &mut Adaptive, rows: &mut Vec<ProfileRow>, model: &str, bulk: f64) -> End {
        let mut left = candidates();
        loop {
            match chooser.next(model, rows, &left) {
                Choice::Next(i) => rows.push(row(model, &left.remove(i).point, bulk)),
                Choice::Done(end) => return end,
            }
        }
    }

    fn adaptive(goal: &str, prior: &[ProfileRow]) -> Adaptive {
        let gpumon_profile::design::Design::Adaptive(goal) = goal.parse().unwrap() else { unreachable!() };
        Adaptive::new(goal, prior.to_vec(), None)
    }

    #[test]
    fn a_chooser_that_begins_in_the_middle_chooses_what_one_from_the_start_does() {
        let mut rows = idle();
        let mut whole = adaptive("adaptive:0.2", &[]);
        sweep(&mut whole, &mut rows, "a", 0.8);
        sweep(&mut whole, &mut rows, "b", 3.0);
        for (model, from, to) in [("a", 5, 20), ("b", 20, 35)] {
            for stop in from..to {
                let mut left = candidates();
                let done: Vec<_> = rows[from..stop].iter().filter_map(point_of).collect();
                left.retain(|c| !done.contains(&c.point));
                let choice = adaptive("adaptive:0.2", &[]).next(model, &rows[..stop], &left);
                let Choice::Next(i) = choice else { unreachable!("{choice:?}") };
                assert_eq!(Some(left[i].point), point_of(&rows[stop]), "{model} at {stop}");
            }
        }
    }

    #[test]
    fn known_models_save_points_and_caps_hold() {
        let prior: Vec<ProfileRow> = [("x", 0.3), ("y", 1.5), ("z", 6.0)]
            .iter()
            .flat_map(|(name, bulk)| candidates().into_iter().map(move |c| row(name, &c.point, *bulk)))
            .collect();
        let points = |goal: &str, prior: &[ProfileRow]| {
            let mut rows = idle();
            let end = sweep(&mut adaptive(goal, prior), &mut rows, "a", 0.8);
            (rows.len() - 5, end)
        };
        let (alone, with) = (points("adaptive:1,err=0.025", &[]), points("adaptive:1,err=0.025", &prior));
        assert!(with.0 < alone.0, "{} with, {} without", with.0, alone.0);
        for (count, end) in [alone, with] {
            assert!(count >= FEWEST && end.reached == Some(true) && end.expected_error.unwrap() <= 0.025);
        }
        let (count, end) = points("adaptive:0.1,err=0.0001", &[]);
        assert_eq!((count, end.reached), (8, Some(false)));
        assert_eq!(points("adaptive:0.1", &[]).1.reached, None);
    }

    #[test]
    fn a_share_that_takes_long_to_begin_is_stayed_in() {
        let shares = |start_s: f64| {
            let (mut rows, mut left, mut chooser) = (idle(), candidates(), adaptive("adaptive:0.16", &[]));
            let mut begun = BTreeSet::new();
            while let Choice::Next(i) = chooser.next("a", &rows, &left) {
                let point = left.remove(i).point;
                let is_first = begun.insert(point.share);
                let wall_s = Some(if is_first { 3.0 + start_s } else { 3.0 });
                rows.push(ProfileRow { wall_s, ..row("a", &point, 0.001) });
            }
            (rows.len() - 5, begun.len())
        };
        let (alike, dear) = (shares(0.0), shares(500.0));
        assert_eq!((alike.0, dear.0), (12, 12));
        assert!(dear.1 < alike.1, "{dear:?} {alike:?}");
    }

    #[test]
    fn long_batches_and_first_points_cost_more() {
        let mut rows = idle();
        let points: Vec<space::Point> = candidates().iter().map(|c| c.point).collect();
        for (i, wall_s) in [(0, 12.0), (1, 2.0), (2, 2.5), (15, 14.0)] {
            rows.push(ProfileRow { wall_s: Some(wall_s), ..row("a", &points[i], 1.0) });
        }
        let cost = Cost::of("a", &rows);
        assert_eq!((cost.start_s(&points[3]), cost.start_s(&points[31])), (0.0, 14.0 - 2.5));
        assert_eq!(Cost::of("b", &rows).start_s(&points[0]), 11.5, "another model starts anew");
        let protocol = Protocol::default();
        assert_eq!((protocol.longer_s(0.05), protocol.longer_s(0.5)), (0.0, 0.6 + 4.0));
    }

    #[test]
    fn failed_points_count_and_tell_nothing() {
        let (mut rows, mut left) = (idle(), candidates());
        let mut chooser = adaptive("adaptive:0.1", &[]);
        while let Choice::Next(i) = chooser.next("a", &rows, &left) {
            let failed = ProfileRow { valid: false, ..row("a", &left.remove(i).point, 1.0) };
            rows.push(failed);
        }
        assert_eq!(rows.len(), 5 + 8);
    }
}
