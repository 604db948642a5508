//! Step 4: emptying GPUs into others.
//!
//! Rule: each GPU in turn is emptied into the first of the receivers where that is cheaper than both apart. A receiver keeps its clock and
//! its configurations; the moved models are configured anew at that clock. First the GPUs follow each other from the top of the list
//! with receivers from the bottom up, then by swing with receivers from the top down.
//! Cases: GPUs in full use do not receive. An emptied GPU is taken off the list after the walk.
//! Speed: what a GPU asks of a receiver is known by clock and state of room ([`Gpu::takers`]), so most are passed over by one comparison.
//! Not done: moving single models.
//!
//! Source: EnerTune (SOSP'26), the planner of its published artifact.

use std::rc::Rc;

use super::gpu::Gpu;
use super::pack::Packer;

/// The list after both passes.
pub fn emptied(packer: &Packer, gpus: &[Rc<Gpu>]) -> Vec<Rc<Gpu>> {
    let mut gpus = gpus.to_vec();
    let down: Vec<usize> = (0..gpus.len()).collect();
    let up: Vec<usize> = (0..gpus.len()).rev().collect();
    empty_into(packer, &mut gpus, &down, &up);
    let mut by_swing: Vec<usize> = (0..gpus.len()).collect();
    by_swing.sort_by(|&a, &b| gpus[b].swing_w.total_cmp(&gpus[a].swing_w));
    let down: Vec<usize> = (0..gpus.len()).collect();
    empty_into(packer, &mut gpus, &by_swing, &down);
    gpus
}

/// One pass: each of `current` in turn is emptied into the first of `working` where that is cheaper.
fn empty_into(packer: &Packer, gpus: &mut Vec<Rc<Gpu>>, current: &[usize], working: &[usize]) {
    let states = packer.room.states();
    let seat = |gpu: &Gpu| Seat {
        kind: gpu.bin.clock * states + gpu.bin.state as usize,
        longest_ms: gpu.longest_ms,
    };
    let mut seats: Vec<Option<Seat>> = gpus.iter().map(|gpu| Some(seat(gpu))).collect();
    for &from in current {
        let Some(takers) = gpus[from].takers(packer) else { continue };
        let moved = gpus[from].bin.models();
        let likely = working
            .iter()
            .copied()
            .filter(|&into| into != from && seats[into].is_some_and(|s| takers[s.kind] <= s.longest_ms));
        let joined = likely.into_iter().find_map(|into| {
            let receiver = &gpus[into].bin;
            let bin = packer.cheapest(receiver.clock, &receiver.items, &moved, u8::MAX)?;
            (bin.cost < receiver.cost + gpus[from].bin.cost).then_some((into, bin))
        });
        if let Some((into, bin)) = joined {
            let gpu = Gpu::new(packer, bin);
            seats[into] = Some(seat(&gpu));
            gpus[into] = Rc::new(gpu);
            seats[from] = None;
        }
    }
    let mut seats = seats.iter();
    gpus.retain(|_| seats.next().is_none_or(Option::is_some));
}

/// What a GPU asks about a receiver.
#[derive(Clone, Copy)]
struct Seat {
    /// Clock and state of room.
    kind: usize,
    longest_ms: f64,
}
