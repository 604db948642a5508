//! Held-out errors of points of least expected variance beside Latin hypercubes and points chosen one after another, with the
//! default form: H200 (this project's profiles, 30 points a model) and the reference (A100, nine models with a full grid).
//!
//! Rule: as `gpumon profile` and `gpumon fit` do it. All models are fitted on their chosen points at once, so they know that of each
//! other; *known* means that the other models are a prior in full, for the choice and for the fit, one model at a time. Medians over the
//! points not chosen, means over models and seeds. Hypercubes and optimal sets have seeds 1 to 5; chosen one after another there is one set.

#![allow(clippy::unwrap_used, reason = "helpers of tests: a panic is the report")]

mod common;

use std::collections::BTreeMap;
use std::path::Path;

use gpumon_core::profile::ProfileRow;
use gpumon_fit::active::Belief;
use gpumon_fit::base::BasePower;
use gpumon_fit::evaluate::models_of;
use gpumon_fit::models::{FitOptions, fit_models};
use gpumon_fit::point::{Observations, Point};
use gpumon_fit::predict::Interval;
use gpumon_fit::sample::{Mapping, sample};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Design {
    Hypercube,
    Optimal,
    Adaptive,
}

const DESIGNS: [Design; 3] = [Design::Hypercube, Design::Optimal, Design::Adaptive];

/// One GPU's models, all measured in full.
struct Card {
    rows: Vec<ProfileRow>,
    models: Vec<Observations>,
    base: Option<BasePower>,
    cap_w: f64,
}

/// Median error and points within 90 % intervals, %, of total power and of the time of a batch.
type Figures = [[f64; 2]; 2];

impl Card {
    fn new(rows: Vec<ProfileRow>, cap_w: f64) -> Self {
        let models = models_of(&rows).iter().map(|m| Observations::of(m, &rows)).collect();
        Self { base: BasePower::of_rows(&rows).ok(), rows, models, cap_w }
    }

    fn h200(run: &str) -> Self {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/runs").join(run);
        let mut rows = gpumon_core::profile_io::read(&file).unwrap().rows;
        // One model of the later run stopped in the middle.
        let whole: Vec<String> =
            models_of(&rows).into_iter().filter(|m| Observations::of(m, &rows).points.len() == 30).collect();
        rows.retain(|r| r.is_idle() || whole.contains(&r.model));
        Self::new(rows, 700.0)
    }

    /// The models' points by design, as numbers.
    fn choose(
        &self,
        of: &Observations,
        known: &[Observations],
        design: Design,
        fraction: f64,
        seed: u64,
    ) -> Vec<usize> {
        let grid: Vec<Point> = of.points.iter().map(|o| o.point).collect();
        let count = (fraction * grid.len() as f64).round() as usize;
        // A plan is made before anything is measured; while measuring the idle rows are there.
        let base = self.base.as_ref().filter(|_| design == Design::Adaptive || !known.is_empty());
        let belief = || Belief::new(&grid, known, base, Some(self.cap_w)).unwrap();
        match design {
            Design::Hypercube => {
                let coordinates: Vec<_> = grid.iter().map(Point::coordinates).collect();
                sample(&coordinates, Mapping::Level, fraction, seed).unwrap()
            }
            Design::Optimal => belief().optimal(count, seed),
            Design::Adaptive => {
                let mut belief = belief();
                let mut left: Vec<(usize, f64)> = (0..grid.len()).map(|i| (i, 3.0)).collect();
                let one = |_| {
                    let next = belief.best(&left).unwrap();
                    left.retain(|(i, _)| *i != next);
                    belief.see(&of.points[next]);
                    next
                };
                (0..count).map(one).collect()
            }
        }
    }

    /// Means over models of one draw.
    fn run(&self, design: Design, fraction: f64, known: bool, seed: u64) -> Figures {
        let mut plans = BTreeMap::new();
        let mut all = Vec::new();
        if known {
            for of in &self.models {
                let others: Vec<_> = self.models.iter().filter(|m| m.model != of.model).cloned().collect();
                let chosen = self.choose(of, &others, design, fraction, seed);
                all.push(self.errors(&[(of, chosen)], &self.rows)[0]);
            }
        } else {
            let chosen: Vec<_> = self
                .models
                .iter()
                .map(|of| {
                    let shape: Vec<String> = of.points.iter().map(|o| format!("{:?}", o.point)).collect();
                    let choose = || self.choose(of, &[], design, fraction, seed);
                    let same = design == Design::Optimal;
                    let points =
                        if same { plans.entry(shape).or_insert_with(choose).clone() } else { choose() };
                    (of, points)
                })
                .collect();
            all = self.errors(&chosen, &[]);
        }
        let mean = |f: usize, k: usize| all.iter().map(|e| e[f][k]).sum::<f64>() / all.len() as f64;
        [0, 1].map(|f| [mean(f, 0), mean(f, 1)])
    }

    /// Fits the chosen points of these models and compares at the others.
    fn errors(&self, chosen: &[(&Observations, Vec<usize>)], prior: &[ProfileRow]) -> Vec<Figures> {
        let mut rows: Vec<ProfileRow> = self.rows.iter().filter(|r| r.is_idle()).cloned().collect();
        for (of, points) in chosen {
            let is_chosen = |r: &&ProfileRow| {
                let own = Observations::of(&of.model, std::slice::from_ref(r)).points;
                own.iter().any(|o| points.iter().any(|i| of.points[*i].point == o.point))
            };
            rows.extend(self.rows.iter().filter(|r| r.model == of.model).filter(is_chosen).cloned());
        }
        let prior = prior.to_vec();
        let base = if prior.is_empty() { None } else { self.base.clone() };
        let options = FitOptions { prior, base, cap_w: Some(self.cap_w), ..FitOptions::default() };
        let fitted = fit_models(&rows, &options).unwrap();
        chosen
            .iter()
            .map(|(of, points)| {
                let model = fitted.models.iter().find(|m| m.name == of.model).unwrap();
                let mut all: [Vec<(f64, bool)>; 2] = Default::default();
                for (_, o) in of.points.iter().enumerate().filter(|(i, _)| !points.contains(i)) {
                    let said = model.predict(&o.point, fitted.base.as_ref()).unwrap();
                    let within = |i: &Interval, v: f64| (i.low.unwrap()..=i.high.unwrap()).contains(&v);
                    let (power, watts) = (said.avg_power_draw.unwrap(), o.average_w.unwrap());
                    all[0].push(((power.value / watts - 1.0).abs(), within(&power, watts)));
                    let (items, measured) = (said.throughput, o.throughput.unwrap());
                    all[1].push(((measured / items.value - 1.0).abs(), within(&items, measured)));
                }
                all.map(|mut list| {
                    list.sort_by(|a, b| a.0.total_cmp(&b.0));
                    let middle = list[(list.len() - 1) / 2].0 + list[list.len() / 2].0;
                    let within = list.iter().filter(|e| e.1).count() as f64 / list.len() as f64;
                    [50.0 * middle, 100.0 * within]
                })
            })
            .collect()
    }

    /// Means over seeds.
    fn mean(&self, design: Design, fraction: f64, known: bool) -> Figures {
        let seeds = if design == Design::Adaptive { 1..=1 } else { 1..=5 };
        let all: Vec<Figures> = seeds.map(|seed| self.run(design, fraction, known, seed)).collect();
        let mean = |f: usize, k: usize| all.iter().map(|e| e[f][k]).sum::<f64>() / all.len() as f64;
        [0, 1].map(|f| [mean(f, 0), mean(f, 1)])
    }

    fn compare(&self, name: &str, fraction: f64, known: bool) -> Vec<Figures> {
        let each = DESIGNS.map(|design| (design, self.mean(design, fraction, known)));
        for (design, [power, time]) in &each {
            println!(
                "{name}, {} %, {}: {design:?}: total power {:.2} ({:.0}), time of a batch {:.2} ({:.0})",
                100.0 * fraction,
                if known { "others known" } else { "none known" },
                power[0],
                power[1],
                time[0],
                time[1]
            );
        }
        each.map(|e| e.1).into()
    }
}

#[test]
fn six_points_of_thirty_chosen_together_tell_more_than_hypercubes() {
    for run in ["2026-12-01-h200-profile/grid.parquet", "2026-12-01-h200-heated/grid.csv"] {
        let card = Card::h200(run);
        for known in [false, true] {
            let [cube, optimal, _] = card.compare(run, 0.2, known)[..] else { unreachable!() };
            for (optimal, cube) in optimal.iter().zip(cube) {
                assert!(optimal[0] < cube[0], "{run} {known}: {optimal:?} {cube:?}");
            }
        }
    }
}

fn reference() -> Option<Card> {
    let mut rows = common::rows()?;
    rows.retain(|r| !common::SMALL.contains(&r.model.as_str()));
    Some(Card::new(rows, 300.0))
}

#[test]
fn on_the_reference_too() {
    let Some(card) = reference() else { return };
    let [cube, optimal, _] = card.compare("A100", 0.05, false)[..] else { unreachable!() };
    for (optimal, cube) in optimal.iter().zip(cube) {
        assert!(optimal[0] < cube[0], "{optimal:?} {cube:?}");
    }
}

#[test]
#[ignore = "takes a minute; `--ignored` prints what the documentation states"]
fn on_the_reference_with_more_points_too() {
    let Some(card) = reference() else { return };
    for fraction in [0.2, 0.1] {
        card.compare("A100", fraction, false);
    }
}
