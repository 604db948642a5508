//! Stopped before any single operation on the disk, nothing that was flushed is lost or doubled.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::*;
use crate::store::Store;
use crate::store::disk::{Disk, Op};
use crate::store::recover::{recover, recover_on};

/// What a crash at one moment leaves, and how many rows had been flushed by then.
struct Shot {
    dir: PathBuf,
    flushed: usize,
    created: bool,
}

/// A disk that copies the folder before each operation that changes what is seen there.
fn shooting(dir: &Path, into: &Path, progress: Arc<[AtomicUsize; 2]>) -> (Disk, Arc<Mutex<Vec<Shot>>>) {
    let shots = Arc::new(Mutex::new(Vec::new()));
    let (dir, into, taken) = (dir.to_owned(), into.to_owned(), shots.clone());
    let hook = move |op: Op, _: &Path| {
        if op != Op::Sync && dir.exists() {
            let mut shots = taken.lock().unwrap();
            let copy = into.join(shots.len().to_string());
            copy_dir(&dir, &copy);
            let [flushed, created] = [0, 1].map(|i: usize| progress[i].load(Ordering::SeqCst));
            shots.push(Shot { dir: copy, flushed, created: created == 1 });
        }
        Ok(())
    };
    let hook: crate::store::disk::Hook = Arc::new(Mutex::new(hook));
    (Disk { skip_sync: true, hook: Some(hook) }, shots)
}

fn check_recovered(dir: &Path, expected: &All) {
    let unsynced = Disk { skip_sync: true, hook: None };
    let first = recover_on(unsynced, dir).unwrap();
    assert!(first.dropped.is_empty() && first.set_aside.is_empty(), "{first:?}");
    assert_eq!(&All::read(dir).unwrap(), expected, "{}", dir.display());
    let closed = |n: &String| n.ends_with(".parquet") || n == "recording.json";
    assert!(names(dir).iter().all(closed), "{:?}", names(dir));
    assert!(CLOSED.iter().all(|name| dir.join(name).exists()));
    assert!(recover(dir).unwrap().nothing_to_do);
    assert_eq!(first.rows[crate::store::Lane::Fast], expected.fast.len() as u64);
}

#[test]
fn a_crash_before_any_operation_loses_and_doubles_nothing() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("run");
    let progress = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let (disk, shots) = shooting(&dir, &temp.path().join("shots"), progress.clone());
    let records = records(55, 100);
    let mut store = Store::create_on(disk, &dir, header(), false).unwrap().with_limits(SMALL);
    progress[1].store(1, Ordering::SeqCst);
    for (i, record) in records.iter().cloned().enumerate() {
        store.append(record).unwrap();
        if i % 4 == 0 {
            store.flush().unwrap();
            progress[0].store(i + 1, Ordering::SeqCst);
        }
    }
    store.close(|_| ()).unwrap();
    let all = All::of(&records);
    assert_eq!(All::read(&dir).unwrap(), all);
    let parts = names(&dir).iter().filter(|n| n.starts_with("fast")).count();
    assert_eq!(parts, 2);

    let shots = std::mem::take(&mut *shots.lock().unwrap());
    assert!(shots.len() > 100, "{}", shots.len());
    for (i, shot) in shots.iter().enumerate() {
        let read = match All::read(&shot.dir) {
            Ok(read) => read,
            // Cut off before it had begun.
            Err(StoreError::NotARecording { .. } | StoreError::Damaged { .. }) if !shot.created => continue,
            Err(e) => panic!("{}: {e}", shot.dir.display()),
        };
        assert!(all.starts_with(&read), "{}", shot.dir.display());
        assert!(read.starts_with(&All::of(&records[..shot.flushed])), "{}", shot.dir.display());

        if i % 24 == 5 {
            crash_while_recovering(&shot.dir, &temp.path().join(format!("again{i}")), &read);
        }
        check_recovered(&shot.dir, &read);
    }
}

fn crash_while_recovering(dir: &Path, into: &Path, expected: &All) {
    let victim = into.join("victim");
    copy_dir(dir, &victim);
    let (disk, shots) = shooting(&victim, &into.join("shots"), Arc::default());
    recover_on(disk, &victim).unwrap();
    for shot in std::mem::take(&mut *shots.lock().unwrap()) {
        assert_eq!(&All::read(&shot.dir).unwrap(), expected, "{}", shot.dir.display());
        check_recovered(&shot.dir, expected);
    }
}

#[test]
fn a_journal_that_comes_back_after_a_power_cut_is_not_read_twice() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("run");
    let mut store = Store::create(&dir, header(), false).unwrap().with_limits(SMALL);
    let records = records(35, 100);
    let mut kept = None;
    for record in records.iter().cloned() {
        store.append(record).unwrap();
        store.flush().unwrap();
        let first = dir.join("journal/00000000.log");
        if first.exists() {
            kept = Some(std::fs::read(&first).unwrap());
        }
    }
    assert!(dir.join("fast.parquet").exists(), "the first part is there");
    let cut = temp.path().join("cut");
    copy_dir(&dir, &cut);
    std::fs::write(cut.join("journal/00000000.log"), kept.unwrap()).unwrap();
    assert_eq!(All::read(&cut).unwrap(), All::of(&records));
    check_recovered(&cut, &All::of(&records));
}
