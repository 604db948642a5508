//! Which models need the largest share, for errors about too few GPUs.

use crate::candidate::Share;
use crate::problem::{Demand, Problem};

/// The models whose smallest feasible share is the largest, in words.
pub fn hardest(problem: &Problem) -> String {
    let least = |m: &Demand| {
        let shares = m.feasible.iter().map(|&i| m.candidates[i].share);
        shares.min_by(|a, b| a.amount().total_cmp(&b.amount()))
    };
    let of_all: Vec<(&Demand, Share)> = problem.models.iter().filter_map(|m| Some((m, least(m)?))).collect();
    let Some(most) = of_all.iter().map(|(_, s)| *s).max_by(|a, b| a.amount().total_cmp(&b.amount())) else {
        return "no model has a feasible share".into();
    };
    let names: Vec<_> =
        of_all.iter().filter(|(_, s)| *s == most).map(|(m, _)| format!("`{}`", m.name)).collect();
    format!("{}: at least {most} each", names.join(", "))
}
