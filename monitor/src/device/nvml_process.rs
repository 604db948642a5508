//! Processes and GPU instances of an NVIDIA GPU.
//!
//! Rule: who is there comes from the lists of compute and graphics processes; what each did, from the driver's samples
//! of process utilisation that are newer than those seen before, their mean a process. A process without a sample did
//! nothing (0); one with samples that is on no list any more has ended, and is listed once more. In MIG mode the lists
//! are asked of each MIG device, which needs no privilege, and the whole GPU's processes are their union.
//! Cases: a driver that does not say what processes did (MIG, vGPU, old) is not asked again; nothing new is no failure;
//! samples of no process or beyond 100 % are left out. A process in two lists is one, with the larger memory.
//! Not done here: MIG devices made while the GPU is open; lists of drivers before 510, which know no instances; ids of a
//! container's own processes: the driver gives the host's, and `/proc` is asked for those.
//! Source: `nvml.h` of driver 580, `nvmlDeviceGetComputeRunningProcesses_v3`, `nvmlDeviceGetProcessUtilization`,
//! `nvmlDeviceGetAttributes_v2`.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use gpumon_core::header::MigInstance;
use gpumon_core::units::WallUs;
use nvml_wrapper::Device;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::{ProcessInfo, ProcessUtilizationSample};

use super::nvml_ext;
use super::{Process, Processes};

/// How far back the first question for samples reaches, µs.
const FIRST_US: i64 = 1_000_000;
/// How often a list that grew between the question for its length and the one for itself is asked again.
const TRIES: u32 = 3;

/// Lists one GPU's processes.
pub(super) struct ProcessReader {
    /// MIG devices and the instances that they are on.
    mig: Vec<(MigInstance, Device<'static>)>,
    samples: Mutex<Samples>,
}

/// How far the samples of utilisation were read.
#[derive(Clone, Copy, Debug)]
enum Samples {
    NotAsked,
    /// The newest one's time, µs.
    Seen(u64),
    Unsupported,
}

/// Mean SM and memory utilisation of a process, %.
type Did = BTreeMap<u32, (f64, f64)>;

impl ProcessReader {
    /// A reader of a GPU, which may be in MIG mode.
    pub(super) fn new(device: &Device<'static>, mig: bool) -> Self {
        let mig_devices = if mig { device.mig_device_count().unwrap_or(0) } else { 0 };
        let mig = (0..mig_devices).filter_map(|index| {
            let found = device.mig_device_by_index(index).ok()?;
            let id = nvml_ext::gpu_instance_id(&found).ok()?;
            let instance = MigInstance {
                id,
                slices: found.attributes().ok().map(|a| a.gpu_instance_slice_count),
                uuid: found.uuid().ok(),
                start: nvml_ext::gpu_instance_start(device, id).ok(),
            };
            Some((instance, found))
        });
        Self { mig: mig.collect(), samples: Mutex::new(Samples::NotAsked) }
    }

    /// The GPU instances, each once.
    pub(super) fn instances(&self) -> Vec<MigInstance> {
        let mut instances: Vec<_> = self.mig.iter().map(|(instance, _)| instance.clone()).collect();
        // Several compute instances share one.
        instances.sort_by_key(|instance| instance.id);
        instances.dedup_by_key(|instance| instance.id);
        instances
    }

    /// The processes now, and what each did since the call before.
    pub(super) fn read(&self, device: &Device<'static>, now: WallUs) -> Result<Processes, NvmlError> {
        let mut found: BTreeMap<(u32, Option<u32>), Option<u64>> = BTreeMap::new();
        for (info, instance) in self.listed(device)? {
            let used = match info.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => Some(bytes),
                UsedGpuMemory::Unavailable => None,
            };
            let known = found.entry((info.pid, info.gpu_instance_id.or(instance))).or_default();
            *known = used.max(*known);
        }
        let did = self.did(device, now)?;
        if let Some(did) = &did {
            for &pid in did.keys() {
                if !found.keys().any(|(known, _)| *known == pid) {
                    found.insert((pid, None), None);
                }
            }
        }
        let util = |pid: &u32, of: fn((f64, f64)) -> f64| {
            did.as_ref().map(|did| did.get(pid).copied().map_or(0.0, of))
        };
        let list = found.iter().map(|(&(pid, mig_instance), &mem_used_bytes)| Process {
            pid,
            name: name(pid),
            mig_instance,
            sm_util_pct: util(&pid, |(sm, _)| sm),
            mem_util_pct: util(&pid, |(_, mem)| mem),
            mem_used_bytes,
        });
        Ok(Processes { list: list.collect(), has_utilisation: did.is_some() })
    }

    /// Everything on the lists, with the instance whose list it was.
    fn listed(&self, device: &Device<'static>) -> Result<Vec<(ProcessInfo, Option<u32>)>, NvmlError> {
        if self.mig.is_empty() {
            return Ok(lists(device)?.into_iter().map(|info| (info, None)).collect());
        }
        let mut all = Vec::new();
        for (instance, device) in &self.mig {
            all.extend(lists(device)?.into_iter().map(|info| (info, Some(instance.id))));
        }
        Ok(all)
    }

    /// What processes did since the call before; nothing if the driver does not say.
    fn did(&self, device: &Device<'static>, now: WallUs) -> Result<Option<Did>, NvmlError> {
        let mut state = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        let since = match *state {
            Samples::Unsupported => return Ok(None),
            Samples::Seen(since) => since,
            Samples::NotAsked => u64::try_from(now.0 - FIRST_US).unwrap_or(0),
        };
        match again(|| device.process_utilization_stats(since)) {
            Ok(samples) => {
                *state = Samples::Seen(samples.iter().map(|s| s.timestamp).fold(since, u64::max));
                Ok(Some(means(&samples, since)))
            }
            Err(NvmlError::NotFound) => {
                *state = Samples::Seen(since);
                Ok(Some(Did::new()))
            }
            Err(
                NvmlError::NotSupported
                | NvmlError::NoPermission
                | NvmlError::FunctionNotFound
                | NvmlError::FailedToLoadSymbol(_)
                | NvmlError::InvalidArg,
            ) => {
                *state = Samples::Unsupported;
                Ok(None)
            }
            Err(other) => Err(other),
        }
    }
}

fn lists(device: &Device<'static>) -> Result<Vec<ProcessInfo>, NvmlError> {
    let mut all = again(|| device.running_compute_processes())?;
    match again(|| device.running_graphics_processes()) {
        Ok(drawing) => all.extend(drawing),
        Err(lost @ (NvmlError::GpuLost | NvmlError::ResetRequired)) => return Err(lost),
        // Not every GPU draws.
        Err(_) => {}
    }
    Ok(all)
}

fn again<T>(ask: impl Fn() -> Result<T, NvmlError>) -> Result<T, NvmlError> {
    let mut answer = ask();
    for _ in 1..TRIES {
        if !matches!(answer, Err(NvmlError::InsufficientSize(_))) {
            break;
        }
        answer = ask();
    }
    answer
}

/// The mean of each process's samples that are newer than `since`.
fn means(samples: &[ProcessUtilizationSample], since: u64) -> Did {
    let plausible = |s: &&ProcessUtilizationSample| {
        s.timestamp > since && s.pid != 0 && s.sm_util <= 100 && s.mem_util <= 100
    };
    let mut sums: BTreeMap<u32, (f64, f64, f64)> = BTreeMap::new();
    for sample in samples.iter().filter(plausible) {
        let (sm, mem, count) = sums.entry(sample.pid).or_default();
        *sm += f64::from(sample.sm_util);
        *mem += f64::from(sample.mem_util);
        *count += 1.0;
    }
    sums.into_iter().map(|(pid, (sm, mem, count))| (pid, (sm / count, mem / count))).collect()
}

/// What a process calls itself.
fn name(pid: u32) -> Option<String> {
    let comm = std::fs::read(format!("/proc/{pid}/comm")).ok()?;
    let name = String::from_utf8_lossy(&comm).trim_end().to_owned();
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(pid: u32, timestamp: u64, sm_util: u32) -> ProcessUtilizationSample {
        ProcessUtilizationSample { pid, timestamp, sm_util, mem_util: 10, enc_util: 0, dec_util: 0 }
    }

    #[test]
    fn samples_become_means_and_what_cannot_be_is_left_out() {
        let samples = [
            sample(7, 5, 90),
            sample(7, 20, 40),
            sample(7, 30, 60),
            sample(8, 20, 1_000_000),
            sample(0, 20, 50),
            sample(9, 21, 0),
        ];
        let found: Vec<_> = means(&samples, 10).into_iter().collect();
        assert_eq!(found, [(7, (50.0, 10.0)), (9, (0.0, 10.0))]);
    }

    #[test]
    fn a_process_is_named_as_it_calls_itself() {
        assert!(name(std::process::id()).is_some());
        assert_eq!(name(u32::MAX), None);
    }
}
