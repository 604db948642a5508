//! A plan drawn: a bar a GPU, cut as it is partitioned.
//!
//! Rule: the bar is the GPU's memory slots (MIG) or its SMs (MPS) from left to right; a partition stands where the plan
//! puts it and says model, batch, share and how much of its SLO a batch takes. What is empty is grey. Models that take turns
//! in one share have a part of its width each.
//! Not done here: judging the plan.

use std::fmt::Write as _;

use anyhow::{Result, anyhow};
use gpumon_core::geometry::SEVEN_SLICES;
use gpumon_place::plan::{Gpu, Partition, Plan};
use gpumon_place::turn::shares;

use super::style::{DISTINCT, escape};

const WIDTH: f64 = 960.0;
/// Left of the bars, where clock and power stand.
const MARGIN: f64 = 190.0;
const BAR: f64 = WIDTH - MARGIN - 8.0;
const ROW: f64 = 62.0;
/// About the width of a character, pixels.
const CHARACTER: f64 = 6.4;

/// The models of plans, in the order in which they come.
pub fn models<'a>(plans: impl IntoIterator<Item = &'a Plan>) -> Vec<&'a str> {
    let mut models: Vec<&str> = Vec::new();
    for partition in plans.into_iter().flat_map(|p| &p.gpus).flat_map(|g| &g.partitions) {
        if !models.contains(&partition.model.as_str()) {
            models.push(&partition.model);
        }
    }
    models
}

/// Draws a plan as SVG; `models` in the order of their colours.
pub fn svg(plan: &Plan, models: &[&str]) -> Result<String> {
    let height = ROW * plan.gpus.len() as f64;
    let title = format!(
        "{} plan at load {} %{}",
        plan.system,
        plan.load * 100.0,
        if plan.simulated { " (simulated)" } else { "" }
    );
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         role=\"img\" font-family=\"sans-serif\" font-size=\"12\">\n<title>{}</title>\n",
        escape(&title)
    );
    for (at, gpu) in plan.gpus.iter().enumerate() {
        row(&mut svg, at, gpu, models)?;
    }
    svg += "</svg>\n";
    Ok(svg)
}

fn row(svg: &mut String, at: usize, gpu: &Gpu, models: &[&str]) -> Result<()> {
    let y = ROW * at as f64;
    let watts = format!("{:.0} W busy, {:.0} W average", gpu.power_w, gpu.average_power_w);
    writeln!(
        svg,
        "<text x=\"4\" y=\"{}\" font-weight=\"bold\">GPU {at}, {} MHz</text>",
        y + 26.0,
        gpu.frequency_mhz
    )?;
    writeln!(svg, "<text x=\"4\" y=\"{}\" fill=\"#555\">{watts}</text>", y + 43.0)?;
    writeln!(svg, "<rect x=\"{MARGIN}\" y=\"{}\" width=\"{BAR}\" height=\"50\" fill=\"#eee\"/>", y + 6.0)?;
    let mut next = 0.0;
    for share in shares(gpu.partitions.iter().map(|p| p.turn)) {
        let first = &gpu.partitions[share[0]];
        let (from, length) = place(first, next).ok_or_else(|| {
            anyhow!("`{}` on GPU {at} has a share that this GPU does not have", first.model)
        })?;
        next = from + length;
        let width = length * BAR / share.len() as f64;
        for (nth, partition) in share.iter().map(|&i| &gpu.partitions[i]).enumerate() {
            let color = models.iter().position(|m| *m == partition.model).unwrap_or(models.len());
            draw(svg, partition, (MARGIN + from * BAR + nth as f64 * width, width, y + 6.0), color)?;
        }
    }
    Ok(())
}

/// Start and length of a partition, shares of the bar. `next` is where one without a place of its own goes.
fn place(partition: &Partition, next: f64) -> Option<(f64, f64)> {
    let slots = f64::from(SEVEN_SLICES.memory_slots);
    match (partition.slices, partition.share_pct) {
        (Some(slices), _) => {
            let length = f64::from(SEVEN_SLICES.profile(slices)?.memory_slots) / slots;
            Some((partition.start_slot.map_or(next, |slot| f64::from(slot) / slots), length))
        }
        (None, Some(pct)) => Some((next, pct / 100.0)),
        (None, None) => None,
    }
}

fn draw(svg: &mut String, p: &Partition, (x, width, y): (f64, f64, f64), color: usize) -> Result<()> {
    let share = match (p.slices, p.share_pct) {
        (Some(slices), _) => format!("{slices}/7"),
        (None, pct) => format!("{:.0} %", pct.unwrap_or(0.0)),
    };
    let share = if p.turn.is_some() { share + " in turns" } else { share };
    let latency = format!("{:.0} of {:.0} ms", p.latency_ms, p.latency_slo_ms);
    let lines = [p.model.clone(), format!("{share}, batch {}", p.batch), latency];
    let whole = format!(
        "{}: {}, {}, {:.0} of {:.0} items/s",
        lines[0], lines[1], lines[2], p.rate_rps, p.throughput_rps
    );
    let (r, g, b) = {
        let c = DISTINCT[color % DISTINCT.len()];
        (c.0, c.1, c.2)
    };
    writeln!(svg, "<g><title>{}</title>", escape(&whole))?;
    writeln!(
        svg,
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"50\" fill=\"rgb({r},{g},{b})\" fill-opacity=\"0.25\" \
         stroke=\"#fff\" stroke-width=\"2\"/>"
    )?;
    let room = ((width - 8.0) / CHARACTER).max(1.0) as usize;
    for (line, dy) in lines.iter().zip([16.0, 31.0, 45.0]) {
        let text = if line.chars().count() > room {
            line.chars().take(room.saturating_sub(1)).chain(['…']).collect()
        } else {
            line.clone()
        };
        writeln!(svg, "<text x=\"{:.1}\" y=\"{:.1}\">{}</text>", x + 5.0, y + dy, escape(&text))?;
    }
    svg.push_str("</g>\n");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: &str = r#"{"schema":1,"gpumon_version":"0","simulated":true,"system":"enertune","objective":"power","cost":1,
        "cost_unit":"W","gpu":"a100","sharing":"mig","load":1.0,"carbon_g_per_kwh":490,"pue":1.1,"gpus":[{"frequency_mhz":600,
        "base_w":44,"power_w":54,"average_power_w":53,"cost":1,"partitions":[
        {"model":"<m>","batch":2,"slices":4,"start_slot":0,"processes":1,"rate_rps":294,"latency_slo_ms":10,"latency_ms":6,
         "throughput_rps":323,"dynamic_w":7},
        {"model":"n","batch":1,"slices":1,"start_slot":6,"processes":1,"rate_rps":240,"latency_slo_ms":6,"latency_ms":4,
         "throughput_rps":249,"dynamic_w":2}]}],
        "total":{"gpus_used":1,"power_w":54,"average_power_w":53,"energy_per_request_j":0.1,"carbon_per_request_g":0.1}}"#;

    #[test]
    fn partitions_stand_at_their_slots_and_say_simulated() {
        let svg = svg(&Plan::parse(PLAN).unwrap(), &["n"]).unwrap();
        let document = roxmltree::Document::parse(&svg).unwrap();
        let rects: Vec<(f64, f64)> = document
            .descendants()
            .filter(|n| n.has_tag_name("rect"))
            .map(|n| {
                (n.attribute("x").unwrap().parse().unwrap(), n.attribute("width").unwrap().parse().unwrap())
            })
            .collect();
        assert_eq!(rects.len(), 3, "the bar and two partitions");
        assert!((rects[1].1 / BAR - 0.5).abs() < 1e-3 && (rects[1].0 - MARGIN).abs() < 0.1);
        assert!(((rects[2].0 - MARGIN) / BAR - 0.75).abs() < 1e-3, "slot 6 of 8");
        assert!(svg.contains("(simulated)") && svg.contains("&lt;m&gt;"));
    }

    #[test]
    fn models_in_turns_divide_the_width_of_their_share() {
        let turn = r#""dynamic_w":7,"turn":{"partition":0,"round_ms":9}}"#;
        let other = r#""model":"o","batch":2,"slices":4,"start_slot":0,"processes":1,"rate_rps":9,"latency_slo_ms":30,"latency_ms":3,
            "throughput_rps":323,"#;
        let text = PLAN.replacen(r#""dynamic_w":7}"#, &format!("{turn},{{{other}{turn}"), 1);
        let svg = svg(&Plan::parse(&text).unwrap(), &["n"]).unwrap();
        let document = roxmltree::Document::parse(&svg).unwrap();
        let rects = document.descendants().filter(|n| n.has_tag_name("rect"));
        let widths: Vec<f64> = rects.map(|n| n.attribute("width").unwrap().parse().unwrap()).collect();
        assert_eq!(widths.len(), 4, "the bar and three models");
        assert!(widths[1..3].iter().all(|width| (width / BAR - 0.25).abs() < 1e-3), "{widths:?}");
        assert!(svg.contains("4/7 in turns, batch 2"));
    }
}
