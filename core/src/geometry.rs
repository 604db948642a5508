//! Which MIG instances fit on one GPU together, and where.
//!
//! Rule: a GPU has memory slots; an instance of a size may start only at certain slots and covers a
//! fixed run of them; two instances never overlap. Compute slices need not be counted apart: on the
//! GPUs below the legal starts already keep their sum within seven.
//!
//! A profile's name has the memory of the instance in it, so it depends on how much the whole GPU has ([`profile_name`]).
//!
//! Source: NVIDIA MIG User Guide, "MIG device partitioning", placements as `nvidia-smi mig -lgipp`
//! prints them for A100, H100 and H200 (the same table on all three); names from its "Supported MIG Profiles" and from the
//! configurations that come with NVIDIA's mig-parted.
//! Not covered: the profiles with media extensions (`+me`, `.gfx`), which share these placements, and those with twice the
//! memory (`1g.20gb` of an A100 80GB).

/// One MIG instance size: how much it takes and where it may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MigProfile {
    /// Compute slices, of seven.
    pub slices: u8,
    /// Memory slots covered, of eight.
    pub memory_slots: u8,
    /// Slots at which an instance may start, ascending.
    pub starts: &'static [u8],
}

/// The MIG geometry of one kind of GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MigGeometry {
    /// Compute slices of the whole GPU.
    pub compute_slices: u8,
    /// Memory slots of the whole GPU.
    pub memory_slots: u8,
    /// Instance sizes, smallest first.
    pub profiles: &'static [MigProfile],
}

/// A100, H100 and H200: seven compute slices over eight memory slots.
pub const SEVEN_SLICES: MigGeometry = MigGeometry {
    compute_slices: 7,
    memory_slots: 8,
    profiles: &[
        MigProfile { slices: 1, memory_slots: 1, starts: &[0, 1, 2, 3, 4, 5, 6] },
        MigProfile { slices: 2, memory_slots: 2, starts: &[0, 2, 4] },
        MigProfile { slices: 3, memory_slots: 4, starts: &[0, 4] },
        MigProfile { slices: 4, memory_slots: 4, starts: &[0] },
        MigProfile { slices: 7, memory_slots: 8, starts: &[0] },
    ],
};

/// Kinds of GPU, how much memory one can have (GB), and what the names of its profiles say of theirs (GB), in the order
/// of [`SEVEN_SLICES`].
const NAMED_MEMORY: &[(&str, u32, [u32; 5])] = &[
    ("a100", 40, [5, 10, 20, 20, 40]),
    ("a100", 80, [10, 20, 40, 40, 80]),
    ("h100", 80, [10, 20, 40, 40, 80]),
    ("h100", 94, [12, 24, 47, 47, 94]),
    ("h200", 141, [18, 35, 71, 71, 141]),
];

/// How much memory a GPU of this kind can have, GB; empty for a kind that is not known.
pub fn memory_sizes_gb(kind: &str) -> Vec<u32> {
    NAMED_MEMORY.iter().filter(|(k, ..)| *k == kind).map(|(_, gb, _)| *gb).collect()
}

/// NVIDIA's name of the profile with this many compute slices on a GPU with this much memory: `3g.71gb`.
pub fn profile_name(kind: &str, memory_gb: u32, slices: u8) -> Option<String> {
    let (.., named) = NAMED_MEMORY.iter().find(|(k, gb, _)| (*k, *gb) == (kind, memory_gb))?;
    let at = SEVEN_SLICES.profiles.iter().position(|p| p.slices == slices)?;
    Some(format!("{slices}g.{}gb", named[at]))
}

impl MigGeometry {
    /// The profile with this many compute slices, if the GPU has one.
    pub fn profile(&self, slices: u8) -> Option<&MigProfile> {
        self.profiles.iter().find(|p| p.slices == slices)
    }

    /// Start slots, in the order of `sizes`, at which instances of these sizes fit together;
    /// `None` when they do not, or when a size does not exist.
    pub fn place(&self, sizes: &[u8]) -> Option<Vec<u8>> {
        self.place_beside(&[], sizes)
    }

    /// The same beside instances that stand already, each the memory slots that it covers, which stay where they are.
    pub fn place_beside(&self, standing: &[std::ops::Range<u8>], sizes: &[u8]) -> Option<Vec<u8>> {
        let slots = standing.iter().flat_map(Clone::clone);
        let taken = slots.fold(0u32, |taken, slot| taken | 1u32.checked_shl(slot.into()).unwrap_or(0));
        let profiles = sizes.iter().map(|&s| self.profile(s)).collect::<Option<Vec<_>>>()?;
        // Large instances have the fewest starts, so they choose first.
        let mut order: Vec<usize> = (0..sizes.len()).collect();
        order.sort_by_key(|&i| (profiles[i].starts.len(), i));
        let mut starts = vec![0; sizes.len()];
        self.place_rest(&profiles, &order, taken, &mut starts).then_some(starts)
    }

    /// Every way in which instances of these sizes can stand together: slices and start of each, ascending. Two instances of
    /// one size are alike.
    pub fn placements(&self, sizes: &[u8]) -> Vec<Vec<(u8, u8)>> {
        let mut sizes = sizes.to_vec();
        sizes.sort_unstable();
        let mut found = Vec::new();
        self.place_every(&sizes, &mut Vec::new(), &mut found);
        found
    }

    fn place_every(&self, rest: &[u8], placed: &mut Vec<(u8, u8)>, found: &mut Vec<Vec<(u8, u8)>>) {
        let Some((&slices, rest)) = rest.split_first() else {
            found.push(placed.clone());
            return;
        };
        let Some(profile) = self.profile(slices) else { return };
        for &start in profile.starts {
            let next = (slices, start);
            // Equal ones in ascending order only, so that each way is found once.
            if placed.last().is_some_and(|last| *last >= next) {
                continue;
            }
            placed.push(next);
            if self.is_legal(placed) {
                self.place_every(rest, placed, found);
            }
            placed.pop();
        }
    }

    /// Whether instances of these sizes can stand at these starts together.
    pub fn is_legal(&self, instances: &[(u8, u8)]) -> bool {
        let mut taken = 0u32;
        instances.iter().all(|&(slices, start)| {
            let Some(profile) = self.profile(slices).filter(|p| p.starts.contains(&start)) else {
                return false;
            };
            let mask = slot_mask(profile, start);
            let free = taken & mask == 0;
            taken |= mask;
            free
        })
    }

    fn place_rest(&self, profiles: &[&MigProfile], order: &[usize], taken: u32, starts: &mut [u8]) -> bool {
        let Some((&next, rest)) = order.split_first() else { return true };
        // The highest start first keeps low slots, which every size can use, free.
        profiles[next].starts.iter().rev().any(|&start| {
            let mask = slot_mask(profiles[next], start);
            starts[next] = start;
            taken & mask == 0 && self.place_rest(profiles, rest, taken | mask, starts)
        })
    }
}

fn slot_mask(profile: &MigProfile, start: u8) -> u32 {
    ((1 << profile.memory_slots) - 1) << start
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sums_to_seven_are_not_always_placeable() {
        let fits = |sizes: &[u8]| SEVEN_SLICES.place(sizes).is_some();
        assert!(!fits(&[3, 3, 1]), "3 + 3 covers all eight memory slots");
        assert!(fits(&[4, 3]));
        assert!(fits(&[3, 2, 2]));
        assert!(fits(&[4, 2, 1]));
        assert!(fits(&[2, 2, 2, 1]));
        assert!(fits(&[1; 7]));
        assert!(!fits(&[1; 8]));
        assert!(!fits(&[4, 4]));
        assert!(!fits(&[5]), "no such profile");
        assert!(fits(&[]));
    }

    #[test]
    fn profiles_are_named_as_nvidia_does() {
        let names = |kind, gb| [1, 2, 3, 4, 7].map(|slices| profile_name(kind, gb, slices).unwrap());
        assert_eq!(names("a100", 40), ["1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"]);
        assert_eq!(names("h200", 141), ["1g.18gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"]);
        assert_eq!(memory_sizes_gb("h100"), [80, 94]);
        assert_eq!((profile_name("h100", 80, 5), profile_name("a100", 94, 1)), (None, None));
        assert_eq!((profile_name("b200", 180, 1), memory_sizes_gb("b200")), (None, vec![]));
        let known = crate::workload::GPU_KINDS.iter().all(|kind| !memory_sizes_gb(kind).is_empty());
        assert!(known, "every kind that a workload may name");
    }

    #[test]
    fn every_placement_is_found_once() {
        let count = |sizes: &[u8]| SEVEN_SLICES.placements(sizes).len();
        assert_eq!(SEVEN_SLICES.placements(&[3, 4]), [[(3, 4), (4, 0)]]);
        assert_eq!(SEVEN_SLICES.placements(&[2, 2]).len(), 3);
        assert_eq!((count(&[3]), count(&[1; 7]), count(&[1; 6]), count(&[3, 2, 2])), (2, 1, 7, 1));
        assert_eq!((count(&[4, 4]), count(&[5]), count(&[])), (0, 0, 1));
    }

    #[test]
    fn illegal_starts_are_refused() {
        assert!(SEVEN_SLICES.is_legal(&[(4, 0), (3, 4)]));
        assert!(!SEVEN_SLICES.is_legal(&[(3, 1)]));
        assert!(!SEVEN_SLICES.is_legal(&[(4, 0), (1, 3)]));
    }

    #[test]
    fn what_stands_stays_where_it_is() {
        let beside = |standing: std::ops::Range<u8>, sizes: &[u8]| {
            SEVEN_SLICES.place_beside(std::slice::from_ref(&standing), sizes)
        };
        assert_eq!(beside(4..8, &[4]), Some(vec![0]));
        assert_eq!(beside(0..4, &[4]), None);
        assert_eq!(beside(6..7, &[2, 3]), Some(vec![4, 0]));
        assert_eq!(beside(0..8, &[]), Some(vec![]));
        assert_eq!(beside(0..8, &[1]), None);
    }

    proptest! {
        #[test]
        fn a_placement_is_legal_and_none_is_missed(sizes in proptest::collection::vec(1u8..=7, 0..5)) {
            let found = SEVEN_SLICES.place(&sizes);
            prop_assert_eq!(found.is_some(), exists_by_enumeration(&sizes, &mut Vec::new()));
            let every = SEVEN_SLICES.placements(&sizes);
            prop_assert_eq!(found.is_some(), !every.is_empty());
            prop_assert!(every.windows(2).all(|pair| pair[0] < pair[1]), "each once, in order");
            if let Some(starts) = found {
                let instances: Vec<_> = sizes.iter().copied().zip(starts).collect();
                prop_assert!(SEVEN_SLICES.is_legal(&instances));
            }
        }
    }

    fn exists_by_enumeration(sizes: &[u8], chosen: &mut Vec<(u8, u8)>) -> bool {
        let Some((&first, rest)) = sizes.split_first() else { return SEVEN_SLICES.is_legal(chosen) };
        (0..8).any(|start| {
            chosen.push((first, start));
            let found = exists_by_enumeration(rest, chosen);
            chosen.pop();
            found
        })
    }
}
