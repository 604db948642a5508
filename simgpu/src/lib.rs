//! A simulated GPU whose sensors lag, average and repeat as real ones do.
//!
//! ```text
//! TOML text ─ spec ──▶ Spec ─┬─ law       load level and clock limits → power, clock, reasons
//!   (load, power, sensors)   ├─ programme what runs when: phases, once or for ever
//!                            └─ timeline  the truth: energy and state at any instant, exactly
//!                                  │
//!           gpu: SimGpu ◀──────────┘      what NVML would say of it at a given time, when the call
//!             update, sensors, ring, gpm, returns, and which other call it waits for
//!             process
//!                 ▲
//! TOML text ─ workload: SimModel       what a model's batch takes and draws; settles the GPU's clock and load level
//! ```
//!
//! Nothing here reads a clock, a file or the network: every call is told the simulated time, zero
//! being the moment at which the GPU was opened, and answers a pure function of that time, the seed
//! and the changes applied so far. What was really drawn can be asked for beside what the sensors
//! say, so that a test knows the right answer.

mod check;
mod gpm;
mod gpu;
mod hash;
mod law;
mod load;
mod process;
mod programme;
mod ring;
mod sensors;
mod spec;
mod timeline;
mod update;
mod workload;

pub use gpm::GpmMetrics;
pub use gpu::{SimGpu, Utilization};
pub use law::{PowerLaw, Settings, State, reasons};
pub use process::{ProcessSpec, ProcessUse};
pub use programme::{Phase, Programme, ProgrammeError};
pub use ring::RingReading;
pub use sensors::{Reading, Sensor, SensorError};
pub use spec::{
    ActivitySpec, ClocksSpec, MemorySpec, PowerSpec, RingSpec, SensorsSpec, Spec, SpecError, ThermalSpec,
};
pub use timeline::{Change, ChangeError, Timeline, Totals};
pub use update::Shape;
pub use workload::{ModelError, Operating, SideBySide, SimModel, Tenant, Together, Truth};
