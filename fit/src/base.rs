//! The power of a GPU before any model works on it, by clock.
//!
//! Rule: total power = base(f) + Σ dynamic power of the models; the base is paid once for a shared GPU. Between known
//! clocks the base is linear; beyond them it stays at the last one.
//!
//! Cases, in the order [`BasePower::of_rows`] tries them:
//! - rows of `@idle-context`: the base is their mean power at each clock; where `@idle` was measured as well, that is
//!   the static part and the difference the idle part;
//! - otherwise rows with average and dynamic power: the median of their difference at each clock.
//!
//! A table of static, fan and idle power comes in through [`BasePower::of_table`].
//!
//! Not done: the change of static power with temperature.
//!
//! Source: EnerTune (SOSP'26): power = static(f) + fan + idle(f) + Σ dynamic, static, fan and idle paid once.

use std::collections::BTreeMap;

use gpumon_core::profile::{IDLE, IDLE_CONTEXT, ProfileRow};
use gpumon_core::units::Megahertz;
use serde::{Deserialize, Serialize};

use crate::error::FitError;
use crate::point::Observations;

/// No GPU draws more, W.
const MAX_W: f64 = 10_000.0;

/// Base power at one clock.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BasePoint {
    /// SM clock, MHz.
    pub frequency_mhz: u32,
    /// Base power, W: the sum of the parts, where they are known.
    pub base_w: f64,
    /// Power without a context, W.
    pub static_w: Option<f64>,
    /// Power of fans, W, where it is known apart from the static power.
    pub fan_w: Option<f64>,
    /// What a context without work adds, W.
    pub idle_w: Option<f64>,
}

/// Where base power comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BaseSource {
    /// A table that was given.
    Table,
    /// Rows of the GPU without work.
    IdleRows,
    /// Median of average minus dynamic power.
    Difference,
}

/// Base power by clock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BasePower {
    /// Where it comes from.
    pub source: BaseSource,
    /// At least one point, by ascending clock.
    pub points: Vec<BasePoint>,
}

impl BasePower {
    /// From (clock, static, fan and idle power in W).
    ///
    /// # Errors
    ///
    /// [`FitError::NoBase`] if there is no row, a clock is 0 or repeated, or a power is negative or not a number.
    pub fn of_table(table: &[(Megahertz, f64, f64, f64)]) -> Result<Self, FitError> {
        let points = table.iter().map(|&(clock, static_w, fan_w, idle_w)| BasePoint {
            frequency_mhz: clock.0,
            base_w: static_w + fan_w + idle_w,
            static_w: Some(static_w),
            fan_w: Some(fan_w),
            idle_w: Some(idle_w),
        });
        Self::checked(BaseSource::Table, points.collect())
    }

    /// From the rows of a profile: its idle rows if it has any, else average minus dynamic power.
    ///
    /// # Errors
    ///
    /// [`FitError::NoBase`] if the rows have neither.
    pub fn of_rows(rows: &[ProfileRow]) -> Result<Self, FitError> {
        let context = idle_means(rows, IDLE_CONTEXT);
        let without = idle_means(rows, IDLE);
        let points: Vec<BasePoint> = if context.is_empty() {
            without.iter().map(|(&mhz, &w)| BasePoint { static_w: Some(w), ..bare(mhz, w) }).collect()
        } else {
            let idle = |mhz: u32, w: f64| without.get(&mhz).map(|below| w - below);
            context
                .iter()
                .map(|(&mhz, &w)| BasePoint {
                    static_w: without.get(&mhz).copied(),
                    idle_w: idle(mhz, w),
                    ..bare(mhz, w)
                })
                .collect()
        };
        if !points.is_empty() {
            return Self::checked(BaseSource::IdleRows, points);
        }
        let mut models: Vec<&str> = rows.iter().map(|r| r.model.as_str()).collect();
        models.sort_unstable();
        models.dedup();
        let seen: Vec<Observations> = models.iter().map(|m| Observations::of(m, rows)).collect();
        Self::of_difference(&seen)
    }

    /// The median of average minus dynamic power at each clock, over models on the same GPU.
    ///
    /// # Errors
    ///
    /// [`FitError::NoBase`] if no point has both.
    pub fn of_difference(models: &[Observations]) -> Result<Self, FitError> {
        let mut differences = BTreeMap::<u32, Vec<f64>>::new();
        for o in models.iter().flat_map(|m| &m.points) {
            if let (Some(average), Some(dynamic)) = (o.average_w, o.dynamic_w) {
                differences.entry(o.point.frequency.0).or_default().push(average - dynamic);
            }
        }
        let points = differences.into_iter().map(|(mhz, mut w)| bare(mhz, median(&mut w)));
        Self::checked(BaseSource::Difference, points.collect())
    }

    /// Base power at a clock, W.
    pub fn at_w(&self, clock: Megahertz) -> f64 {
        let above = self.points.iter().position(|p| p.frequency_mhz >= clock.0);
        match above {
            None => self.points.last().map_or(0.0, |p| p.base_w),
            Some(0) => self.points[0].base_w,
            Some(i) => {
                let (low, high) = (&self.points[i - 1], &self.points[i]);
                let span = f64::from(high.frequency_mhz) - f64::from(low.frequency_mhz);
                let part = (f64::from(clock.0) - f64::from(low.frequency_mhz)) / span;
                low.base_w + part * (high.base_w - low.base_w)
            }
        }
    }

    /// Whether the points are as [`BasePower::of_table`] would accept them.
    pub(crate) fn is_sound(&self) -> bool {
        let ascending = self.points.windows(2).all(|w| w[0].frequency_mhz < w[1].frequency_mhz);
        let positive = self.points.iter().all(|p| p.frequency_mhz > 0 && (0.0..=MAX_W).contains(&p.base_w));
        !self.points.is_empty() && ascending && positive
    }

    fn checked(source: BaseSource, mut points: Vec<BasePoint>) -> Result<Self, FitError> {
        points.sort_by_key(|p| p.frequency_mhz);
        let base = Self { source, points };
        let parts =
            |p: &BasePoint| [p.static_w, p.fan_w].into_iter().flatten().all(|w| w.is_finite() && w >= 0.0);
        let reason = if base.points.is_empty() {
            "no rows of `@idle-context` or `@idle` and none with both avg_power_draw and a dynamic_power_draw \
             below it; profile the idle GPU, or give a table of static, fan and idle power"
        } else if !base.is_sound() || !base.points.iter().all(parts) {
            "a clock is 0 or listed twice, or a power is negative, above 10000 W or not a number; expected one line a clock in W"
        } else {
            return Ok(base);
        };
        Err(FitError::NoBase { reason: reason.into() })
    }
}

fn bare(frequency_mhz: u32, base_w: f64) -> BasePoint {
    BasePoint { frequency_mhz, base_w, static_w: None, fan_w: None, idle_w: None }
}

fn idle_means(rows: &[ProfileRow], model: &str) -> BTreeMap<u32, f64> {
    let mut sums = BTreeMap::<u32, (f64, f64)>::new();
    for row in rows.iter().filter(|r| r.model == model && r.valid) {
        let power = row.avg_power_draw.filter(|w| w.is_finite() && *w > 0.0);
        if let (Some(w), Ok(mhz @ 1..)) = (power, u32::try_from(row.frequency)) {
            let sum = sums.entry(mhz).or_default();
            *sum = (sum.0 + w, sum.1 + 1.0);
        }
    }
    sums.into_iter().map(|(mhz, (sum, n))| (mhz, sum / n)).collect()
}

/// Median of a list that is not empty; 0 of an empty one.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    match n {
        0 => 0.0,
        _ if n % 2 == 1 => values[n / 2],
        _ => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(model: &str, mhz: i32, average: f64, dynamic: Option<f64>) -> ProfileRow {
        let mut row = ProfileRow::new(model, i32::from(!model.starts_with('@')), 1.0, mhz);
        row.avg_power_draw = Some(average);
        row.dynamic_power_draw = dynamic;
        row
    }

    #[test]
    fn idle_rows_give_static_and_idle_power() {
        let rows = [
            row(IDLE, 500, 40.0, None),
            row(IDLE_CONTEXT, 500, 43.0, None),
            row(IDLE_CONTEXT, 1000, 53.0, None),
        ];
        let base = BasePower::of_rows(&rows).unwrap();
        assert_eq!(base.source, BaseSource::IdleRows);
        assert_eq!((base.points[0].static_w, base.points[0].idle_w), (Some(40.0), Some(3.0)));
        assert_eq!(base.points[1].idle_w, None);
        assert_eq!([100, 500, 750, 2000].map(|f| base.at_w(Megahertz(f))), [43.0, 43.0, 48.0, 53.0]);
    }

    #[test]
    fn without_idle_rows_the_median_difference_counts() {
        let mut rows = vec![row("a", 500, 100.0, Some(60.0)), row("b", 500, 90.0, Some(50.0))];
        rows.push(row("c", 500, 90.0, Some(80.0)));
        let base = BasePower::of_rows(&rows).unwrap();
        assert_eq!((base.source, base.at_w(Megahertz(500))), (BaseSource::Difference, 40.0));
        let error = BasePower::of_rows(&[row("a", 500, 100.0, None)]).unwrap_err();
        assert!(error.to_string().contains("profile the idle GPU"));
    }

    #[test]
    fn a_table_adds_its_parts_and_refuses_bad_ones() {
        let base = BasePower::of_table(&[(Megahertz(210), 22.0, 20.4, 1.4)]).unwrap();
        assert!((base.at_w(Megahertz(300)) - 43.8).abs() < 1e-9);
        let twice = [(Megahertz(210), 1.0, 1.0, 1.0); 2];
        assert!(BasePower::of_table(&twice).unwrap_err().to_string().contains("twice"));
        assert!(BasePower::of_table(&[(Megahertz(210), f64::NAN, 1.0, 1.0)]).is_err());
        assert!(BasePower::of_table(&[]).is_err());
    }
}
