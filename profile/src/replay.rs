//! A sweep whose answers come from a full grid instead of a GPU, so that designs can be compared.
//!
//! Rule: the design, or the chooser, sees what it would see in a sweep; each row it asks for is the grid's. Idle rows come
//! first, those of the clocks that the grid has points at. A row's cost is its `wall_s` where the grid has it, else what
//! [`Replay::point_s`] says.
//! Cases: rows keep all they say; their `reason` names the grid they were replayed from. Invalid rows are answers too: they
//! cost time and tell nothing. Of rows of one point on several GPUs the first is taken; rows of several processes in a
//! share are left out.
//! Not done here: the times of loading and of changing shares, which a grid does not tell apart.

use std::collections::BTreeMap;

use gpumon_core::profile::ProfileRow;
use gpumon_core::share::Share;
use gpumon_core::units::Megahertz;

use crate::choose::{Candidate, Choice, Chooser, End};
use crate::design::Design;
use crate::space::{Point, Space, SpaceError};

/// How a grid is replayed.
#[derive(Clone, Debug, PartialEq)]
pub struct Replay {
    /// Which points are candidates: all with `full`, `optimal` and `adaptive`.
    pub design: Design,
    /// Seed of the design.
    pub seed: u64,
    /// Models, in this order; all of the grid in its own order where empty.
    pub models: Vec<String>,
    /// Time of a row that does not say its own, s.
    pub point_s: f64,
    /// What rows are marked with: where they come from.
    pub source: String,
}

/// What was replayed.
#[derive(Clone, Debug, PartialEq)]
pub struct Replayed {
    /// The rows in the order in which they were asked for.
    pub rows: Vec<ProfileRow>,
    /// Each model.
    pub models: Vec<ReplayedModel>,
    /// Time of all rows, s.
    pub total_s: f64,
    /// How many rows said their own time.
    pub timed: usize,
    /// What the user should know.
    pub notices: Vec<String>,
}

/// What was replayed of one model.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplayedModel {
    /// Its name.
    pub model: String,
    /// Points of the grid.
    pub of: usize,
    /// Points asked for.
    pub points: usize,
    /// Their time, s.
    pub total_s: f64,
    /// How it ended.
    pub end: End,
}

/// Why a grid cannot be replayed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// The grid has no rows of a model.
    #[error("the grid has no rows of `{model}`; its models are {there}")]
    NoModel {
        /// Which.
        model: String,
        /// Those it has.
        there: String,
    },
    /// The grid has no rows of any model.
    #[error("the grid has no rows of a model")]
    Empty,
    /// The grid's levels are no space.
    #[error("the grid's points cannot be swept: {0}")]
    Space(#[from] SpaceError),
    /// Two shares of the grid cannot be told apart.
    #[error("`{model}`, {point}: the grid has several rows there whose shares differ by less than a percent")]
    SameShare {
        /// The model.
        model: String,
        /// The point.
        point: String,
    },
}

/// Green contexts are taken in parts of this many.
const GREEN_PARTS: u16 = 10_000;

/// The point of a row; `None` for rows that a sweep does not make: idle ones, several processes, no share.
pub fn point_of(row: &ProfileRow) -> Option<Point> {
    if row.is_idle() || row.processes.is_some_and(|n| n > 1) {
        return None;
    }
    let share = match (row.mig_slices, row.share_kind.as_deref()) {
        (Some(slices), _) => Share::Mig(u8::try_from(slices).ok()?),
        (None, Some("green")) => {
            Share::Green { sms: (row.share * f64::from(GREEN_PARTS)).round() as u16, of: GREEN_PARTS }
        }
        (None, _) => Share::Mps((row.share * 100.0).round().clamp(1.0, 100.0) as u8),
    };
    let batch = u32::try_from(row.batch_size).ok().filter(|b| *b > 0)?;
    let clock = Megahertz(u32::try_from(row.frequency).ok()?);
    let limit_w = row.power_limit_w.and_then(|w| u32::try_from(w).ok());
    Some(Point { share, batch, clock, limit_w })
}

/// Replays `grid`.
///
/// # Errors
///
/// As [`ReplayError`] says.
pub fn replay(grid: &[ProfileRow], how: &Replay, chooser: &mut dyn Chooser) -> Result<Replayed, ReplayError> {
    let mut there: Vec<&str> = Vec::new();
    for row in grid.iter().filter(|r| !r.is_idle()) {
        if !there.contains(&row.model.as_str()) {
            there.push(&row.model);
        }
    }
    if there.is_empty() {
        return Err(ReplayError::Empty);
    }
    let models =
        if how.models.is_empty() { there.clone() } else { how.models.iter().map(String::as_str).collect() };
    if let Some(model) = models.iter().find(|m| !there.contains(*m)) {
        let there = there.iter().map(|m| format!("`{m}`")).collect::<Vec<_>>().join(", ");
        return Err(ReplayError::NoModel { model: (*model).into(), there });
    }
    let mut made = Replayed { rows: vec![], models: vec![], total_s: 0.0, timed: 0, notices: vec![] };
    let used = |clock: i32| grid.iter().any(|r| models.contains(&r.model.as_str()) && r.frequency == clock);
    for row in grid.iter().filter(|r| r.is_idle() && used(r.frequency)) {
        made.take(row, how);
    }
    for (place, model) in models.into_iter().enumerate() {
        made.model(grid, model, how, how.seed.wrapping_add(place as u64), chooser)?;
    }
    Ok(made)
}

impl Replayed {
    fn model(
        &mut self,
        grid: &[ProfileRow],
        model: &str,
        how: &Replay,
        seed: u64,
        chooser: &mut dyn Chooser,
    ) -> Result<(), ReplayError> {
        let mut rows: BTreeMap<Point, &ProfileRow> = BTreeMap::new();
        let (mut others, mut processes) = (0, 0);
        for row in grid.iter().filter(|r| r.model == model) {
            let Some(point) = point_of(row) else {
                processes += 1;
                continue;
            };
            match rows.get(&point) {
                None => _ = rows.insert(point, row),
                Some(first) if first.key() == row.key() => others += 1,
                Some(_) => {
                    return Err(ReplayError::SameShare { model: model.into(), point: point.to_string() });
                }
            }
        }
        // Where limits are swept, a row at the limit that was found is at none of them.
        let all = rows.len();
        if rows.keys().any(|p| p.limit_w.is_some()) {
            rows.retain(|p, _| p.limit_w.is_some());
        }
        let unlimited = all - rows.len();
        for (count, what) in [
            (others, "of points that an earlier row has too"),
            (processes, "of several processes"),
            (unlimited, "without a power limit"),
        ] {
            if count > 0 {
                self.notices.push(format!("{model}: {count} rows {what} are left out"));
            }
        }
        let points = |axis: fn(&Point) -> u32| rows.keys().map(axis).collect::<Vec<u32>>();
        let clocks: Vec<Megahertz> = points(|p| p.clock.0).into_iter().map(Megahertz).collect();
        let mut supported = clocks.clone();
        supported.sort_unstable();
        supported.dedup();
        let shares: Vec<Share> = rows.keys().map(|p| p.share).collect();
        let space = Space::new(&shares, &points(|p| p.batch), &clocks, &supported)?;
        let limits: Vec<u32> = rows.keys().filter_map(|p| p.limit_w).collect();
        let space = space.with_limits(&limits);
        let fit = how.design.points(&space, seed, |point| rows.contains_key(point));
        let planned = chooser.plan(model, fit);
        let mut left: Vec<Candidate> =
            planned.into_iter().map(|point| Candidate { point, expected_s: how.point_s }).collect();
        let (before_s, before) = (self.total_s, self.rows.len());
        let end = loop {
            match chooser.next(model, &self.rows, &left) {
                Choice::Done(end) => break end,
                Choice::Next(i) if i < left.len() => {
                    let point = left.remove(i).point;
                    if let Some(row) = rows.get(&point) {
                        self.take(row, how);
                    }
                }
                Choice::Next(_) => break End::default(),
            }
        };
        let (points, total_s) = (self.rows.len() - before, self.total_s - before_s);
        self.models.push(ReplayedModel { model: model.into(), of: rows.len(), points, total_s, end });
        Ok(())
    }

    fn take(&mut self, row: &ProfileRow, how: &Replay) {
        let mark = format!("replayed from {}", how.source);
        let reason = match &row.reason {
            Some(before) => format!("{before}; {mark}"),
            None => mark,
        };
        self.total_s += row.wall_s.unwrap_or(how.point_s);
        self.timed += usize::from(row.wall_s.is_some());
        self.rows.push(ProfileRow { reason: Some(reason), ..row.clone() });
    }
}

#[cfg(test)]
mod tests {
    use gpumon_core::profile::{IDLE, IDLE_CONTEXT};

    use super::*;
    use crate::choose::InOrder;

    fn row(model: &str, batch: i32, slices: i32, mhz: i32) -> ProfileRow {
        let mut row = ProfileRow::new(model, batch, f64::from(slices) / 7.0, mhz);
        (row.mig_slices, row.throughput, row.latency) = (Some(slices), Some(10.0), Some(100.0));
        row
    }

    /// Two models over 3 shares × 2 batch sizes × 4 clocks, with idle rows at each clock and one more.
    fn grid() -> Vec<ProfileRow> {
        let mut rows = Vec::new();
        for mhz in [210, 510, 810, 1110, 1410] {
            rows.extend([IDLE, IDLE_CONTEXT].map(|name| ProfileRow::new(name, 0, 1.0, mhz)));
        }
        for model in ["a", "b"] {
            for mhz in [210, 510, 810, 1110] {
                for slices in [1, 3, 7] {
                    rows.extend([1, 8].map(|batch| row(model, batch, slices, mhz)));
                }
            }
        }
        rows
    }

    fn how(design: &str) -> Replay {
        Replay {
            design: design.parse().unwrap(),
            seed: 1,
            models: vec![],
            point_s: 10.0,
            source: "g.csv".into(),
        }
    }

    #[test]
    fn a_full_replay_has_every_row_marked_and_its_cost() {
        let mut grid = grid();
        grid[20].wall_s = Some(4.0);
        grid[21].reason = Some("power cap".into());
        let made = replay(&grid, &how("full"), &mut InOrder).unwrap();
        assert_eq!((made.rows.len(), made.timed, made.total_s), (8 + 48, 1, 55.0 * 10.0 + 4.0));
        assert!(made.rows[..8].iter().all(|r| r.is_idle() && r.frequency < 1410));
        assert!(
            made.rows.iter().all(|r| r.reason.as_deref().is_some_and(|t| t.ends_with("replayed from g.csv")))
        );
        assert_eq!(made.models.iter().map(|m| (m.points, m.of)).collect::<Vec<_>>(), [(24, 24), (24, 24)]);
        for row in &made.rows {
            let source = grid.iter().find(|r| r.key() == row.key()).unwrap();
            assert_eq!(&ProfileRow { reason: source.reason.clone(), ..row.clone() }, source);
        }
    }

    #[test]
    fn a_hypercube_is_the_one_of_a_sweep() {
        let made =
            replay(&grid(), &Replay { models: vec!["b".into()], ..how("lhs:0.25") }, &mut InOrder).unwrap();
        let clocks: Vec<_> = [210, 510, 810, 1110].map(Megahertz).into();
        let space = Space::new(&[1, 3, 7].map(Share::Mig), &[1, 8], &clocks, &clocks).unwrap();
        let found: Vec<_> = made.rows.iter().filter_map(point_of).collect();
        assert_eq!(found, Design::Lhs(0.25).points(&space, 1, |_| true));
    }

    #[test]
    fn a_chooser_sees_its_rows_and_ends_the_model() {
        /// Takes the last point left until it has seen three.
        struct Last;
        impl Chooser for Last {
            fn next(&mut self, model: &str, rows: &[ProfileRow], left: &[Candidate]) -> Choice {
                let own = rows.iter().filter(|r| r.model == model).count();
                assert_eq!(own + left.len(), 24);
                let end = End { expected_error: Some(0.1), reached: None };
                if own == 3 { Choice::Done(end) } else { Choice::Next(left.len() - 1) }
            }
        }
        let made = replay(&grid(), &how("adaptive:0.5"), &mut Last).unwrap();
        assert_eq!(made.rows.len(), 8 + 6);
        assert_eq!(made.models[1].end.expected_error, Some(0.1));
        assert_eq!(
            (made.rows[8].mig_slices, made.rows[8].frequency, made.rows[8].batch_size),
            (Some(7), 1110, 8)
        );
    }

    #[test]
    fn what_cannot_be_replayed_is_said() {
        let missing = replay(&grid(), &Replay { models: vec!["c".into()], ..how("full") }, &mut InOrder);
        assert!(missing.unwrap_err().to_string().contains("its models are `a`, `b`"));
        assert_eq!(replay(&[], &how("full"), &mut InOrder), Err(ReplayError::Empty));
        let mut close = vec![row("a", 1, 1, 210), row("a", 1, 1, 210)];
        (close[0].mig_slices, close[1].mig_slices, close[0].share, close[1].share) =
            (None, None, 0.501, 0.502);
        assert!(matches!(replay(&close, &how("full"), &mut InOrder), Err(ReplayError::SameShare { .. })));
        let mut some = grid();
        some[10].processes = Some(2);
        some[11].power_limit_w = Some(200);
        let notices = replay(&some, &how("full"), &mut InOrder).unwrap().notices.join("; ");
        assert!(
            notices.contains("1 rows of several processes")
                && notices.contains("22 rows without a power limit"),
            "{notices}"
        );
    }
}
