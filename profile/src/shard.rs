//! A plan shared out among several GPUs or jobs.
//!
//! Rule: `I/N` is the I-th of N parts, I from 1. The plan's points in their order, each with the time it is expected to take,
//! are cut into N runs of about the same time: a point belongs to the part in which the middle of its time lies. So
//! the parts are the plan, each point once, and changes of model and share stay few. Each part has the idle rows of the clocks
//! at which it measures, because dynamic power is taken against them.
//! Cases: a part without points (more parts than points) is empty, and a sweep of it is an error.
//! Not done here: designs that choose as they go, which have no plan to share out.

use std::fmt;
use std::str::FromStr;

use crate::plan::{ModelPlan, Plan};
use crate::space::Point;

/// Which part of how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    index: u32,
    count: u32,
}

/// Why a text names no part.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no part of a sweep; give `I/N` with I from 1 to N, such as `1/4` (for job arrays that count from 0, \
     `$((SLURM_ARRAY_TASK_ID + 1))/4`)"
)]
pub struct ShardError(String);

impl FromStr for Shard {
    type Err = ShardError;

    fn from_str(text: &str) -> Result<Self, ShardError> {
        let error = || ShardError(text.into());
        let (index, count) = text.split_once('/').ok_or_else(error)?;
        let number = |text: &str| text.trim().parse::<u32>().map_err(|_| error());
        let (index, count) = (number(index)?, number(count)?);
        if (1..=count).contains(&index) { Ok(Self { index, count }) } else { Err(error()) }
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

impl Plan {
    /// The part of this plan. `point_s`: what a point of a model is expected to take, s. Models of which no point is in the
    /// part are not in it.
    pub fn shard(&self, shard: Shard, point_s: impl Fn(&str, &Point) -> f64) -> Self {
        let seconds = |m: &ModelPlan, p: &Point| point_s(&m.model, p).max(1e-9);
        let total: f64 = self.models.iter().flat_map(|m| m.points.iter().map(move |p| seconds(m, p))).sum();
        let mut before = 0.0;
        let mut models = Vec::new();
        for model in &self.models {
            let mut points = Vec::new();
            for point in &model.points {
                let own = seconds(model, point);
                let part = ((before + 0.5 * own) / total * f64::from(shard.count)) as u32;
                before += own;
                if part.min(shard.count - 1) + 1 == shard.index {
                    points.push(*point);
                }
            }
            if !points.is_empty() {
                models.push(ModelPlan { points, ..model.clone() });
            }
        }
        let used = |clock| models.iter().flat_map(|m: &ModelPlan| &m.points).any(|p| p.clock == clock);
        Self { idle: self.idle.iter().copied().filter(|clock| used(*clock)).collect(), models }
    }
}

#[cfg(test)]
mod tests {
    use gpumon_core::share::Share;
    use gpumon_core::units::Megahertz;
    use proptest::prelude::*;

    use super::*;

    fn plan(models: u32, points: u32) -> Plan {
        let point = |i| Point {
            share: Share::Mig(1),
            batch: 1 + i / 7,
            clock: Megahertz(210 + 15 * (i % 7)),
            limit_w: None,
        };
        let model = |m| ModelPlan {
            model: format!("m{m}"),
            points: (0..points).map(point).collect(),
            left_out: vec![],
        };
        Plan {
            idle: (0..7).map(|i| Megahertz(210 + 15 * i)).collect(),
            models: (0..models).map(model).collect(),
        }
    }

    #[test]
    fn parts_are_read() {
        assert_eq!("2/4".parse(), Ok(Shard { index: 2, count: 4 }));
        for wrong in ["", "1", "0/4", "5/4", "1/0", "a/2", "-1/2"] {
            assert!(wrong.parse::<Shard>().unwrap_err().to_string().contains("I from 1 to N"), "{wrong}");
        }
    }

    #[test]
    fn parts_take_about_the_same_time_where_points_do_not() {
        let slow = |_: &str, p: &Point| if p.batch > 5 { 40.0 } else { 10.0 };
        let whole = plan(3, 60);
        let time = |plan: &Plan| {
            plan.models.iter().flat_map(|m| m.points.iter().map(|p| slow(&m.model, p))).sum::<f64>()
        };
        let each = time(&whole) / 4.0;
        for index in 1..=4 {
            let part = whole.shard(Shard { index, count: 4 }, slow);
            assert!((time(&part) - each).abs() <= 40.0, "{index}: {} of {each}", time(&part));
        }
    }

    proptest! {
        #[test]
        fn parts_are_the_plan_each_point_once(models in 1u32..5, points in 1u32..80, count in 1u32..40, seed: u64) {
            let whole = plan(models, points);
            let time = |_: &str, p: &Point| 1.0 + (seed.wrapping_mul(u64::from(p.batch * 31 + p.clock.0)) % 17) as f64;
            let mut found: Vec<(String, Point)> = Vec::new();
            for index in 1..=count {
                let part = whole.shard(Shard { index, count }, time);
                for model in &part.models {
                    prop_assert!(!model.points.is_empty());
                    for point in &model.points {
                        prop_assert!(part.idle.contains(&point.clock));
                        found.push((model.model.clone(), *point));
                    }
                }
                prop_assert_eq!(part.idle.is_empty(), part.models.is_empty());
            }
            let all: Vec<_> =
                whole.models.iter().flat_map(|m| m.points.iter().map(|p| (m.model.clone(), *p))).collect();
            prop_assert_eq!(found, all);
        }
    }
}
