//! Models of a workload's time and power at any share, clock and batch, fitted on a few measured points.
//!
//! ```text
//! profile rows → point (usable observations) → screen → fit (one form) → models (all) → model_file → predict
//!                  │                                     ├ physical: batch_time, power      ├ validate   errors
//!                  │                                     ├ corrected: physical × residual   ├ intervals
//!                  │                                     ├ shared: active, known models     └ tail       p99
//!                  │                                     ├ auto: a mix of these
//!                  │                                     └ polynomial
//!                  ├ base      power before any model works, by clock
//!                  ├ evaluate  sample → fit → error on the rest
//!                  └ active    points so far, other models → the best next point
//! model file, measured sets → colocation → what models do together on one GPU
//! ```

pub mod active;
pub mod auto;
pub mod base;
pub mod batch_time;
mod bumps;
mod cholesky;
pub mod colocation;
mod compact;
pub mod error;
pub mod evaluate;
pub mod fit;
pub mod held_out;
pub mod intervals;
pub mod model_file;
pub mod models;
mod nonnegative;
mod once;
mod parallel;
pub mod physical;
pub mod point;
pub mod polynomial;
pub mod power;
pub mod predict;
pub mod residual;
pub mod sample;
mod screen;
pub mod shared;
pub mod surface;
pub mod tail;
mod validate;
pub mod variables;
