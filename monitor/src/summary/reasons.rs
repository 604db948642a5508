//! NVML's clock-event reasons in words.
//!
//! Source: `nvml.h` of driver 580, `nvmlClocksEventReason*`. `GPU idle` and `no limit` are not limits;
//! bits that are not listed are reported as such.

/// The reasons that hold a clock down, by bit.
const REASONS: &[(u64, &str)] = &[
    (0x2, "application clocks setting"),
    (0x4, "SW power cap"),
    (0x8, "HW slowdown"),
    (0x10, "sync boost"),
    (0x20, "SW thermal slowdown"),
    (0x40, "HW thermal slowdown"),
    (0x80, "HW power brake"),
    (0x100, "display clock setting"),
];

/// The bit that says that the clock is low because nothing runs.
const GPU_IDLE: u64 = 0x1;

/// The limits among a mask's bits, in words.
pub fn limits(mask: u64) -> impl Iterator<Item = &'static str> {
    let known = REASONS.iter().fold(GPU_IDLE, |all, (bit, _)| all | bit);
    let listed = REASONS.iter().filter(move |(bit, _)| mask & bit != 0).map(|(_, text)| *text);
    listed.chain((mask & !known != 0).then_some("a reason this version does not know"))
}

/// Each limit that is known, in words, and whether the mask has it.
pub fn states(mask: u64) -> impl Iterator<Item = (&'static str, bool)> {
    REASONS.iter().map(move |(bit, text)| (*text, mask & bit != 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_become_words() {
        assert_eq!(limits(0x4 | 0x20).collect::<Vec<_>>(), ["SW power cap", "SW thermal slowdown"]);
        assert_eq!(limits(0x1).count(), 0);
        assert_eq!(limits(1 << 40).collect::<Vec<_>>(), ["a reason this version does not know"]);
    }
}
