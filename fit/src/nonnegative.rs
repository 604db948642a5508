//! Least squares with coefficients that are not negative.
//!
//! Rule: minimise ½ xᵀ G x − hᵀ x over x ≥ 0, where G = AᵀA and h = Aᵀy. Columns are scaled to one before, so that
//! the tolerance means the same for each; a tiny ridge keeps columns apart that depend on each other.
//!
//! Source: Lawson and Hanson, *Solving Least Squares Problems*, chapter 23 (algorithm NNLS), on the normal
//! equations as in Bro and de Jong, J. Chemometrics 11 (1997), 393.

use nalgebra::{DMatrix, DVector};

/// Added to each scaled diagonal element.
const RIDGE: f64 = 1e-10;
/// A gradient below this share of the largest scaled right-hand side counts as zero.
const TOLERANCE: f64 = 1e-10;

/// The x ≥ 0 that minimises ½ xᵀ G x − hᵀ x. Columns with a diagonal of 0 get 0.
pub(crate) fn solve(gram: &DMatrix<f64>, rhs: &DVector<f64>) -> DVector<f64> {
    let n = rhs.len();
    let scale = DVector::from_fn(n, |i, _| if gram[(i, i)] > 0.0 { 1.0 / gram[(i, i)].sqrt() } else { 0.0 });
    let g =
        DMatrix::from_fn(n, n, |i, j| gram[(i, j)] * scale[i] * scale[j] + if i == j { RIDGE } else { 0.0 });
    let h = rhs.component_mul(&scale);
    let tolerance = TOLERANCE * h.amax().max(f64::MIN_POSITIVE);
    let mut x = DVector::<f64>::zeros(n);
    let mut free = vec![false; n];
    for _ in 0..3 * n + 10 {
        let gradient = &h - &g * &x;
        let candidate = (0..n)
            .filter(|&i| !free[i] && scale[i] > 0.0 && gradient[i] > tolerance)
            .max_by(|&a, &b| gradient[a].total_cmp(&gradient[b]));
        let Some(entering) = candidate else { break };
        free[entering] = true;
        let mut first = true;
        loop {
            let set: Vec<usize> = (0..n).filter(|&i| free[i]).collect();
            let Some(z) = solve_free(&g, &h, &set) else {
                free[entering] = false;
                return x.component_mul(&scale);
            };
            if set.iter().zip(z.iter()).all(|(_, &v)| v > 0.0) {
                x.fill(0.0);
                for (&i, &v) in set.iter().zip(z.iter()) {
                    x[i] = v;
                }
                break;
            }
            // Go towards z until the first coefficient reaches zero, and hold that one there.
            let step = set
                .iter()
                .zip(z.iter())
                .filter(|&(_, &v)| v <= 0.0)
                .map(|(&i, &v)| x[i] / (x[i] - v).max(f64::MIN_POSITIVE))
                .fold(1.0, f64::min);
            for (&i, &v) in set.iter().zip(z.iter()) {
                x[i] += step * (v - x[i]);
                if x[i] <= 1e-14 && (i != entering || !first) {
                    x[i] = 0.0;
                    free[i] = false;
                }
            }
            if first && set.len() == 1 || set.iter().all(|&i| free[i]) {
                free[entering] = false;
                x[entering] = 0.0;
            }
            first = false;
            if !free.contains(&true) {
                break;
            }
        }
    }
    x.component_mul(&scale)
}

fn solve_free(g: &DMatrix<f64>, h: &DVector<f64>, set: &[usize]) -> Option<DVector<f64>> {
    let sub = DMatrix::from_fn(set.len(), set.len(), |i, j| g[(set[i], set[j])]);
    let right = DVector::from_fn(set.len(), |i, _| h[set[i]]);
    Some(sub.cholesky()?.solve(&right))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn solve_rows(a: &DMatrix<f64>, y: &DVector<f64>) -> DVector<f64> {
        solve(&a.tr_mul(a), &a.tr_mul(y))
    }

    #[test]
    fn positive_coefficients_are_found_and_negative_ones_held_at_zero() {
        let a = DMatrix::from_fn(20, 3, |i, j| (i as f64 * 0.1).powi(j as i32));
        let y = &a * DVector::from_vec(vec![1.0, 2.0, 0.5]);
        let x = solve_rows(&a, &y);
        assert!((x - DVector::from_vec(vec![1.0, 2.0, 0.5])).amax() < 1e-6);
        let y = &a * DVector::from_vec(vec![1.0, -2.0, 0.0]);
        let x = solve_rows(&a, &y);
        assert_eq!((x[1], x[2]), (0.0, 0.0));
    }

    proptest! {
        #[test]
        fn the_answer_meets_the_conditions_of_a_minimum(values in proptest::collection::vec(-5.0..5.0f64, 40)) {
            let a = DMatrix::from_row_slice(8, 4, &values[..32]);
            let y = DVector::from_row_slice(&values[32..]);
            let x = solve_rows(&a, &y);
            let gradient = a.tr_mul(&(&y - &a * &x));
            for i in 0..4 {
                prop_assert!(x[i] >= 0.0);
                prop_assert!(gradient[i] < 1e-5);
                prop_assert!(x[i] == 0.0 || gradient[i].abs() < 1e-5);
            }
        }
    }
}
