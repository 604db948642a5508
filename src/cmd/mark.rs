//! `gpumon mark`, `begin`, `end`: named moments and windows in a recording that another process makes.

use anyhow::Result;
use gpumon_core::rows::EventKind;
use gpumon_monitor::marks::{self, Request};

use super::DONE;
use crate::cli::MarkArgs;

/// Asks the recorder; returns once it has taken the request.
pub fn run(args: &MarkArgs, kind: EventKind) -> Result<u8> {
    let line = Request { kind, name: args.name.clone() }.line();
    let request = Request::parse(line.trim_end_matches('\n').as_bytes())?;
    let socket = match &args.socket {
        Some(socket) => socket.clone(),
        None => marks::socket()?,
    };
    marks::send(&socket, &request)?;
    Ok(DONE)
}
