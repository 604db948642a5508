//! A curve with no more points than a picture can show, and none of its peaks lost.
//!
//! Rule: of all points in one pixel column the first, the lowest, the highest and the last are kept, in their
//! order; a line through these covers the same pixels as a line through all (M4: Jugel et al., "M4: A
//! Visualization-Oriented Time Series Data Aggregation", VLDB 2014). A column with four points or fewer
//! keeps them all.
//!
//! Where readings are missing for longer than `gap_us` the curve is cut, unless within one column.
//!
//! Points come in time order; one column is held beside the result.

/// A point: time in µs, value.
pub type Point = (i64, f64);

/// How time maps to pixel columns, and what counts as missing.
#[derive(Clone, Copy, Debug)]
pub struct Columns {
    /// Start, µs.
    pub from_us: i64,
    /// End, µs, after the start.
    pub to_us: i64,
    /// Number of columns.
    pub count: i64,
    /// Points further apart are not joined, µs.
    pub gap_us: i64,
}

impl Columns {
    fn of(&self, us: i64) -> i64 {
        let width = (self.to_us - self.from_us).max(1);
        let at = i128::from(us - self.from_us) * i128::from(self.count) / i128::from(width);
        i64::try_from(at).unwrap_or(i64::MAX)
    }
}

/// One column in the making.
#[derive(Clone, Copy, Debug)]
struct Column {
    index: i64,
    first: Point,
    low: Point,
    high: Point,
    last: Point,
}

/// A curve in the making.
#[derive(Debug)]
pub struct Decimator {
    columns: Columns,
    column: Option<Column>,
    pieces: Vec<Vec<Point>>,
    seen: u64,
}

impl Decimator {
    /// An empty curve.
    pub fn new(columns: Columns) -> Self {
        Self { columns, column: None, pieces: Vec::new(), seen: 0 }
    }

    /// Appends a point that is not before the last one.
    pub fn push(&mut self, point: Point) {
        self.seen += 1;
        let index = self.columns.of(point.0);
        match &mut self.column {
            Some(column) if column.index == index => {
                if point.1 < column.low.1 {
                    column.low = point;
                }
                if point.1 > column.high.1 {
                    column.high = point;
                }
                column.last = point;
            }
            _ => {
                let cut = self.column.is_none_or(|c| point.0 - c.last.0 > self.columns.gap_us);
                self.end_column();
                if cut {
                    self.pieces.push(Vec::new());
                }
                self.column = Some(Column { index, first: point, low: point, high: point, last: point });
            }
        }
    }

    /// The curve's pieces, each to be drawn as one line.
    pub fn finish(mut self) -> Curve {
        self.end_column();
        Curve { pieces: self.pieces, readings: self.seen }
    }

    fn end_column(&mut self) {
        let (Some(c), Some(piece)) = (self.column.take(), self.pieces.last_mut()) else { return };
        let inner = if c.low.0 <= c.high.0 { [c.low, c.high] } else { [c.high, c.low] };
        for point in [c.first, inner[0], inner[1], c.last] {
            if piece.last() != Some(&point) {
                piece.push(point);
            }
        }
    }
}

/// A curve to draw.
#[derive(Clone, Debug, Default)]
pub struct Curve {
    /// Lines of at least one point.
    pub pieces: Vec<Vec<Point>>,
    /// How many points there were before.
    pub readings: u64,
}

impl Curve {
    /// The highest value.
    pub fn max(&self) -> Option<f64> {
        self.pieces.iter().flatten().map(|p| p.1).reduce(f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decimate(points: &[Point], count: i64, gap_us: i64) -> Vec<Vec<Point>> {
        let mut d = Decimator::new(Columns { from_us: 0, to_us: 1000, count, gap_us });
        points.iter().for_each(|&p| d.push(p));
        d.finish().pieces
    }

    #[test]
    fn a_column_keeps_its_first_lowest_highest_and_last() {
        let points = [(0, 5.0), (10, 9.0), (20, 6.0), (30, 1.0), (40, 4.0), (50, 3.0), (150, 2.0)];
        let kept = [(0, 5.0), (10, 9.0), (30, 1.0), (50, 3.0), (150, 2.0)];
        assert_eq!(decimate(&points, 10, 1000), [kept.to_vec()]);
    }

    #[test]
    fn a_curve_is_cut_where_readings_are_missing() {
        let points = [(0, 1.0), (100, 1.0), (400, 2.0), (500, 2.0)];
        assert_eq!(decimate(&points, 100, 200), [points[..2].to_vec(), points[2..].to_vec()]);
        // Nobody can see a gap within a column.
        assert_eq!(decimate(&points, 1, 200).len(), 1);
    }

    proptest! {
        #[test]
        fn no_peak_is_lost_and_the_number_is_bounded(
            mut points in prop::collection::vec((0..1000i64, -100.0..100.0f64), 0..300),
            count in 1..50i64,
        ) {
            points.sort_by_key(|p| p.0);
            let kept: Vec<Point> = decimate(&points, count, 1000).into_iter().flatten().collect();
            prop_assert!(kept.len() as i64 <= 4 * count);
            prop_assert!(kept.is_sorted_by_key(|p| p.0));
            for column in 0..count {
                let of = |p: &&Point| p.0 * count / 1000 == column;
                let extremes = |points: &[Point]| {
                    let values = || points.iter().filter(of).map(|p| p.1);
                    (values().reduce(f64::min), values().reduce(f64::max))
                };
                prop_assert_eq!(extremes(&kept), extremes(&points));
            }
        }
    }
}
