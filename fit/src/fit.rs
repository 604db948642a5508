//! The forms there are, and fitting one of them to the observations of one model.
//!
//! Rule: a form gives central values of average and dynamic power, time of a batch and latency at any point. Adding a
//! form is one file and one line in [`Form::ALL`], [`fit_form`], [`Surfaces`].
//!
//! Source: [`crate::physical`], [`crate::polynomial`].

use serde::{Deserialize, Serialize};

use crate::base::BasePower;
use crate::error::FitError;
use crate::physical::Physical;
use crate::point::{Observations, Point};
use crate::polynomial::Polynomial;

/// A form that can be fitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// Launch floor, SMs, memory; power from rate, share and clock.
    Physical,
    /// The physical form with a smooth correction of time and power.
    #[default]
    Corrected,
    /// Polynomials of degree 3, as published with EnerTune.
    Polynomial,
}

impl Form {
    /// All forms.
    pub const ALL: [Self; 3] = [Self::Physical, Self::Corrected, Self::Polynomial];

    /// Name in files and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Physical => "physical",
            Self::Corrected => "corrected",
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
    /// [`Form::Physical`].
    Physical(Box<Physical>),
    /// [`Form::Corrected`].
    Corrected(Box<Physical>),
    /// [`Form::Polynomial`].
    Polynomial(Box<Polynomial>),
}

/// Fits `form` to what was seen of one model. `base` is that of the GPU, `cap_w` its power limit in W.
///
/// # Errors
///
/// [`FitError::TooFewPoints`] with how many the form needs, [`FitError::NoSolution`], [`FitError::NoPoints`].
pub fn fit_form(
    form: Form,
    seen: &Observations,
    base: Option<&BasePower>,
    cap_w: Option<f64>,
) -> Result<Surfaces, FitError> {
    if seen.points.is_empty() {
        return Err(FitError::NoPoints { model: seen.model.clone() });
    }
    Ok(match form {
        Form::Physical => Surfaces::Physical(Box::new(Physical::fit(seen, base, cap_w, false)?)),
        Form::Corrected => Surfaces::Corrected(Box::new(Physical::fit(seen, base, cap_w, true)?)),
        Form::Polynomial => Surfaces::Polynomial(Box::new(Polynomial::fit(seen, base)?)),
    })
}

impl Surfaces {
    /// Which form this is.
    pub fn form(&self) -> Form {
        match self {
            Self::Physical(_) => Form::Physical,
            Self::Corrected(_) => Form::Corrected,
            Self::Polynomial(_) => Form::Polynomial,
        }
    }

    /// Central values at a point; `None` for a MIG instance that does not exist. `base` is the one of the fit.
    pub fn at(&self, point: &Point, base: Option<&BasePower>) -> Option<Central> {
        match self {
            Self::Physical(physical) | Self::Corrected(physical) => physical.at(point, base),
            Self::Polynomial(polynomial) => Some(polynomial.at(point)),
        }
    }

    /// Power limit at which the answers stop, W, where the form knows one.
    pub fn cap_w(&self) -> Option<f64> {
        match self {
            Self::Physical(physical) | Self::Corrected(physical) => physical.cap_w,
            Self::Polynomial(_) => None,
        }
    }

    /// Whether every parameter is one that the form can have.
    pub(crate) fn is_sound(&self) -> bool {
        match self {
            Self::Physical(physical) | Self::Corrected(physical) => physical.is_sound(),
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
