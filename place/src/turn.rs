//! Models that take turns in one share of a GPU.
//!
//! Rule: partitions of a GPU that name the same [`Turn::partition`] are one share. In every round of [`Turn::round_ms`] each of its
//! models runs one batch, one after the other, so the share is held once, a model's batch of b items serves 1000 b / round a
//! second, and a request waits for at most one round before its batch starts.
//!
//! Costs ([`loads`]): a share in turns counts as one model whose batch takes Σ l_i, at the mean dynamic power over that time,
//! d = Σ d_i l_i / Σ l_i. Its duty is Σ d_i (r_i / t_i) / d, so that its average power is that of its models; 0 ≤ duty ≤ 1 because
//! Σ l_i ≤ round.
//! Cases: a partition without a turn is a share of its own. Where d is 0 the duty is Σ r_i / t_i, which costs nothing.
//! Not done: who starts the batches; a plan only says that somebody must.
//!
//! Source: time sharing of a gpulet in GPUlets (ATC'22); its cost is this project's.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::cost::Load;

/// Which share a model takes turns in, and how long a round is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// Number of the share among those of its GPU that are used in turns.
    pub partition: u32,
    /// Time in which each model of the share runs one batch, ms.
    pub round_ms: f64,
}

/// Positions of the turns that make one share each, in the order of their first; each `None` is a share of its own.
pub fn shares(turns: impl IntoIterator<Item = Option<Turn>>) -> Vec<Vec<usize>> {
    let mut shares: Vec<Vec<usize>> = Vec::new();
    let mut of_turn = BTreeMap::new();
    for (at, turn) in turns.into_iter().enumerate() {
        match turn.map(|turn| *of_turn.entry(turn.partition).or_insert(shares.len())) {
            Some(share) if share < shares.len() => shares[share].push(at),
            _ => shares.push(vec![at]),
        }
    }
    shares
}

/// What the shares bring to the cost of their GPU: models in turns together, others alone.
pub fn loads(models: &[(Load, Option<Turn>)]) -> Vec<Load> {
    let together = |share: Vec<usize>| match share.as_slice() {
        [alone] => models[*alone].0,
        members => {
            let sum = |of: fn(&Load) -> f64| members.iter().map(|&at| of(&models[at].0)).sum::<f64>();
            let latency_ms = sum(|l| l.latency_ms);
            let dynamic_w = sum(|l| l.dynamic_w * l.latency_ms) / latency_ms;
            let average_w = sum(|l| l.dynamic_w * l.duty);
            let duty = if dynamic_w == 0.0 { sum(|l| l.duty) } else { average_w / dynamic_w };
            Load { latency_ms, dynamic_w, duty }
        }
    };
    shares(models.iter().map(|(_, turn)| *turn)).into_iter().map(together).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::average_w;
    use proptest::prelude::*;

    fn turn(partition: u32) -> Option<Turn> {
        Some(Turn { partition, round_ms: 50.0 })
    }

    #[test]
    fn partitions_of_one_turn_are_one_share() {
        assert_eq!(shares([None, turn(1), None, turn(0), turn(1)]), [vec![0], vec![1, 4], vec![2], vec![3]]);
        assert!(shares([]).is_empty());
    }

    #[test]
    fn a_share_in_turns_draws_its_mean_power_for_all_its_batches() {
        let load = |latency_ms, dynamic_w, duty| Load { latency_ms, dynamic_w, duty };
        let models =
            [(load(10.0, 40.0, 0.2), turn(0)), (load(5.0, 8.0, 1.0), None), (load(30.0, 20.0, 0.5), turn(0))];
        // 400 + 600 mJ over 40 ms; 8 + 10 W on average.
        assert_eq!(loads(&models), [load(40.0, 25.0, 0.72), load(5.0, 8.0, 1.0)]);
        let dark = [(load(10.0, 0.0, 0.2), turn(0)), (load(30.0, 0.0, 0.5), turn(0))];
        assert_eq!(loads(&dark), [load(40.0, 0.0, 0.7)]);
    }

    proptest! {
        #[test]
        fn average_power_is_that_of_the_models_and_duty_is_a_part(
            models in proptest::collection::vec((0.1f64..100.0, 0.1f64..200.0, 0.0f64..1.0), 2..4),
            idle in 0.0f64..0.5,
        ) {
            let round_ms = models.iter().map(|m| m.0).sum::<f64>() / (1.0 - idle);
            let all: Vec<_> = models
                .iter()
                .map(|&(latency_ms, dynamic_w, part)| {
                    let duty = part * latency_ms / round_ms;
                    (Load { latency_ms, dynamic_w, duty }, turn(0))
                })
                .collect();
            let alone: Vec<Load> = all.iter().map(|(load, _)| *load).collect();
            let together = loads(&all);
            prop_assert_eq!(together.len(), 1);
            prop_assert!((average_w(40.0, &together) - average_w(40.0, &alone)).abs() < 1e-9 * average_w(40.0, &alone));
            prop_assert!((0.0..=1.0 + 1e-12).contains(&together[0].duty));
        }
    }
}
