//! Whether the clock followed.
//!
//! Rule: readings of the SM clock are taken while the work runs; those at which the GPU says that it idles do not count.
//! What was achieved is the median of the rest; it follows if it is within one step of the clock that was set.
//! Cases: no reading that counts: nothing is known, which is neither right nor wrong.
//! Source of the step: distances of supported clocks around the one that was set.
//! Not done here: reading; waiting.

use gpumon_core::units::Megahertz;

/// NVML's bit that the clock is low because nothing runs.
const GPU_IDLE: u64 = 0x1;

/// The clock at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// SM clock.
    pub clock: Megahertz,
    /// NVML's clock-event reasons; `None` if they cannot be read.
    pub reasons: Option<u64>,
}

/// Readings of the clock while work ran.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Achieved {
    clocks: Vec<Megahertz>,
    idle: usize,
    reasons: u64,
}

impl Achieved {
    /// Takes a reading in.
    pub fn take(&mut self, reading: Reading) {
        let reasons = reading.reasons.unwrap_or(0);
        if reasons & GPU_IDLE != 0 {
            self.idle += 1;
            return;
        }
        self.reasons |= reasons;
        let at = self.clocks.partition_point(|&clock| clock <= reading.clock);
        self.clocks.insert(at, reading.clock);
    }

    /// The median, if any reading counts.
    pub fn clock(&self) -> Option<Megahertz> {
        self.clocks.get(self.clocks.len().saturating_sub(1) / 2).copied()
    }

    /// Readings that count, and those of an idle GPU.
    pub fn readings(&self) -> (usize, usize) {
        (self.clocks.len(), self.idle)
    }

    /// All reasons that were given while the GPU was busy, as NVML's bits.
    pub fn reasons(&self) -> u64 {
        self.reasons
    }

    /// Whether the clock that was set is the one that ran; `None` if nothing is known.
    pub fn follows(&self, set: Megahertz, supported: &[Megahertz]) -> Option<bool> {
        let achieved = self.clock()?;
        let others = supported.iter().filter(|clock| **clock != set);
        let step = others.map(|clock| clock.0.abs_diff(set.0)).min().unwrap_or(0);
        Some(achieved.0.abs_diff(set.0) <= step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(readings: &[(u32, u64)]) -> Achieved {
        let mut achieved = Achieved::default();
        for &(mhz, reasons) in readings {
            achieved.take(Reading { clock: Megahertz(mhz), reasons: Some(reasons) });
        }
        achieved
    }

    #[test]
    fn the_median_of_busy_readings_decides() {
        let supported: Vec<Megahertz> = (345..=1980).step_by(15).map(Megahertz).collect();
        let follows = |readings: &[(u32, u64)]| of(readings).follows(Megahertz(1200), &supported);
        assert_eq!(follows(&[(1200, 0), (1200, 0), (1980, 0)]), Some(true), "the first reading may be late");
        assert_eq!(follows(&[(1215, 0)]), Some(true));
        assert_eq!(follows(&[(1230, 0)]), Some(false));
        assert_eq!(follows(&[(345, 1), (345, 1)]), None, "idle all the time");
        assert_eq!(follows(&[]), None);
        let capped = of(&[(345, 1), (1100, 4), (1110, 4), (1090, 0)]);
        assert_eq!((capped.clock(), capped.reasons(), capped.readings()), (Some(Megahertz(1100)), 4, (3, 1)));
    }
}
