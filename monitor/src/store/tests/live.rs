//! Reading and recovering while somebody writes.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;
use crate::store::{Store, recover};

#[test]
fn a_recording_reads_while_it_is_written() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("run");
    let records = records(6_000, 100);
    let all = All::of(&records);
    let mut store = Store::create(&dir, header(), false)
        .unwrap()
        .without_sync()
        .with_limits(Limits { part_us: 20_000, ..SMALL });
    let (flushed, done) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for (i, record) in records.iter().cloned().enumerate() {
                store.append(record).unwrap();
                if i % 5 == 0 {
                    store.flush().unwrap();
                    flushed.store(i + 1, Ordering::SeqCst);
                }
            }
            store.close(|_| ()).unwrap();
            done.store(true, Ordering::SeqCst);
        });
        let mut reads = 0;
        while !done.load(Ordering::SeqCst) {
            let before = flushed.load(Ordering::SeqCst);
            let reader = Reader::open(&dir).unwrap();
            // Each table is looked at anew, so it may hold more than the one before.
            let read = All::read(&dir).unwrap();
            assert!(all.starts_with(&read));
            assert!(read.starts_with(&All::of(&records[..before])), "{before} rows were flushed");
            assert!(reader.is_live() || before + 10 > records.len());
            reads += 1;
        }
        assert!(reads > 2, "{reads} reads");
    });
    assert_eq!(All::read(&dir).unwrap(), all);
    assert!(!Reader::open(&dir).unwrap().is_live());
}

#[test]
fn recovery_refuses_what_is_being_written() {
    let temp = tempfile::tempdir().unwrap();
    let mut store = Store::create(temp.path(), header(), false).unwrap();
    store.append(Record::Fast(fast(5, 5))).unwrap();
    store.flush().unwrap();
    let error = recover(temp.path()).unwrap_err();
    let expected = format!("is still being written by pid {}", std::process::id());
    assert!(error.to_string().contains(&expected), "{error}");
    let reader = Reader::open(temp.path()).unwrap();
    assert!(reader.is_live());
    assert_eq!(rows::<FastRow>(&reader).unwrap(), [fast(5, 5)]);
    // Its end, however it came, frees it.
    drop(store);
    assert!(!Reader::open(temp.path()).unwrap().is_live());
    let report = recover(temp.path()).unwrap();
    assert_eq!(report.rows[crate::store::Lane::Fast], 1);
    assert_eq!(report.state, State::Recovered);
}
