//! Reads GPU sensors at the rate the hardware gives, and keeps what it reads.
//!
//! ```text
//! device   one trait, three backends: NVML, simulated, replay
//!    ↓     a sensor a call
//! lane     fast (power, SM clock), ring (the driver's own 50 Hz readings), slow, counter
//!    ↓     rows and events, through one bounded channel
//! record   a thread a lane group, one writer thread; the same lanes on a virtual clock for simulations
//!    ↓
//! store    journal each fraction of a second, Parquet segments each minute, one table a lane at the end
//!    ↓
//! summary  energy, power statistics and windows of a recording, finished or not
//! compare  whether runs differ in energy, time or power
//! marks    named moments and windows, from other processes through a socket
//!
//! control        sets clocks, power limit, MIG and MPS, and puts back what was found, however the process ends
//! characterize   what the sensors of a GPU show, how often and how late, under a load of its own
//! ```

pub mod characterize;
pub mod compare;
pub mod control;
pub mod device;
pub mod energy;
pub mod lane;
pub mod marks;
pub mod record;
pub mod store;
pub mod summary;
