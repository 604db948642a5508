//! What runs on the GPU when: phases of constant load, once or for ever.
//!
//! Rule: a programme is a list of phases and what follows the last of them. A repeating programme
//! starts again instead. A phase's level is the share of the GPU's full dynamic power; a phase
//! without a context has level 0, because without a context nothing can run.
//! Cases: no phases at all is a constant load. Durations are whole microseconds.
//! Not done here: how much power a level draws at which clock (that is the law's), and any notion of
//! work: a load that is slowed down does not run for longer.

/// Levels are kept as whole millionths, so that sums over a day stay exact.
pub(crate) const PPM: f64 = 1e6;

/// A stretch of constant load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Phase {
    /// Length, µs.
    pub duration_us: i64,
    /// Share of the full dynamic power, 0 to 1.
    pub level: f64,
    /// Whether a CUDA context exists.
    pub context: bool,
}

/// Why phases are not a programme.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ProgrammeError {
    /// A level outside 0 to 1, or not a number.
    #[error(
        "phase {phase}: level {level} is not within 0 to 1; it is a share of the GPU's full dynamic power"
    )]
    Level {
        /// Which phase, counted from 1; 0 is the constant load.
        phase: usize,
        /// The level.
        level: f64,
    },
    /// A phase of no or negative length.
    #[error("phase {phase}: {duration_us} µs is not a duration; give each phase at least 1 µs")]
    Duration {
        /// Which phase, counted from 1.
        phase: usize,
        /// The duration, µs.
        duration_us: i64,
    },
    /// A load without a context.
    #[error("phase {phase}: a load of level {level} needs a context; leave `context = false` to idle phases")]
    LoadWithoutContext {
        /// Which phase, counted from 1; 0 is the constant load.
        phase: usize,
        /// The level.
        level: f64,
    },
    /// Nothing to repeat.
    #[error("a repeating programme has no phases; give it at least one")]
    Empty,
}

/// What runs, without its duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Demand {
    /// Share of the full dynamic power, millionths.
    pub(crate) level_ppm: u32,
    /// Whether a CUDA context exists.
    pub(crate) context: bool,
}

/// A load over time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Programme {
    pub(crate) phases: Vec<(i64, Demand)>,
    pub(crate) after: Demand,
    pub(crate) repeat: bool,
}

impl Programme {
    /// Nothing runs, with or without a context.
    pub fn idle(context: bool) -> Self {
        Self { phases: Vec::new(), after: Demand { level_ppm: 0, context }, repeat: false }
    }

    /// The same level for ever, with a context.
    pub fn constant(level: f64) -> Result<Self, ProgrammeError> {
        Ok(Self { phases: Vec::new(), after: demand(0, level, true)?, repeat: false })
    }

    /// Phases one after another, from the beginning again if `repeat`. What follows the last phase
    /// otherwise is idleness, with a context if the last phase had one.
    pub fn steps(phases: &[Phase], repeat: bool) -> Result<Self, ProgrammeError> {
        let kept = phases
            .iter()
            .zip(1..)
            .map(|(phase, number)| {
                if phase.duration_us <= 0 {
                    return Err(ProgrammeError::Duration { phase: number, duration_us: phase.duration_us });
                }
                Ok((phase.duration_us, demand(number, phase.level, phase.context)?))
            })
            .collect::<Result<Vec<_>, _>>()?;
        if repeat && kept.is_empty() {
            return Err(ProgrammeError::Empty);
        }
        let context = kept.last().is_some_and(|(_, last)| last.context);
        Ok(Self { phases: kept, after: Demand { level_ppm: 0, context }, repeat })
    }

    /// A square wave that begins with `on_us` at `level`, then `off_us` idle with a context, for ever.
    pub fn square(on_us: i64, off_us: i64, level: f64) -> Result<Self, ProgrammeError> {
        let on = Phase { duration_us: on_us, level, context: true };
        let off = Phase { duration_us: off_us, level: 0.0, context: true };
        Self::steps(&[on, off], true)
    }

    /// The same phases, but a level that lasts for ever after the last one.
    pub(crate) fn then_constant(self, level: f64) -> Result<Self, ProgrammeError> {
        Ok(Self { after: demand(self.phases.len(), level, true)?, ..self })
    }

    /// What runs first.
    pub(crate) fn first(&self) -> Demand {
        self.phases.first().map_or(self.after, |(_, demand)| *demand)
    }
}

fn demand(phase: usize, level: f64, context: bool) -> Result<Demand, ProgrammeError> {
    if !(0.0..=1.0).contains(&level) {
        return Err(ProgrammeError::Level { phase, level });
    }
    if level > 0.0 && !context {
        return Err(ProgrammeError::LoadWithoutContext { phase, level });
    }
    Ok(Demand { level_ppm: (level * PPM).round() as u32, context })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_phases_are_named() {
        let phase = |duration_us, level, context| Phase { duration_us, level, context };
        let steps = |p: &[Phase]| Programme::steps(p, false).unwrap_err().to_string();
        assert!(steps(&[phase(1, 0.5, true), phase(1, 1.5, true)]).starts_with("phase 2: level 1.5"));
        assert!(steps(&[phase(1, f64::NAN, true)]).contains("within 0 to 1"));
        assert!(steps(&[phase(0, 0.5, true)]).contains("at least 1 µs"));
        assert!(steps(&[phase(1, 0.5, false)]).contains("needs a context"));
        assert_eq!(Programme::steps(&[], true), Err(ProgrammeError::Empty));
    }

    #[test]
    fn the_context_outlives_the_last_phase() {
        let phase = Phase { duration_us: 5, level: 1.0, context: true };
        let programme = Programme::steps(&[phase], false).unwrap();
        assert_eq!(programme.after, Demand { level_ppm: 0, context: true });
    }
}
