//! The workload file: what is to be served, within which latency, on which GPUs.
//!
//! ```toml
//! [cluster]
//! gpu = "a100"            # kind of GPU
//! gpus = 6                # how many there are; left out: as many as it takes
//! sharing = "mig"         # or "mps"; "green" (contexts of some SMs) can be profiled, not placed yet
//! frequencies_mhz = [210, 1410]   # clocks to choose from; left out: those of the profile
//! carbon_g_per_kwh = 490
//! pue = 1.1
//! arrivals = "poisson"    # or "point", evenly spaced; left out: nobody waits, and the SLO is of a batch's time
//! slo_percentile = 99     # the part of requests, %, that must be within the SLO, with arrivals; left out: 99
//! unused = "idle"         # what the rest of `gpus` GPUs do: "off", "idle" or "context"; left out: off
//!
//! [[model]]
//! name = "resnet50"
//! latency_slo_ms = 47.6   # of one batch; with arrivals, of a request: until its batch is full, its turn comes and it is served
//! rate_rps = 1392.0       # items a second
//! max_load = 1.0          # not scaled above this by a load; left out: scaled by any
//! run = ["python3", "worker.py", "resnet50"]   # how its worker starts; an argv list, never a shell string
//! image = "registry.example/worker:1"          # container image that its worker runs in under Kubernetes
//! ```
//!
//! Every error names the key, what it holds, what was expected and what to do.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use crate::units::plain;

/// The whole file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// The GPUs.
    pub cluster: Cluster,
    /// The models.
    #[serde(default, rename = "model")]
    pub models: Vec<Model>,
}

/// How GPUs are shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sharing {
    /// MIG instances.
    Mig,
    /// MPS percentages.
    Mps,
    /// Green contexts, which a worker makes of some of the SMs.
    Green,
}

/// How requests come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arrivals {
    /// Evenly spaced.
    Point,
    /// At random, independently of each other.
    Poisson,
}

/// What GPUs without a model do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unused {
    /// They draw nothing.
    #[default]
    Off,
    /// They are on, without a context.
    Idle,
    /// They are on and hold a context, as a GPU with a loaded model does.
    Context,
}

/// The GPUs that models are placed on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// Kind of GPU: one of [`GPU_KINDS`].
    pub gpu: String,
    /// How many there are; as many as it takes if absent.
    pub gpus: Option<u32>,
    /// How they are shared.
    pub sharing: Option<Sharing>,
    /// SM clocks to choose from, MHz; those of the profile if absent.
    pub frequencies_mhz: Option<Vec<u32>>,
    /// Carbon intensity of the electricity, g/kWh.
    pub carbon_g_per_kwh: Option<f64>,
    /// Power usage effectiveness of the building.
    pub pue: Option<f64>,
    /// How requests come; if absent, nobody waits and the SLO is of the time of a batch.
    pub arrivals: Option<Arrivals>,
    /// The part of requests that must be within the SLO, %; 99 if absent.
    pub slo_percentile: Option<f64>,
    /// What those of `gpus` do that have no model.
    pub unused: Option<Unused>,
}

/// One model to serve.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Its name, as in the profile.
    pub name: String,
    /// Longest time of one batch, ms.
    pub latency_slo_ms: f64,
    /// Items a second.
    pub rate_rps: f64,
    /// The highest load that its rate is scaled by; any if absent.
    pub max_load: Option<f64>,
    /// How its worker starts: program and arguments.
    pub run: Option<Vec<String>>,
    /// Container image that its worker runs in, where containers are used.
    pub image: Option<String>,
}

/// No latency, rate, load or carbon intensity lies outside.
const PLAUSIBLE: std::ops::RangeInclusive<f64> = 1e-9..=1e12;

/// Kinds of GPU that a cluster may have.
pub const GPU_KINDS: &[&str] = &["a100", "h100", "h200"];

/// The kind that a GPU's product name clearly names; `None` if it names none of [`GPU_KINDS`] or several.
///
/// A word of the name must begin with the kind and not go on with a digit: `A100-SXM4-80GB` is an `a100`, a `GH200`
/// is no `h200`.
pub fn kind_of(product: &str) -> Option<&'static str> {
    let words: Vec<String> =
        product.split(|c: char| !c.is_ascii_alphanumeric()).map(str::to_ascii_lowercase).collect();
    let named = |kind: &&&str| {
        words
            .iter()
            .filter_map(|w| w.strip_prefix(**kind))
            .any(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    let mut kinds = GPU_KINDS.iter().filter(named);
    kinds.next().copied().filter(|_| kinds.next().is_none())
}

/// Why a workload file cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkloadError {
    /// It is not TOML of this shape; the message gives line and column.
    #[error("{0}")]
    Shape(String),
    /// There is nothing to serve.
    #[error("no [[model]] is listed; add at least one, with name, latency_slo_ms and rate_rps")]
    Empty,
    /// A value is out of its range.
    #[error("`{key}` is {found}; expected {expected}")]
    Value {
        /// Key, with the model's name where it belongs to one.
        key: String,
        /// What it holds.
        found: String,
        /// What was expected.
        expected: &'static str,
    },
    /// Two models share a name.
    #[error("two [[model]]s are called `{0}`; names tell models apart, so give one another name")]
    Twice(String),
}

impl Workload {
    /// The workload that a TOML text describes.
    pub fn parse(text: &str) -> Result<Self, WorkloadError> {
        let workload: Self =
            toml::from_str(text).map_err(|e| WorkloadError::Shape(e.to_string().trim().into()))?;
        workload.check()?;
        Ok(workload)
    }

    /// An error for the first value that is out of its range.
    pub fn check(&self) -> Result<(), WorkloadError> {
        let cluster = &self.cluster;
        if !GPU_KINDS.contains(&cluster.gpu.as_str()) {
            return Err(wrong("cluster.gpu", &cluster.gpu, "`a100`, `h100` or `h200`"));
        }
        if cluster.gpus == Some(0) {
            return Err(wrong("cluster.gpus", &0, "at least 1, or no such line for as many as it takes"));
        }
        if cluster.frequencies_mhz.as_ref().is_some_and(|f| f.is_empty() || f.contains(&0)) {
            return Err(wrong("cluster.frequencies_mhz", &"empty or has a 0", "clocks in MHz"));
        }
        positive("cluster.carbon_g_per_kwh", cluster.carbon_g_per_kwh.filter(|c| *c != 0.0))?;
        if let Some(pue) = cluster.pue.filter(|p| !(p.is_finite() && *p >= 1.0)) {
            return Err(wrong("cluster.pue", &plain(pue), "a number of at least 1"));
        }
        let percentile = cluster.slo_percentile;
        if let Some(percentile) = percentile.filter(|p| !(50.0..=99.999).contains(p)) {
            return Err(wrong(
                "cluster.slo_percentile",
                &plain(percentile),
                "a percentage from 50 to 99.999",
            ));
        }
        if percentile.is_some() && cluster.arrivals.is_none() {
            let expected = "cluster.arrivals beside it (`poisson` or `point`), since without waiting all requests take the same";
            return Err(wrong("cluster.slo_percentile", &"alone", expected));
        }
        if self.models.is_empty() {
            return Err(WorkloadError::Empty);
        }
        let mut names = HashSet::new();
        for model in &self.models {
            if model.name.is_empty() || model.name.starts_with('@') {
                return Err(wrong("model.name", &model.name, "a name that does not begin with @"));
            }
            if !names.insert(&model.name) {
                return Err(WorkloadError::Twice(model.name.clone()));
            }
            positive(&format!("latency_slo_ms of `{}`", model.name), Some(model.latency_slo_ms))?;
            positive(&format!("rate_rps of `{}`", model.name), Some(model.rate_rps))?;
            positive(&format!("max_load of `{}`", model.name), model.max_load)?;
            if let Some(what) = model.run.as_deref().and_then(cannot_start) {
                let key = format!("run of `{}`", model.name);
                return Err(wrong(&key, &what, "a program and its arguments, or no such line"));
            }
            if let Some(image) = model.image.as_deref().filter(|image| !is_image(image)) {
                return Err(wrong(&format!("image of `{}`", model.name), &format!("{image:?}"), IMAGE));
            }
        }
        Ok(())
    }
}

/// What an image's name is, in words.
pub const IMAGE: &str = "a container image such as `registry.example/worker:1`, without spaces";

/// Whether this could be the name of a container image; whether there is one only a registry knows.
pub fn is_image(text: &str) -> bool {
    !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || c.is_control())
}

/// What keeps an argv from being started by a shell's `env`.
fn cannot_start(argv: &[String]) -> Option<&'static str> {
    let Some(program) = argv.first() else { return Some("empty") };
    if argv.iter().any(|word| word.contains('\0')) {
        return Some("with a NUL byte, which no argument can hold");
    }
    if program.is_empty() {
        return Some("without a program's name");
    }
    program.contains('=').then_some("with a `=` in the program's name, which `env` takes for a variable")
}

fn positive(key: &str, value: Option<f64>) -> Result<(), WorkloadError> {
    match value {
        Some(v) if !PLAUSIBLE.contains(&v) => {
            Err(wrong(key, &plain(v), "a finite number above 0, from 1e-9 to 1e12"))
        }
        _ => Ok(()),
    }
}

fn wrong(key: &str, found: &dyn std::fmt::Display, expected: &'static str) -> WorkloadError {
    WorkloadError::Value { key: key.into(), found: found.to_string(), expected }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str =
        "[cluster]\ngpu = \"a100\"\n[[model]]\nname = \"m\"\nlatency_slo_ms = 5.0\nrate_rps = 10.0\n";

    #[test]
    fn a_small_file_reads() {
        let workload = Workload::parse(GOOD).unwrap();
        assert_eq!((workload.models[0].name.as_str(), workload.cluster.gpus), ("m", None));
    }

    #[test]
    fn kinds_are_told_from_product_names() {
        for (name, kind) in [
            ("NVIDIA A100 80GB PCIe (simulated)", Some("a100")),
            ("NVIDIA A100-SXM4-80GB", Some("a100")),
            ("NVIDIA H200 NVL", Some("h200")),
            ("H100PCIe", Some("h100")),
            ("NVIDIA GH200 480GB", None),
            ("NVIDIA H2000", None),
            ("A100 or H100", None),
            ("Tesla T4", None),
        ] {
            assert_eq!(kind_of(name), kind, "{name}");
        }
    }

    #[test]
    fn errors_name_the_key_and_what_was_expected() {
        for (from, to, says) in [
            ("a100", "b7", "`cluster.gpu` is b7; expected `a100`"),
            ("5.0", "-5.0", "latency_slo_ms of `m`"),
            ("10.0", "nan", "rate_rps of `m`"),
            ("10.0", "inf", "finite"),
            ("name = \"m\"", "name = \"@idle\"", "does not begin with @"),
            ("rate_rps", "rate", "unknown field `rate`"),
            ("gpu = \"a100\"", "gpu = \"a100\"\ngpus = 0", "cluster.gpus"),
            ("gpu = \"a100\"", "gpu = \"a100\"\npue = 0.5", "cluster.pue"),
            ("rate_rps = 10.0", "rate_rps = 10.0\nrun = []", "run of `m`"),
            ("rate_rps = 10.0", "rate_rps = 10.0\nrun = [\"\"]", "without a program's name"),
            ("rate_rps = 10.0", "rate_rps = 10.0\nrun = [\"A=1\", \"x\"]", "with a `=`"),
            ("rate_rps = 10.0", "rate_rps = 10.0\nrun = [\"x\", \"\\u0000\"]", "NUL"),
            ("rate_rps = 10.0", "rate_rps = 10.0\nimage = \"\"", "image of `m`"),
            ("rate_rps = 10.0", "rate_rps = 10.0\nimage = \"a b\"", "a container image such as"),
            ("10.0", "1e-308", "1e-9 to 1e12"),
            ("gpu = \"a100\"", "gpu = \"a100\"\narrivals = \"often\"", "unknown variant `often`"),
            ("gpu = \"a100\"", "gpu = \"a100\"\nslo_percentile = 95", "cluster.arrivals beside it"),
            (
                "gpu = \"a100\"",
                "gpu = \"a100\"\narrivals = \"point\"\nslo_percentile = 100",
                "from 50 to 99.999",
            ),
        ] {
            let error = Workload::parse(&GOOD.replace(from, to)).unwrap_err().to_string();
            assert!(error.contains(says), "{to}: {error}");
        }
        assert_eq!(Workload::parse("[cluster]\ngpu = \"a100\"\n"), Err(WorkloadError::Empty));
        let twice = format!("{GOOD}{}", &GOOD[GOOD.find("[[model]]").unwrap()..]);
        assert_eq!(Workload::parse(&twice), Err(WorkloadError::Twice("m".into())));
    }
}
