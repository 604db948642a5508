//! Several processes of one model in a MIG instance: ParvaGPU's profiles (A100, eleven models, one clock, no power).
//!
//! Points are drawn as a Latin hypercube by level index over share, batch and processes, with seeds 0 to 4; errors are those at all
//! other points.

#![allow(clippy::unwrap_used, reason = "helpers of tests: a panic is the report")]

mod common;

use std::path::PathBuf;

use gpumon_core::profile::ProfileRow;
use gpumon_core::profile_io;
use gpumon_fit::evaluate::{Protocol, Quality, evaluate};
use gpumon_fit::fit::Form;
use gpumon_fit::sample::Mapping;

/// All models' rows; `None`, said aloud, if the reference is not there.
fn rows() -> Option<Vec<ProfileRow>> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(common::root()?.join("parvagpu/profiles"))
        .unwrap()
        .map(|f| f.unwrap().path())
        .collect();
    files.sort();
    Some(files.iter().flat_map(|file| profile_io::read(file).unwrap().rows).collect())
}

fn quality(rows: &[ProfileRow], form: Form, fraction: f64, transfer: bool) -> Quality {
    let mapping = Mapping::Level;
    let protocol = Protocol { form, mapping, fraction, seeds: (0..5).collect(), cap_w: None, transfer };
    let quality = evaluate(rows, &[], None, &protocol).unwrap();
    println!("{}", quality.table());
    quality
}

#[test]
fn throughput_of_several_processes_is_known_from_a_tenth_of_the_points() {
    let Some(rows) = rows() else { return };
    let fractions = [0.1, 0.2];
    for form in [Form::Physical, Form::Corrected, Form::Shared, Form::Auto] {
        for fraction in fractions {
            quality(&rows, form, fraction, false);
        }
    }
}
