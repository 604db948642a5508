//! Step 4: emptying GPUs into others.
//!
//! Rule: each GPU in turn is emptied into the first of the receivers where that is cheaper than both apart. A receiver keeps its clock and
//! its configurations; the moved models are configured anew at that clock. First the GPUs follow each other from the top of the list
//! with receivers from the bottom up, then by swing with receivers from the top down.
//! Cases: GPUs in full use do not receive. An emptied GPU is taken off the list after the walk.
//! Speed: what a GPU asks of a receiver is known by clock and state of room ([`Gpu::takers`]), so most GPUs and receivers are passed over by
//! a few comparisons. Lists that follow each other have most GPUs in common, so what came of joining two is kept from one to the next.
//! Not done: moving single models.
//!
//! Source: EnerTune (SOSP'26), the planner of its published artifact.

use std::collections::HashMap;
use std::rc::Rc;

use super::gpu::Gpu;
use super::pack::Packer;

/// Empties one list after the other.
pub struct Emptying<'a, 'p> {
    packer: &'a Packer<'p>,
    /// What was joined in the last list and in this one, by the two GPUs; they are kept, so that no other has their address.
    before: HashMap<Joint, Joined>,
    now: HashMap<Joint, Joined>,
}

/// An emptied GPU and its receiver.
type Joint = (*const Gpu, *const Gpu);

struct Joined {
    _of: [Rc<Gpu>; 2],
    gpu: Rc<Gpu>,
}

impl<'a, 'p> Emptying<'a, 'p> {
    /// Of lists of this problem.
    pub fn new(packer: &'a Packer<'p>) -> Self {
        Self { packer, before: HashMap::new(), now: HashMap::new() }
    }

    /// The list after both passes.
    pub fn emptied(&mut self, gpus: &[Rc<Gpu>]) -> Vec<Rc<Gpu>> {
        self.before = std::mem::take(&mut self.now);
        let mut gpus = gpus.to_vec();
        let down: Vec<usize> = (0..gpus.len()).collect();
        let up: Vec<usize> = (0..gpus.len()).rev().collect();
        self.pass(&mut gpus, &down, &up);
        let mut by_swing: Vec<usize> = (0..gpus.len()).collect();
        by_swing.sort_by(|&a, &b| gpus[b].swing_w.total_cmp(&gpus[a].swing_w));
        let down: Vec<usize> = (0..gpus.len()).collect();
        self.pass(&mut gpus, &by_swing, &down);
        gpus
    }

    /// Each of `current` in turn is emptied into the first of `working` where that is cheaper.
    fn pass(&mut self, gpus: &mut Vec<Rc<Gpu>>, current: &[usize], working: &[usize]) {
        let packer = self.packer;
        let mut seats = Seats::new(packer, gpus);
        for &from in current {
            let Some(takers) = gpus[from].takers(packer) else { continue };
            let own = seats.leave(from);
            let among = if seats.any_takes(takers) { working } else { &[] };
            let likely = among.iter().copied().filter(|&into| seats.takes(into, takers));
            let joined =
                likely.into_iter().find_map(|into| Some((into, self.joined(&gpus[from], &gpus[into])?)));
            match joined {
                Some((into, gpu)) => {
                    seats.leave(into);
                    seats.enter(into, Some(seats.of(&gpu)));
                    gpus[into] = gpu;
                }
                None => seats.enter(from, own),
            }
        }
        let mut seats = seats.of_gpu.iter();
        gpus.retain(|_| seats.next().is_none_or(Option::is_some));
    }

    /// The receiver with the models of the other too, if that is cheaper.
    fn joined(&mut self, from: &Rc<Gpu>, into: &Rc<Gpu>) -> Option<Rc<Gpu>> {
        let joint = (Rc::as_ptr(from), Rc::as_ptr(into));
        if let Some(joined) = self.before.remove(&joint) {
            let gpu = joined.gpu.clone();
            self.now.insert(joint, joined);
            return Some(gpu);
        }
        let receiver = &into.bin;
        let bin = self.packer.cheapest(receiver.clock, &receiver.items, &from.bin.models(), u8::MAX)?;
        if bin.cost >= receiver.cost + from.bin.cost {
            return None;
        }
        let gpu = Rc::new(Gpu::new(self.packer, bin));
        self.now.insert(joint, Joined { _of: [from.clone(), into.clone()], gpu: gpu.clone() });
        Some(gpu)
    }
}

/// What a GPU asks about a receiver.
#[derive(Clone, Copy)]
struct Seat {
    /// Clock and state of room.
    kind: usize,
    longest_ms: f64,
}

/// Which receivers there are.
struct Seats {
    states: usize,
    /// `None` for a GPU that was emptied.
    of_gpu: Vec<Option<Seat>>,
    /// By kind how many there are, and a longest batch that none of them exceeds, ms.
    kinds: Vec<(usize, f64)>,
}

impl Seats {
    fn new(packer: &Packer, gpus: &[Rc<Gpu>]) -> Self {
        let states = packer.room.states();
        let kinds = vec![(0, f64::NEG_INFINITY); states * packer.terms.len()];
        let mut seats = Self { states, of_gpu: vec![None; gpus.len()], kinds };
        for (at, gpu) in gpus.iter().enumerate() {
            seats.enter(at, Some(seats.of(gpu)));
        }
        seats
    }

    fn of(&self, gpu: &Gpu) -> Seat {
        let kind = gpu.bin.clock * self.states + gpu.bin.state as usize;
        Seat { kind, longest_ms: gpu.longest_ms }
    }

    fn enter(&mut self, at: usize, seat: Option<Seat>) {
        if let Some(Seat { kind, longest_ms }) = seat {
            let (count, most_ms) = &mut self.kinds[kind];
            *most_ms = if *count == 0 { longest_ms } else { most_ms.max(longest_ms) };
            *count += 1;
        }
        self.of_gpu[at] = seat;
    }

    fn leave(&mut self, at: usize) -> Option<Seat> {
        let seat = self.of_gpu[at].take();
        if let Some(seat) = seat {
            self.kinds[seat.kind].0 -= 1;
        }
        seat
    }

    fn takes(&self, at: usize, takers: &[f64]) -> bool {
        self.of_gpu[at].is_some_and(|seat| takers[seat.kind] <= seat.longest_ms)
    }

    /// Whether there may be one that takes.
    fn any_takes(&self, takers: &[f64]) -> bool {
        let takes = |((count, most_ms), taker): (&(usize, f64), &f64)| *count > 0 && taker <= most_ms;
        self.kinds.iter().zip(takers).any(takes)
    }
}
