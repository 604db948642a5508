//! What fitted models say that a workload's models could run as.
//!
//! Rule: every share of the cluster's kind × batch × clock within the range that a model was fitted on. The shares are
//! all MIG sizes, or under MPS those that were measured; the clocks are the workload's, or those of the base power.
//! Cases: base power of a clock between two known ones is linear, as in the fit. A model that could run as nothing is an
//! error that says why.

use std::fmt::Display;

use anyhow::{Context, Result, bail};
use gpumon_core::geometry::SEVEN_SLICES;
use gpumon_core::profile::ProfileRow;
use gpumon_core::units::Megahertz;
use gpumon_core::workload::{Sharing, Workload};
use gpumon_fit::model_file::ModelFile;
use gpumon_fit::models::Model;
use gpumon_fit::point::{Point, Share};
use gpumon_place::base::{BaseParts, BasePower};

use super::inputs;

/// Predicted rows of the workload's models, and the base power at their clocks.
pub fn from_models(
    models: &ModelFile,
    workload: &Workload,
    given: Option<BasePower>,
    batches: &[u32],
) -> Result<(Vec<ProfileRow>, BasePower)> {
    if let Some(name) = &models.gpu_name {
        inputs::same_kind(workload, "the models were fitted on", name)?;
    }
    let base = match given {
        Some(base) => base,
        None => base_of(models)?,
    };
    let (clocks, base) = match &workload.cluster.frequencies_mhz {
        Some(clocks) => (clocks.clone(), base.with(clocks.iter().copied())),
        None => (base.clocks().collect(), base),
    };
    let sharing = workload.cluster.sharing.unwrap_or(Sharing::Mig);
    let mut rows = Vec::new();
    for wanted in &workload.models {
        let Some(model) = models.model(&wanted.name) else { bail!(missing(models, &wanted.name)) };
        let before = rows.len();
        for share in shares(model, sharing) {
            for (&batch, &mhz) in batches.iter().flat_map(|b| clocks.iter().map(move |c| (b, c))) {
                let point = Point { batch, share, frequency: Megahertz(mhz), processes: 1 };
                if model.ranges.contain(&point) {
                    rows.extend(predicted(models, &wanted.name, &point)?);
                }
            }
        }
        if rows.len() == before {
            bail!("`{}` can run as nothing: {}", wanted.name, why_nothing(model, sharing, batches, &clocks));
        }
    }
    Ok((rows, base))
}

fn base_of(models: &ModelFile) -> Result<BasePower> {
    let known = models.base.as_ref().context("the model file holds no base power; give --base-power")?;
    let parts = |p: &gpumon_fit::base::BasePoint| {
        (p.frequency_mhz, BaseParts { static_w: p.base_w, fan_w: 0.0, idle_w: 0.0 })
    };
    Ok(BasePower::new(known.points.iter().map(parts))?)
}

fn missing(models: &ModelFile, name: &str) -> String {
    if let Some(not_fitted) = models.not_fitted.iter().find(|m| m.model == name) {
        return format!(
            "the model file has no model `{name}`, because it could not be fitted: {}",
            not_fitted.reason
        );
    }
    let known: Vec<_> = models.models.iter().map(|m| m.name.as_str()).collect();
    format!("the model file has no model `{name}`; it has {}", known.join(", "))
}

fn shares(model: &Model, sharing: Sharing) -> Vec<Share> {
    match sharing {
        Sharing::Mig => SEVEN_SLICES.profiles.iter().map(|p| Share::Slices(p.slices)).collect(),
        // A file without the list is of a gpumon that did not write it yet; the ends of its range were measured.
        _ if model.shares.is_empty() => model.ranges.share.map(Share::Sms).to_vec(),
        Sharing::Mps | Sharing::Green => model.shares.iter().copied().map(Share::Sms).collect(),
    }
}

/// A predicted point as a row; none without latency or dynamic power, which placing needs.
fn predicted(models: &ModelFile, name: &str, point: &Point) -> Result<Option<ProfileRow>> {
    let p = models.predict(name, point)?;
    let (Some(latency), Some(dynamic)) = (p.latency, p.dynamic_power_draw) else { return Ok(None) };
    let batch = i32::try_from(point.batch)?;
    let (kind, mig_slices) = match point.share {
        Share::Slices(slices) => ("mig", Some(i32::from(slices))),
        Share::Sms(_) => ("mps", None),
    };
    Ok(Some(ProfileRow {
        share_kind: Some(kind.into()),
        mig_slices,
        avg_power_draw: p.avg_power_draw.map(|i| i.value),
        dynamic_power_draw: Some(dynamic.value),
        throughput: Some(p.throughput.value),
        latency: Some(latency.value),
        reason: Some("predicted".into()),
        simulated: Some(models.simulated),
        ..ProfileRow::new(name, batch, point.share.sms(), i32::try_from(point.frequency.0)?)
    }))
}

fn why_nothing(model: &Model, sharing: Sharing, batches: &[u32], clocks: &[u32]) -> String {
    let ranges = &model.ranges;
    let none_within = |[low, high]: [u32; 2], list: &[u32]| !list.iter().any(|v| (low..=high).contains(v));
    let [low_mhz, high_mhz] = ranges.frequency_mhz;
    let [fewest, most] = ranges.batch;
    match sharing {
        Sharing::Mig if !ranges.mig => {
            "it was fitted on shares that are no MIG instances, but cluster.sharing is `mig`; profile it with \
             `mig_slices`, or let cluster.sharing be `mps`"
                .into()
        }
        Sharing::Mps | Sharing::Green if !ranges.sms => {
            "it was fitted on MIG instances only, but cluster.sharing is `mps`; profile it with a `share`, or let \
             cluster.sharing be `mig`"
                .into()
        }
        _ if ranges.processes[0] > 1 => {
            "it was fitted on shares with several processes only, and candidates from models have one; profile it with one too".into()
        }
        _ if none_within(ranges.frequency_mhz, clocks) => format!(
            "it was fitted from {low_mhz} to {high_mhz} MHz, and none of the clocks {} lies there",
            listed(clocks)
        ),
        _ if none_within(ranges.batch, batches) => format!(
            "it was fitted on batches from {fewest} to {most}, and none of {} lies there; give --batches",
            listed(batches)
        ),
        _ => "no dynamic power or no latency was fitted; the model's `notes` in the model file say why".into(),
    }
}

fn listed(values: &[impl Display]) -> String {
    values.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
