//! Smooth bumps around places, and sums of them.
//!
//! Rule: a place is ln b, ln s, ln m, ln f and ln n of a point. The bump around x′ is exp(−½ Σ ((x − x′) / length)²), which is a product
//! of one factor of the batch with the processes, one of the share with its memory, and one of the clock. Places mostly are a grid, or points of one. So
//! the factors are worked out once for each level, and a sum is over the grid's cells, weight times three factors.
//!
//! Cases: where places have too many levels for that ([`MOST_LEVELS`], [`MOST_CELLS`]), each bump is worked out by itself.
//! Sums differ from those by rounding only.
//!
//! Source: Rasmussen and Williams, *Gaussian Processes for Machine Learning*, 4.2 (products of kernels).

use nalgebra::DMatrix;

use crate::variables::{COUNT, Variables as Place};

/// Levels of one axis at most.
const MOST_LEVELS: usize = 48;
/// Cells for each place at most: a cell costs about a sixteenth of a bump.
const MOST_CELLS: usize = 16;
/// Cells that are summed side by side.
const LANES: usize = 8;

/// The bump around one place at another.
pub(crate) fn bump(a: &Place, b: &Place, lengths: &Place) -> f64 {
    let square: f64 = (0..COUNT).map(|j| ((a[j] - b[j]) / lengths[j]).powi(2)).sum();
    (-0.5 * square).exp()
}

/// The axes of a place: batch with processes, share with memory, clock, whose second number is 0.
fn split(place: &Place) -> [[f64; 2]; 3] {
    [[place[0], place[4]], [place[1], place[2]], [place[3], 0.0]]
}

/// Lengths over the axes.
fn lengths_of(lengths: &Place) -> [[f64; 2]; 3] {
    [[lengths[0], lengths[4]], [lengths[1], lengths[2]], [lengths[3], 1.0]]
}

fn factor(a: &[f64; 2], b: &[f64; 2], lengths: &[f64; 2]) -> f64 {
    let (x, y) = ((a[0] - b[0]) / lengths[0], (a[1] - b[1]) / lengths[1]);
    (-0.5 * (x * x + y * y)).exp()
}

/// Places by the levels of their axes.
pub(crate) struct Levels {
    levels: [Vec<[f64; 2]>; 3],
    /// Which levels each place has.
    of: Vec<[usize; 3]>,
}

impl Levels {
    pub(crate) fn new(places: &[Place]) -> Self {
        let mut levels: [Vec<[f64; 2]>; 3] = [vec![], vec![], vec![]];
        let mut of = Vec::with_capacity(places.len());
        for place in places {
            let mut at = [0; 3];
            for ((levels, value), at) in levels.iter_mut().zip(split(place)).zip(&mut at) {
                *at = levels.iter().position(|l| *l == value).unwrap_or_else(|| {
                    levels.push(value);
                    levels.len() - 1
                });
            }
            of.push(at);
        }
        Self { levels, of }
    }

    /// The bump around each other place (columns) at each of these (rows).
    pub(crate) fn bumps(&self, other: &Self, lengths: &Place) -> DMatrix<f64> {
        self.bumps_from(other, lengths, |_| 0)
    }

    /// The bumps around these places at each other, on and below the diagonal; the rest is 0.
    pub(crate) fn own_bumps(&self, lengths: &Place) -> DMatrix<f64> {
        self.bumps_from(self, lengths, |column| column)
    }

    /// Each column from a row on.
    fn bumps_from(&self, other: &Self, lengths: &Place, from: fn(usize) -> usize) -> DMatrix<f64> {
        let (rows, shares) = (self.of.len(), self.levels[1].len());
        let lengths = lengths_of(lengths);
        // Factors of all levels here, for each level there.
        let tables = [0, 1, 2].map(|axis| -> Vec<Vec<f64>> {
            let (here, there) = (&self.levels[axis], &other.levels[axis]);
            let column = |b| here.iter().map(|a| factor(a, b, &lengths[axis])).collect();
            there.iter().map(column).collect()
        });
        let places: Vec<[usize; 2]> = self.of.iter().map(|[b, s, c]| [b * shares + s, *c]).collect();
        let mut k = DMatrix::zeros(rows, other.of.len());
        let mut pairs = Vec::new();
        let columns = k.as_mut_slice().chunks_exact_mut(rows.max(1));
        for (number, (column, [b, s, c])) in columns.zip(&other.of).enumerate() {
            let (share, clock) = (&tables[1][*s], &tables[2][*c]);
            pairs.clear();
            pairs.extend(tables[0][*b].iter().flat_map(|b| share.iter().map(move |s| b * s)));
            for (value, [pair, clock_level]) in column.iter_mut().zip(&places).skip(from(number)) {
                *value = pairs[*pair] * clock[*clock_level];
            }
        }
        k
    }
}

/// N weighted sums of the same bumps.
pub(crate) struct Bumps<const N: usize> {
    lengths: [[f64; 2]; 3],
    levels: [Vec<[f64; 2]>; 3],
    /// Factors between levels, one row a level.
    factors: [Vec<f64>; 3],
    /// Levels of batch and share that occur together, in groups of [`LANES`].
    rows: Vec<[u8; 2]>,
    /// Weights: for each group, each clock, each sum, one a lane.
    cells: Vec<[f64; LANES]>,
}

impl<const N: usize> Bumps<N> {
    /// `None` if the places have too many levels.
    pub(crate) fn new(places: &[Place], weights: [&[f64]; N], lengths: &Place) -> Option<Self> {
        let Levels { levels, of } = Levels::new(places);
        if levels.iter().any(|l| l.len() > MOST_LEVELS) {
            return None;
        }
        let mut rows: Vec<[u8; 2]> = of.iter().map(|[b, s, _]| [*b as u8, *s as u8]).collect();
        rows.sort_unstable();
        rows.dedup();
        let clocks = levels[2].len();
        if rows.len() * clocks > MOST_CELLS * places.len() {
            return None;
        }
        let groups = rows.len().div_ceil(LANES);
        let mut cells = vec![[0.0; LANES]; groups * clocks * N];
        for (i, [b, s, c]) in of.iter().enumerate() {
            let row = rows.binary_search(&[*b as u8, *s as u8]).ok()?;
            for (sum, weights) in weights.iter().enumerate() {
                cells[(row / LANES * clocks + c) * N + sum][row % LANES] += weights.get(i).unwrap_or(&0.0);
            }
        }
        rows.resize(groups * LANES, [0; 2]);
        let lengths = lengths_of(lengths);
        let factors = [0, 1, 2].map(|axis| {
            let pair = |a| levels[axis].iter().map(move |b| factor(a, b, &lengths[axis]));
            levels[axis].iter().flat_map(pair).collect()
        });
        Some(Self { lengths, levels, factors, rows, cells })
    }

    /// The sums at a place.
    pub(crate) fn at(&self, place: &Place) -> [f64; N] {
        let mut buffers = [[0.0; MOST_LEVELS]; 3];
        let [first, second, third] = &mut buffers;
        let [b, s, c] = split(place);
        let (batch, share, clock) =
            (self.along(0, &b, first), self.along(1, &s, second), self.along(2, &c, third));
        let mut sums = [0.0; N];
        if clock.is_empty() {
            return sums;
        }
        let groups = self.rows.chunks_exact(LANES).zip(self.cells.chunks_exact(clock.len() * N));
        for (rows, cells) in groups {
            let mut lanes = [[0.0; LANES]; N];
            for (near, cells) in clock.iter().zip(cells.chunks_exact(N)) {
                for (lanes, cells) in lanes.iter_mut().zip(cells) {
                    lanes.iter_mut().zip(cells).for_each(|(lane, cell)| *lane += near * cell);
                }
            }
            for (i, [b, s]) in rows.iter().enumerate() {
                let near = batch[usize::from(*b)] * share[usize::from(*s)];
                sums.iter_mut().zip(&lanes).for_each(|(sum, lanes)| *sum += near * lanes[i]);
            }
        }
        sums
    }

    /// Factors of a value with the levels of an axis.
    fn along<'a>(&'a self, axis: usize, value: &[f64; 2], buffer: &'a mut [f64; MOST_LEVELS]) -> &'a [f64] {
        let levels = &self.levels[axis];
        let n = levels.len();
        if let Some(i) = levels.iter().position(|l| l == value) {
            return &self.factors[axis][i * n..(i + 1) * n];
        }
        let lengths = &self.lengths[axis];
        buffer.iter_mut().zip(levels).for_each(|(near, level)| *near = factor(level, value, lengths));
        &buffer[..n]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch_time::tests::grid;
    use crate::variables::variables as place;

    const LENGTHS: Place = [1.5, 0.8, 0.9, 0.5, 1.0];

    fn plain(places: &[Place], weights: &[f64], at: &Place) -> f64 {
        places.iter().zip(weights).map(|(p, w)| w * bump(p, at, &LENGTHS)).sum()
    }

    #[test]
    fn sums_by_levels_are_those_of_the_bumps_on_and_off_the_levels() {
        let all: Vec<Place> = grid().iter().map(|p| place(p).unwrap()).collect();
        for step in [1, 2, 7] {
            let places: Vec<Place> = all.iter().copied().step_by(step).collect();
            let weights: Vec<f64> = (0..places.len()).map(|i| (i as f64 * 0.7).sin()).collect();
            let twice: Vec<f64> = weights.iter().map(|w| 2.0 * w).collect();
            let bumps = Bumps::new(&places, [&weights, &twice], &LENGTHS).unwrap();
            for at in all.iter().copied().chain([[0.3, -0.2, 0.0, 0.1, 0.7], [9.0, -3.0, -2.0, -2.0, 0.0]]) {
                let [once, doubled] = bumps.at(&at);
                assert!((once - plain(&places, &weights, &at)).abs() < 1e-12, "{at:?}");
                assert!((doubled - 2.0 * once).abs() < 1e-12);
            }
        }
    }

    #[test]
    fn places_without_common_levels_are_left_to_their_bumps() {
        let places: Vec<Place> = (0..100).map(|i| [0.0, 0.0, 0.0, f64::from(i), 0.0]).collect();
        assert!(Bumps::new(&places, [&[1.0; 100]], &LENGTHS).is_none());
        let apart: Vec<Place> = (0..40).map(|i| [f64::from(i), 0.0, 0.0, f64::from(i), 0.0]).collect();
        assert!(Bumps::new(&apart, [&[1.0; 40]], &LENGTHS).is_none());
        assert_eq!(Bumps::new(&[], [&[]], &LENGTHS).unwrap().at(&[0.0; 5]), [0.0]);
    }

    #[test]
    fn a_matrix_of_bumps_is_that_of_its_elements() {
        let all: Vec<Place> = grid().iter().map(|p| place(p).unwrap()).collect();
        let (rows, columns) = (Levels::new(&all[3..40]), Levels::new(&all[20..90]));
        let k = rows.bumps(&columns, &LENGTHS);
        for (i, j) in [(0, 0), (17, 0), (36, 69), (5, 33)] {
            assert!((k[(i, j)] - bump(&all[3 + i], &all[20 + j], &LENGTHS)).abs() < 1e-14);
        }
        let own = rows.own_bumps(&LENGTHS);
        assert_eq!((own[(0, 5)], own[(5, 0)]), (0.0, rows.bumps(&rows, &LENGTHS)[(5, 0)]));
    }
}
