//! A sum of monomials in centred and scaled variables, fitted by least squares.
//!
//! Rule: each variable is centred and divided by its spread over the training points, all monomials up to a total
//! degree are formed, and their coefficients minimise the squared error plus `ridge` times their squares (the
//! constant is free). With `ridge` 0 this is ordinary least squares; scaling then changes nothing but the
//! conditioning.
//!
//! Cases: a variable with n distinct values enters with powers up to n − 1, so a constant one not at all; what
//! still depends on each other linearly gets the coefficients of least norm.
//!
//! Source: Golub and Van Loan, *Matrix Computations*, 4th ed., 5.5 and 6.1 (least squares and ridge through the
//! singular value decomposition); Hastie, Tibshirani and Friedman, *The Elements of Statistical Learning*, 2nd ed.,
//! 3.4.1 and 7.10 (ridge, leave-one-out residual e / (1 − h)).

use nalgebra::{DMatrix, DVector};
use serde::{Deserialize, Serialize};

/// One variable and how it was scaled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Variable {
    /// Name, with its unit where it has one.
    pub name: String,
    /// Mean over the training points.
    pub mean: f64,
    /// Standard deviation over the training points; 1 where that is 0.
    pub scale: f64,
}

/// One monomial and its coefficient.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Term {
    /// Powers of the variables, in their order.
    pub powers: Vec<u8>,
    /// Coefficient, in units of what was fitted.
    pub value: f64,
    /// Its standard error; absent when no degrees of freedom were left.
    pub std_error: Option<f64>,
}

/// A fitted sum of monomials.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Surface {
    /// The variables, in order.
    pub variables: Vec<Variable>,
    /// Weight of the squared coefficients; 0 is ordinary least squares.
    pub ridge: f64,
    /// The monomials; the first is the constant.
    pub terms: Vec<Term>,
}

/// Monomials over training points, decomposed once and solved for any ridge.
pub(crate) struct Design {
    variables: Vec<Variable>,
    powers: Vec<Vec<u8>>,
    means: DVector<f64>,
    u: DMatrix<f64>,
    /// Squares of `u`.
    squares: DMatrix<f64>,
    v_t: DMatrix<f64>,
    singular: DVector<f64>,
}

impl Design {
    /// Prepares `points` (one row of variable values a point) for polynomials of `degree`; `None` if there are no
    /// points or a value is not finite.
    pub(crate) fn new(names: &[&str], points: &[Vec<f64>], degree: u8) -> Option<Self> {
        if points.is_empty() || points.iter().flatten().any(|v| !v.is_finite()) {
            return None;
        }
        let n = points.len();
        let mut variables = Vec::new();
        let mut limits = Vec::new();
        for (j, name) in names.iter().enumerate() {
            let mut column: Vec<f64> = points.iter().map(|p| p[j]).collect();
            let mean = column.iter().sum::<f64>() / n as f64;
            let spread = (column.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n as f64).sqrt();
            column.sort_by(f64::total_cmp);
            column.dedup_by(|a, b| (*a - *b).abs() <= 1e-9 * (1.0 + b.abs()));
            let scale = if column.len() > 1 && spread > 0.0 { spread } else { 1.0 };
            variables.push(Variable { name: (*name).to_owned(), mean, scale });
            limits.push((column.len() - 1).min(usize::from(degree)) as u8);
        }
        let powers = monomials(&limits, degree);
        let mut x =
            DMatrix::from_fn(n, powers.len() - 1, |i, k| monomial(&variables, &powers[k + 1], &points[i]));
        let means = DVector::from_iterator(x.ncols(), x.column_iter().map(|c| c.mean()));
        for (mut column, mean) in x.column_iter_mut().zip(means.iter()) {
            column.add_scalar_mut(-mean);
        }
        let (u, singular, v_t) = if x.ncols() == 0 {
            (DMatrix::zeros(n, 0), DVector::zeros(0), DMatrix::zeros(0, 0))
        } else {
            decomposed(x)?
        };
        let squares = u.map(|u| u * u);
        Some(Self { variables, powers, means, u, squares, v_t, singular })
    }

    /// Number of coefficients.
    pub(crate) fn terms(&self) -> usize {
        self.powers.len()
    }

    /// How much of each singular direction a ridge leaves, and what the direction is divided by.
    fn filters(&self, ridge: f64) -> [DVector<f64>; 2] {
        let cutoff = self.singular.iter().copied().fold(0.0, f64::max) * 1e-10;
        let filter =
            |of: fn(f64, f64) -> f64| self.singular.map(|d| if d > cutoff { of(d, ridge) } else { 0.0 });
        [filter(|d, ridge| d * d / (d * d + ridge)), filter(|d, ridge| d / (d * d + ridge))]
    }

    /// Leave-one-out residuals of a fit of `y` (one value a point), in the order of the points.
    pub(crate) fn left_out(&self, y: &[f64], ridge: f64) -> DVector<f64> {
        let n = y.len() as f64;
        let centred = centred(y);
        let [shrink, _] = self.filters(ridge);
        let mut left_out = &centred - &self.u * self.u.tr_mul(&centred).component_mul(&shrink);
        let leverage = &self.squares * shrink;
        left_out.iter_mut().zip(leverage.iter()).for_each(|(e, h)| *e /= (1.0 - (1.0 / n + h)).max(1e-6));
        left_out
    }

    /// Fits `y` (one value a point).
    pub(crate) fn solve(&self, y: &[f64], ridge: f64) -> Surface {
        let n = y.len();
        let mean = y.iter().sum::<f64>() / n as f64;
        let centred = centred(y);
        let [shrink, inverse] = self.filters(ridge);
        let projected = self.u.tr_mul(&centred);
        let coefficients = self.v_t.tr_mul(&projected.component_mul(&inverse));
        let residuals = &centred - &self.u * projected.component_mul(&shrink);
        let left = n as f64 - 1.0 - shrink.sum();
        let variance = (left > 0.5).then(|| residuals.norm_squared() / left);
        // Covariance of the coefficients: variance × V diag(inverse²) Vᵀ.
        let half = DMatrix::from_diagonal(&inverse) * &self.v_t;
        let mut terms = vec![Term {
            powers: self.powers[0].clone(),
            value: mean - self.means.dot(&coefficients),
            std_error: variance.map(|v| (v * (1.0 / n as f64 + (&half * &self.means).norm_squared())).sqrt()),
        }];
        for (k, powers) in self.powers[1..].iter().enumerate() {
            let std_error = variance.map(|v| (v * half.column(k).norm_squared()).sqrt());
            terms.push(Term { powers: powers.clone(), value: coefficients[k], std_error });
        }
        Surface { variables: self.variables.clone(), ridge, terms }
    }
}

impl Surface {
    /// The sum at `point`, one value a variable.
    pub fn at(&self, point: &[f64]) -> f64 {
        // Powers of up to four variables, worked out once; more variables or higher powers are rare enough.
        let mut powers = [[1.0; 4]; 4];
        for ((powers, v), x) in powers.iter_mut().zip(&self.variables).zip(point) {
            let z = (x - v.mean) / v.scale;
            *powers = [1.0, z, z * z, z * (z * z)];
        }
        let product = |term: &Term| -> f64 {
            if term.powers.len() > powers.len() || term.powers.iter().any(|p| *p > 3) {
                return monomial(&self.variables, &term.powers, point);
            }
            powers.iter().zip(&term.powers).map(|(z, p)| z[usize::from(*p)]).product()
        };
        self.terms.iter().map(|t| t.value * product(t)).sum()
    }

    /// Whether this surface is over exactly these variables with as many powers in each term, all finite.
    pub(crate) fn is_over(&self, names: &[&str]) -> bool {
        self.variables.iter().map(|v| v.name.as_str()).eq(names.iter().copied())
            && self.variables.iter().all(|v| v.mean.is_finite() && v.scale.is_finite() && v.scale != 0.0)
            && self.terms.iter().all(|t| t.powers.len() == names.len() && t.value.is_finite())
            && !self.terms.is_empty()
    }
}

fn centred(y: &[f64]) -> DVector<f64> {
    let mean = y.iter().sum::<f64>() / y.len() as f64;
    DVector::from_iterator(y.len(), y.iter().map(|v| v - mean))
}

/// Singular values of a matrix with its vectors: U, the values, Vᵀ. Of a tall matrix those of its R, which is small.
fn decomposed(x: DMatrix<f64>) -> Option<(DMatrix<f64>, DVector<f64>, DMatrix<f64>)> {
    if x.nrows() < 2 * x.ncols() {
        let svd = x.svd(true, true);
        return Some((svd.u?, svd.singular_values, svd.v_t?));
    }
    let (q, r) = x.qr().unpack();
    let svd = r.svd(true, true);
    Some((q * svd.u?, svd.singular_values, svd.v_t?))
}

fn monomial(variables: &[Variable], powers: &[u8], point: &[f64]) -> f64 {
    let scaled = variables.iter().zip(point).map(|(v, x)| (x - v.mean) / v.scale);
    scaled.zip(powers).map(|(z, &p)| z.powi(i32::from(p))).product()
}

/// All powers with a sum of at most `degree` and each at most its limit; the constant comes first.
fn monomials(limits: &[u8], degree: u8) -> Vec<Vec<u8>> {
    let mut all = vec![vec![]];
    for &limit in limits {
        all = all
            .into_iter()
            .flat_map(|head: Vec<u8>| {
                let used: u8 = head.iter().sum();
                (0..=limit.min(degree - used)).map(move |p| [head.clone(), vec![p]].concat())
            })
            .collect();
    }
    all.sort_by_key(|p| p.iter().sum::<u8>());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid() -> Vec<Vec<f64>> {
        (0..5).flat_map(|a| (0..6).map(move |b| vec![f64::from(a) * 100.0, f64::from(b)])).collect()
    }

    #[test]
    fn a_known_polynomial_is_found() {
        let truth = |p: &[f64]| 3.0 + 0.01 * p[0] - 2.0 * p[1] + 0.005 * p[0] * p[1] + p[1].powi(3);
        let y: Vec<f64> = grid().iter().map(|p| truth(p)).collect();
        let design = Design::new(&["a", "b"], &grid(), 3).unwrap();
        let (surface, left_out) = (design.solve(&y, 0.0), design.left_out(&y, 0.0));
        assert_eq!(surface.terms.len(), 10);
        assert!((surface.at(&[50.0, 2.5]) - truth(&[50.0, 2.5])).abs() < 1e-9);
        assert!(left_out.iter().all(|e| e.abs() < 1e-9));
    }

    #[test]
    fn leave_one_out_residuals_are_those_of_fits_without_the_point() {
        let y: Vec<f64> = grid().iter().map(|p| (p[0] * 0.013 + p[1] * 1.7).sin()).collect();
        let design = Design::new(&["a", "b"], &grid(), 2).unwrap();
        let left_out = design.left_out(&y, 0.0);
        let (mut points, mut rest) = (grid(), y.clone());
        let (point, value) = (points.remove(7), rest.remove(7));
        let without = Design::new(&["a", "b"], &points, 2).unwrap().solve(&rest, 0.0);
        assert!((value - without.at(&point) - left_out[7]).abs() < 1e-9);
    }

    #[test]
    fn constant_and_two_valued_variables_enter_only_as_far_as_they_can() {
        let points: Vec<Vec<f64>> = (0..8).map(|i| vec![7.0, f64::from(i % 2), f64::from(i)]).collect();
        let design = Design::new(&["c", "two", "x"], &points, 3).unwrap();
        assert!(design.powers.iter().all(|p| p[0] == 0 && p[1] <= 1));
        let y: Vec<f64> = points.iter().map(|p| 1.0 + p[1] + 2.0 * p[2]).collect();
        let surface = design.solve(&y, 0.0);
        assert!((surface.at(&[7.0, 1.0, 3.0]) - 8.0).abs() < 1e-9);
    }

    #[test]
    fn a_ridge_shrinks_and_standard_errors_grow_with_the_noise() {
        let points: Vec<Vec<f64>> = (0..40).map(|i| vec![f64::from(i)]).collect();
        let noisy =
            |s: f64| -> Vec<f64> { points.iter().map(|p| 2.0 * p[0] + s * (p[0] * 7.7).sin()).collect() };
        let design = Design::new(&["x"], &points, 1).unwrap();
        let slope = |s, ridge| design.solve(&noisy(s), ridge).terms[1].clone();
        assert!(slope(1.0, 10.0).value < slope(1.0, 0.0).value);
        assert!(slope(5.0, 0.0).std_error > slope(1.0, 0.0).std_error);
        assert!(Design::new(&["x"], &[vec![f64::NAN]], 1).is_none());
    }
}
