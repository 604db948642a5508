//! One set at work: its members in threads, the GPU's sensors read beside them.
//!
//! Rule: all members are loaded before any runs; they warm up together, because each one's pace depends on the others';
//! power and all batch times are of one span, which ends when all of them are known well enough.
//! Cases: a member that fails spoils the set, whose rows say so.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use gpumon_core::profile::{IDLE_CONTEXT, ProfileRow};
use gpumon_core::share::Share;
use gpumon_core::units::{MonoUs, US_PER_S};

use super::Set;
use crate::judge::judge;
use crate::meter::{Measured, Meter};
use crate::phases::{Run, enough, us};
use crate::protocol::{Bench, MeasureError, Protocol};
use crate::stage::{Seat, StageError};
use crate::warmth::Warmth;
use crate::workload::{Workload, WorkloadError};

/// How often members tell and are looked at.
const TICK_US: i64 = US_PER_S / 20;

/// Has every workload start what it needs for all of its seats in these sets.
pub(super) fn prepare(
    bench: &mut Bench,
    workloads: &mut [Box<dyn Workload>],
    sets: &[Set],
) -> Result<(), MeasureError> {
    if !bench.stage.seats_coexist() {
        return Ok(());
    }
    for (place, workload) in workloads.iter_mut().enumerate() {
        let members = sets.iter().flat_map(|set| &set.members).filter(|m| m.place == place);
        let mut shares: Vec<Share> = members.map(|m| m.point.share).collect();
        shares.sort();
        shares.dedup();
        let seats: Result<Vec<Seat>, _> = shares.into_iter().map(|share| bench.stage.seat(share)).collect();
        let seats = seats.map_err(MeasureError::Stage)?;
        if let Err(error @ WorkloadError::Lost(_)) = workload.prepare(&seats) {
            return Err(MeasureError::Workload { model: workload.name().into(), error });
        }
    }
    Ok(())
}

/// Measures a set; a row a member, in order.
pub(super) fn measure(
    bench: &mut Bench,
    workloads: &mut [Box<dyn Workload>],
    set: &Set,
    alone: &[ProfileRow],
) -> Result<Vec<ProfileRow>, MeasureError> {
    let mut rows: Vec<ProfileRow> = set
        .members
        .iter()
        .map(|m| bench.row(workloads.get(m.place).map_or("", |w| w.name()), &m.point))
        .collect();
    let mut taken: Vec<(usize, &mut Box<dyn Workload>)> = workloads
        .iter_mut()
        .enumerate()
        .filter_map(|(place, w)| Some((set.members.iter().position(|m| m.place == place)?, w)))
        .collect();
    taken.sort_by_key(|(at, _)| *at);
    let mut members: Vec<&mut Box<dyn Workload>> = taken.into_iter().map(|(_, w)| w).collect();
    let ran = match set_up(bench, &mut members, set, &mut rows)? {
        Ok(()) => run(bench, &mut members)?,
        Err(why) => Err(why),
    };
    let memory: Vec<Option<u64>> = members.iter().map(|w| w.memory_bytes()).collect();
    for workload in &mut members {
        // What does not give its memory back shows at the next set.
        let _ = workload.unload();
    }
    let runs = match ran {
        Ok(runs) => runs,
        Err(why) => {
            let spoilt = |row: ProfileRow| ProfileRow { valid: false, reason: Some(why.clone()), ..row };
            return Ok(rows.into_iter().map(spoilt).collect());
        }
    };
    let judged = rows.into_iter().zip(runs).zip(memory).map(|((mut row, run), memory)| {
        row.mem_bytes = memory.and_then(|bytes| i64::try_from(bytes).ok());
        let idle = alone.iter().find(|r| r.valid && r.model == IDLE_CONTEXT && r.frequency == row.frequency);
        judge(bench.protocol, row, &run, idle.and_then(|r| r.avg_power_draw))
    });
    Ok(judged.collect())
}

/// Sets the GPU and loads all members, in threads of their own; the inner error spoils the set.
fn set_up(
    bench: &mut Bench,
    members: &mut [&mut Box<dyn Workload>],
    set: &Set,
    rows: &mut [ProfileRow],
) -> Result<Result<(), String>, MeasureError> {
    let mut seats = Vec::new();
    for (member, row) in set.members.iter().zip(rows) {
        let stage = &mut bench.stage;
        let seat = stage.clock(member.point.clock).and_then(|locked| {
            row.clock_locked = Some(locked);
            stage.limit(member.point.limit_w)?;
            stage.seat(member.point.share)
        });
        match seat {
            Ok(seat) => seats.push(seat),
            Err(e @ StageError::Point(_)) => return Ok(Err(e.to_string())),
            Err(e @ StageError::Lost(_)) => return Err(MeasureError::Stage(e)),
        }
    }
    for (workload, seat) in members.iter_mut().zip(&seats) {
        // A process belongs to the thread that starts it and has to outlive the set's threads.
        if let Err(e) = workload.prepare(std::slice::from_ref(seat)) {
            return sorted(workload.name(), e).map(Err);
        }
    }
    let loaded: Vec<(String, Result<(), WorkloadError>)> = thread::scope(|scope| {
        let loads: Vec<_> = members
            .iter_mut()
            .zip(&set.members)
            .zip(&seats)
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

/// Whether an error spoils the set, in words, or all that follow.
fn sorted(model: &str, error: WorkloadError) -> Result<String, MeasureError> {
    match error {
        WorkloadError::Lost(_) => Err(MeasureError::Workload { model: model.into(), error }),
        error => Ok(format!("`{model}` {error}")),
    }
}

/// What a member has told so far.
#[derive(Default)]
struct Told {
    times_ms: Vec<f64>,
    ended: bool,
}

/// Runs loaded members until all is known; a run a member. The inner error spoils the set.
fn run(
    bench: &mut Bench,
    members: &mut [&mut Box<dyn Workload>],
) -> Result<Result<Vec<Run>, String>, MeasureError> {
    let p = bench.protocol;
    let limit_us = us(p.warmup_max_s + p.settle_s + p.stretch_max_s.max(p.measure_max_s));
    let told: Vec<Mutex<Told>> = members.iter().map(|_| Mutex::default()).collect();
    let stop = AtomicBool::new(false);
    let (watched, results) = thread::scope(|scope| {
        let runs: Vec<_> = members
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
        let watched = watch(bench, p, &told);
        stop.store(true, Ordering::SeqCst);
        let panicked = |_| Err((String::new(), WorkloadError::Failed("a member panicked".into())));
        let results: Vec<_> = runs.into_iter().map(|run| run.join().unwrap_or_else(panicked)).collect();
        (watched, results)
    });
    for result in results {
        if let Err((model, error)) = result {
            return sorted(&model, error).map(Err);
        }
    }
    watched.map_err(MeasureError::Gpu)
}

fn lock(told: &Mutex<Told>) -> std::sync::MutexGuard<'_, Told> {
    told.lock().unwrap_or_else(PoisonError::into_inner)
}

fn tell(told: &Mutex<Told>, times: &[f64], stop: &AtomicBool) -> ControlFlow<()> {
    let mut told = lock(told);
    let known = told.times_ms.len();
    told.times_ms.extend_from_slice(times.get(known..).unwrap_or_default());
    if stop.load(Ordering::SeqCst) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

type Watched = Result<Result<Vec<Run>, String>, gpumon_monitor::device::ReadError>;

/// Waits until all are warm, settles, and measures until everything is known.
fn watch(bench: &Bench, p: &Protocol, told: &[Mutex<Told>]) -> Watched {
    let (clock, began) = (bench.clock, bench.clock.mono());
    let copies = || told.iter().map(|t| lock(t).times_ms.clone()).collect::<Vec<_>>();
    let ended = || told.iter().any(|t| lock(t).ended);
    let mut ticks = 0;
    let mut tick = || -> MonoUs {
        ticks += 1;
        clock.sleep_until(began.plus_us(ticks * TICK_US));
        clock.mono()
    };
    let mut warmths: Vec<(Warmth, bool)> = told.iter().map(|_| (Warmth::new(began), false)).collect();
    let mut settled = false;
    loop {
        let now = tick();
        for ((warmth, warm), times) in warmths.iter_mut().zip(copies()) {
            *warm |= warmth.is_warm(p, now, &times);
        }
        settled |= warmths.iter().all(|(_, warm)| *warm);
        if settled || now.since_us(began) >= us(p.warmup_max_s) {
            break;
        }
        if ended() {
            return Ok(Err("a member ended before it was warm".into()));
        }
    }
    let until = clock.mono().plus_us(us(p.settle_s));
    while tick() < until {}
    let mut meter = Meter::start(bench.device, clock);
    let (measuring, from) = (clock.mono(), copies().iter().map(Vec::len).collect::<Vec<_>>());
    loop {
        let now = tick();
        meter.tick();
        let times = copies();
        let span_s = now.since_us(measuring) as f64 / US_PER_S as f64;
        let known = |(times, from): (&Vec<f64>, &usize)| {
            enough(p, span_s, times.get(*from..).unwrap_or_default(), &meter)
        };
        if times.iter().zip(&from).all(known) {
            let measured: Measured = meter.finish()?;
            let run = |(times, from): (Vec<f64>, usize)| Run {
                times_ms: times.get(from..).unwrap_or_default().to_vec(),
                measured: measured.clone(),
                settled,
            };
            return Ok(Ok(times.into_iter().zip(from).map(run).collect()));
        }
        if ended() {
            return Ok(Err("a member ended while the set was measured".into()));
        }
    }
}
