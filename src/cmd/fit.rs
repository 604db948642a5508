//! `gpumon fit`: models of batch time and power from profiles, with their errors.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use gpumon_core::set;
use gpumon_core::units::Megahertz;
use gpumon_fit::auto::{Mix, STEPS};
use gpumon_fit::base::BasePower;
use gpumon_fit::colocation::model::ColocationModel;
use gpumon_fit::colocation::quality;
use gpumon_fit::evaluate::{self, ErrorStats, Errors, Protocol, Quality};
use gpumon_fit::fit::{Form, Surfaces};
use gpumon_fit::held_out::{Compared, HeldOut};
use gpumon_fit::model_file::ModelFile;
use gpumon_fit::models::{FitOptions, fit_models};
use gpumon_fit::point::Share;
use gpumon_fit::sample::Mapping;
use serde::Serialize;

use super::{DONE, inputs};
use crate::cli::pipeline::{FitArgs, FormName, MappingName};
use crate::export::file::is_stdout;
use crate::output::{self, note};

/// Seeds of a held-out evaluation.
const SEEDS: [u64; 5] = [1, 2, 3, 4, 5];

#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    file: &'a ModelFile,
    #[serde(skip_serializing_if = "Option::is_none")]
    holdout: Option<&'a Quality>,
}

/// Fits, writes the model file, prints how good it is.
pub fn run(args: &FitArgs) -> Result<u8> {
    let output = args.output.as_path();
    let written = [output].into_iter().chain(args.held_out.as_deref());
    if args.json && written.clone().any(is_stdout) {
        bail!("`-` and --json both write to standard output; leave one out");
    }
    let read = args.profiles.iter().chain(&args.prior).chain(&args.base_power).chain(&args.sets);
    inputs::distinct(read.map(PathBuf::as_path), written)?;
    let rows = inputs::profiles(&args.profiles)?;
    let prior = inputs::profiles(&args.prior)?;
    let sets = args.sets.as_deref().map(set::read).transpose()?.unwrap_or_default();
    let base = args.base_power.as_deref().map(|path| {
        let table: Vec<_> = inputs::base_power(path)?
            .parts()
            .map(|(mhz, parts)| (Megahertz(mhz), parts.static_w, parts.fan_w, parts.idle_w))
            .collect();
        anyhow::Ok(BasePower::of_table(&table)?)
    });
    let base = base.transpose()?;
    let options = FitOptions {
        form: form(args.form),
        base: base.clone(),
        prior,
        cap_w: args.cap_w,
        simulated: rows.iter().any(|row| row.simulated == Some(true))
            || sets.iter().any(|row| row.simulated == Some(true)),
        seed: SEEDS[0],
    };
    let holdout = args.holdout.map(|fraction| {
        if !(fraction > 0.0 && fraction < 1.0) {
            bail!("--holdout {fraction}: expected a share of the points between 0 and 1, such as 0.2");
        }
        let protocol = Protocol {
            form: options.form,
            mapping: mapping(args.mapping),
            fraction,
            seeds: SEEDS.to_vec(),
            cap_w: args.cap_w,
            transfer: args.holdout_model,
        };
        let base = base.clone().or_else(|| BasePower::of_rows(&rows).ok());
        Ok(evaluate::evaluate(&rows, &options.prior, base.as_ref(), &protocol)?)
    });
    let holdout = holdout.transpose()?;
    let fitted = fit_models(&rows, &options)?;
    let held_out = args
        .held_out
        .as_ref()
        .map(|path| anyhow::Ok((path, csv(&fitted.held_out, options.simulated)?)))
        .transpose()?;
    let mut file = ModelFile::new(fitted, &options);
    if let Some(path) = &args.sets {
        let model = ColocationModel::fit(&file, &rows, &sets, args.cap_w);
        let model = model.with_context(|| format!("the sets `{}`", path.display()))?;
        for noted in &model.notes {
            note(format_args!("gpumon: {}: left out: {noted}", path.display()));
        }
        file.colocation = Some(model);
    }
    for (model, noted) in file.models.iter().flat_map(|m| m.notes.iter().map(|n| (&m.name, n))) {
        note(format_args!("gpumon: `{model}`: {noted}"));
    }
    for model in &file.models {
        if let Some(text) = far_off(&model.name, &model.held_out) {
            note(format_args!("gpumon: {text}"));
        }
    }
    let models = file.text()?;
    let mut files = vec![(output, models.as_str())];
    files.extend(held_out.as_ref().map(|(path, csv)| (path.as_path(), csv.as_str())));
    let is_free = !files.iter().any(|(path, _)| is_stdout(path));
    inputs::write_all(&files, args.force)?;
    let table = output::shown(&text(&file, holdout.as_ref()));
    match (args.json, is_free) {
        (true, _) => output::print_json(&Report { file: &file, holdout: holdout.as_ref() })?,
        (false, true) => output::print(&table)?,
        (false, false) => note(table.trim_end()),
    }
    Ok(DONE)
}

/// A median error at points left out that makes a model useless for plans, %.
const FAR_OFF_PCT: f64 = 25.0;

/// What to say of a model whose fit misses its own points; none where it does not.
fn far_off(model: &str, errors: &Errors) -> Option<String> {
    let figures = [
        ("total power", errors.total_power),
        ("dynamic power", errors.dynamic_power),
        ("batch time", errors.batch_time),
    ];
    let off: Vec<String> = figures
        .into_iter()
        .filter_map(|(name, e)| e.map(|e| (name, e.median_pct)).filter(|(_, pct)| *pct > FAR_OFF_PCT))
        .map(|(name, pct)| format!("{name} {pct:.0} %"))
        .collect();
    (!off.is_empty()).then(|| {
        format!(
            "`{model}`: points left out of the fit are missed by {} (median), so do not plan with it: look for rows that are wrong \
             (units, several workloads under one name) with --held-out FILE.csv, measure more points, or give other models of this GPU \
             with --prior",
            off.join(", ")
        )
    })
}

/// The held-out points as CSV; what is unknown is empty.
fn csv(points: &[HeldOut], simulated: bool) -> Result<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let figures = ["avg_power_draw", "dynamic_power_draw", "batch_time", "latency"];
    let columns = figures.iter().flat_map(|f| [(*f).to_owned(), format!("pred_{f}")]);
    let several = points.iter().any(|held_out| held_out.point.processes > 1);
    let keys = ["model", "batch_size", "mig_slices", "share", "frequency"].into_iter();
    let keys = keys.chain(several.then_some("processes")).map(str::to_owned);
    writer.write_record(keys.chain(columns).chain(["simulated".to_owned()]))?;
    for HeldOut { model, point, average_w, dynamic_w, batch_time_ms, latency_ms } in points {
        let (slices, share) = match point.share {
            Share::Slices(n) => (n.to_string(), point.share.sms().to_string()),
            Share::Sms(share) => (String::new(), share.to_string()),
        };
        let keys = [model.clone(), point.batch.to_string(), slices, share, point.frequency.0.to_string()];
        let both = |c: &Option<Compared>| match c {
            Some(c) => [c.measured.to_string(), c.predicted.to_string()],
            None => [String::new(), String::new()],
        };
        let figures = [average_w, dynamic_w, batch_time_ms, latency_ms];
        let keys = keys.into_iter().chain(several.then(|| point.processes.to_string()));
        let cells = keys.chain(figures.into_iter().flat_map(both)).chain([simulated.to_string()]);
        writer.write_record(cells)?;
    }
    Ok(String::from_utf8(writer.into_inner()?)?)
}

fn form(name: FormName) -> Form {
    match name {
        FormName::Auto => Form::Auto,
        FormName::Shared => Form::Shared,
        FormName::Corrected => Form::Corrected,
        FormName::Physical => Form::Physical,
        FormName::Polynomial => Form::Polynomial,
    }
}

/// `power: 3/4 corrected, 1/4 shared`.
fn mixed(what: &str, mix: &Mix) -> String {
    let share = |weight: f64| match (weight * f64::from(STEPS)).round() as u8 {
        STEPS => String::new(),
        part => format!("{part}/{STEPS} "),
    };
    let forms: Vec<String> =
        mix.iter().map(|(form, weight)| format!("{}{}", share(*weight), form.name())).collect();
    format!("{what}: {}", forms.join(", "))
}

fn mapping(name: MappingName) -> Mapping {
    match name {
        MappingName::Level => Mapping::Level,
        MappingName::Physical => Mapping::Physical,
    }
}

fn text(file: &ModelFile, holdout: Option<&Quality>) -> String {
    let simulated = if file.simulated { " (simulated)" } else { "" };
    let mut text = format!("fitted{simulated}; median error on points left out in turn, %\n");
    let _ = writeln!(
        text,
        "{:<24} {:>7} {:>11} {:>13} {:>10}",
        "model", "points", "total power", "dynamic power", "batch time"
    );
    let percent =
        |e: &Option<ErrorStats>| e.as_ref().map_or("–".into(), |e| format!("{:.2}", e.median_pct));
    for model in &file.models {
        let errors = &model.held_out;
        let _ = writeln!(
            text,
            "{:<24} {:>7} {:>11} {:>13} {:>10}",
            model.name,
            model.rows.points,
            percent(&errors.total_power),
            percent(&errors.dynamic_power),
            percent(&errors.batch_time)
        );
    }
    for model in &file.models {
        if let Surfaces::Auto(auto) = &model.surfaces {
            let named =
                [("batch time", &auto.batch_time), ("power", &auto.power), ("latency", &auto.latency)];
            let _ =
                writeln!(text, "{}: {}", model.name, named.map(|(what, mix)| mixed(what, mix)).join("; "));
        }
    }
    for missing in &file.not_fitted {
        let _ = writeln!(text, "not fitted: {}: {}", missing.model, missing.reason);
    }
    if let Some(together) = &file.colocation {
        let used = &together.sets;
        let _ = write!(
            text,
            "\n{} sets of models on one GPU, {} at the power limit; errors on sets left out in turn, %: mean / median / worst, at the \
             limit mean / worst;\n90 % intervals: measured values inside / mean width, %\n{}",
            used.sets,
            used.at_limit,
            quality::table(&together.quality)
        );
    }
    if let Some(quality) = holdout {
        let _ = write!(text, "\n{}", quality.table());
    }
    text
}
