//! One set: the GPU is set, its members are loaded and work together, and each one's row is made.
//!
//! Rule: members warm up together, because each one's pace depends on the others'; power and all batch times are of one span
//! ([`super::watch`]).
//! Cases: a member that fails spoils the set, whose rows say so.

use gpumon_core::profile::{IDLE_CONTEXT, ProfileRow};
use gpumon_core::share::Share;
use gpumon_monitor::device::sim::SimDevice;

use super::crew::{Crew, Spoilt};
use super::sim::Simulated;
use super::threads::Threads;
use super::watch::Watch;
use super::{Member, Set};
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

/// Who sits where while seats do not exist side by side for all sets: a seat a workload, by place.
#[derive(Default)]
pub(super) struct Seated(Vec<(usize, Seat)>);

impl Seated {
    fn of(&self, place: usize) -> Option<&Seat> {
        self.0.iter().find(|(seated, _)| *seated == place).map(|(_, seat)| seat)
    }
}

/// Measures a set; a row a member, in order. `sim`: the simulated GPU, if it is one.
pub(super) fn measure(
    bench: &mut Bench,
    workloads: &mut [Box<dyn Workload>],
    sim: Option<&SimDevice>,
    seated: &mut Seated,
    set: &Set,
    alone: &[ProfileRow],
) -> Result<Vec<ProfileRow>, MeasureError> {
    let row = |m: &Member| bench.row(workloads.get(m.place).map_or("", |w| w.name()), &m.point);
    let mut rows: Vec<ProfileRow> = set.members.iter().map(row).collect();
    let seats = match seats(bench, workloads, seated, set, &mut rows)? {
        Ok(seats) => seats,
        Err(why) => return Ok(spoilt(rows, &why)),
    };
    let name = |place: usize| workloads.get(place).map_or("", |w| w.name());
    let ran = match sim {
        Some(device) => {
            let names = set.members.iter().map(|m| name(m.place)).collect();
            work(bench, &mut Simulated::new(names, device, bench.clock), set, &seats)?
        }
        None => {
            let mut taken: Vec<(usize, &mut Box<dyn Workload>)> = workloads
                .iter_mut()
                .enumerate()
                .filter_map(|(place, w)| Some((set.members.iter().position(|m| m.place == place)?, w)))
                .collect();
            taken.sort_by_key(|(at, _)| *at);
            let members = taken.into_iter().map(|(_, w)| w).collect();
            work(bench, &mut Threads { members, clock: bench.clock }, set, &seats)?
        }
    };
    let runs = match ran {
        Ok(runs) => runs,
        Err(why) => return Ok(spoilt(rows, &why)),
    };
    let judged = rows.into_iter().zip(runs).map(|(mut row, (run, memory))| {
        row.mem_bytes = memory.and_then(|bytes| i64::try_from(bytes).ok());
        let idle = alone.iter().find(|r| r.valid && r.model == IDLE_CONTEXT && r.frequency == row.frequency);
        judge(bench.protocol, row, &run, idle.and_then(|r| r.avg_power_draw))
    });
    Ok(judged.collect())
}

fn spoilt(rows: Vec<ProfileRow>, why: &str) -> Vec<ProfileRow> {
    let spoilt = |row: ProfileRow| ProfileRow { valid: false, reason: Some(why.into()), ..row };
    rows.into_iter().map(spoilt).collect()
}

/// Loads and runs the members; gives a run and the memory of each.
fn work(
    bench: &mut Bench,
    crew: &mut dyn Crew,
    set: &Set,
    seats: &[Seat],
) -> Spoilt<Vec<(Run, Option<u64>)>> {
    let ran = match crew.load(set, seats)? {
        Ok(()) => run(bench, crew, set.members.len())?,
        Err(why) => Err(why),
    };
    let memory = crew.memory_bytes();
    crew.unload();
    Ok(ran.map(|runs| runs.into_iter().zip(memory).collect()))
}

/// Sets the GPU; a seat a member. Where seats do not exist side by side for all sets, whoever sits elsewhere has to go before: all of them
/// where other seats are made, and else those who are not in the set or sit on another seat of it.
fn seats(
    bench: &mut Bench,
    workloads: &mut [Box<dyn Workload>],
    seated: &mut Seated,
    set: &Set,
    rows: &mut [ProfileRow],
) -> Spoilt<Vec<Seat>> {
    let stage = &mut bench.stage;
    let shares: Vec<Share> = set.members.iter().map(|m| m.point.share).collect();
    let mut ready = || {
        for (member, row) in set.members.iter().zip(rows.iter_mut()) {
            row.clock_locked = Some(stage.clock(member.point.clock)?);
            stage.limit(member.point.limit_w)?;
        }
        if !stage.stays(&shares) {
            // One that does not go shows when the seats are made.
            workloads.iter_mut().for_each(|workload| drop(workload.quit()));
            seated.0.clear();
        }
        stage.seats(&shares)
    };
    let seats = match ready() {
        Ok(seats) => seats,
        Err(e @ StageError::Point(_)) => return Ok(Err(e.to_string())),
        Err(e @ StageError::Lost(_)) => return Err(MeasureError::Stage(e)),
    };
    if !bench.stage.seats_coexist() {
        let taken: Vec<(usize, Seat)> =
            set.members.iter().map(|m| m.place).zip(seats.iter().cloned()).collect();
        let taken = Seated(taken);
        for (place, workload) in workloads.iter_mut().enumerate() {
            if seated.of(place).is_some_and(|seat| taken.of(place) != Some(seat)) {
                drop(workload.quit());
            }
        }
        *seated = taken;
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
