//! Any command that speaks the worker protocol (docs/worker-protocol.md).
//!
//! Rule: one process a seat, because a share of the GPU is given to a process by its environment and for its life. All
//! seats' processes are started together, since their imports take seconds; the model is loaded in one of them at a time.
//! Cases: a process that breaks is told of and started anew at the next point; a model that does not fit spoils its point.
//! Not done here: PyTorch models by name ([`super::torch`]).
//! A parent-death signal follows the thread that started the process, so a workload's processes are started by whoever
//! outlives it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpumon_core::clock::Clock;
use gpumon_core::share::Share;
use gpumon_core::units::US_PER_S;

use super::process::{Broken, Process};
use super::wire::{Answer, Ask, Trouble, TroubleKind, VERSION};
use super::{Tick, Workload, WorkloadError};
use crate::space::Point;
use crate::stage::Seat;

/// How long a worker is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// From its start until it says hello: imports over a network take a while.
    pub hello: Duration,
    /// An ask other than running.
    pub answer: Duration,
    /// The last batch of a run that was stopped or is over.
    pub last_batch: Duration,
    /// From being asked to quit to its end.
    pub quit: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            hello: Duration::from_secs(180),
            answer: Duration::from_secs(120),
            last_batch: Duration::from_secs(120),
            quit: Duration::from_secs(2),
        }
    }
}

/// A model served by a command.
pub struct Commanded {
    name: String,
    argv: Vec<String>,
    clock: Arc<dyn Clock>,
    timeouts: Timeouts,
    processes: HashMap<Share, Process>,
    loaded: Option<Loaded>,
    /// Where the last model was loaded, loaded still or not: its memory is given back before another is.
    holds: Option<Share>,
}

/// The model that can run.
struct Loaded {
    share: Share,
    memory_bytes: Option<u64>,
    note: Option<String>,
}

/// A longer note is cut.
const NOTE_CHARS: usize = 200;

impl Commanded {
    /// The model `name`, served by a program with its arguments.
    pub fn new(name: &str, argv: Vec<String>, clock: Arc<dyn Clock>) -> Self {
        let (timeouts, processes) = (Timeouts::default(), HashMap::new());
        Self { name: name.into(), argv, clock, timeouts, processes, loaded: None, holds: None }
    }

    /// The same with other times to wait.
    pub fn with_timeouts(self, timeouts: Timeouts) -> Self {
        Self { timeouts, ..self }
    }

    /// The process of a seat, which is started if there is none.
    fn process(&mut self, seat: &Seat) -> Result<&mut Process, WorkloadError> {
        if !self.processes.contains_key(&seat.share) {
            let mut process = Process::start(&self.argv, &seat.env).map_err(failed)?;
            hello(&mut process, seat.share, self.timeouts.hello)?;
            self.processes.insert(seat.share, process);
        }
        self.processes
            .get_mut(&seat.share)
            .ok_or_else(|| WorkloadError::Failed("its process is not there".into()))
    }

    /// One ask of the process of a share and its answer. A process that breaks is forgotten.
    fn asked(&mut self, share: Share, ask: &Ask, what: &str) -> Result<Answer, WorkloadError> {
        let Some(process) = self.processes.get_mut(&share) else {
            return Err(WorkloadError::Failed("no point is loaded; load one first".into()));
        };
        let answer = process.ask(ask).and_then(|()| process.answer_within(self.timeouts.answer, what));
        match answer {
            Ok(Answer { error: Some(trouble), .. }) => Err(self.trouble(share, trouble)),
            Ok(answer) => Ok(answer),
            Err(broken) => {
                self.forget(share);
                Err(failed(broken))
            }
        }
    }

    fn trouble(&mut self, share: Share, trouble: Trouble) -> WorkloadError {
        match trouble.kind {
            TroubleKind::DoesNotFit => WorkloadError::DoesNotFit(trouble.message),
            TroubleKind::Failed => WorkloadError::Failed(trouble.message),
            TroubleKind::Fatal => {
                self.forget(share);
                WorkloadError::Failed(trouble.message)
            }
        }
    }

    /// Has all processes quit, together.
    fn end_all(&mut self) {
        let mut ending: Vec<Process> = self.processes.drain().map(|(_, process)| process).collect();
        ending.iter_mut().for_each(Process::ask_to_quit);
        let until = Instant::now() + self.timeouts.quit;
        ending.into_iter().for_each(|process| process.end_by(until));
    }

    fn forget(&mut self, share: Share) {
        self.processes.remove(&share);
        self.loaded = None;
        self.holds = self.holds.filter(|held| *held != share);
    }

    /// Gives the memory of the loaded model back, unless it stays where it is.
    fn leave(&mut self, next: Option<Share>) {
        self.loaded = None;
        if let Some(share) = self.holds.filter(|share| Some(*share) != next) {
            self.holds = None;
            // A process that cannot is forgotten, and its memory with it.
            let _ = self.asked(share, &Ask::Unload, "unload");
        }
    }

    /// Takes what a run says until it is done or broken.
    fn follow(
        process: &mut Process,
        (clock, last_batch): (&dyn Clock, Duration),
        (limit_us, tick_us): (i64, i64),
        tick: &mut Tick<'_>,
    ) -> Result<Vec<f64>, FollowError> {
        let (start, mut next_us) = (clock.mono(), tick_us.max(1));
        let (mut times_ms, mut stopped) = (Vec::new(), false);
        let last_us = last_batch.as_micros() as i64;
        let mut end_us = limit_us.saturating_add(last_us);
        loop {
            let past_us = clock.mono().since_us(start);
            if past_us > end_us {
                return Err(FollowError::Broken(process.broken("did not end its run")));
            }
            let wait_us = if stopped { US_PER_S } else { (next_us - past_us).clamp(0, US_PER_S) };
            let answer =
                process.answer(Duration::from_micros(wait_us as u64)).map_err(FollowError::Broken)?;
            if let Some(answer) = answer {
                if let Some(trouble) = answer.error {
                    return Err(FollowError::Trouble(trouble));
                }
                times_ms.extend(answer.batches_us.iter().flatten().map(|us| us / 1e3));
                if answer.done == Some(true) {
                    return Ok(times_ms);
                }
            }
            let past_us = clock.mono().since_us(start);
            if !stopped && past_us >= next_us {
                if tick(&times_ms).is_break() {
                    process.ask(&Ask::Stop).map_err(FollowError::Broken)?;
                    stopped = true;
                    end_us = end_us.min(past_us.saturating_add(last_us));
                }
                // Ticks that were missed are not made up for.
                next_us = (past_us / tick_us.max(1) + 1) * tick_us.max(1);
            }
        }
    }
}

enum FollowError {
    Broken(Broken),
    Trouble(Trouble),
}

fn failed(broken: Broken) -> WorkloadError {
    WorkloadError::Failed(broken.0)
}

/// Waits until the worker is there, and looks at its version and whether it can have its share.
fn hello(process: &mut Process, share: Share, within: Duration) -> Result<(), WorkloadError> {
    let answer = process.answer_within(within, "hello").map_err(failed)?;
    if let Some(trouble) = answer.error {
        return Err(WorkloadError::Failed(trouble.message));
    }
    match answer.version {
        Some(VERSION) if matches!(share, Share::Green { .. }) && answer.green != Some(true) => {
            Err(WorkloadError::Lost(
                "its worker makes no green contexts (its hello has no `green`: true); share the GPU by MPS or MIG".into(),
            ))
        }
        Some(VERSION) => Ok(()),
        Some(other) => Err(WorkloadError::Failed(format!(
            "the worker speaks version {other} of the protocol, and gpumon version {VERSION}"
        ))),
        None => Err(WorkloadError::Failed("the worker said no hello with a `version`".into())),
    }
}

impl Workload for Commanded {
    fn name(&self) -> &str {
        &self.name
    }

    fn fits(&self, _: &Point) -> Result<(), String> {
        // Only the worker knows, and it says so when it loads.
        Ok(())
    }

    fn prepare(&mut self, seats: &[Seat]) -> Result<(), WorkloadError> {
        let missing: Vec<&Seat> =
            seats.iter().filter(|seat| !self.processes.contains_key(&seat.share)).collect();
        let mut started = Vec::new();
        for seat in missing {
            started.push((seat.share, Process::start(&self.argv, &seat.env).map_err(failed)?));
        }
        for (share, mut process) in started {
            hello(&mut process, share, self.timeouts.hello)?;
            self.processes.insert(share, process);
        }
        Ok(())
    }

    fn load(&mut self, point: &Point, seat: &Seat) -> Result<(), WorkloadError> {
        self.leave(Some(seat.share));
        self.process(seat)?;
        self.holds = Some(seat.share);
        let loaded = self.asked(seat.share, &Ask::Load { batch: point.batch }, "load")?;
        let note = loaded.note.map(|note| note.chars().take(NOTE_CHARS).collect());
        self.loaded = Some(Loaded { share: seat.share, memory_bytes: loaded.memory_bytes, note });
        Ok(())
    }

    fn unload(&mut self) -> Result<(), WorkloadError> {
        self.leave(None);
        Ok(())
    }

    fn run_batch(&mut self) -> Result<f64, WorkloadError> {
        let Some(share) = self.loaded.as_ref().map(|l| l.share) else {
            return Err(WorkloadError::Failed("no point is loaded; load one first".into()));
        };
        let answer = self.asked(share, &Ask::Batch { id: 0 }, "batch")?;
        let us = answer.batch_us;
        us.map(|us| us / 1e3)
            .ok_or_else(|| WorkloadError::Failed("`batch` was answered without a time".into()))
    }

    fn run(&mut self, limit_us: i64, tick_us: i64, tick: &mut Tick<'_>) -> Result<Vec<f64>, WorkloadError> {
        let share = self.loaded.as_ref().map(|l| l.share);
        let Some((share, process)) = share.and_then(|s| Some((s, self.processes.get_mut(&s)?))) else {
            return Err(WorkloadError::Failed("no point is loaded; load one first".into()));
        };
        let seconds = limit_us as f64 / US_PER_S as f64;
        let waits = (self.clock.as_ref(), self.timeouts.last_batch);
        let times = process.ask(&Ask::Run { seconds }).map_err(FollowError::Broken);
        let times = times.and_then(|()| Self::follow(process, waits, (limit_us, tick_us), tick));
        match times {
            Ok(times) if times.is_empty() => Err(WorkloadError::Failed("no batch ran".into())),
            Ok(times) => Ok(times),
            Err(FollowError::Trouble(trouble)) => Err(self.trouble(share, trouble)),
            Err(FollowError::Broken(broken)) => {
                self.forget(share);
                Err(failed(broken))
            }
        }
    }

    fn memory_bytes(&self) -> Option<u64> {
        self.loaded.as_ref().and_then(|l| l.memory_bytes)
    }

    fn note(&self) -> Option<&str> {
        self.loaded.as_ref().and_then(|l| l.note.as_deref())
    }

    fn idle(&mut self, seat: &Seat, context: bool) -> Result<(), WorkloadError> {
        self.leave(None);
        if !context {
            self.end_all();
            return Ok(());
        }
        self.process(seat)?;
        self.asked(seat.share, &Ask::Context, "context").map(|_| ())
    }

    fn quit(&mut self) -> Result<(), WorkloadError> {
        self.loaded = None;
        self.holds = None;
        self.end_all();
        Ok(())
    }
}
