//! How a model shares a GPU with others.
//!
//! Rule: a share is MIG slices, a percentage under MPS, or a number of SMs in a green context; as a
//! fraction of the SMs it is slices / 7, percentage / 100, or SMs / all SMs.
//! Cases: under MPS and in a green context the memory is not divided.
//! Not done here: which shares fit together ([`crate::geometry`]).
//! Source of slices / 7: on an A100, H100 or H200 with MIG each of the seven slices has the same SMs.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::geometry::SEVEN_SLICES;

/// Variable that tells a process of how many SMs to make its green context.
pub const GREEN_SMS: &str = "GPUMON_GREEN_SMS";

/// One model's share of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Share {
    /// A MIG instance with this many compute slices, of seven.
    Mig(u8),
    /// At most this percentage of the SMs, under MPS.
    Mps(u8),
    /// This many SMs of so many, in a green context.
    Green {
        /// SMs of the context.
        sms: u16,
        /// SMs of the GPU.
        of: u16,
    },
}

impl Share {
    /// The share of the SMs, 0 to 1.
    pub fn fraction(self) -> f64 {
        match self {
            Self::Mig(slices) => f64::from(slices) / f64::from(SEVEN_SLICES.compute_slices),
            Self::Mps(pct) => f64::from(pct) / 100.0,
            Self::Green { sms, of } => f64::from(sms) / f64::from(of),
        }
    }

    /// The kind as profiles write it: `mig`, `mps` or `green`.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Mig(_) => "mig",
            Self::Mps(_) => "mps",
            Self::Green { .. } => "green",
        }
    }

    /// Compute slices, if the share is a MIG instance.
    pub fn slices(self) -> Option<u8> {
        match self {
            Self::Mig(slices) => Some(slices),
            _ => None,
        }
    }

    /// Whether a GPU can be shared so.
    pub fn exists(self) -> bool {
        match self {
            Self::Mig(slices) => SEVEN_SLICES.profile(slices).is_some(),
            Self::Mps(pct) => (1..=100).contains(&pct),
            Self::Green { sms, of } => (1..=of).contains(&sms),
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mig(slices) => write!(f, "{slices} of 7 MIG slices"),
            Self::Mps(pct) => write!(f, "{pct} % under MPS"),
            Self::Green { sms, of } => write!(f, "{sms} of {of} SMs in a green context"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_and_kinds() {
        assert_eq!((Share::Mig(7).fraction(), Share::Mig(7).kind()), (1.0, "mig"));
        assert_eq!((Share::Mps(25).fraction(), Share::Mps(25).slices()), (0.25, None));
        assert_eq!(Share::Green { sms: 54, of: 108 }.fraction(), 0.5);
        assert!(!Share::Mig(5).exists() && !Share::Mps(0).exists() && Share::Mig(3).exists());
    }
}
