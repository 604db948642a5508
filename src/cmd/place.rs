//! `gpumon place`: one plan for a workload, from profiles or from fitted models.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use gpumon_core::geometry::SEVEN_SLICES;
use gpumon_core::profile::ProfileRow;
use gpumon_core::units::Megahertz;
use gpumon_core::workload::Workload;
use gpumon_fit::model_file::ModelFile;
use gpumon_fit::point::{Point, Share};
use gpumon_place::base::{BaseParts, BasePower};
use gpumon_place::emit::sh;
use gpumon_place::plan::{Input, Plan};
use gpumon_place::policy;
use gpumon_place::problem::{Ask, Problem};

use super::{DONE, inputs};
use crate::cli::pipeline::{EmitKind, PlaceArgs};
use crate::output::{self, note};

/// Places, writes the plan and, if asked, its scripts.
pub fn run(args: &PlaceArgs) -> Result<u8> {
    let scripts_to = args.emit.map(|EmitKind::Sh| scripts_folder(args)).transpose()?;
    let workload = inputs::workload(&args.workload)?;
    let given = args.base_power.as_deref().map(inputs::base_power).transpose()?;
    let (rows, base) = match &args.models {
        Some(path) => from_models(&ModelFile::read(path)?, &workload, given, &args.batches)?,
        None => {
            let rows = inputs::profiles(&args.profile)?;
            let base = given
                .map_or_else(|| BasePower::from_rows(&rows), Ok)
                .context("base power: the profiles have no idle rows; give --base-power")?;
            (rows, base)
        }
    };
    if !(args.load.is_finite() && args.load > 0.0) {
        bail!("--load {}: expected a number above 0, such as 1 or 0.5", args.load);
    }
    let ask = Ask { gpus: args.gpus, load: args.load, ..Ask::new(&workload, &rows, &base, args.objective) };
    let mut plan = policy::place(&Problem::new(&ask)?, &args.system)?;
    let files = [&args.workload].into_iter().chain(&args.models).chain(&args.profile).chain(&args.base_power);
    plan.inputs = files.map(input).collect::<Result<_>>()?;
    let json = plan.to_json()? + "\n";
    if args.output == Path::new("-") {
        output::print(&json)?;
    } else {
        inputs::write(&args.output, args.force, &json)?;
    }
    note(summary(&plan));
    if let Some(folder) = scripts_to {
        std::fs::create_dir_all(&folder)
            .with_context(|| format!("cannot make the folder `{}`", folder.display()))?;
        for script in sh::scripts(&plan, &workload)? {
            inputs::write(&folder.join(&script.name), args.force, &script.text)?;
        }
    }
    Ok(DONE)
}

/// Where the scripts go: beside the plan, unless another folder is named.
fn scripts_folder(args: &PlaceArgs) -> Result<PathBuf> {
    match (&args.emit_to, args.output.file_stem()) {
        (Some(folder), _) => Ok(folder.clone()),
        (None, Some(stem)) if args.output != Path::new("-") => {
            let mut name = stem.to_owned();
            name.push("-sh");
            Ok(args.output.with_file_name(name))
        }
        _ => bail!(
            "--emit sh: the plan goes to standard output, so name a folder for the scripts with --emit-to"
        ),
    }
}

fn input(path: &PathBuf) -> Result<Input> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read `{}`", path.display()))?;
    Ok(Input::new(&path.file_name().unwrap_or_default().to_string_lossy(), &bytes))
}

fn summary(plan: &Plan) -> String {
    let total = &plan.total;
    format!(
        "{}{}: {} GPU{}, {:.1} W while all models run, {:.1} W on average, {:.4} J a request; {} {:.6} {}",
        plan.system,
        if plan.simulated { " (from simulated GPUs)" } else { "" },
        total.gpus_used,
        if total.gpus_used == 1 { "" } else { "s" },
        total.power_w,
        total.average_power_w,
        total.energy_per_request_j,
        plan.objective,
        plan.cost,
        plan.cost_unit
    )
}

/// Candidates that models predict: every MIG size and batch, at the workload's clocks or those whose base
/// power is known, within the range that each model was fitted on.
fn from_models(
    models: &ModelFile,
    workload: &Workload,
    given: Option<BasePower>,
    batches: &[u32],
) -> Result<(Vec<ProfileRow>, BasePower)> {
    let base = match given {
        Some(base) => base,
        None => {
            let known =
                models.base.as_ref().context("the model file holds no base power; give --base-power")?;
            let parts = |p: &gpumon_fit::base::BasePoint| {
                let parts = BaseParts { static_w: p.base_w, fan_w: 0.0, idle_w: 0.0 };
                (p.frequency_mhz, parts)
            };
            BasePower::new(known.points.iter().map(parts))?
        }
    };
    let clocks: Vec<u32> = match &workload.cluster.frequencies_mhz {
        Some(clocks) => clocks.clone(),
        None => base.clocks().collect(),
    };
    let mut rows = Vec::new();
    for wanted in &workload.models {
        let model = models.model(&wanted.name).with_context(|| {
            let known: Vec<_> = models.models.iter().map(|m| m.name.as_str()).collect();
            format!("the model file has no model `{}`; it has {}", wanted.name, known.join(", "))
        })?;
        for profile in SEVEN_SLICES.profiles {
            for (&batch, &mhz) in batches.iter().flat_map(|b| clocks.iter().map(move |c| (b, c))) {
                let point = Point { batch, share: Share::Slices(profile.slices), frequency: Megahertz(mhz) };
                if model.ranges.contain(&point) {
                    rows.extend(predicted(models, &wanted.name, &point, profile.slices)?);
                }
            }
        }
    }
    Ok((rows, base))
}

/// A predicted point as a row; none without latency or dynamic power, which placing needs.
fn predicted(models: &ModelFile, name: &str, point: &Point, slices: u8) -> Result<Option<ProfileRow>> {
    let p = models.predict(name, point)?;
    let (Some(latency), Some(dynamic)) = (p.latency, p.dynamic_power_draw) else { return Ok(None) };
    let batch = i32::try_from(point.batch)?;
    Ok(Some(ProfileRow {
        share_kind: Some("mig".into()),
        mig_slices: Some(i32::from(slices)),
        avg_power_draw: p.avg_power_draw.map(|i| i.value),
        dynamic_power_draw: Some(dynamic.value),
        throughput: Some(p.throughput.value),
        latency: Some(latency.value),
        reason: Some("predicted".into()),
        simulated: Some(models.simulated),
        ..ProfileRow::new(name, batch, point.share.sms(), i32::try_from(point.frequency.0)?)
    }))
}
