//! Bytes that storage changed or lost cost no more than where they stood.

use std::fs;
use std::path::PathBuf;

use gpumon_core::header::State;
use gpumon_core::rows::{EventRow, FastRow, Record};
use proptest::prelude::*;

use super::*;
use crate::store::{Lane, Store, journal, recover};

/// A killed recording with one journal; returns it with the journal's length after each flush of
/// five records.
fn killed(dir: &Path, records: &[Record]) -> (PathBuf, Vec<u64>) {
    let written = dir.join("written");
    let copy = dir.join("killed");
    let mut store = Store::create(&written, header(), false).unwrap();
    let journal = written.join("journal/00000000.log");
    let mut lengths = vec![fs::metadata(&journal).unwrap().len()];
    for five in records.chunks(5) {
        five.iter().cloned().for_each(|record| store.append(record).unwrap());
        store.flush().unwrap();
        lengths.push(fs::metadata(&journal).unwrap().len());
    }
    copy_dir(&written, &copy);
    (copy, lengths)
}

#[test]
fn a_journal_cut_anywhere_gives_all_rows_before_the_cut() {
    let temp = tempfile::tempdir().unwrap();
    let records = records(40, 100);
    let (dir, lengths) = killed(temp.path(), &records);
    let path = dir.join("journal/00000000.log");
    let whole = fs::read(&path).unwrap();
    let all = All::of(&records);
    for cut in 0..=whole.len() {
        fs::write(&path, &whole[..cut]).unwrap();
        let read = All::read(&dir).unwrap();
        let flushes = lengths.iter().filter(|len| **len <= cut as u64).count();
        let flushed = &records[..(5 * flushes.saturating_sub(1)).min(records.len())];
        assert!(read.starts_with(&All::of(flushed)), "cut at {cut}");
        assert!(all.starts_with(&read), "cut at {cut}");
        if cut % 97 == 0 {
            let copy = temp.path().join(format!("cut{cut}"));
            copy_dir(&dir, &copy);
            let report = recover(&copy).unwrap();
            assert!(report.dropped.iter().all(|d| d.torn_tail));
            assert_eq!(All::read(&copy).unwrap(), read);
        }
    }
}

/// The rows of one lane in a journal's bytes, frame by frame.
fn frames(bytes: &[u8]) -> (Vec<String>, Vec<journal::Bad>) {
    let mut frames = Vec::new();
    let bad = journal::parse(bytes, |frame| frames.push(format!("{frame:?}")));
    (frames, bad)
}

#[test]
fn a_flipped_byte_costs_the_frame_it_is_in() {
    let temp = tempfile::tempdir().unwrap();
    let (dir, _) = killed(temp.path(), &records(40, 100));
    let path = dir.join("journal/00000000.log");
    let whole = fs::read(&path).unwrap();
    let (expected, bad) = frames(&whole);
    assert!(bad.is_empty() && expected.len() > 20);
    for at in 0..whole.len() {
        for flip in [1, 0x80, 0xFF] {
            let mut bytes = whole.clone();
            bytes[at] ^= flip;
            let (read, bad) = frames(&bytes);
            assert_eq!(read.len(), expected.len() - 1, "byte {at}");
            assert!(read.iter().all(|frame| expected.contains(frame)), "byte {at}");
            assert_eq!(bad.len(), 1);
            assert!((bad[0].offset..bad[0].offset + bad[0].bytes).contains(&at));
        }
    }

    let middle = whole.len() / 2;
    let mut bytes = whole.clone();
    bytes[middle] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let reader = Reader::open(&dir).unwrap();
    let items: Vec<_> = reader.batches::<FastRow>().collect();
    assert!(items.iter().any(|item| matches!(item, Err(StoreError::Damaged { .. }))));
    assert!(items.iter().any(Result::is_ok), "the rest is read");
    let report = recover(&dir).unwrap();
    assert_eq!(report.dropped.len(), 1);
    let dropped = &report.dropped[0];
    assert!(!dropped.torn_tail);
    assert!((dropped.offset..dropped.offset + dropped.bytes).contains(&(middle as u64)));
    assert!(All::read(&dir).is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]

    #[test]
    fn no_bytes_make_the_journal_panic(
        flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
        noise in proptest::collection::vec(any::<u8>(), 0..64),
        at in any::<prop::sample::Index>(),
    ) {
        let mut bytes = journal::file_header(&header()).unwrap();
        for i in 0..20 {
            journal::encode(&FastRow::frame(&[fast(i, 1), fast(i, 2)]), &mut bytes).unwrap();
        }
        let at = at.index(bytes.len());
        bytes.splice(at..at, noise);
        for (index, value) in flips {
            let i = index.index(bytes.len());
            bytes[i] = value;
        }
        let mut rows = 0;
        let bad = journal::parse(&bytes, |frame| rows += FastRow::of_frame(frame).map_or(0, |r| r.len()));
        prop_assert!(rows <= 40);
        prop_assert!(bad.iter().map(|b| b.bytes).sum::<usize>() <= bytes.len());
    }
}

fn closed(dir: &Path) -> All {
    let records = records(77, 100);
    let mut store = Store::create(dir, header(), false).unwrap().with_limits(SMALL);
    records.iter().cloned().for_each(|record| store.append(record).unwrap());
    store.close(|_| ()).unwrap();
    All::of(&records)
}

#[test]
fn a_damaged_table_is_set_aside_and_the_rest_kept() {
    let temp = tempfile::tempdir().unwrap();
    let all = closed(temp.path());
    for (name, len) in [("fast.0001.parquet", 300), ("slow.parquet", 0)] {
        let file = fs::OpenOptions::new().write(true).open(temp.path().join(name)).unwrap();
        file.set_len(len).unwrap();
    }
    let reader = Reader::open(temp.path()).unwrap();
    let items: Vec<_> = reader.batches::<FastRow>().collect();
    let errors: Vec<_> = items.iter().filter_map(|item| item.as_ref().err()).collect();
    assert_eq!(errors.len(), 1);
    assert!(errors[0].to_string().contains("fast.0001.parquet"), "{}", errors[0]);

    let report = recover(temp.path()).unwrap();
    let aside: Vec<_> = report.set_aside.iter().map(|p| p.file_name().unwrap().to_owned()).collect();
    assert_eq!(aside, ["fast.0001.parquet.damaged", "slow.parquet.damaged"]);
    assert_eq!(report.state, State::Complete, "its writer closed it");
    let read = All::read(temp.path()).unwrap();
    let kept: usize = items.iter().filter_map(|item| item.as_ref().ok()).map(Vec::len).sum();
    assert!(kept > 10 && read.fast.len() == kept && kept < all.fast.len());
    // The slow lane had a second and a third part.
    assert!(!read.slow.is_empty() && all.slow.ends_with(&read.slow));
    assert_eq!(read.ring, all.ring);
    assert!(recover(temp.path()).unwrap().nothing_to_do);
}

#[test]
fn a_damaged_segment_is_set_aside_and_the_rest_kept() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("killed");
    let records = records(28, 100);
    let mut store = Store::create(&temp.path().join("run"), header(), false).unwrap().with_limits(SMALL);
    records.iter().cloned().for_each(|record| store.append(record).unwrap());
    store.flush().unwrap();
    copy_dir(store.path(), &dir);
    fs::write(dir.join("segments/00000001.fast.parquet"), "PAR1 not at all").unwrap();
    let report = recover(&dir).unwrap();
    assert_eq!(report.set_aside, [dir.join("00000001.fast.parquet.damaged")]);
    assert_eq!(report.state, State::Recovered);
    let read = All::read(&dir).unwrap();
    let (first, last) = (records.len() / 3, 2 * records.len() / 3);
    let outside = |row: &FastRow| !(first as i64 * 100..last as i64 * 100 + 200).contains(&row.mono_us);
    let all = All::of(&records);
    assert!(all.fast.iter().filter(|row| outside(row)).all(|row| read.fast.contains(row)));
    assert_eq!(read.events, all.events);
}

#[test]
fn damaged_pages_cost_their_row_group() {
    let temp = tempfile::tempdir().unwrap();
    let all = closed(temp.path());
    let path = temp.path().join("fast.parquet");
    let mut bytes = fs::read(&path).unwrap();
    bytes[4..60].fill(0xAA);
    fs::write(&path, bytes).unwrap();
    let items: Vec<_> = Reader::open(temp.path()).unwrap().batches::<FastRow>().collect();
    assert_eq!(items.iter().filter(|item| item.is_err()).count(), 1);
    let rows: Vec<_> = items.into_iter().filter_map(Result::ok).flatten().collect();
    assert!(rows.len() > 10 && all.fast.ends_with(&rows));
}

#[test]
fn a_lost_header_is_restored() {
    for damage in ["", "{\"schema\": 1", "{}", "gone"] {
        let temp = tempfile::tempdir().unwrap();
        let all = closed(temp.path());
        let path = temp.path().join("recording.json");
        if damage == "gone" {
            fs::remove_file(&path).unwrap();
        } else {
            fs::write(&path, damage).unwrap();
        }
        let error = Reader::open(temp.path()).unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
        assert!(error.to_string().contains("recording.json"), "{error}");
        let report = recover(temp.path()).unwrap();
        assert!(report.header_restored);
        assert_eq!(All::read(temp.path()).unwrap(), all);
        let reader = Reader::open(temp.path()).unwrap();
        assert_eq!(reader.header().gpus, header().gpus);
        assert_eq!(reader.header().state, State::Recovered);
        assert_eq!(reader.header().duration_us, Some(7_600), "time of the last row");
        assert_eq!(temp.path().join("recording.json.damaged").exists(), damage != "gone");
    }
}

#[test]
fn a_lost_header_of_a_killed_recording_is_restored_from_its_journal() {
    let temp = tempfile::tempdir().unwrap();
    let records = records(10, 100);
    let (dir, _) = killed(temp.path(), &records);
    fs::write(dir.join("recording.json"), [0; 40]).unwrap();
    let report = recover(&dir).unwrap();
    assert!(report.header_restored);
    assert_eq!(report.rows[Lane::Events], All::of(&records).events.len() as u64);
    assert_eq!(All::read(&dir).unwrap(), All::of(&records));
}

#[test]
fn a_newer_schema_is_refused_with_the_version_that_reads_it() {
    let temp = tempfile::tempdir().unwrap();
    closed(temp.path());
    // Keys that this version cannot know, and none that it does.
    let text = r#"{"schema": 7, "gpumon": "3.2.1", "news": []}"#;
    fs::write(temp.path().join("recording.json"), text).unwrap();
    for error in [Reader::open(temp.path()).unwrap_err(), recover(temp.path()).unwrap_err()] {
        assert!(matches!(error, StoreError::NewerSchema { schema: 7, .. }));
        let text = error.to_string();
        assert!(text.contains("use gpumon 3.2.1 or newer"), "{text}");
        assert!(!text.contains("damaged"));
    }
}

#[test]
fn columns_and_keys_of_a_newer_version_are_ignored() {
    let temp = tempfile::tempdir().unwrap();
    let all = closed(temp.path());
    let path = temp.path().join("recording.json");
    let text = fs::read_to_string(&path).unwrap().replacen('{', "{\"future\": 1,", 1);
    fs::write(&path, text).unwrap();
    assert_eq!(rows::<EventRow>(&Reader::open(temp.path()).unwrap()).unwrap(), all.events);
}

#[test]
fn a_damaged_row_group_costs_its_own_rows_and_no_others() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("whole");
    let mut store = Store::create(&dir, header(), false).unwrap().with_limits(SMALL);
    let records = records(140, 50);
    for record in records.iter().cloned() {
        store.append(record).unwrap();
        store.flush().unwrap();
    }
    store.close(|_| {}).unwrap();
    let whole = All::read(&dir).unwrap();
    let path = dir.join("fast.parquet");
    let footer = crate::store::table::Footer::of(&path).unwrap();
    assert!(footer.groups() > 1, "{}", footer.groups());
    let lost = footer.rows_of(1) as usize;
    let (start, length) = footer.0.row_group(1).column(3).byte_range();
    let mut bytes = fs::read(&path).unwrap();
    bytes[start as usize..(start + length) as usize].fill(0xff);
    fs::write(&path, &bytes).unwrap();
    assert!(All::read(&dir).is_err());

    let report = recover(&dir).unwrap();
    assert!(!report.nothing_to_do && report.set_aside.len() == 1, "{report:?}");
    let kept = All::read(&dir).unwrap();
    assert_eq!(kept.fast.len(), whole.fast.len() - lost);
    assert!(kept.fast.iter().all(|row| whole.fast.contains(row)));
    assert_eq!((kept.ring, kept.slow, kept.events), (whole.ring, whole.slow, whole.events));
    assert!(Reader::open(&dir).unwrap().header().damage[0].contains("fast.parquet.damaged"));
    assert!(recover(&dir).unwrap().nothing_to_do);
}
