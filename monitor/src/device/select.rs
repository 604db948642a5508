//! Which of the GPUs: `--gpu all`, indices, UUIDs, UUID prefixes, PCI addresses.
//!
//! Rule: a comma-separated list; each item is `all`, an index in the backend's order, a UUID or the
//! start of one (with or without `GPU-`), or a PCI address with or without its domain. An item that
//! fits no GPU, or two, is an error that names them. The order of the list is kept, repeats are not.

use std::sync::Arc;

use super::{Device, Identity};

/// Why a selection cannot be made.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectError {
    /// An item fits no GPU.
    #[error("no GPU fits `{item}`; there are: {known}")]
    Unknown {
        /// The item as written.
        item: String,
        /// The GPUs that exist.
        known: String,
    },
    /// The start of a UUID fits several GPUs.
    #[error("`{item}` fits more than one GPU: {candidates}; write more of the UUID")]
    Ambiguous {
        /// The item as written.
        item: String,
        /// The GPUs that fit.
        candidates: String,
    },
}

/// The GPUs that `list` names, in its order.
pub fn select(all: &[Arc<dyn Device>], list: &str) -> Result<Vec<Arc<dyn Device>>, SelectError> {
    let identities: Vec<&Identity> = all.iter().map(|d| d.identity()).collect();
    let mut chosen: Vec<usize> = Vec::new();
    for item in list.split(',').map(str::trim) {
        let found = if item == "all" { (0..all.len()).collect() } else { vec![find(&identities, item)?] };
        for index in found {
            if !chosen.contains(&index) {
                chosen.push(index);
            }
        }
    }
    Ok(chosen.into_iter().map(|i| all[i].clone()).collect())
}

/// The position of the one GPU that `item` names.
pub(super) fn find(all: &[&Identity], item: &str) -> Result<usize, SelectError> {
    let unknown = || SelectError::Unknown { item: item.into(), known: list_of(all.iter().copied()) };
    if item.is_empty() {
        return Err(unknown());
    }
    if item.bytes().all(|b| b.is_ascii_digit()) {
        let index = item.parse::<u32>().ok();
        return all.iter().position(|id| Some(id.index) == index).ok_or_else(unknown);
    }
    if item.contains(':') {
        return all.iter().position(|id| same_pci(&id.pci_id, item)).ok_or_else(unknown);
    }
    find_uuid(all, item)?.ok_or_else(unknown)
}

/// The position of the GPU whose UUID starts with `prefix`, if there is just one.
pub(super) fn find_uuid(all: &[&Identity], prefix: &str) -> Result<Option<usize>, SelectError> {
    let bare = |uuid: &str| uuid.to_ascii_lowercase().trim_start_matches("gpu-").to_owned();
    let wanted = bare(prefix);
    let fits: Vec<usize> = (0..all.len()).filter(|&i| bare(&all[i].uuid).starts_with(&wanted)).collect();
    match fits[..] {
        [] => Ok(None),
        [one] => Ok(Some(one)),
        _ => Err(SelectError::Ambiguous {
            item: prefix.into(),
            candidates: list_of(fits.iter().map(|&i| all[i])),
        }),
    }
}

/// Whether two PCI addresses are the same, whatever their domain's width or absence.
fn same_pci(a: &str, b: &str) -> bool {
    parse_pci(a).is_some_and(|a| parse_pci(b) == Some(a))
}

fn parse_pci(text: &str) -> Option<(u32, u32, u32, u32)> {
    let hex = |s: &str| u32::from_str_radix(s, 16).ok();
    let (rest, function) = text.rsplit_once('.').unwrap_or((text, "0"));
    let mut parts = rest.rsplit(':');
    let (device, bus) = (hex(parts.next()?)?, hex(parts.next()?)?);
    let domain = parts.next().map_or(Some(0), hex)?;
    parts.next().is_none().then_some((domain, bus, device, hex(function)?))
}

fn list_of<'a>(ids: impl Iterator<Item = &'a Identity>) -> String {
    ids.map(|id| format!("{} = {} at {}", id.index, id.uuid, id.pci_id)).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn gpu(index: u32, uuid: &str, pci_id: &str) -> Identity {
        Identity {
            index,
            name: "Test".into(),
            uuid: uuid.into(),
            pci_id: pci_id.into(),
            driver: "1".into(),
            power_limit: None,
            mem_total_bytes: None,
            sm_clocks: vec![],
            mig: None,
            mig_uuids: vec![],
            mig_instances: vec![],
            power_scope: None,
            simulated: true,
        }
    }

    #[test]
    fn indices_uuids_prefixes_and_pci_addresses_find_their_gpu() {
        let (a, b) = (gpu(0, "GPU-aa11", "00000000:1B:00.0"), gpu(1, "GPU-aa22", "00000001:1C:00.0"));
        let all = [&a, &b];
        for (item, position) in [
            ("1", 1),
            ("GPU-aa11", 0),
            ("aa2", 1),
            ("GPU-AA1", 0),
            ("1b:00.0", 0),
            ("0001:1c:00.0", 1),
            ("0000:1B:00", 0),
        ] {
            assert_eq!(find(&all, item), Ok(position), "{item}");
        }
    }

    #[test]
    fn what_fits_none_or_two_is_an_error_that_names_the_gpus() {
        let (a, b) = (gpu(0, "GPU-aa11", "00000000:1B:00.0"), gpu(1, "GPU-aa22", "00000000:1C:00.0"));
        let all = [&a, &b];
        for item in ["2", "bb", "1c:01.0", "", "-1", "99999999999999999999", "::"] {
            let error = find(&all, item).unwrap_err();
            assert!(matches!(error, SelectError::Unknown { .. }), "{item}");
            assert!(error.to_string().contains("GPU-aa11"), "{item}: {error}");
        }
        let error = find(&all, "GPU-aa").unwrap_err().to_string();
        assert!(error.contains("GPU-aa11") && error.contains("GPU-aa22"), "{error}");
    }
}
