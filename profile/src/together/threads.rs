//! Members that run in real time, each followed by a thread.
//!
//! Cases: a member that panics fails. A process belongs to the thread that starts it and has to outlive the set's threads, so what is
//! missing is started before.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use gpumon_core::clock::Clock;

use super::Set;
use super::crew::{Crew, Look, Spoilt, sorted};
use super::watch::TICK_US;
use crate::stage::Seat;
use crate::workload::{Workload, WorkloadError};

/// Workloads of a set.
pub(super) struct Threads<'a> {
    pub(super) members: Vec<&'a mut Box<dyn Workload>>,
    pub(super) clock: &'a dyn Clock,
}

impl Crew for Threads<'_> {
    fn load(&mut self, set: &Set, seats: &[Seat]) -> Spoilt<()> {
        for (workload, seat) in self.members.iter_mut().zip(seats) {
            if let Err(e) = workload.prepare(std::slice::from_ref(seat)) {
                return sorted(workload.name(), e).map(Err);
            }
        }
        let loaded: Vec<(String, Result<(), WorkloadError>)> = thread::scope(|scope| {
            let loads: Vec<_> = self
                .members
                .iter_mut()
                .zip(&set.members)
                .zip(seats)
                .map(|((workload, member), seat)| {
                    let name = workload.name().to_owned();
                    (name, scope.spawn(move || workload.load(&member.point, seat)))
                })
                .collect();
            let joined = loads.into_iter().map(|(name, load)| {
                let panicked = |_| Err(WorkloadError::Failed("panicked while it was loaded".into()));
                (name, load.join().unwrap_or_else(panicked))
            });
            joined.collect()
        });
        for (name, result) in loaded {
            if let Err(e) = result {
                return sorted(&name, e).map(Err);
            }
        }
        Ok(Ok(()))
    }

    fn run(&mut self, limit_us: i64, look: &mut Look<'_>) -> Spoilt<()> {
        let told: Vec<Mutex<Told>> = self.members.iter().map(|_| Mutex::default()).collect();
        let stop = AtomicBool::new(false);
        let results = thread::scope(|scope| {
            let runs: Vec<_> = self
                .members
                .iter_mut()
                .zip(&told)
                .map(|(workload, told)| {
                    let stop = &stop;
                    scope.spawn(move || {
                        let result = workload.run(limit_us, TICK_US, &mut |times| tell(told, times, stop));
                        lock(told).ended = true;
                        result.map(|_| ()).map_err(|e| (workload.name().to_owned(), e))
                    })
                })
                .collect();
            let began = self.clock.mono();
            for tick in 1.. {
                self.clock.sleep_until(began.plus_us(tick * TICK_US));
                let times: Vec<Vec<f64>> = told.iter().map(|t| lock(t).times_ms.clone()).collect();
                if look(&times).is_break() || told.iter().any(|t| lock(t).ended) {
                    break;
                }
            }
            stop.store(true, Ordering::SeqCst);
            let panicked = |_| Err((String::new(), WorkloadError::Failed("a member panicked".into())));
            runs.into_iter().map(|run| run.join().unwrap_or_else(panicked)).collect::<Vec<_>>()
        });
        for result in results {
            if let Err((model, error)) = result {
                return sorted(&model, error).map(Err);
            }
        }
        Ok(Ok(()))
    }

    fn memory_bytes(&self) -> Vec<Option<u64>> {
        self.members.iter().map(|workload| workload.memory_bytes()).collect()
    }

    fn unload(&mut self) {
        for workload in &mut self.members {
            // What does not give its memory back shows at the next set.
            let _ = workload.unload();
        }
    }
}

/// What a member has told so far.
#[derive(Default)]
struct Told {
    times_ms: Vec<f64>,
    ended: bool,
}

fn lock(told: &Mutex<Told>) -> MutexGuard<'_, Told> {
    told.lock().unwrap_or_else(PoisonError::into_inner)
}

fn tell(told: &Mutex<Told>, times: &[f64], stop: &AtomicBool) -> ControlFlow<()> {
    let mut told = lock(told);
    let known = told.times_ms.len();
    told.times_ms.extend_from_slice(times.get(known..).unwrap_or_default());
    if stop.load(Ordering::SeqCst) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}
