//! What the load does when.
//!
//! Rule: a probe of two long pulses tells how often the sensors change. Then come blocks of square waves; the half-periods
//! are multiples of the update period that are neither whole nor simple fractions of it, from about a third to nearly three,
//! and two fixed long ones for windows of a second. Each phase is longer or shorter than its block says by up to 4 %, along
//! the golden ratio, so that updates meet edges at all distances even where both have the same rhythm.
//! Begin and end are off, so that energies of the whole do not hang on when the counter changes.
//! Source: the periods that are no multiple of the update's are the method of "Part-time Power Measurements" (SC'24).

/// A stretch of load or of none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase {
    /// Whether the load is on.
    pub on: bool,
    /// Length, µs.
    pub us: i64,
}

/// Half-periods as multiples of the update period, and their share of the time.
const BLOCKS: [(f64, f64); 5] = [(0.37, 0.26), (0.61, 0.18), (1.13, 0.16), (1.71, 0.1), (2.71, 0.1)];
/// Half-periods in µs, and their share of the time.
const LONG_BLOCKS: [(i64, f64); 2] = [(331_000, 0.08), (773_000, 0.12)];
/// No load is switched faster, µs.
const SHORTEST_US: i64 = 8_000;
/// Golden section.
const GOLDEN: f64 = 0.618_033_988_749_895;
const VARIED_BY: f64 = 0.08;

/// Two long pulses, 4.5 s in all.
pub fn probe() -> Vec<Phase> {
    let phase = |on, us| Phase { on, us };
    vec![
        phase(false, 500_000),
        phase(true, 1_000_000),
        phase(false, 1_000_000),
        phase(true, 1_000_000),
        phase(false, 1_000_000),
    ]
}

/// Blocks of square waves for a sensor that changes each `update_ms`, `total_us` in all or a little more.
pub fn squares(update_ms: f64, total_us: i64) -> Vec<Phase> {
    let short = BLOCKS.map(|(times, share)| ((times * update_ms * 1e3) as i64, share));
    let mut phases = vec![Phase { on: false, us: 700_000 }];
    for (number, (half_us, share)) in (0..).zip(short.into_iter().chain(LONG_BLOCKS)) {
        block(&mut phases, number, half_us.max(SHORTEST_US), (share * total_us as f64) as i64);
    }
    phases.push(Phase { on: false, us: 1_300_000 });
    phases
}

/// A square wave of the same mean length for the counter.
pub fn for_counter(total_us: i64) -> Vec<Phase> {
    let mut phases = vec![Phase { on: false, us: 300_000 }];
    block(&mut phases, 3, 137_000, total_us / 2);
    block(&mut phases, 5, 271_000, total_us / 2);
    phases.push(Phase { on: false, us: 300_000 });
    phases
}

fn block(phases: &mut Vec<Phase>, number: usize, half_us: i64, total_us: i64) {
    let mut left_us = total_us;
    for k in 0.. {
        let vary = 1.0 + VARIED_BY * ((f64::from(k) * GOLDEN + number as f64 * 0.3).fract() - 0.5);
        let us = (half_us as f64 * vary) as i64;
        // Every block ends off: the next begins on.
        let on = k % 2 == 0;
        phases.push(Phase { on, us });
        left_us -= us;
        if left_us <= 0 && !on {
            break;
        }
    }
}

/// Length of phases, µs.
pub fn length_us(phases: &[Phase]) -> i64 {
    phases.iter().map(|phase| phase.us).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squares_begin_and_end_off_and_take_their_time() {
        for update_ms in [5.0, 20.0, 100.0, 200.0] {
            let phases = squares(update_ms, 40_000_000);
            assert!(!phases[0].on && !phases[phases.len() - 1].on);
            assert!((40_000_000..47_000_000).contains(&length_us(&phases)), "{}", length_us(&phases));
            assert!(phases.iter().all(|p| p.us >= SHORTEST_US * 9 / 10));
            let between = &phases[1..phases.len() - 1];
            assert!(between.windows(2).all(|pair| pair[0].on != pair[1].on));
        }
    }
}
