//! MIG instances of one GPU: which exist, which may be made.
//!
//! Rule: GPU instances have the sizes and starts of [`SEVEN_SLICES`] and never overlap; a new one takes
//! the highest start at which it fits, so that low slots stay free. Compute instances take slices of
//! their GPU instance from the lowest one on. A GPU instance that holds compute instances and a GPU
//! that holds GPU instances stay as they are.
//! Profile numbers are those that `nvidia-smi mig -lgip` and `-lcip` print; only the plain profiles
//! exist here.
//! Assumed: ids are the lowest free ones from 1 (0 for the whole GPU); MIG mode needs no reset.
//! Source: NVIDIA MIG User Guide; `nvml.h` of driver 580, "Multi Instance GPU Management".

use gpumon_core::geometry::{MigProfile, SEVEN_SLICES};

use crate::codes::{Answer, Code};

/// Sizes in slices, in the order of `NVML_GPU_INSTANCE_PROFILE_…`, with their profile numbers.
const PROFILES: &[(u8, u32)] = &[(1, 19), (2, 14), (3, 9), (4, 5), (7, 0)];

/// A size of instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Profile {
    pub(crate) size: MigProfile,
    /// The number by which GPU instances are made.
    pub(crate) gpu_id: u32,
    /// The number by which compute instances are made.
    pub(crate) compute_id: u32,
}

/// The profiles, smallest first.
pub(crate) fn profiles() -> impl Iterator<Item = Profile> {
    PROFILES.iter().zip(0..).filter_map(|(&(slices, gpu_id), compute_id)| {
        Some(Profile { size: *SEVEN_SLICES.profile(slices)?, gpu_id, compute_id })
    })
}

/// The profile at a place of `NVML_GPU_INSTANCE_PROFILE_…`.
pub(crate) fn by_position(position: u32) -> Answer<Profile> {
    const LAST: u32 = 17;
    let absent = if position < LAST { Code::NOT_SUPPORTED } else { Code::INVALID_ARGUMENT };
    profiles().nth(position as usize).ok_or(absent)
}

/// The profile of a GPU instance's profile number.
pub(crate) fn by_gpu_id(id: u32) -> Answer<Profile> {
    profiles().find(|p| p.gpu_id == id).ok_or(Code::NOT_SUPPORTED)
}

/// The profile of a compute instance's profile number.
pub(crate) fn by_compute_id(id: u32) -> Answer<Profile> {
    profiles().find(|p| p.compute_id == id).ok_or(Code::NOT_SUPPORTED)
}

fn by_slices(slices: u8) -> Option<Profile> {
    profiles().find(|p| p.size.slices == slices)
}

/// A GPU instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GpuInstance {
    pub(crate) id: u32,
    pub(crate) slices: u8,
    pub(crate) start: u8,
    pub(crate) compute: Vec<ComputeInstance>,
}

/// A compute instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ComputeInstance {
    pub(crate) id: u32,
    pub(crate) slices: u8,
    pub(crate) start: u8,
}

impl GpuInstance {
    pub(crate) fn profile(&self) -> Answer<Profile> {
        by_slices(self.slices).ok_or(Code::UNKNOWN)
    }

    /// A compute instance by its id.
    pub(crate) fn compute(&self, id: u32) -> Answer<ComputeInstance> {
        self.compute.iter().copied().find(|c| c.id == id).ok_or(Code::NOT_FOUND)
    }

    /// Where compute instances of a size could start, were there none.
    pub(crate) fn compute_starts(&self, size: u8) -> impl Iterator<Item = u8> + use<> {
        (0..=self.slices.saturating_sub(size)).filter(move |start| start % size.max(1) == 0)
    }

    /// Where compute instances of a size can start now.
    pub(crate) fn free_compute_starts(&self, size: u8) -> Vec<u8> {
        if size > self.slices {
            return Vec::new();
        }
        let free =
            |start: u8| self.compute.iter().all(|c| start + size <= c.start || c.start + c.slices <= start);
        (0..=self.slices - size).filter(|&start| free(start)).collect()
    }

    /// How many more compute instances of a size fit.
    pub(crate) fn compute_capacity(&self, size: u8) -> u32 {
        let taken: u8 = self.compute.iter().map(|c| c.slices).sum();
        u32::from((self.slices - taken.min(self.slices)) / size.max(1))
    }

    /// The id that the next compute instance gets.
    pub(crate) fn next_compute_id(&self) -> u32 {
        (0..).find(|id| self.compute.iter().all(|c| c.id != *id)).unwrap_or(0)
    }
}

/// MIG of one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mig {
    pub(crate) on: bool,
    pub(crate) instances: Vec<GpuInstance>,
}

impl Mig {
    pub(crate) fn instance(&self, id: u32) -> Answer<&GpuInstance> {
        self.instances.iter().find(|i| i.id == id).ok_or(Code::NOT_FOUND)
    }

    /// Starts at which one more instance of a size fits, ascending.
    pub(crate) fn free_starts(&self, size: &MigProfile) -> Vec<u8> {
        let placed: Vec<_> = self.instances.iter().map(|i| (i.slices, i.start)).collect();
        let fits = |&start: &u8| SEVEN_SLICES.is_legal(&[&placed[..], &[(size.slices, start)]].concat());
        size.starts.iter().copied().filter(fits).collect()
    }

    /// How many more instances of a size fit.
    pub(crate) fn capacity(&self, size: &MigProfile) -> u32 {
        let mut then = self.clone();
        let mut count = 0;
        while let Some(&start) = then.free_starts(size).last() {
            then.instances.push(GpuInstance { id: 0, slices: size.slices, start, compute: Vec::new() });
            count += 1;
        }
        count
    }

    /// The id that the next GPU instance gets.
    pub(crate) fn next_id(&self, slices: u8) -> u32 {
        let from = u32::from(slices != SEVEN_SLICES.compute_slices);
        (from..).find(|id| self.instances.iter().all(|i| i.id != *id)).unwrap_or(0)
    }

    /// The MIG devices: each compute instance with its GPU instance, in order.
    pub(crate) fn devices(&self) -> Vec<(u32, u32)> {
        self.instances.iter().flat_map(|gi| gi.compute.iter().map(|ci| (gi.id, ci.id))).collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a panic is a test's report")]
mod tests {
    use super::*;

    fn with(instances: &[(u8, u8)]) -> Mig {
        let make = |(id, &(slices, start))| GpuInstance { id, slices, start, compute: Vec::new() };
        Mig { on: true, instances: (1..).zip(instances).map(make).collect() }
    }

    #[test]
    fn instances_fit_where_the_geometry_lets_them() {
        let three = by_gpu_id(9).unwrap();
        assert_eq!((three.size.slices, three.compute_id), (3, 2));
        assert_eq!(with(&[]).capacity(&three.size), 2);
        assert_eq!(with(&[(1, 0)]).free_starts(&three.size), [4]);
        assert!(with(&[(3, 4), (1, 0)]).free_starts(&three.size).is_empty());
        assert_eq!(by_gpu_id(1), Err(Code::NOT_SUPPORTED));
        assert_eq!(
            (by_position(5), by_position(17)),
            (Err(Code::NOT_SUPPORTED), Err(Code::INVALID_ARGUMENT))
        );
    }

    #[test]
    fn compute_instances_share_the_slices_of_their_gpu_instance() {
        let mut mig = with(&[(3, 4)]);
        let instance = &mut mig.instances[0];
        assert_eq!(instance.free_compute_starts(1), [0, 1, 2]);
        instance.compute.push(ComputeInstance { id: 0, slices: 1, start: 0 });
        assert_eq!((instance.free_compute_starts(2), instance.free_compute_starts(3)), (vec![1], vec![]));
        assert_eq!((instance.compute_capacity(1), instance.compute_capacity(3)), (2, 0));
        assert_eq!((instance.next_compute_id(), mig.devices()), (1, vec![(1, 0)]));
    }
}
