//! Serving all models on a number of GPUs.
//!
//! Rule: models follow each other by rate × SLO ascending. While some of a model's rate is left: a saturated gpulet of p_eff if that
//! serves less, else a residue of p_req, on the smallest free node of at least that size. Once a wanted gpulet fits nowhere,
//! what is left of the model goes, each continuing from what stands:
//!
//! 1. on free nodes of any size: the smallest that serves all of it, else the largest, saturated;
//! 2. into one of the model's own gpulets: with a larger batch where it stands, or on its whole GPU if nothing is beside it;
//! 3. by turns into another model's gpulet that is not always busy, at most three models each ([`round`]).
//!
//! A remainder up to the slack, min(15 requests/s, 1 % of the rate), goes first into the model's own gpulets: the source leaves it
//! unserved, and here everything is served.
//! Neighbours: where slowdown is known, times are those beside the neighbour that is there, and the neighbour's own are looked at
//! again. Best fit keeps to nodes whose neighbour keeps its batch with 2 t ≤ SLO; step 1 lets its batch become smaller. What the
//! neighbour then no longer serves comes back as rate of its model, at most eight times; after that it may lose nothing.
//! Not done: undoing, except of what step 2 replaces.
//!
//! Source: GPUlets (ATC'22), elastic partitioning and its fallbacks.

use super::fleet::{Fleet, Gpulet, Member, Spot};
use super::round::{self, Round, Wants};
use super::table::{Row, Run, Size, Table, alone};
use crate::problem::Problem;

/// Part of a rate that is nothing.
const NOTHING: f64 = 1e-9;
/// The slack: requests a second, and part of the rate.
const SLACK: (f64, f64) = (15.0, 0.01);
/// How often what a model's gpulets lose to neighbours may come back.
const RETURNS: u32 = 8;

/// What a new neighbour may do to a gpulet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Harm {
    /// Slow it down, if its batch keeps the SLO.
    Rate,
    /// Make its batch smaller.
    Batch,
}

/// A gpulet that could be placed.
struct Offer {
    spot: Spot,
    member: Member,
    neighbour: Option<Gpulet>,
}

/// All models on some GPUs.
pub struct Trial<'p> {
    fleet: Fleet<'p>,
    /// Where each model has gpulets.
    own: Vec<Vec<Spot>>,
    /// Rates that came back.
    lost: Vec<(usize, f64)>,
    returns: Vec<u32>,
    /// Whether free nodes of one size are all alike: neither memory nor neighbours are known.
    alike: bool,
}

impl<'p> Trial<'p> {
    /// The fleet that serves these models in this order on at most `limit` GPUs, or the model that has no room.
    pub fn run(
        problem: &'p Problem,
        tables: &'p [Table],
        order: &[usize],
        limit: usize,
    ) -> Result<Fleet<'p>, usize> {
        let mut rows = tables.iter().flat_map(|t| &t.sizes).flat_map(|s| &s.rows);
        let alike = problem.slowdown.is_none() && rows.all(|r| r.candidate.uses.mem_bytes.is_none());
        let mut trial = Self {
            fleet: Fleet::new(problem, tables, limit),
            own: vec![Vec::new(); tables.len()],
            lost: Vec::new(),
            returns: vec![0; tables.len()],
            alike,
        };
        for &table in order {
            trial.serve(table, tables[table].rate_rps)?;
            while let Some((table, rate_rps)) = trial.lost.pop() {
                trial.serve(table, rate_rps)?;
            }
        }
        Ok(trial.fleet)
    }

    fn serve(&mut self, table: usize, rate_rps: f64) -> Result<(), usize> {
        let of = &self.fleet.tables[table];
        let slack_rps = SLACK.0.min(SLACK.1 * of.rate_rps);
        let mut left_rps = rate_rps;
        while left_rps > NOTHING * of.rate_rps {
            if left_rps <= slack_rps && self.merge(table, left_rps, false) {
                return Ok(());
            }
            let is_residue = of.saturated_rps(of.efficient) >= left_rps;
            let size = if is_residue { of.required(left_rps) } else { of.efficient };
            match self.best_fit(table, size, left_rps, is_residue) {
                Some(offer) => left_rps -= self.place(offer),
                None => return self.fall_back(table, left_rps),
            }
        }
        Ok(())
    }

    fn fall_back(&mut self, table: usize, mut left_rps: f64) -> Result<(), usize> {
        let least_rps = NOTHING * self.fleet.tables[table].rate_rps;
        while let Some(offer) = self.any_node(table, left_rps).filter(|_| left_rps > least_rps) {
            left_rps -= self.place(offer);
        }
        let served =
            left_rps <= least_rps || self.merge(table, left_rps, true) || self.take_turns(table, left_rps);
        if served { Ok(()) } else { Err(table) }
    }

    /// The smallest free node of at least this size.
    fn best_fit(&self, table: usize, size: usize, left_rps: f64, all: bool) -> Option<Offer> {
        let of = &self.fleet.tables[table];
        for (left_pct, gpus) in self.fleet.left_overs(of.sizes[size].pct) {
            let size = of.within(left_pct)?;
            if let Some(offer) = self.first(gpus.iter(), table, size, left_rps, all, Harm::Rate) {
                return Some(offer);
            }
        }
        self.offer(self.fleet.fresh()?, table, size, left_rps, all, Harm::Rate)
    }

    /// The smallest free node that serves all, else the largest one that serves anything.
    fn any_node(&self, table: usize, left_rps: f64) -> Option<Offer> {
        let of = &self.fleet.tables[table];
        let find = |left_pct: f64, gpus: &mut dyn Iterator<Item = &usize>, all| {
            self.first(gpus, table, of.within(left_pct)?, left_rps, all, Harm::Batch)
        };
        let fresh = self.fleet.fresh();
        let smallest = self.fleet.left_overs(0.0).find_map(|(pct, gpus)| find(pct, &mut gpus.iter(), true));
        smallest
            .or_else(|| find(100.0, &mut fresh.iter(), true))
            .or_else(|| find(100.0, &mut fresh.iter(), false))
            .or_else(|| {
                self.fleet.left_overs(0.0).rev().find_map(|(pct, gpus)| find(pct, &mut gpus.iter(), false))
            })
    }

    fn first<'a>(
        &self,
        gpus: impl Iterator<Item = &'a usize>,
        table: usize,
        size: usize,
        left_rps: f64,
        all: bool,
        harm: Harm,
    ) -> Option<Offer> {
        // What would not do beside nobody does not beside somebody.
        self.fleet.tables[table]
            .most(size, left_rps, alone)
            .filter(|run| !all || run.rate_rps >= left_rps)?;
        let tried = if self.alike { 1 } else { usize::MAX };
        gpus.take(tried).find_map(|&gpu| self.offer(gpu, table, size, left_rps, all, harm))
    }

    /// What a model would run in a gpulet of this size on a GPU, beside what stands there.
    fn offer(
        &self,
        gpu: usize,
        table: usize,
        size: usize,
        left_rps: f64,
        all: bool,
        harm: Harm,
    ) -> Option<Offer> {
        let spot = self.fleet.free_spot(gpu);
        let time = |row: &Row| self.fleet.time_ms(spot, table, row);
        let run = self.fleet.tables[table].most(size, left_rps, time)?;
        if all && run.rate_rps < left_rps {
            return None;
        }
        self.beside(spot, Member { table, run }, harm)
    }

    /// The offer of a member on a spot, if its neighbour can live with it.
    fn beside(&self, spot: Spot, member: Member, harm: Harm) -> Option<Offer> {
        let neighbour = match self.fleet.beside(spot).filter(|_| self.fleet.problem.slowdown.is_some()) {
            Some(gpulet) => Some(self.slowed(gpulet, &[member], harm)?),
            None => None,
        };
        Some(Offer { spot, member, neighbour })
    }

    /// A gpulet beside other members than before; `None` if it cannot be.
    fn slowed(&self, gpulet: &Gpulet, beside: &[Member], harm: Harm) -> Option<Gpulet> {
        let time_ms =
            |m: &Member, row: &Row| row.time_ms * self.fleet.factor(m.table, &row.candidate, beside);
        let mut slowed = gpulet.clone();
        if let Some(round_ms) = gpulet.round_ms {
            for m in &mut slowed.members {
                m.run.time_ms = time_ms(m, &m.run.row);
                (round_ms + m.run.time_ms <= self.fleet.tables[m.table].slo_ms).then_some(())?;
            }
            let sum_ms: f64 = slowed.members.iter().map(|m| m.run.time_ms).sum();
            return (sum_ms <= round_ms).then_some(slowed);
        }
        let [m] = slowed.members.as_mut_slice() else { return None };
        let table = &self.fleet.tables[m.table];
        let rate_rps = m.run.rate_rps;
        let at = time_ms(m, &m.run.row);
        let kept_rps = rate_rps.min(1e3 * f64::from(m.run.row.candidate.batch) / at);
        let kept = Run::new(m.run.row, at, table.slo_ms, kept_rps);
        let smaller = || {
            let size = table.sizes.iter().position(|size| size.share == gpulet.share)?;
            table.most(size, rate_rps, |row| {
                let grows = row.candidate.batch > m.run.row.candidate.batch;
                (!grows).then(|| time_ms(m, row))
            })
        };
        let run = kept.or_else(|| (harm == Harm::Batch).then(smaller).flatten())?;
        let loses = run.rate_rps < rate_rps * (1.0 - NOTHING);
        m.run = run;
        (!loses || self.returns[m.table] < RETURNS).then_some(slowed)
    }

    /// Takes an offer; gives what it serves.
    fn place(&mut self, Offer { spot, member, neighbour }: Offer) -> f64 {
        let share = member.run.row.candidate.share;
        self.fleet.set(spot, Gpulet { share, members: vec![member], round_ms: None });
        self.own[member.table].push(spot);
        if let Some(neighbour) = neighbour {
            self.replace_neighbour((spot.0, 1 - spot.1), neighbour);
        }
        member.run.rate_rps
    }

    fn replace_neighbour(&mut self, spot: Spot, neighbour: Gpulet) {
        let rates = |gpulet: Option<&Gpulet>| -> Vec<(usize, f64)> {
            gpulet.map_or_else(Vec::new, |g| g.members.iter().map(|m| (m.table, m.run.rate_rps)).collect())
        };
        let before = rates(self.fleet.at(spot));
        for ((table, before_rps), (_, after_rps)) in before.into_iter().zip(rates(Some(&neighbour))) {
            if after_rps < before_rps * (1.0 - NOTHING) {
                self.lost.push((table, before_rps - after_rps));
                self.returns[table] += 1;
            }
        }
        self.fleet.set(spot, neighbour);
    }

    /// Serves this much more in one of the model's own gpulets; with `moving` also in a larger one on its GPU.
    fn merge(&mut self, table: usize, more_rps: f64, moving: bool) -> bool {
        let of = &self.fleet.tables[table];
        for at in (0..self.own[table].len()).rev() {
            let spot = self.own[table][at];
            let Some(Gpulet { members, round_ms: None, share }) = self.fleet.at(spot).cloned() else {
                continue;
            };
            let Some(size) = of.sizes.iter().position(|size| size.share == share) else { continue };
            let all_rps = members.iter().map(|m| m.run.rate_rps).sum::<f64>() + more_rps;
            let larger = moving && self.fleet.beside(spot).is_none();
            let last = if larger { of.sizes.len() } else { size + 1 };
            let offer = (size..last).find_map(|size| {
                let time = |row: &Row| self.fleet.time_ms(spot, table, row);
                let run = of.most(size, all_rps, time).filter(|run| run.rate_rps >= all_rps)?;
                self.beside(spot, Member { table, run }, Harm::Rate)
            });
            if let Some(offer) = offer {
                self.own[table].swap_remove(at);
                self.place(offer);
                return true;
            }
        }
        false
    }

    /// Adds a model to the fullest gpulet that takes it, the smallest sizes first.
    fn take_turns(&mut self, table: usize, rate_rps: f64) -> bool {
        let find = |size: &Size| {
            let mut spots = self.fleet.open(size.share, size.load(rate_rps));
            spots.find_map(|spot| self.turns(spot, table, rate_rps))
        };
        let found = self.fleet.tables[table].sizes.iter().find_map(find);
        let Some((spot, gpulet, neighbour)) = found else { return false };
        if let Some(neighbour) = neighbour {
            self.replace_neighbour((spot.0, 1 - spot.1), neighbour);
        }
        self.fleet.set(spot, gpulet);
        self.own[table].push(spot);
        true
    }

    /// The gpulet at a spot with one model more, and its neighbour where that changes.
    fn turns(&self, spot: Spot, table: usize, rate_rps: f64) -> Option<(Spot, Gpulet, Option<Gpulet>)> {
        let tables = self.fleet.tables;
        let gpulet = self.fleet.at(spot).filter(|g| g.members.iter().all(|m| m.table != table))?;
        let mut rates: Vec<(usize, f64)> = gpulet.members.iter().map(|m| (m.table, m.run.rate_rps)).collect();
        rates.push((table, rate_rps));
        if !might_fit(tables, gpulet, &rates)? {
            return None;
        }
        let wants = |&(table, rate_rps): &(usize, f64)| {
            let of = &tables[table];
            let size = of.of_share(gpulet.share)?;
            let timed = |row: &Row| Some((*row, self.fleet.time_ms(spot, table, row)?));
            Some(Wants { rows: size.rows.iter().filter_map(timed).collect(), slo_ms: of.slo_ms, rate_rps })
        };
        let models: Vec<Wants> = rates.iter().map(wants).collect::<Option<_>>()?;
        let fits = |rows: &[(Row, f64)]| self.fleet.has_memory(spot, rows.iter().map(|(row, _)| row));
        let Round { round_ms, rows, .. } = round::best(&models, fits)?;
        let member = |(&(table, rate_rps), &(row, time_ms)): (&(usize, f64), &(Row, f64))| Member {
            table,
            run: Run { row, time_ms, duty_ms: round_ms, rate_rps },
        };
        let members = rates.iter().zip(&rows).map(member).collect();
        let gpulet = Gpulet { share: gpulet.share, members, round_ms: Some(round_ms) };
        let neighbour = match self.fleet.beside(spot).filter(|_| self.fleet.problem.slowdown.is_some()) {
            Some(neighbour) => Some(self.slowed(neighbour, &gpulet.members, Harm::Rate)?),
            None => None,
        };
        Some((spot, gpulet, neighbour))
    }
}

/// Whether a round could hold if batches were as good as the best and as short as the shortest; `None` if a model has no such size.
fn might_fit(tables: &[Table], gpulet: &Gpulet, rates: &[(usize, f64)]) -> Option<bool> {
    let (mut busy, mut sum_ms, mut spare_ms) = (0.0, 0.0, f64::INFINITY);
    for &(table, rate_rps) in rates {
        let size = tables[table].of_share(gpulet.share)?;
        busy += size.load(rate_rps);
        sum_ms += size.least_ms;
        spare_ms = f64::min(spare_ms, tables[table].slo_ms - size.least_ms);
    }
    Some(busy <= 1.0 && sum_ms <= spare_ms)
}
