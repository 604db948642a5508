//! Which GPUs a command sees: `CUDA_VISIBLE_DEVICES`.
//!
//! Rule, as the CUDA driver reads the variable: a comma-separated list of indices, GPU UUIDs or starts
//! of them (`GPU-…`), and MIG ids (`MIG-<uuid>`, or the older `MIG-GPU-<uuid>/<gi>/<ci>`). It ends at
//! the first item that names nothing; an empty list hides all GPUs. Indices count in CUDA's order,
//! which is by speed unless `CUDA_DEVICE_ORDER=PCI_BUS_ID`; on a machine with one kind of GPU both are
//! the order of PCI addresses. A MIG id stands for the whole GPU, because power is measured there.
//!
//! Not done: guessing. Where the order is by speed and the GPUs differ, indices are an error that says
//! to set `CUDA_DEVICE_ORDER=PCI_BUS_ID` or to name UUIDs.
//!
//! Source: CUDA C++ Programming Guide, "CUDA Environment Variables"; MIG User Guide, "CUDA device
//! enumeration".

use std::sync::Arc;

use super::select::{SelectError, find_uuid};
use super::{Device, Identity};

/// Why the variable cannot be followed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum VisibleError {
    /// A short UUID fits two GPUs.
    #[error("CUDA_VISIBLE_DEVICES: {0}")]
    Select(#[from] SelectError),
    /// It hides every GPU.
    #[error(
        "CUDA_VISIBLE_DEVICES=`{0}` leaves the command no GPU; unset it, or choose what to record with `--gpu`"
    )]
    Nothing(String),
    /// Indices mean CUDA's order by speed, which is not known here.
    #[error(
        "CUDA_VISIBLE_DEVICES=`{0}` counts GPUs by speed and they are of different kinds; set \
         CUDA_DEVICE_ORDER=PCI_BUS_ID, write UUIDs, or choose what to record with `--gpu`"
    )]
    OrderUnknown(String),
}

/// The GPUs that a command with this environment sees.
pub fn visible(
    all: &[Arc<dyn Device>],
    variable: &str,
    device_order: Option<&str>,
) -> Result<Vec<Arc<dyn Device>>, VisibleError> {
    let identities: Vec<&Identity> = all.iter().map(|d| d.identity()).collect();
    let positions = positions(&identities, variable, device_order)?;
    Ok(positions.into_iter().map(|i| all[i].clone()).collect())
}

fn positions(all: &[&Identity], variable: &str, order: Option<&str>) -> Result<Vec<usize>, VisibleError> {
    let mut by_pci: Vec<usize> = (0..all.len()).collect();
    by_pci.sort_by_key(|&i| &all[i].pci_id);
    let order_known = order == Some("PCI_BUS_ID") || all.iter().all(|id| id.name == all[0].name);

    let mut chosen = Vec::new();
    for item in variable.split(',').map(str::trim) {
        let found = if let Ok(index) = item.parse::<usize>() {
            if !order_known {
                return Err(VisibleError::OrderUnknown(variable.into()));
            }
            by_pci.get(index).copied()
        } else if let Some(parent) = item.strip_prefix("MIG-GPU-") {
            find_uuid(all, parent.split('/').next().unwrap_or(parent))?
        } else if item.starts_with("MIG-") {
            all.iter().position(|id| id.mig_uuids.iter().any(|u| u.eq_ignore_ascii_case(item)))
        } else if item.starts_with("GPU-") {
            find_uuid(all, item)?
        } else {
            None
        };
        let Some(position) = found else { break };
        if !chosen.contains(&position) {
            chosen.push(position);
        }
    }
    if chosen.is_empty() { Err(VisibleError::Nothing(variable.into())) } else { Ok(chosen) }
}

#[cfg(test)]
mod tests {
    use super::super::select::tests::gpu;
    use super::*;

    fn machine() -> [Identity; 3] {
        let mut mig = gpu(1, "GPU-ab22", "00000000:02:00.0");
        mig.mig_uuids = vec!["MIG-0f0f".into()];
        // NVML's order is not CUDA's here: index 0 has the highest address.
        [gpu(0, "GPU-ab11", "00000000:09:00.0"), mig, gpu(2, "GPU-cd33", "00000000:05:00.0")]
    }

    fn read(variable: &str) -> Result<Vec<usize>, VisibleError> {
        let machine = machine();
        positions(&machine.iter().collect::<Vec<_>>(), variable, None)
    }

    #[test]
    fn every_form_finds_its_gpu() {
        assert_eq!(read("0"), Ok(vec![1]), "CUDA counts by PCI address");
        assert_eq!(read("2,0"), Ok(vec![0, 1]));
        assert_eq!(read("GPU-cd"), Ok(vec![2]));
        assert_eq!(read("MIG-0f0f"), Ok(vec![1]));
        assert_eq!(read("MIG-GPU-ab11/1/0"), Ok(vec![0]));
        assert_eq!(read("MIG-0f0f,GPU-ab22"), Ok(vec![1]), "one GPU, once");
    }

    #[test]
    fn the_list_ends_at_the_first_item_that_names_nothing() {
        assert_eq!(read("1,7,0"), Ok(vec![2]));
        assert_eq!(read("0,-1,1"), Ok(vec![1]));
        assert!(matches!(read(""), Err(VisibleError::Nothing(_))));
        assert!(matches!(read("NoDevFiles"), Err(VisibleError::Nothing(_))));
    }

    #[test]
    fn an_ambiguous_prefix_names_both() {
        let text = read("GPU-ab").unwrap_err().to_string();
        assert!(text.contains("GPU-ab11") && text.contains("GPU-ab22"), "{text}");
    }

    #[test]
    fn indices_by_speed_are_not_guessed() {
        let mut machine = machine();
        machine[2].name = "Faster".into();
        let all: Vec<_> = machine.iter().collect();
        assert!(matches!(positions(&all, "0", None), Err(VisibleError::OrderUnknown(_))));
        assert_eq!(positions(&all, "0", Some("PCI_BUS_ID")), Ok(vec![1]));
    }
}
