//! A disk that fills up at any moment ends the recording cleanly.

use std::io;
use std::process::Command;
use std::sync::{Arc, Mutex};

use super::*;
use crate::store::disk::{Disk, Hook, Op};
use crate::store::{Lane, Store, recover};

/// What still works once the disk is full and the reserve is gone.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Room {
    Nothing,
    JournalAndHeader,
    Everything,
}

/// A disk that is full from its `from`th growing operation on; counts these.
fn filling(from: usize, room: Room, errno: i32) -> (Disk, Arc<Mutex<usize>>) {
    let count = Arc::new(Mutex::new(0));
    let counter = count.clone();
    let mut released = false;
    let hook: Hook = Arc::new(Mutex::new(move |op: Op, path: &Path| {
        let mut count = counter.lock().unwrap();
        if op == Op::Remove && path.ends_with("reserve") && *count > from {
            released = true;
        }
        if !matches!(op, Op::Create | Op::Write | Op::Sync) {
            return Ok(());
        }
        *count += 1;
        let name = path.to_str().unwrap();
        let fits = match room {
            Room::Nothing => false,
            Room::JournalAndHeader => released && !name.contains(".parquet"),
            Room::Everything => released,
        };
        if *count <= from || fits { Ok(()) } else { Err(io::Error::from_raw_os_error(errno)) }
    }));
    (Disk { skip_sync: true, hook: Some(hook) }, count)
}

/// Records until something fails; returns how many rows were flushed.
fn record(disk: Disk, dir: &Path, records: &[Record]) -> (usize, Option<super::super::Closed>, bool) {
    let mut store = match Store::create_on(disk, dir, header(), false) {
        Ok(store) => store.with_limits(SMALL),
        Err(e) => {
            assert!(matches!(e, StoreError::Full { .. }), "{e}");
            assert!(!dir.exists() || names(dir).is_empty(), "{:?}", names(dir));
            return (0, None, false);
        }
    };
    let mut flushed = 0;
    for (i, record) in records.iter().cloned().enumerate() {
        let done = store.append(record).and_then(|()| if i % 4 == 0 { store.flush() } else { Ok(()) });
        if let Err(e) = done {
            assert!(matches!(e, StoreError::Full { .. }), "{e}");
            // Later calls say the same.
            let again = store.flush().unwrap_err();
            assert!(matches!(again, StoreError::Full { .. }), "{again}");
            break;
        }
        if i % 4 == 0 {
            flushed = i + 1;
        }
    }
    match store.close(|header| header.duration_us = Some(7_700)) {
        Ok(closed) => (flushed, Some(closed), true),
        Err(e) => {
            assert!(matches!(e, StoreError::Full { .. }), "{e}");
            (flushed, None, true)
        }
    }
}

#[test]
fn a_disk_that_fills_up_at_any_moment_keeps_what_was_flushed() {
    let temp = tempfile::tempdir().unwrap();
    let records = records(50, 100);
    let all = All::of(&records);
    let (disk, count) = filling(usize::MAX, Room::Nothing, libc::ENOSPC);
    record(disk, &temp.path().join("all"), &records);
    let count = *count.lock().unwrap();
    assert!(count > 100, "{count}");
    for room in [Room::Nothing, Room::JournalAndHeader, Room::Everything] {
        // Every operation once, and each with its neighbours' rooms.
        for from in (room as usize..count).step_by(3) {
            let dir = temp.path().join(format!("{room:?}{from}"));
            let errno = [libc::ENOSPC, libc::EDQUOT, libc::EFBIG][from / 3 % 3];
            let (flushed, closed, created) = record(filling(from, room, errno).0, &dir, &records);
            if !created {
                continue;
            }
            let what = format!("{room:?} from {from}");
            let read = All::read(&dir).unwrap();
            assert!(all.starts_with(&read), "{what}");
            assert!(read.starts_with(&All::of(&records[..flushed])), "{what}");
            let reader = Reader::open(&dir).unwrap();
            match &closed {
                Some(closed) => {
                    assert_eq!(reader.header().state, closed.state);
                    assert_eq!(reader.header().duration_us, Some(7_700));
                    assert_eq!(closed.state == State::Complete, closed.failure.is_none(), "{what}");
                    if !closed.whole {
                        assert_eq!(closed.state, State::StorageFailed);
                        assert!(!names(&dir).contains(&"reserve".to_owned()));
                    }
                }
                None => assert_eq!(room, Room::Nothing, "{what}: the reserve has room for the header"),
            }
            if room == Room::Everything {
                assert_eq!(names(&dir).iter().filter(|n| !n.ends_with(".parquet")).count(), 1, "{what}");
                let rows = closed.unwrap().rows;
                assert_eq!(rows[Lane::Fast], read.fast.len() as u64, "{what}: appended rows are kept");
            }
            let unsynced = Disk { skip_sync: true, hook: None };
            super::super::recover::recover_on(unsynced, &dir).unwrap();
            assert_eq!(All::read(&dir).unwrap(), read, "{what}");
            // A megabyte each adds up.
            std::fs::remove_dir_all(&dir).unwrap();
        }
    }
}

#[test]
fn a_disk_that_fills_up_during_recovery_keeps_everything() {
    let temp = tempfile::tempdir().unwrap();
    let records = records(50, 100);
    let run = temp.path().join("run");
    let mut store = Store::create(&run, header(), false).unwrap().with_limits(SMALL);
    records.iter().cloned().for_each(|record| store.append(record).unwrap());
    store.flush().unwrap();
    let mut steps = 0;
    for from in 0.. {
        steps = from;
        let dir = temp.path().join(from.to_string());
        copy_dir(&run, &dir);
        let done = super::super::recover::recover_on(filling(from, Room::Nothing, libc::ENOSPC).0, &dir);
        assert_eq!(All::read(&dir).unwrap(), All::of(&records), "full from {from}");
        match done {
            Ok(_) => break,
            Err(e) => assert!(matches!(e, StoreError::Full { .. }), "{e}"),
        }
        recover(&dir).unwrap();
        assert_eq!(All::read(&dir).unwrap(), All::of(&records), "full from {from}");
    }
    assert!(steps > 10);
}

#[test]
fn an_io_error_ends_the_recording_too() {
    let temp = tempfile::tempdir().unwrap();
    let hook: Hook = Arc::new(Mutex::new(|op: Op, path: &Path| {
        let fails = op == Op::Sync && path.to_str().unwrap().contains("segments");
        if fails { Err(io::Error::from_raw_os_error(libc::EIO)) } else { Ok(()) }
    }));
    let disk = Disk { skip_sync: true, hook: Some(hook) };
    let mut store = Store::create_on(disk, temp.path(), header(), false).unwrap().with_limits(SMALL);
    let records = records(50, 100);
    let error = records.iter().cloned().find_map(|record| store.append(record).err()).unwrap();
    assert!(matches!(error, StoreError::Io { doing: "sync", .. }), "{error}");
    let closed = store.close(|_| ()).unwrap();
    assert_eq!((closed.state, closed.whole), (State::StorageFailed, false));
    assert!(All::of(&records).starts_with(&All::read(temp.path()).unwrap()));
    assert!(All::read(temp.path()).unwrap().starts_with(&All::of(&records[..10])));
}

const CHILD_DIR: &str = "GPUMON_TEST_LIMITED_DIR";

/// Not a test of its own: the next test runs it under a file-size limit.
#[test]
#[ignore = "run by a_file_size_limit_ends_the_recording"]
fn limited_child() {
    let Some(dir) = std::env::var_os(CHILD_DIR) else { return };
    let mut store = Store::create(Path::new(&dir), header(), false).unwrap();
    let mut flushed = 0;
    for i in 0..250_000 {
        store.append(Record::Fast(fast(i, i as i32))).unwrap();
        if i % 7_000 == 0 {
            match store.flush() {
                Ok(()) => flushed = i + 1,
                Err(e) => {
                    assert!(matches!(e, StoreError::Full { .. }), "{e}");
                    break;
                }
            }
        }
    }
    let closed = store.close(|_| ()).unwrap();
    assert_eq!(closed.state, State::StorageFailed);
    println!("\nflushed {flushed} appended {}", closed.rows[Lane::Fast]);
}

#[test]
fn a_file_size_limit_ends_the_recording() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("run");
    // 2 MiB or 1 MiB, as the shell's blocks are; ignored signals stay ignored in the child.
    let output = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 2100; exec \"$0\" --ignored --exact --nocapture store::tests::full::limited_child"])
        .arg(std::env::current_exe().unwrap())
        .env(CHILD_DIR, &dir)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let line = text.lines().find(|line| line.starts_with("flushed")).unwrap();
    let numbers: Vec<usize> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
    let read = All::read(&dir).unwrap().fast;
    assert!(read.len() >= numbers[0] && read.len() <= numbers[1], "{} of {line}", read.len());
    assert!(numbers[0] > 10_000, "{line}");
    assert!(read.iter().zip(0..).all(|(row, i)| row.mono_us == i));
}
