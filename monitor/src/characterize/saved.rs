//! Characterisations that are kept between runs: one JSON file a GPU and driver.
//!
//! Rule: `STATE/gpumon/sensors/UUID-DRIVER.json`, where STATE is `$XDG_STATE_HOME` or `~/.local/state`. A file is written beside its
//! place and renamed into it, so that nobody reads half of one. It belongs to a GPU only if UUID, driver, product name and
//! whether it is simulated are all the same: simulated GPUs of different descriptions may share a UUID.
//! Cases: no file is `None`; one that cannot be read, or that a newer gpumon wrote, is an error for the caller to tell and go
//! on without.
//! Source of the folder: XDG Base Directory Specification 0.8, which also has relative paths ignored.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use gpumon_core::timing::{Characterisation, TIMING_SCHEMA};

use crate::device::Identity;

/// Why a file that is there gives nothing.
#[derive(Debug, thiserror::Error)]
pub enum SavedError {
    /// It cannot be read or is not what it should be.
    #[error("the characterisation `{}` cannot be read: {message}; `gpumon characterize` makes it anew", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        message: String,
    },
    /// A newer gpumon wrote it.
    #[error(
        "the characterisation `{}` has schema {found}, and this gpumon knows {TIMING_SCHEMA}; `gpumon characterize` makes it anew",
        path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its schema.
        found: u64,
    },
}

/// The folder, from the values of XDG_STATE_HOME and HOME.
pub fn folder(xdg_state_home: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let absolute = |dir: Option<OsString>| dir.map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute(xdg_state_home).or_else(|| absolute(home).map(|home| home.join(".local/state")));
    Some(state?.join("gpumon/sensors"))
}

/// Where a GPU's file is.
pub fn path(folder: &Path, uuid: &str, driver: &str) -> PathBuf {
    let plain = |text: &str| -> String {
        text.chars().map(|c| if c.is_ascii_alphanumeric() || "-._".contains(c) { c } else { '_' }).collect()
    };
    folder.join(format!("{}-{}.json", plain(uuid), plain(driver)))
}

/// Keeps a characterisation and tells where.
pub fn save(folder: &Path, found: &Characterisation) -> io::Result<PathBuf> {
    fs::create_dir_all(folder)?;
    let path = path(folder, &found.uuid, &found.driver);
    write(&path, &(serde_json::to_string_pretty(found)? + "\n"))?;
    Ok(path)
}

/// Writes a file in one piece: there is the old one or the new one, whatever happens meanwhile.
pub fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let beside = path.with_file_name(name);
    let written = File::create(&beside).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    let placed = written.and_then(|()| fs::rename(&beside, path));
    if placed.is_err() {
        // It may not even be there.
        let _ = fs::remove_file(&beside);
    }
    placed
}

/// The characterisation of a GPU, if there is one.
pub fn load(folder: &Path, gpu: &Identity) -> Result<Option<Characterisation>, SavedError> {
    let path = path(folder, &gpu.uuid, &gpu.driver);
    let unreadable = |message: String| SavedError::Unreadable { path: path.clone(), message };
    let text = match fs::read_to_string(&path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text.map_err(|e| unreadable(e.to_string()))?,
    };
    let value: serde_json::Value = serde_json::from_str(&text).map_err(|e| unreadable(e.to_string()))?;
    // A newer file may not even have the keys that are known here.
    let found = value.get("schema").and_then(serde_json::Value::as_u64);
    if let Some(found) = found.filter(|found| *found > u64::from(TIMING_SCHEMA)) {
        return Err(SavedError::Newer { path, found });
    }
    let kept: Characterisation = serde_json::from_value(value).map_err(|e| unreadable(e.to_string()))?;
    let same = kept.uuid == gpu.uuid
        && kept.driver == gpu.driver
        && kept.gpu_name == gpu.name
        && kept.simulated == gpu.simulated;
    Ok(same.then_some(kept))
}

#[cfg(test)]
mod tests {
    use gpumon_core::units::WallUs;

    use super::*;

    fn found() -> Characterisation {
        Characterisation {
            schema: TIMING_SCHEMA,
            gpumon: "0".into(),
            simulated: true,
            uuid: "GPU-1".into(),
            gpu_name: "X".into(),
            driver: "1/2".into(),
            made_wall_us: WallUs(1),
            load: "none".into(),
            instant: None,
            average: None,
            ring: None,
            counter: None,
            calls: Vec::new(),
            own_cost: None,
            notes: Vec::new(),
        }
    }

    fn gpu() -> Identity {
        Identity {
            index: 0,
            name: "X".into(),
            uuid: "GPU-1".into(),
            pci_id: String::new(),
            driver: "1/2".into(),
            power_scope: None,
            power_limit: None,
            mem_total_bytes: None,
            sm_clocks: Vec::new(),
            mig: None,
            mig_uuids: Vec::new(),
            mig_instances: vec![],
            simulated: true,
        }
    }

    #[test]
    fn what_is_saved_is_loaded_for_the_same_gpu_alone() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("a/b");
        assert!(load(&place, &gpu()).unwrap().is_none());
        let path = save(&place, &found()).unwrap();
        assert_eq!(path, place.join("GPU-1-1_2.json"));
        assert_eq!(load(&place, &gpu()).unwrap(), Some(found()));
        assert_eq!(fs::read_dir(&place).unwrap().count(), 1, "nothing is left beside it");
        for other in [
            Identity { name: "Y".into(), ..gpu() },
            Identity { simulated: false, ..gpu() },
            Identity { driver: "3".into(), ..gpu() },
            Identity { driver: "1_2".into(), ..gpu() },
        ] {
            assert_eq!(load(&place, &other).unwrap(), None, "{other:?}");
        }
    }

    #[test]
    fn bad_and_newer_files_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let path = save(folder.path(), &found()).unwrap();
        fs::write(&path, "{\"schema\": 99}").unwrap();
        assert!(matches!(load(folder.path(), &gpu()), Err(SavedError::Newer { found: 99, .. })));
        for text in ["", "{", "[]", "{\"schema\": 1}"] {
            fs::write(&path, text).unwrap();
            assert!(matches!(load(folder.path(), &gpu()), Err(SavedError::Unreadable { .. })), "{text}");
        }
    }

    #[test]
    fn the_folder_is_the_users_state() {
        let of =
            |xdg: Option<&str>, home: Option<&str>| folder(xdg.map(OsString::from), home.map(OsString::from));
        assert_eq!(of(Some("/x"), Some("/h")), Some("/x/gpumon/sensors".into()));
        assert_eq!(of(Some("relative"), Some("/h")), Some("/h/.local/state/gpumon/sensors".into()));
        assert_eq!(of(Some(""), None), None);
    }
}
