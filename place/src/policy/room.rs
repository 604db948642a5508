//! What fits on one GPU together, as states of what is taken.
//!
//! Rule: a size is a whole number (compute slices under MIG, ten-millionths of a percent under MPS); taking one leads from a
//! state to another, or there is no room. Under MIG two sets of instances are the same state when whatever fits beside one
//! fits beside the other, so there are about a dozen; under MPS a state is the sum.
//! Cases: a state is *roomier* than another when all that fits beside the other fits beside it.
//! Not done: where instances start; the plan finds starts.
//!
//! Source: legal sets from [`gpumon_core::geometry`].

use std::collections::HashMap;

use gpumon_core::geometry::MigGeometry;
use gpumon_core::workload::Sharing;

use crate::candidate::Share;

/// How finely percents are counted: to less than the checker sees.
const PER_PERCENT: f64 = 1e7;
/// A whole GPU under MPS.
const WHOLE: u32 = 1_000_000_000;
/// In how many parts a GPU is thought to be cut where rents are summed up under MPS.
const PARTS: usize = 1000;

/// A state of a GPU: what is taken.
pub type State = u32;

/// Which sizes fit together.
#[derive(Debug)]
pub enum Room {
    /// By state and size the next state; by two states whether the first is roomier, and whether what both take fits together.
    Slices { start: State, next: Vec<Vec<Option<State>>>, roomier: Vec<Vec<bool>>, together: Vec<Vec<bool>> },
    /// Percents up to 100.
    Percents,
}

impl Room {
    /// Of this kind of sharing.
    pub fn new(sharing: Sharing, geometry: &MigGeometry) -> Self {
        match sharing {
            Sharing::Mig => {
                let sizes: Vec<u8> = geometry.profiles.iter().map(|p| p.slices).collect();
                Self::of_sizes(&sizes, |set| geometry.place(set).is_some())
            }
            Sharing::Mps | Sharing::Green => Self::Percents,
        }
    }

    /// Of a few sizes and of what fits together: whatever leaves out or shrinks a size of a set that fits must fit too.
    pub fn of_sizes(sizes: &[u8], fits: impl Fn(&[u8]) -> bool) -> Self {
        slices(sizes, &fits)
    }

    /// The size of a share; `None` for a share of the other kind.
    pub fn size(&self, share: Share) -> Option<u32> {
        match (self, share) {
            (Self::Slices { .. }, Share::Slices(n)) => Some(u32::from(n)),
            (Self::Percents, Share::Percent(pct)) => Some((pct * PER_PERCENT) as u32),
            _ => None,
        }
    }

    /// Nothing is taken.
    pub fn start(&self) -> State {
        match self {
            Self::Slices { start, .. } => *start,
            Self::Percents => 0,
        }
    }

    /// The state after taking a size; `None` without room for it.
    pub fn next(&self, state: State, size: u32) -> Option<State> {
        match self {
            Self::Slices { next, .. } => *next[state as usize].get(size as usize)?,
            Self::Percents => state.checked_add(size).filter(|sum| *sum <= WHOLE),
        }
    }

    /// Whether there is no room for anything.
    pub fn is_full(&self, state: State) -> bool {
        match self {
            Self::Slices { next, .. } => next[state as usize].iter().all(Option::is_none),
            Self::Percents => state >= WHOLE,
        }
    }

    /// Whether all that fits beside `b` fits beside `a`.
    pub fn roomier(&self, a: State, b: State) -> bool {
        match self {
            Self::Slices { roomier, .. } => roomier[a as usize][b as usize],
            Self::Percents => a <= b,
        }
    }

    /// Whether what two GPUs take fits on one.
    pub fn together(&self, a: State, b: State) -> bool {
        match self {
            Self::Slices { together, .. } => together[a as usize][b as usize],
            Self::Percents => a.checked_add(b).is_some_and(|sum| sum <= WHOLE),
        }
    }

    /// How many states there are under MIG; under MPS they have no numbers.
    pub fn states(&self) -> usize {
        match self {
            Self::Slices { next, .. } => next.len(),
            Self::Percents => 0,
        }
    }

    /// Whether an instance of size `a` stands wherever one of size `b` does.
    pub fn replaces(&self, a: u32, b: u32) -> bool {
        match self {
            Self::Slices { next, .. } => (0..next.len() as State).all(|state| {
                let after_b = self.next(state, b);
                after_b.is_none_or(|b| self.next(state, a).is_some_and(|a| self.roomier(a, b)))
            }),
            Self::Percents => a <= b,
        }
    }

    /// The set of these sizes, each as often as one likes, that is worth the most and fits: its worth, and how often each size
    /// is in it. Under MPS sizes are rounded down to thousandths of a GPU first, so the worth is never too small; a size below one
    /// thousandth counts as one.
    pub fn dearest(&self, sizes: &[u32], worth: &[f64]) -> (f64, Vec<f64>) {
        let mut counts = vec![0.0; sizes.len()];
        let best = match self {
            Self::Slices { start, next, .. } => {
                // Taking something leads to a state that was numbered before.
                let mut most = vec![(0.0, None); next.len()];
                for state in 0..next.len() {
                    for (i, &size) in sizes.iter().enumerate() {
                        let Some(after) = self.next(state as State, size) else { continue };
                        let sum = worth[i] + most[after as usize].0;
                        if sum > most[state].0 {
                            most[state] = (sum, Some((i, after)));
                        }
                    }
                }
                let mut state = *start;
                while let Some((i, after)) = most[state as usize].1 {
                    counts[i] += 1.0;
                    state = after;
                }
                most[*start as usize].0
            }
            Self::Percents => {
                let parts = |size: u32| ((size as usize * PARTS) / WHOLE as usize).max(1);
                let mut most: Vec<(f64, Option<usize>)> = vec![(0.0, None); PARTS + 1];
                for room in 1..=PARTS {
                    for (i, &size) in sizes.iter().enumerate().filter(|(_, s)| parts(**s) <= room) {
                        let sum = worth[i] + most[room - parts(size)].0;
                        if sum > most[room].0 {
                            most[room] = (sum, Some(i));
                        }
                    }
                }
                let mut room = PARTS;
                while let Some(i) = most[room].1 {
                    counts[i] += 1.0;
                    room -= parts(sizes[i]);
                }
                most[PARTS].0
            }
        };
        (best, counts)
    }
}

fn slices(sizes: &[u8], fits: &dyn Fn(&[u8]) -> bool) -> Room {
    let mut numbering = Numbering { fits, sizes, of_set: HashMap::new(), of_nexts: HashMap::new() };
    let start = numbering.state(&[]);
    let width = usize::from(sizes.iter().copied().max().unwrap_or(0)) + 1;
    let mut next = vec![vec![None; width]; numbering.of_nexts.len()];
    for (nexts, state) in &numbering.of_nexts {
        for (&size, after) in numbering.sizes.iter().zip(nexts) {
            next[*state as usize][usize::from(size)] = *after;
        }
    }
    let mut roomier = vec![vec![false; next.len()]; next.len()];
    for a in 0..next.len() {
        for b in 0..next.len() {
            roomier[a][b] = (0..width).all(|size| match (next[a][size], next[b][size]) {
                (_, None) => true,
                (None, Some(_)) => false,
                (Some(a), Some(b)) => roomier[a as usize][b as usize],
            });
        }
    }
    // One set of sizes for each state; what holds of it holds of all that leave the same room.
    let mut sets: Vec<Vec<usize>> = vec![Vec::new(); next.len()];
    let mut open = vec![start];
    while let Some(state) = open.pop() {
        for (size, after) in next[state as usize].iter().enumerate() {
            let Some(after) = after.filter(|a| sets[*a as usize].is_empty()) else { continue };
            sets[after as usize] = sets[state as usize].iter().copied().chain([size]).collect();
            open.push(after);
        }
    }
    let walk = |from: usize, set: &[usize]| {
        set.iter().try_fold(from as State, |state, &size| next[state as usize][size]).is_some()
    };
    let together = (0..next.len()).map(|a| sets.iter().map(|set| walk(a, set)).collect()).collect();
    Room::Slices { start, next, roomier, together }
}

/// Gives sets that leave the same room the same number, fuller ones first.
struct Numbering<'a> {
    fits: &'a dyn Fn(&[u8]) -> bool,
    sizes: &'a [u8],
    of_set: HashMap<Vec<u8>, State>,
    of_nexts: HashMap<Vec<Option<State>>, State>,
}

impl Numbering<'_> {
    fn state(&mut self, set: &[u8]) -> State {
        if let Some(state) = self.of_set.get(set) {
            return *state;
        }
        let mut nexts = Vec::new();
        for &size in self.sizes {
            let mut larger: Vec<u8> = set.iter().copied().chain([size]).collect();
            larger.sort_unstable();
            let legal = (self.fits)(&larger);
            nexts.push(legal.then(|| self.state(&larger)));
        }
        let fresh = self.of_nexts.len() as State;
        let state = *self.of_nexts.entry(nexts).or_insert(fresh);
        self.of_set.insert(set.to_vec(), state);
        state
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpumon_core::geometry::SEVEN_SLICES;
    use proptest::prelude::*;

    fn walk(room: &Room, sizes: &[u8]) -> Option<State> {
        sizes.iter().try_fold(room.start(), |state, &size| room.next(state, size.into()))
    }

    proptest! {
        #[test]
        fn states_say_what_the_geometry_says(sizes in proptest::collection::vec(1u8..=7, 0..9)) {
            let room = Room::new(Sharing::Mig, &SEVEN_SLICES);
            prop_assert_eq!(walk(&room, &sizes).is_some(), SEVEN_SLICES.place(&sizes).is_some());
        }

        #[test]
        fn sets_fit_together_when_their_union_does(
            a in proptest::collection::vec(1u8..=7, 0..6),
            b in proptest::collection::vec(1u8..=7, 0..6),
        ) {
            let room = Room::new(Sharing::Mig, &SEVEN_SLICES);
            if let (Some(of_a), Some(of_b)) = (walk(&room, &a), walk(&room, &b)) {
                let both: Vec<u8> = a.iter().chain(&b).copied().collect();
                prop_assert_eq!(room.together(of_a, of_b), SEVEN_SLICES.place(&both).is_some());
            }
        }

        #[test]
        fn the_dearest_set_is_found(worth in proptest::collection::vec(0.0f64..10.0, 5)) {
            let sizes = [1u32, 2, 3, 4, 7];
            let room = Room::new(Sharing::Mig, &SEVEN_SLICES);
            let (best, counts) = room.dearest(&sizes, &worth);
            let mut most = 0.0f64;
            for n in 0..8u32.pow(4) {
                let counts = [n % 8, n / 8 % 8, n / 64 % 8, n / 512];
                let set: Vec<u8> =
                    sizes.iter().zip(counts).flat_map(|(s, n)| vec![*s as u8; n as usize]).collect();
                if set.iter().map(|s| u32::from(*s)).sum::<u32>() <= 7 && SEVEN_SLICES.place(&set).is_some() {
                    most = most.max(counts.iter().zip(&worth).map(|(n, w)| f64::from(*n) * w).sum());
                }
            }
            let most = most.max(worth[4]);
            prop_assert!((best - most).abs() < 1e-9, "{} {}", best, most);
            let sum: f64 = counts.iter().zip(&worth).map(|(n, w)| n * w).sum();
            prop_assert!((best - sum).abs() < 1e-9);
        }
    }

    #[test]
    fn three_and_three_leave_nothing() {
        let room = Room::new(Sharing::Mig, &SEVEN_SLICES);
        assert_eq!(walk(&room, &[3, 3]), walk(&room, &[7]), "a free slice that nothing can use");
        assert_ne!(walk(&room, &[3]), walk(&room, &[2, 1]));
        let (full, half) = (walk(&room, &[4, 3]).unwrap(), walk(&room, &[4]).unwrap());
        assert!(room.is_full(full) && !room.is_full(half));
        assert!(room.roomier(half, full) && !room.roomier(full, half));
        assert!((1..=4).all(|a| room.replaces(a, 4)) && !room.replaces(4, 3));
    }

    #[test]
    fn percents_sum_to_a_hundred() {
        let room = Room::new(Sharing::Mps, &SEVEN_SLICES);
        let seventh = room.size(Share::Percent(100.0 / 7.0)).unwrap();
        let seven = (0..7).try_fold(room.start(), |state, _| room.next(state, seventh)).unwrap();
        assert!(room.is_full(WHOLE) && !room.is_full(seven));
        assert!(room.next(seven, seventh).is_none() && room.roomier(seven - 1, seven));
        assert_eq!(room.dearest(&[WHOLE / 2, WHOLE / 4], &[5.0, 3.0]), (12.0, vec![0.0, 4.0]));
        assert_eq!(room.size(Share::Slices(1)), None);
    }
}
