//! Many models, drawn around those of a problem.

// Helpers of tests may panic as tests do; each test uses some of them.
#![allow(dead_code, clippy::unwrap_used)]

use gpumon_place::Problem;
use gpumon_place::problem::Demand;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// A problem of `count` models, each like one of `around` with its speed (half to twice), power (± 30 %), SLO and rate changed. A draw that
/// nothing serves, or that `is_wanted` does not want in a problem of its own, is drawn again.
pub fn problem(around: &Problem, count: usize, is_wanted: impl Fn(&Problem) -> bool) -> Problem {
    let mut rng = StdRng::seed_from_u64(count as u64);
    let mut models = Vec::with_capacity(count);
    let mut alone = Problem { models: Vec::new(), gpus: None, ..around.clone() };
    while models.len() < count {
        let like = &around.models[rng.random_range(0..around.models.len())];
        let slower = 2f64.powf(rng.random_range(-1.0..1.0));
        let hungrier = rng.random_range(0.7..1.3);
        let mut candidates = like.candidates.clone();
        for c in &mut candidates {
            c.latency_ms *= slower;
            c.throughput_rps /= slower;
            c.dynamic_w *= hungrier;
        }
        let latency_slo_ms = like.latency_slo_ms * slower * rng.random_range(0.7..1.5);
        let rate_rps = like.rate_rps / slower * rng.random_range(0.1..1.2);
        let feasible: Vec<usize> =
            (0..candidates.len()).filter(|&i| candidates[i].meets(latency_slo_ms, rate_rps)).collect();
        if feasible.is_empty() {
            continue;
        }
        let name = format!("m{}", models.len());
        alone.models = vec![Demand { name, latency_slo_ms, rate_rps, candidates, feasible }];
        alone.cost.total_rate_rps = rate_rps;
        if is_wanted(&alone) {
            models.append(&mut alone.models);
        }
    }
    let mut problem = Problem { models, gpus: None, ..around.clone() };
    problem.cost.total_rate_rps = problem.models.iter().map(|m| m.rate_rps).sum();
    problem
}
