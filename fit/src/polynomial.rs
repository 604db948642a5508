//! The published form: a polynomial of degree 3 in clock, batch and share for each figure.
//!
//! Rule: ordinary least squares on average power (W), throughput (items/s), latency (ms) and dynamic power (W), each on
//! its own, over clock in MHz, batch and share of the SMs, and over the processes in a share where their number differs. Time of a batch is
//! batch / throughput.
//!
//! Cases: a variable with n distinct values enters with powers up to n − 1. A throughput that the polynomial puts at
//! or below zero counts as the smallest one of the fit, powers and latencies likewise: a polynomial knows no sign.
//! Dynamic power without a column is average power minus the base.
//!
//! Not done: transforming figures, which the published form does not do either.
//!
//! Source: EnerTune (SOSP'26), its artifact's analytical model.

use serde::{Deserialize, Serialize};

use crate::base::BasePower;
use crate::error::FitError;
use crate::fit::{Central, too_few};
use crate::point::{Observation, Observations, Point};
use crate::surface::{Design, Surface};

/// Names of the variables, in order.
pub const VARIABLES: [&str; 4] = ["clock_mhz", "batch", "share", "processes"];
/// Those of points that are all of one process, as they were published.
const PUBLISHED: usize = 3;
const DEGREE: u8 = 3;

/// One figure's polynomial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The polynomial over [`VARIABLES`].
    pub surface: Surface,
    /// The smallest value of the fit; nothing below it is predicted when the polynomial is not positive.
    pub least: f64,
}

/// The polynomials of one model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Polynomial {
    /// Average power, W.
    pub average_w: Option<Figure>,
    /// Dynamic power, W.
    pub dynamic_w: Option<Figure>,
    /// Items a second.
    pub throughput: Figure,
    /// Latency, ms.
    pub latency_ms: Option<Figure>,
}

impl Polynomial {
    /// Fits every figure that the observations have; throughput they must have.
    ///
    /// # Errors
    ///
    /// [`FitError::TooFewPoints`] with the number of coefficients, [`FitError::NoSolution`].
    pub fn fit(seen: &Observations, base: Option<&BasePower>) -> Result<Self, FitError> {
        let derived =
            |o: &Observation| Some(o.average_w? - base?.at_w(o.point.frequency)).filter(|w| *w > 0.0);
        let optional = |target, value: &dyn Fn(&Observation) -> Option<f64>| {
            let any = seen.points.iter().any(|o| value(o).is_some());
            any.then(|| figure(seen, target, value)).transpose()
        };
        Ok(Self {
            average_w: optional("average power", &|o| o.average_w)?,
            dynamic_w: if seen.dynamic_refused.is_some() {
                optional("dynamic power", &derived)?
            } else {
                optional("dynamic power", &|o| o.dynamic_w)?
            },
            throughput: figure(seen, "throughput", &|o| o.throughput)?,
            latency_ms: optional("latency", &|o| o.latency_ms)?,
        })
    }

    /// What the polynomials say at a point.
    pub fn at(&self, point: &Point) -> Central {
        let at = |figure: &Figure| figure.at(point);
        Central {
            average_w: self.average_w.as_ref().map(at),
            dynamic_w: self.dynamic_w.as_ref().map(at),
            batch_time_ms: 1e3 * point.batch_items() / at(&self.throughput),
            latency_ms: self.latency_ms.as_ref().map(at),
        }
    }

    pub(crate) fn is_sound(&self) -> bool {
        let over = |f: &Figure| f.surface.is_over(&VARIABLES) || f.surface.is_over(&VARIABLES[..PUBLISHED]);
        let sound = |f: &Figure| over(f) && f.least.is_finite() && f.least > 0.0;
        sound(&self.throughput)
            && [&self.average_w, &self.dynamic_w, &self.latency_ms].into_iter().flatten().all(sound)
    }
}

impl Figure {
    fn at(&self, point: &Point) -> f64 {
        // A surface without the last variable does not look at it.
        let value = self.surface.at(&variables(point));
        if value > 0.0 { value } else { self.least }
    }
}

fn variables(point: &Point) -> [f64; 4] {
    [f64::from(point.frequency.0), point.batch_items(), point.share.sms(), point.processes_count()]
}

fn figure(
    seen: &Observations,
    target: &'static str,
    value: &dyn Fn(&Observation) -> Option<f64>,
) -> Result<Figure, FitError> {
    let rows: Vec<(Vec<f64>, f64)> =
        seen.points.iter().filter_map(|o| Some((variables(&o.point).to_vec(), value(o)?))).collect();
    let (x, y): (Vec<Vec<f64>>, Vec<f64>) = rows.into_iter().unzip();
    if x.is_empty() {
        return Err(too_few(seen, target, "polynomial", 0, 20));
    }
    let no_solution = || FitError::NoSolution { model: seen.model.clone(), target };
    let several = seen.points.iter().any(|o| o.point.processes > 1);
    let names = if several { &VARIABLES[..] } else { &VARIABLES[..PUBLISHED] };
    let design = Design::new(names, &x, DEGREE).ok_or_else(no_solution)?;
    if x.len() < design.terms() {
        return Err(too_few(seen, target, "polynomial", x.len(), design.terms()));
    }
    let least = y.iter().copied().fold(f64::INFINITY, f64::min);
    let figure = Figure { surface: design.solve(&y, 0.0), least };
    if figure.surface.is_over(names) { Ok(figure) } else { Err(no_solution()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch_time::tests::grid;

    fn seen(throughput: impl Fn(&Point) -> f64) -> Observations {
        let with = |point: Point| Observation {
            point,
            average_w: Some(50.0 + 0.1 * f64::from(point.frequency.0) * point.share.sms()),
            dynamic_w: None,
            throughput: Some(throughput(&point)),
            latency_ms: None,
            tail: None,
        };
        let points = grid().into_iter().map(with).collect();
        Observations { model: "m".into(), points, dropped: vec![], remarks: vec![], dynamic_refused: None }
    }

    #[test]
    fn figures_that_are_polynomials_are_found_and_absent_ones_stay_absent() {
        let fitted = Polynomial::fit(&seen(|p| 5.0 + p.batch_items() * p.share.sms()), None).unwrap();
        let point = grid()[40];
        let at = fitted.at(&point);
        let throughput = 5.0 + point.batch_items() * point.share.sms();
        assert!((at.batch_time_ms / (1e3 * point.batch_items() / throughput) - 1.0).abs() < 1e-8);
        let watts = 50.0 + 0.1 * f64::from(point.frequency.0) * point.share.sms();
        assert!((at.average_w.unwrap() - watts).abs() < 1e-6);
        assert_eq!((at.dynamic_w, at.latency_ms), (None, None));
    }

    #[test]
    fn what_would_be_negative_is_the_least_measured_value() {
        let fitted = Polynomial::fit(&seen(|p| if p.batch == 32 { 1e4 } else { 1.0 }), None).unwrap();
        assert!(grid().iter().any(|p| fitted.throughput.surface.at(&variables(p)) < 0.0));
        assert!(grid().iter().all(|p| fitted.throughput.at(p) > 0.0));
    }
}
