//! A `libnvidia-ml.so` over simulated GPUs: what a program that loads the real library gets without one.
//!
//! ```text
//! program ─ dlopen libnvidia-ml.so.1 ─▶ calls/*  one exported function each, bodies without `unsafe`
//!                                          │  edge: initialised? pointers, handles, panics
//!    GPUMON_FAKENVML=script.toml ─ script ─┤  world: counts the call, plays the scripted faults,
//!                                          │         asks the simulated GPU, takes as long as it
//!              state file ─ log, counts ───┘  what processes share: time zero, changes, call counts
//! ```
//!
//! Rule: a call answers what driver 580 would answer on such a GPU, or what the script says instead.
//! A function that is not here is not exported, so that a program meets a missing symbol for what it is.
//! The keys of a script and all functions are in docs/fake-nvml.md.
//! Not done here: events, vGPUs, NVLink, units, accounting; a reset of the GPU.
//! Source: `nvml.h` of driver 580 for signatures, struct versions and return codes; where that leaves
//! an answer open, the module that gives it says what is assumed.

mod calls;
mod codes;
mod counts;
mod edge;
mod elf;
mod faults;
mod handles;
mod hang;
mod log;
mod mig;
mod model;
mod script;
pub mod testing;
mod world;

pub use calls::functions;
pub use elf::{ElfError, dynamic_names, without_symbols};
pub use script::{Script, ScriptError};
