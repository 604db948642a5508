use gpumon_core::units::Megahertz;

use super::*;
use crate::batch_time::BatchTime;
use crate::batch_time::tests::{grid, truth};

const BASE_W: f64 = 50.0;

pub(super) fn base() -> BasePower {
    BasePower::of_table(&[(Megahertz(210), BASE_W, 0.0, 0.0)]).unwrap()
}

/// A made-up model: `bulk` scales its work, `launch` its launching.
pub(super) fn observed(point: Point, bulk: f64, launch: f64) -> Observation {
    let mut time: BatchTime = truth();
    time.sm_cycles_per_item.value *= bulk;
    time.launch_ms.value *= launch;
    let ms = time.at_ms(&point).unwrap();
    let busy = (time.sm_cycles_per_item.value * point.batch_items() / (point.share.sms() * point.ghz()) / ms)
        .min(1.0);
    let volts = 1.0 + 0.8 * (point.ghz() - 0.81).max(0.0);
    let dynamic_w = 10.0 + 150.0 * busy * point.share.sms() * point.ghz() * volts * volts;
    Observation {
        point,
        average_w: Some(BASE_W + dynamic_w),
        dynamic_w: Some(dynamic_w),
        throughput: Some(1e3 * point.batch_items() / ms),
        latency_ms: None,
        tail: None,
    }
}

pub(super) fn model(bulk: f64, launch: f64) -> Observations {
    let points = grid().into_iter().map(|p| observed(p, bulk, launch)).collect();
    Observations {
        model: format!("{bulk} {launch}"),
        points,
        dropped: vec![],
        remarks: vec![],
        dynamic_refused: None,
    }
}

/// Measures `count` points by choice; gives their numbers.
fn choose(belief: &mut Belief, of: &Observations, count: usize) -> Vec<usize> {
    let mut left: Vec<(usize, f64)> = (0..of.points.len()).map(|i| (i, 14.0)).collect();
    (0..count)
        .map(|_| {
            let next = belief.best(&left).unwrap();
            left.retain(|(i, _)| *i != next);
            assert!(belief.see(&of.points[next]));
            next
        })
        .collect()
}

/// Median relative errors of batch time and total power at points that were not measured.
pub(super) fn errors(belief: &Belief, of: &Observations) -> [f64; 2] {
    let left: Vec<_> = of.points.iter().enumerate().filter(|(i, _)| !belief.measured[*i]).collect();
    let median = |value: &dyn Fn(usize, &Observation) -> f64| {
        let mut all: Vec<f64> = left.iter().map(|(i, o)| value(*i, o).abs()).collect();
        crate::base::median(&mut all)
    };
    [
        median(&|i, o| belief.at(i).unwrap().batch_time_ms / o.batch_time_ms().unwrap() - 1.0),
        median(&|i, o| belief.at(i).unwrap().average_w.unwrap() / o.average_w.unwrap() - 1.0),
    ]
}

#[test]
fn a_few_points_are_enough_and_the_expected_error_is_honest() {
    let of = model(1.7, 0.6);
    let known = [model(0.3, 1.0), model(1.0, 2.0), model(4.0, 0.5)];
    for known in [&known[..0], &known] {
        let mut belief = Belief::new(&grid(), known, Some(&base()), None).unwrap();
        assert_eq!(belief.known_models(), known.len());
        let before = belief.expected_error();
        choose(&mut belief, &of, 10);
        let (expected, [time, power]) = (belief.expected_error(), errors(&belief, &of));
        println!("{} known: {before:?} → {expected:?}, in truth {time:.4} {power:.4}", known.len());
        assert!(expected.batch_time < 0.5 * before.batch_time && expected.power < 0.5 * before.power);
        // The model has no noise, the expectation counts some; neither may be far off.
        assert!(time < 2.0 * expected.batch_time && power < 2.0 * expected.power);
        assert!(expected.batch_time < 0.08 && expected.power < 0.06);
    }
}

#[test]
fn a_model_unlike_the_others_has_larger_expected_errors() {
    let known: Vec<_> = [0.8, 0.9, 1.0, 1.1, 1.25].map(|bulk| model(bulk, 1.0)).into();
    let expected = |of: &Observations| {
        let mut belief = Belief::new(&grid(), &known, Some(&base()), None).unwrap();
        choose(&mut belief, of, 8);
        belief.expected_error().batch_time
    };
    assert!(expected(&model(20.0, 0.1)) > 1.5 * expected(&model(1.05, 1.0)));
}

#[test]
fn cheap_points_are_preferred_and_seen_ones_tell_nothing_new() {
    let belief = Belief::new(&grid(), &[], Some(&base()), None).unwrap();
    let all: Vec<(usize, f64)> = (0..grid().len()).map(|i| (i, 14.0)).collect();
    let best = belief.best(&all).unwrap();
    let dear: Vec<_> = all.iter().map(|&(i, s)| (i, if i == best { 1e6 } else { s })).collect();
    assert_ne!(belief.best(&dear), Some(best));
    assert_eq!(belief.best(&[]), None);
    let mut after = belief.clone();
    after.see(&observed(grid()[best], 1.0, 1.0));
    assert_ne!(after.best(&all), Some(best));
}

#[test]
fn the_same_points_give_the_same_choice_again() {
    let of = model(1.0, 1.0);
    let begin = || Belief::new(&grid(), &[model(2.0, 2.0)], Some(&base()), None).unwrap();
    let (mut whole, mut resumed) = (begin(), begin());
    let chosen = choose(&mut whole, &of, 6);
    chosen[..4].iter().for_each(|i| assert!(resumed.see(&of.points[*i])));
    let left: Vec<_> = (0..of.points.len()).filter(|i| !chosen[..4].contains(i)).map(|i| (i, 14.0)).collect();
    assert_eq!(resumed.best(&left), Some(chosen[4]));
}

#[test]
fn what_cannot_be_believed_is_none() {
    assert!(Belief::new(&[], &[], None, None).is_none());
    assert!(Belief::new(&vec![grid()[0]; MOST + 1], &[], None, None).is_none());
    let none = Point { share: crate::point::Share::Slices(5), ..grid()[0] };
    assert!(Belief::new(&[none], &[], None, None).is_none());
    let mut belief = Belief::new(&grid()[..3], &[], None, None).unwrap();
    assert!(!belief.see(&observed(grid()[20], 1.0, 1.0)));
    assert_eq!(belief.at(0).unwrap().average_w, None);
    assert!(belief.at(3).is_none());
}
