//! Randomness without state: a number is a function of a seed, a stream and an index.
//!
//! Rule: readings may be asked for in any order and any number of times, so noise, jitter and call
//! costs are hashed and never drawn from a generator that moves on.
//! Source: the finaliser of SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number
//! Generators", OOPSLA 2014). The bell shape is the sum of four uniform numbers (Irwin and Hall, 1927),
//! which is bounded and needs no transcendental function.
//! Not done here: anything fit for cryptography.

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

fn finalise(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// 64 random bits that belong to one index of one stream of one seed.
pub(crate) fn bits(seed: u64, stream: u64, index: i64) -> u64 {
    let key = finalise(seed.wrapping_add(GOLDEN.wrapping_mul(stream.wrapping_add(1))));
    finalise(key.wrapping_add(GOLDEN.wrapping_mul(index as u64)))
}

/// A number in the open interval (0, 1).
pub(crate) fn uniform(bits: u64) -> f64 {
    ((bits >> 11) as f64 + 0.5) / (1u64 << 53) as f64
}

/// The 99th percentile of [`normal`]: the sum of four exceeds s ≥ 3 with probability (4 − s)⁴ / 24.
pub(crate) const NORMAL_P99: f64 = 2.251_79;

/// A nearly normal deviate of mean 0 and deviation 1, within ±√12.
pub(crate) fn normal(bits: u64) -> f64 {
    let quarter = |i: u32| (f64::from((bits >> (16 * i)) as u16) + 0.5) / 65_536.0;
    ((0..4).map(quarter).sum::<f64>() - 2.0) * 3.0f64.sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deviates_have_mean_zero_and_deviation_one() {
        let n = 20_000;
        let all: Vec<f64> = (0..n).map(|i| normal(bits(7, 1, i))).collect();
        let mean = all.iter().sum::<f64>() / n as f64;
        let deviation = (all.iter().map(|x| x * x).sum::<f64>() / n as f64 - mean * mean).sqrt();
        assert!(mean.abs() < 0.02, "{mean}");
        assert!((deviation - 1.0).abs() < 0.03, "{deviation}");
        let above = all.iter().filter(|x| **x > NORMAL_P99).count() as f64 / n as f64;
        assert!((above - 0.01).abs() < 0.002, "{above}");
    }

    #[test]
    fn neighbours_share_nothing() {
        assert_ne!(bits(1, 0, 0), bits(1, 0, 1));
        assert_ne!(bits(1, 0, 0), bits(1, 1, 0));
        assert_ne!(bits(1, 0, 0), bits(2, 0, 0));
        assert_ne!(bits(1, 0, -1), bits(1, 0, 1));
    }
}
