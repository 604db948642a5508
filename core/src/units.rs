//! Numbers that carry their unit.
//!
//! Rule: a value that crosses a crate border has one of these types; inside a module a plain number
//! carries the unit in its name (`power_mw`). Conversions say the unit they give.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident($inner:ty), $suffix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!("{} ", $suffix), self.0)
            }
        }
    };
}

unit!(
    /// Power in milliwatts, as NVML reports it.
    Milliwatts(u32), "mW");
unit!(
    /// Energy in millijoules, as NVML's counter reports it.
    Millijoules(u64), "mJ");
unit!(
    /// A clock frequency in megahertz.
    Megahertz(u32), "MHz");
unit!(
    /// Microseconds on a monotonic clock; only differences mean anything.
    MonoUs(i64), "µs");
unit!(
    /// Microseconds since 1970-01-01 UTC.
    WallUs(i64), "µs");

/// Microseconds in a second.
pub const US_PER_S: i64 = 1_000_000;

impl Milliwatts {
    /// The same power in watts.
    pub fn watts(self) -> f64 {
        f64::from(self.0) / 1e3
    }
}

impl Millijoules {
    /// The same energy in joules.
    pub fn joules(self) -> f64 {
        self.0 as f64 / 1e3
    }
}

impl MonoUs {
    /// This instant moved by `us` microseconds.
    pub fn plus_us(self, us: i64) -> Self {
        Self(self.0.saturating_add(us))
    }

    /// Microseconds from `earlier` to this instant; negative when it is later.
    pub fn since_us(self, earlier: Self) -> i64 {
        self.0 - earlier.0
    }
}

impl WallUs {
    /// This instant moved by `us` microseconds.
    pub fn plus_us(self, us: i64) -> Self {
        Self(self.0.saturating_add(us))
    }

    /// Microseconds from `earlier` to this instant; negative when it is later.
    pub fn since_us(self, earlier: Self) -> i64 {
        self.0 - earlier.0
    }
}

/// A number as a person writes it: very large and very small ones with an exponent.
pub fn plain(value: f64) -> String {
    let usual = value == 0.0 || !value.is_finite() || (1e-6..1e16).contains(&value.abs());
    if usual { value.to_string() } else { format!("{value:e}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_and_text_carry_the_unit() {
        assert_eq!(Milliwatts(1500).watts(), 1.5);
        assert_eq!(Millijoules(2500).joules(), 2.5);
        assert_eq!(Megahertz(1980).to_string(), "1980 MHz");
        assert_eq!(MonoUs(5).since_us(MonoUs(7)), -2);
        assert_eq!(serde_json::to_string(&Milliwatts(3)).unwrap(), "3");
    }

    #[test]
    fn extreme_numbers_stay_short() {
        let texts = [0.0, -60.0, 0.9, 1e-308, 1e300, f64::INFINITY].map(plain);
        assert_eq!(texts, ["0", "-60", "0.9", "1e-308", "1e300", "inf"]);
    }
}
