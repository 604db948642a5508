//! What idle power did while a sweep ran.
//!
//! Rule: behind the last point, idle power with a context is measured once more, at the clock at which it was measured last
//! before the points. The second figure is no row, because readers take the mean of rows of one point: it is told, and kept in
//! the note of the first one's row. Dynamic power stays that above the first.
//! Cases: no figure without both rows. The change for each kelvin is told where they are at least 2 K apart, since sensors tell whole
//! degrees.
//! Not done here: taking the change off dynamic power: under load the card is warmer than at either row, so that would be an extrapolation.

use gpumon_core::profile::{IDLE_CONTEXT, ProfileRow};

/// Differences of temperature below this say nothing about the change for each kelvin, K.
const LEAST_K: f64 = 2.0;

/// Idle power with a context, before and after.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drift {
    /// Clock, MHz.
    pub clock_mhz: i32,
    /// Power before, W.
    pub first_w: f64,
    /// Temperature before, °C.
    pub first_c: Option<f64>,
    /// Power after, W.
    pub last_w: f64,
    /// Temperature after, °C.
    pub last_c: Option<f64>,
}

impl Drift {
    /// Between two rows of idle power at one clock.
    pub(crate) fn between(first: &ProfileRow, last: &ProfileRow) -> Option<Self> {
        let usable = |row: &ProfileRow| row.avg_power_draw.filter(|_| row.valid);
        let (first_w, last_w) = usable(first).zip(usable(last))?;
        let clock_mhz = first.frequency;
        Some(Self { clock_mhz, first_w, first_c: first.temp_c, last_w, last_c: last.temp_c })
    }

    /// Change for each kelvin, W.
    pub fn w_per_k(&self) -> Option<f64> {
        let kelvins = self.last_c? - self.first_c?;
        (kelvins.abs() >= LEAST_K).then(|| (self.last_w - self.first_w) / kelvins)
    }

    /// In words.
    pub fn text(&self) -> String {
        let at = |c: Option<f64>| c.map_or(String::new(), |c| format!(" at {c:.0} °C"));
        let each = self.w_per_k().map_or(String::new(), |w| format!(": {w:.2} W for each kelvin"));
        format!(
            "idle with a context the GPU drew {:.1} W{} before the points and {:.1} W{} after them, at {} MHz{each}",
            self.first_w,
            at(self.first_c),
            self.last_w,
            at(self.last_c),
            self.clock_mhz
        )
    }

    /// Notes it in the row of the first figure.
    pub(crate) fn note(&self, rows: &mut [ProfileRow]) {
        if let Some(row) = rows.iter_mut().find(|r| is_first(r, self.clock_mhz)) {
            let at = self.last_c.map_or(String::new(), |c| format!(" at {c:.0} °C"));
            let note = format!("{:.2} W{at} after the points", self.last_w);
            row.reason = Some(row.reason.take().map_or(note.clone(), |before| format!("{before}; {note}")));
        }
    }
}

/// Whether this is the row of idle power with a context at a clock, MHz.
pub(crate) fn is_first(row: &ProfileRow, clock_mhz: i32) -> bool {
    row.model == IDLE_CONTEXT && row.frequency == clock_mhz
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(watts: f64, celsius: f64) -> ProfileRow {
        let row = ProfileRow::new(IDLE_CONTEXT, 0, 1.0, 1980);
        ProfileRow { avg_power_draw: Some(watts), temp_c: Some(celsius), ..row }
    }

    #[test]
    fn the_change_is_told_and_noted() {
        let drift = Drift::between(&row(125.3, 37.0), &row(128.6, 41.0)).unwrap();
        assert!((drift.w_per_k().unwrap() - 0.825).abs() < 1e-9);
        assert_eq!(
            drift.text(),
            "idle with a context the GPU drew 125.3 W at 37 °C before the points and 128.6 W at 41 °C after them, at 1980 MHz: 0.82 W for each kelvin"
        );
        let mut rows = [row(125.3, 37.0)];
        drift.note(&mut rows);
        assert_eq!(rows[0].reason.as_deref(), Some("128.60 W at 41 °C after the points"));
        let near = Drift::between(&row(125.3, 37.0), &row(125.9, 38.0)).unwrap();
        assert_eq!(near.w_per_k(), None);
        assert!(near.text().ends_with("at 1980 MHz"));
        assert_eq!(Drift::between(&row(125.3, 37.0), &ProfileRow { valid: false, ..row(1.0, 1.0) }), None);
    }
}
