//! `gpumon exporter`: the latest readings for Prometheus, until a signal.

use std::net::TcpListener;
use std::sync::Arc;

use anyhow::{Context, Result};
use gpumon_core::clock::{Clock, RealClock};
use gpumon_monitor::record::{Observer, Pace};

use super::session::{self, Prepared, Scope};
use super::{DONE, INTERRUPTED};
use crate::cli::ExporterArgs;
use crate::exporter::{self, Gpu, Shown};
use crate::output::note;
use crate::signals::{self, Take};

/// Serves. The address is taken before GPUs are touched, so that one in use costs nothing.
pub fn run(args: &ExporterArgs) -> Result<u8> {
    let listener = TcpListener::bind(args.listen)
        .with_context(|| format!("cannot listen on {}; choose another with --listen", args.listen))?;
    let address = listener.local_addr()?;
    let signals = signals::listen(Take::Ending)?;
    let clock: Arc<dyn Clock> = Arc::new(RealClock);
    let rate_hz = 1.0 / args.interval.as_secs_f64();
    let pace = Pace { slow_hz: rate_hz.min(1.0), processes: false };
    let Prepared::Ready { session, devices } =
        session::prepare(&args.device, Scope::Machine, rate_hz, pace, &clock, &signals)?
    else {
        return Ok(INTERRUPTED);
    };
    let read: Vec<String> = session.header().gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
    let gpus = devices.iter().map(|device| {
        let identity = device.identity().clone();
        Gpu { place: read.iter().position(|uuid| *uuid == identity.uuid), identity }
    });
    let gpus = gpus.collect();
    let observer = Observer::start(*session, clock, pace).context("cannot start threads")?;
    note(format_args!("gpumon: listening on http://{address}/metrics"));
    exporter::serve(listener, Shown { observer, gpus }, signals)?;
    Ok(DONE)
}
