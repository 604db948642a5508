//! Places models on shared GPUs.
//!
//! ```text
//! workload ─┐
//! profile  ─┼→ problem → policy → placement → plan → check → plan.json → emit: scripts, manifests
//! base W   ─┘    │  candidate: what each model can run as       │
//!                └─ cost: what a GPU costs for an objective ────┘
//! ```
//!
//! [`problem`] says what is asked, [`candidate`] what each model could run as, [`cost`] what a shared GPU costs,
//! [`policy`] holds one file a system, [`compare`] puts systems side by side, [`plan`] is the file that comes out, [`check`] is the
//! one judge of every plan, [`emit`] turns a plan into what runs it, and [`tune`] gives a plan that runs new clocks and
//! batches. [`place`] is the whole way.
//!
//! Not done here: fitting. Whoever has models instead of measurements predicts profile rows first.

pub mod base;
pub mod candidate;
pub mod check;
pub mod compare;
pub mod cost;
pub mod emit;
pub mod plan;
pub mod policy;
pub mod problem;
pub mod queue;
pub mod slowdown;
pub mod tune;
pub mod turn;

pub use cost::Objective;
pub use plan::Plan;
pub use policy::{PlaceError, place};
pub use problem::{Ask, Problem};
