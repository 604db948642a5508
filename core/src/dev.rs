//! What tests of several crates need, and no program.
//!
//! Published measurements of others are not part of this project; tests that compare with them read them from a
//! folder beside it, and say so when it is not there.

use std::path::{Path, PathBuf};

/// The variable that names the folder of reference data.
const FOLDER: &str = "GPUMON_REFERENCE";
/// With this variable set, a test without its reference data fails.
const REQUIRE: &str = "GPUMON_REQUIRE_REFERENCE";

/// A file or folder of the reference data, `relative` to its root (`GPUMON_REFERENCE`, else
/// `../shared/reference` beside the project). `Ok(None)`: it is not here, the test has said that it is skipped and
/// should return. An error: it is not here, and `GPUMON_REQUIRE_REFERENCE` is set.
pub fn reference(relative: &str) -> Result<Option<PathBuf>, String> {
    let here = std::env::current_dir().map_err(|e| format!("no current folder: {e}"))?;
    let root = here.ancestors().find(|dir| dir.join("Cargo.lock").is_file()).unwrap_or(&here);
    let folder = std::env::var_os(FOLDER).map_or_else(|| PathBuf::from("../shared/reference"), PathBuf::from);
    find(&root.join(folder), relative, std::env::var_os(REQUIRE).is_some_and(|v| v != "0"))
}

fn find(folder: &Path, relative: &str, required: bool) -> Result<Option<PathBuf>, String> {
    let path = folder.join(relative);
    if path.exists() {
        return Ok(Some(path));
    }
    let missing = format!("no reference data at `{}` (set {FOLDER} to its folder)", path.display());
    if required {
        return Err(format!("{missing}, and {REQUIRE} is set"));
    }
    eprintln!("skipped: {missing}");
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absence_skips_or_fails() {
        let folder = std::env::temp_dir();
        assert_eq!(find(&folder, "no/such/file", false), Ok(None));
        assert!(find(&folder, "no/such/file", true).unwrap_err().contains(REQUIRE));
        assert_eq!(find(&folder, ".", true), Ok(Some(folder.join("."))));
    }
}
