//! The cheapest pair to merge by force, among many GPUs.
//!
//! Rule: merging costs what the GPU at that clock costs, and for each of both the weights of a way to run its models less what it costs now;
//! where the longest batch costs, that of the longer one. So for two states of room that fit together the cheapest pair is the cheapest GPU of the
//! one and the cheapest of the other, and no pairs need to be looked at. Where the longest batch costs, GPUs are kept apart by classes of their
//! longest batch, and the longer one pays for it: its partner is the cheapest of its class or a shorter one.
//! Cases: a GPU is no pair with itself. Where batches cost, both may be of one class, and the shorter is then taken as the longer: the pair
//! that is found can cost a class's width of its longest batch more than the cheapest.
//! Not done: looking at pairs one by one, see [`super::force`].
//!
//! Source: this project's.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;

use super::gpu::Gpu;
use super::pack::Packer;
use crate::policy::room::State;
use crate::policy::sorted::Sorted;

/// Classes of the longest batch at a clock.
const CLASSES: usize = 96;

/// A GPU by its number, and what it would cost elsewhere beyond what it costs now.
type Entry = (Sorted, usize);
/// The two cheapest different GPUs.
type Two = [Option<Entry>; 2];

/// All GPUs of a list.
pub struct Market<'a, 'p> {
    packer: &'a Packer<'p>,
    clocks: Vec<Clock>,
    /// By number; `None` for one that was merged.
    gpus: Vec<Option<Rc<Gpu>>>,
}

struct Clock {
    /// Shortest batch, ms, and logarithm of a class's width; 0 for one class.
    least_ms: f64,
    width: f64,
    classes: usize,
    /// By state and class: for those that pay for their own batch, and for those that do not.
    paying: Vec<Cheapest>,
    free: Vec<Cheapest>,
    /// The cheapest pair, where it is known.
    best: Option<Option<(f64, usize, usize)>>,
}

/// GPUs of which the cheapest two are asked for.
#[derive(Clone, Default)]
struct Cheapest {
    two: Two,
    rest: BinaryHeap<Reverse<Entry>>,
}

impl<'a, 'p> Market<'a, 'p> {
    /// Of these GPUs.
    pub fn new(packer: &'a Packer<'p>, gpus: &[Rc<Gpu>]) -> Self {
        let clocks = (0..packer.terms.len()).map(|clock| Clock::new(packer, clock)).collect();
        let mut market = Self { packer, clocks, gpus: Vec::new() };
        gpus.iter().for_each(|gpu| market.add(gpu));
        market
    }

    /// The pair that adds the least cost, by places in the list with the lower first, and the clock.
    pub fn cheapest(&mut self, list: &[Rc<Gpu>]) -> Option<(usize, usize, usize)> {
        let mut best: Option<(f64, usize, usize, usize)> = None;
        for clock in 0..self.clocks.len() {
            let known = self.clocks[clock].best;
            let found = known.unwrap_or_else(|| self.clocks[clock].cheapest(self.packer, clock, &self.gpus));
            self.clocks[clock].best = Some(found);
            if let Some((cost, a, b)) = found
                && best.is_none_or(|(least, ..)| cost < least)
            {
                best = Some((cost, a, b, clock));
            }
        }
        let (_, a, b, clock) = best?;
        let place = |of: usize| {
            let gpu = self.gpus[of].as_ref()?;
            list.iter().position(|g| Rc::ptr_eq(g, gpu))
        };
        let (a, b) = (place(a)?, place(b)?);
        Some((a.max(b), a.min(b), clock))
    }

    /// Two GPUs were merged to one.
    pub fn replace(&mut self, a: &Rc<Gpu>, b: &Rc<Gpu>, merged: &Rc<Gpu>) {
        let is_gone = |gpu: &Rc<Gpu>| Rc::ptr_eq(gpu, a) || Rc::ptr_eq(gpu, b);
        for gpu in &mut self.gpus {
            gpu.take_if(|g| is_gone(g));
        }
        for clock in &mut self.clocks {
            clock.best = clock
                .best
                .filter(|best| best.is_none_or(|(_, a, b)| self.gpus[a].is_some() && self.gpus[b].is_some()));
        }
        self.add(merged);
    }

    fn add(&mut self, gpu: &Rc<Gpu>) {
        let number = self.gpus.len();
        self.gpus.push(Some(gpu.clone()));
        for clock in gpu.bin.clock..self.clocks.len() {
            let per_latency = self.packer.terms[clock].per_latency;
            let of_clock = &mut self.clocks[clock];
            for way in gpu.ways(self.packer, clock) {
                let at = way.state as usize * of_clock.classes + of_clock.class(way.longest_ms);
                let free = way.weight - gpu.bin.cost;
                of_clock.free[at].push((Sorted(free), number));
                of_clock.paying[at].push((Sorted(free + per_latency * way.longest_ms), number));
                of_clock.best = None;
            }
        }
    }
}

impl Clock {
    fn new(packer: &Packer, clock: usize) -> Self {
        let models = 0..packer.problem.models.len();
        let all = || models.clone().flat_map(|m| packer.fronts(m, clock)).flatten().map(|i| i.latency_ms);
        let waits = packer.terms[clock].per_latency > 0.0;
        let least_ms = all().fold(f64::INFINITY, f64::min);
        let span = if waits { (all().fold(least_ms, f64::max) / least_ms).ln() } else { 0.0 };
        let classes = if span > 0.0 { CLASSES } else { 1 };
        let slots = vec![Cheapest::default(); packer.room.states() * classes];
        Self {
            least_ms,
            width: span / (classes as f64 - 0.5),
            classes,
            paying: slots.clone(),
            free: slots,
            best: None,
        }
    }

    fn class(&self, longest_ms: f64) -> usize {
        if self.classes == 1 {
            return 0;
        }
        (((longest_ms / self.least_ms).ln() / self.width) as usize).min(self.classes - 1)
    }

    fn cheapest(
        &mut self,
        packer: &Packer,
        clock: usize,
        gpus: &[Option<Rc<Gpu>>],
    ) -> Option<(f64, usize, usize)> {
        self.paying.iter_mut().chain(&mut self.free).for_each(|slot| slot.refresh(gpus));
        let mut best: Option<(f64, usize, usize)> = None;
        let states = packer.room.states();
        for shorter in 0..states {
            // The cheapest of each class and all shorter ones.
            let mut so_far: Two = [None; 2];
            let of_state = &self.free[shorter * self.classes..][..self.classes];
            let up_to: Vec<Two> = of_state
                .iter()
                .map(|slot| {
                    slot.two.into_iter().flatten().for_each(|entry| insert(&mut so_far, entry));
                    so_far
                })
                .collect();
            let fits = |longer: &usize| packer.room.together(*longer as State, shorter as State);
            for longer in (0..states).filter(fits) {
                let of_state = &self.paying[longer * self.classes..][..self.classes];
                for (slot, partners) in of_state.iter().zip(&up_to) {
                    for (paid, a) in slot.two.into_iter().flatten() {
                        let partner = partners.iter().flatten().find(|(_, b)| *b != a);
                        let Some((free, b)) = partner else { continue };
                        let cost = packer.terms[clock].fixed + paid.0 + free.0;
                        if best.is_none_or(|(least, ..)| cost < least) {
                            best = Some((cost, a, *b));
                        }
                    }
                }
            }
        }
        best
    }
}

impl Cheapest {
    fn push(&mut self, entry: Entry) {
        self.rest.push(Reverse(entry));
        if self.two[1].is_none_or(|second| entry < second) {
            self.put_back();
        }
    }

    fn put_back(&mut self) {
        self.rest.extend(std::mem::take(&mut self.two).into_iter().flatten().map(Reverse));
    }

    /// Finds the two cheapest that are there.
    fn refresh(&mut self, gpus: &[Option<Rc<Gpu>>]) {
        let is_there = |entry: &Entry| gpus[entry.1].is_some();
        if self.two.iter().all(|entry| entry.as_ref().is_some_and(is_there)) {
            return;
        }
        self.put_back();
        while self.two[1].is_none() {
            let Some(Reverse(entry)) = self.rest.pop() else { break };
            if is_there(&entry) {
                insert(&mut self.two, entry);
            }
        }
    }
}

/// Puts a GPU among the cheapest two, if it is; a GPU counts once.
fn insert(two: &mut Two, entry: Entry) {
    let first = two[0].filter(|first| entry >= *first);
    match first {
        Some(first) if first.1 == entry.1 => {}
        Some(_) if two[1].is_some_and(|second| second <= entry) => {}
        Some(_) => two[1] = Some(entry),
        None if two[0].is_some_and(|first| first.1 == entry.1) => two[0] = Some(entry),
        None => *two = [Some(entry), two[0]],
    }
}
