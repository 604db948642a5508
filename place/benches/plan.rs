//! One plan of eleven models: `cargo bench -p gpumon-place`. Target: 20 ms at most.

// Criterion's macros make an undocumented function.
#![allow(missing_docs)]

#[path = "../tests/reference/mod.rs"]
mod reference;
#[path = "../tests/synthetic/mod.rs"]
mod synthetic;

use criterion::{Criterion, criterion_group, criterion_main};
use gpumon_place::{Ask, Objective, Problem, place};

fn plans(c: &mut Criterion) {
    let (workload, rows) = synthetic::workload(11);
    let base = synthetic::base();
    for objective in [Objective::Power, Objective::Energy] {
        let problem = Problem::new(&Ask::new(&workload, &rows, &base, objective));
        let Ok(problem) = problem else { continue };
        c.bench_function(&format!("made-up, {objective}"), |b| b.iter(|| place(&problem, "enertune")));
    }
    let Some(reference) = reference::reference() else { return };
    for objective in [Objective::Power, Objective::Energy] {
        let ask = reference.ask(objective, 0.5, None);
        c.bench_function(&format!("reference at 50 %, {objective}"), |b| {
            b.iter(|| Problem::new(&ask).map(|p| place(&p, "enertune")))
        });
    }
}

criterion_group!(benches, plans);
criterion_main!(benches);
