//! What goes in comes out, in the promised files, order and size.

use std::fs;
use std::time::Instant;

use gpumon_core::header::State;
use gpumon_core::rows::{CounterRow, EventKind, EventRow, FastRow, Record, RingRow};
use gpumon_core::units::WallUs;
use parquet::basic::Encoding;
use parquet::file::reader::{FileReader as _, SerializedFileReader};
use proptest::prelude::*;

use super::*;
use crate::store::{Lane, Store, recover};

fn any_record() -> impl Strategy<Value = Record> {
    // Mostly a few minutes, so that segments and parts overlap; sometimes anything.
    let mono = || prop_oneof![9 => 0..20_000_i64, 1 => any::<i64>()];
    let some = || proptest::option::of(any::<i32>());
    let text = || proptest::option::of(".{0,12}");
    prop_oneof![
        (any::<i32>(), mono(), any::<i32>(), some(), some(), some(), any::<bool>()).prop_map(
            |(gpu, mono_us, lateness_us, power_instant_mw, power_average_mw, sm_mhz, fresh)| {
                Record::Fast(FastRow {
                    gpu,
                    mono_us,
                    lateness_us,
                    power_instant_mw,
                    power_average_mw,
                    sm_mhz,
                    fresh,
                })
            }
        ),
        (mono(), any::<i64>(), any::<i32>()).prop_map(|(mono_us, time, power_mw)| {
            Record::Ring(RingRow { gpu: 1, time: WallUs(time), mono_us, power_mw })
        }),
        (mono(), some(), proptest::option::of(any::<i64>()), any::<f64>()).prop_map(
            |(mono_us, temp_c, event_reasons, util)| {
                let sm_util_pct = Some(util).filter(|u| !u.is_nan());
                Record::Slow(Box::new(SlowRow { temp_c, event_reasons, sm_util_pct, ..slow(mono_us) }))
            }
        ),
        (mono(), any::<i64>(), any::<i32>()).prop_map(|(mono_us, energy_mj, epoch)| {
            Record::Counter(CounterRow { gpu: 0, mono_us, call_us: 1, energy_mj, epoch })
        }),
        (mono(), any::<i32>(), text()).prop_map(|(mono_us, pid, name)| {
            Record::Process(Box::new(ProcessRow { name, ..process(mono_us, pid) }))
        }),
        (mono(), text(), text(), some()).prop_map(|(mono_us, name, detail, gpu)| {
            let kind = name.as_deref().map_or(EventKind::Gap, |n| EventKind::Other(format!("x{n}")));
            EventRow { name, detail, gpu, ..EventRow::new(mono_us, None, kind) }.into()
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..Default::default() })]

    #[test]
    fn all_rows_come_back_in_time_order(
        records in proptest::collection::vec(any_record(), 0..300),
        flush_every in 1..50_usize,
    ) {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("run");
        let mut store = Store::create(&dir, header(), false).unwrap().without_sync().with_limits(SMALL);
        for (i, record) in records.iter().cloned().enumerate() {
            store.append(record).unwrap();
            if i % flush_every == 0 {
                store.flush().unwrap();
            }
        }
        store.flush().unwrap();
        let killed = temp.path().join("killed");
        copy_dir(&dir, &killed);
        let expected = All::of(&records);

        let closed = store.close(|header| header.duration_us = Some(20_000)).unwrap();
        prop_assert!(closed.whole && closed.failure.is_none());
        prop_assert_eq!(closed.rows[Lane::Fast], expected.fast.len() as u64);
        prop_assert_eq!(&All::read(&dir).unwrap(), &expected);
        let reader = Reader::open(&dir).unwrap();
        prop_assert!(!reader.is_live());
        prop_assert_eq!(reader.header().state, State::Complete);
        prop_assert_eq!(reader.header().duration_us, Some(20_000));

        prop_assert_eq!(&All::read(&killed).unwrap(), &expected);
        recover(&killed).unwrap();
        prop_assert_eq!(&All::read(&killed).unwrap(), &expected);
    }
}

#[test]
fn an_empty_recording_has_all_tables() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("deep/er/run");
    let store = Store::create(&dir, header(), false).unwrap();
    assert!(names(&dir).contains(&"reserve".to_owned()));
    assert_eq!(fs::metadata(dir.join("reserve")).unwrap().len(), 1 << 20);
    store.close(|_| ()).unwrap();
    assert_eq!(names(&dir), CLOSED);
    assert_eq!(All::read(&dir).unwrap(), All::default());
    let report = recover(&dir).unwrap();
    assert!(report.nothing_to_do);
}

/// A recording as it was before there were rows of processes: without the table, and without the sensor's name.
fn without_processes(dir: &Path) {
    let mut store = Store::create(dir, header(), false).unwrap();
    let others = records(50, 100).into_iter().filter(|r| !matches!(r, Record::Process(_)));
    others.for_each(|record| store.append(record).unwrap());
    store.close(|_| ()).unwrap();
    fs::remove_file(dir.join("process.parquet")).unwrap();
}

#[test]
fn a_recording_from_before_processes_is_whole_and_has_none() {
    let temp = tempfile::tempdir().unwrap();
    without_processes(temp.path());
    let read = All::read(temp.path()).unwrap();
    assert!(!read.fast.is_empty() && read.process.is_empty());
    let before = names(temp.path());
    assert!(recover(temp.path()).unwrap().nothing_to_do);
    assert_eq!(names(temp.path()), before);
}

#[test]
fn a_recording_that_should_have_processes_and_has_no_table_is_damaged() {
    let temp = tempfile::tempdir().unwrap();
    without_processes(temp.path());
    let path = temp.path().join("recording.json");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("\"power_instant\"", "\"power_instant\", \"process\"")).unwrap();
    assert!(All::read(temp.path()).unwrap_err().to_string().contains("process.parquet"));
    assert!(!recover(temp.path()).unwrap().nothing_to_do);
    assert!(Reader::open(temp.path()).unwrap().header().damage[0].contains("process"));
}

#[test]
fn each_hour_is_a_part() {
    let temp = tempfile::tempdir().unwrap();
    let mut store = Store::create(temp.path(), header(), false).unwrap().without_sync();
    // 2.5 h at one row in 5 s, the ring fetched in lumps that reach back over the hour's end.
    let mut all = Vec::new();
    for i in 0..1800_i64 {
        all.push(Record::Fast(fast(i * 5_000_000 + 7, i as i32)));
        if i % 10 == 1 {
            all.extend((0..10).map(|k| {
                let mono_us = (i - 9 + k) * 5_000_000;
                Record::Ring(RingRow { gpu: 0, time: WallUs(mono_us), mono_us, power_mw: 5 })
            }));
        }
    }
    for record in all.iter().cloned() {
        store.append(record).unwrap();
    }
    // Parts are there before the end.
    assert!(temp.path().join("fast.0001.parquet").exists());
    store.close(|_| ()).unwrap();
    let parts: Vec<_> = names(temp.path()).into_iter().filter(|n| n.starts_with("fast")).collect();
    assert_eq!(parts, ["fast.0001.parquet", "fast.0002.parquet", "fast.parquet"]);
    assert_eq!(All::read(temp.path()).unwrap(), All::of(&all));

    let file = fs::File::open(temp.path().join("fast.0001.parquet")).unwrap();
    let footer = SerializedFileReader::new(file).unwrap();
    assert_eq!(footer.metadata().file_metadata().num_rows(), 720);
    assert_eq!(footer.metadata().num_row_groups(), 60);
    let expected_reads: Vec<_> = Reader::open(temp.path()).unwrap().batches::<FastRow>().collect();
    assert_eq!(expected_reads.len(), 150, "one row group at a time");
}

#[test]
fn files_say_what_they_are_and_how_they_are_encoded() {
    let temp = tempfile::tempdir().unwrap();
    let mut store = Store::create(temp.path(), header(), false).unwrap();
    for record in records(700, 100) {
        store.append(record).unwrap();
    }
    store.close(|_| ()).unwrap();
    for lane in Lane::ALL {
        let path = temp.path().join(format!("{}.parquet", lane.name()));
        let reader = SerializedFileReader::new(fs::File::open(path).unwrap()).unwrap();
        let file = reader.metadata().file_metadata();
        let value = |key: &str| {
            let all = file.key_value_metadata().unwrap();
            all.iter().find(|kv| kv.key == key).unwrap().value.clone().unwrap()
        };
        assert_eq!(value("gpumon.version"), "0.1.0");
        assert_eq!(value("gpumon.schema"), SCHEMA_VERSION.to_string());
        assert_eq!(value("gpumon.simulated"), "true");
        assert_eq!(value("gpumon.table"), lane.name());
        assert_eq!(value("gpumon.segments"), "0-0");
        assert!(value("gpumon.recording").contains("GPU-1"));
        let group = reader.metadata().row_group(0);
        let mono = group.columns().iter().find(|c| c.column_path().string() == "mono_us").unwrap();
        assert!(mono.encodings().any(|e| e == Encoding::DELTA_BINARY_PACKED));
        assert!(mono.dictionary_page_offset().is_none());
        assert!(mono.offset_index_offset().is_some(), "the page index survives joining");
        assert_eq!(group.sorting_columns().unwrap().len(), if lane == Lane::Events { 1 } else { 2 });
    }
}

/// Pseudo-random numbers that are the same in every run.
fn noise(state: &mut u64) -> i64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as i64
}

/// A minute at 1 kHz: 20 µs of jitter (two-sided, near normal), a new power value 10 times a second.
fn realistic(gpus: i32, mut each: impl FnMut(FastRow)) {
    let (mut seed, mut power, mut mhz) = (1, vec![400_000_i32; gpus as usize], 1980);
    for tick in 0..60_000_i64 {
        if tick % 7_000 == 0 {
            mhz = 1980 - 15 * (noise(&mut seed) % 8) as i32;
        }
        for gpu in 0..gpus {
            let changes = (tick + i64::from(gpu) * 37) % 100 == 0;
            if changes {
                power[gpu as usize] = 400_000 + (noise(&mut seed) % 100_000) as i32;
            }
            let jitter = 55 + (0..4).map(|_| noise(&mut seed) % 35).sum::<i64>() - 68;
            let lateness_us = jitter.max(0) as i32;
            each(FastRow {
                gpu,
                mono_us: tick * 1_000 + i64::from(lateness_us) + i64::from(gpu) * 4,
                lateness_us,
                power_instant_mw: Some(power[gpu as usize]),
                power_average_mw: Some(power[gpu as usize] / 10 * 10),
                sm_mhz: Some(mhz),
                fresh: changes,
            });
        }
    }
}

#[test]
fn a_fast_row_costs_at_most_four_bytes() {
    for gpus in [1, 4, 8] {
        let temp = tempfile::tempdir().unwrap();
        let mut store = Store::create(temp.path(), header(), false).unwrap().without_sync();
        realistic(gpus, |row| store.append(Record::Fast(row)).unwrap());
        let rows = store.close(|_| ()).unwrap().rows[Lane::Fast];
        let bytes = fs::metadata(temp.path().join("fast.parquet")).unwrap().len();
        let per_row = bytes as f64 / rows as f64;
        println!("{gpus} GPUs: {per_row:.2} bytes per fast row");
        assert!(per_row <= 4.0, "{gpus} GPUs: {per_row} bytes per row");
    }
}

/// A measurement: `cargo test --release -p gpumon-monitor -- --ignored --nocapture simulated_day`.
#[test]
#[ignore = "takes a minute"]
fn a_simulated_day_is_stored_in_less_than_two_minutes() {
    let temp = tempfile::tempdir().unwrap();
    let begin = Instant::now();
    let mut store = Store::create(temp.path(), header(), false).unwrap();
    for tick in 0..34_560_000_i64 {
        let mono_us = tick * 2_500 + tick % 37;
        store.append(Record::Fast(fast(mono_us, (tick / 40 * 7919 % 100_000) as i32))).unwrap();
        if tick % 2 == 0 {
            let row = RingRow { gpu: 0, time: WallUs(mono_us), mono_us, power_mw: (tick % 1000) as i32 };
            store.append(Record::Ring(row)).unwrap();
        }
        if tick % 400 == 0 {
            store.flush().unwrap();
        }
    }
    let written = begin.elapsed();
    store.close(|_| ()).unwrap();
    let closed = begin.elapsed();
    let count: usize =
        Reader::open(temp.path()).unwrap().batches::<FastRow>().map(|b| b.unwrap().len()).sum();
    println!(
        "written {written:?} ({:.0} ns a row), closed {closed:?}, read {count} rows by {:?}",
        written.as_secs_f64() / 51.84e6 * 1e9,
        begin.elapsed()
    );
    assert_eq!(count, 34_560_000);
    assert!(closed.as_secs() < 120);
}

#[test]
fn names_that_are_taken_are_refused_or_replaced() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("run");
    let mut store = Store::create(&dir, header(), false).unwrap();
    store.append(Record::Fast(fast(1, 1))).unwrap();
    let busy = Store::create(&dir, header(), true).err().unwrap();
    assert!(matches!(busy, StoreError::Busy { pid: Some(pid), .. } if pid == std::process::id()));
    store.close(|_| ()).unwrap();
    fs::write(dir.join("notes.txt"), "mine").unwrap();

    let error = Store::create(&dir, header(), false).err().unwrap();
    assert!(matches!(error, StoreError::Exists { .. }));
    assert!(error.to_string().contains("--force"), "{error}");
    assert_eq!(All::read(&dir).unwrap().fast.len(), 1);

    Store::create(&dir, header(), true).unwrap().close(|_| ()).unwrap();
    assert_eq!(All::read(&dir).unwrap(), All::default());
    assert_eq!(fs::read_to_string(dir.join("notes.txt")).unwrap(), "mine");
}

#[test]
fn what_is_not_a_recording_is_left_alone() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("file");
    fs::write(&file, "text").unwrap();
    let folder = temp.path().join("folder");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("thesis.tex"), "text").unwrap();
    for path in [&file, &folder] {
        for overwrite in [false, true] {
            let error = Store::create(path, header(), overwrite).err().unwrap();
            assert!(matches!(error, StoreError::NotARecording { .. }), "{error}");
        }
        assert!(matches!(Reader::open(path), Err(StoreError::NotARecording { .. })));
        assert!(matches!(recover(path), Err(StoreError::NotARecording { .. })));
    }
    assert_eq!(names(&folder), ["thesis.tex"]);
    let missing = temp.path().join("missing");
    assert!(matches!(Reader::open(&missing), Err(StoreError::Io { .. })));
    assert!(Store::create(&file.join("run"), header(), false).is_err(), "a file cannot hold a folder");
}

#[test]
fn times_at_the_ends_of_the_range_do_no_harm() {
    let temp = tempfile::tempdir().unwrap();
    let mut store = Store::create(temp.path(), header(), false).unwrap();
    let times = [0, i64::MIN, i64::MAX, -5, i64::MAX, 7];
    for mono_us in times {
        store.append(EventRow::new(mono_us, None, EventKind::Mark).into()).unwrap();
    }
    store.close(|_| ()).unwrap();
    let read: Vec<_> = All::read(temp.path()).unwrap().events.iter().map(|e| e.mono_us).collect();
    assert_eq!(read, [i64::MIN, -5, 0, 7, i64::MAX, i64::MAX]);
}
