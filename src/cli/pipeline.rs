//! Arguments of the stages after recording: profile, fit, predict, place.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Args, ValueEnum};
use gpumon_core::workload::{IMAGE, is_image};
use gpumon_place::cost::Objective;
use gpumon_place::emit::EMITTERS;
use gpumon_profile::design::Design;
use gpumon_profile::shard::Shard;

use super::parse;

/// Arguments of `profile`.
#[derive(Debug, Args)]
pub struct ProfileArgs {
    /// Workload file: the models to sweep, the kind of GPU and of sharing, and the clocks
    #[arg(short, long, value_name = "WORKLOAD.toml", required_unless_present = "from")]
    pub workload: Option<PathBuf>,
    /// Profile to make, `.parquet` or `.csv`; a stopped sweep of this name goes on
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// `nvml`, `sim:a100`, `sim:h200` or `sim:FILE.toml`; on a simulated GPU a model called NAME runs the simulated
    /// model NAME
    #[arg(long, default_value = "nvml", value_name = "DEVICE")]
    pub device: String,
    /// Which GPU: index, UUID or the beginning of one, PCI address; needed where there are several
    #[arg(long, value_name = "GPU")]
    pub gpu: Option<String>,
    /// SM clocks to lock, MHz, or `default`: leave clocks alone [default: the workload's frequencies_mhz, or eight of
    /// those that the GPU supports]
    #[arg(long, value_name = "LIST|default", allow_negative_numbers = true)]
    pub clocks: Option<Clocks>,
    /// Power limits to set, W, as a further axis [default: the limit is left alone]
    #[arg(long, value_delimiter = ',', value_name = "LIST", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub power_limits: Vec<u32>,
    /// Measure until the 95 % intervals of mean power and mean batch time are within this of their means, %
    #[arg(long, default_value_t = 1.0, value_name = "PCT", allow_negative_numbers = true, value_parser = parse::percent)]
    pub precision: f64,
    /// Rest so long before each measurement of idle power, and measure it as long
    #[arg(long, default_value = "5s", value_name = "TIME", value_parser = parse::length)]
    pub idle: Duration,
    /// Longest heating before what is measured with a context, on a card that has not worked for a minute; it ends when the
    /// temperature is steady; 0 for none [default: 120s; none on simulated GPUs, whose power does not depend on temperature]
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    pub heat: Option<Duration>,
    /// Measure this many sets of two to four models at work on the GPU together instead, on shares of the lists that fit
    /// together, chosen to be unlike each other
    #[arg(long, value_name = "SETS", conflicts_with_all = ["design", "record", "power_limits"], value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub together: Option<u32>,
    /// Profile of the same models alone: sets are chosen by it too, and slowdowns and dynamic power are told
    #[arg(long, value_name = "PROFILE", requires = "together")]
    pub alone: Option<PathBuf>,
    /// Python that runs PyTorch models [default: that of VIRTUAL_ENV, or python3]
    #[arg(long, value_name = "PATH")]
    pub python: Option<PathBuf>,
    /// Only say what would be set on the GPU, a command of the same effect a line
    #[arg(long)]
    pub dry_run: bool,
    /// `full`; `lhs:F`: a Latin hypercube of the share F of all points; `optimal:F`: the share F from which a fit is expected
    /// to know most of the others (I-optimal), chosen before anything is measured; `adaptive:F`: up to that share, each point chosen
    /// by what was measured before; `adaptive:err=E`: until the error elsewhere is expected to be E or less (0.02 is
    /// 2 %), up to a fifth of the points; `adaptive:F,err=E`: whichever comes first
    #[arg(long, default_value = "full", value_name = "DESIGN")]
    pub design: Design,
    /// Seed of the design
    #[arg(long, default_value_t = 1, value_name = "N", allow_negative_numbers = true)]
    pub seed: u64,
    /// MIG sizes, compute slices of seven, where the workload's sharing is `mig` [default: 1,2,3,4,7]
    #[arg(long, value_delimiter = ',', value_name = "LIST", allow_negative_numbers = true, value_parser = clap::value_parser!(u8).range(1..=7))]
    pub slices: Option<Vec<u8>>,
    /// Shares, % of the SMs, where the workload's sharing is `mps` or `green` (there to the nearest number of SMs that the
    /// driver hands out) [default: 14,29,43,57,100]
    #[arg(long, value_delimiter = ',', value_name = "LIST", allow_negative_numbers = true, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub shares: Option<Vec<u8>>,
    /// Batch sizes, items
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32", value_name = "LIST", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub batches: Vec<u32>,
    /// Also record a simulated GPU while the sweep runs, into this folder, with a mark at the end of each row; a stopped
    /// sweep goes on only without this (a real GPU is recorded beside it, with `gpumon record`)
    #[arg(long, value_name = "NAME")]
    pub record: Option<PathBuf>,
    /// Profiles of other models on this kind of GPU, which optimal and adaptive designs learn from; may be repeated
    #[arg(long, value_name = "PROFILE")]
    pub prior: Vec<PathBuf>,
    /// Power limit of the GPU, W, for a design that learns: points there tell their time only [default: none]
    #[arg(long, value_name = "W", allow_negative_numbers = true, value_parser = parse::positive)]
    pub cap_w: Option<f64>,
    /// Only this part of the points, I of 1 to N, for as many GPUs or jobs; put together with `gpumon merge`
    #[arg(long, value_name = "I/N", conflicts_with_all = ["from", "together"])]
    pub shard: Option<Shard>,
    /// Answer from this full profile instead of a GPU, to compare designs
    #[arg(long, value_name = "GRID", conflicts_with_all = ["workload", "together", "device", "gpu", "clocks", "power_limits", "precision", "idle", "heat", "python", "dry_run", "slices", "shares", "batches", "record"])]
    pub from: Option<PathBuf>,
    /// Models of GRID to replay, in this order [default: all]
    #[arg(long, value_delimiter = ',', value_name = "LIST", requires = "from")]
    pub models: Option<Vec<String>>,
    /// Time that each row of GRID counts which does not say its own, s
    #[arg(long, value_name = "S", default_value = "14", requires = "from", allow_negative_numbers = true, value_parser = parse::positive)]
    pub point_s: f64,
    /// What was swept, as one JSON document on standard output
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `merge`.
#[derive(Debug, Args)]
pub struct MergeArgs {
    /// Profiles, Parquet or CSV
    #[arg(required = true, value_name = "PROFILE")]
    pub profiles: Vec<PathBuf>,
    /// Profile to make, `.parquet` or `.csv`
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Replace the output if there is one
    #[arg(long)]
    pub force: bool,
    /// What was merged, as one JSON document on standard output
    #[arg(long)]
    pub json: bool,
}

/// Which clocks to sweep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Clocks {
    /// Leave them alone.
    Default,
    /// Lock these, MHz.
    Listed(Vec<u32>),
}

impl FromStr for Clocks {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "default" {
            return Ok(Self::Default);
        }
        let clocks: Result<Vec<u32>, _> = text.split(',').map(|mhz| mhz.trim().parse()).collect();
        clocks.map(Self::Listed).map_err(|_| "give clocks in MHz such as 1410,1980, or `default`".into())
    }
}

/// Arguments of `fit`.
#[derive(Debug, Args)]
pub struct FitArgs {
    /// Profiles, Parquet or CSV
    #[arg(required = true, value_name = "PROFILE")]
    pub profiles: Vec<PathBuf>,
    /// Model file to make (JSON)
    #[arg(short, long, value_name = "MODELS.json")]
    pub output: PathBuf,
    /// Replace the model file if there is one
    #[arg(long)]
    pub force: bool,
    /// Profiles of other models on this kind of GPU, which the models learn from; may be repeated
    #[arg(long, value_name = "PROFILE")]
    pub prior: Vec<PathBuf>,
    /// Form of the surfaces
    #[arg(long, value_enum, default_value_t = FormName::Auto)]
    pub form: FormName,
    /// Base power by clock, CSV with frequency_mhz,static_w,fan_w,idle_w [default: idle rows of the profiles]
    #[arg(long, value_name = "FILE.csv")]
    pub base_power: Option<PathBuf>,
    /// Power limit of the GPU, W: predictions are cut off there
    #[arg(long, value_name = "W", allow_negative_numbers = true)]
    pub cap_w: Option<f64>,
    /// Also fit on this share of the points, five times, and print the errors on the others
    #[arg(long, value_name = "F", allow_negative_numbers = true)]
    pub holdout: Option<f64>,
    /// With --holdout: each model in turn has only that share of its points, all others are known in full
    #[arg(long, requires = "holdout")]
    pub holdout_model: bool,
    /// How the share is drawn: by level index, or in physical units as EnerTune does
    #[arg(long, value_enum, default_value_t = MappingName::Level)]
    pub mapping: MappingName,
    /// Also write each point as a fit without it predicts it: CSV with measured and pred_ columns
    #[arg(long, value_name = "FILE.csv")]
    pub held_out: Option<PathBuf>,
    /// Sets of models measured together (`profile --together`): also fit what models do together on one GPU
    #[arg(long, value_name = "SETS.parquet")]
    pub sets: Option<PathBuf>,
    /// What was fitted and how well, as one JSON document on standard output; not with `-o -`
    #[arg(long)]
    pub json: bool,
}

/// Forms that `fit` knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FormName {
    /// Each figure by the mix of physical, corrected and shared that is best at points left out
    Auto,
    /// Physical, times a Gaussian process on its residual
    Corrected,
    /// Launch floor, compute and memory terms; power from rate, share and clock
    Physical,
    /// What other models of this GPU do, bent to the points; from five points on
    Shared,
    /// Degree 3 in clock, batch and slices, as published with EnerTune
    Polynomial,
}

/// How points are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MappingName {
    /// By level index, without loss
    Level,
    /// In physical units, rounded to the grid, repeats dropped
    Physical,
}

/// Arguments of `predict`.
#[derive(Debug, Args)]
pub struct PredictArgs {
    /// Model file
    #[arg(value_name = "MODELS.json")]
    pub models: PathBuf,
    /// Points: CSV with model, batch_size, mig_slices or share, frequency, and processes where a share has several; other
    /// columns are ignored, and so are rows of the idle GPU (`@idle`, `@idle-context`)
    #[arg(long, value_name = "FILE.csv")]
    pub points: PathBuf,
    /// Rows with the same `set` share a GPU: slowdown, latency, throughput of each and their power; a column `rate_rps`,
    /// items/s, says what is asked of a member that does not work all the time
    #[arg(long)]
    pub together: bool,
    /// One JSON document on standard output instead of CSV
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// A model file, or plans, which are drawn below each other
    #[arg(required = true, value_name = "MODELS.json|PLAN.json")]
    pub files: Vec<PathBuf>,
    /// Page to write (HTML, complete in itself); `-` is standard output [default: the first file's name with .html in place
    /// of .json]
    #[arg(short, long, value_name = "PAGE.html")]
    pub output: Option<PathBuf>,
    /// Replace the page if there is one
    #[arg(long)]
    pub force: bool,
    /// What was drawn, as one JSON document on standard output; not with `-o -`
    #[arg(long)]
    pub json: bool,
}

/// What plans are made from: arguments of `place`, `tune` and `compare`.
#[derive(Debug, Args)]
pub struct SourceArgs {
    /// Workload file
    #[arg(short, long, value_name = "WORKLOAD.toml")]
    pub workload: PathBuf,
    /// Model file to predict candidates from
    #[arg(long, value_name = "MODELS.json", conflicts_with = "profile", required_unless_present = "profile")]
    pub models: Option<PathBuf>,
    /// Profiles to take candidates from; may be repeated
    #[arg(long, value_name = "PROFILE")]
    pub profile: Vec<PathBuf>,
    /// Base power by clock, CSV with frequency_mhz,static_w,fan_w,idle_w [default: idle rows of the profiles, or
    /// what the model file holds]
    #[arg(long, value_name = "FILE.csv")]
    pub base_power: Option<PathBuf>,
    /// Batch sizes to choose from with --models, items
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32", value_name = "LIST", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub batches: Vec<u32>,
    /// At most this many GPUs [default: the workload's, or as many as it takes]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..))]
    pub gpus: Option<u32>,
}

impl SourceArgs {
    /// The files that are read.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.workload].into_iter().chain(&self.models).chain(&self.profile).chain(&self.base_power)
    }
}

/// Where plans go: arguments of `place` and `tune`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// Plan to write (JSON); `-` is standard output [default: -]
    #[arg(short, long, value_name = "PLAN.json")]
    pub output: Option<PathBuf>,
    /// Replace what is there; files of another plan in the folder of --emit go
    #[arg(long)]
    pub force: bool,
    /// Also write what runs the plan
    #[arg(long, value_name = "WHAT", value_parser = emit_kinds())]
    pub emit: Option<String>,
    /// Folder for what --emit writes [default: the plan's name with -WHAT in place of .json]
    #[arg(long, value_name = "FOLDER", requires = "emit")]
    pub emit_to: Option<PathBuf>,
    /// With --emit k8s: container image of models that have no `image` in the workload
    #[arg(long, value_name = "IMAGE", requires = "emit", value_parser = image)]
    pub image: Option<String>,
    /// With --emit k8s or mig-parted: memory of a GPU, GB, which names of MIG profiles have in them (40 or 80 of an A100,
    /// 80 or 94 of an H100) [default: 141 of an H200]
    #[arg(long, value_name = "GB", requires = "emit", allow_negative_numbers = true)]
    pub gpu_memory_gb: Option<u32>,
}

fn emit_kinds() -> PossibleValuesParser {
    PossibleValuesParser::new(EMITTERS.iter().map(|e| PossibleValue::new(e.name()).help(e.about())))
}

fn image(text: &str) -> Result<String, String> {
    if is_image(text) { Ok(text.into()) } else { Err(format!("expected {IMAGE}")) }
}

/// Arguments of `place`.
#[derive(Debug, Args)]
pub struct PlaceArgs {
    /// Placement system
    #[arg(long, default_value = "enertune", value_name = "S")]
    pub system: String,
    /// `power`, `energy`, `carbon` (as published), `average-power`, `energy-per-request`, `carbon-per-request`
    #[arg(long, default_value = "energy-per-request", value_name = "OBJECTIVE")]
    pub objective: Objective,
    #[command(flatten)]
    pub source: SourceArgs,
    /// Scale of every rate, 1e-6 to 1e6
    #[arg(long, default_value_t = 1.0, value_name = "FACTOR", allow_negative_numbers = true)]
    pub load: f64,
    /// Longest search of the systems that could go on; the plan says whether it is proven to be the cheapest
    #[arg(long, default_value = "10s", value_name = "TIME", value_parser = parse::length)]
    pub time_limit: Duration,
    #[command(flatten)]
    pub plan: PlanArgs,
    /// The plan on standard output beside the file of -o
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `compare`.
#[derive(Debug, Args)]
pub struct CompareArgs {
    #[command(flatten)]
    pub source: SourceArgs,
    /// Systems to compare [default: all]
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub systems: Vec<String>,
    /// Objectives to plan for [default: all six]
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub objectives: Vec<Objective>,
    /// Scales of every rate, 1e-6 to 1e6
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "0.25,0.5,0.75,1,1.25",
        value_name = "LIST",
        allow_negative_numbers = true
    )]
    pub loads: Vec<f64>,
    /// Longest search, for each plan, of the systems that could go on
    #[arg(long, default_value = "10s", value_name = "TIME", value_parser = parse::length)]
    pub time_limit: Duration,
    /// Comparison to write (JSON); `-` is standard output
    #[arg(short, long, value_name = "COMPARISON.json")]
    pub output: Option<PathBuf>,
    /// Page to write (HTML, complete in itself): tables, power by load, the plans drawn
    #[arg(long, value_name = "PAGE.html")]
    pub html: Option<PathBuf>,
    /// Folder for the plans: SYSTEM-OBJECTIVE-LOAD.json, the load in percent
    #[arg(long, value_name = "FOLDER")]
    pub plans: Option<PathBuf>,
    /// Replace what is there
    #[arg(long)]
    pub force: bool,
    /// The comparison as one JSON document on standard output instead of the table
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `tune`.
#[derive(Debug, Args)]
pub struct TuneArgs {
    /// Plan that runs
    #[arg(value_name = "PLAN.json")]
    pub running: PathBuf,
    #[command(flatten)]
    pub source: SourceArgs,
    /// Scale of every rate, 1e-6 to 1e6 [default: the plan's]
    #[arg(long, value_name = "FACTOR", allow_negative_numbers = true)]
    pub load: Option<f64>,
    /// Carbon intensity of the electricity, g/kWh [default: the workload's, or the plan's]
    #[arg(long, value_name = "G", allow_negative_numbers = true, value_parser = parse::not_negative)]
    pub carbon_g_per_kwh: Option<f64>,
    #[command(flatten)]
    pub plan: PlanArgs,
    /// What changed and the plan, as one JSON document on standard output; not with `-o -`
    #[arg(long)]
    pub json: bool,
}

/// Arguments of the worker of a native net.
#[derive(Debug, Args)]
pub struct WorkerArgs {
    /// Net that comes with gpumon, or file NET.toml
    #[arg(value_name = "NET")]
    pub net: String,
}
