//! Whether two commands, or two versions of one, differ in energy, time or power.
//!
//! | given | interval of the difference (95 %) |
//! |---|---|
//! | two sets of runs | Welch's t: each set has its own spread |
//! | two sets of runs made by turns | t over the differences of neighbours, which share what drifts |
//! | two single runs | the root of the sum of squares of both intervals; what runs vary by is not in it |
//!
//! They differ if the interval of the difference leaves 0 out. Quantities that are compared beside each other each
//! have their own 5 % of being wrong.
//! Cases: a set of one run has no interval; sets without any spread differ if their means do.
//! Not done here: outliers are not removed; a warm-up is the caller's.
//!
//! Source: Welch, Biometrika 34 (1947), 28; degrees of freedom after Satterthwaite, Biometrics 2 (1946), 110.

use serde::Serialize;
use statrs::distribution::{ContinuousCDF, StudentsT};

/// Share of cases in which an interval holds the truth.
pub const CONFIDENCE: f64 = 0.95;
/// Half width of a 90 % interval of a normal distribution over that of a 95 % interval.
const FROM_90_TO_95: f64 = 1.959_964 / 1.644_854;

/// A set of runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Stats {
    /// Runs.
    pub n: usize,
    /// Mean.
    pub mean: f64,
    /// Standard deviation over the runs; absent for one.
    pub sd: Option<f64>,
    /// Lower end of the mean's interval; for one run that of its sensors.
    pub low: Option<f64>,
    /// Upper end.
    pub high: Option<f64>,
}

/// Where the interval of a difference comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// Two sets, each with its own spread.
    Welch,
    /// Neighbours of runs by turns.
    Paired,
    /// Two single runs with the intervals of their sensors.
    Sensors,
    /// Too little for an interval.
    None,
}

/// How B differs from A in one quantity.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// The first set.
    pub a: Stats,
    /// The second.
    pub b: Stats,
    /// B − A.
    pub difference: f64,
    /// Lower end of its interval.
    pub low: Option<f64>,
    /// Upper end.
    pub high: Option<f64>,
    /// B − A over A, %; absent where A is 0.
    pub relative_pct: Option<f64>,
    /// Where the interval comes from.
    pub method: Method,
    /// Whether they differ; absent without an interval.
    pub differs: Option<bool>,
}

/// A single run's value, with its sensors' 90 % interval if there is one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Single {
    /// The value.
    pub value: f64,
    /// Lower and upper end.
    pub interval: Option<(f64, f64)>,
}

impl Stats {
    /// Of a set of runs; `None` of an empty one.
    pub fn of(values: &[f64]) -> Option<Self> {
        let n = values.len();
        if n == 0 {
            return None;
        }
        let mean = values.iter().sum::<f64>() / n as f64;
        let sd = (n > 1).then(|| {
            let square = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>();
            (square / (n - 1) as f64).sqrt()
        });
        let half = sd.and_then(|sd| Some(t_quantile((n - 1) as f64)? * sd / (n as f64).sqrt()));
        Some(Self { n, mean, sd, low: half.map(|h| mean - h), high: half.map(|h| mean + h) })
    }

    fn of_single(single: Single) -> Self {
        let Single { value, interval } = single;
        let widened = |end: f64| value + (end - value) * FROM_90_TO_95;
        let (low, high) = (interval.map(|(low, _)| widened(low)), interval.map(|(_, high)| widened(high)));
        Self { n: 1, mean: value, sd: None, low, high }
    }
}

/// Compares two sets. `by_turns`: run k of A and run k of B are neighbours in time. `None` if one is empty.
pub fn sets(a: &[f64], b: &[f64], by_turns: bool) -> Option<Difference> {
    let (first, second) = (Stats::of(a)?, Stats::of(b)?);
    if by_turns && a.len() == b.len() {
        let differences: Vec<f64> = a.iter().zip(b).map(|(a, b)| b - a).collect();
        let paired = Stats::of(&differences)?;
        return Some(Difference::new(first, second, paired.low.zip(paired.high), Method::Paired));
    }
    let variance = |s: &Stats| s.sd.map(|sd| sd * sd / s.n as f64);
    let interval = variance(&first).zip(variance(&second)).and_then(|(va, vb)| {
        let difference = second.mean - first.mean;
        let sum = va + vb;
        if sum == 0.0 {
            return Some((difference, difference));
        }
        let df = sum * sum / (va * va / (first.n - 1) as f64 + vb * vb / (second.n - 1) as f64);
        let half = t_quantile(df)? * sum.sqrt();
        Some((difference - half, difference + half))
    });
    Some(Difference::new(first, second, interval, Method::Welch))
}

/// Compares two single runs.
pub fn singles(a: Single, b: Single) -> Difference {
    let (first, second) = (Stats::of_single(a), Stats::of_single(b));
    let difference = second.mean - first.mean;
    let below = |s: &Stats| s.low.map(|low| s.mean - low);
    let above = |s: &Stats| s.high.map(|high| high - s.mean);
    // The difference is least where B is low and A is high.
    let down = below(&second).zip(above(&first)).map(|(b, a)| b.hypot(a));
    let up = above(&second).zip(below(&first)).map(|(b, a)| b.hypot(a));
    let interval = down.zip(up).map(|(down, up)| (difference - down, difference + up));
    Difference::new(first, second, interval, Method::Sensors)
}

impl Difference {
    fn new(a: Stats, b: Stats, interval: Option<(f64, f64)>, method: Method) -> Self {
        let difference = b.mean - a.mean;
        Self {
            a,
            b,
            difference,
            low: interval.map(|(low, _)| low),
            high: interval.map(|(_, high)| high),
            relative_pct: (a.mean != 0.0).then(|| 100.0 * difference / a.mean),
            method: if interval.is_some() { method } else { Method::None },
            differs: interval.map(|(low, high)| low > 0.0 || high < 0.0),
        }
    }
}

/// Two-sided quantile of Student's t; `None` where the degrees of freedom are no positive number.
fn t_quantile(df: f64) -> Option<f64> {
    let t = StudentsT::new(0.0, 1.0, df).ok()?;
    Some(t.inverse_cdf(0.5 + CONFIDENCE / 2.0))
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    fn near(found: Option<f64>, expected: f64) -> bool {
        found.is_some_and(|f| (f - expected).abs() < 1e-4 * expected.abs().max(1e-3))
    }

    #[test]
    fn known_answers() {
        // t with 4 degrees of freedom: 2.776445; sd of 1..5 is 1.581139.
        let s = Stats::of(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        assert!(
            near(s.sd, 1.581_139) && near(s.low, 3.0 - 1.963_243) && near(s.high, 3.0 + 1.963_243),
            "{s:?}"
        );
        // Means 3 and 6, variances of the means 0.5 and 2, 50/8.5 = 5.88 degrees of freedom, t = 2.458824 (integrated numerically).
        let d = sets(&[1.0, 2.0, 3.0, 4.0, 5.0], &[2.0, 4.0, 6.0, 8.0, 10.0], false).unwrap();
        assert!(near(d.low, 3.0 - 2.458_824 * 2.5_f64.sqrt()), "{d:?}");
        assert_eq!((d.differs, d.method), (Some(false), Method::Welch));
        // By turns the differences are 1 … 5.
        let d = sets(&[1.0, 2.0, 3.0, 4.0, 5.0], &[2.0, 4.0, 6.0, 8.0, 10.0], true).unwrap();
        assert!(near(d.low, 3.0 - 1.963_243) && d.differs == Some(true), "{d:?}");
    }

    #[test]
    fn too_little_gives_no_verdict() {
        assert_eq!(sets(&[], &[1.0], false), None);
        let one = sets(&[1.0], &[2.0, 3.0], false).unwrap();
        assert_eq!((one.differs, one.method, one.difference), (None, Method::None, 1.5));
        let same = sets(&[2.0, 2.0], &[2.0, 2.0], false).unwrap();
        assert_eq!((same.differs, same.low), (Some(false), Some(0.0)));
        let bare = singles(Single { value: 1.0, interval: None }, Single { value: 2.0, interval: None });
        assert_eq!(bare.differs, None);
    }

    #[test]
    fn single_runs_differ_beyond_their_sensors() {
        let run = |value: f64, half: f64| Single { value, interval: Some((value - half, value + half)) };
        assert_eq!(singles(run(100.0, 1.0), run(101.0, 1.0)).differs, Some(false));
        assert_eq!(singles(run(100.0, 1.0), run(102.0, 1.0)).differs, Some(true));
        let d = singles(run(100.0, 1.0), run(102.0, 1.0));
        assert!(near(d.low, 2.0 - 2.0_f64.sqrt() * FROM_90_TO_95), "{d:?}");
    }

    /// The intervals hold the truth as often as they say, with unequal spreads and sizes, and by turns under drift.
    #[test]
    fn intervals_hold_what_they_promise() {
        let mut rng = StdRng::seed_from_u64(5);
        let mut normal = move |sd: f64| {
            let (u, v): (f64, f64) = (rng.random(), rng.random());
            sd * (-2.0 * (1.0 - u).ln()).sqrt() * (std::f64::consts::TAU * v).cos()
        };
        let trials = 2000;
        let (mut welch, mut paired) = (0, 0);
        for _ in 0..trials {
            let a: Vec<f64> = (0..5).map(|_| 10.0 + normal(1.0)).collect();
            let b: Vec<f64> = (0..9).map(|_| 11.0 + normal(3.0)).collect();
            let d = sets(&a, &b, false).unwrap();
            welch += usize::from(d.low.unwrap() <= 1.0 && d.high.unwrap() >= 1.0);
            let drift = normal(50.0);
            let turn = |k: usize| drift * k as f64;
            let a: Vec<f64> = (0..6).map(|k| turn(k) + normal(1.0)).collect();
            let b: Vec<f64> = (0..6).map(|k| 2.0 + turn(k) + normal(1.0)).collect();
            let d = sets(&a, &b, true).unwrap();
            paired += usize::from(d.low.unwrap() <= 2.0 && d.high.unwrap() >= 2.0);
        }
        // 95 % of 2000 is 1900 with a standard deviation of 9.7; four of them either way.
        for held in [welch, paired] {
            assert!((1861..=1939).contains(&held), "{held} of {trials}");
        }
    }
}
