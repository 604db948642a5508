//! Each point as a fit without it predicts it.
//!
//! Rule: the points are shuffled with a fixed seed and split into [`FOLDS`] folds; each fold is predicted by a fit on the
//! others. Up to [`ONE_BY_ONE`] points are left out one at a time.
//!
//! Cases: if a fit on the rest needs more points than there are, there is no answer. What other models of the GPU tell
//! ([`Context::expected`]) is the same in every fold.
//!
//! Source: Stone, J. R. Stat. Soc. B 36 (1974), 111 (cross-validation).

use crate::auto::Auto;
use crate::base::BasePower;
use crate::error::FitError;
use crate::fit::{Central, Context, Form, Surfaces, fit_form};
use crate::parallel;
use crate::physical::Physical;
use crate::point::{Observation, Observations, Point};
use crate::sample::{shuffled, stream};
use crate::shared::{self, Shared};

/// Folds of many points.
const FOLDS: usize = 5;
/// So few points are left out one at a time.
const ONE_BY_ONE: usize = 24;

/// Measured ÷ predicted at one point: average power, dynamic power, time of a batch, latency.
pub(crate) type Ratios = [Option<f64>; 4];

/// A point that a fit did not see, and what it said of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Compared {
    pub(crate) point: Point,
    pub(crate) central: Central,
    pub(crate) ratios: Ratios,
}

impl Compared {
    /// The same measurement beside another prediction.
    pub(crate) fn with(&self, central: Central) -> Self {
        let values = |c: &Central| [c.average_w, c.dynamic_w, Some(c.batch_time_ms), c.latency_ms];
        let (before, now) = (values(&self.central), values(&central));
        let ratio = |i: usize| Some(self.ratios[i]? * before[i]? / now[i]?);
        Self { point: self.point, central, ratios: [0, 1, 2, 3].map(ratio) }
    }
}

/// Fits all points, and predicts each by a fit without it; `None` if there are too few to leave any out.
pub(crate) fn fit(
    form: Form,
    seen: &Observations,
    context: &Context<'_>,
) -> Result<(Surfaces, Option<Vec<Compared>>), FitError> {
    if form == Form::Auto {
        let (auto, compared) = Auto::fit(seen, context)?;
        return Ok((Surfaces::Auto(Box::new(auto)), compared));
    }
    let fold = |training: &Observations| [without(form, training, context)];
    let [compared] = left_out(seen, context, fold);
    Ok((fit_form(form, seen, context)?, compared))
}

/// A fit for a fold.
fn without(form: Form, training: &Observations, context: &Context<'_>) -> Option<Surfaces> {
    match form {
        Form::Shared => Shared::fit_from(shared::FEWEST - 1, training, context)
            .map(|shared| Surfaces::Shared(Box::new(shared))),
        form => fit_form(form, training, context),
    }
    .ok()
}

/// The same for the physical, the corrected and the shared form, of which the first two have the time of a batch in common.
pub(crate) fn without_each(training: &Observations, context: &Context<'_>) -> [Option<Surfaces>; 3] {
    let batch_time = Physical::batch_time(training).ok();
    let physical = |corrected| {
        let time = batch_time.as_ref()?;
        Physical::fit_with(time, training, context.base, context.cap_w, corrected).ok().map(Box::new)
    };
    [
        physical(false).map(Surfaces::Physical),
        physical(true).map(Surfaces::Corrected),
        without(Form::Shared, training, context),
    ]
}

/// Predicts each point by fits without it, which `fold` makes of the rest; `None` where a fold has no fit, or there are too few points
/// to leave any out.
pub(crate) fn left_out<const N: usize>(
    seen: &Observations,
    context: &Context<'_>,
    fold: impl Fn(&Observations) -> [Option<Surfaces>; N] + Sync,
) -> [Option<Vec<Compared>>; N] {
    let n = seen.points.len();
    let order = shuffled(n, &mut stream(context.seed));
    let folds = if n <= ONE_BY_ONE { n } else { FOLDS };
    let each = parallel::map(&(0..folds).collect::<Vec<_>>(), |number| {
        let (out, within): (Vec<usize>, Vec<usize>) = (0..n).partition(|i| i % folds == *number);
        let pick = |places: Vec<usize>| seen.at(places.into_iter().map(|i| order[i]));
        let (training, rest) = (pick(within), pick(out));
        fold(&training).map(|fit| Some(compare(&fit?, &rest, context.base)))
    });
    let mut all: [Option<Vec<Compared>>; N] = std::array::from_fn(|_| Some(Vec::with_capacity(n)));
    for compared in each {
        for (all, compared) in all.iter_mut().zip(compared) {
            *all = all.take().zip(compared).map(|(all, compared)| [all, compared].concat());
        }
    }
    all.map(|compared| compared.filter(|c| !c.is_empty()))
}

/// What a fit says of points, beside what was measured there.
pub(crate) fn compare(surfaces: &Surfaces, seen: &Observations, base: Option<&BasePower>) -> Vec<Compared> {
    let of = |o: &Observation| {
        let central = surfaces.at(&o.point, base)?;
        Some(Compared { point: o.point, central, ratios: ratios_at(o, &central, base) })
    };
    seen.points.iter().filter_map(of).collect()
}

fn ratios_at(o: &Observation, central: &Central, base: Option<&BasePower>) -> Ratios {
    let above_base = || o.average_w.zip(base).map(|(w, base)| w - base.at_w(o.point.frequency));
    let dynamic_w = o.dynamic_w.or_else(above_base).filter(|w| *w > 0.0);
    let ratio = |measured: Option<f64>, predicted: Option<f64>| {
        measured.zip(predicted).map(|(m, p)| m / p).filter(|r| r.is_finite() && *r > 0.0)
    };
    [
        ratio(o.average_w, central.average_w),
        ratio(dynamic_w, central.dynamic_w),
        ratio(o.batch_time_ms(), Some(central.batch_time_ms)),
        ratio(o.latency_ms, central.latency_ms),
    ]
}
