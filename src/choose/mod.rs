//! Lets what `fit` believes choose what `profile` measures; neither knows of the other.
//!
//! | design | chooser |
//! |---|---|
//! | `full`, `lhs:F` | the plan's points in their order |
//! | `optimal:F` | [`optimal`]: a plan made from what is believed before anything is measured |
//! | `adaptive:…` | [`adaptive`]: one point after another |
//!
//! Rule: of more than [`active::MOST`] points evenly taken ones are candidates.

use gpumon_core::profile::ProfileRow;
use gpumon_fit::active;
use gpumon_fit::point::{Point, Share};
use gpumon_profile::choose::{Chooser, InOrder};
use gpumon_profile::design::Design;
use gpumon_profile::space;

mod adaptive;
mod optimal;

/// What chooses the points of a design. `prior`: rows of profiles of the same kind of GPU; `cap_w`: its power limit, W.
pub fn chooser(design: Design, seed: u64, prior: Vec<ProfileRow>, cap_w: Option<f64>) -> Box<dyn Chooser> {
    match design {
        Design::Full | Design::Lhs(_) => Box::new(InOrder),
        Design::Optimal(fraction) => Box::new(optimal::Optimal::new(fraction, seed, prior, cap_w)),
        Design::Adaptive(goal) => Box::new(adaptive::Adaptive::new(goal, prior, cap_w)),
    }
}

/// As many points as can be believed of, evenly taken.
fn evenly(points: &[space::Point]) -> Vec<space::Point> {
    let count = points.len().min(active::MOST);
    (0..count).filter_map(|i| points.get(i * points.len() / count).copied()).collect()
}

fn to_fit(point: &space::Point) -> Point {
    let share = match point.share {
        gpumon_core::share::Share::Mig(slices) => Share::Slices(slices),
        other => Share::Sms(other.fraction()),
    };
    Point { batch: point.batch, share, frequency: point.clock, processes: 1 }
}
