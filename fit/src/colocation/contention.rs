//! Slowdown from contention, dynamic power that falls with it, and the power limit as a fixed point.
//!
//! Rule: with uᵢ the SM activity and vᵢ the DRAM activity of member i alone (shares of the whole GPU), sᵢ its share of the SMs,
//! tᵢ its batch time alone in ms, and duty the share of the time that a member works:
//!
//! ```text
//! kᵢ = any + gap · (1 − uᵢ / sᵢ) + short / √tᵢ
//! cᵢ = 1 + kᵢ · Σⱼ dutyⱼ uⱼ + memory · vᵢ · Σⱼ dutyⱼ vⱼ          j ≠ i; contention
//! slowdownᵢ = cᵢ · x^(−time_per_clock)                           x: clock over the clock asked for
//! dutyᵢ     = min(1, rateᵢ / throughputᵢ · slowdownᵢ)
//! power     = base + Σ dutyᵢ · dᵢ · cᵢ^(−power_exponent) · x^power_per_clock
//! x         = the largest clock at which power ≤ limit, in every subset of the members
//! ```
//!
//! A model whose SMs stand idle between its kernels (gap) waits most, because each of its short kernels has to get
//! between those of the others. While a member waits it draws less, though not in proportion.
//!
//! Cases: MIG instances have memory, cache and SMs of their own (c = 1); the clock still couples them. Of a
//! member alone nothing changes, up to the limit itself; sets stay a little below it (`limit_w`). Elasticities come from the
//! member where its model saw several clocks. SM activity that is unknown counts as the whole share. Since all
//! coefficients are ≥ 0 and the clock is the least of all subsets', a further member never makes another faster.
//!
//! Not done: saturated memory bandwidth (the linear term only), cache sizes, waiting for a batch's turn at partial load.
//!
//! Source: the form is ours; the coefficients are fitted on measured sets (docs/colocation.md). Dynamic power ∝ V² f lies
//! between f and f³, hence 2.5 where no set says more.

use serde::{Deserialize, Serialize};

use super::error::ColocationError;
use super::member::{Gpu, Member};
use super::set::MeasuredSet;
use super::{MemberTogether, Rule, Together, contention_fit};

/// Power follows the clock with this exponent where no set at the limit says another.
pub(crate) const POWER_PER_CLOCK: f64 = 2.5;
/// No clock falls below this part of the one asked for.
const LOWEST_CLOCK: f64 = 0.1;
/// Halvings of the interval in which the clock lies.
const HALVINGS: usize = 50;
/// Rounds of duty and contention; each moves both upwards.
const ROUNDS: usize = 1000;

/// Coefficients of the contention rule; without a fit, nothing but the clock couples members.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Contention {
    /// Slowdown for each SM activity of others, of any member.
    pub any: f64,
    /// The same, times the share of a member's SM time without a warp.
    pub gap: f64,
    /// The same, over √(batch time in ms).
    pub short: f64,
    /// Slowdown for DRAM activity of others times one's own.
    pub memory: f64,
    /// Batches count as no shorter than this, ms: the shortest of the fit.
    pub shortest_ms: f64,
    /// Dynamic power falls with contention to this power, 0 to 1.
    pub power_exponent: f64,
    /// Dynamic power follows the clock to this power.
    pub power_per_clock: f64,
    /// Power at which sets were held, W; `None` if none was.
    pub limit_w: Option<f64>,
}

impl Default for Contention {
    fn default() -> Self {
        Self {
            any: 0.0,
            gap: 0.0,
            short: 0.0,
            memory: 0.0,
            shortest_ms: 1.0,
            power_exponent: 0.0,
            power_per_clock: POWER_PER_CLOCK,
            limit_w: None,
        }
    }
}

/// SM activity, and the share of the member's own SM time without a warp.
pub(crate) fn sm_use(member: &Member) -> (f64, f64) {
    let share = member.point.share.sms();
    let sm = member.sm_util.unwrap_or(share);
    (sm, (1.0 - sm / share).clamp(0.0, 1.0))
}

/// A set at some clock.
pub(crate) struct Settled {
    /// Contention of each member, at least 1.
    pub contention: Vec<f64>,
    /// Share of the time that each works.
    pub duty: Vec<f64>,
}

impl Contention {
    /// Whether the coefficients are such as a fit gives.
    pub(crate) fn is_sound(&self) -> bool {
        let numbers = [self.any, self.gap, self.short, self.memory];
        numbers.iter().all(|c| c.is_finite() && *c >= 0.0)
            && self.shortest_ms > 0.0
            && (0.0..=1.0).contains(&self.power_exponent)
            && (1.0..=4.0).contains(&self.power_per_clock)
            && self.limit_w.is_none_or(|w| w.is_finite() && w > 0.0)
    }

    fn sensitivity(&self, member: &Member) -> f64 {
        let (_, gap) = sm_use(member);
        self.any + self.gap * gap + self.short / member.batch_time_ms().max(self.shortest_ms).sqrt()
    }

    /// Contention and duty at a clock: the least fixed point, from below.
    pub(crate) fn settle(&self, members: &[&Member], clock: f64) -> Settled {
        let coupled = members.len() > 1 && !members.iter().any(|m| m.is_mig());
        let own: Vec<(f64, f64, f64)> = (members.iter())
            .map(|m| (self.sensitivity(m), sm_use(m).0, m.dram_util.unwrap_or(0.0)))
            .collect();
        let mut contention = vec![1.0; members.len()];
        let mut duty = vec![0.0; members.len()];
        for _ in 0..ROUNDS {
            for ((duty, member), c) in duty.iter_mut().zip(members).zip(&contention) {
                *duty = (member.offered() * c * slower(member, clock)).min(1.0);
            }
            let mut moved = 0.0f64;
            for i in 0..members.len() {
                let others = |value: fn(&(f64, f64, f64)) -> f64| -> f64 {
                    let all = own.iter().zip(&duty).enumerate().filter(|(j, _)| *j != i);
                    all.map(|(_, (o, duty))| value(o) * duty).sum()
                };
                let (sensitivity, _, dram) = own[i];
                let next = match coupled {
                    true => 1.0 + sensitivity * others(|o| o.1) + self.memory * dram * others(|o| o.2),
                    false => 1.0,
                };
                moved = moved.max((next - contention[i]) / next);
                contention[i] = next;
            }
            if moved <= 1e-13 {
                break;
            }
        }
        Settled { contention, duty }
    }

    /// Power above the base that members would draw at a clock, W.
    pub(crate) fn dynamic_w(&self, members: &[&Member], settled: &Settled, clock: f64) -> f64 {
        let all = members.iter().zip(&settled.contention).zip(&settled.duty);
        all.map(|((m, c), duty)| {
            let exponent = m.power_per_clock.unwrap_or(self.power_per_clock);
            duty * m.dynamic_w.value * c.powf(-self.power_exponent) * clock.powf(exponent)
        })
        .sum()
    }

    fn limit_w(&self, gpu: &Gpu, members: usize) -> Option<f64> {
        match (members, gpu.cap_w, self.limit_w) {
            (1, cap, _) | (_, cap, None) => cap,
            (_, Some(cap), Some(limit)) => Some(cap.min(limit)),
            (_, None, limit) => limit,
        }
    }

    /// The largest clock at which exactly these members stay within the limit.
    fn clock_of(&self, gpu: &Gpu, members: &[&Member]) -> f64 {
        let Some(limit) = self.limit_w(gpu, members.len()) else { return 1.0 };
        let fits = |clock: f64| {
            let settled = self.settle(members, clock);
            gpu.base_w + self.dynamic_w(members, &settled, clock) <= limit
        };
        if fits(1.0) {
            return 1.0;
        }
        let (mut low, mut high) = (LOWEST_CLOCK, 1.0);
        for _ in 0..HALVINGS {
            let middle = (low + high) / 2.0;
            if fits(middle) { low = middle } else { high = middle }
        }
        low
    }

    /// The least clock of all subsets.
    fn clock(&self, gpu: &Gpu, members: &[Member]) -> f64 {
        let most: f64 = members.iter().map(|m| m.dynamic_w.value).sum();
        // No subset can draw more than all dynamic power, and sets are held no higher than single members.
        if self.limit_w(gpu, members.len()).is_none_or(|limit| gpu.base_w + most <= limit) {
            return 1.0;
        }
        let subsets = 1..1u32 << members.len().min(super::MOST_MEMBERS);
        let clock = |subset: u32| {
            let chosen = members.iter().enumerate().filter(|(i, _)| subset >> i & 1 == 1);
            self.clock_of(gpu, &chosen.map(|(_, m)| m).collect::<Vec<_>>())
        };
        subsets.map(clock).fold(1.0, f64::min)
    }
}

/// How much longer a batch takes at a lower clock.
pub(crate) fn slower(member: &Member, clock: f64) -> f64 {
    clock.powf(-member.time_per_clock.unwrap_or(1.0))
}

impl Rule for Contention {
    fn name(&self) -> &'static str {
        "contention"
    }

    fn fit(&mut self, sets: &[MeasuredSet]) -> Result<(), ColocationError> {
        *self = contention_fit::fit(sets)?;
        Ok(())
    }

    fn together(&self, gpu: &Gpu, members: &[Member]) -> Together {
        let clock = self.clock(gpu, members);
        let all: Vec<&Member> = members.iter().collect();
        let settled = self.settle(&all, clock);
        let wanted = gpu.base_w + self.dynamic_w(&all, &settled, clock);
        let limit = self.limit_w(gpu, members.len());
        let together = settled.contention.iter().zip(&settled.duty).zip(members);
        let together = together
            .map(|((c, duty), m)| MemberTogether { slowdown: c * slower(m, clock), duty: *duty })
            .collect();
        Together { members: together, power_w: limit.map_or(wanted, |limit| wanted.min(limit)), clock }
    }
}
