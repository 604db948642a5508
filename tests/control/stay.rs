//! Where nothing may be changed because it could not be put back.

use std::fs;

use super::helpers::text;
use super::setup::*;

#[test]
fn a_state_folder_that_cannot_be_written_stops_it_before_anything_is_changed() {
    let held = Held::new("");
    let file = held.fake.folder().join("file");
    fs::write(&file, "").unwrap();
    for place in [file.to_str().unwrap(), "/proc"] {
        let said =
            held.command(&["--clock", "900"], "touch ran").env("XDG_STATE_HOME", place).output().unwrap();
        let error = text(&said.stderr);
        assert_eq!(said.status.code(), Some(125), "{error}");
        assert!(error.contains("nothing is changed without that"), "{error}");
    }
    let mut nowhere = held.command(&["--clock", "900"], "touch ran");
    let said = nowhere.env_remove("XDG_STATE_HOME").env_remove("HOME").output().unwrap();
    assert!(text(&said.stderr).contains("neither XDG_STATE_HOME nor HOME"), "{}", text(&said.stderr));
    assert!(!held.fake.folder().join("ran").exists());
    assert_eq!(held.fake.calls("nvmlDeviceSetGpuLockedClocks", Some(0)).unwrap(), 0);
    held.is_as_found();
}

#[test]
fn a_journal_that_cannot_be_read_is_said_and_stays() {
    let held = Held::new("");
    fs::create_dir_all(held.journal().parent().unwrap()).unwrap();
    fs::write(held.journal(), "{").unwrap();
    for args in [&["hold", "--clock", "900", "--", "true"][..], &["restore"], &["devices"]] {
        let said = held.gpumon(args);
        assert!(text(&said.stderr).contains("cannot be read"), "{args:?}: {}", text(&said.stderr));
    }
    assert_eq!(fs::read_to_string(held.journal()).unwrap(), "{");
    assert!(!held.is_changed());
}

#[test]
fn a_process_that_has_got_the_number_of_the_dead_owner_is_not_taken_for_it() {
    let held = Held::new("");
    let mut running = held.start(&["--clock", "900"], "exec sleep 60");
    let text_of = fs::read_to_string(held.journal()).unwrap();
    let janitor = held.janitors()[0];
    assert!(
        std::process::Command::new("kill").args(["-9", &janitor.to_string()]).status().unwrap().success()
    );
    running.kill().unwrap();
    running.wait().unwrap();
    // As if this very process had got its number.
    let mut journal: serde_json::Value = serde_json::from_str(&text_of).unwrap();
    journal["owner"]["pid"] = std::process::id().into();
    fs::write(held.journal(), journal.to_string()).unwrap();
    assert!(held.gpumon(&["restore"]).status.success());
    held.is_as_found();
}
