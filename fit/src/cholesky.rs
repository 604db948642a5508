//! Cholesky's decomposition in blocks, for matrices of a hundred rows and more.
//!
//! Rule: K = L Lᵀ. Columns are taken in blocks of `BLOCK`; what the columns before a block take off it is one product of
//! matrices, which is several times as fast as column by column.
//!
//! Cases: a matrix that is not positive definite has no answer.
//!
//! Source: Golub and Van Loan, *Matrix Computations*, 4th ed., 4.2.5 and 4.2.6.

use nalgebra::{DMatrix, DVector};

/// Columns of a block.
const BLOCK: usize = 24;

/// L; what lies above its diagonal means nothing.
pub(crate) struct Lower(DMatrix<f64>);

/// L of a symmetric matrix, of which only the lower triangle is looked at; `None` if it is not positive definite.
pub(crate) fn cholesky(mut k: DMatrix<f64>) -> Option<Lower> {
    let n = k.nrows();
    for from in (0..n).step_by(BLOCK) {
        let width = BLOCK.min(n - from);
        if from > 0 {
            let (done, mut block) = k.columns_range_pair_mut(0..from, from..from + width);
            let right = done.view((from, 0), (width, from)).transpose();
            block.rows_mut(from, n - from).gemm(-1.0, &done.rows(from, n - from), &right, 1.0);
        }
        let all = k.as_mut_slice();
        for c in from..from + width {
            let (before, column) = all.split_at_mut(c * n);
            let column = &mut column[c..n];
            for earlier in before[from * n..].chunks_exact(n) {
                let factor = earlier[c];
                column.iter_mut().zip(&earlier[c..]).for_each(|(a, b)| *a -= factor * b);
            }
            if column[0].is_nan() || column[0] <= 0.0 {
                return None;
            }
            let scale = 1.0 / column[0].sqrt();
            column.iter_mut().for_each(|a| *a *= scale);
        }
    }
    Some(Lower(k))
}

impl Lower {
    /// K⁻¹ y.
    pub(crate) fn solve(&self, y: &[f64]) -> DVector<f64> {
        let mut x = self.forward(y);
        let n = x.len();
        for c in (0..n).rev() {
            let column = &self.0.as_slice()[c * n..(c + 1) * n];
            let below: f64 = column[c + 1..].iter().zip(&x[c + 1..]).map(|(l, x)| l * x).sum();
            x[c] = (x[c] - below) / column[c];
        }
        DVector::from_vec(x)
    }

    /// L⁻¹ y, whose squared norm is yᵀ K⁻¹ y.
    pub(crate) fn forward(&self, y: &[f64]) -> Vec<f64> {
        let n = y.len();
        let mut x = y.to_vec();
        for (c, column) in self.0.as_slice().chunks_exact(n.max(1)).enumerate() {
            let value = x[c] / column[c];
            x[c] = value;
            x[c + 1..].iter_mut().zip(&column[c + 1..]).for_each(|(x, l)| *x -= value * l);
        }
        x
    }

    /// ln of K's determinant.
    pub(crate) fn ln_determinant(&self) -> f64 {
        2.0 * self.0.diagonal().iter().map(|d| d.ln()).sum::<f64>()
    }

    /// K⁻¹.
    pub(crate) fn inverse(&self) -> DMatrix<f64> {
        let n = self.0.nrows();
        let mut inverse = DMatrix::<f64>::zeros(n, n);
        for (start, x) in inverse.as_mut_slice().chunks_exact_mut(n.max(1)).enumerate() {
            x[start] = 1.0;
            for (c, column) in self.0.as_slice().chunks_exact(n).enumerate().skip(start) {
                let value = x[c] / column[c];
                x[c] = value;
                x[c + 1..].iter_mut().zip(&column[c + 1..]).for_each(|(x, l)| *x -= value * l);
            }
        }
        inverse.transpose() * inverse
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(n: usize) -> DMatrix<f64> {
        DMatrix::from_fn(n, n, |i, j| {
            (-0.01 * (i as f64 - j as f64).powi(2)).exp() + if i == j { 0.01 } else { 0.0 }
        })
    }

    #[test]
    fn it_solves_inverts_and_knows_the_determinant_at_any_size() {
        for n in [1, 5, BLOCK, BLOCK + 1, 3 * BLOCK - 1, 100] {
            let (k, known) = (example(n), example(n).cholesky().unwrap());
            let found = cholesky(k.clone()).unwrap();
            let y: Vec<f64> = (0..n).map(|i| (i as f64).sin()).collect();
            let solved = found.solve(&y);
            assert!((&k * &solved - DVector::from_column_slice(&y)).amax() < 1e-9);
            assert!((found.inverse() - known.inverse()).amax() < 1e-8);
            assert!((found.ln_determinant() - known.determinant().ln()).abs() < 1e-8);
            let square: f64 = found.forward(&y).iter().map(|v| v * v).sum();
            assert!((square - solved.dot(&DVector::from_vec(y))).abs() < 1e-8);
        }
    }

    #[test]
    fn what_is_not_positive_definite_has_none() {
        assert!(cholesky(DMatrix::from_element(40, 40, 1.0) - DMatrix::identity(40, 40)).is_none());
        assert!(cholesky(DMatrix::from_element(3, 3, f64::NAN)).is_none());
    }
}
