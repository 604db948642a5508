//! The forms there are, and fitting one of them to the observations of one model.
//!
//! Rule: a form gives central values of average and dynamic power, time of a batch and latency at any point. Adding a
//! form is one file and one line in [`Form::ALL`], [`fit_form`], [`Surfaces`].
//!
//! Source: [`crate::auto`], [`crate::physical`], [`crate::shared`], [`crate::polynomial`].

use serde::{Deserialize, Serialize};

use crate::active::{Expectation, Known};
use crate::auto::Auto;
use crate::base::BasePower;
use crate::error::FitError;
use crate::physical::Physical;
use crate::point::{Observations, Point};
use crate::polynomial::Polynomial;
use crate::shared::{self, Shared};

/// What is known beside the points of one model.
#[derive(Clone, Debug)]
pub struct Context<'a> {
    /// Base power of the GPU.
    pub base: Option<&'a BasePower>,
    /// Its power limit, W.
    pub cap_w: Option<f64>,
    /// Seed of the folds by which points are left out.
    pub seed: u64,
    expected: Expectation,
    grid: Vec<Point>,
}

impl<'a> Context<'a> {
    /// A GPU with this base power and power limit in W, of which no model is known.
    pub fn new(base: Option<&'a BasePower>, cap_w: Option<f64>) -> Self {
        Self::after([], base, cap_w)
    }

    /// A GPU of which these models are known.
    pub fn after<'k>(
        known: impl IntoIterator<Item = &'k Known>,
        base: Option<&'a BasePower>,
        cap_w: Option<f64>,
    ) -> Self {
        let known: Vec<&Known> = known.into_iter().collect();
        let grid = known.iter().flat_map(|k| k.points.iter().copied()).collect();
        Self { base, cap_w, seed: 0, expected: Expectation::after(known), grid }
    }

    /// What the shared form expects of a model.
    pub(crate) fn expected(&self) -> &Expectation {
        &self.expected
    }

    /// Where known models were measured.
    pub(crate) fn grid(&self) -> &[Point] {
        &self.grid
    }
}

/// A form that can be fitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// Each figure by the form that is best at points left out.
    #[default]
    Auto,
    /// Launch floor, SMs, memory; power from rate, share and clock.
    Physical,
    /// The physical form with a smooth correction of time and power.
    Corrected,
    /// What other models do, bent to the points.
    Shared,
    /// Polynomials of degree 3, as published with EnerTune.
    Polynomial,
}

impl Form {
    /// All forms.
    pub const ALL: [Self; 5] = [Self::Auto, Self::Physical, Self::Corrected, Self::Shared, Self::Polynomial];

    /// Name in files and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Physical => "physical",
            Self::Corrected => "corrected",
            Self::Shared => "shared",
            Self::Polynomial => "polynomial",
        }
    }

    /// The form of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|f| f.name() == name)
    }
}

/// Central values at a point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Central {
    /// Average power of the GPU, W.
    pub average_w: Option<f64>,
    /// Power above the base, W.
    pub dynamic_w: Option<f64>,
    /// Time of a batch, ms.
    pub batch_time_ms: f64,
    /// Latency, ms.
    pub latency_ms: Option<f64>,
}

/// A fitted form with its parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "form", content = "parameters", rename_all = "snake_case")]
pub enum Surfaces {
    /// [`Form::Auto`].
    Auto(Box<Auto>),
    /// [`Form::Physical`].
    Physical(Box<Physical>),
    /// [`Form::Corrected`].
    Corrected(Box<Physical>),
    /// [`Form::Shared`].
    Shared(Box<Shared>),
    /// [`Form::Polynomial`].
    Polynomial(Box<Polynomial>),
}

/// Fits `form` to what was seen of one model.
///
/// # Errors
///
/// [`FitError::TooFewPoints`] with how many the form needs, [`FitError::NoSolution`], [`FitError::NoPoints`].
pub fn fit_form(form: Form, seen: &Observations, context: &Context<'_>) -> Result<Surfaces, FitError> {
    if seen.points.is_empty() && !seen.dropped.is_empty() {
        return Err(too_few(seen, "throughput", form.name(), 0, shared::FEWEST));
    }
    if seen.points.is_empty() {
        return Err(FitError::NoPoints { model: seen.model.clone() });
    }
    let physical = |corrected| Physical::fit(seen, context.base, context.cap_w, corrected).map(Box::new);
    Ok(match form {
        Form::Auto => Surfaces::Auto(Box::new(Auto::fit(seen, context)?.0)),
        Form::Physical => Surfaces::Physical(physical(false)?),
        Form::Corrected => Surfaces::Corrected(physical(true)?),
        Form::Shared => Surfaces::Shared(Box::new(Shared::fit(seen, context)?)),
        Form::Polynomial => Surfaces::Polynomial(Box::new(Polynomial::fit(seen, context.base)?)),
    })
}

impl Surfaces {
    /// Which form this is.
    pub fn form(&self) -> Form {
        match self {
            Self::Auto(_) => Form::Auto,
            Self::Physical(_) => Form::Physical,
            Self::Corrected(_) => Form::Corrected,
            Self::Shared(_) => Form::Shared,
            Self::Polynomial(_) => Form::Polynomial,
        }
    }

    /// Central values at a point; `None` for a MIG instance that does not exist. `base` is the one of the fit.
    pub fn at(&self, point: &Point, base: Option<&BasePower>) -> Option<Central> {
        match self {
            Self::Auto(auto) => auto.at(point, base),
            Self::Physical(physical) | Self::Corrected(physical) => physical.at(point, base),
            Self::Shared(shared) => shared.at(point, base),
            Self::Polynomial(polynomial) => Some(polynomial.at(point)),
        }
    }

    /// Power limit at which the answers stop, W, where the form knows one.
    pub fn cap_w(&self) -> Option<f64> {
        match self {
            Self::Auto(auto) => auto.cap_w(),
            Self::Physical(physical) | Self::Corrected(physical) => physical.cap_w,
            Self::Shared(shared) => shared.cap_w,
            Self::Polynomial(_) => None,
        }
    }

    /// Whether every parameter is one that the form can have.
    pub(crate) fn is_sound(&self) -> bool {
        match self {
            Self::Auto(auto) => auto.is_sound(),
            Self::Physical(physical) | Self::Corrected(physical) => physical.is_sound(),
            Self::Shared(shared) => shared.is_sound(),
            Self::Polynomial(polynomial) => polynomial.is_sound(),
        }
    }
}

pub(crate) fn too_few(
    seen: &Observations,
    target: &'static str,
    form: &'static str,
    found: usize,
    needed: usize,
) -> FitError {
    FitError::TooFewPoints {
        model: seen.model.clone(),
        target,
        form,
        found,
        needed,
        dropped: seen.dropped.clone(),
    }
}
