//! The time of one batch: launching or computing, whichever takes longer.
//!
//! Rule, with b items, f in GHz, s the share of the SMs, m the share of the memory slices and n processes in the share:
//!
//! ```text
//! floor = (l₀ + l₁/f) / n                                                 launching kernels, whatever the batch
//! work  = (c₀ + c₁/f + c₂ b/f + c₇ b) / n + c₃/(s f) + c₄ b/(s f) + c₅/m + c₆ b/m
//! time  = (floorᵖ + workᵖ)^(1/p)                                          smooth maximum
//! ```
//!
//! Time is that from one batch's end to the next one's, whichever process they are of. SMs and memory are shared by the processes; what
//! occupies neither (the host, copies, kernels too small for the share) happens in all of them at once.
//!
//! All coefficients are ≥ 0 and minimise the sum of squared relative errors. For a given p the time is homogeneous of
//! degree 1 in the coefficients, so each damped Gauss–Newton step is a non-negative least-squares problem; p is the
//! one of [`SHARPNESS`] with the least error.
//!
//! Cases: a coefficient at its bound of 0 has no standard error. One clock or one batch size cannot tell terms apart
//! that differ only in it; the fit then holds within the range it is valid in.
//!
//! Not done: the slow-down when the power cap lowers the clock below the one asked for.
//!
//! Source: the form in `docs/fitting.md`, a roofline with a launch floor; the step: Marquardt, J. SIAM 11 (1963),
//! 431; standard errors from the inverse of JᵀJ at the solution.

use nalgebra::{DMatrix, DVector};
use serde::{Deserialize, Serialize};

use crate::nonnegative;
use crate::point::Point;

/// A fitted number and how well it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Parameter {
    /// Value, in the unit its name says.
    pub value: f64,
    /// Standard error in the same unit; absent where the value is at a bound or nothing was left to tell it from.
    pub std_error: Option<f64>,
}

/// Sharpness of the maximum that the fit tries.
pub const SHARPNESS: [f64; 6] = [1.5, 2.0, 3.0, 5.0, 8.0, 16.0];
/// Terms of the work, then of the floor.
const TERMS: usize = 10;
const WORK: usize = 8;

/// Parameters of the time of one batch. Times in ms; `_cycles` in millions of SM cycles (ms × GHz).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchTime {
    /// Work that nothing shortens (c₀), ms.
    pub fixed_ms: Parameter,
    /// Work that only the clock shortens (c₁).
    pub serial_cycles: Parameter,
    /// The same for each item (c₂).
    pub serial_cycles_per_item: Parameter,
    /// Work on the whole GPU's SMs (c₃).
    pub sm_cycles: Parameter,
    /// The same for each item (c₄).
    pub sm_cycles_per_item: Parameter,
    /// Memory traffic of a batch on the whole memory, weights mostly (c₅), ms.
    pub memory_ms: Parameter,
    /// The same for each item, activations mostly (c₆), ms.
    pub memory_ms_per_item: Parameter,
    /// Time of an item that neither clock nor share shortens, copies mostly (c₇), ms.
    pub fixed_ms_per_item: Parameter,
    /// Launching on the host (l₀), ms.
    pub launch_ms: Parameter,
    /// Launching on the GPU (l₁).
    pub launch_cycles: Parameter,
    /// Sharpness p of the maximum.
    pub sharpness: f64,
}

/// The terms at a point: eight of the work, two of the floor.
fn terms(point: &Point) -> Option<[f64; TERMS]> {
    let (b, f, s, m) = (point.batch_items(), point.ghz(), point.share.sms(), point.share.memory()?);
    let n = point.processes_count();
    let (once, cycle, item) = (1.0 / n, 1.0 / f / n, b / n);
    Some([once, cycle, b / f / n, 1.0 / (s * f), b / (s * f), 1.0 / m, b / m, item, once, cycle])
}

/// Work, floor and time for coefficients.
fn time_of(terms: &[f64; TERMS], coefficients: &[f64], p: f64) -> (f64, f64, f64) {
    let dot = |range: std::ops::Range<usize>| range.map(|i| terms[i] * coefficients[i]).sum::<f64>();
    let (work, floor) = (dot(0..WORK), dot(WORK..TERMS));
    let (high, low) = (work.max(floor), work.min(floor));
    (work, floor, if high > 0.0 { high * (1.0 + (low / high).powf(p)).powf(1.0 / p) } else { 0.0 })
}

impl BatchTime {
    /// Fits points with their times in ms; `None` without points, or if they give no finite answer.
    pub(crate) fn fit(points: &[(Point, f64)]) -> Option<Self> {
        let rows: Vec<([f64; TERMS], f64)> =
            points.iter().map(|(point, ms)| Some((terms(point)?, *ms))).collect::<Option<_>>()?;
        let shortest = rows.iter().map(|r| r.1).fold(f64::INFINITY, f64::min);
        let work = work_alone(&rows)?;
        let mut best: Option<(f64, Vec<f64>, f64)> = None;
        for p in SHARPNESS {
            for share in [0.3, 0.9] {
                let mut start = work.clone();
                start.extend([share * shortest * 0.5, share * shortest * 0.5]);
                let (cost, coefficients) = descend(&rows, start, p);
                if cost.is_finite() && best.as_ref().is_none_or(|b| cost < b.0) {
                    best = Some((cost, coefficients, p));
                }
            }
        }
        let (cost, coefficients, p) = best?;
        let errors = standard_errors(&rows, &coefficients, p, cost);
        let parameter = |i: usize| Parameter { value: coefficients[i], std_error: errors[i] };
        Some(Self {
            fixed_ms: parameter(0),
            serial_cycles: parameter(1),
            serial_cycles_per_item: parameter(2),
            sm_cycles: parameter(3),
            sm_cycles_per_item: parameter(4),
            memory_ms: parameter(5),
            memory_ms_per_item: parameter(6),
            fixed_ms_per_item: parameter(7),
            launch_ms: parameter(8),
            launch_cycles: parameter(9),
            sharpness: p,
        })
    }

    fn parameters(&self) -> [Parameter; TERMS] {
        [
            self.fixed_ms,
            self.serial_cycles,
            self.serial_cycles_per_item,
            self.sm_cycles,
            self.sm_cycles_per_item,
            self.memory_ms,
            self.memory_ms_per_item,
            self.fixed_ms_per_item,
            self.launch_ms,
            self.launch_cycles,
        ]
    }

    /// Time of one batch, ms; `None` for a MIG instance that does not exist.
    pub fn at_ms(&self, point: &Point) -> Option<f64> {
        Some(time_of(&terms(point)?, &self.parameters().map(|p| p.value), self.sharpness).2)
    }

    /// Whether every value is a number that this form can have.
    pub(crate) fn is_sound(&self) -> bool {
        let values = self.parameters().map(|p| p.value);
        values.iter().all(|v| v.is_finite() && *v >= 0.0)
            && values.iter().any(|v| *v > 0.0)
            && self.sharpness.is_finite()
            && self.sharpness >= 1.0
    }
}

/// Coefficients of the work if there were no floor.
fn work_alone(rows: &[([f64; TERMS], f64)]) -> Option<Vec<f64>> {
    if rows.is_empty() {
        return None;
    }
    let a = DMatrix::from_fn(rows.len(), WORK, |i, j| rows[i].0[j] / rows[i].1);
    let gram = a.tr_mul(&a);
    let rhs = DVector::from_fn(WORK, |j, _| a.column(j).sum());
    Some(nonnegative::solve(&gram, &rhs).iter().copied().collect())
}

/// Relative residuals and their derivatives.
fn linearised(rows: &[([f64; TERMS], f64)], at: &[f64], p: f64) -> (DVector<f64>, DMatrix<f64>) {
    let mut residuals = DVector::zeros(rows.len());
    let mut jacobian = DMatrix::zeros(rows.len(), TERMS);
    for (i, (terms, ms)) in rows.iter().enumerate() {
        let (work, floor, time) = time_of(terms, at, p);
        residuals[i] = time / ms - 1.0;
        let slope = |part: f64| if time > 0.0 { (part / time).powf(p - 1.0) } else { 1.0 };
        let (of_work, of_floor) = (slope(work), slope(floor));
        for j in 0..TERMS {
            jacobian[(i, j)] = if j < WORK { of_work } else { of_floor } * terms[j] / ms;
        }
    }
    (residuals, jacobian)
}

fn descend(rows: &[([f64; TERMS], f64)], start: Vec<f64>, p: f64) -> (f64, Vec<f64>) {
    let cost_of = |c: &[f64]| rows.iter().map(|(t, ms)| (time_of(t, c, p).2 / ms - 1.0).powi(2)).sum::<f64>();
    let mut at = DVector::from_vec(start);
    let mut cost = cost_of(at.as_slice());
    let mut damping = 1e-3;
    for _ in 0..60 {
        let (residuals, jacobian) = linearised(rows, at.as_slice(), p);
        let gram = jacobian.tr_mul(&jacobian);
        let diagonal = DMatrix::from_diagonal(&gram.diagonal());
        let down = &gram * &at - jacobian.tr_mul(&residuals);
        let mut gain = 0.0;
        while damping < 1e6 {
            let next =
                nonnegative::solve(&(&gram + damping * &diagonal), &(&down + damping * &diagonal * &at));
            let next_cost = cost_of(next.as_slice());
            if next_cost < cost {
                gain = (cost - next_cost) / cost.max(f64::MIN_POSITIVE);
                (at, cost) = (next, next_cost);
                damping = (damping / 5.0_f64).max(1e-9);
                break;
            }
            damping *= 4.0;
        }
        if gain < 1e-7 {
            break;
        }
    }
    (cost, at.iter().copied().collect())
}

fn standard_errors(rows: &[([f64; TERMS], f64)], at: &[f64], p: f64, cost: f64) -> [Option<f64>; TERMS] {
    let mut errors = [None; TERMS];
    let free: Vec<usize> = (0..TERMS).filter(|&i| at[i] > 0.0).collect();
    let (_, jacobian) = linearised(rows, at, p);
    // In shares of each coefficient, so that the inverse is well conditioned.
    let scaled = DMatrix::from_fn(rows.len(), free.len(), |i, j| jacobian[(i, free[j])] * at[free[j]]);
    let left = rows.len() as f64 - free.len() as f64;
    if left < 1.0 {
        return errors;
    }
    let gram = scaled.tr_mul(&scaled);
    if let Some(inverse) = gram.cholesky().map(|c| c.inverse()) {
        for (j, &i) in free.iter().enumerate() {
            let error = at[i] * (cost / left * inverse[(j, j)]).sqrt();
            errors[i] = error.is_finite().then_some(error);
        }
    }
    errors
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::point::Share;
    use gpumon_core::units::Megahertz;

    pub(crate) fn grid() -> Vec<Point> {
        let mut points = Vec::new();
        for slices in [1, 2, 3, 4, 7] {
            for mhz in [210, 510, 810, 1110, 1410] {
                points.extend([1, 2, 4, 8, 16, 32].map(|batch| Point {
                    batch,
                    share: Share::Slices(slices),
                    frequency: Megahertz(mhz),
                    processes: 1,
                }));
            }
        }
        points
    }

    pub(crate) fn truth() -> BatchTime {
        let known = |value| Parameter { value, std_error: None };
        BatchTime {
            fixed_ms: known(0.0),
            serial_cycles: known(0.0),
            serial_cycles_per_item: known(0.0),
            sm_cycles: known(1.2),
            sm_cycles_per_item: known(0.8),
            memory_ms: known(0.5),
            memory_ms_per_item: known(0.0),
            fixed_ms_per_item: known(0.05),
            launch_ms: known(4.0),
            launch_cycles: known(3.0),
            sharpness: 5.0,
        }
    }

    #[test]
    fn known_coefficients_are_recovered() {
        let points: Vec<_> = grid().into_iter().map(|p| (p, truth().at_ms(&p).unwrap())).collect();
        let fitted = BatchTime::fit(&points).unwrap();
        assert_eq!(fitted.sharpness, 5.0);
        for (name, found, known) in [
            ("sm_cycles", fitted.sm_cycles, 1.2),
            ("sm_cycles_per_item", fitted.sm_cycles_per_item, 0.8),
            ("memory_ms", fitted.memory_ms, 0.5),
            ("launch_ms", fitted.launch_ms, 4.0),
            ("launch_cycles", fitted.launch_cycles, 3.0),
        ] {
            assert!((found.value / known - 1.0).abs() < 0.02, "{name}: {found:?}, known {known}");
        }
    }

    #[test]
    fn standard_errors_cover_the_truth_of_noisy_times() {
        let noisy = |i: usize, ms: f64| ms * (1.0 + 0.02 * (i as f64 * 12.9898).sin());
        let points: Vec<_> =
            grid().into_iter().enumerate().map(|(i, p)| (p, noisy(i, truth().at_ms(&p).unwrap()))).collect();
        let fitted = BatchTime::fit(&points).unwrap().sm_cycles_per_item;
        let error = fitted.std_error.unwrap();
        assert!(error > 0.0 && error < 0.1);
        assert!((fitted.value - 0.8).abs() < 4.0 * error, "{fitted:?}");
    }

    #[test]
    fn one_clock_and_one_batch_still_fit() {
        let some = |keep: fn(&Point) -> bool| -> f64 {
            let points: Vec<_> =
                grid().into_iter().filter(keep).map(|p| (p, truth().at_ms(&p).unwrap())).collect();
            let fitted = BatchTime::fit(&points).unwrap();
            points.iter().map(|(p, ms)| (fitted.at_ms(p).unwrap() / ms - 1.0).abs()).fold(0.0, f64::max)
        };
        assert!(some(|p| p.frequency.0 == 810) < 0.01);
        assert!(some(|p| p.batch == 1) < 0.01);
        assert!(BatchTime::fit(&[]).is_none());
    }
}
