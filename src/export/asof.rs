//! As-of values: what a lane said last at or before a moment.
//!
//! Rule: for each GPU the last row whose time is not after the moment; of several rows of one time the
//! last one. Before a GPU's first row there is none. The same for windows: one is open from its
//! beginning up to its end, the end not included.
//!
//! Moments and rows come in time order, so a lane is read once and one row a GPU is held. The
//! events that open and close windows are read in the same way.
//!
//! Not done here: interpolation, or an age beyond which a value no longer counts.

use std::collections::BTreeMap;
use std::iter::Peekable;

use gpumon_core::rows::{EventKind, EventRow};
use gpumon_monitor::store::{Row, StoreError};

use super::rows::OfGpu;

/// Rows in time order that are looked at up to a moment.
pub struct AsOf<I: Iterator, R> {
    rows: Peekable<I>,
    latest: BTreeMap<i32, R>,
}

impl<R: Row + OfGpu, I: Iterator<Item = Result<R, StoreError>>> AsOf<I, R> {
    /// Starts before the first row.
    pub fn new(rows: I) -> Self {
        Self { rows: rows.peekable(), latest: BTreeMap::new() }
    }

    /// Moves on to a moment that is not before the last one, µs.
    pub fn advance(&mut self, mono_us: i64) -> Result<(), StoreError> {
        while let Some(row) = next_until(&mut self.rows, mono_us) {
            let row = row?;
            if let Some(gpu) = row.of_gpu() {
                self.latest.insert(gpu, row);
            }
        }
        Ok(())
    }

    /// What the lane said last of this GPU.
    pub fn get(&self, gpu: i32) -> Option<&R> {
        self.latest.get(&gpu)
    }
}

/// The next row unless it is later than `mono_us`.
fn next_until<R: Row>(
    rows: &mut Peekable<impl Iterator<Item = Result<R, StoreError>>>,
    mono_us: i64,
) -> Option<Result<R, StoreError>> {
    rows.next_if(|row| row.as_ref().map_or(true, |row| row.mono_us() <= mono_us))
}

/// The windows that are open at a moment.
pub struct OpenWindows<I: Iterator> {
    events: Peekable<I>,
    /// Name and GPU of each, in the order in which they began.
    open: Vec<(String, Option<i32>)>,
}

impl<I: Iterator<Item = Result<EventRow, StoreError>>> OpenWindows<I> {
    /// Starts before the first event.
    pub fn new(events: I) -> Self {
        Self { events: events.peekable(), open: Vec::new() }
    }

    /// Moves on to a moment that is not before the last one, µs.
    pub fn advance(&mut self, mono_us: i64) -> Result<(), StoreError> {
        while let Some(event) = next_until(&mut self.events, mono_us) {
            let event = event?;
            let Some(name) = event.name else { continue };
            match event.kind {
                EventKind::WindowBegin => self.open.push((name, event.gpu)),
                EventKind::WindowEnd => {
                    // The innermost of that name.
                    if let Some(at) = self.open.iter().rposition(|(open, _)| *open == name) {
                        self.open.remove(at);
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The names of the open windows, each once, joined by `;`; nothing if none is open.
    pub fn names(&self, gpu: i32) -> Option<String> {
        let mut names: Vec<&str> = Vec::new();
        for (name, of) in &self.open {
            if of.is_none_or(|of| of == gpu) && !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
        (!names.is_empty()).then(|| names.join(";"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpumon_core::rows::RingRow;
    use gpumon_core::units::WallUs;
    use proptest::prelude::*;

    fn ring(gpu: i32, mono_us: i64, power_mw: i32) -> RingRow {
        RingRow { gpu, mono_us, power_mw, time: WallUs(mono_us) }
    }

    fn power(
        asof: &AsOf<impl Iterator<Item = Result<RingRow, StoreError>>, RingRow>,
        gpu: i32,
    ) -> Option<i32> {
        Some(asof.get(gpu)?.power_mw)
    }

    #[test]
    fn a_value_counts_from_its_own_time_until_the_next() {
        let rows = [ring(0, 10, 1), ring(1, 15, 7), ring(0, 20, 2), ring(0, 20, 3)];
        let mut asof = AsOf::new(rows.into_iter().map(Ok));
        let mut at = |us| {
            asof.advance(us).unwrap();
            (power(&asof, 0), power(&asof, 1))
        };
        assert_eq!(at(9), (None, None));
        assert_eq!(at(10), (Some(1), None));
        assert_eq!(at(19), (Some(1), Some(7)));
        assert_eq!(at(20), (Some(3), Some(7)));
        assert_eq!(at(1000), (Some(3), Some(7)));
    }

    #[test]
    fn a_failure_is_told_and_not_skipped() {
        let failed = StoreError::NotARecording { path: "x".into(), what: "nothing" };
        let mut asof = AsOf::new([Ok(ring(0, 10, 1)), Err(failed)].into_iter());
        assert!(asof.advance(10).is_err());
    }

    proptest! {
        #[test]
        fn it_is_the_naive_join(
            mut rows in prop::collection::vec((0..3i32, 0..60i64, any::<i32>()), 0..40),
            mut moments in prop::collection::vec((0..3i32, 0..70i64), 0..40),
        ) {
            rows.sort_by_key(|r| r.1);
            moments.sort_by_key(|m| m.1);
            let mut asof = AsOf::new(rows.iter().map(|&(gpu, us, mw)| Ok(ring(gpu, us, mw))));
            for (gpu, us) in moments {
                asof.advance(us).unwrap();
                let naive = rows.iter().rfind(|r| r.0 == gpu && r.1 <= us).map(|r| r.2);
                prop_assert_eq!(power(&asof, gpu), naive);
            }
        }
    }

    #[test]
    fn windows_are_open_from_their_beginning_up_to_their_end() {
        let edge = |us, gpu, kind, name: &str| {
            Ok(EventRow { name: Some(name.into()), ..EventRow::new(us, gpu, kind) })
        };
        let events = [
            edge(10, None, EventKind::WindowBegin, "a"),
            edge(12, None, EventKind::Mark, "not a window"),
            edge(15, Some(1), EventKind::WindowBegin, "b"),
            edge(16, None, EventKind::WindowBegin, "a"),
            edge(20, None, EventKind::WindowEnd, "a"),
            edge(25, None, EventKind::WindowEnd, "never begun"),
            edge(30, None, EventKind::WindowEnd, "a"),
        ];
        let mut windows = OpenWindows::new(events.into_iter());
        let mut at = |us| {
            windows.advance(us).unwrap();
            (windows.names(0), windows.names(1))
        };
        let some = |names: &str| Some(names.to_owned());
        assert_eq!(at(9), (None, None));
        assert_eq!(at(10), (some("a"), some("a")));
        assert_eq!(at(16), (some("a"), some("a;b")));
        assert_eq!(at(29), (some("a"), some("a;b")));
        assert_eq!(at(30), (None, some("b")));
    }
}
