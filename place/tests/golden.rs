//! scratch
mod reference;
use gpumon_place::place;
#[test]
fn cases() {
    let r = reference::reference().unwrap();
    for c in r.plans["cases"].as_array().unwrap() {
        let o: gpumon_place::Objective = c["objective"].as_str().unwrap().parse().unwrap();
        let load = c["load_pct"].as_f64().unwrap() / 100.0;
        let gpus = c["gpus_asked"].as_u64().map(|n| n as u32);
        let p = r.problem(o, load, gpus);
        let t = std::time::Instant::now();
        let plan = place(&p, "enertune").unwrap();
        let us = t.elapsed().as_micros();
        let theirs = c["total_cost_report"].as_f64().unwrap();
        println!("{o} {load} {gpus:?} theirs {} {theirs:.6e} ours {} {:.6e} {:+.3}% {us}us avg {:.1}", c["n_bins"], plan.gpus.len(), plan.cost, (plan.cost/theirs-1.0)*100.0, plan.total.average_power_w);
    }
}
