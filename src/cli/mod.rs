//! The command line: arguments, their units and defaults, and nothing else.

pub mod characterize;
pub mod control;
mod parse;
pub mod pipeline;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

pub use parse::Span;
use parse::{duration, length, marker, not_negative, pue, rate, span};

/// Measures GPU power at the rate the hardware really gives, and helps to spend less of it.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100, after_help = EXIT_CODES)]
pub struct Cli {
    /// Say more on standard error
    #[arg(short, long, global = true)]
    pub verbose: bool,
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 done, 1 failed, 2 usage, 3 done with losses under --strict, \
                          4 recorded but a GPU was lost (`record`), 130 interrupted; \
                          `run` and `hold` answer with the command's own code, or 125 if gpumon itself failed, 126 if the \
                          command cannot be executed, 127 if it is not found.";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// The whole pipeline on a simulated A100: sweep, record, fit, place; a table and a page with pictures
    Demo(DemoArgs),
    /// List GPUs: identity, limits, clocks, which sensors work
    Devices(DevicesArgs),
    /// Sample until Ctrl-C, for a duration, or until a process ends
    Record(RecordArgs),
    /// Sample around a command and report what it drew
    Run(RunArgs),
    /// Set a mark in the recording that goes on
    Mark(MarkArgs),
    /// Begin a named window in the recording that goes on
    Begin(MarkArgs),
    /// End a named window in the recording that goes on
    End(MarkArgs),
    /// Energy and statistics of a recording, finished or still being written
    Summary(SummaryArgs),
    /// Compare two recordings, or sets of repeated runs: energy, time, power
    Diff(DiffArgs),
    /// Write a recording as one table, or draw it
    Export(ExportArgs),
    /// Show the latest readings to Prometheus over HTTP, until Ctrl-C
    #[cfg(feature = "exporter")]
    Exporter(ExporterArgs),
    /// Make a killed recording whole
    Recover(RecoverArgs),
    /// Find what a GPU's power sensors show, how often and how late, under a load of gpumon's own
    Characterize(characterize::CharacterizeArgs),
    /// Set clock, power limit, MIG or MPS, run a command, and put back what was found
    Hold(control::HoldArgs),
    /// Put back what a gpumon that was killed left set on GPUs
    Restore(control::RestoreArgs),
    /// Wait for the end of standard input, then put back what a journal lists
    #[command(name = "__janitor", hide = true)]
    Janitor(control::JanitorArgs),
    /// Serve a native net over the worker protocol
    #[command(name = WORKER, hide = true)]
    Worker(pipeline::WorkerArgs),
    /// Sweep models over share, clock and batch size
    Profile(Box<pipeline::ProfileArgs>),
    /// Put the profiles of a sweep's parts together
    Merge(pipeline::MergeArgs),
    /// Fit models of batch time and power to profiles
    Fit(pipeline::FitArgs),
    /// Predict latency, throughput and power of given points, with 90 % intervals
    Predict(pipeline::PredictArgs),
    /// Place a workload's models on shared GPUs for least power, energy or carbon
    Place(pipeline::PlaceArgs),
    /// Put all systems side by side at several loads and objectives: GPUs, power, energy, carbon, distance to the optimum
    Compare(pipeline::CompareArgs),
    /// Set clocks and batches of a running plan anew after a change of rates or carbon intensity, without moving a model
    Tune(pipeline::TuneArgs),
    /// Draw a model file (held-out points, residuals along each axis, surfaces) or plans as one HTML page
    Report(pipeline::ReportArgs),
}

/// What `native:NET` starts.
pub const WORKER: &str = "__worker";

impl Command {
    /// The exit code for a failure of gpumon itself.
    pub fn failure_code(&self) -> u8 {
        match self {
            Self::Run(_) | Self::Hold(_) => 125,
            _ => 1,
        }
    }
}

/// Where GPUs come from and which of them.
#[derive(Clone, Debug, Args)]
pub struct DeviceArgs {
    /// `nvml`, `sim:h200`, `sim:a100`, `sim:FILE.toml` (simulated GPUs) or `replay:RECORDING`
    #[arg(long, default_value = "nvml", value_name = "DEVICE")]
    pub device: String,
    /// GPUs: `all`, or a list of indices, UUIDs, starts of UUIDs, PCI addresses [default: all; for `run`
    /// those that CUDA_VISIBLE_DEVICES leaves the command]
    #[arg(long, value_name = "LIST")]
    pub gpu: Option<String>,
    /// Read GPUs that are asleep to save power (PCI runtime power management) too, which wakes them
    #[arg(long)]
    pub wake: bool,
}

/// Arguments of `demo`.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Folder for everything that the pipeline makes; that of an earlier demo is made anew
    #[arg(short, long, value_name = "FOLDER", default_value = "gpumon-demo")]
    pub output: PathBuf,
    /// The table as one JSON document on standard output; what the steps print goes to standard error
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `devices`.
#[derive(Debug, Args)]
pub struct DevicesArgs {
    #[command(flatten)]
    pub device: DeviceArgs,
    /// One JSON document on standard output
    #[arg(long)]
    pub json: bool,
}

/// How to sample and where to.
#[derive(Clone, Debug, Args)]
pub struct SampleArgs {
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Folder of the recording
    #[arg(short, long, value_name = "NAME")]
    pub output: PathBuf,
    /// Replace the recording NAME if there is one
    #[arg(long)]
    pub force: bool,
    /// Rate of the fast lane, Hz, 0.1 to 1000; the driver's own 50 Hz readings come on top
    #[arg(long, value_name = "HZ", default_value = "10", value_parser = rate, allow_negative_numbers = true)]
    pub rate: f64,
    /// Exit with 3 if anything was lost: missed ticks, lost readings, gaps
    #[arg(long)]
    pub strict: bool,
}

/// Arguments of `record`.
#[derive(Debug, Args)]
pub struct RecordArgs {
    #[command(flatten)]
    pub sample: SampleArgs,
    /// How long: seconds, or with a unit (500ms, 90s, 10m, 24h) [default: until Ctrl-C]
    #[arg(long, value_name = "TIME", value_parser = length, allow_negative_numbers = true)]
    pub duration: Option<Duration>,
    /// Until this process ends
    #[arg(long, value_name = "PID", conflicts_with = "duration", value_parser = clap::value_parser!(i32).range(1..))]
    pub pid: Option<i32>,
    #[command(flatten)]
    pub cost: CostArgs,
    #[command(flatten)]
    pub calibration: CalibrationArgs,
    /// The summary as one JSON document on standard output
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    pub sample: SampleArgs,
    /// How long to go on after the command has ended, as in --duration of `record`
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration)]
    pub tail: Duration,
    /// Mark the recording at each line of the command's standard output that matches this regular expression; groups called
    /// mark, begin and end say what with which name, else the first group or the whole match is a mark's name; may be
    /// repeated
    #[arg(long, value_name = "REGEX", value_parser = marker)]
    pub mark_regex: Vec<regex::bytes::Regex>,
    /// Write the summary as JSON to this file; one that exists is kept unless --force is given
    #[arg(long, value_name = "FILE")]
    pub summary: Option<PathBuf>,
    #[command(flatten)]
    pub cost: CostArgs,
    #[command(flatten)]
    pub calibration: CalibrationArgs,
    /// Run the command this many times, each a recording in the folder NAME, and say how they vary; with `--vs` after
    /// the command and a second one behind it, both by turns, and whether they differ
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=999))]
    pub repeat: Option<u32>,
    /// Runs before those that count, with --repeat [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=99))]
    pub warmup: Option<u32>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub command: Vec<std::ffi::OsString>,
}

/// Arguments of `diff`.
#[derive(Debug, Args)]
pub struct DiffArgs {
    /// A recording, or a folder of `run --repeat`
    #[arg(value_name = "A")]
    pub a: PathBuf,
    /// What to compare it with [default: the other command of A, if A was made by turns with `--vs`]
    #[arg(value_name = "B")]
    pub b: Option<PathBuf>,
    /// The window to compare [default: `command` if every run has it, else the whole recording]
    #[arg(long, value_name = "NAME")]
    pub window: Option<String>,
    #[command(flatten)]
    pub calibration: CalibrationArgs,
    /// One JSON document on standard output
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `mark`, `begin` and `end`.
#[derive(Debug, Args)]
pub struct MarkArgs {
    /// Name of the mark or window, up to 200 bytes
    #[arg(value_name = "NAME")]
    pub name: String,
    /// The recorder's socket [default: GPUMON_SOCKET, else that of the only recording of this user]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

/// What energy costs.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct CostArgs {
    /// Price of a kWh, in any currency: adds the cost
    #[arg(long, value_name = "PRICE", value_parser = not_negative)]
    pub price_per_kwh: Option<f64>,
    /// Carbon intensity, gCO2e per kWh: adds the emissions
    #[arg(long, value_name = "G", value_parser = not_negative)]
    pub carbon_g_per_kwh: Option<f64>,
    /// Power usage effectiveness of the building, by which cost and emissions are multiplied
    #[arg(long, value_name = "FACTOR", default_value = "1", value_parser = pue)]
    pub pue: f64,
}

/// What is known of the sensors' gain.
#[derive(Clone, Debug, Default, Args)]
pub struct CalibrationArgs {
    /// TOML file with what a meter said about each GPU's sensors (gain, W offset): corrects every W and J of
    /// the summary, and takes the place of the 5 % by which a sensor's gain may be off (docs/energy.md)
    #[arg(long, value_name = "FILE")]
    pub calibration: Option<PathBuf>,
}

/// Arguments of `summary`.
#[derive(Debug, Args)]
pub struct SummaryArgs {
    /// The recording
    #[arg(value_name = "NAME")]
    pub recording: PathBuf,
    /// Also sum up this span, seconds since the start (1.5..20, 10.., ..30); may be repeated
    #[arg(long, value_name = "FROM..TO", value_parser = span)]
    pub window: Vec<Span>,
    #[command(flatten)]
    pub cost: CostArgs,
    #[command(flatten)]
    pub calibration: CalibrationArgs,
    /// What each GPU draws idle with a context, W, which no process is charged with
    /// [default: what the recording shows, see docs/attribution.md]
    #[arg(long, value_name = "W", value_parser = not_negative)]
    pub idle_power: Option<f64>,
    /// Exit with 3 if anything was lost: missed ticks, lost readings, gaps
    #[arg(long)]
    pub strict: bool,
    /// One JSON document on standard output
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// The recording
    #[arg(value_name = "NAME")]
    pub recording: PathBuf,
    /// File to write; `-` is standard output
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    pub output: PathBuf,
    /// What to write [default: by the file's ending, else csv]
    #[arg(long, value_enum)]
    pub format: Option<ExportFormat>,
    /// One table as it is, instead of all joined to the ticks of the fast lane
    #[arg(long, value_enum, conflicts_with = "wide")]
    pub table: Option<TableName>,
    /// All tables joined to the ticks of the fast lane (the default)
    #[arg(long)]
    pub wide: bool,
    /// Only this GPU, by its number in the recording; gmonitor needs it if there are several [default: all]
    #[arg(long, value_name = "INDEX")]
    pub gpu: Option<usize>,
    /// Only this span, seconds since the start (1.5..20, 10.., ..30), its end not included [default: all]
    #[arg(long, value_name = "FROM..TO", value_parser = span)]
    pub window: Option<Span>,
    /// Replace FILE if there is one
    #[arg(long)]
    pub force: bool,
}

/// What `export` writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// Comma-separated values
    Csv,
    /// A JSON object a line
    Jsonl,
    /// A Parquet file
    Parquet,
    /// The columns of EnerTune's gmonitor daemon, with the values its column names promise
    Gmonitor,
    /// A picture: the driver's 1 s average beside its 50 Hz readings
    Svg,
}

/// The tables of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TableName {
    /// Power and SM clock at each tick
    Fast,
    /// The driver's own readings of power
    Ring,
    /// Everything that changes slowly
    Slow,
    /// The energy counter
    Counter,
    /// Marks, windows, losses
    Events,
    /// The processes in each second
    Process,
}

/// Arguments of `exporter`.
#[cfg(feature = "exporter")]
#[derive(Debug, Args)]
pub struct ExporterArgs {
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Address and port; 0 takes any that is free, which standard error names
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9835")]
    pub listen: std::net::SocketAddr,
    /// Time between two readings of power and SM clock, 1ms to 10s; the rest is read once in that time, once a second
    /// at most
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse::interval)]
    pub interval: Duration,
}

/// Arguments of `recover`.
#[derive(Debug, Args)]
pub struct RecoverArgs {
    /// The recording
    #[arg(value_name = "NAME")]
    pub recording: PathBuf,
    /// One JSON document on standard output
    #[arg(long)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}
