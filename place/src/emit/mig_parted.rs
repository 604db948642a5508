//! A configuration of `nvidia-mig-parted`: how many MIG instances of each size a GPU gets.
//!
//! Rule: `mig-parted.yaml` holds the configuration `gpumon`, in which GPU i of a node gets the instances of the plan's GPU
//! i, and `gpumon-gpu0` and on, in which every GPU of a node gets those of one GPU of the plan, for nodes with a GPU each.
//! The program (and the GPU operator's MIG manager, by the label `nvidia.com/mig.config`) applies one by its name.
//! Cases: the counts must have legal starts together. The format has no starts: mig-parted creates instances in one order
//! after another until the driver takes all, and the driver chooses where. Where the counts can stand in other ways than the
//! plan's, a comment and a note say so. Clocks are not MIG's; the comment has the command. Plans of MPS shares are refused.
//! Safety: nothing from a file gets into the text but numbers and names of profiles.
//! Not done: workers (`k8s` has them), turning MIG off elsewhere.
//!
//! Source: README and `api/spec/v1` of NVIDIA/mig-parted: `version: v1`, `mig-configs`, and for each a list of `devices`,
//! `mig-enabled`, `mig-devices`; order of creation from its `pkg/mig/config`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use gpumon_core::geometry::SEVEN_SLICES;

use super::{Emission, EmitError, Emitted, Emitter, Order, Place, profile_of, seats};

/// The configuration.
pub struct MigParted;

const FILE: &str = "mig-parted.yaml";
const HEAD: &str = "# Written by gpumon from a plan. nvidia-mig-parted apply -f mig-parted.yaml -c gpumon\n";
const CANNOT: &str = "\
# Counts of MIG instances only: the driver chooses their start slots, and clocks are locked apart from this file.
version: v1
mig-configs:
";

impl Emitter for MigParted {
    fn name(&self) -> &'static str {
        "mig-parted"
    }

    fn about(&self) -> &'static str {
        "A configuration of nvidia-mig-parted: how many MIG instances of each size a GPU gets, without start slots"
    }

    fn emit(&self, order: &Order) -> Result<Emission, EmitError> {
        let gpus =
            (0..order.plan.gpus.len()).map(|i| Counted::of(order, i)).collect::<Result<Vec<_>, _>>()?;
        let mut text = HEAD.to_owned();
        if order.plan.simulated {
            text += "# Simulated: the plan's figures come from simulated GPUs.\n";
        }
        text += CANNOT;
        text += "  # GPU i of the node as GPU i of the plan\n  gpumon:\n";
        for gpu in &gpus {
            gpu.write(&mut text, &format!("[{}]", gpu.index));
        }
        for gpu in &gpus {
            let _ = write!(
                text,
                "\n  # every GPU of the node as GPU {0} of the plan\n  gpumon-gpu{0}:\n",
                gpu.index
            );
            gpu.write(&mut text, "all");
        }
        let notes = gpus.iter().filter_map(Counted::elsewhere).collect();
        Ok(Emission { files: vec![Emitted { name: FILE.into(), text }], notes })
    }

    fn could_be(&self, name: &str) -> bool {
        name == FILE
    }

    fn wrote(&self, text: &[u8]) -> bool {
        text.starts_with(HEAD.as_bytes())
    }

    fn takes_memory(&self) -> bool {
        true
    }
}

/// The instances of one GPU.
struct Counted {
    index: usize,
    mhz: u32,
    /// How many there are of each profile.
    counts: BTreeMap<String, usize>,
    /// The plan's instances, slices and start, ascending.
    planned: Vec<(u8, u8)>,
    /// In how many ways they can stand.
    ways: usize,
}

impl Counted {
    fn of(order: &Order, index: usize) -> Result<Self, EmitError> {
        let gpu = &order.plan.gpus[index];
        let wrong = |why| EmitError::Inexpressible { format: "mig-parted", why };
        let mut counts = BTreeMap::new();
        let (mut planned, mut in_turns) = (Vec::new(), Vec::new());
        for seat in seats(gpu, order.workload)? {
            let model = &seat.partition.model;
            let Place::Instance { slices, start } = seat.place else {
                return Err(wrong(format!(
                    "`{model}` on GPU {index} has a share by MPS, and mig-parted makes MIG instances only; use --emit sh or k8s"
                )));
            };
            // Models that take turns are in one instance.
            if let Some(turn) = seat.partition.turn {
                if in_turns.contains(&turn.partition) {
                    continue;
                }
                in_turns.push(turn.partition);
            }
            *counts.entry(profile_of(order, model, slices)?).or_default() += 1;
            planned.push((slices, start));
        }
        planned.sort_unstable();
        let sizes: Vec<u8> = planned.iter().map(|(slices, _)| *slices).collect();
        let ways = SEVEN_SLICES.placements(&sizes).len();
        if ways == 0 {
            let sizes: Vec<String> = sizes.iter().map(u8::to_string).collect();
            let why = format!(
                "instances of {} slices do not fit on GPU {index} together; check the plan first",
                sizes.join(", ")
            );
            return Err(wrong(why));
        }
        Ok(Self { index, mhz: gpu.frequency_mhz, counts, planned, ways })
    }

    /// The starts in words: `3g at 4, 4g at 0`.
    fn starts(&self) -> String {
        let words: Vec<String> =
            self.planned.iter().map(|(slices, start)| format!("{slices}g at {start}")).collect();
        words.join(", ")
    }

    fn write(&self, text: &mut String, devices: &str) {
        let (mhz, starts) = (self.mhz, self.starts());
        let ways = if self.ways == 1 {
            "the only way that these counts can stand".into()
        } else {
            format!("one of {} ways, and the driver chooses", self.ways)
        };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "    # plan: {starts} ({ways}); clock: nvidia-smi -i GPU -lgc {mhz},{mhz}");
        let _ = writeln!(text, "    - devices: {devices}\n      mig-enabled: true\n      mig-devices:");
        for (profile, count) in &self.counts {
            let _ = writeln!(text, "        \"{profile}\": {count}");
        }
    }

    /// That the instances may come to stand elsewhere.
    fn elsewhere(&self) -> Option<String> {
        (self.ways > 1).then(|| {
            format!(
                "GPU {}: mig-parted cannot say where instances start; the plan's are {}, and the driver may choose another of \
                 {} ways (--emit sh creates them at these slots)",
                self.index,
                self.starts(),
                self.ways
            )
        })
    }
}
