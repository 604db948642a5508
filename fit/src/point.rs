//! Points of share × frequency × batch, and what rows say about them.
//!
//! Rule: rows that cannot be used are left out and counted by reason; repeats of a point count once, by their mean.
//!
//! Clocks and limits: a row whose power limit (`power_limit_w`) did not hold it down is like one without a limit. One that it
//! did hold down (power at 98.5 % of the limit or more) tells its time only, and that at the clock it reached; without
//! `sm_mhz_achieved` it is left out. A row whose clock was locked and fell short by more than 3 % was throttled: it too counts at the clock it
//! reached.
//!
//! Cases: a row of a MIG instance has the instance's share of the memory slices as well; shares through MPS or green
//! contexts have all of the memory (m = 1). A row may lack a figure: it then serves the other figures only. A
//! dynamic power that equals the average in most rows was never separated from the base, so it is refused.
//!
//! Several processes of one model in a share are one more coordinate of a point (1 where a row does not say): throughput is that of all
//! of them together, latency that of a batch in one of them.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use gpumon_core::geometry::SEVEN_SLICES;
use gpumon_core::profile::ProfileRow;
use gpumon_core::units::Megahertz;
use serde::{Deserialize, Serialize};

use crate::base::median;
use crate::power::AT_CAP;

/// How much of a GPU a model has.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Share {
    /// A MIG instance with this many compute slices, of seven.
    Slices(u8),
    /// A share of the SMs, above 0 and at most 1, with all of the memory (MPS, green contexts).
    Sms(f64),
}

impl Share {
    /// Share of the SMs, 0 to 1.
    pub fn sms(self) -> f64 {
        match self {
            Self::Slices(n) => f64::from(n) / f64::from(SEVEN_SLICES.compute_slices),
            Self::Sms(share) => share,
        }
    }

    /// Whether it is a MIG instance.
    pub(crate) fn is_slices(self) -> bool {
        matches!(self, Self::Slices(_))
    }

    /// Share of the memory slices, 0 to 1; `None` for a MIG instance that does not exist.
    pub fn memory(self) -> Option<f64> {
        match self {
            Self::Slices(n) => {
                let profile = SEVEN_SLICES.profile(n)?;
                Some(f64::from(profile.memory_slots) / f64::from(SEVEN_SLICES.memory_slots))
            }
            Self::Sms(_) => Some(1.0),
        }
    }
}

/// Where a model is run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Items in a batch, at least 1.
    pub batch: u32,
    /// Share of the GPU.
    pub share: Share,
    /// SM clock.
    pub frequency: Megahertz,
    /// Processes that serve the model together in this share, at least 1.
    pub processes: u32,
}

/// Less than an SM of any GPU; a smaller share is a slip.
const LEAST_SHARE: f64 = 1e-3;

impl Point {
    /// The point of a row; the name of the column that is out of range if there is none.
    pub fn of(row: &ProfileRow) -> Result<Self, &'static str> {
        let batch = u32::try_from(row.batch_size).ok().filter(|b| *b > 0).ok_or("batch_size")?;
        let mhz = u32::try_from(row.frequency).ok().filter(|f| *f > 0).ok_or("frequency")?;
        let share = match row.mig_slices {
            Some(n) => Share::Slices(u8::try_from(n).map_err(|_| "mig_slices")?),
            None if (LEAST_SHARE..=1.0).contains(&row.share) => Share::Sms(row.share),
            None => return Err("share"),
        };
        share.memory().ok_or("mig_slices")?;
        let processes = row.processes.map_or(Some(1), |n| u32::try_from(n).ok().filter(|n| *n > 0));
        Ok(Self { batch, share, frequency: Megahertz(mhz), processes: processes.ok_or("processes")? })
    }

    pub(crate) fn batch_items(&self) -> f64 {
        f64::from(self.batch)
    }

    pub(crate) fn processes_count(&self) -> f64 {
        f64::from(self.processes)
    }

    pub(crate) fn ghz(&self) -> f64 {
        f64::from(self.frequency.0) / 1e3
    }

    /// Share, frequency and batch, as the samplers take them.
    pub fn coordinates(&self) -> [f64; 3] {
        [self.share.sms(), f64::from(self.frequency.0), self.batch_items()]
    }
}

/// What was measured at a point; every figure is positive and finite, within 1e-9 to 1e9.
#[derive(Clone, Debug, PartialEq)]
pub struct Observation {
    /// Where.
    pub point: Point,
    /// Mean power of the GPU, W.
    pub average_w: Option<f64>,
    /// Power above the base, W.
    pub dynamic_w: Option<f64>,
    /// Items a second.
    pub throughput: Option<f64>,
    /// Latency, ms.
    pub latency_ms: Option<f64>,
    /// 99th percentile of the time of a batch over its median.
    pub tail: Option<f64>,
}

impl Observation {
    /// Time of one batch, ms: batch / throughput. Of several processes it is the time from one batch's end to the next one's.
    pub fn batch_time_ms(&self) -> Option<f64> {
        self.throughput.map(|t| 1e3 * self.point.batch_items() / t)
    }

    /// Time of one batch in one of the processes, ms.
    pub(crate) fn own_time_ms(&self) -> Option<f64> {
        Some(self.point.processes_count() * self.batch_time_ms()?)
    }
}

/// The usable rows of one model.
#[derive(Clone, Debug, PartialEq)]
pub struct Observations {
    /// Model name.
    pub model: String,
    /// One entry a point, in order of the points.
    pub points: Vec<Observation>,
    /// Why rows or figures were left out, with counts.
    pub dropped: Vec<String>,
    /// What is odd about rows that were used.
    pub remarks: Vec<String>,
    /// Why the column of dynamic power was refused, if it was.
    pub dynamic_refused: Option<String>,
}

/// Dynamic power within this share of the average power counts as equal to it.
const EQUAL: f64 = 1e-3;

/// No figure in items/s or ms lies outside; what does is a broken reading.
const PLAUSIBLE: RangeInclusive<f64> = 1e-9..=1e9;
/// Power of a whole GPU, W; what lies outside is in another unit.
const PLAUSIBLE_W: RangeInclusive<f64> = 1.0..=3000.0;
/// SM clocks, MHz.
const PLAUSIBLE_MHZ: RangeInclusive<i32> = 50..=5000;
/// A locked clock that was reached to less than this share was throttled.
const REACHED: f64 = 0.97;

/// Latency over batch / throughput, where one of them is in units of a thousand.
const OFF: RangeInclusive<f64> = 300.0..=3000.0;

/// A row as it counts.
struct Usable<'a> {
    point: Point,
    row: &'a ProfileRow,
    /// Whether its power says something.
    power: bool,
    throttled: bool,
}

/// The row, or why it cannot be used.
fn usable(row: &ProfileRow) -> Result<Usable<'_>, String> {
    if !row.valid {
        return Err("marked invalid".into());
    }
    let mut point = Point::of(row).map_err(|column| format!("`{column}` out of range"))?;
    if !PLAUSIBLE_MHZ.contains(&row.frequency) {
        return Err("`frequency` is no SM clock in MHz; look at its unit".into());
    }
    let reached = row.sm_mhz_achieved.filter(|mhz| *mhz >= 1.0 && *mhz < 1e5);
    let at_limit = match (row.power_limit_w, row.avg_power_draw) {
        (Some(limit), Some(w)) => w >= AT_CAP * f64::from(limit),
        (Some(_), None) => return Err("a power limit was set and no power measured".into()),
        (None, _) => false,
    };
    let short = reached.is_some_and(|mhz| mhz < REACHED * f64::from(row.frequency));
    let throttled = !at_limit && row.clock_locked == Some(true) && short;
    if at_limit || throttled {
        let reached =
            reached.ok_or("held down by its power limit to a clock that `sm_mhz_achieved` does not say")?;
        point.frequency = Megahertz(reached.round() as u32);
    }
    Ok(Usable { point, row, power: !at_limit, throttled })
}

impl Observations {
    /// The rows of `model` among `rows`, without those that cannot be used.
    pub fn of(model: &str, rows: &[ProfileRow]) -> Self {
        let mut dropped = BTreeMap::<String, usize>::new();
        let mut groups = BTreeMap::<_, (Point, Vec<Usable<'_>>)>::new();
        let (mut limited, mut throttled) = (0, 0);
        for row in rows.iter().filter(|r| r.model == model) {
            match usable(row) {
                Ok(usable) => {
                    limited += usize::from(!usable.power);
                    throttled += usize::from(usable.throttled);
                    let point = usable.point;
                    let share = (point.share.sms() * 1e6).round() as i64;
                    let key = (point.batch, share, point.share.is_slices(), point.frequency, point.processes);
                    groups.entry(key).or_insert_with(|| (point, Vec::new())).1.push(usable);
                }
                Err(reason) => *dropped.entry(reason).or_default() += 1,
            }
        }
        let mut points = Vec::new();
        for (point, rows) in groups.into_values() {
            let mut mean =
                |name: &str, within: RangeInclusive<f64>, value: fn(&Usable<'_>) -> Option<f64>| {
                    let given: Vec<f64> = rows.iter().filter_map(value).collect();
                    let good: Vec<f64> = given.iter().copied().filter(|v| within.contains(v)).collect();
                    if given.len() > good.len() {
                        let unit = if within == PLAUSIBLE_W { " of W; look at its unit" } else { "" };
                        *dropped.entry(format!("`{name}` not a plausible number{unit}")).or_default() +=
                            given.len() - good.len();
                    }
                    (!good.is_empty()).then(|| good.iter().sum::<f64>() / good.len() as f64)
                };
            let tail = |u: &Usable<'_>| Some(u.row.latency_p99? / u.row.latency_p50?).filter(|r| *r >= 1.0);
            let dynamic = |u: &Usable<'_>| u.row.dynamic_power_draw.filter(|_| u.power);
            points.push(Observation {
                point,
                average_w: mean("avg_power_draw", PLAUSIBLE_W, |u| u.row.avg_power_draw.filter(|_| u.power)),
                dynamic_w: mean("dynamic_power_draw", 1e-9..=3000.0, dynamic),
                throughput: mean("throughput", PLAUSIBLE, |u| u.row.throughput),
                latency_ms: mean("latency", PLAUSIBLE, |u| u.row.latency),
                tail: mean("latency_p99", 1.0..=1e6, tail),
            });
        }
        let both: Vec<(f64, f64)> =
            points.iter().filter_map(|o| Some((o.average_w?, o.dynamic_w?))).collect();
        let equal = both.iter().filter(|(average, dynamic)| *dynamic >= average * (1.0 - EQUAL)).count();
        let dynamic_refused = (equal > 0 && 2 * equal >= both.len()).then(|| {
            format!(
                "dynamic_power_draw equals avg_power_draw in {equal} of {} points: the base was never taken off; \
                 measure the idle GPU at each clock and subtract it",
                both.len()
            )
        });
        for observation in &mut points {
            let above =
                |o: &Observation| o.dynamic_w.zip(o.average_w).is_some_and(|(d, a)| d >= a * (1.0 - EQUAL));
            if dynamic_refused.is_some() || above(observation) {
                observation.dynamic_w = None;
            }
        }
        let dropped = dropped.into_iter().map(|(reason, n)| format!("{n} × {reason}")).collect();
        let remarks = remarks(&points, limited, throttled);
        Self { remarks, model: model.to_owned(), points, dropped, dynamic_refused }
    }

    /// The observations at `indices`, the rest unchanged.
    pub(crate) fn at(&self, indices: impl IntoIterator<Item = usize>) -> Self {
        let points = indices.into_iter().filter_map(|i| self.points.get(i).cloned()).collect();
        Self { points, ..self.clone() }
    }
}

/// What is odd about rows that were used.
fn remarks(points: &[Observation], limited: usize, throttled: usize) -> Vec<String> {
    let mut remarks = Vec::new();
    if limited > 0 {
        remarks.push(format!(
            "{limited} rows were held down by their power limit: their times count at the clocks that were reached, their \
             power does not"
        ));
    }
    if throttled > 0 {
        remarks.push(format!(
            "{throttled} rows were throttled more than 3 % below the clock that was locked: they count at the clocks that \
             were reached"
        ));
    }
    let ratio = |o: &Observation| Some(o.latency_ms? / o.own_time_ms()?);
    let mut ratios: Vec<f64> = points.iter().filter_map(ratio).collect();
    let ratio = median(&mut ratios);
    let said = match ratio {
        r if r > 0.0 && (1.0 / OFF.end()..=1.0 / OFF.start()).contains(&r) => "a thousandth of",
        r if OFF.contains(&r) => "a thousand times",
        _ => return remarks,
    };
    remarks.push(format!(
        "latency is {said} batch / throughput ({ratio:.3e} times): one of the columns is in another unit; expected are ms and \
         items a second"
    ));
    remarks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(batch: i32, slices: i32, mhz: i32) -> ProfileRow {
        let mut row = ProfileRow::new("m", batch, f64::from(slices) / 7.0, mhz);
        row.mig_slices = Some(slices);
        row.avg_power_draw = Some(100.0);
        row.dynamic_power_draw = Some(40.0);
        row.throughput = Some(10.0);
        row
    }

    #[test]
    fn memory_follows_the_instance_and_is_whole_without_one() {
        let memory = [1, 2, 3, 4, 7].map(|n| Share::Slices(n).memory().unwrap() * 8.0);
        assert_eq!(memory, [1.0, 2.0, 4.0, 4.0, 8.0]);
        assert_eq!(Share::Slices(5).memory(), None);
        assert_eq!(Share::Sms(0.3).memory(), Some(1.0));
    }

    #[test]
    fn bad_rows_are_left_out_and_counted() {
        let mut rows = vec![row(1, 1, 210), row(2, 1, 210), row(0, 1, 210), row(4, 5, 210), row(8, 1, -3)];
        rows[1].throughput = Some(f64::NAN);
        rows[1].avg_power_draw = Some(-5.0);
        rows.push(ProfileRow { valid: false, ..row(16, 1, 210) });
        rows.push(ProfileRow { processes: Some(0), ..row(16, 1, 210) });
        let seen = Observations::of("m", &rows);
        assert_eq!(seen.points.len(), 2);
        assert_eq!((seen.points[1].throughput, seen.points[1].average_w), (None, None));
        let text = seen.dropped.join("; ");
        for reason in [
            "1 × `batch_size`",
            "1 × `mig_slices`",
            "1 × `frequency`",
            "invalid",
            "`processes`",
            "`throughput`",
        ] {
            assert!(text.contains(reason), "{text}");
        }
    }

    #[test]
    fn repeats_count_once_by_their_mean() {
        let mut rows = vec![row(1, 1, 210), row(1, 1, 210)];
        rows[1].throughput = Some(20.0);
        let seen = Observations::of("m", &rows);
        assert_eq!(seen.points.len(), 1);
        assert_eq!(seen.points[0].throughput, Some(15.0));
        assert_eq!(seen.points[0].batch_time_ms(), Some(1000.0 / 15.0));
    }

    #[test]
    fn dynamic_power_that_equals_the_average_is_refused() {
        let same = |b| ProfileRow { dynamic_power_draw: Some(100.0), ..row(b, 1, 210) };
        let seen = Observations::of("m", &[same(1), same(2), row(4, 1, 210)]);
        assert!(seen.dynamic_refused.unwrap().contains("2 of 3"));
        assert!(seen.points.iter().all(|o| o.dynamic_w.is_none()));
    }
}
