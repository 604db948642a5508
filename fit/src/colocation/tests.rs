//! One suite over all rules, known answers, and properties that hold for any coefficients.

use gpumon_core::units::Megahertz;
use proptest::prelude::*;

use super::contention::Contention;
use super::error::ColocationError;
use super::member::{Gpu, Member, check};
use super::quality::{Leave, quality};
use super::set::MeasuredSet;
use super::{MOST_MEMBERS, Rule, Together, rules};
use crate::point::{Point, Share};
use crate::predict::Interval;

fn member(share: Share, items_per_s: f64, dynamic_w: f64, sm: f64, dram: f64) -> Member {
    let known = |value| Interval { value, low: None, high: None };
    Member {
        model: "a".into(),
        point: Point { batch: 8, share, frequency: Megahertz(1980), processes: 1 },
        throughput: known(items_per_s),
        latency_ms: known(8e3 / items_per_s),
        dynamic_w: known(dynamic_w),
        sm_util: Some(sm),
        dram_util: Some(dram),
        time_per_clock: None,
        power_per_clock: None,
        rate_rps: None,
        extrapolated: false,
        seen: false,
    }
}

const GPU: Gpu = Gpu { base_w: 125.0, static_w: Some(80.0), cap_w: Some(700.0) };

/// Two members of half the SMs each, 8 ms a batch.
fn two() -> Vec<Member> {
    vec![member(Share::Sms(0.5), 1000.0, 100.0, 0.5, 0.1), member(Share::Sms(0.5), 1000.0, 200.0, 0.25, 0.2)]
}

fn contention() -> Contention {
    Contention {
        any: 0.1,
        gap: 0.4,
        short: 0.2,
        memory: 1.0,
        shortest_ms: 1.0,
        power_exponent: 0.5,
        power_per_clock: 2.0,
        limit_w: Some(690.0),
    }
}

/// Sets as `rule` has them, of various members.
fn measured(rule: &dyn Rule, gpu: Gpu) -> Vec<MeasuredSet> {
    let set = |number: i32| {
        let n = f64::from(number);
        let shares = [[0.14, 0.29, 0.57], [0.29, 0.57, 0.14], [0.43, 0.14, 0.29]][number as usize % 3];
        let members = 2 + number as usize / 3 % 2;
        let of = |i: usize| {
            let at = (n * 0.37 + i as f64 * 0.61).fract();
            let sm = shares[i] * (0.3 + 0.7 * at);
            let watts = 60.0 + 600.0 * sm * (1.2 - at);
            let member =
                member(Share::Sms(shares[i]), 200.0 + 6000.0 * at * at, watts, sm, 0.3 * sm * (1.0 - at));
            Member { model: format!("{}", (number as usize + i) % 7), ..member }
        };
        let members: Vec<Member> = (0..members).map(of).collect();
        let said = rule.together(&gpu, &members);
        let slowdowns: Vec<Option<f64>> = said.members.iter().map(|m| Some(m.slowdown)).collect();
        let stretches = slowdowns.clone();
        MeasuredSet {
            number,
            gpu,
            members,
            power_w: Some(said.power_w),
            slowdowns,
            stretches,
            clock: Some(said.clock),
        }
    };
    (0..30).map(set).collect()
}

fn fitted() -> Vec<Box<dyn Rule>> {
    let sets = measured(&contention(), GPU);
    let mut rules = rules();
    rules.iter_mut().for_each(|rule| rule.fit(&sets).unwrap());
    rules
}

fn base_w(said: &Together) -> f64 {
    said.power_w
}

#[test]
fn every_rule_keeps_to_what_all_promise() {
    let names: Vec<&str> = rules().iter().map(|r| r.name()).collect();
    assert_eq!(names, ["contention", "enertune", "additive", "gpulets"]);
    for rule in fitted().iter().chain(&rules()) {
        for one in two() {
            let said = rule.together(&GPU, std::slice::from_ref(&one));
            assert_eq!(said.members[0].slowdown, 1.0, "{}", rule.name());
            assert!((said.power_w - 125.0 - one.dynamic_w.value).abs() < 1e-9, "{}", rule.name());
        }
        let mut busy = two();
        let both = rule.together(&GPU, &busy);
        assert_eq!(both.members.len(), 2);
        assert!(both.members.iter().all(|m| m.slowdown >= 1.0 && m.duty == 1.0), "{}", rule.name());
        // Half the rate, and less than half the time: power falls.
        busy[1].rate_rps = Some(400.0);
        let part = rule.together(&GPU, &busy);
        assert!(part.members[1].duty < 1.0 && part.power_w < both.power_w, "{}", rule.name());
    }
}

#[test]
fn rules_have_known_answers() {
    let said: Vec<Together> = rules().iter().map(|r| r.together(&GPU, &two())).collect();
    // Without a fit nothing but the clock couples them; fan and idle power twice is 45 W more.
    assert_eq!(said.iter().map(base_w).collect::<Vec<_>>(), [425.0, 425.0, 470.0, 425.0]);
    let said = contention().together(&GPU, &two());
    // SMs of the first never idle, of the second half the time; 8 ms a batch.
    let short = 0.2 / 8f64.sqrt();
    let first = 1.0 + (0.1 + short) * 0.25 + 0.1 * 0.2;
    let second = 1.0 + (0.1 + 0.4 * 0.5 + short) * 0.5 + 0.2 * 0.1;
    let found: Vec<f64> = said.members.iter().map(|m| m.slowdown).collect();
    assert!((found[0] - first).abs() < 1e-12 && (found[1] - second).abs() < 1e-12, "{found:?}");
    let power = 125.0 + 100.0 / first.sqrt() + 200.0 / second.sqrt();
    assert!((said.power_w - power).abs() < 1e-9 && !said.is_limited());
}

#[test]
fn at_the_limit_the_clock_falls_until_the_power_fits() {
    let gpu = Gpu { cap_w: Some(350.0), ..GPU };
    let rule = Contention { limit_w: None, ..Contention::default() };
    let said = rule.together(&gpu, &two());
    // 300 W · x^2.5 = 225 W.
    let clock = 0.75f64.powf(1.0 / 2.5);
    assert!((said.clock - clock).abs() < 1e-9 && (said.power_w - 350.0).abs() < 1e-6, "{said:?}");
    assert!((said.members[0].slowdown - 1.0 / clock).abs() < 1e-9);
    // Elasticities of the members come first: time that no clock shortens does not grow.
    let mut members = two();
    members[0].time_per_clock = Some(0.0);
    members.iter_mut().for_each(|m| m.power_per_clock = Some(1.0));
    let said = rule.together(&gpu, &members);
    assert!((said.clock - 0.75).abs() < 1e-9);
    assert_eq!(said.members[0].slowdown, 1.0);
    // Sets are held where sets were measured to be held, a member alone at the cap.
    let held = Contention { limit_w: Some(340.0), ..rule };
    assert!((held.together(&gpu, &two()).power_w - 340.0).abs() < 1e-6);
    let large = [member(Share::Sms(1.0), 1000.0, 300.0, 1.0, 0.1)];
    assert!((held.together(&gpu, &large).power_w - 350.0).abs() < 1e-6);
}

#[test]
fn mig_instances_are_coupled_by_the_clock_alone() {
    let members = vec![
        member(Share::Slices(4), 1000.0, 300.0, 0.5, 0.3),
        member(Share::Slices(3), 1000.0, 300.0, 0.3, 0.3),
    ];
    for rule in fitted() {
        let free = rule.together(&Gpu { cap_w: None, ..GPU }, &members);
        let limited = free.is_limited();
        assert!(free.members.iter().all(|m| (m.slowdown == 1.0) != limited), "{}", rule.name());
    }
    let wide = Contention { limit_w: None, ..contention() };
    assert_eq!(wide.together(&Gpu { cap_w: None, ..GPU }, &members).members[0].slowdown, 1.0);
    let held = wide.together(&GPU, &members);
    assert!(held.is_limited() && held.members[0].slowdown == held.members[1].slowdown);
}

#[test]
fn at_partial_load_a_slower_member_works_longer_and_disturbs_others_less() {
    let mut members = two();
    members[1].rate_rps = Some(500.0);
    let said = contention().together(&GPU, &members);
    let [first, second] = [said.members[0], said.members[1]];
    let full = contention().together(&GPU, &two());
    assert!((second.duty - 0.5 * second.slowdown).abs() < 1e-9);
    assert!(first.slowdown < full.members[0].slowdown);
    // It asks for more than it can do together, though not alone.
    members[1].rate_rps = Some(999.0);
    assert_eq!(contention().together(&GPU, &members).members[1].duty, 1.0);
}

#[test]
fn a_fit_finds_the_coefficients_that_made_the_sets() {
    let gpu = Gpu { cap_w: Some(480.0), ..GPU };
    let truth = Contention { limit_w: Some(470.0), ..contention() };
    let sets = measured(&truth, gpu);
    let limited = sets.iter().filter(|s| s.is_limited()).count();
    assert!((3..25).contains(&limited), "{limited}");
    let mut found = Contention::default();
    found.fit(&sets).unwrap();
    let close = |a: f64, b: f64, within: f64| (a - b).abs() <= within;
    // The ridge pulls them towards each other by a hundredth of their weight.
    assert!(close(found.any, truth.any, 0.05) && close(found.gap, truth.gap, 0.05), "{found:?}");
    assert!(close(found.short, truth.short, 0.05), "{found:?}");
    assert!(close(found.power_exponent, 0.5, 0.02) && close(found.power_per_clock, 2.0, 0.05), "{found:?}");
    assert!(close(found.limit_w.unwrap(), 470.0, 0.01));
    let (own, intervals) = quality(&|| Box::new(Contention::default()), &sets, Leave::Members);
    assert!(own.slowdown.all.unwrap().mean_pct < 1.0 && own.power.all.unwrap().mean_pct < 1.0, "{own:?}");
    assert!(intervals.power.unwrap()[0] > 0.97 && own.sets == sets.len());
    let few = found.fit(&sets[..5]).unwrap_err();
    assert!(few.to_string().contains("5 usable sets, but at least 8"), "{few}");
}

#[test]
fn a_set_takes_those_that_share_a_pair_with_it() {
    let sets = measured(&contention(), GPU);
    let of = |members: Vec<Member>| MeasuredSet { members, ..sets[0].clone() };
    let named = |name: &str, batch: u32| {
        let mut member = two()[0].clone();
        (member.model, member.point.batch) = (name.into(), batch);
        member
    };
    let all = of(vec![named("a", 1), named("b", 1), named("c", 1)]);
    assert!(all.shares_a_pair(&of(vec![named("c", 1), named("a", 1)])));
    assert!(!all.shares_a_pair(&of(vec![named("a", 1), named("b", 2)])));
    assert!(all.shares_two_models(&of(vec![named("a", 1), named("b", 2)])));
    // The same model twice is a pair only against a set that has it twice.
    assert!(!all.shares_a_pair(&of(vec![named("a", 1), named("a", 1)])));
}

#[test]
fn sets_that_cannot_be_are_explained() {
    let said = |gpu: &Gpu, members: &[Member]| match check(gpu, members).unwrap_err() {
        ColocationError::BadSet { what, .. } => what,
        other => other.to_string(),
    };
    let mps = |share| member(Share::Sms(share), 1000.0, 10.0, 0.1, 0.1);
    let mig = |slices| member(Share::Slices(slices), 1000.0, 10.0, 0.1, 0.1);
    assert!(check(&GPU, &[mps(0.34), mps(0.33), mps(0.34)]).is_ok(), "rounded thirds");
    assert!(check(&GPU, &[mig(3), mig(2), mig(2)]).is_ok());
    assert!(said(&GPU, &[]).contains("no members"));
    assert!(said(&GPU, &[mps(0.6), mps(0.5)]).contains("add up to 1.100"));
    assert!(said(&GPU, &[mig(3), mig(3), mig(1)]).contains("3 + 3 + 1"));
    assert!(said(&GPU, &[mig(3), mps(0.5)]).contains("MIG slices"));
    assert!(said(&GPU, &vec![mps(0.05); MOST_MEMBERS + 1]).contains("13 members"));
    assert!(said(&Gpu { cap_w: Some(100.0), ..GPU }, &[mps(0.5)]).contains("125.0 W"));
    let mut other = mps(0.5);
    other.point.frequency = Megahertz(1000);
    assert!(said(&GPU, &[mps(0.5), other]).contains("1000 MHz"));
    let mut idle = mps(0.5);
    idle.rate_rps = Some(0.0);
    assert!(said(&GPU, &[idle]).contains("0 items"));
}

fn any_member() -> impl Strategy<Value = Member> {
    let numbers = (0.05..0.3f64, 10.0..9000.0f64, 0.0..500.0f64, 0.0..1.0f64, 0.0..0.5f64, any::<bool>());
    (numbers, 0.05..2.0f64).prop_map(|((share, items, watts, busy, dram, is_full), load)| {
        let rate = (!is_full).then_some(load * items);
        Member { rate_rps: rate, ..member(Share::Sms(share), items, watts, busy * share, dram) }
    })
}

fn any_rule() -> impl Strategy<Value = Contention> {
    (prop::array::uniform4(0.0..2.0f64), 0.0..1.0f64, 1.0..4.0f64, prop::option::of(200.0..690.0f64))
        .prop_map(|([any, gap, short, memory], power_exponent, power_per_clock, limit_w)| Contention {
            any,
            gap,
            short,
            memory,
            shortest_ms: 1.0,
            power_exponent,
            power_per_clock,
            limit_w,
        })
}

proptest! {
    #[test]
    fn no_member_gains_by_another(rule in any_rule(), members in prop::collection::vec(any_member(), 2..6)) {
        let all = rule.together(&GPU, &members);
        prop_assert!(all.power_w <= 700.0 && all.clock > 0.0 && all.clock <= 1.0);
        let (others, _) = members.split_at(members.len() - 1);
        let fewer = rule.together(&GPU, others);
        prop_assert!(all.clock <= fewer.clock);
        for (more, less) in all.members.iter().zip(&fewer.members) {
            prop_assert!(less.slowdown >= 1.0);
            prop_assert!(more.slowdown >= less.slowdown * (1.0 - 1e-9), "{} {}", more.slowdown, less.slowdown);
            prop_assert!(more.duty >= less.duty * (1.0 - 1e-9) && more.duty <= 1.0);
        }
    }

    #[test]
    fn alone_is_as_predicted_alone(rule in any_rule(), mut member in any_member()) {
        member.rate_rps = None;
        let said = rule.together(&GPU, std::slice::from_ref(&member));
        prop_assert_eq!(said.members[0].slowdown, 1.0);
        prop_assert!((said.power_w - 125.0 - member.dynamic_w.value).abs() < 1e-9);
    }
}
