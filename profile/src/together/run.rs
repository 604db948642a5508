//! One set: the GPU is set, its members are loaded and work together, and each one's row is made.
//!
//! Rule: members warm up together, because each one's pace depends on the others'; power and all batch times are of one span
//! ([`super::watch`]).
//! Cases: a member that fails spoils the set, whose rows say so.

use gpumon_core::profile::{IDLE_CONTEXT, ProfileRow};
use gpumon_core::share::Share;
use gpumon_monitor::device::sim::SimDevice;

use super::Set;
use super::crew::{Crew, Spoilt};
use super::sim::Simulated;
use super::threads::Threads;
use super::watch::Watch;
use crate::judge::judge;
use crate::phases::Run;
use crate::protocol::{Bench, MeasureError};
use crate::stage::{Seat, StageError};
use crate::workload::{Workload, WorkloadError};

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

/// Measures a set; a row a member, in order. `sim`: the simulated GPU, if it is one.
pub(super) fn measure(
    bench: &mut Bench,
    workloads: &mut [Box<dyn Workload>],
    sim: Option<&SimDevice>,
    set: &Set,
    alone: &[ProfileRow],
) -> Result<Vec<ProfileRow>, MeasureError> {
    let name = |place: usize| workloads.get(place).map_or("", |w| w.name());
    let mut rows: Vec<ProfileRow> = set.members.iter().map(|m| bench.row(name(m.place), &m.point)).collect();
    let (ran, memory) = match sim {
        Some(device) => {
            let names = set.members.iter().map(|m| name(m.place)).collect();
            work(bench, &mut Simulated::new(names, device, bench.clock), set, &mut rows)?
        }
        None => {
            let mut taken: Vec<(usize, &mut Box<dyn Workload>)> = workloads
                .iter_mut()
                .enumerate()
                .filter_map(|(place, w)| Some((set.members.iter().position(|m| m.place == place)?, w)))
                .collect();
            taken.sort_by_key(|(at, _)| *at);
            let members = taken.into_iter().map(|(_, w)| w).collect();
            work(bench, &mut Threads { members, clock: bench.clock }, set, &mut rows)?
        }
    };
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

/// Sets the GPU, loads and runs the members; gives a run and the memory of each.
fn work(
    bench: &mut Bench,
    crew: &mut dyn Crew,
    set: &Set,
    rows: &mut [ProfileRow],
) -> Result<(Result<Vec<Run>, String>, Vec<Option<u64>>), MeasureError> {
    let loaded = match seats(bench, set, rows)? {
        Ok(seats) => crew.load(set, &seats)?,
        Err(why) => Err(why),
    };
    let ran = match loaded {
        Ok(()) => run(bench, crew, set.members.len())?,
        Err(why) => Err(why),
    };
    let memory = crew.memory_bytes();
    crew.unload();
    Ok((ran, memory))
}

/// Sets the GPU; a seat a member.
fn seats(bench: &mut Bench, set: &Set, rows: &mut [ProfileRow]) -> Spoilt<Vec<Seat>> {
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
    Ok(Ok(seats))
}

/// Runs loaded members until all is known.
fn run(bench: &mut Bench, crew: &mut dyn Crew, members: usize) -> Spoilt<Vec<Run>> {
    let mut watch = Watch::new(bench.protocol, bench.device, bench.clock, members);
    let limit_us = watch.limit_us();
    match crew.run(limit_us, &mut |times| watch.tick(times))? {
        Ok(()) => watch.finish().map_err(MeasureError::Gpu),
        Err(why) => Ok(Err(why)),
    }
}
