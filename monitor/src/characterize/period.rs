//! How often a sensor changes, and how evenly.
//!
//! Rule: the period is the median time between two values. Polls quantise it, so it is refined to the mean of
//! those times that lie within half of it to one and a half: times with an update between them that repeated its value, or
//! that a slow call hid, are left out. Jitter is half of the span that holds the middle 90 % of all times.
//! Resolution: a jitter below the polls' distance is that distance and nothing more.

use super::fit::Seen;

/// Period and jitter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Period {
    /// Median time between two values, ms.
    pub update_ms: f64,
    /// Half of the span of the middle 90 % of these times, ms.
    pub jitter_ms: f64,
}

/// Period and jitter of values in order; none of fewer than ten.
pub fn of(seen: &[Seen]) -> Option<Period> {
    const LEAST: usize = 10;
    let times = |s: &Seen| (s.from_ms + s.to_ms) / 2.0;
    let mut between: Vec<f64> = seen.windows(2).map(|pair| times(&pair[1]) - times(&pair[0])).collect();
    if between.len() < LEAST {
        return None;
    }
    between.sort_by(f64::total_cmp);
    let quantile = |q: f64| between[((between.len() - 1) as f64 * q).round() as usize];
    let median = quantile(0.5);
    let regular = between.iter().filter(|t| (0.5 * median..=1.5 * median).contains(*t));
    let (count, sum) = regular.fold((0.0, 0.0), |(n, sum), t| (n + 1.0, sum + t));
    Some(Period { update_ms: sum / count, jitter_ms: (quantile(0.95) - quantile(0.05)) / 2.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(times: impl IntoIterator<Item = f64>) -> Vec<Seen> {
        times.into_iter().map(|t| Seen { from_ms: t - 1.0, to_ms: t, watts: t }).collect()
    }

    #[test]
    fn polls_and_repeated_values_do_not_shift_the_period() {
        // Every 20.4 ms, seen by polls each 1 ms, each seventh value a repetition.
        let times = (0..500).filter(|k| k % 7 != 3).map(|k| (20.4 * f64::from(k)).ceil());
        let found = of(&at(times)).unwrap();
        assert!((found.update_ms - 20.4).abs() < 0.05, "{found:?}");
    }

    #[test]
    fn jitter_is_half_of_the_middle_span() {
        let times = (0..1000).map(|k| 50.0 * f64::from(k) + if k % 2 == 0 { 3.0 } else { 0.0 });
        let found = of(&at(times)).unwrap();
        assert!((found.update_ms - 50.0).abs() < 0.1 && (found.jitter_ms - 3.0).abs() < 1e-9, "{found:?}");
        assert_eq!(of(&at([1.0, 2.0])), None);
    }
}
