//! Each figure by the mix of forms that is best at points which it was not fitted on.
//!
//! Rule: the physical, the corrected and the shared form are each fitted with every point left out once
//! (`crate::validate`). Time of a batch, power and latency each take the weighted geometric mean of the forms, with weights in steps of a
//! [`STEPS`]th, whose mean of |ln(measured / predicted)| over those points is least. The forms that have a weight are then fitted on
//! all points. Power is mixed above the base where that is known.
//!
//! Cases: with fewer than ten points only the shared form can be fitted. Where no point can be left out, it alone
//! counts. The polynomial is not tried: it is there for comparison.
//!
//! Not done: weights that differ from point to point. The errors of a mix are those it was chosen by, so they are a
//! little too small; `--holdout` has errors that are not.
//!
//! Source: Breiman, "Stacked regressions", Machine Learning 24 (1996), 49.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::base::BasePower;
use crate::error::FitError;
use crate::fit::{Central, Context, Form, Surfaces, fit_form};
use crate::parallel;
use crate::point::{Observations, Point};
use crate::validate::{self, Compared};

/// The forms that are tried.
pub const TRIED: [Form; 3] = [Form::Physical, Form::Corrected, Form::Shared];
/// Weights are multiples of one over this.
pub const STEPS: u8 = 4;

/// How much of each form; the weights sum to 1.
pub type Mix = BTreeMap<Form, f64>;

/// Which forms give which figure, and those forms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Auto {
    /// Forms of the time of a batch, and so of throughput.
    pub batch_time: Mix,
    /// Forms of average and dynamic power.
    pub power: Mix,
    /// Forms of latency.
    pub latency: Mix,
    /// One of each form that is named above.
    pub parts: Vec<Surfaces>,
}

/// The forms' answers, point by point.
type Tried = Vec<(Form, Vec<Compared>)>;

impl Auto {
    /// Chooses and fits. Also gives each point as the forms predict it without having seen it; `None` if there were too few points to
    /// leave any out.
    ///
    /// # Errors
    ///
    /// Those of the form that needs fewest points.
    pub(crate) fn fit(
        seen: &Observations,
        context: &Context<'_>,
    ) -> Result<(Self, Option<Vec<Compared>>), FitError> {
        let compared =
            validate::left_out(seen, context, |training| validate::without_each(training, context));
        let tried: Tried =
            TRIED.into_iter().zip(compared).filter_map(|(form, compared)| Some((form, compared?))).collect();
        let batch_time = best(&tried, 2);
        // Dynamic power, where there is one, because it is what the forms differ in.
        let power = best(&tried, 1).or_else(|| best(&tried, 0));
        let latency = best(&tried, 3);
        let alone = || Mix::from([(Form::Shared, 1.0)]);
        let batch_time = batch_time.unwrap_or_else(alone);
        let mut auto = Self {
            power: power.unwrap_or_else(|| batch_time.clone()),
            latency: latency.unwrap_or_else(|| batch_time.clone()),
            batch_time,
            parts: vec![],
        };
        let used = |form: &Form| auto.mixes().iter().any(|mix| mix.contains_key(form));
        let used: Vec<Form> = TRIED.into_iter().filter(used).collect();
        let parts = parallel::map(&used, |form| fit_form(*form, seen, context));
        auto.parts = parts.into_iter().collect::<Result<_, _>>()?;
        auto.strip();
        let compared = auto.compared(&tried, context.base);
        Ok((auto, compared))
    }

    fn mixes(&self) -> [&Mix; 3] {
        [&self.batch_time, &self.power, &self.latency]
    }

    /// Leaves out what no figure is taken from.
    fn strip(&mut self) {
        for part in &mut self.parts {
            let form = part.form();
            if let Surfaces::Physical(physical) | Surfaces::Corrected(physical) = part {
                if !self.latency.contains_key(&form) {
                    physical.latency_residual = None;
                }
                if !self.power.contains_key(&form) {
                    physical.power_residual = None;
                }
            }
        }
    }

    /// The points left out as the mixes predict them.
    fn compared(&self, tried: &Tried, base: Option<&BasePower>) -> Option<Vec<Compared>> {
        let (_, first) = tried.first()?;
        let at = |i: usize| {
            let point = first.get(i)?.point;
            let central = self.mixed(&point, base, |form| {
                tried.iter().find(|t| t.0 == form).and_then(|t| Some(t.1.get(i)?.central))
            })?;
            Some(first.get(i)?.with(central))
        };
        (0..first.len()).map(at).collect()
    }

    /// What the mixes say at a point; `None` for a MIG instance that does not exist. `base` is the one of the fit.
    pub fn at(&self, point: &Point, base: Option<&BasePower>) -> Option<Central> {
        let mut answers = [None; Form::ALL.len()];
        for part in &self.parts {
            answers[part.form() as usize] = part.at(point, base);
        }
        self.mixed(point, base, |form| answers[form as usize])
    }

    fn mixed(
        &self,
        point: &Point,
        base: Option<&BasePower>,
        at: impl Fn(Form) -> Option<Central>,
    ) -> Option<Central> {
        // Outside is a form's answer, inside whether it has the figure.
        let mean = |mix: &Mix, value: fn(&Central) -> Option<f64>| -> Option<Option<f64>> {
            let mut sum = Some(0.0);
            for (form, weight) in mix {
                sum = value(&at(*form)?).and_then(|v| Some(sum? + weight * v.max(f64::MIN_POSITIVE).ln()));
            }
            Some(sum.map(f64::exp))
        };
        let dynamic_w = mean(&self.power, |c| c.dynamic_w)?;
        let average_w = match (dynamic_w, base) {
            (Some(w), Some(base)) => Some(base.at_w(point.frequency) + w),
            _ => mean(&self.power, |c| c.average_w)?,
        };
        Some(Central {
            average_w,
            dynamic_w,
            batch_time_ms: mean(&self.batch_time, |c| Some(c.batch_time_ms))??,
            latency_ms: mean(&self.latency, |c| c.latency_ms)?,
        })
    }

    pub(crate) fn cap_w(&self) -> Option<f64> {
        self.parts.iter().find_map(Surfaces::cap_w)
    }

    pub(crate) fn is_sound(&self) -> bool {
        let there = |form: &Form| self.parts.iter().any(|part| part.form() == *form);
        let mix = |mix: &&Mix| {
            let sum: f64 = mix.values().sum();
            mix.keys().all(there) && mix.values().all(|w| (0.0..=1.0).contains(w)) && (sum - 1.0).abs() < 1e-6
        };
        self.mixes().iter().all(mix)
            && self.parts.iter().all(|part| part.form() != Form::Auto && part.is_sound())
    }
}

/// The mix with the least mean of |ln(measured / predicted)| of a figure; `None` where no point has it.
fn best(tried: &Tried, figure: usize) -> Option<Mix> {
    let points = tried.first()?.1.len();
    // Logarithms of measured over predicted, a form each.
    let logs: Vec<(Form, Vec<f64>)> = tried
        .iter()
        .map(|(form, compared)| {
            (*form, compared.iter().map(|c| c.ratios[figure].map_or(f64::NAN, f64::ln)).collect::<Vec<_>>())
        })
        .filter(|(_, logs)| logs.len() == points && logs.iter().any(|v| v.is_finite()))
        .collect();
    let mut best: Option<(f64, Vec<u8>)> = None;
    for weights in weights(logs.len()) {
        let (mut sum, mut count) = (0.0, 0.0);
        for i in 0..points {
            let mixed: f64 = logs
                .iter()
                .zip(&weights)
                .filter(|(_, w)| **w > 0)
                .map(|((_, logs), w)| f64::from(*w) / f64::from(STEPS) * logs[i])
                .sum();
            if mixed.is_finite() {
                sum += mixed.abs();
                count += 1.0;
            }
        }
        let score = sum / count;
        if count > 0.0 && best.as_ref().is_none_or(|b| score < b.0) {
            best = Some((score, weights));
        }
    }
    let share = |w: u8| f64::from(w) / f64::from(STEPS);
    best.map(|(_, weights)| {
        logs.iter().zip(weights).filter(|(_, w)| *w > 0).map(|((form, _), w)| (*form, share(w))).collect()
    })
}

/// All lists of so many whole numbers that sum to [`STEPS`].
fn weights(count: usize) -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = vec![vec![]];
    for _ in 0..count {
        all = all
            .into_iter()
            .flat_map(|head| {
                let left = STEPS - head.iter().sum::<u8>();
                (0..=left).map(move |w| [head.clone(), vec![w]].concat())
            })
            .collect();
    }
    all.retain(|weights| weights.iter().sum::<u8>() == STEPS);
    all
}
