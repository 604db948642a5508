//! How well a mean is known from readings that follow one another.
//!
//! Rule: readings in a row resemble each other, so their scatter over √n says too little. They are cut into ten blocks of
//! equal length in time's order; the blocks' means are taken as independent, and the 95 % interval of the mean is that of
//! Student's t with nine degrees of freedom (the method of batch means).
//! Cases: of fewer than twenty values each is a block of its own; fewer than five give no interval.
//! Not done here: correlation that reaches further than a block, such as a GPU that slowly warms up.
//! Source: Law and Kelton, "Confidence Intervals for Steady-State Simulations: I. A Survey of Fixed Sample Size
//! Procedures", Operations Research 32(6), 1984.

use statrs::distribution::{ContinuousCDF, StudentsT};

/// Blocks that readings are cut into.
const BLOCKS: usize = 10;
/// Fewer values give no interval.
const VALUES_MIN: usize = 5;

/// A mean and how well it is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mean {
    /// The mean.
    pub mean: f64,
    /// Half width of its 95 % interval; `None` of too few values.
    pub half_width: Option<f64>,
}

impl Mean {
    /// Of values in time's order; `None` of none.
    pub fn of(values: &[f64]) -> Option<Self> {
        let mean = average(values)?;
        if values.len() < VALUES_MIN {
            return Some(Self { mean, half_width: None });
        }
        let length = if values.len() < 2 * BLOCKS { 1 } else { values.len() / BLOCKS };
        // What does not fill a block is left out at the beginning, where warm-up would show most.
        let whole = values.len() - values.len() % length;
        let blocks: Vec<f64> =
            values[values.len() - whole..].chunks_exact(length).filter_map(average).collect();
        let blocks = if length > 1 { &blocks[blocks.len() - BLOCKS..] } else { &blocks[..] };
        let (count, centre) = (blocks.len() as f64, average(blocks)?);
        let variance = blocks.iter().map(|b| (b - centre).powi(2)).sum::<f64>() / (count - 1.0);
        let quantile = StudentsT::new(0.0, 1.0, count - 1.0).ok()?.inverse_cdf(0.975);
        Some(Self { mean, half_width: Some(quantile * (variance / count).sqrt()) })
    }

    /// The half width as a share of the mean; infinite where it is not known.
    pub fn relative(&self) -> f64 {
        self.half_width.map_or(f64::INFINITY, |half| (half / self.mean).abs())
    }
}

fn average(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pseudo-random numbers of a unit normal, by sums of twelve uniform ones.
    fn normals(seed: u64) -> impl FnMut() -> f64 {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut uniform = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as f64 / (1u64 << 53) as f64
        };
        move || (0..12).map(|_| uniform()).sum::<f64>() - 6.0
    }

    #[test]
    fn known_blocks_give_the_known_interval() {
        // Blocks of two with means 1, 2, … 10: variance 55/6, t(9) = 2.262157.
        let values: Vec<f64> = (1..=10).flat_map(|b| [f64::from(b) - 0.5, f64::from(b) + 0.5]).collect();
        let mean = Mean::of(&values).unwrap();
        let wanted = 2.262_157 * (55.0f64 / 6.0 / 10.0).sqrt();
        assert_eq!(mean.mean, 5.5);
        assert!((mean.half_width.unwrap() - wanted).abs() < 1e-4, "{mean:?}");
        assert_eq!(Mean::of(&[]), None);
        assert_eq!(Mean::of(&[3.0; 4]).unwrap().half_width, None);
        // 1, 2, 3, 4, 5: variance 2.5, t(4) = 2.776445.
        let five = Mean::of(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        assert!((five.half_width.unwrap() - 2.776_445 * 0.5f64.sqrt()).abs() < 1e-4, "{five:?}");
        assert_eq!(Mean::of(&[3.0; 20]).unwrap().relative(), 0.0);
    }

    #[test]
    fn readings_that_resemble_each_other_still_give_an_interval_that_holds() {
        // Each value is 0.7 of the one before and a new part: √n alone would be 2.4 times too narrow.
        let mut next = normals(7);
        let holds = (0..2_000).filter(|_| {
            let mut x = next() / (1.0f64 - 0.49).sqrt();
            let values: Vec<f64> = (0..200)
                .map(|_| {
                    x = 0.7 * x + next();
                    100.0 + x
                })
                .collect();
            let mean = Mean::of(&values).unwrap();
            (mean.mean - 100.0).abs() <= mean.half_width.unwrap()
        });
        let share = holds.count() as f64 / 2_000.0;
        assert!((0.88..=0.97).contains(&share), "holds in {share}");
    }
}
