//! Arguments of the commands that change GPUs.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::DeviceArgs;

/// Arguments of `hold`.
#[derive(Debug, Args)]
pub struct HoldArgs {
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Lock the SM clock to the supported one that is nearest, MHz
    #[arg(long, value_name = "MHZ")]
    pub clock: Option<u32>,
    /// Set the power limit, W
    #[arg(long, value_name = "W", value_parser = super::parse::not_negative)]
    pub power_limit: Option<f64>,
    /// Make MIG instances of so many slices each; the command gets the first one, GPUMON_MIG_UUIDS names all
    #[arg(long, value_name = "SLICES", value_delimiter = ',', conflicts_with = "mps")]
    pub mig: Vec<u8>,
    /// Run the command under an MPS daemon of its own, at most on this part of the SMs, %
    #[arg(long, value_name = "PCT")]
    pub mps: Option<u8>,
    /// Only say what would be done, as commands of the same effect
    #[arg(long)]
    pub dry_run: bool,
    /// What was set, achieved and put back as one JSON document on standard output; what the command writes there goes to
    /// standard error
    #[arg(long)]
    pub json: bool,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// Arguments of `restore`.
#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// Only this GPU: its number or the start of its UUID [default: all]
    #[arg(long, value_name = "GPU")]
    pub gpu: Option<String>,
    /// Only say what would be done
    #[arg(long)]
    pub dry_run: bool,
}

/// Arguments of the janitor.
#[derive(Debug, Args)]
pub struct JanitorArgs {
    /// The journal
    #[arg(long, value_name = "FILE")]
    pub journal: PathBuf,
}
