//! Each act as the command that a person would type for the same effect.
//!
//! Rule: one line an act, for `--dry-run` and for messages about privileges. Numbers of MIG profiles are those of A100,
//! H100 and H200, which `nvidia-smi mig -lgip` prints.
//! Not done here: running any of them; a control calls the driver's library.

use std::path::Path;

use gpumon_core::units::{Megahertz, Milliwatts, plain};

/// A privileged act on one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act<'a> {
    /// Lock the SM clock to a range.
    LockClocks(Megahertz, Megahertz),
    /// Release it.
    ResetClocks,
    /// Set the power limit.
    PowerLimit(Milliwatts),
    /// Turn MIG on or off.
    Mig(bool),
    /// Make a GPU instance with a compute instance in all of it.
    Create {
        /// Compute slices.
        slices: u8,
        /// First memory slot.
        start: u8,
    },
    /// Destroy a GPU instance, by its id, with its compute instance.
    Destroy(u32),
    /// Start an MPS daemon in a folder.
    StartMps(&'a Path),
    /// Stop it.
    StopMps(&'a Path),
}

/// MIG profile numbers by slices.
const PROFILES: &[(u8, u32)] = &[(1, 19), (2, 14), (3, 9), (4, 5), (7, 0)];

impl Act<'_> {
    /// The command, for the GPU with this UUID.
    pub fn command(&self, gpu: &str) -> String {
        match *self {
            Self::LockClocks(lowest, highest) => {
                format!("nvidia-smi -i {gpu} --lock-gpu-clocks={},{}", lowest.0, highest.0)
            }
            Self::ResetClocks => format!("nvidia-smi -i {gpu} --reset-gpu-clocks"),
            Self::PowerLimit(limit) => format!("nvidia-smi -i {gpu} --power-limit={}", plain(limit.watts())),
            Self::Mig(on) => format!("nvidia-smi -i {gpu} --multi-instance-gpu={}", u8::from(on)),
            Self::Create { slices, start } => {
                let known = PROFILES.iter().find(|(known, _)| *known == slices);
                let profile = known.map_or_else(|| format!("{slices}g"), |(_, id)| id.to_string());
                format!("nvidia-smi mig -i {gpu} -cgi {profile}:{start} -C")
            }
            Self::Destroy(id) => {
                format!("nvidia-smi mig -i {gpu} -gi {id} -dci && nvidia-smi mig -i {gpu} -gi {id} -dgi")
            }
            Self::StartMps(folder) => format!(
                "CUDA_VISIBLE_DEVICES={gpu} CUDA_MPS_PIPE_DIRECTORY={0} CUDA_MPS_LOG_DIRECTORY={0} \
                 nvidia-cuda-mps-control -d",
                folder.display()
            ),
            Self::StopMps(folder) => {
                format!("echo quit | CUDA_MPS_PIPE_DIRECTORY={} nvidia-cuda-mps-control", folder.display())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_those_of_nvidia_smi() {
        let say = |act: Act<'_>| act.command("GPU-1");
        assert_eq!(
            say(Act::LockClocks(Megahertz(1200), Megahertz(1200))),
            "nvidia-smi -i GPU-1 --lock-gpu-clocks=1200,1200"
        );
        assert_eq!(say(Act::PowerLimit(Milliwatts(350_500))), "nvidia-smi -i GPU-1 --power-limit=350.5");
        assert_eq!(say(Act::Create { slices: 3, start: 4 }), "nvidia-smi mig -i GPU-1 -cgi 9:4 -C");
        assert!(say(Act::Mig(false)).ends_with("--multi-instance-gpu=0"));
        assert!(say(Act::Destroy(2)).contains("-gi 2 -dgi"));
        assert!(say(Act::StopMps(Path::new("/x"))).contains("CUDA_MPS_PIPE_DIRECTORY=/x"));
    }
}
