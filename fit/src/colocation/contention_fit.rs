//! Coefficients of the contention rule from measured sets.
//!
//! Rule: 1. slowdown times what the clock explains, minus 1, is linear in the coefficients: least squares on relative errors
//! with coefficients ≥ 0 and a small ridge. 2. The exponent of power is the one of 0, 0.01 … 1 with the least mean error of
//! shared power over the sets whose clock was not held down. 3. Where sets were held: the limit is the median of their
//! power, and the exponent of the clock the median of what each says.
//!
//! Source of the first step: Lawson and Hanson, *Solving Least Squares Problems*, chapter 23.

use nalgebra::{DMatrix, DVector};

use super::contention::{Contention, POWER_PER_CLOCK, slower, sm_use};
use super::error::ColocationError;
use super::member::Member;
use super::set::MeasuredSet;
use crate::base::median;
use crate::nonnegative;

/// Sets without which the coefficients mean nothing.
const LEAST_SETS: usize = 8;
/// Added to each diagonal element, as a share of it.
const RIDGE: f64 = 0.01;
/// A clock this close to the one asked for says nothing about how power follows it.
const TOO_CLOSE: f64 = 0.99;

/// Coefficients of the rule: any, gap, short, memory.
const TERMS: usize = 4;

fn terms(members: &[Member], at: usize, shortest_ms: f64) -> [f64; TERMS] {
    let (mut sm, mut dram) = (0.0, 0.0);
    for (_, other) in members.iter().enumerate().filter(|(i, _)| *i != at) {
        sm += sm_use(other).0;
        dram += other.dram_util.unwrap_or(0.0);
    }
    let own = &members[at];
    let short = own.batch_time_ms().max(shortest_ms).sqrt();
    [sm, sm * sm_use(own).1, sm / short, dram * own.dram_util.unwrap_or(0.0)]
}

/// Fits the coefficients.
pub(crate) fn fit(sets: &[MeasuredSet]) -> Result<Contention, ColocationError> {
    // MIG instances do not contend, and sets below two members have nobody to contend with.
    let sets: Vec<&MeasuredSet> =
        sets.iter().filter(|s| s.members.len() > 1 && !s.members.iter().any(Member::is_mig)).collect();
    if sets.len() < LEAST_SETS {
        let (found, needed) = (sets.len(), LEAST_SETS);
        return Err(ColocationError::TooFewSets { rule: "contention", found, needed, left_out: Vec::new() });
    }
    let times = sets.iter().flat_map(|s| &s.members).map(Member::batch_time_ms);
    let mut rule = Contention { shortest_ms: times.fold(f64::INFINITY, f64::min), ..Contention::default() };
    let (mut gram, mut rhs) = (DMatrix::zeros(TERMS, TERMS), DVector::zeros(TERMS));
    for set in &sets {
        for (i, slowdown) in set.slowdowns.iter().enumerate() {
            let Some(slowdown) = slowdown else { continue };
            let contention = slowdown / slower(&set.members[i], set.clock.unwrap_or(1.0));
            let x = DVector::from_row_slice(&terms(&set.members, i, rule.shortest_ms)) / contention;
            gram += &x * x.transpose();
            rhs += &x * ((contention - 1.0) / contention);
        }
    }
    for i in 0..TERMS {
        gram[(i, i)] *= 1.0 + RIDGE;
    }
    let found = nonnegative::solve(&gram, &rhs);
    [rule.any, rule.gap, rule.short, rule.memory] = [found[0], found[1], found[2], found[3]];
    rule.power_exponent = power_exponent(&rule, &sets);
    let mut limits: Vec<f64> = sets.iter().filter(|s| s.is_limited()).filter_map(|s| s.power_w).collect();
    rule.limit_w = (!limits.is_empty()).then(|| median(&mut limits));
    rule.power_per_clock = power_per_clock(&rule, &sets);
    Ok(rule)
}

/// The exponent with the least mean relative error of shared power.
fn power_exponent(rule: &Contention, sets: &[&MeasuredSet]) -> f64 {
    let error = |exponent: f64| {
        let rule = Contention { power_exponent: exponent, ..*rule };
        let of = |set: &&MeasuredSet| {
            let measured = set.power_w?;
            Some(((set.gpu.base_w + dynamic_w(&rule, set)) / measured - 1.0).abs())
        };
        sets.iter().filter(|s| !s.is_limited()).filter_map(of).sum::<f64>()
    };
    let exponents = (0..=100).map(|i| f64::from(i) / 100.0);
    exponents.map(|e| (error(e), e)).min_by(|a, b| a.0.total_cmp(&b.0)).map_or(0.0, |(_, e)| e)
}

fn dynamic_w(rule: &Contention, set: &MeasuredSet) -> f64 {
    let members: Vec<&Member> = set.members.iter().collect();
    rule.dynamic_w(&members, &rule.settle(&members, 1.0), 1.0)
}

/// The median of ln(power measured ÷ power wanted) / ln(clock) over the sets that were held.
fn power_per_clock(rule: &Contention, sets: &[&MeasuredSet]) -> f64 {
    let of = |set: &&MeasuredSet| {
        let clock = set.clock.filter(|clock| *clock < TOO_CLOSE)?;
        let measured = set.power_w? - set.gpu.base_w;
        let wanted = dynamic_w(rule, set);
        (measured > 0.0 && wanted > measured).then(|| (measured / wanted).ln() / clock.ln())
    };
    let mut found: Vec<f64> = sets.iter().filter(|s| s.is_limited()).filter_map(of).collect();
    if found.is_empty() { POWER_PER_CLOCK } else { median(&mut found).clamp(1.0, 4.0) }
}
