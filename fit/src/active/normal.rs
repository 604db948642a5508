//! Quantiles of |x| over normal variables of mean 0 with different standard deviations, each equally often.

use statrs::function::erf::erf;

/// What |x| is below with probability `q`; 0 without variables.
pub(crate) fn quantile_of_normals(deviations: &[f64], q: f64) -> f64 {
    let most = deviations.iter().copied().fold(0.0, f64::max);
    let below = |x: f64| {
        let sum: f64 = deviations.iter().map(|sd| if *sd > 0.0 { within(x / sd) } else { 1.0 }).sum();
        sum / deviations.len().max(1) as f64
    };
    // |x| of a standard normal variable is practically never above 8.
    let (mut low, mut high) = (0.0, most * 8.0);
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if below(middle) < q { low = middle } else { high = middle }
    }
    0.5 * (low + high)
}

/// How often |x| of a standard normal variable is below `z`.
fn within(z: f64) -> f64 {
    erf(z / std::f64::consts::SQRT_2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_known_for_equal_variables() {
        assert!((quantile_of_normals(&[0.1; 7], 0.5) - 0.067_449).abs() < 1e-5);
        assert!((quantile_of_normals(&[1.0], 0.9) - 1.644_854).abs() < 1e-5);
        assert!((within(1.0) - 0.682_689_492).abs() < 1e-9);
        let mixed = quantile_of_normals(&[0.01, 0.1], 0.5);
        assert!(mixed > 0.0067 && mixed < 0.067, "{mixed}");
        assert_eq!(quantile_of_normals(&[], 0.5), 0.0);
    }
}
