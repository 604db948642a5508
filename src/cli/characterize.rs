//! Arguments of `characterize`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::{DeviceArgs, duration};

/// Less does not show windows of a second.
const SHORTEST: Duration = Duration::from_secs(20);
const LONGEST: Duration = Duration::from_secs(3600);

/// Arguments of `characterize`.
#[derive(Debug, Args)]
pub struct CharacterizeArgs {
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Also write what was found to this JSON file
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Replace FILE if there is one
    #[arg(long, requires = "output")]
    pub force: bool,
    /// How long for each GPU, 20s to 1h, as in --duration of `record`; on simulated GPUs this time is simulated
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = length)]
    pub duration: Duration,
    /// Keep nothing for later recordings
    #[arg(long)]
    pub no_save: bool,
    /// One JSON document on standard output
    #[arg(long)]
    pub json: bool,
    /// A load of your own instead of gpumon's: this command, which is started once, stopped and continued; everything after
    /// this option belongs to it
    #[arg(long, value_name = "CMD", num_args = 1.., allow_hyphen_values = true)]
    pub load_cmd: Option<Vec<OsString>>,
}

fn length(text: &str) -> Result<Duration, String> {
    let found = duration(text)?;
    if (SHORTEST..=LONGEST).contains(&found) { Ok(found) } else { Err("expected 20s to 1h".into()) }
}
