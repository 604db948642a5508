//! How long a request takes when requests wait: for its batch to fill, for the batches before it, and for its own.
//!
//! Symbols: batch b, processes c, time of a batch l, rate r (requests/s) of one partition; the percentile p as a part
//! of 1.
//!
//! Rule: a partition meets an SLO at p when no more than 1 − p of its requests take longer. Requests are gathered into
//! full batches in the order in which they come, batches start in that order on the first process that is free, and
//! each takes l.
//!
//! - Collection: request i of b waits for b − i more. Under `point` arrivals (evenly spaced) that is (b − i) / r;
//!   under `poisson` it is Erlang(b − i, r), and over all requests of a batch
//!   P(C > x) = E[(b − 1 − N)⁺] / b with N ~ Poisson(r x).
//! - Waiting: batches that each take the same time and start in order are served by the c processes in turn, so each
//!   process sees every c-th batch. Under `point` arrivals none waits when c b / r ≥ l. Under `poisson` a process
//!   sees gaps of Erlang(c b, r), and the waiting time W of such a queue has P(W > x) ≤ exp(−θ x) with θ > 0 from
//!   θ l = c b ln(1 + θ / r).
//! - Both together: P(C + W > t) ≤ P(C > x) + P(W > t − x) for any x in 0..t, whatever C and W have to do with each
//!   other; the best of some x is taken. So what is told is an upper bound, never too short.
//!
//! - In turns ([`crate::turn`]) a batch starts at a time of its own once a round. Were rounds the service, batch j would start at
//!   s'_j = max(ready_j, s'_{j-1} + round); it starts at the first of its times that is not before ready_j and after s_{j-1}, which by
//!   induction is at most s'_j + round. So a request takes at most what it would where each batch takes a round, and then l.
//!
//! Cases: where the rate is the throughput or more there is no steady state, and no answer.
//! Not done: batches that start before they are full, times of a batch that vary (take a profile's p99 for that), and
//! interference.
//!
//! Source: the bound on W is J. F. C. Kingman, *Inequalities in the theory of queues*, J. Royal Statistical Society B 32
//! (1970), for GI/GI/1 with the root of E[exp(θ (service − gap))] = 1; the rest is the definition of Erlang's distribution.

use gpumon_core::workload::Arrivals;

use crate::candidate::Candidate;
use crate::turn::Turn;

/// How requests come, and of which part of them the SLO is asked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Queueing {
    /// How they come.
    pub arrivals: Arrivals,
    /// The part of requests that must be in time, %, below 100.
    pub percentile: f64,
}

/// Divisions of the time between collecting and waiting.
const SPLITS: u32 = 32;
/// Halvings of an interval: to 1e-12 of it.
const HALVINGS: usize = 40;

impl Queueing {
    /// Time that the percentile of requests take at most, ms, when `rate_rps` come; `None` without a steady state.
    pub fn request_ms(&self, candidate: &Candidate, rate_rps: f64) -> Option<f64> {
        let line = Line::new(candidate, rate_rps, self.arrivals)?;
        let late = 1.0 - self.percentile / 100.0;
        if let Arrivals::Point = self.arrivals {
            return Some(candidate.latency_ms + line.gathered_ms(late));
        }
        let mut high_ms = candidate.latency_ms.max(1e-3);
        while line.late(high_ms) > late {
            high_ms *= 2.0;
        }
        let mut low_ms = 0.0;
        for _ in 0..HALVINGS {
            let middle_ms = (low_ms + high_ms) / 2.0;
            if line.late(middle_ms) > late {
                low_ms = middle_ms;
            } else {
                high_ms = middle_ms;
            }
        }
        Some(candidate.latency_ms + high_ms)
    }

    /// Whether the percentile of requests is answered within the SLO when `rate_rps` come.
    pub fn meets(&self, candidate: &Candidate, latency_slo_ms: f64, rate_rps: f64) -> bool {
        let spare_ms = latency_slo_ms - candidate.latency_ms;
        let late = 1.0 - self.percentile / 100.0;
        let Some(line) = Line::new(candidate, rate_rps, self.arrivals) else { return false };
        match self.arrivals {
            _ if spare_ms < 0.0 => false,
            Arrivals::Point => line.gathered_ms(late) <= spare_ms,
            Arrivals::Poisson => line.late(spare_ms) <= late,
        }
    }
}

impl Queueing {
    /// [`Self::request_ms`] of a partition whose share is used in turns, if it is.
    pub fn request_in_turn_ms(
        &self,
        candidate: &Candidate,
        rate_rps: f64,
        turn: Option<Turn>,
    ) -> Option<f64> {
        match turn {
            None => self.request_ms(candidate, rate_rps),
            Some(turn) => Some(self.request_ms(&a_round(candidate, turn), rate_rps)? + candidate.latency_ms),
        }
    }

    /// [`Self::meets`] of a partition whose share is used in turns, if it is.
    pub fn meets_in_turn(
        &self,
        candidate: &Candidate,
        latency_slo_ms: f64,
        rate_rps: f64,
        turn: Option<Turn>,
    ) -> bool {
        match turn {
            None => self.meets(candidate, latency_slo_ms, rate_rps),
            Some(turn) => {
                let spare_ms = latency_slo_ms - candidate.latency_ms;
                self.meets(&a_round(candidate, turn), spare_ms, rate_rps)
            }
        }
    }
}

/// A batch that takes the whole round.
fn a_round(candidate: &Candidate, turn: Turn) -> Candidate {
    let throughput_rps = f64::from(candidate.batch) * 1e3 / turn.round_ms;
    Candidate { latency_ms: turn.round_ms, throughput_rps, ..*candidate }
}

/// The line before one partition.
struct Line {
    batch: u32,
    /// Requests a ms.
    rate_per_ms: f64,
    /// Decay of waiting, 1/ms.
    decay_per_ms: f64,
}

impl Line {
    fn new(candidate: &Candidate, rate_rps: f64, arrivals: Arrivals) -> Option<Self> {
        let rate_per_ms = rate_rps / 1e3;
        let turn = f64::from(candidate.processes) * f64::from(candidate.batch);
        // The profile's throughput counts too: processes that hold each other up serve less than their batches' times say.
        let busy_ms = candidate.latency_ms.max(turn / candidate.throughput_rps * 1e3);
        let decay_per_ms = match arrivals {
            Arrivals::Point => (turn / rate_per_ms >= busy_ms * (1.0 - 1e-9)).then_some(f64::INFINITY)?,
            Arrivals::Poisson => decay(turn, rate_per_ms, busy_ms)?,
        };
        Some(Self { batch: candidate.batch, rate_per_ms, decay_per_ms })
    }

    /// Under evenly spaced arrivals: what all but the part `late` wait for their batch to fill, ms.
    fn gathered_ms(&self, late: f64) -> f64 {
        let batch = f64::from(self.batch);
        let first = (late * batch + 1e-9).floor();
        (batch - 1.0 - first).max(0.0) / self.rate_per_ms
    }

    /// At most this part of requests collects and waits longer than `ms`.
    fn late(&self, ms: f64) -> f64 {
        let split = |part: u32| {
            let collecting_ms = ms * f64::from(part) / f64::from(SPLITS);
            let waiting_ms = ms - collecting_ms;
            self.still_gathering(collecting_ms) + (-self.decay_per_ms * waiting_ms).exp()
        };
        (0..SPLITS).map(split).fold(1.0, f64::min)
    }

    /// The part of requests whose batch is not full after `ms`: E[(b − 1 − N)⁺] / b.
    fn still_gathering(&self, ms: f64) -> f64 {
        let mean = self.rate_per_ms * ms;
        let others = self.batch - 1;
        if mean <= 0.0 {
            return f64::from(others) / f64::from(self.batch);
        }
        let mut ln_chance = -mean;
        let mut sum = 0.0;
        for n in 0..others {
            sum += f64::from(others - n) * ln_chance.exp();
            ln_chance += mean.ln() - f64::from(n + 1).ln();
        }
        sum / f64::from(self.batch)
    }
}

/// θ > 0 with θ × busy = turn × ln(1 + θ / rate), 1/ms; `None` where the rate is what can be served, or more.
fn decay(turn: f64, rate_per_ms: f64, busy_ms: f64) -> Option<f64> {
    let spare = |theta: f64| turn * (theta / rate_per_ms).ln_1p() - theta * busy_ms;
    if busy_ms * rate_per_ms >= turn {
        return None;
    }
    // The difference rises up to this and falls from there on, past its other zero.
    let mut low = turn / busy_ms - rate_per_ms;
    let mut high = 2.0 * low;
    while spare(high) > 0.0 {
        high *= 2.0;
    }
    for _ in 0..HALVINGS {
        let middle = (low + high) / 2.0;
        if spare(middle) > 0.0 { low = middle } else { high = middle }
    }
    (low > 0.0).then_some(low)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::candidate::{Share, Uses};
    use proptest::prelude::*;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    fn candidate(batch: u32, processes: u32, latency_ms: f64) -> Candidate {
        let throughput_rps = f64::from(processes * batch) / latency_ms * 1e3;
        let share = Share::Slices(1);
        Candidate {
            batch,
            share,
            processes,
            frequency_mhz: 600,
            latency_ms,
            throughput_rps,
            dynamic_w: 1.0,
            uses: Uses::default(),
        }
    }

    /// Times of requests in the order of their coming, ms, walked one by one.
    fn walked(c: &Candidate, rate_rps: f64, poisson: bool, batches: usize) -> Vec<f64> {
        let mut random = StdRng::seed_from_u64(7);
        let mut free_ms = vec![0.0f64; c.processes as usize];
        let (mut now_ms, mut times) = (0.0, Vec::new());
        for _ in 0..batches {
            let came: Vec<f64> = (0..c.batch)
                .map(|_| {
                    let gap =
                        if poisson { -random.random_range(f64::MIN_POSITIVE..1.0f64).ln() } else { 1.0 };
                    now_ms += gap / rate_rps * 1e3;
                    now_ms
                })
                .collect();
            let first = free_ms.iter_mut().min_by(|a, b| a.total_cmp(b)).unwrap();
            *first = first.max(now_ms) + c.latency_ms;
            times.extend(came.iter().map(|at| *first - at));
        }
        times.sort_by(f64::total_cmp);
        times
    }

    #[test]
    fn evenly_spaced_requests_wait_for_their_batch_only() {
        let ask = |percentile| Queueing { arrivals: Arrivals::Point, percentile };
        let c = candidate(4, 1, 10.0);
        // 200 a second: the first of four waits for three more, 15 ms.
        assert_eq!(ask(99.0).request_ms(&c, 200.0), Some(25.0));
        // A quarter may be late, so the first one does not count.
        assert_eq!(ask(75.0).request_ms(&c, 200.0), Some(20.0));
        assert_eq!(ask(99.0).request_ms(&c, 401.0), None);
        assert!(ask(99.0).meets(&c, 25.0, 200.0) && !ask(99.0).meets(&c, 24.9, 200.0));
        let times = walked(&c, 200.0, false, 1000);
        assert!((times.last().unwrap() - 25.0).abs() < 1e-6);
    }

    #[test]
    fn single_requests_decay_as_a_queue_with_fixed_service_does() {
        // M/D/1 at half its capacity: θ l = ln(1 + 2 θ l) has its root at θ l = 1.2564.
        let theta = decay(1.0, 0.05, 10.0).unwrap();
        assert!((theta * 10.0 - 1.256_431).abs() < 1e-5, "{theta}");
        assert_eq!(decay(1.0, 0.1, 10.0), None);
    }

    #[test]
    fn what_is_told_is_no_less_than_what_is_walked_and_near_it() {
        let ask = Queueing { arrivals: Arrivals::Poisson, percentile: 99.0 };
        for (batch, processes, part) in [(1, 1, 0.5), (1, 1, 0.9), (8, 1, 0.7), (32, 1, 0.3), (4, 3, 0.8)] {
            let c = candidate(batch, processes, 10.0);
            let rate_rps = part * c.throughput_rps;
            let times = walked(&c, rate_rps, true, 400_000 / batch as usize);
            let true_ms = times[times.len() * 99 / 100];
            let told_ms = ask.request_ms(&c, rate_rps).unwrap();
            eprintln!("batch {batch} × {processes} at {part}: walked {true_ms:.1} ms, told {told_ms:.1} ms");
            assert!(told_ms >= true_ms * 0.98, "batch {batch}: {told_ms} below {true_ms}");
            assert!(told_ms <= true_ms * 1.5, "batch {batch}: {told_ms} far above {true_ms}");
        }
    }

    #[test]
    fn in_turns_the_walked_requests_take_no_longer_than_told() {
        let (c, turn) = (candidate(4, 1, 10.0), Some(Turn { partition: 0, round_ms: 40.0 }));
        for (arrivals, poisson) in [(Arrivals::Poisson, true), (Arrivals::Point, false)] {
            let ask = Queueing { arrivals, percentile: 99.0 };
            let mut random = StdRng::seed_from_u64(3);
            let (mut now_ms, mut next_ms, mut times) = (0.0f64, 0.0f64, Vec::new());
            for _ in 0..100_000 {
                let came: Vec<f64> = (0..4)
                    .map(|_| {
                        let gap =
                            if poisson { -random.random_range(f64::MIN_POSITIVE..1.0f64).ln() } else { 1.0 };
                        now_ms += gap / 70.0 * 1e3;
                        now_ms
                    })
                    .collect();
                next_ms = ((now_ms / 40.0).ceil() * 40.0).max(next_ms + 40.0);
                times.extend(came.iter().map(|at| next_ms + 10.0 - at));
            }
            times.sort_by(f64::total_cmp);
            let true_ms = times[times.len() * 99 / 100];
            let told_ms = ask.request_in_turn_ms(&c, 70.0, turn).unwrap();
            eprintln!("{arrivals:?} in turns: walked {true_ms:.1} ms, told {told_ms:.1} ms");
            // Looser than without turns: a whole round is reckoned before a batch that is ready, and half of one passes on average.
            assert!(told_ms >= true_ms * 0.98 && told_ms <= true_ms * 2.0, "{told_ms} {true_ms}");
            assert!(ask.meets_in_turn(&c, told_ms + 1e-6, 70.0, turn));
            assert!(!ask.meets_in_turn(&c, told_ms - 1e-3, 70.0, turn));
            assert_eq!(ask.request_in_turn_ms(&c, 101.0, turn), None, "4 each 40 ms are 100 a second");
        }
    }

    proptest! {
        #[test]
        fn an_slo_is_met_just_when_the_time_told_is_within(
            batch in 1u32..64, processes in 1u32..4, latency_ms in 0.1f64..100.0, part in 0.01f64..1.2,
            percentile in 50.0f64..99.99, slo_ms in 0.1f64..1000.0, poisson: bool,
        ) {
            let arrivals = if poisson { Arrivals::Poisson } else { Arrivals::Point };
            let (c, ask) = (candidate(batch, processes, latency_ms), Queueing { arrivals, percentile });
            let rate_rps = part * c.throughput_rps;
            let told = ask.request_ms(&c, rate_rps);
            prop_assert_eq!(told.is_none(), part >= 1.0 + 1e-9);
            if let Some(ms) = told {
                prop_assert!(ms >= latency_ms && ms.is_finite());
                prop_assume!((ms / slo_ms - 1.0).abs() > 1e-6);
                prop_assert_eq!(ask.meets(&c, slo_ms, rate_rps), ms <= slo_ms);
            }
        }
    }
}
