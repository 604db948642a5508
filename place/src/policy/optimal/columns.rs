//! A tighter bound for up to a hundred models and some: what no plan costs less than even if GPUs were used in parts.
//!
//! Rule: each set of models that one GPU can run is a column with that GPU's cost; columns in parts that cover every model, of least total
//! cost, cost no more than the cheapest plan. That linear program has too many columns to list, so they are made when they are missed: each
//! model has a price from the columns so far, and at each clock and longest batch the set of most (price − weight) that fits is found by
//! dynamic programming over states of room. If the best sets are worth more than their GPU costs, they become columns; else the prices prove the bound.
//! Prices at which a GPU costs less than its set is worth still prove something: scaled by the least (cost / worth), no set is.
//! Cases: MIG with at most [`MOST`] models, and weights that are not below 0; else nothing is told. A bound on GPUs is a price a GPU, as in
//! [`super::rent`], which is taken from there. When the time is up, the best bound so far.
//! Not done: whole GPUs. What is left between bound and plan comes from there, or from the plan.
//!
//! Source: column generation (Gilmore and Gomory 1961) with the revised simplex method, and Farley's bound (1990).

use std::time::Instant;

use super::offers::Offers;
use crate::policy::room::State;

/// Most models: one bit each, and a round of looking for columns takes under a second.
pub const MOST: usize = 128;
/// Relative worth above its cost from which on a set is a new column.
const WORTHWHILE: f64 = 1e-7;
/// Longest batches are looked at in so many groups, each of which gives one column a clock and round.
const GROUPS: usize = 8;
/// One in so many longest batches is looked at while that finds columns.
const COARSE: usize = 6;
/// What rounding may make of the bound, relative.
const ROUNDING: f64 = 1e-9;

/// Models, one bit each.
type Set = u128;

/// A set of models on one GPU; or, if no model is in it, that a model is covered more than once.
#[derive(Clone, Copy, Debug)]
struct Column {
    set: Set,
    cost: f64,
    surplus: Option<usize>,
}

impl Column {
    /// What it is worth at these prices beyond its cost.
    fn gain(&self, prices: &[f64]) -> f64 {
        match self.surplus {
            Some(model) => -prices[model],
            None => members(self.set).map(|m| prices[m]).sum::<f64>() - self.cost,
        }
    }
}

fn members(mut set: Set) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let first = (set != 0).then(|| set.trailing_zeros() as usize);
        set &= set.wrapping_sub(1);
        first
    })
}

/// What no plan costs less than, where each GPU costs `per_gpu` more than it does and that is paid back for `gpus`.
pub fn bound(
    offers: &Offers,
    gpus: Option<u32>,
    per_gpu: f64,
    threads: usize,
    until: Instant,
) -> Option<f64> {
    let models = offers.problem.models.len();
    let market = Market::new(offers, per_gpu)?;
    let mut program = Program::new(market.alone(models)?);
    let mut pool: Vec<Column> = (0..models).map(|m| Column { set: 0, cost: 0.0, surplus: Some(m) }).collect();
    let mut best = None;
    let mut stride = COARSE;
    while Instant::now() < until {
        program.improve(&pool, until);
        let prices: Vec<f64> = program.prices().into_iter().map(|p| p.max(0.0)).collect();
        let found = market.missed(&prices, stride, threads);
        if stride == 1 {
            let scale = found.iter().map(|f| f.least).fold(1.0, f64::min);
            let paid_back = gpus.map_or(0.0, |n| per_gpu * f64::from(n));
            let bound = prices.iter().sum::<f64>() * scale * (1.0 - ROUNDING) - paid_back;
            best = Some(best.map_or(bound, |b: f64| b.max(bound)));
        }
        let before = pool.len();
        pool.extend(found.into_iter().flat_map(|f| f.columns));
        match pool.len() > before {
            true if stride > 1 => {}
            true => stride = COARSE,
            false if stride > 1 => stride = 1,
            false => break,
        }
    }
    best
}

/// What a model could run as at one clock and size: latency ascending, weight descending.
type Front = Vec<(f64, f64)>;

struct Market<'a> {
    offers: &'a Offers<'a>,
    per_gpu: f64,
    /// By clock its longest batches, ascending, ms.
    longest_ms: Vec<Vec<f64>>,
    /// By clock and model the sizes with their fronts.
    fronts: Vec<Vec<Vec<(u32, Front)>>>,
}

/// What was found at a clock.
struct Found {
    columns: Vec<Column>,
    /// The least cost of a GPU over what it is worth.
    least: f64,
}

impl<'a> Market<'a> {
    fn new(offers: &'a Offers<'a>, per_gpu: f64) -> Option<Self> {
        let (clocks, models) = (offers.terms.len(), offers.problem.models.len());
        let all = |clock: usize| (0..models).flat_map(move |m| offers.of(clock, m));
        let is_fit = models <= MOST && offers.room.states() > 0;
        if !is_fit || (0..clocks).flat_map(all).any(|o| o.weight < 0.0) {
            return None;
        }
        let longest_ms = (0..clocks).map(|clock| {
            let mut ms: Vec<f64> = all(clock).map(|o| o.latency_ms).collect();
            ms.sort_unstable_by(f64::total_cmp);
            ms.dedup();
            ms
        });
        let of_model = |clock: usize, model: usize| {
            let offers = offers.of(clock, model).chunk_by(|a, b| a.size == b.size);
            let front = |o: &[super::offers::Offer]| {
                (o[0].size, o.iter().map(|o| (o.latency_ms, o.weight)).collect())
            };
            offers.map(front).collect()
        };
        let fronts = (0..clocks).map(|clock| (0..models).map(|m| of_model(clock, m)).collect()).collect();
        Some(Self { offers, per_gpu, longest_ms: longest_ms.collect(), fronts })
    }

    /// What a GPU costs whose longest batch takes so long.
    fn cost(&self, clock: usize, longest_ms: f64) -> f64 {
        let terms = self.offers.terms[clock];
        terms.fixed + terms.per_latency * longest_ms + self.per_gpu
    }

    /// The cheapest column of each model alone; `None` if one has none.
    fn alone(&self, models: usize) -> Option<Vec<Column>> {
        let of_model = |model: usize| {
            let at = |clock: usize| {
                self.fronts[clock][model].iter().flat_map(|(_, front)| front).map(move |f| (clock, f))
            };
            let all = (0..self.fronts.len()).flat_map(at);
            let cost = all.map(|(clock, (ms, weight))| self.cost(clock, *ms) + weight).reduce(f64::min)?;
            Some(Column { set: 1 << model, cost, surplus: None })
        };
        (0..models).map(of_model).collect()
    }

    /// Sets that are worth more than their GPU costs, by clock, looking at one in `stride` longest batches.
    fn missed(&self, prices: &[f64], stride: usize, threads: usize) -> Vec<Found> {
        let clocks = self.longest_ms.len();
        let part = |first: usize| -> Vec<Found> {
            (first..clocks).step_by(threads).map(|clock| self.missed_at(clock, prices, stride)).collect()
        };
        std::thread::scope(|scope| {
            let started: Vec<_> = (1..threads).map(|first| scope.spawn(move || part(first))).collect();
            let own = part(0);
            let others = started.into_iter().map(|thread| thread.join());
            // A part that is missing proves nothing.
            let nothing = || vec![Found { columns: Vec::new(), least: 0.0 }];
            others.flat_map(|found| found.unwrap_or_else(|_| nothing())).chain(own).collect()
        })
    }

    fn missed_at(&self, clock: usize, prices: &[f64], stride: usize) -> Found {
        let longest = &self.longest_ms[clock];
        let mut found = Found { columns: Vec::new(), least: f64::INFINITY };
        let mut gains: Vec<Option<(f64, Column)>> = vec![None; GROUPS];
        let mut room = Knapsack::new(&self.offers.room);
        // The longest one first, so that a coarse look does not leave it out.
        for at in (0..longest.len()).rev().step_by(stride) {
            let (worth, set) = room.most(&self.fronts[clock], prices, longest[at]);
            let cost = self.cost(clock, longest[at]);
            if worth > 0.0 {
                found.least = found.least.min(cost / worth);
            }
            let group = &mut gains[at * GROUPS / longest.len()];
            if worth > cost * (1.0 + WORTHWHILE) && group.is_none_or(|(most, _)| worth - cost > most) {
                let paid: f64 = members(set).map(|m| prices[m]).sum();
                *group = Some((worth - cost, Column { set, cost: cost + paid - worth, surplus: None }));
            }
        }
        found.columns.extend(gains.into_iter().flatten().map(|(_, column)| column));
        found
    }
}

/// The most that fits on a GPU.
struct Knapsack<'a> {
    room: &'a crate::policy::room::Room,
    /// By state what is worth the most, and which models that is.
    most: Vec<(f64, Set)>,
}

impl<'a> Knapsack<'a> {
    fn new(room: &'a crate::policy::room::Room) -> Self {
        Self { room, most: vec![(f64::NEG_INFINITY, 0); room.states()] }
    }

    /// The models of most (price − weight) with batches no longer than this.
    fn most(&mut self, fronts: &[Vec<(u32, Front)>], prices: &[f64], longest_ms: f64) -> (f64, Set) {
        self.most.fill((f64::NEG_INFINITY, 0));
        self.most[self.room.start() as usize] = (0.0, 0);
        for (model, sizes) in fronts.iter().enumerate() {
            let gain = |(size, front): &(u32, Front)| {
                let within = front.partition_point(|(ms, _)| *ms <= longest_ms);
                let (_, weight) = front[..within].last()?;
                Some((*size, prices[model] - weight)).filter(|(_, gain)| *gain > 0.0)
            };
            let mut gains = [(0u32, 0.0); 8];
            let mut count = 0;
            for (slot, found) in gains.iter_mut().zip(sizes.iter().filter_map(gain)) {
                *slot = found;
                count += 1;
            }
            // Taking something leads to a state that was numbered before, so no state is left after it was reached.
            for state in 0..self.most.len() {
                let (worth, set) = self.most[state];
                if worth == f64::NEG_INFINITY {
                    continue;
                }
                for &(size, gain) in &gains[..count] {
                    let Some(after) = self.room.next(state as State, size) else { continue };
                    let reached = &mut self.most[after as usize];
                    if worth + gain > reached.0 {
                        *reached = (worth + gain, set | 1 << model);
                    }
                }
            }
        }
        self.most.iter().copied().fold((0.0, 0), |a, b| if b.0 > a.0 { b } else { a })
    }
}

/// The linear program over the columns so far.
struct Program {
    basis: Vec<Column>,
    /// Inverse of the matrix of the basis, by row.
    inverse: Vec<Vec<f64>>,
    /// How much of each column of the basis is used.
    used: Vec<f64>,
}

impl Program {
    /// Begins with each model alone.
    fn new(alone: Vec<Column>) -> Self {
        let models = alone.len();
        let unit = |row: usize| (0..models).map(|col| f64::from(u8::from(row == col))).collect();
        // A little more than 1 of each, each time a different little, so that no two columns leave at once.
        let used = (0..models).map(|m| 1.0 + 1e-6 * (m as f64 * 0.618_034).fract()).collect();
        Self { basis: alone, inverse: (0..models).map(unit).collect(), used }
    }

    /// What each model is worth.
    fn prices(&self) -> Vec<f64> {
        let mut prices = vec![0.0; self.basis.len()];
        for (column, row) in self.basis.iter().zip(&self.inverse) {
            prices.iter_mut().zip(row).for_each(|(price, inverse)| *price += column.cost * inverse);
        }
        prices
    }

    /// Simplex steps until no column of the pool is worth more than it costs.
    fn improve(&mut self, pool: &[Column], until: Instant) {
        while Instant::now() < until {
            let prices = self.prices();
            let enough = 1e-9 * prices.iter().map(|p| p.abs()).sum::<f64>() / prices.len() as f64;
            let gains = pool.iter().map(|column| (column.gain(&prices), column));
            let best = gains.max_by(|a, b| a.0.total_cmp(&b.0));
            let Some((_, entering)) = best.filter(|(gain, _)| *gain > enough) else { return };
            let part = |row: &Vec<f64>| match entering.surplus {
                Some(model) => -row[model],
                None => members(entering.set).map(|m| row[m]).sum::<f64>(),
            };
            let parts: Vec<f64> = self.inverse.iter().map(part).collect();
            let rows = (0..parts.len()).filter(|&r| parts[r] > 1e-9);
            let leaving =
                rows.min_by(|&a, &b| (self.used[a] / parts[a]).total_cmp(&(self.used[b] / parts[b])));
            let Some(leaving) = leaving else { return };
            self.pivot(leaving, &parts, *entering);
        }
    }

    fn pivot(&mut self, leaving: usize, parts: &[f64], entering: Column) {
        self.basis[leaving] = entering;
        self.inverse[leaving].iter_mut().for_each(|v| *v /= parts[leaving]);
        self.used[leaving] /= parts[leaving];
        let (row, used) = (self.inverse[leaving].clone(), self.used[leaving]);
        for (other, part) in parts.iter().enumerate().filter(|(other, _)| *other != leaving) {
            self.inverse[other].iter_mut().zip(&row).for_each(|(v, r)| *v -= part * r);
            self.used[other] = (self.used[other] - part * used).max(0.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::super::offers::Bin;
    use super::super::subsets::{self, Exact};
    use super::*;
    use crate::policy::made_up::problem;

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(100)
    }

    #[test]
    fn no_bound_is_above_the_proven_optimum_and_most_are_near() {
        let mut rng = StdRng::seed_from_u64(5);
        let (mut near, mut all) = (0, 0);
        for round in 0..60 {
            let models = rng.random_range(1..=8);
            let problem = problem(&mut rng, models);
            let offers = Offers::new(&problem);
            let indices: Vec<usize> = (0..models).collect();
            // A price a GPU, paid back for as many as there are: a bound on the plans with no more than those.
            let free = round % 2 == 0;
            let gpus = if free { models } else { rng.random_range(1..=models) };
            let per_gpu = if free { 0.0 } else { rng.random_range(0.0..50.0) };
            let exact = subsets::solve(&offers, &indices, gpus, 0.0, 1, later());
            let Exact::Cheapest(bins) = exact else { continue };
            let cost: f64 = bins.iter().map(|b: &Bin| b.cost).sum();
            let found = bound(&offers, Some(gpus as u32), per_gpu, 1, later()).unwrap();
            assert!(found <= cost * (1.0 + 1e-9), "round {round}: {found} {cost}");
            all += usize::from(free);
            near += usize::from(free && found >= cost * 0.98);
        }
        assert!(all >= 25 && near * 3 >= all * 2, "{near} of {all}");
    }

    #[test]
    fn without_time_or_with_negative_weights_nothing_is_told() {
        let mut problem = problem(&mut StdRng::seed_from_u64(6), 4);
        assert_eq!(bound(&Offers::new(&problem), None, 0.0, 1, Instant::now()), None);
        let at = problem.models[0].feasible[0];
        problem.models[0].candidates[at].dynamic_w = -5.0;
        assert_eq!(bound(&Offers::new(&problem), None, 0.0, 1, later()), None);
    }
}
