//! Energy of a span from readings of power, and bounds on it.
//!
//! Rules: the ring's readings are points of a smooth curve ([`Curve`]); an instant or average reading of
//! the fast lane stands for the time until the next one ([`Steps`]). Both are cut at the span's edges.
//! Where two readings lie further apart than [`GAP_US`], the time between counts as a gap: it is filled
//! with the mean of the two and widens the bounds.
//!
//! The curve is a cubic Hermite spline. Its slope at a reading is half that of the parabola through the
//! reading and its two neighbours, which is between straight lines and Bessel's spline: a ring reading
//! shows power smoothed over some 14 ms, readings are 8 to 47 ms apart on a busy H200, and where the
//! driver leaves one out, lines cut the peaks off and full slopes overshoot them. Against the energy
//! counter over 60 s of a load of 37 ms on and 61 ms off, on two H200: lines −0.51, −0.90, +0.06 %, full
//! slopes +0.01, +0.34, +0.73 %, half −0.25, −0.28, +0.40 %.
//!
//! The bounds add up what the recording itself shows: how far power differs between the readings at an
//! edge (the edge may lie anywhere between them), gaps, and the distance to the energy counter where
//! both exist. They are bounds, not a confidence interval, and an error of the sensor's gain, which is
//! several per cent on some cards, is not in them.

/// Readings further apart than this leave a gap, µs. The ring's longest regular distance is 47 ms and
/// the fast lane's readings change every 100 ms.
pub(super) const GAP_US: i64 = 250_000;

/// The energy counter changes every 100 ms, so a difference is late or early by that much.
const COUNTER_STEP_US: f64 = 100_000.0;

/// 0 makes straight lines, 1 Bessel's spline.
const TENSION: f64 = 0.5;

/// A reading: when, µs, and how much, mW.
type Reading = (i64, f64);

/// What has been integrated over a span so far.
#[derive(Clone, Debug)]
struct Sum {
    from_us: i64,
    to_us: i64,
    /// mW × µs, which is nJ.
    energy_nj: f64,
    covered_us: i64,
    gap_spread_nj: f64,
    edge_nj: f64,
}

impl Sum {
    fn new(from_us: i64, to_us: i64) -> Self {
        Self { from_us, to_us, energy_nj: 0.0, covered_us: 0, gap_spread_nj: 0.0, edge_nj: 0.0 }
    }

    /// Adds the time between two readings: `between(from, to)` is the energy, nJ, of a part of it. Returns
    /// the time that lies in the span, µs, and the mean power there, mW.
    fn add(&mut self, a: Reading, b: Reading, between: impl Fn(i64, i64) -> f64) -> Option<(i64, f64)> {
        let (start, stop) = (a.0.max(self.from_us), b.0.min(self.to_us));
        if stop <= start {
            return None;
        }
        let time_us = stop - start;
        let difference_mw = (b.1 - a.1).abs();
        let energy_nj = if b.0 - a.0 > GAP_US {
            self.gap_spread_nj += difference_mw / 2.0 * time_us as f64;
            (a.1 + b.1) / 2.0 * time_us as f64
        } else {
            between(start, stop)
        };
        if a.0 < self.from_us || b.0 > self.to_us {
            self.edge_nj += difference_mw * time_us as f64;
        }
        self.energy_nj += energy_nj;
        self.covered_us += time_us;
        Some((time_us, energy_nj / time_us as f64))
    }

    /// The whole span's energy, if readings cover nearly all of it: the rest, at the edges, is taken at
    /// the mean power.
    fn energy(&self) -> Option<Energy> {
        let span_us = self.to_us - self.from_us;
        let most_uncovered_us = (0.1 * span_us as f64).max(GAP_US as f64);
        if self.covered_us <= 0 || (span_us - self.covered_us) as f64 > most_uncovered_us {
            return None;
        }
        let mean_mw = self.energy_nj / self.covered_us as f64;
        let outside_nj = mean_mw * (span_us - self.covered_us) as f64;
        Some(Energy {
            j: (self.energy_nj + outside_nj) / 1e9,
            spread_j: (self.edge_nj + self.gap_spread_nj + outside_nj.abs()) / 1e9,
        })
    }
}

/// An energy and how far off it may be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Energy {
    pub(super) j: f64,
    pub(super) spread_j: f64,
}

/// Integrates readings that hold until the next.
#[derive(Clone, Debug)]
pub(super) struct Steps {
    sum: Sum,
    last: Option<Reading>,
}

impl Steps {
    pub(super) fn new(from_us: i64, to_us: i64) -> Self {
        Self { sum: Sum::new(from_us, to_us), last: None }
    }

    /// Adds a reading; returns for how long, µs, and at which power, mW, the one before it held.
    pub(super) fn add(&mut self, at_us: i64, power_mw: f64) -> Option<(i64, f64)> {
        let now = (at_us, power_mw);
        let before = self.last.replace(now)?;
        self.sum.add(before, now, |from, to| before.1 * (to - from) as f64)
    }

    pub(super) fn energy(&self) -> Option<Energy> {
        self.sum.energy()
    }
}

/// Integrates the smooth curve through readings. A piece is added once the reading after it is known.
#[derive(Clone, Debug)]
pub(super) struct Curve {
    sum: Sum,
    /// The last three readings, latest last.
    last: [Option<Reading>; 3],
}

impl Curve {
    pub(super) fn new(from_us: i64, to_us: i64) -> Self {
        Self { sum: Sum::new(from_us, to_us), last: [None; 3] }
    }

    /// Adds a reading; returns the length, µs, and the mean power, mW, of the piece that became known.
    pub(super) fn add(&mut self, at_us: i64, power_mw: f64) -> Option<(i64, f64)> {
        let now = (at_us, power_mw);
        let piece = self.piece(Some(now));
        self.last = [self.last[1], self.last[2], Some(now)];
        piece
    }

    /// Adds the last piece, which has no reading after it.
    pub(super) fn finish(&mut self) -> Option<(i64, f64)> {
        let piece = self.piece(None);
        self.last = [None; 3];
        piece
    }

    pub(super) fn energy(&self) -> Option<Energy> {
        self.sum.energy()
    }

    /// The piece between the last two readings.
    fn piece(&mut self, after: Option<Reading>) -> Option<(i64, f64)> {
        let [before, Some(a), Some(b)] = self.last else { return None };
        let (slope_a, slope_b) = (slope(before, a, Some(b)), slope(Some(a), b, after));
        self.sum.add(a, b, |from, to| {
            let until = |t: i64| hermite_nj(a, slope_a, b, slope_b, t);
            until(to) - until(from)
        })
    }
}

/// Slope of the curve at `at`, mW/µs: half that of the parabola through it and its neighbours, or of the
/// line where one neighbour is missing or beyond a gap.
fn slope(before: Option<Reading>, at: Reading, after: Option<Reading>) -> f64 {
    full_slope(before, at, after) * TENSION
}

fn full_slope(before: Option<Reading>, at: Reading, after: Option<Reading>) -> f64 {
    let line = |a: Reading, b: Reading| (b.1 - a.1) / (b.0 - a.0) as f64;
    let before = before.filter(|b| at.0 - b.0 <= GAP_US);
    let after = after.filter(|a| a.0 - at.0 <= GAP_US);
    match (before, after) {
        (Some(before), Some(after)) => {
            let (h0, h1) = ((at.0 - before.0) as f64, (after.0 - at.0) as f64);
            (line(before, at) * h1 + line(at, after) * h0) / (h0 + h1)
        }
        (Some(before), None) => line(before, at),
        (None, Some(after)) => line(at, after),
        (None, None) => 0.0,
    }
}

/// Energy, nJ, under the cubic from `a` to time `t`, which lies between `a` and `b`.
fn hermite_nj(a: Reading, slope_a: f64, b: Reading, slope_b: f64, t: i64) -> f64 {
    let length = (b.0 - a.0) as f64;
    let s = (t - a.0) as f64 / length;
    let (s2, s3, s4) = (s * s, s * s * s, s * s * s * s);
    let value = a.1 * (s - s3 + s4 / 2.0) + b.1 * (s3 - s4 / 2.0);
    let slopes = slope_a * (s2 / 2.0 - 2.0 * s3 / 3.0 + s4 / 4.0) + slope_b * (s4 / 4.0 - s3 / 3.0);
    length * (value + length * slopes)
}

/// Differences of the energy counter over a span.
#[derive(Clone, Debug)]
pub(super) struct CounterSpan {
    from_us: i64,
    to_us: i64,
    first: Option<(i64, i64, i32)>,
    last: Option<(i64, i64, i32)>,
}

impl CounterSpan {
    /// Readings this close to an edge count as read at it, µs: a counter call takes up to 17 ms, and the
    /// counter itself moves in steps of 100 ms.
    const NEAR_US: i64 = 200_000;

    pub(super) fn new(from_us: i64, to_us: i64) -> Self {
        Self { from_us, to_us, first: None, last: None }
    }

    pub(super) fn add(&mut self, at_us: i64, energy_mj: i64, epoch: i32) {
        let reading = Some((at_us, energy_mj, epoch));
        let closer = |known: Option<(i64, i64, i32)>, edge: i64| {
            known.is_none_or(|(t, ..)| (at_us - edge).abs() < (t - edge).abs())
        };
        if closer(self.first, self.from_us) {
            self.first = reading;
        }
        if closer(self.last, self.to_us) {
            self.last = reading;
        }
    }

    /// The difference, corrected to the span's length at its own mean power; absent if the counter was
    /// not read near both edges or was reset between.
    pub(super) fn energy(&self) -> Option<Energy> {
        let ((t0, e0, epoch0), (t1, e1, epoch1)) = (self.first?, self.last?);
        let near = |t: i64, edge: i64| (t - edge).abs() <= Self::NEAR_US;
        if epoch0 != epoch1 || t1 <= t0 || !near(t0, self.from_us) || !near(t1, self.to_us) {
            return None;
        }
        let mean_mw = (e1 - e0) as f64 * 1e6 / (t1 - t0) as f64;
        let span_us = (self.to_us - self.from_us) as f64;
        Some(Energy { j: mean_mw * span_us / 1e9, spread_j: mean_mw * 2.0 * COUNTER_STEP_US / 1e9 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(from_us: i64, to_us: i64, readings: &[Reading]) -> Option<Energy> {
        let mut steps = Steps::new(from_us, to_us);
        readings.iter().for_each(|&(at_us, mw)| _ = steps.add(at_us, mw));
        steps.energy()
    }

    fn curve(from_us: i64, to_us: i64, readings: &[Reading]) -> Option<Energy> {
        let mut curve = Curve::new(from_us, to_us);
        readings.iter().for_each(|&(at_us, mw)| _ = curve.add(at_us, mw));
        curve.finish();
        curve.energy()
    }

    #[test]
    fn held_readings_integrate_a_step_exactly() {
        // 100 W for 1 s, then 300 W for 1 s, a reading each 20 ms.
        let step: Vec<Reading> =
            (0..=100).map(|k| (k * 20_000, if k < 50 { 100_000.0 } else { 300_000.0 })).collect();
        assert!((steps(0, 2_000_000, &step).unwrap().j - 400.0).abs() < 1e-9);
        assert!((steps(500_000, 1_500_000, &step).unwrap().j - 200.0).abs() < 1e-9);
    }

    #[test]
    fn slopes_are_those_of_the_parabola_however_uneven_the_readings() {
        // p = 1e5 + 0.2 t + 3e-6 t² (mW, t in µs).
        let at = |t: i64| (t, 1e5 + 0.2 * t as f64 + 3e-6 * (t * t) as f64);
        for (a, b, c) in [(0, 8_000, 30_000), (30_000, 47_000, 90_000), (0, 20_000, 40_000)] {
            let found = full_slope(Some(at(a)), at(b), Some(at(c)));
            assert!((found - (0.2 + 6e-6 * b as f64)).abs() < 1e-12, "{found} at {b}");
        }
    }

    #[test]
    fn a_piece_is_the_integral_of_its_cubic() {
        let (a, b) = ((1_000, 1e5), (21_000, 3e5));
        let (slope_a, slope_b) = (4.0, -7.0);
        let cubic = |t: f64| {
            let s = (t - 1_000.0) / 20_000.0;
            let (s2, s3) = (s * s, s * s * s);
            (2.0 * s3 - 3.0 * s2 + 1.0) * a.1
                + (s3 - 2.0 * s2 + s) * 20_000.0 * slope_a
                + (3.0 * s2 - 2.0 * s3) * b.1
                + (s3 - s2) * 20_000.0 * slope_b
        };
        for to in [1_000, 5_000, 13_000, 21_000] {
            let expected: f64 = (1_000..to).map(|t| cubic(t as f64 + 0.5)).sum();
            let found = hermite_nj(a, slope_a, b, slope_b, to);
            assert!((found - expected).abs() <= 1e-6 * expected.abs(), "{found} for {expected} at {to}");
        }
    }

    #[test]
    fn a_smoothed_square_wave_with_readings_left_out_keeps_its_energy() {
        // 37 ms at 700 W, 61 ms at 120 W, smoothed with 14 ms; every 17th reading is left out.
        let mut smoothed = 120_000.0;
        let (mut readings, mut true_nj) = (Vec::new(), 0.0);
        let (mut next, mut taken) = (0, 0);
        for t in (0..20_000_000i64).step_by(100) {
            let power = if t % 98_000 < 37_000 { 700_000.0 } else { 120_000.0 };
            smoothed += (power - smoothed) * (1.0 - (-0.1f64 / 14.0).exp());
            true_nj += power * 100.0;
            if t >= next {
                next += 20_000 + (t / 100 * 7_919) % 6_000 - 3_000;
                taken += 1;
                if taken % 17 != 0 {
                    readings.push((t, smoothed));
                }
            }
        }
        let found = curve(0, 20_000_000, &readings).unwrap().j;
        assert!((found / (true_nj / 1e9) - 1.0).abs() < 0.005, "{found} for {}", true_nj / 1e9);
    }

    #[test]
    fn an_edge_inside_a_piece_widens_the_bounds() {
        let step: Vec<Reading> = (0..=100).map(|k| (k * 20_000, if k < 50 { 1e5 } else { 3e5 })).collect();
        assert!(curve(0, 990_000, &step).unwrap().spread_j > curve(0, 980_000, &step).unwrap().spread_j);
    }

    #[test]
    fn a_span_that_readings_do_not_cover_has_no_energy() {
        let second: Vec<Reading> = (0..=50).map(|k| (k * 20_000, 1e5)).collect();
        for integrate in [steps, curve] {
            assert_eq!(integrate(0, 10_000_000, &second), None);
            assert_eq!(integrate(0, 1_000_000, &[]), None);
            assert_eq!(integrate(0, 1_000_000, &[(0, 1.0)]), None);
        }
    }

    #[test]
    fn a_gap_is_filled_and_shown() {
        for integrate in [steps, curve] {
            let energy = integrate(0, 2_000_000, &[(0, 1e5), (1_000_000, 1e5), (2_000_000, 3e5)]).unwrap();
            assert!((energy.j - 300.0).abs() < 1e-9, "100 J, then the mean of 100 and 300 W");
            assert!((energy.spread_j - 100.0).abs() < 1e-9);
        }
    }

    #[test]
    fn the_counter_speaks_only_for_spans_whose_edges_it_saw() {
        let mut counter = CounterSpan::new(0, 10_000_000);
        counter.add(5_000, 1_000_000, 0);
        counter.add(10_005_000, 3_000_000, 0);
        let energy = counter.energy().unwrap();
        assert!((energy.j - 2_000.0).abs() < 1e-6);
        let mut late = CounterSpan::new(0, 10_000_000);
        late.add(5_000_000, 1, 0);
        late.add(10_000_000, 2, 0);
        assert_eq!(late.energy(), None);
        let mut reset = CounterSpan::new(0, 10_000_000);
        reset.add(0, 5, 0);
        reset.add(10_000_000, 2, 1);
        assert_eq!(reset.energy(), None, "never across epochs");
    }
}
