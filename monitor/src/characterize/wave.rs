//! The load's square wave as a sensor sees it: between 0 (off) and 1 (on), with its integrals in closed form.
//!
//! Rule: the wave is off before its first edge. Power follows an edge at once, or with a time constant ("rise") that is
//! the same up and down. A low-pass filter may follow. So between two edges the wave is a constant plus at most two
//! fading exponentials, and so are its first and second integral over time.
//!
//! A sensor's value that appeared between two polls is the mean over that span of what a value at each instant would
//! be. A box window of length W is then a difference of second integrals, a low-pass a difference of first integrals.
//!
//! Not done here: loads with more than two levels, and overshoot at an edge.

use gpumon_core::timing::WindowShape;

/// A moment at which the load went on or off.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Edge {
    /// When, ms.
    pub at_ms: f64,
    /// Whether it is on from then on.
    pub on: bool,
}

/// Shorter spans than this are taken to be instants, ms.
const INSTANT_MS: f64 = 1e-3;

#[derive(Clone, Copy, Debug)]
struct Segment {
    at_ms: f64,
    level: f64,
    /// Amplitudes and time constants of what fades.
    fading: [(f64, f64); 2],
    /// First and second integral at the segment's beginning.
    integrals: [f64; 2],
}

impl Segment {
    /// Value, first and second integral at a time in this segment.
    fn at(&self, time_ms: f64) -> [f64; 3] {
        let t = time_ms - self.at_ms;
        let [first, second] = self.integrals;
        let mut found = [self.level, first + self.level * t, second + first * t + 0.5 * self.level * t * t];
        for (amplitude, constant) in self.fading.into_iter().filter(|(amplitude, _)| *amplitude != 0.0) {
            let left = (-t / constant).exp();
            let area = constant * (1.0 - left);
            found[0] += amplitude * left;
            found[1] += amplitude * area;
            found[2] += amplitude * constant * (t - area);
        }
        found
    }
}

/// A square wave after its rise and an optional filter.
#[derive(Clone, Debug)]
pub struct Wave {
    segments: Vec<Segment>,
}

impl Wave {
    /// The wave of these edges, in time order. A constant of 0 is none.
    pub fn new(edges: &[Edge], rise_ms: f64, low_pass_ms: f64) -> Self {
        // Two equal constants would need another formula; a tenth of a per cent apart they do not.
        let low_pass_ms =
            if (low_pass_ms - rise_ms).abs() < 1e-3 * rise_ms { rise_ms * 1.001 } else { low_pass_ms };
        let mut segments: Vec<Segment> = Vec::with_capacity(edges.len());
        let (mut risen, mut filtered, mut integrals) = (0.0, 0.0, [0.0; 2]);
        for edge in edges {
            if let Some(last) = segments.last() {
                let [value, first, second] = last.at(edge.at_ms);
                let t = edge.at_ms - last.at_ms;
                risen = match rise_ms > 0.0 {
                    true => last.level + (risen - last.level) * (-t / rise_ms).exp(),
                    false => last.level,
                };
                (filtered, integrals) = (value, [first, second]);
            }
            let level = f64::from(u8::from(edge.on));
            let rest = if rise_ms > 0.0 { risen - level } else { 0.0 };
            let fading = match low_pass_ms > 0.0 {
                true => {
                    let through = rest * rise_ms / (rise_ms - low_pass_ms);
                    [(through, rise_ms), (filtered - level - through, low_pass_ms)]
                }
                false => [(rest, rise_ms), (0.0, 1.0)],
            };
            segments.push(Segment { at_ms: edge.at_ms, level, fading, integrals });
        }
        Self { segments }
    }

    /// Value, first and second integral.
    pub fn at(&self, time_ms: f64) -> [f64; 3] {
        let after = self.segments.partition_point(|segment| segment.at_ms <= time_ms);
        after.checked_sub(1).map_or([0.0; 3], |i| self.segments[i].at(time_ms))
    }

    /// Mean value over a span.
    pub fn mean(&self, from_ms: f64, to_ms: f64) -> f64 {
        match to_ms - from_ms {
            span if span < INSTANT_MS => self.at(to_ms)[0],
            span => (self.at(to_ms)[1] - self.at(from_ms)[1]) / span,
        }
    }

    /// Mean first integral over a span.
    pub fn mean_integral(&self, from_ms: f64, to_ms: f64) -> f64 {
        match to_ms - from_ms {
            span if span < INSTANT_MS => self.at(to_ms)[1],
            span => (self.at(to_ms)[2] - self.at(from_ms)[2]) / span,
        }
    }
}

/// What a sensor makes of the wave, per shape and window.
pub struct Response {
    wave: Wave,
    shape: WindowShape,
    window_ms: f64,
}

impl Response {
    /// The response of a window of this shape and length or time constant.
    pub fn new(edges: &[Edge], rise_ms: f64, shape: WindowShape, window_ms: f64) -> Self {
        let low_pass_ms = if shape == WindowShape::LowPass { window_ms } else { 0.0 };
        Self { wave: Wave::new(edges, rise_ms, low_pass_ms), shape, window_ms }
    }

    /// The value that appeared in a span, 0 to 1, by a sensor with this lag.
    pub fn seen(&self, from_ms: f64, to_ms: f64, lag_ms: f64) -> f64 {
        let (from_ms, to_ms) = (from_ms - lag_ms, to_ms - lag_ms);
        match self.shape {
            WindowShape::LowPass => self.wave.mean(from_ms, to_ms),
            WindowShape::Box => {
                let till = |end_ms: f64, start_ms: f64| self.wave.mean_integral(start_ms, end_ms);
                (till(to_ms, from_ms) - till(to_ms - self.window_ms, from_ms - self.window_ms))
                    / self.window_ms
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EDGES: [Edge; 3] =
        [Edge { at_ms: 10.0, on: true }, Edge { at_ms: 50.0, on: false }, Edge { at_ms: 90.0, on: true }];

    #[test]
    fn a_box_sees_the_share_of_its_window() {
        let response = Response::new(&EDGES, 0.0, WindowShape::Box, 20.0);
        for (at_ms, expected) in
            [(5.0, 0.0), (10.0, 0.0), (15.0, 0.25), (30.0, 1.0), (60.0, 0.5), (95.0, 0.25)]
        {
            assert!((response.seen(at_ms, at_ms, 0.0) - expected).abs() < 1e-9, "{at_ms}");
            assert!((response.seen(at_ms + 7.0, at_ms + 7.0, 7.0) - expected).abs() < 1e-9, "{at_ms}");
        }
        // Between 10 and 20 the value rises from 0 to a half.
        assert!((response.seen(10.0, 20.0, 0.0) - 0.25).abs() < 1e-9);
    }

    #[test]
    fn a_low_pass_fades() {
        let response = Response::new(&EDGES, 0.0, WindowShape::LowPass, 8.0);
        assert!((response.seen(18.0, 18.0, 0.0) - (1.0 - (-1.0f64).exp())).abs() < 1e-9);
        let before = 1.0 - (-5.0f64).exp();
        assert!((response.seen(58.0, 58.0, 0.0) - before * (-1.0f64).exp()).abs() < 1e-9);
    }

    #[test]
    fn integrals_are_the_sums_of_what_they_integrate() {
        for (rise_ms, low_pass_ms) in [(0.0, 0.0), (6.0, 0.0), (0.0, 9.0), (6.0, 9.0), (6.0, 6.0)] {
            let wave = Wave::new(&EDGES, rise_ms, low_pass_ms);
            let (mut first, mut second) = (0.0, 0.0);
            const STEP_MS: f64 = 0.002;
            for i in 0..60_000 {
                let t = f64::from(i) * STEP_MS;
                let found = wave.at(t);
                assert!((found[1] - first).abs() < 1e-2 && (found[2] - second).abs() < 0.2, "{t}: {found:?}");
                first += STEP_MS * wave.at(t + STEP_MS / 2.0)[0];
                second += STEP_MS * wave.at(t + STEP_MS / 2.0)[1];
            }
            assert!(wave.at(90.0 - 1e-9)[0] - wave.at(90.0)[0] < 1e-6 || rise_ms + low_pass_ms == 0.0);
        }
    }

    #[test]
    fn a_rise_alone_is_a_low_pass() {
        let risen = Response::new(&EDGES, 8.0, WindowShape::Box, 1e-2);
        let filtered = Response::new(&EDGES, 0.0, WindowShape::LowPass, 8.0);
        for at_ms in [12.0, 30.0, 55.0, 100.0] {
            assert!((risen.seen(at_ms, at_ms, 0.0) - filtered.seen(at_ms, at_ms, 0.0)).abs() < 1e-3);
        }
    }
}
