//! Fitting every model of a profile, with the errors and intervals that its own points give.
//!
//! Rule: the final fit uses all usable points. Beside it every point is predicted by a fit without it
//! (`crate::validate`); these held-out ratios measured ÷ predicted give the errors in the file and the intervals
//! ([`crate::intervals`]). Models of the same profile, and of profiles of the same kind of GPU that are given beside it, are known
//! to each other: the shared form learns from them.
//!
//! Cases: where too few points are left for the form without one, the model has no errors, and a note says so. A model
//! that cannot be fitted is listed with the reason; only if none can be fitted is that an error.
//!
//! Not done: intervals that widen with the distance from the points; outside the ranges a prediction is marked.

use gpumon_core::profile::ProfileRow;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::active::{Figures, Known};
use crate::base::BasePower;
use crate::error::FitError;
use crate::evaluate::{Errors, errors_of, models_of};
use crate::fit::{Context, Form, Surfaces};
use crate::held_out::{self, HeldOut, KeptPoint};
pub use crate::intervals::Intervals;
use crate::parallel;
use crate::point::{Observation, Observations, Point, Share};
use crate::screen::screened;
use crate::tail::Tail;
use crate::validate;

/// What to fit, and what is known beside the rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FitOptions {
    /// The form.
    pub form: Form,
    /// Base power, where it is known apart from the rows; otherwise [`BasePower::of_rows`] is tried.
    pub base: Option<BasePower>,
    /// Rows of other models on the same kind of GPU; those of a model that is fitted are not used.
    pub prior: Vec<ProfileRow>,
    /// Power limit of the GPU, W.
    pub cap_w: Option<f64>,
    /// Whether the rows come from a simulated GPU.
    pub simulated: bool,
    /// Seed of the folds.
    pub seed: u64,
}

/// A model that was fitted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Model {
    /// Its name.
    pub name: String,
    /// `form` and `parameters`.
    #[serde(flatten)]
    pub surfaces: Surfaces,
    /// Where it is valid.
    pub ranges: Ranges,
    /// The shares of the SMs that were measured, other than MIG instances, ascending; 0 to 1.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shares: Vec<f64>,
    /// Errors at held-out points, %.
    pub held_out: Errors,
    /// What central values are multiplied with for 90 % intervals.
    pub intervals: Intervals,
    /// The 99th percentile of the time of a batch, where it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tail: Option<Tail>,
    /// The points as fits without them predict them; absent where too few could be left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "held_out::stored")]
    pub held_out_points: Vec<KeptPoint>,
    /// What it was fitted on.
    pub rows: RowsUsed,
    /// What a reader should know: rows left out, figures that could not be fitted.
    pub notes: Vec<String>,
}

/// The span of the points of a fit; outside it a prediction is an extrapolation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ranges {
    /// Lowest and highest clock, MHz.
    pub frequency_mhz: [u32; 2],
    /// Smallest and largest batch, items.
    pub batch: [u32; 2],
    /// Smallest and largest share of the SMs, 0 to 1.
    pub share: [f64; 2],
    /// Fewest and most processes in a share; absent where there was one only.
    #[serde(default = "one_process", skip_serializing_if = "is_one_process")]
    pub processes: [u32; 2],
    /// Whether MIG instances were measured.
    pub mig: bool,
    /// Whether shares with all of the memory were measured (MPS, green contexts).
    pub sms: bool,
}

fn one_process() -> [u32; 2] {
    [1, 1]
}

fn is_one_process(processes: &[u32; 2]) -> bool {
    *processes == one_process()
}

/// The rows of a fit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowsUsed {
    /// Distinct points fitted.
    pub points: usize,
    /// SHA-256 over the model's rows as JSON lines in sorted order, so that their order does not matter.
    pub sha256: String,
}

/// A model that could not be fitted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotFitted {
    /// Its name.
    pub model: String,
    /// Why, and what to do.
    pub reason: String,
}

/// What a profile gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Fitted {
    /// Name of the GPU, where the rows say it.
    pub gpu_name: Option<String>,
    /// Base power, where it is known.
    pub base: Option<BasePower>,
    /// The models, in the order of the rows.
    pub models: Vec<Model>,
    /// Those that could not be fitted.
    pub not_fitted: Vec<NotFitted>,
    /// Every point as the fit on the other folds predicts it, model by model.
    pub held_out: Vec<HeldOut>,
}

/// Fits all models of `rows`.
///
/// # Errors
///
/// [`FitError::SeveralGpus`] if the rows are of more than one kind of GPU, [`FitError::NoPoints`] without models,
/// [`FitError::BadOption`] for a cap that is not positive; if no model can be fitted, the error of the first.
pub fn fit_models(rows: &[ProfileRow], options: &FitOptions) -> Result<Fitted, FitError> {
    if let Some(cap) = options.cap_w.filter(|w| !(w.is_finite() && *w > 0.0)) {
        let (option, found) = ("power cap", format!("{cap} W"));
        return Err(FitError::BadOption {
            option,
            found,
            expected: "a positive number of watts, such as 300",
        });
    }
    let mut gpus: Vec<&String> =
        rows.iter().chain(&options.prior).filter_map(|r| r.gpu_name.as_ref()).collect();
    gpus.sort();
    gpus.dedup();
    if gpus.len() > 1 {
        let names = gpus.into_iter().cloned().collect::<Vec<_>>().join(", ");
        return Err(FitError::SeveralGpus { names });
    }
    let gpu_name = gpus.first().map(|name| (*name).clone());
    let base = options.base.clone().or_else(|| base_of(rows, &options.prior));
    let models = models_of(rows);
    let seen = parallel::map(&models, |model| {
        clean(&Observations::of(model, rows), options.form, base.as_ref(), options.cap_w)
    });
    let known = known(&seen, &options.prior, options.form, base.as_ref(), options.cap_w);
    let results = parallel::map(&seen, |own| {
        let others = known.iter().filter(|k| k.model != own.model);
        let mut context = Context::after(others, base.as_ref(), options.cap_w);
        context.seed = options.seed;
        fit_model(own, &context, options.form, hash(&own.model, rows))
    });
    let (mut models, mut not_fitted, mut held_out, mut first_error) = (vec![], vec![], vec![], None);
    for (own, result) in seen.iter().zip(results) {
        match result {
            Ok((model, points)) => {
                models.push(model);
                held_out.extend(points);
            }
            Err(error) => {
                not_fitted.push(NotFitted { model: own.model.clone(), reason: error.to_string() });
                first_error.get_or_insert(error);
            }
        }
    }
    if models.is_empty() {
        return Err(first_error.unwrap_or(FitError::NoPoints { model: "profile".into() }));
    }
    Ok(Fitted { gpu_name, base, models, not_fitted, held_out })
}

/// Base power from the rows, or else from those of the other profiles.
pub(crate) fn base_of(rows: &[ProfileRow], prior: &[ProfileRow]) -> Option<BasePower> {
    BasePower::of_rows(rows).or_else(|_| BasePower::of_rows(prior)).ok()
}

/// The observations without gross errors; all of them for the published form, which knows no such thing.
pub(crate) fn clean(
    seen: &Observations,
    form: Form,
    base: Option<&BasePower>,
    cap_w: Option<f64>,
) -> Observations {
    if form == Form::Polynomial { seen.clone() } else { screened(seen, base, cap_w) }
}

/// The models that tell something about each other, each under its name; none where the form does not ask for them.
pub(crate) fn known(
    seen: &[Observations],
    prior: &[ProfileRow],
    form: Form,
    base: Option<&BasePower>,
    cap_w: Option<f64>,
) -> Vec<Known> {
    if !matches!(form, Form::Auto | Form::Shared) {
        return vec![];
    }
    let mut all = seen.to_vec();
    for name in models_of(prior) {
        if seen.iter().all(|s| s.model != name) {
            all.push(screened(&Observations::of(&name, prior), base, cap_w));
        }
    }
    let figures = Figures::new(base, cap_w);
    parallel::map(&all, |model| Known::of(model, &figures)).into_iter().flatten().collect()
}

/// Fits one model; also gives its points as fits without them predict them.
pub(crate) fn fit_model(
    seen: &Observations,
    context: &Context<'_>,
    form: Form,
    sha256: String,
) -> Result<(Model, Vec<HeldOut>), FitError> {
    let (surfaces, compared) = validate::fit(form, seen, context)?;
    let mut notes = notes(seen, context.base, context.cap_w);
    if compared.is_none() {
        notes.push(format!("{} points are too few to leave any out: no errors", seen.points.len()));
    }
    let compared = compared.unwrap_or_default();
    let intervals = Intervals::of(&surfaces, &compared, seen, context);
    let model = Model {
        name: seen.model.clone(),
        surfaces,
        ranges: Ranges::of(seen),
        shares: shares(seen),
        held_out: errors_of(&compared),
        intervals,
        tail: Tail::fit(seen, &compared),
        held_out_points: compared.iter().map(KeptPoint::of).collect(),
        rows: RowsUsed { points: seen.points.len(), sha256 },
        notes,
    };
    Ok((model, compared.iter().map(|c| HeldOut::of(&seen.model, c)).collect()))
}

/// The different shares that are no MIG instances, ascending.
fn shares(seen: &Observations) -> Vec<f64> {
    let sms = |o: &Observation| match o.point.share {
        Share::Sms(share) => Some(share),
        Share::Slices(_) => None,
    };
    let mut shares: Vec<f64> = seen.points.iter().filter_map(sms).collect();
    shares.sort_by(f64::total_cmp);
    shares.dedup_by(|a, b| (*a - *b).abs() < 1e-6);
    shares
}

fn notes(seen: &Observations, base: Option<&BasePower>, cap_w: Option<f64>) -> Vec<String> {
    let mut notes: Vec<String> = seen.dropped.iter().map(|d| format!("left out: {d}")).collect();
    notes.extend(seen.remarks.iter().cloned());
    if let Some(reason) = &seen.dynamic_refused {
        let instead = match base {
            Some(_) => "used instead: avg_power_draw minus the base power of this file",
            None => "no base power is known either, so dynamic power is not predicted",
        };
        notes.push(format!("{reason}; {instead}"));
    }
    if let Some(cap) = cap_w {
        let above: Vec<f64> = seen.points.iter().filter_map(|o| o.average_w).filter(|w| *w > cap).collect();
        if !above.is_empty() {
            let most = above.iter().copied().fold(0.0, f64::max);
            notes.push(format!(
                "measured above the cap of {cap} W: {} points, up to {most:.1} W; predictions stop at the cap, so check it",
                above.len()
            ));
        }
    }
    let ranges = Ranges::of(seen);
    let constant = [
        ("clock", ranges.frequency_mhz[0] == ranges.frequency_mhz[1]),
        ("batch size", ranges.batch[0] == ranges.batch[1]),
        ("share", ranges.share[0] == ranges.share[1]),
    ];
    let only_one = |(what, _): (&str, bool)| {
        format!("only one {what} was measured: the fit does not know what another one would change")
    };
    notes.extend(constant.into_iter().filter(|c| c.1).map(only_one));
    notes
}

fn hash(name: &str, rows: &[ProfileRow]) -> String {
    let mut lines: Vec<String> =
        rows.iter().filter(|r| r.model == name).filter_map(|r| serde_json::to_string(r).ok()).collect();
    lines.sort_unstable();
    Sha256::digest(lines.join("\n")).iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Ranges {
    /// The span of the points; zeros without any.
    pub fn of(seen: &Observations) -> Self {
        let points = || seen.points.iter().map(|o| o.point);
        let span = |value: fn(Point) -> u32| {
            [points().map(value).min().unwrap_or_default(), points().map(value).max().unwrap_or_default()]
        };
        let shares = || points().map(|p| p.share.sms());
        Self {
            frequency_mhz: span(|p| p.frequency.0),
            batch: span(|p| p.batch),
            processes: span(|p| p.processes),
            share: [shares().fold(1.0, f64::min), shares().fold(0.0, f64::max)],
            mig: points().any(|p| matches!(p.share, Share::Slices(_))),
            sms: points().any(|p| matches!(p.share, Share::Sms(_))),
        }
    }

    /// Whether these are spans that points can have.
    pub(crate) fn are_sound(&self) -> bool {
        let span = |[low, high]: [u32; 2]| low > 0 && low <= high;
        let [low, high] = self.share;
        span(self.frequency_mhz)
            && span(self.batch)
            && span(self.processes)
            && low > 0.0
            && low <= high
            && high <= 1.0 + 1e-9
    }

    /// Whether a point lies within the span and its kind of share was measured.
    pub fn contain(&self, point: &Point) -> bool {
        let within = |[low, high]: [u32; 2], v: u32| (low..=high).contains(&v);
        let kind = match point.share {
            Share::Slices(_) => self.mig,
            Share::Sms(_) => self.sms,
        };
        let share = point.share.sms();
        kind && within(self.frequency_mhz, point.frequency.0)
            && within(self.batch, point.batch)
            && within(self.processes, point.processes)
            && share >= self.share[0] - 1e-9
            && share <= self.share[1] + 1e-9
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_knows_values_and_not_their_order() {
        let rows = [ProfileRow::new("m", 1, 1.0, 500), ProfileRow::new("m", 2, 1.0, 500)];
        let turned = [rows[1].clone(), rows[0].clone()];
        assert_eq!(hash("m", &rows), hash("m", &turned));
        assert_ne!(hash("m", &rows), hash("m", &rows[..1]));
        assert_eq!(hash("m", &rows).len(), 64);
    }
}
