//! What the default form reaches on the reference profiles (A100, nine models with a full grid), and must keep reaching.
//!
//! Points are drawn as a Latin hypercube by level index with seeds 0 to 4; errors are those at all other points, as
//! medians over points, means over seeds and models. Dynamic power is without diffusion_256_256, whose dynamic power was never
//! separated from the base.

#![allow(clippy::unwrap_used, reason = "helpers of tests: a panic is the report")]

mod common;

use gpumon_fit::evaluate::{Protocol, Quality, evaluate};
use gpumon_fit::fit::Form;
use gpumon_fit::sample::Mapping;

/// Power limit of the card of the reference, W.
const CAP_W: f64 = 300.0;

fn quality(form: Form, fraction: f64, transfer: bool) -> Option<Quality> {
    let mut rows = common::rows()?;
    rows.retain(|r| !common::SMALL.contains(&r.model.as_str()));
    let mapping = Mapping::Level;
    let protocol = Protocol { form, mapping, fraction, seeds: (0..5).collect(), cap_w: Some(CAP_W), transfer };
    let quality = evaluate(&rows, &[], None, &protocol).unwrap();
    println!("{}", quality.table());
    Some(quality)
}

#[test]
fn exp() {
    for form in [Form::Auto, Form::Corrected, Form::Shared] {
        for (f, t) in [(0.2, false), (0.1, false), (0.05, false), (0.02, true)] {
            if t && form == Form::Corrected { continue; }
            let now = std::time::Instant::now();
            if let Some(q) = quality(form, f, t) {
            let m = q.mean;
            let c = |e: Option<gpumon_fit::evaluate::ErrorStats>| e.map_or(String::new(), |e| format!("{:.2} ({:.0}, {:.1})", e.median_pct, e.coverage_pct.unwrap_or(0.), e.width_pct.unwrap_or(0.)));
            println!("SUMMARY {:?} {f} {t}: total {} dyn {} time {} lat {}  {:.1}s", form, c(m.total_power), c(m.dynamic_power), c(m.batch_time), c(m.latency), now.elapsed().as_secs_f64());
            }
        }
    }
}
