//! The truth: what the GPU did and how much energy it has taken, at any instant.
//!
//! Rule: time is cut into epochs; within one the settings and the programme stay the same, so state is
//! piecewise constant and the totals up to any instant are a prefix sum and a remainder. Power is in
//! whole mW and time in whole µs, so energy is whole nJ and stays exact over any time.
//! Cases: before the first epoch the GPU has stood idle for ever, with a context if the first phase
//! has one; a change that is dated before the last one takes effect together with it; new settings
//! leave the programme where it stands, a new programme starts from its beginning.
//! Not done here: history without end. The last 4096 epochs, and all of the last 60 s, are kept; before
//! them the oldest kept state is taken to have lasted for ever.
//! Cost: a look-up is a binary search over epochs and one over the phases of a period.

use std::sync::Arc;

use gpumon_core::units::{Megahertz, Milliwatts, MonoUs};

use crate::law::{PowerLaw, Settings, State};
use crate::programme::{Demand, Programme};

const KEEP_EPOCHS: usize = 4096;
const KEEP_US: i64 = 60_000_000;

/// Sums from time zero to an instant; negative before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Energy, nJ.
    pub energy_nj: i128,
    /// Time with any load, µs.
    pub busy_us: i64,
    /// Load level over time, millionths of full load × µs.
    pub level_ppm_us: i128,
}

impl Totals {
    fn add(self, state: &State, for_us: i64) -> Self {
        Self {
            energy_nj: self.energy_nj + i128::from(state.power.0) * i128::from(for_us),
            busy_us: self.busy_us + if state.level_ppm > 0 { for_us } else { 0 },
            level_ppm_us: self.level_ppm_us + i128::from(state.level_ppm) * i128::from(for_us),
        }
    }

    fn add_times(self, other: &Self, times: i64) -> Self {
        Self {
            energy_nj: self.energy_nj + other.energy_nj * i128::from(times),
            busy_us: self.busy_us + other.busy_us * times,
            level_ppm_us: self.level_ppm_us + other.level_ppm_us * i128::from(times),
        }
    }

    /// What was added since `earlier`.
    pub fn since(self, earlier: &Self) -> Self {
        self.add_times(earlier, -1)
    }
}

/// Something that changes at run time.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Another load, from its beginning.
    Load(Arc<Programme>),
    /// Lock the graphics clock to a range, or with `None` release it.
    LockClocks(Option<(Megahertz, Megahertz)>),
    /// Another power limit.
    PowerLimit(Milliwatts),
}

/// Why a change is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// No supported clock in the range.
    #[error(
        "no supported graphics clock lies within {min} to {max}; this GPU supports {lowest} to {highest}"
    )]
    NoSuchClock {
        /// Lower end asked for.
        min: Megahertz,
        /// Upper end asked for.
        max: Megahertz,
        /// Lowest supported clock.
        lowest: Megahertz,
        /// Highest supported clock.
        highest: Megahertz,
    },
    /// A power limit that the GPU does not take.
    #[error("a power limit of {limit} is not possible; this GPU takes {min} to {max}")]
    LimitOutOfRange {
        /// Limit asked for.
        limit: Milliwatts,
        /// Lowest limit possible.
        min: Milliwatts,
        /// Highest limit possible.
        max: Milliwatts,
    },
}

/// A programme under fixed settings, ready for look-ups. Times count from the programme's beginning.
#[derive(Clone, Debug)]
struct Compiled {
    starts_us: Vec<i64>,
    states: Vec<State>,
    prefix: Vec<Totals>,
    length_us: i64,
    whole: Totals,
    after: State,
    repeat: bool,
}

impl Compiled {
    fn new(law: &PowerLaw, programme: &Programme, settings: &Settings) -> Self {
        let count = programme.phases.len();
        let (mut starts_us, mut states) = (Vec::with_capacity(count), Vec::with_capacity(count));
        let mut prefix = Vec::with_capacity(count);
        let (mut at_us, mut sum) = (0, Totals::default());
        for &(duration_us, demand) in &programme.phases {
            let state = law.state(demand, settings);
            starts_us.push(at_us);
            states.push(state);
            prefix.push(sum);
            at_us += duration_us;
            sum = sum.add(&state, duration_us);
        }
        Self {
            starts_us,
            states,
            prefix,
            length_us: at_us,
            whole: sum,
            after: law.state(programme.after, settings),
            repeat: programme.repeat,
        }
    }

    /// Where a time ≥ 0 lies: whole periods before it, time into the period, and the phase, if the
    /// programme has not ended.
    fn place(&self, time_us: i64) -> (i64, i64, Option<usize>) {
        let (times, rest_us) = match self.repeat {
            true => (time_us / self.length_us, time_us % self.length_us),
            false => (0, time_us),
        };
        if rest_us >= self.length_us {
            return (times, rest_us, None);
        }
        (times, rest_us, self.starts_us.partition_point(|&start| start <= rest_us).checked_sub(1))
    }

    fn state(&self, time_us: i64) -> State {
        self.place(time_us).2.map_or(self.after, |phase| self.states[phase])
    }

    /// Totals from the beginning to a time ≥ 0.
    fn totals(&self, time_us: i64) -> Totals {
        let (times, rest_us, phase) = self.place(time_us);
        let inside = match phase {
            Some(phase) => self.prefix[phase].add(&self.states[phase], rest_us - self.starts_us[phase]),
            None => return self.whole.add(&self.after, rest_us - self.length_us),
        };
        inside.add_times(&self.whole, times)
    }
}

#[derive(Clone, Debug)]
struct Epoch {
    start_us: i64,
    /// Totals from time zero to the start.
    base: Totals,
    /// Where the programme stood at the start, µs, and its totals there.
    offset_us: i64,
    offset: Totals,
    compiled: Compiled,
}

impl Epoch {
    /// Time since the programme's beginning at an instant of this epoch.
    fn programme_us(&self, at_us: i64) -> i64 {
        self.offset_us + (at_us - self.start_us)
    }
}

/// The history of one GPU.
#[derive(Clone, Debug)]
pub struct Timeline {
    law: Arc<PowerLaw>,
    programme: Arc<Programme>,
    settings: Settings,
    before: State,
    epochs: Vec<Epoch>,
}

impl Timeline {
    /// A GPU on which `programme` begins at time zero.
    pub fn new(law: Arc<PowerLaw>, programme: Arc<Programme>, settings: Settings) -> Self {
        let before = law.state(Demand { level_ppm: 0, context: programme.first().context }, &settings);
        let mut timeline = Self { law, programme, settings, before, epochs: Vec::new() };
        timeline.begin(0, Totals::default(), 0);
        timeline
    }

    /// State at an instant.
    pub fn state(&self, at: MonoUs) -> State {
        self.epoch(at.0).map_or(self.before, |epoch| epoch.compiled.state(epoch.programme_us(at.0)))
    }

    /// Totals from time zero to an instant.
    pub fn totals(&self, at: MonoUs) -> Totals {
        let Some(epoch) = self.epoch(at.0) else {
            let (start_us, base) =
                self.epochs.first().map_or((0, Totals::default()), |e| (e.start_us, e.base));
            return base.add(&self.before, at.0 - start_us);
        };
        let totals = epoch.compiled.totals(epoch.programme_us(at.0));
        epoch.base.add_times(&totals.since(&epoch.offset), 1)
    }

    /// Mean power over the span that ends at `end`, mW.
    pub(crate) fn mean_mw(&self, end: MonoUs, span_us: i64) -> f64 {
        let taken = self.totals(end).since(&self.totals(end.plus_us(-span_us)));
        taken.energy_nj as f64 / span_us as f64
    }

    /// The settings in force after the last change.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Makes a change at an instant and returns when it took effect: then, or together with the
    /// last change if that one is later. Fails only on a clock range without supported clocks.
    pub fn apply(&mut self, at: MonoUs, change: Change) -> Result<MonoUs, ChangeError> {
        let (start_us, offset_us) = match self.epochs.last() {
            Some(last) => {
                let start_us = at.0.max(last.start_us);
                (start_us, last.programme_us(start_us))
            }
            None => (at.0, 0),
        };
        let base = self.totals(MonoUs(start_us));
        match change {
            Change::Load(programme) => {
                self.programme = programme;
                self.begin(start_us, base, 0);
            }
            Change::LockClocks(range) => {
                if let Some((min, max)) = range {
                    self.check_range(min, max)?;
                }
                self.settings.locked = range;
                self.begin(start_us, base, offset_us);
            }
            Change::PowerLimit(limit) => {
                self.settings.limit = limit;
                self.begin(start_us, base, offset_us);
            }
        }
        self.prune(start_us);
        Ok(MonoUs(start_us))
    }

    fn check_range(&self, min: Megahertz, max: Megahertz) -> Result<(), ChangeError> {
        let clocks = self.law.clocks();
        if self.law.allows(min, max) {
            return Ok(());
        }
        Err(ChangeError::NoSuchClock {
            min,
            max,
            lowest: clocks.first().copied().unwrap_or_default(),
            highest: clocks.last().copied().unwrap_or_default(),
        })
    }

    fn begin(&mut self, start_us: i64, base: Totals, offset_us: i64) {
        let compiled = Compiled::new(&self.law, &self.programme, &self.settings);
        let offset = compiled.totals(offset_us);
        self.epochs.push(Epoch { start_us, base, offset_us, offset, compiled });
    }

    fn prune(&mut self, now_us: i64) {
        let spare = self.epochs.len().saturating_sub(KEEP_EPOCHS);
        let old = self.epochs.iter().take(spare).filter(|e| e.start_us < now_us - KEEP_US).count();
        if old > 0 {
            self.before = self.state(MonoUs(self.epochs[old].start_us - 1));
            self.epochs.drain(..old);
        }
    }

    /// The epoch that an instant lies in; none before the first.
    fn epoch(&self, at_us: i64) -> Option<&Epoch> {
        // Almost every question is about the last epoch.
        match self.epochs.last() {
            Some(last) if last.start_us <= at_us => Some(last),
            _ => {
                let after = self.epochs.partition_point(|epoch| epoch.start_us <= at_us);
                after.checked_sub(1).map(|i| &self.epochs[i])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Phase, Spec};
    use proptest::prelude::*;

    fn timeline(programme: Programme) -> Timeline {
        let law = PowerLaw::new(&Spec::builtin("h200").unwrap());
        let settings = Settings { locked: None, limit: Milliwatts(700_000) };
        Timeline::new(Arc::new(law), Arc::new(programme), settings)
    }

    #[test]
    fn idle_energy_runs_backwards_before_zero() {
        let line = timeline(Programme::constant(1.0).unwrap());
        assert_eq!(line.totals(MonoUs(-1_000)).energy_nj, -121_000_000);
        assert_eq!(line.totals(MonoUs(0)), Totals::default());
        assert_eq!(line.state(MonoUs(-1)).power, Milliwatts(121_000));
        assert_eq!(timeline(Programme::idle(false)).state(MonoUs(-1)).power, Milliwatts(79_000));
    }

    #[test]
    fn new_settings_do_not_restart_the_load_and_a_new_load_does() {
        let mut line = timeline(Programme::square(100, 100, 1.0).unwrap());
        line.apply(MonoUs(50), Change::LockClocks(Some((Megahertz(345), Megahertz(990))))).unwrap();
        assert_eq!(line.state(MonoUs(99)).clock, Megahertz(990));
        assert_eq!((line.state(MonoUs(99)).level_ppm, line.state(MonoUs(100)).level_ppm), (1_000_000, 0));
        assert_eq!(line.totals(MonoUs(250)).busy_us, 150);
        line.apply(MonoUs(250), Change::Load(Arc::new(Programme::constant(0.5).unwrap()))).unwrap();
        assert_eq!(line.totals(MonoUs(300)).busy_us, 200);
        assert_eq!(line.state(MonoUs(260)).level_ppm, 500_000);
        assert_eq!(line.state(MonoUs(20)).clock, Megahertz(1500), "the past stays as it was");
    }

    #[test]
    fn a_change_dated_before_the_last_one_joins_it() {
        let mut line = timeline(Programme::constant(1.0).unwrap());
        line.apply(MonoUs(500), Change::PowerLimit(Milliwatts(300_000))).unwrap();
        let took = line.apply(MonoUs(400), Change::PowerLimit(Milliwatts(400_000))).unwrap();
        assert_eq!(took, MonoUs(500));
        assert!(line.state(MonoUs(499)).power > Milliwatts(400_000));
        assert!(line.state(MonoUs(500)).power > Milliwatts(300_000));
    }

    #[test]
    fn a_range_without_clocks_is_refused_and_changes_nothing() {
        let mut line = timeline(Programme::idle(true));
        let refused = line.apply(MonoUs(5), Change::LockClocks(Some((Megahertz(10), Megahertz(20)))));
        assert!(refused.unwrap_err().to_string().contains("supports 345 MHz to 1980 MHz"));
        assert_eq!(line.settings().locked, None);
    }

    #[test]
    fn old_epochs_go_and_the_recent_past_stays_exact() {
        let mut line = timeline(Programme::constant(1.0).unwrap());
        for i in 0..6_000i64 {
            line.apply(MonoUs(i * 50_000), Change::PowerLimit(Milliwatts(300_000 + i as u32 % 2 * 300_000)))
                .unwrap();
        }
        assert!(line.epochs.len() <= KEEP_EPOCHS);
        let end = MonoUs(6_000 * 50_000);
        let span_us = 60_000_000;
        let brute: i128 = (0..span_us / 50_000)
            .map(|i| i128::from(line.state(end.plus_us(-(i + 1) * 50_000)).power.0) * 50_000)
            .sum();
        assert_eq!(line.totals(end).since(&line.totals(end.plus_us(-span_us))).energy_nj, brute);
    }

    fn any_programme() -> impl Strategy<Value = Programme> {
        let phase = (1i64..400, 0.0f64..=1.0, any::<bool>()).prop_map(|(duration_us, level, context)| {
            Phase { duration_us, level: if context { level } else { 0.0 }, context }
        });
        (proptest::collection::vec(phase, 1..6), any::<bool>())
            .prop_map(|(phases, repeat)| Programme::steps(&phases, repeat).unwrap())
    }

    proptest! {
        #[test]
        fn totals_are_the_sum_over_every_microsecond(
            first in any_programme(),
            second in any_programme(),
            changes in proptest::collection::vec((0i64..2_000, 0usize..3, 150u32..700), 0..5),
        ) {
            let mut line = timeline(first);
            for (at, what, number) in changes {
                let change = match what {
                    0 => Change::Load(Arc::new(second.clone())),
                    1 => Change::LockClocks(Some((Megahertz(345), Megahertz(345 + number)))),
                    _ => Change::PowerLimit(Milliwatts(number * 1000)),
                };
                line.apply(MonoUs(at), change).unwrap();
            }
            let mut brute = line.totals(MonoUs(-100));
            for t in -100..2_500 {
                prop_assert_eq!(line.totals(MonoUs(t)), brute);
                brute = brute.add(&line.state(MonoUs(t)), 1);
            }
        }
    }
}
