//! How far a form is off on points that it was not fitted on.
//!
//! Rule: for each seed and model, [`sample`] draws the points to fit on; the error is |predicted / measured − 1|
//! at all other points. Median, mean and 90th percentile are taken over those points, then averaged over the seeds;
//! the spread is the standard deviation of the medians over the seeds. Beside them stand how many of those points lie within
//! their 90 % intervals, and how wide these are. The last line is the mean over models.
//!
//! Cases: models know of each other what was drawn of them, or with [`Protocol::transfer`] all of it: then each model in turn is
//! the one of which only the points drawn are known. The base power is the one given, or the difference on the points
//! that are known. A model that cannot be fitted with so few points, or has none left to compare with, is listed with the reason and left out of the mean.
//!
//! Not done: choosing anything by these errors.
//!
//! Source: the protocol of EnerTune's artifact (SOSP'26): train on 20 % of the grid, relative error on the rest.

use std::fmt::Write as _;

use gpumon_core::profile::ProfileRow;
use serde::{Deserialize, Serialize};

use crate::base::{BasePower, median};
use crate::error::FitError;
use crate::fit::{Context, Form};
use crate::models::{clean, fit_model, known};
use crate::parallel;
use crate::point::Observations;
use crate::sample::{Mapping, sample};
use crate::validate::{self, Compared};

/// What is evaluated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Protocol {
    /// The form.
    pub form: Form,
    /// How the training points are drawn.
    pub mapping: Mapping,
    /// Share of the points to train on, above 0 and below 1.
    pub fraction: f64,
    /// One draw each.
    pub seeds: Vec<u64>,
    /// Power limit of the GPU, W.
    pub cap_w: Option<f64>,
    /// Whether all other models are known in full.
    #[serde(default)]
    pub transfer: bool,
}

/// Relative errors over points, %.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ErrorStats {
    /// Median, %.
    pub median_pct: f64,
    /// Mean, %.
    pub mean_pct: f64,
    /// 90th percentile, %.
    pub p90_pct: f64,
    /// Standard deviation of the median over the seeds, points of %; absent for one seed.
    pub spread_pct: Option<f64>,
    /// Points within their 90 % intervals, %; absent where the points gave the intervals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coverage_pct: Option<f64>,
    /// Median width of the 90 % intervals, high minus low, % of the prediction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub width_pct: Option<f64>,
}

/// Errors of each figure; absent where nothing was measured or predicted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Errors {
    /// Average power of the GPU.
    pub total_power: Option<ErrorStats>,
    /// Power above the base.
    pub dynamic_power: Option<ErrorStats>,
    /// Time of a batch (batch / throughput).
    pub batch_time: Option<ErrorStats>,
    /// The latency column.
    pub latency: Option<ErrorStats>,
}

/// One model's line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelQuality {
    /// Model name.
    pub model: String,
    /// Points there are.
    pub points: usize,
    /// Points trained on, mean over the seeds.
    pub trained_on: f64,
    /// Held-out errors, means over the seeds.
    pub errors: Errors,
    /// Why there are none, or why a figure is missing.
    pub note: Option<String>,
}

/// Held-out errors of one form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quality {
    /// What was done.
    pub protocol: Protocol,
    /// One line a model, in the order of the rows.
    pub models: Vec<ModelQuality>,
    /// Means over the models that have the figure.
    pub mean: Errors,
}

/// Names of models in `rows`, in order of appearance, without the reserved ones.
pub fn models_of(rows: &[ProfileRow]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for row in rows.iter().filter(|r| !r.is_idle()) {
        if !names.contains(&row.model) {
            names.push(row.model.clone());
        }
    }
    names
}

/// Evaluates a form on all models of `rows`, which are of one kind of GPU. `prior` are rows of other models of that kind. `base` is
/// known apart from the models, or taken from the points that are known.
///
/// # Errors
///
/// [`FitError::BadOption`] for a fraction out of range or no seeds, [`FitError::NoPoints`] without models.
pub fn evaluate(
    rows: &[ProfileRow],
    prior: &[ProfileRow],
    base: Option<&BasePower>,
    protocol: &Protocol,
) -> Result<Quality, FitError> {
    if protocol.seeds.is_empty() {
        return Err(FitError::BadOption { option: "seeds", found: "empty".into(), expected: "at least one" });
    }
    let seen: Vec<Observations> = models_of(rows).iter().map(|m| Observations::of(m, rows)).collect();
    if seen.is_empty() {
        return Err(FitError::NoPoints { model: "profile".into() });
    }
    let mut draws = Vec::new();
    for &seed in &protocol.seeds {
        draws.push(seen.iter().map(|s| draw(s, protocol, seed)).collect::<Result<Vec<_>, _>>()?);
    }
    let prior_base = || BasePower::of_rows(prior).ok();
    let runs = if protocol.transfer {
        parallel::map(&(0..seen.len()).collect::<Vec<_>>(), |&i| {
            let others: Vec<Observations> =
                seen.iter().enumerate().filter(|(k, _)| *k != i).map(|(_, s)| s.clone()).collect();
            let estimated = BasePower::of_difference(&others).ok().or_else(prior_base);
            let base = base.or(estimated.as_ref());
            let others: Vec<Observations> =
                others.iter().map(|o| clean(o, protocol.form, base, protocol.cap_w)).collect();
            let known = known(&others, prior, protocol.form, base, protocol.cap_w);
            let own = known.iter().filter(|k| k.model != seen[i].model);
            let context = Context::after(own, base, protocol.cap_w);
            draws.iter().map(|draw| run(&seen[i], &draw[i], &context, protocol.form)).collect()
        })
    } else {
        let mut runs: Vec<Vec<Result<Run, FitError>>> = seen.iter().map(|_| Vec::new()).collect();
        for draw in &draws {
            let training: Vec<Observations> =
                seen.iter().zip(draw).map(|(s, d)| s.at(d.iter().copied())).collect();
            let estimated = BasePower::of_difference(&training).ok().or_else(prior_base);
            let base = base.or(estimated.as_ref());
            let training = parallel::map(&training, |o| clean(o, protocol.form, base, protocol.cap_w));
            let known = known(&training, prior, protocol.form, base, protocol.cap_w);
            let of_all = parallel::map(&(0..seen.len()).collect::<Vec<_>>(), |&i| {
                let others = known.iter().filter(|k| k.model != seen[i].model);
                let context = Context::after(others, base, protocol.cap_w);
                run(&seen[i], &draw[i], &context, protocol.form)
            });
            runs.iter_mut().zip(of_all).for_each(|(runs, run)| runs.push(run));
        }
        runs
    };
    let models: Vec<ModelQuality> =
        seen.iter().zip(runs).map(|(s, r)| model_quality(s, r, protocol.fraction)).collect();
    let mean = Errors {
        total_power: mean_of(models.iter().map(|m| m.errors.total_power)),
        dynamic_power: mean_of(models.iter().map(|m| m.errors.dynamic_power)),
        batch_time: mean_of(models.iter().map(|m| m.errors.batch_time)),
        latency: mean_of(models.iter().map(|m| m.errors.latency)),
    };
    Ok(Quality { protocol: protocol.clone(), models, mean })
}

/// A fit on some points, and its errors at the others.
struct Run {
    trained_on: usize,
    compared: usize,
    errors: Errors,
}

/// Fits the points drawn and compares with the others.
fn run(seen: &Observations, drawn: &[usize], context: &Context<'_>, form: Form) -> Result<Run, FitError> {
    let training = clean(&seen.at(drawn.iter().copied()), form, context.base, context.cap_w);
    let rest = seen.at((0..seen.points.len()).filter(|k| drawn.binary_search(k).is_err()));
    let (model, _) = fit_model(&training, context, form, String::new())?;
    let compared = validate::compare(&model.surfaces, &rest, context.base);
    let mut errors = errors_of(&compared);
    let inverse = |[low, high]: [f64; 2]| [1.0 / high, 1.0 / low];
    let i = model.intervals;
    let figures = [
        (&mut errors.total_power, i.avg_power_draw),
        (&mut errors.dynamic_power, i.dynamic_power_draw),
        (&mut errors.batch_time, i.throughput.map(inverse)),
        (&mut errors.latency, i.latency),
    ];
    for (figure, (stats, factors)) in figures.into_iter().enumerate() {
        let (Some(stats), Some([low, high])) = (stats, factors) else { continue };
        let ratios: Vec<f64> = compared.iter().filter_map(|c| c.ratios[figure]).collect();
        let within = ratios.iter().filter(|r| (low..=high).contains(*r)).count();
        stats.coverage_pct = Some(100.0 * within as f64 / ratios.len() as f64);
        stats.width_pct = Some(100.0 * (high - low));
    }
    Ok(Run { trained_on: training.points.len(), compared: compared.len(), errors })
}

fn draw(seen: &Observations, protocol: &Protocol, seed: u64) -> Result<Vec<usize>, FitError> {
    let coordinates: Vec<[f64; 3]> = seen.points.iter().map(|o| o.point.coordinates()).collect();
    if coordinates.is_empty() {
        return Ok(Vec::new());
    }
    if seen.points.iter().any(|o| o.point.processes > 1) {
        let with_processes = seen
            .points
            .iter()
            .zip(coordinates)
            .map(|(o, [share, mhz, batch])| [share, mhz, batch, o.point.processes_count()]);
        return sample(&with_processes.collect::<Vec<_>>(), protocol.mapping, protocol.fraction, seed);
    }
    sample(&coordinates, protocol.mapping, protocol.fraction, seed)
}

/// Errors over held-out points.
pub(crate) fn errors_of(compared: &[Compared]) -> Errors {
    let stats = |figure: usize| {
        let mut errors: Vec<f64> =
            compared.iter().filter_map(|c| c.ratios[figure]).map(|r| 100.0 * (1.0 / r - 1.0).abs()).collect();
        (!errors.is_empty()).then(|| ErrorStats {
            median_pct: median(&mut errors),
            mean_pct: errors.iter().sum::<f64>() / errors.len() as f64,
            p90_pct: quantile(&errors, 0.9),
            ..ErrorStats::default()
        })
    };
    Errors { total_power: stats(0), dynamic_power: stats(1), batch_time: stats(2), latency: stats(3) }
}

/// Quantile of an ascending list that is not empty, linear between its values.
pub(crate) fn quantile(ascending: &[f64], q: f64) -> f64 {
    let place = q.clamp(0.0, 1.0) * (ascending.len() - 1) as f64;
    let (low, high) = (ascending[place.floor() as usize], ascending[place.ceil() as usize]);
    low + (place - place.floor()) * (high - low)
}

/// Why so few or so many points cannot be held out; none if they can.
fn unfit(points: usize, fraction: f64, runs: &[Result<Run, FitError>]) -> Option<String> {
    let of_points = format!("a fraction of {fraction} of its {points} points");
    if let Some(error) = runs.iter().find_map(|r| r.as_ref().err()) {
        let FitError::TooFewPoints { found, form, needed, target, .. } = error else {
            return Some(error.to_string());
        };
        let advice = if points > *needed {
            // Some draws have fewer points with this figure than others.
            let enough = fraction * *needed as f64 / (*found).max(1) as f64;
            let enough = (enough.max(*needed as f64 / points as f64) * 100.0).ceil() / 100.0;
            if enough < 1.0 {
                format!("take a fraction of at least {enough:.2}")
            } else {
                "measure more".into()
            }
        } else {
            format!("measure more than {needed} in all")
        };
        return Some(format!(
            "{of_points} is {found} for {target}, but the {form} form needs at least {needed}; {advice}"
        ));
    }
    let none_left = points > 0 && runs.iter().flatten().all(|r| r.compared == 0);
    none_left.then(|| format!("{of_points} leaves none to compare with; choose a smaller one"))
}

fn model_quality(seen: &Observations, runs: Vec<Result<Run, FitError>>, fraction: f64) -> ModelQuality {
    let failed = unfit(seen.points.len(), fraction, &runs);
    let good: Vec<Run> = runs.into_iter().flatten().collect();
    let each: Vec<&Errors> = good.iter().map(|r| &r.errors).collect();
    let over_seeds = |figure: fn(&Errors) -> Option<ErrorStats>| {
        let all: Vec<ErrorStats> = each.iter().filter_map(|e| figure(e)).collect();
        let mean = mean_of(all.iter().copied().map(Some))?;
        let square = all.iter().map(|s| (s.median_pct - mean.median_pct).powi(2)).sum::<f64>();
        let spread_pct = (all.len() > 1).then(|| (square / (all.len() - 1) as f64).sqrt());
        Some(ErrorStats { spread_pct, ..mean })
    };
    ModelQuality {
        model: seen.model.clone(),
        points: seen.points.len(),
        trained_on: good.iter().fold(0.0, |sum, r| sum + r.trained_on as f64) / good.len().max(1) as f64,
        errors: Errors {
            total_power: over_seeds(|e| e.total_power),
            dynamic_power: over_seeds(|e| e.dynamic_power),
            batch_time: over_seeds(|e| e.batch_time),
            latency: over_seeds(|e| e.latency),
        },
        note: failed.or_else(|| seen.dynamic_refused.clone()),
    }
}

fn mean_of(stats: impl Iterator<Item = Option<ErrorStats>>) -> Option<ErrorStats> {
    let all: Vec<ErrorStats> = stats.flatten().collect();
    let n = all.len() as f64;
    let mean = |value: fn(&ErrorStats) -> f64| all.iter().map(value).sum::<f64>() / n;
    let known = |value: fn(&ErrorStats) -> Option<f64>| {
        let some: Vec<f64> = all.iter().filter_map(value).collect();
        (!some.is_empty()).then(|| some.iter().sum::<f64>() / some.len() as f64)
    };
    (!all.is_empty()).then(|| ErrorStats {
        median_pct: mean(|s| s.median_pct),
        mean_pct: mean(|s| s.mean_pct),
        p90_pct: mean(|s| s.p90_pct),
        spread_pct: known(|s| s.spread_pct),
        coverage_pct: known(|s| s.coverage_pct),
        width_pct: known(|s| s.width_pct),
    })
}

impl Quality {
    /// The table for people: one line a model, median / mean / 90th percentile of each figure in %.
    pub fn table(&self) -> String {
        let p = &self.protocol;
        let mapping = match p.mapping {
            Mapping::Physical => "physical",
            Mapping::Level => "level",
        };
        let known = if p.transfer { ", all other models known" } else { "" };
        let mut text = format!(
            "{} form, {} % of the points ({mapping} mapping), {} seeds{known}; held-out error, %: median / mean / p90 (points \
             within 90 % intervals, their median width)\n{:<22} {:>6} {:>6}  {:<32} {:<32} {:<32} {:<32}\n",
            p.form.name(),
            (1e4 * p.fraction).round() / 100.0,
            p.seeds.len(),
            "model",
            "points",
            "train",
            "total power",
            "dynamic power",
            "batch time",
            "latency"
        );
        for m in &self.models {
            let _ = write!(text, "{:<22} {:>6} {:>6.1}  ", m.model, m.points, m.trained_on);
            text += &cells(&m.errors);
        }
        let _ = write!(text, "{:<36}  ", "mean over models");
        text += &cells(&self.mean);
        for m in &self.models {
            if let Some(note) = &m.note {
                let _ = writeln!(text, "{}: {note}", m.model);
            }
        }
        text
    }
}

fn cells(errors: &Errors) -> String {
    let cell = |stats: &Option<ErrorStats>| match stats {
        Some(s) => {
            let interval = s.coverage_pct.zip(s.width_pct);
            let interval =
                interval.map_or(String::new(), |(within, width)| format!(" ({within:.0}, {width:.1})"));
            format!("{:.2} / {:.2} / {:.2}{interval}", s.median_pct, s.mean_pct, s.p90_pct)
        }
        None => "–".into(),
    };
    let e = errors;
    let line =
        [&e.total_power, &e.dynamic_power, &e.batch_time, &e.latency].map(|s| format!("{:<32}", cell(s)));
    format!("{}\n", line.join(" ").trim_end())
}
