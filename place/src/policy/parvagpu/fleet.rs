//! Segments on GPUs: relocation and the allocation optimisation.
//!
//! Rule of relocation: models push their OPT segments and the LAST one into a queue for each size; sizes are served largest first;
//! a segment goes to the GPU that it leaves the least free, of equals the first, else to a new one. Two of size 3 never share a
//! GPU. A segment starts at the first slot of its size's list where no other starts.
//!
//! Rule of the optimisation: from the last GPU to the first, those with at most 4 slices in use are broken up slot by slot.
//! What the removed segment served is pending for its model, and is served by new segments of 2 and 1 slices instead, which are packed
//! by the rule above over all GPUs.
//! Cases: a removed segment counts as OPT if it has OPT's size, else as LAST, whatever it is. Pending may be negative, which spares segments on GPUs
//! that come later. A model without rows in sizes 1 and 2 stays where it is. A GPU on which no start of the list is left is
//! passed over, where the source says nothing. GPUs that are opened meanwhile are not broken up.
//! Not done: legal MIG starts; published slots are there to say where a search begins and how segments are listed.
//!
//! Source: ParvaGPU (SC'24), algorithm 2, and its published code and deployments.

use std::cmp::Reverse;

use super::service::{Service, slices};
use crate::policy::sizes::Percents;

/// Slots at which segments start.
const SLOTS: usize = 7;
/// Slices of a GPU.
const WHOLE: u8 = 7;
/// A GPU with no more slices in use is broken up.
const BROKEN_UP: u8 = 4;
/// Sizes in the order in which they are served, with the starts of each in the order of preference.
const STARTS: [(u8, &[usize]); 5] =
    [(7, &[0]), (4, &[0]), (3, &[4]), (2, &[0, 4, 2]), (1, &[0, 6, 4, 1, 2, 3, 5])];

/// One MIG instance of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Index of the service.
    pub service: usize,
    /// Its size.
    pub slices: u8,
}

/// Segments of one GPU by start slot.
type Slots = [Option<Segment>; SLOTS];

/// GPUs with segments.
#[derive(Clone, Debug, PartialEq)]
pub struct Fleet {
    gpus: Vec<Slots>,
    percents: Percents,
}

impl Fleet {
    /// Relocation: every segment of these services, sizes being this much of the SMs.
    pub fn packed(services: &[Service], percents: Percents) -> Self {
        let of_service = |(index, service): (usize, &Service)| {
            let opt = std::iter::repeat_n(slices(&service.opt), service.count);
            opt.chain([slices(&service.last)]).map(move |slices| Segment { service: index, slices })
        };
        let segments: Vec<_> =
            services.iter().enumerate().flat_map(|s| of_service(s).collect::<Vec<_>>()).collect();
        let mut fleet = Self { gpus: Vec::new(), percents };
        fleet.add(&segments);
        fleet
    }

    /// The allocation optimisation.
    pub fn optimise(&mut self, services: &[Service]) {
        let mut pending_rps = vec![0.0; services.len()];
        for gpu in (0..self.gpus.len()).rev() {
            if used(&self.gpus[gpu]) > BROKEN_UP {
                continue;
            }
            for slot in 0..SLOTS {
                let Some(segment) = self.gpus[gpu][slot] else { continue };
                let service = &services[segment.service];
                let planned = if segment.slices == slices(&service.opt) { service.opt } else { service.last };
                let pending = &mut pending_rps[segment.service];
                let Some((twos, ones)) = refill(service, *pending + planned.throughput_rps) else { continue };
                let rate_rps = |size, count: usize| {
                    service.best(size).map_or(0.0, |row| row.throughput_rps) * count as f64
                };
                *pending += planned.throughput_rps;
                *pending -= rate_rps(2, twos) + rate_rps(1, ones);
                self.gpus[gpu][slot] = None;
                let new = |slices, count| std::iter::repeat_n(Segment { slices, ..segment }, count);
                self.add(&new(2, twos).chain(new(1, ones)).collect::<Vec<_>>());
            }
        }
    }

    /// The GPUs in use, each with its segments in the published order: by slot, then the first largest swapped forward.
    pub fn gpus(&self) -> impl Iterator<Item = Vec<Segment>> {
        let of_gpu = |slots: &Slots| {
            let mut segments: Vec<Segment> = slots.iter().flatten().copied().collect();
            for at in 0..segments.len() {
                let rest = segments.iter().enumerate().skip(at);
                // Of equals the least index.
                if let Some((largest, _)) = rest.max_by_key(|(i, s)| (s.slices, Reverse(*i))) {
                    segments.swap(at, largest);
                }
            }
            segments
        };
        self.gpus.iter().filter(|slots| used(slots) > 0).map(of_gpu)
    }

    fn add(&mut self, segments: &[Segment]) {
        for (size, starts) in STARTS {
            for &segment in segments.iter().filter(|s| s.slices == size) {
                let room = |slots: &Slots| {
                    let free = WHOLE - used(slots);
                    let start = starts.iter().copied().find(|&slot| slots[slot].is_none())?;
                    let sizes = slots.iter().flatten().map(|s| s.slices).chain([size]);
                    (free >= size && self.percents.fit(sizes)).then_some((free, start))
                };
                let rooms = self.gpus.iter().enumerate().filter_map(|(gpu, slots)| Some((gpu, room(slots)?)));
                match rooms.min_by_key(|(gpu, (free, _))| (*free, *gpu)) {
                    Some((gpu, (_, start))) => self.gpus[gpu][start] = Some(segment),
                    None => {
                        let mut slots = [None; SLOTS];
                        slots[starts[0]] = Some(segment);
                        self.gpus.push(slots);
                    }
                }
            }
        }
    }
}

fn used(slots: &Slots) -> u8 {
    slots.iter().flatten().map(|s| s.slices).sum()
}

/// How many segments of 2 and of 1 slices serve this; `None` if the model runs in neither.
fn refill(service: &Service, rate_rps: f64) -> Option<(usize, usize)> {
    let of_size = |size| service.best(size).map(|row| row.throughput_rps);
    // What is below 0 is cut off to 0.
    let up = |rate_rps: f64, by_rps: f64| (rate_rps / by_rps).ceil() as usize;
    match (of_size(2), of_size(1)) {
        (Some(two_rps), Some(one_rps)) if two_rps / 2.0 > one_rps => {
            let twos = (rate_rps / two_rps).floor().max(0.0);
            Some((twos as usize, up(rate_rps - twos * two_rps, one_rps)))
        }
        (_, Some(one_rps)) => Some((0, up(rate_rps, one_rps))),
        (Some(two_rps), None) => Some((up(rate_rps, two_rps), 0)),
        (None, None) => None,
    }
}
