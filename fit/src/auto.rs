//! Each figure by the form that is best at points which it was not fitted on.
//!
//! Rule: the physical, the corrected and the shared form are each fitted with every point left out once
//! ([`crate::validate`]); time of a batch, power and latency each come from the form whose mean of |ln(measured / predicted)| over those
//! points is least. Those forms are then fitted on all points.
//!
//! Cases: with fewer than ten points only the shared form can be fitted. Where no point can be left out, the form
//! that needs fewest points is taken. The polynomial is not tried: it is there for comparison.
//!
//! Not done: blends of forms. The errors of the chosen form are those it was chosen by, so they are a little
//! too small; `--holdout` has errors that are not.

use serde::{Deserialize, Serialize};

use crate::base::BasePower;
use crate::error::FitError;
use crate::fit::{Central, Context, Form, Surfaces, fit_form};
use crate::point::{Observations, Point};
use crate::validate::{self, Compared};

/// The forms that are tried, the one that needs fewest points last.
pub const TRIED: [Form; 3] = [Form::Physical, Form::Corrected, Form::Shared];

/// Which form gives which figure, and those forms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Auto {
    /// Form of the time of a batch, and so of throughput.
    pub batch_time: Form,
    /// Form of average and dynamic power.
    pub power: Form,
    /// Form of latency.
    pub latency: Form,
    /// One of each form that is named above.
    pub parts: Vec<Surfaces>,
}

impl Auto {
    /// Chooses and fits. Also gives each point as the chosen forms predict it without having seen it; `None` if there were too few points
    /// to leave any out.
    ///
    /// # Errors
    ///
    /// Those of the form that needs fewest points.
    pub(crate) fn fit(
        seen: &Observations,
        context: &Context<'_>,
    ) -> Result<(Self, Option<Vec<Compared>>), FitError> {
        let tried: Vec<(Form, Vec<Compared>)> = TRIED
            .into_iter()
            .filter_map(|form| Some((form, validate::with_form(form, seen, context)?)))
            .collect();
        // Power: the dynamic one, where there is one, because it is what the forms differ in.
        let best = |figures: &[usize]| {
            let score = |compared: &[Compared]| {
                figures.iter().find_map(|figure| validate::mean_ln_error(compared, *figure))
            };
            let scored = tried.iter().filter_map(|(form, compared)| Some((score(compared)?, *form)));
            scored.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, form)| form)
        };
        let fallback = tried.last().map_or(Form::Shared, |t| t.0);
        let batch_time = best(&[2]).unwrap_or(fallback);
        let power = best(&[1, 0]).unwrap_or(batch_time);
        let latency = best(&[3]).unwrap_or(batch_time);
        let of = |form: Form| tried.iter().find(|t| t.0 == form).map(|t| &t.1);
        let compared = match (of(batch_time), of(power), of(latency)) {
            (Some(time), Some(power), Some(latency)) => Some(merged(time, power, latency)),
            _ => None,
        };
        let mut named = vec![batch_time, power, latency];
        named.sort_by_key(|form| form.name());
        named.dedup();
        let parts = named.into_iter().map(|form| fit_form(form, seen, context));
        let mut auto = Self { batch_time, power, latency, parts: parts.collect::<Result<_, _>>()? };
        auto.strip();
        Ok((auto, compared))
    }

    /// Leaves out what no figure is taken from.
    fn strip(&mut self) {
        for part in &mut self.parts {
            let form = part.form();
            if let Surfaces::Physical(physical) | Surfaces::Corrected(physical) = part {
                if self.latency != form {
                    physical.latency_residual = None;
                }
                if self.power != form {
                    physical.power_residual = None;
                }
            }
        }
    }

    fn part(&self, form: Form) -> Option<&Surfaces> {
        self.parts.iter().find(|part| part.form() == form)
    }

    /// What the forms say at a point; `None` for a MIG instance that does not exist. `base` is the one of the fit.
    pub fn at(&self, point: &Point, base: Option<&BasePower>) -> Option<Central> {
        let at = |form: Form| self.part(form)?.at(point, base);
        let time = at(self.batch_time)?;
        let power = if self.power == self.batch_time { time } else { at(self.power)? };
        let latency = if self.latency == self.batch_time { time } else { at(self.latency)? };
        Some(combined(&time, &power, &latency))
    }

    /// The shared form, where a figure comes from it.
    pub(crate) fn shared(&self) -> Option<&Surfaces> {
        self.part(Form::Shared)
    }

    pub(crate) fn cap_w(&self) -> Option<f64> {
        self.part(self.power).and_then(Surfaces::cap_w)
    }

    pub(crate) fn is_sound(&self) -> bool {
        [self.batch_time, self.power, self.latency].into_iter().all(|form| self.part(form).is_some())
            && self.parts.iter().all(|part| part.form() != Form::Auto && part.is_sound())
    }
}

fn combined(time: &Central, power: &Central, latency: &Central) -> Central {
    Central {
        average_w: power.average_w,
        dynamic_w: power.dynamic_w,
        batch_time_ms: time.batch_time_ms,
        latency_ms: latency.latency_ms,
    }
}

fn merged(time: &[Compared], power: &[Compared], latency: &[Compared]) -> Vec<Compared> {
    let all = time.iter().zip(power).zip(latency);
    all.map(|((time, power), latency)| Compared {
        point: time.point,
        central: combined(&time.central, &power.central, &latency.central),
        ratios: [power.ratios[0], power.ratios[1], time.ratios[2], latency.ratios[3]],
    })
    .collect()
}
