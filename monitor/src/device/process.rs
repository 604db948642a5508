//! What a backend says of the processes on a GPU; absent where the driver does not say, never 0.

/// The processes on a GPU.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Processes {
    /// One entry a process and GPU instance; also those that ended since the call before, if they did something.
    pub list: Vec<Process>,
    /// Whether the driver says what each process did.
    pub has_utilisation: bool,
}

/// One process on a GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Process {
    /// Its id.
    pub pid: u32,
    /// What it calls itself.
    pub name: Option<String>,
    /// The GPU instance that it runs on.
    pub mig_instance: Option<u32>,
    /// Share of time with a kernel of it, % of the whole GPU.
    pub sm_util_pct: Option<f64>,
    /// Share of time with memory traffic of it, %.
    pub mem_util_pct: Option<f64>,
    /// Memory that it holds, bytes.
    pub mem_used_bytes: Option<u64>,
}
