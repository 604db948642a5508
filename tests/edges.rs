//! The order of the crates: edges that docs/architecture.md lists, and no others.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// What each crate may use of the workspace's own.
const ALLOWED: &[(&str, &[&str])] = &[
    ("gpumon-core", &[]),
    ("gpumon-simgpu", &["gpumon-core"]),
    ("gpumon-monitor", &["gpumon-core", "gpumon-simgpu"]),
    ("gpumon-place", &["gpumon-core"]),
    ("gpumon-profile", &["gpumon-core", "gpumon-simgpu", "gpumon-monitor"]),
    (
        "gpumon",
        &["gpumon-core", "gpumon-simgpu", "gpumon-monitor", "gpumon-profile", "gpumon-fit", "gpumon-place"],
    ),
    ("gpumon-fit", &["gpumon-core"]),
    ("gpumon-fakenvml", &["gpumon-core", "gpumon-simgpu"]),
];

/// What the tests of a crate may use beside that; what people build never has it in it.
const ALLOWED_IN_TESTS: &[(&str, &[&str])] =
    &[("gpumon-monitor", &["gpumon-fakenvml"]), ("gpumon", &["gpumon-fakenvml"])];

#[test]
fn crates_use_only_what_they_may() {
    let metadata = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(metadata.status.success(), "{}", String::from_utf8_lossy(&metadata.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&metadata.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let own: BTreeSet<&str> = packages.iter().map(|p| p["name"].as_str().unwrap()).collect();
    let allowed: BTreeMap<&str, &[&str]> = ALLOWED.iter().copied().collect();
    assert_eq!(own, allowed.keys().copied().collect(), "every crate is listed here");
    let in_tests: BTreeMap<&str, &[&str]> = ALLOWED_IN_TESTS.iter().copied().collect();
    for package in packages {
        let name = package["name"].as_str().unwrap();
        for dependency in package["dependencies"].as_array().unwrap() {
            let used = dependency["name"].as_str().unwrap();
            let for_tests =
                dependency["kind"] == "dev" && in_tests.get(name).is_some_and(|l| l.contains(&used));
            let may = allowed[name].contains(&used) || for_tests;
            assert!(!own.contains(used) || may, "{name} may not use {used}");
        }
    }
}
