//! What a GPU draws before any model runs on it, at each clock.
//!
//! Rule: base(f) = static(f) + fan(f) + idle(f), in W, paid once for a GPU however many models share it.
//! Cases: a CSV `frequency_mhz,static_w,fan_w,idle_w`; or the idle rows of a profile, where the GPU without a
//! context counts as static (its fan is in it), and what a context adds as idle.
//! [`BasePower::with`] adds clocks that lie between others, for candidates that a model predicts.
//! Not done: a clock that is not in the table has no base power; for measured rows nothing is interpolated.
//!
//! Source: EnerTune (SOSP'26), the planner's power model: the base is paid once for a shared GPU.

use std::collections::{BTreeMap, HashSet};

use gpumon_core::profile::{IDLE, IDLE_CONTEXT, ProfileRow};
use gpumon_core::workload::Unused;
use serde::Deserialize;

/// Parts of the base power at one clock, W.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub struct BaseParts {
    /// Leakage and clock tree, W.
    pub static_w: f64,
    /// Fan, W; 0 for a GPU without one.
    pub fan_w: f64,
    /// What an idle context adds, W.
    pub idle_w: f64,
}

impl BaseParts {
    /// Their sum, W.
    pub fn total_w(&self) -> f64 {
        self.static_w + self.fan_w + self.idle_w
    }
}

/// Base power by clock (MHz).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BasePower(BTreeMap<u32, BaseParts>);

/// Why a table of base powers cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BaseError {
    /// It is not a CSV of this shape.
    #[error("base power: {0}; expected the columns frequency_mhz,static_w,fan_w,idle_w with numbers")]
    Shape(String),
    /// A cell cannot be used.
    #[error("line {line}, column `{column}`: found `{found}`, expected {expected}")]
    Cell {
        /// Line of the text, from 1.
        line: u64,
        /// The column.
        column: &'static str,
        /// What stands there.
        found: String,
        /// What should.
        expected: &'static str,
    },
    /// A power is out of its range.
    #[error("base power at {0} MHz is not a power of 0 to 10000 W")]
    Value(u32),
    /// A clock is listed twice.
    #[error("base power lists {0} MHz twice; keep one row")]
    Twice(u32),
    /// There is no row.
    #[error("base power has no rows; measure the GPU idle at each clock, or give a CSV")]
    Empty,
}

/// Columns of the table.
const COLUMNS: [&str; 4] = ["frequency_mhz", "static_w", "fan_w", "idle_w"];
/// What a GPU can draw, W.
const WATTS: std::ops::RangeInclusive<f64> = 0.0..=10_000.0;

impl BasePower {
    /// The table in a CSV text with the columns `frequency_mhz,static_w,fan_w,idle_w`.
    pub fn parse(text: &str) -> Result<Self, BaseError> {
        let shape = |e: csv::Error| BaseError::Shape(e.to_string());
        let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(text.as_bytes());
        let header = reader.headers().map_err(shape)?.clone();
        let place = |column: &'static str| {
            let lacks = || BaseError::Shape(format!("line 1 has no column `{column}`"));
            header.iter().position(|name| name == column).ok_or_else(lacks)
        };
        let places = [place(COLUMNS[0])?, place(COLUMNS[1])?, place(COLUMNS[2])?, place(COLUMNS[3])?];
        let mut parts = Vec::new();
        for record in reader.records() {
            let record = record.map_err(shape)?;
            let cell = |i: usize| record.get(places[i]).unwrap_or_default();
            let wrong = |i: usize, expected| BaseError::Cell {
                line: record.position().map_or(0, csv::Position::line),
                column: COLUMNS[i],
                found: cell(i).chars().take(40).collect(),
                expected,
            };
            let mhz = cell(0).parse::<u32>().ok().filter(|mhz| *mhz > 0);
            let mhz = mhz.ok_or_else(|| wrong(0, "a whole clock in MHz, 1 or above"))?;
            let watts = |i: usize| {
                let power = cell(i).parse::<f64>().ok().filter(|w| WATTS.contains(w));
                power.ok_or_else(|| wrong(i, "a power of 0 to 10000 W"))
            };
            parts.push((mhz, BaseParts { static_w: watts(1)?, fan_w: watts(2)?, idle_w: watts(3)? }));
        }
        Self::new(parts)
    }

    /// What a GPU without a model draws at this clock (MHz), W; `None` for a clock that is not in the table.
    pub fn unused_w(&self, frequency_mhz: u32, unused: Unused) -> Option<f64> {
        let parts = self.0.get(&frequency_mhz)?;
        Some(match unused {
            Unused::Off => 0.0,
            Unused::Idle => parts.static_w + parts.fan_w,
            Unused::Context => parts.total_w(),
        })
    }

    /// The table of these clocks (MHz).
    pub fn new(parts: impl IntoIterator<Item = (u32, BaseParts)>) -> Result<Self, BaseError> {
        let mut table = BTreeMap::new();
        for (mhz, p) in parts {
            if ![p.static_w, p.fan_w, p.idle_w].iter().all(|w| WATTS.contains(w)) {
                return Err(BaseError::Value(mhz));
            }
            if table.insert(mhz, p).is_some() {
                return Err(BaseError::Twice(mhz));
            }
        }
        if table.is_empty() { Err(BaseError::Empty) } else { Ok(Self(table)) }
    }

    /// The table that a profile's idle rows make; clocks with a context measured, and the GPU without one where that
    /// was measured too.
    pub fn from_rows(rows: &[ProfileRow]) -> Result<Self, BaseError> {
        let power = |row: &&ProfileRow| row.valid.then_some(row.avg_power_draw).flatten();
        let mut seen = HashSet::new();
        let parts = rows.iter().filter(|r| r.model == IDLE_CONTEXT).filter_map(|row| {
            let with_context_w = power(&row)?;
            let mhz = u32::try_from(row.frequency).ok()?;
            let bare = rows.iter().filter(|r| r.model == IDLE && r.frequency == row.frequency);
            let static_w =
                bare.filter_map(|r| power(&r)).next().unwrap_or(with_context_w).min(with_context_w);
            seen.insert(mhz)
                .then_some((mhz, BaseParts { static_w, fan_w: 0.0, idle_w: with_context_w - static_w }))
        });
        Self::new(parts.collect::<Vec<_>>())
    }

    /// The table with these clocks (MHz) added, each part linear between the clocks on both sides; clocks outside the
    /// table's are not added.
    pub fn with(&self, clocks: impl IntoIterator<Item = u32>) -> Self {
        let mut table = self.0.clone();
        for mhz in clocks {
            let (below, above) = (self.0.range(..=mhz).next_back(), self.0.range(mhz..).next());
            let (Some((low, a)), Some((high, b))) = (below, above) else { continue };
            let span = f64::from(high - low).max(1.0);
            let part = f64::from(mhz - low) / span;
            let linear = |a: f64, b: f64| a + part * (b - a);
            table.entry(mhz).or_insert(BaseParts {
                static_w: linear(a.static_w, b.static_w),
                fan_w: linear(a.fan_w, b.fan_w),
                idle_w: linear(a.idle_w, b.idle_w),
            });
        }
        Self(table)
    }

    /// Base power at this clock, W.
    pub fn at_w(&self, frequency_mhz: u32) -> Option<f64> {
        self.0.get(&frequency_mhz).map(BaseParts::total_w)
    }

    /// The parts at each known clock, MHz, ascending.
    pub fn parts(&self) -> impl Iterator<Item = (u32, &BaseParts)> {
        self.0.iter().map(|(mhz, parts)| (*mhz, parts))
    }

    /// The clocks of the table, MHz, ascending.
    pub fn clocks(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_reads_and_sums() {
        let base = BasePower::parse("frequency_mhz,static_w,fan_w,idle_w\n210,22.0,20.4,1.5\n").unwrap();
        assert_eq!(base.at_w(210), Some(43.9));
        assert_eq!(base.at_w(211), None);
    }

    #[test]
    fn clocks_between_are_added_and_others_are_not() {
        let base = BasePower::parse("frequency_mhz,static_w,fan_w,idle_w\n200,20,1,1\n400,30,1,3\n").unwrap();
        let more = base.with([200, 300, 350, 100, 500]);
        assert_eq!([200, 300, 400].map(|f| more.at_w(f)), [Some(22.0), Some(28.0), Some(34.0)]);
        assert_eq!((more.at_w(350), more.at_w(100), more.at_w(500)), (Some(31.0), None, None));
    }

    #[test]
    fn bad_tables_are_named() {
        let head = "frequency_mhz,static_w,fan_w,idle_w\n";
        let parse = |rows: &str| BasePower::parse(&format!("{head}{rows}")).unwrap_err();
        assert_eq!(parse(""), BaseError::Empty);
        assert_eq!(parse("210,1,1,1\n210,1,1,1\n"), BaseError::Twice(210));
        for (row, says) in [
            ("210,-1,1,1", "line 2, column `static_w`: found `-1`"),
            ("210,1,NaN,1", "line 2, column `fan_w`: found `NaN`"),
            ("210,1,1,x", "line 2, column `idle_w`: found `x`, expected a power of 0 to 10000 W"),
            ("0,1,1,1", "line 2, column `frequency_mhz`: found `0`"),
            ("210.5,1,1,1", "expected a whole clock"),
            ("210,1,1,1e5", "column `idle_w`"),
        ] {
            let text = parse(&format!("{row}\n")).to_string();
            assert!(text.contains(says), "{row}: {text}");
        }
        let parts = BaseParts { static_w: f64::NAN, fan_w: 0.0, idle_w: 0.0 };
        assert_eq!(BasePower::new([(210, parts)]), Err(BaseError::Value(210)));
        let text = BasePower::parse("frequency_mhz,static_w\n210,1\n").unwrap_err().to_string();
        assert!(text.contains("no column `fan_w`"), "{text}");
    }

    #[test]
    fn idle_rows_make_a_table() {
        let idle =
            |model: &str, w| ProfileRow { avg_power_draw: Some(w), ..ProfileRow::new(model, 0, 1.0, 345) };
        let base =
            BasePower::from_rows(&[idle(IDLE, 70.0), idle(IDLE_CONTEXT, 75.0), idle(IDLE_CONTEXT, 76.0)]);
        assert_eq!(base.unwrap().at_w(345), Some(75.0));
        assert_eq!(BasePower::from_rows(&[]), Err(BaseError::Empty));
    }
}
