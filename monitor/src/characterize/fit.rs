//! Window, lag and shape of a power sensor, by least squares.
//!
//! Rule: each value that appeared is compared with what a sensor of a given shape, window and lag would have shown of the
//! load's square wave (see [`super::wave`]); the two levels of power are unknown and follow from a straight line
//! through values and responses. Window and lag are those with the least squares, found on a coarse grid and refined
//! by the simplex method; both shapes are tried, the better one wins.
//! Cases: a load that moves power by less than [`LEAST_SWING_W`], or by less than what is left unexplained, shows no
//! window; a window or lag at the end of its range is no result either.
//! Rise: where an ideal square leaves more than a fiftieth of the swing unexplained in any sensor, a common rise of
//! the load is tried for all sensors together; it counts if it lowers the sum of their log-likelihoods clearly and leaves
//! each sensor a window longer than the rise.
//! Source: Yang, Adamek and Armour, "Part-time Power Measurements: nvidia-smi's Lack of Attention", SC'24, which fits
//! the window under square loads; bracketing by polls, lag, shapes and rise are ours. Nelder and Mead, "A Simplex
//! Method for Function Minimization", 1965.

use gpumon_core::timing::WindowShape;

use super::wave::{Edge, Response};

/// Less than this is no load, W.
pub const LEAST_SWING_W: f64 = 5.0;
/// Share of the swing that noise may leave before a rise is tried.
const SQUARE_ENOUGH: f64 = 0.02;
/// Rises that are tried, ms.
const RISES_MS: [f64; 7] = [1.0, 2.0, 4.0, 7.0, 12.0, 20.0, 35.0];
/// What a rise has to gain, in log-likelihood.
const RISE_GAIN: f64 = 20.0;

const WINDOW_MS: [f64; 2] = [0.2, 8_000.0];
const LAG_MS: [f64; 2] = [-60.0, 800.0];
/// The coarse grid: windows grow by this factor, lags by this step.
const WINDOW_FACTOR: f64 = 1.45;
const COARSE_LAGS_MS: [f64; 3] = [-18.0, 400.0, 6.0];
/// Values looked at on the coarse grid and while refining its best cells.
const COARSE_VALUES: usize = 250;
const FINE_VALUES: usize = 900;
const CELLS: usize = 4;

/// A value and the span in which it appeared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seen {
    /// The last time at which the value before it was still shown, ms.
    pub from_ms: f64,
    /// The first time at which this one was shown, ms; the same where a time stamp says it.
    pub to_ms: f64,
    /// The value, W.
    pub watts: f64,
}

/// What was found of one sensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit {
    /// Shape of the window.
    pub shape: WindowShape,
    /// Length of a box, time constant of a low-pass, ms.
    pub window_ms: f64,
    /// From the end of the window to the value, ms.
    pub lag_ms: f64,
    /// Power while the load is off, W.
    pub off_w: f64,
    /// What the load adds, W.
    pub swing_w: f64,
    /// Standard deviation of what is left, W.
    pub residual_w: f64,
    /// How well the other shape does, as a multiple of this one's deviation.
    pub other_shape: f64,
}

/// Why there is no fit.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum NoFit {
    /// Too few values.
    #[error("only {0} new values were seen under load")]
    TooFew(usize),
    /// The load is not in the values.
    #[error("the load moved it by {swing_w:.1} W only, with {residual_w:.1} W unexplained")]
    NoSwing {
        /// What the load added, W.
        swing_w: f64,
        /// What is left, W.
        residual_w: f64,
    },
    /// Nothing within the ranges that are tried.
    #[error("its window or lag is outside {} to {} ms", WINDOW_MS[0], WINDOW_MS[1])]
    OutOfRange,
}

/// Fits of several sensors under the same load, and the load's rise, ms.
pub fn fit_all(edges: &[Edge], sensors: &[Vec<Seen>]) -> (Vec<Result<Fit, NoFit>>, f64) {
    let square: Vec<_> = sensors.iter().map(|seen| Fitting::new(edges, 0.0, seen).best()).collect();
    let poor =
        |fit: &Result<Fit, NoFit>| fit.as_ref().is_ok_and(|fit| fit.residual_w > SQUARE_ENOUGH * fit.swing_w);
    if !square.iter().any(poor) {
        return (square, 0.0);
    }
    let mut best = (square, 0.0);
    let mut best_cost = cost(&best.0, sensors) - RISE_GAIN;
    for rise_ms in RISES_MS {
        let warm = |(seen, known): (&Vec<Seen>, &Result<Fit, NoFit>)| match known {
            Ok(fit) => Fitting::new(edges, rise_ms, seen).near(fit),
            Err(e) => Err(e.clone()),
        };
        let fits: Vec<_> = sensors.iter().zip(&best.0).map(warm).collect();
        let found = cost(&fits, sensors);
        if found < best_cost && told_apart(&fits, &best.0, rise_ms) {
            best_cost = found;
            best = (fits, rise_ms);
        }
    }
    best
}

/// Whether a rise can be told apart from the sensors' windows: every sensor still has a window, and one longer than the
/// rise. Where all sensors smooth alike, what smooths is taken to be the sensors.
fn told_apart(fits: &[Result<Fit, NoFit>], before: &[Result<Fit, NoFit>], rise_ms: f64) -> bool {
    fits.iter().zip(before).all(|(fit, before)| match fit {
        Ok(fit) => fit.window_ms > rise_ms,
        Err(_) => before.is_err(),
    })
}

/// Minus twice the log-likelihood of normal residuals, up to a constant.
fn cost(fits: &[Result<Fit, NoFit>], sensors: &[Vec<Seen>]) -> f64 {
    let of = |(fit, seen): (&Result<Fit, NoFit>, &Vec<Seen>)| match fit {
        Ok(fit) => 2.0 * seen.len() as f64 * fit.residual_w.max(1e-6).ln(),
        Err(_) => 0.0,
    };
    fits.iter().zip(sensors).map(of).sum()
}

/// One sensor's values under one load.
struct Fitting<'a> {
    edges: &'a [Edge],
    rise_ms: f64,
    all: &'a [Seen],
    coarse: Vec<Seen>,
    fine: Vec<Seen>,
}

/// Levels and what they leave.
struct Line {
    off_w: f64,
    swing_w: f64,
    mean_square: f64,
}

impl<'a> Fitting<'a> {
    fn new(edges: &'a [Edge], rise_ms: f64, seen: &'a [Seen]) -> Self {
        Self {
            edges,
            rise_ms,
            all: seen,
            coarse: thinned(seen, COARSE_VALUES),
            fine: thinned(seen, FINE_VALUES),
        }
    }

    fn best(&self) -> Result<Fit, NoFit> {
        const LEAST_VALUES: usize = 20;
        if self.all.len() < LEAST_VALUES {
            return Err(NoFit::TooFew(self.all.len()));
        }
        let shapes = [WindowShape::Box, WindowShape::LowPass];
        self.better(shapes.map(|shape| (shape, self.search(shape))))
    }

    /// The best fit near a known one.
    fn near(&self, known: &Fit) -> Result<Fit, NoFit> {
        let shapes = [WindowShape::Box, WindowShape::LowPass];
        self.better(shapes.map(|shape| {
            // A box and a low-pass of the same spread differ in length by √12.
            let window_ms = match (known.shape, shape) {
                (WindowShape::Box, WindowShape::LowPass) => known.window_ms / 12f64.sqrt(),
                (WindowShape::LowPass, WindowShape::Box) => known.window_ms * 12f64.sqrt(),
                _ => known.window_ms,
            };
            (shape, self.refine(shape, &self.fine, [window_ms, known.lag_ms], 80))
        }))
    }

    fn better(&self, found: [(WindowShape, [f64; 2]); 2]) -> Result<Fit, NoFit> {
        let lines = found.map(|(shape, point)| self.line(shape, self.all, point));
        let pick = usize::from(lines[1].mean_square < lines[0].mean_square);
        let (shape, [window_ms, lag_ms]) = found[pick];
        let Line { off_w, swing_w, mean_square } = lines[pick];
        let residual_w = mean_square.sqrt();
        if swing_w < LEAST_SWING_W || swing_w < residual_w {
            return Err(NoFit::NoSwing { swing_w, residual_w });
        }
        let inside = |value: f64, [low, high]: [f64; 2]| low < value && value < high;
        if !inside(window_ms, WINDOW_MS) || !inside(lag_ms, LAG_MS) {
            return Err(NoFit::OutOfRange);
        }
        let other_shape = (lines[1 - pick].mean_square / mean_square.max(1e-12)).sqrt();
        Ok(Fit { shape, window_ms, lag_ms, off_w, swing_w, residual_w, other_shape })
    }

    /// Window and lag of one shape, from nothing.
    fn search(&self, shape: WindowShape) -> [f64; 2] {
        let mut cells: Vec<(f64, [f64; 2])> = Vec::new();
        let mut window_ms = 2.0 * WINDOW_MS[0];
        while window_ms < WINDOW_MS[1] {
            let response = Response::new(self.edges, self.rise_ms, shape, window_ms);
            let mut best = (f64::INFINITY, [window_ms, 0.0]);
            let mut lag_ms = COARSE_LAGS_MS[0];
            while lag_ms <= COARSE_LAGS_MS[1] {
                let left = line(&response, &self.coarse, lag_ms).mean_square;
                if left < best.0 {
                    best = (left, [window_ms, lag_ms]);
                }
                lag_ms += COARSE_LAGS_MS[2];
            }
            cells.push(best);
            window_ms *= WINDOW_FACTOR;
        }
        cells.sort_by(|a, b| a.0.total_cmp(&b.0));
        let refined = cells.iter().take(CELLS).map(|(_, cell)| {
            let point = self.refine(shape, &self.fine, *cell, 80);
            (self.line(shape, &self.fine, point).mean_square, point)
        });
        let best = refined.min_by(|a, b| a.0.total_cmp(&b.0)).map_or([1.0, 0.0], |(_, point)| point);
        self.refine(shape, self.all, best, 100)
    }

    fn line(&self, shape: WindowShape, seen: &[Seen], [window_ms, lag_ms]: [f64; 2]) -> Line {
        line(&Response::new(self.edges, self.rise_ms, shape, window_ms), seen, lag_ms)
    }

    /// The simplex method in the logarithm of the window and the centre of gravity of the window, which the values fix
    /// better than the lag.
    fn refine(&self, shape: WindowShape, seen: &[Seen], start: [f64; 2], steps: usize) -> [f64; 2] {
        let weight = match shape {
            WindowShape::Box => 0.5,
            WindowShape::LowPass => 1.0,
        };
        let point = |[log_ms, centre_ms]: [f64; 2]| {
            let window_ms = log_ms.exp().clamp(WINDOW_MS[0], WINDOW_MS[1]);
            [window_ms, (centre_ms - weight * window_ms).clamp(LAG_MS[0], LAG_MS[1])]
        };
        let left = |at: [f64; 2]| self.line(shape, seen, point(at)).mean_square;
        let first = [start[0].ln(), start[1] + weight * start[0]];
        point(simplex(left, first, [0.2, 4.0], steps))
    }
}

/// The straight line through values and responses.
fn line(response: &Response, seen: &[Seen], lag_ms: f64) -> Line {
    let n = seen.len() as f64;
    let (mut sx, mut sy, mut sxx, mut sxy, mut syy) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for s in seen {
        let x = response.seen(s.from_ms, s.to_ms, lag_ms);
        sx += x;
        sy += s.watts;
        sxx += x * x;
        sxy += x * s.watts;
        syy += s.watts * s.watts;
    }
    let (vx, vxy, vy) = (sxx - sx * sx / n, sxy - sx * sy / n, syy - sy * sy / n);
    // A load that lowers power is no load.
    let swing_w = if vx > 1e-9 * n { (vxy / vx).max(0.0) } else { 0.0 };
    let mean_square = ((vy - swing_w * (2.0 * vxy - swing_w * vx)) / n).max(0.0);
    Line { off_w: (sy - swing_w * sx) / n, swing_w, mean_square }
}

/// About `most` of them, evenly spread in order.
fn thinned(seen: &[Seen], most: usize) -> Vec<Seen> {
    let step = seen.len().div_ceil(most).max(1);
    // An odd step does not go along with the load's on and off.
    let step = if step > 1 { step | 1 } else { step };
    seen.iter().step_by(step).copied().collect()
}

/// Nelder and Mead in two dimensions.
fn simplex(mut f: impl FnMut([f64; 2]) -> f64, start: [f64; 2], size: [f64; 2], steps: usize) -> [f64; 2] {
    let mut corners =
        [start, [start[0] + size[0], start[1]], [start[0], start[1] + size[1]]].map(|p| (f(p), p));
    let mix = |a: [f64; 2], b: [f64; 2], t: f64| [a[0] + t * (b[0] - a[0]), a[1] + t * (b[1] - a[1])];
    for _ in 0..steps {
        corners.sort_by(|a, b| a.0.total_cmp(&b.0));
        let [best, middle, worst] = corners;
        let spread =
            (0..2).map(|i| (worst.1[i] - best.1[i]).abs().max((middle.1[i] - best.1[i]).abs()) / size[i]);
        if spread.fold(0.0, f64::max) < 1e-4 {
            break;
        }
        let centre = mix(best.1, middle.1, 0.5);
        let mut tried = |t: f64| {
            let p = mix(worst.1, centre, t);
            (f(p), p)
        };
        let mirrored = tried(2.0);
        let next = if mirrored.0 < best.0 {
            let further = tried(3.0);
            if further.0 < mirrored.0 { further } else { mirrored }
        } else if mirrored.0 < middle.0 {
            mirrored
        } else {
            let nearer = tried(if mirrored.0 < worst.0 { 1.5 } else { 0.5 });
            if nearer.0 >= worst.0.min(mirrored.0) {
                for corner in &mut corners[1..] {
                    corner.1 = mix(best.1, corner.1, 0.5);
                    corner.0 = f(corner.1);
                }
                continue;
            }
            nearer
        };
        corners[2] = next;
    }
    corners.iter().min_by(|a, b| a.0.total_cmp(&b.0)).map_or(start, |c| c.1)
}

#[cfg(test)]
mod tests {
    use super::super::phases::{self, Phase};
    use super::*;

    fn edges(phases: &[Phase]) -> Vec<Edge> {
        let mut at_ms = 0.0;
        let mut edges = Vec::new();
        for phase in phases {
            edges.push(Edge { at_ms, on: phase.on });
            at_ms += phase.us as f64 / 1e3;
        }
        edges
    }

    /// Values each `every_ms` of a sensor that draws 100 W off and 400 W on.
    fn seen(response: &Response, lag_ms: f64, every_ms: f64, noise_w: f64) -> Vec<Seen> {
        (1..(30_000.0 / every_ms) as i32)
            .map(|k| {
                let (at_ms, odd) = (every_ms * f64::from(k), f64::from(k * 7919 % 1000) / 500.0 - 1.0);
                let watts = 100.0 + 300.0 * response.seen(at_ms, at_ms, lag_ms) + noise_w * odd;
                Seen { from_ms: at_ms - 0.5, to_ms: at_ms + 0.5, watts }
            })
            .collect()
    }

    #[test]
    fn a_rise_of_the_load_is_told_apart_from_windows() {
        let edges = edges(&phases::squares(100.0, 30_000_000));
        let of = |shape, window_ms, lag_ms, every_ms| {
            seen(&Response::new(&edges, 12.0, shape, window_ms), lag_ms, every_ms, 1.0)
        };
        let sensors = [of(WindowShape::Box, 25.0, 10.0, 100.3), of(WindowShape::Box, 100.0, 0.0, 20.1)];
        let (fits, rise_ms) = fit_all(&edges, &sensors);
        assert_eq!(rise_ms, 12.0);
        for (fit, (window_ms, lag_ms)) in fits.iter().zip([(25.0, 10.0), (100.0, 0.0)]) {
            let fit = fit.as_ref().unwrap();
            assert_eq!(fit.shape, WindowShape::Box);
            assert!((fit.window_ms - window_ms).abs() < 1.0 && (fit.lag_ms - lag_ms).abs() < 1.0, "{fit:?}");
            assert!((fit.off_w - 100.0).abs() < 1.0 && (fit.swing_w - 300.0).abs() < 2.0, "{fit:?}");
        }
    }

    /// As an H200 has it: the ring and the short-window field show the same smoothed signal.
    #[test]
    fn sensors_that_smooth_alike_keep_their_smoothing() {
        let edges = edges(&phases::squares(100.0, 30_000_000));
        let of = |every_ms| seen(&Response::new(&edges, 14.0, WindowShape::LowPass, 0.3), 3.0, every_ms, 1.0);
        let (fits, rise_ms) = fit_all(&edges, &[of(20.1), of(100.3)]);
        assert!(rise_ms < 14.0, "{rise_ms}");
        for fit in fits {
            let fit = fit.unwrap();
            assert!(fit.shape == WindowShape::LowPass && fit.window_ms > rise_ms, "{fit:?}");
            assert!((10.0..=16.0).contains(&(fit.window_ms.hypot(rise_ms))), "{fit:?} after {rise_ms} ms");
        }
    }

    #[test]
    fn no_load_and_few_values_have_no_window() {
        let edges = edges(&phases::squares(100.0, 30_000_000));
        let response = Response::new(&edges, 0.0, WindowShape::Box, 25.0);
        let mut flat = seen(&response, 0.0, 100.3, 1.0);
        let few = flat[..10].to_vec();
        flat.iter_mut().zip(0..).for_each(|(s, k)| s.watts = 80.0 + f64::from(k % 7));
        let (fits, rise_ms) = fit_all(&edges, &[flat, few, Vec::new()]);
        assert!(matches!(fits[0], Err(NoFit::NoSwing { .. })), "{:?}", fits[0]);
        assert_eq!((&fits[1], &fits[2], rise_ms), (&Err(NoFit::TooFew(10)), &Err(NoFit::TooFew(0)), 0.0));
    }
}
