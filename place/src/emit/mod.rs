//! Plans turned into what runs them: one file a format.
//!
//! Adding one: a file with an [`Emitter`], one line in [`EMITTERS`]; the command line takes its name from there. Each knows
//! the names of its files and recognises what it wrote, so that files of another plan are found and never someone else's
//! removed.
//!
//! [`seats`] is the one place where a plan's partitions become the instances or shares that workers run in.

pub mod k8s;
pub mod mig_parted;
pub mod sh;

use gpumon_core::geometry::{SEVEN_SLICES, memory_sizes_gb, profile_name};
use gpumon_core::workload::{Model, Workload};

use crate::plan::{Gpu, Partition, Plan};

/// A format that plans are written in.
pub trait Emitter: Sync {
    /// Its name on the command line and at the end of its folder's.
    fn name(&self) -> &'static str;

    /// What it writes, in one sentence.
    fn about(&self) -> &'static str;

    /// The files that run this plan.
    fn emit(&self, order: &Order) -> Result<Emission, EmitError>;

    /// Whether one of its files could have this name.
    fn could_be(&self, name: &str) -> bool;

    /// Whether it wrote this text.
    fn wrote(&self, text: &[u8]) -> bool;

    /// Whether [`Order::image`] means something to it.
    fn takes_image(&self) -> bool {
        false
    }

    /// Whether [`Order::memory_gb`] means something to it.
    fn takes_memory(&self) -> bool {
        false
    }
}

/// Every format.
pub const EMITTERS: &[&dyn Emitter] = &[&sh::Sh, &k8s::K8s, &mig_parted::MigParted];

/// The format of this name.
pub fn emitter(name: &str) -> Option<&'static dyn Emitter> {
    EMITTERS.iter().find(|e| e.name() == name).copied()
}

/// What is to be written.
#[derive(Clone, Copy, Debug)]
pub struct Order<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// The workload that it was made from.
    pub workload: &'a Workload,
    /// Container image of the models whose workload names none.
    pub image: Option<&'a str>,
    /// Memory of each GPU, GB; needed where its kind comes in several sizes.
    pub memory_gb: Option<u32>,
}

impl<'a> Order<'a> {
    /// Without an image, on the only size of GPU that there is.
    pub fn new(plan: &'a Plan, workload: &'a Workload) -> Self {
        Self { plan, workload, image: None, memory_gb: None }
    }
}

/// What an emitter gives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Emission {
    /// The files to write.
    pub files: Vec<Emitted>,
    /// What the files cannot carry or leave to be done by hand, for whoever uses them.
    pub notes: Vec<String>,
}

/// A file to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emitted {
    /// File name, without a folder.
    pub name: String,
    /// What is in it.
    pub text: String,
}

/// Why a plan cannot be turned into files.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum EmitError {
    /// The workload does not say how a model's worker starts.
    #[error("`{0}` has no `run` in the workload; give its worker as a list: program and arguments")]
    NoRun(String),
    /// A model of the plan is not in the workload.
    #[error(
        "the plan serves `{0}`, which the workload does not list; use the workload that the plan was made from"
    )]
    UnknownModel(String),
    /// A program's name cannot be started from a shell.
    #[error("`run` of `{model}` {why}")]
    Program {
        /// The model.
        model: String,
        /// What is wrong and what to do.
        why: &'static str,
    },
    /// A partition lacks its place.
    #[error("`{0}` has neither slices with a start_slot nor a share_pct; check the plan first")]
    NoPlace(String),
    /// A model has no container image.
    #[error(
        "`{0}` has no `image` in the workload; name its container image there, or one for all with --image"
    )]
    NoImage(String),
    /// MIG profile names depend on the GPU's memory.
    #[error("{}", which_memory(.kind, *.given))]
    Memory {
        /// Kind of GPU.
        kind: String,
        /// What was given, GB.
        given: Option<u32>,
    },
    /// The format cannot express the plan.
    #[error("{format} cannot carry this plan: {why}")]
    Inexpressible {
        /// The format.
        format: &'static str,
        /// Which part of the plan, and what to do.
        why: String,
    },
    /// Models take turns, and nothing starts their batches.
    #[error(
        "`{0}` takes turns with others in one partition, and workers that are started side by side know nothing of each other's batches; \
         run this plan with a dispatcher that keeps its `turn`, or make one without turns (more GPUs, or another system)"
    )]
    Turns(String),
}

fn which_memory(kind: &str, given: Option<u32>) -> String {
    let sizes: Vec<String> = memory_sizes_gb(kind).iter().map(u32::to_string).collect();
    let sizes = sizes.join(" or ");
    match given {
        _ if sizes.is_empty() => format!("no names of MIG profiles are known for GPUs of the kind `{kind}`"),
        None => format!(
            "names of MIG profiles have the memory in them, and GPUs of the kind `{kind}` come with {sizes} GB; say which with \
             --gpu-memory-gb"
        ),
        Some(gb) => format!("--gpu-memory-gb {gb}: GPUs of the kind `{kind}` come with {sizes} GB"),
    }
}

/// Where a worker runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Place {
    /// A MIG instance.
    Instance {
        /// Compute slices.
        slices: u8,
        /// Memory slot at which it starts.
        start: u8,
    },
    /// A share of the SMs by MPS, %.
    Share(f64),
}

/// A partition with its place and its model.
#[derive(Clone, Copy, Debug)]
pub struct Seat<'a> {
    /// The partition.
    pub partition: &'a Partition,
    /// Where it runs.
    pub place: Place,
    /// Its model in the workload.
    pub model: &'a Model,
}

impl Seat<'_> {
    /// How the worker starts: program and arguments, which no shell sees.
    pub fn argv(&self) -> Result<&[String], EmitError> {
        if self.partition.turn.is_some() {
            return Err(EmitError::Turns(self.model.name.clone()));
        }
        let wrong = |why| Err(EmitError::Program { model: self.model.name.clone(), why });
        let run = self.model.run.as_deref().filter(|run| !run.is_empty());
        let argv = run.ok_or_else(|| EmitError::NoRun(self.model.name.clone()))?;
        if argv.iter().any(|a| a.contains('\0')) || self.model.name.contains('\0') {
            return wrong("holds a NUL byte, which no argument can");
        }
        if argv[0].is_empty() {
            return wrong("starts a program without a name");
        }
        Ok(argv)
    }

    /// The part of the partition's rate that each of its processes serves, items/s.
    pub fn rate_rps(&self) -> f64 {
        self.partition.rate_rps / f64::from(self.partition.processes.max(1))
    }
}

/// The seats of a GPU, in the plan's order; all are of one kind of sharing. Models that take turns have seats at one place.
pub fn seats<'a>(gpu: &'a Gpu, workload: &'a Workload) -> Result<Vec<Seat<'a>>, EmitError> {
    let mig = is_mig(gpu);
    let seat = |partition: &'a Partition| {
        let place = match (partition.slices, partition.start_slot, partition.share_pct) {
            (Some(slices), Some(start), None) if mig => Place::Instance { slices, start },
            (None, None, Some(pct)) if !mig => Place::Share(pct),
            _ => return Err(EmitError::NoPlace(partition.model.clone())),
        };
        let model = workload.models.iter().find(|m| m.name == partition.model);
        let model = model.ok_or_else(|| EmitError::UnknownModel(partition.model.clone()))?;
        Ok(Seat { partition, place, model })
    };
    gpu.partitions.iter().map(seat).collect()
}

/// Whether a GPU is shared by MIG.
pub fn is_mig(gpu: &Gpu) -> bool {
    gpu.partitions.iter().all(|p| p.slices.is_some())
}

/// NVIDIA's name of the MIG profile with these slices on the order's GPUs.
fn profile_of(order: &Order, model: &str, slices: u8) -> Result<String, EmitError> {
    let kind = order.plan.gpu.as_str();
    let wrong = || EmitError::Memory { kind: kind.into(), given: order.memory_gb };
    let sizes = memory_sizes_gb(kind);
    let only = sizes.first().copied().filter(|_| sizes.len() == 1);
    let memory_gb = order.memory_gb.or(only).filter(|gb| sizes.contains(gb)).ok_or_else(wrong)?;
    let known = SEVEN_SLICES.profile(slices).and_then(|_| profile_name(kind, memory_gb, slices));
    known.ok_or_else(|| EmitError::NoPlace(model.into()))
}

/// The number in a name such as `gpu12.sh`; only as [`Emitter::emit`] writes it.
fn numbered(name: &str, before: &str, after: &str) -> bool {
    let number = name.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
    number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}
