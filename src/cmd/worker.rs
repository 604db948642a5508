//! `gpumon __worker NET`: serves a native net over the worker protocol; `gpumon profile` starts it.

use std::io::{self, BufReader};

use anyhow::{Context as _, Result};
use gpumon_core::share::GREEN_SMS;
use gpumon_profile::native::net_of;
use gpumon_profile::native::serve::{NetEngine, serve};

use super::DONE;
use crate::cli::pipeline::WorkerArgs;

/// Serves until it is asked to quit.
pub fn run(args: &WorkerArgs) -> Result<u8> {
    let green = match std::env::var(GREEN_SMS) {
        Ok(text) => {
            Some(text.parse().with_context(|| format!("{GREEN_SMS} is `{text}`; expected a number of SMs"))?)
        }
        Err(_) => None,
    };
    let mut engine = NetEngine::new(net_of(&args.net)?, green);
    serve(&mut engine, &args.net, BufReader::new(io::stdin()), &mut io::stdout())?;
    Ok(DONE)
}
