//! `gpumon profile --from`: a design replayed on a full grid.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use gpumon_core::profile_io;
use gpumon_profile::replay::{Replay, Replayed, replay};
use serde::Serialize;

use super::{DONE, inputs};
use crate::choose;
use crate::cli::pipeline::ProfileArgs;
use crate::output::{self, note};

/// What was replayed.
#[derive(Serialize)]
struct Report<'a> {
    from: &'a Path,
    output: &'a Path,
    rows: usize,
    total_s: f64,
    /// Rows whose time the grid says; the others count `point_s`.
    timed_rows: usize,
    point_s: f64,
    models: Vec<ModelReport<'a>>,
}

#[derive(Serialize)]
struct ModelReport<'a> {
    model: &'a str,
    points: usize,
    of: usize,
    total_s: f64,
    expected_error_pct: Option<f64>,
    reached: Option<bool>,
}

/// Replays; nothing is measured, so nothing can be stopped or goes on.
pub fn run(args: &ProfileArgs, from: &Path) -> Result<u8> {
    let read = [from].into_iter().chain(args.prior.iter().map(PathBuf::as_path));
    inputs::distinct(read, [args.output.as_path()])?;
    if args.output.exists() {
        bail!("`{}` exists already; remove it, or name another output", args.output.display());
    }
    if !profile_io::is_writable_name(&args.output) {
        profile_io::write(&args.output, &[])?;
    }
    let grid = inputs::profiles(std::slice::from_ref(&from.to_path_buf()))?;
    let how = Replay {
        design: args.design,
        seed: args.seed,
        models: args.models.clone().unwrap_or_default(),
        point_s: args.point_s,
        source: from.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
    };
    if args.design.learns() && grid.iter().any(|r| r.power_limit_w.is_some()) {
        bail!(
            "`{}` has rows with power limits; designs that learn choose shares, batch sizes and clocks only",
            from.display()
        );
    }
    let prior = inputs::profiles(&args.prior)?;
    let mut chooser = choose::chooser(args.design, args.seed, prior, args.cap_w);
    let made = replay(&grid, &how, chooser.as_mut())?;
    profile_io::write(&args.output, &made.rows)?;
    for notice in &made.notices {
        note(format_args!("gpumon: {notice}"));
    }
    if args.json {
        return output::print_json(&report(args, from, &made)).map(|()| DONE);
    }
    for model in &made.models {
        let expected = model.end.expected_error.map_or_else(String::new, |error| {
            let missed = if model.end.reached == Some(false) { ", more than asked for" } else { "" };
            format!("; error expected elsewhere {:.1} %{missed}", 100.0 * error)
        });
        let (name, points, of, minutes) = (&model.model, model.points, model.of, model.total_s / 60.0);
        note(format_args!("gpumon: {name}: {points} of {of} points, {minutes:.1} min{expected}"));
    }
    let timed = match made.timed {
        0 => format!("at {} s a row", args.point_s),
        n if n == made.rows.len() => "as the rows say".into(),
        n => format!("{n} as they say, the others at {} s", args.point_s),
    };
    let (rows, hours) = (made.rows.len(), made.total_s / 3_600.0);
    note(format_args!(
        "{rows} rows in `{}`, replayed: {hours:.2} h on a GPU, {timed}",
        args.output.display()
    ));
    Ok(DONE)
}

fn report<'a>(args: &'a ProfileArgs, from: &'a Path, made: &'a Replayed) -> Report<'a> {
    let models = made.models.iter().map(|m| ModelReport {
        model: &m.model,
        points: m.points,
        of: m.of,
        total_s: m.total_s,
        expected_error_pct: m.end.expected_error.map(|e| 100.0 * e),
        reached: m.end.reached,
    });
    Report {
        from,
        output: &args.output,
        rows: made.rows.len(),
        total_s: made.total_s,
        timed_rows: made.timed,
        point_s: args.point_s,
        models: models.collect(),
    }
}
