mod crash;
mod damage;
mod full;
mod live;
mod roundtrip;

use std::fs;
use std::path::Path;

use gpumon_core::header::{Gpu, Header, SCHEMA_VERSION, State};
use gpumon_core::rows::{CounterRow, EventKind, EventRow, FastRow, ProcessRow, Record, RingRow, SlowRow};
use gpumon_core::units::{Milliwatts, WallUs};

use super::writer::Limits;
use super::{Reader, Row, StoreError};

/// Small steps, so that a short recording passes through every state.
const SMALL: Limits = Limits { segment_us: 1_000, part_us: 3_000, rows: 40 };

fn header() -> Header {
    Header {
        schema: SCHEMA_VERSION,
        gpumon: "0.1.0".into(),
        simulated: true,
        state: State::Recording,
        host: "host".into(),
        command: vec!["gpumon".into(), "record".into()],
        start_wall_us: WallUs(1_700_000_000_000_000),
        duration_us: None,
        rate_hz: 1000.0,
        gpus: vec![Gpu {
            uuid: "GPU-1".into(),
            name: "Simulated".into(),
            pci_id: "0000:01:00.0".into(),
            driver: "580.1".into(),
            power_limit_mw: Some(Milliwatts(700_000)),
            mem_total_bytes: Some(1 << 37),
            power_scope: None,
            sensors: vec!["power_instant".into()],
            unsupported: vec![],
            mig_instances: vec![],
            characterisation: None,
        }],
        own_cost: None,
        damage: Vec::new(),
    }
}

fn fast(mono_us: i64, power_mw: i32) -> FastRow {
    FastRow {
        gpu: 0,
        mono_us,
        lateness_us: (mono_us % 50) as i32,
        power_instant_mw: Some(power_mw),
        power_average_mw: None,
        sm_mhz: Some(1980),
        fresh: power_mw % 2 == 0,
    }
}

fn slow(mono_us: i64) -> SlowRow {
    SlowRow {
        gpu: 0,
        mono_us,
        mem_mhz: Some(2619),
        temp_c: Some(40),
        mem_temp_c: None,
        util_gpu_pct: Some(99),
        util_mem_pct: Some(20),
        mem_used_bytes: Some(1 << 34),
        pstate: Some(0),
        event_reasons: Some(1 << 40),
        fan_pct: None,
        mem_power_mw: None,
        sm_util_pct: Some(12.5),
        sm_occupancy_pct: None,
        tensor_util_pct: None,
        dram_util_pct: None,
        pcie_tx_mib_per_s: Some(0.1),
        pcie_rx_mib_per_s: None,
    }
}

fn process(mono_us: i64, pid: i32) -> ProcessRow {
    ProcessRow {
        gpu: 0,
        mono_us,
        pid,
        name: (pid % 2 == 0).then(|| format!("process {pid}")),
        mig_instance: None,
        sm_util_pct: Some(12.5),
        mem_util_pct: None,
        mem_used_bytes: Some(1 << 30),
    }
}

/// Records of all lanes, `step_us` apart.
fn records(count: i64, step_us: i64) -> Vec<Record> {
    (0..count)
        .map(|i| {
            let mono_us = i * step_us;
            match i % 7 {
                0..3 => Record::Fast(fast(mono_us, i as i32)),
                3 => Record::Ring(RingRow { gpu: 0, time: WallUs(mono_us + 5), mono_us, power_mw: i as i32 }),
                4 if i % 2 == 0 => Record::Process(Box::new(process(mono_us, i as i32))),
                4 => Record::Slow(Box::new(slow(mono_us))),
                5 => {
                    Record::Counter(CounterRow { gpu: 0, mono_us, call_us: 80, energy_mj: i * 700, epoch: 0 })
                }
                _ => EventRow {
                    name: Some(format!("mark {i}")),
                    ..EventRow::new(mono_us, None, EventKind::Mark)
                }
                .into(),
            }
        })
        .collect()
}

/// The rows of all lanes.
#[derive(Clone, Debug, Default, PartialEq)]
struct All {
    fast: Vec<FastRow>,
    ring: Vec<RingRow>,
    slow: Vec<SlowRow>,
    counter: Vec<CounterRow>,
    events: Vec<EventRow>,
    process: Vec<ProcessRow>,
}

impl All {
    /// The rows as a recording gives them back.
    fn of(records: &[Record]) -> Self {
        let mut all = Self::default();
        for record in records.iter().cloned() {
            match record {
                Record::Fast(row) => all.fast.push(row),
                Record::Ring(row) => all.ring.push(row),
                Record::Slow(row) => all.slow.push(*row),
                Record::Counter(row) => all.counter.push(row),
                Record::Event(row) => all.events.push(*row),
                Record::Process(row) => all.process.push(*row),
            }
        }
        all.fast.sort_by_key(|row| (row.mono_us, row.gpu));
        all.ring.sort_by_key(|row| (row.mono_us, row.gpu));
        all.slow.sort_by_key(|row| (row.mono_us, row.gpu));
        all.counter.sort_by_key(|row| (row.mono_us, row.gpu));
        all.events.sort_by_key(|row| row.mono_us);
        all.process.sort_by_key(|row| (row.mono_us, row.gpu));
        all
    }

    fn read(dir: &Path) -> Result<Self, StoreError> {
        let reader = Reader::open(dir)?;
        Ok(Self {
            fast: rows(&reader)?,
            ring: rows(&reader)?,
            slow: rows(&reader)?,
            counter: rows(&reader)?,
            events: rows(&reader)?,
            process: rows(&reader)?,
        })
    }

    fn starts_with(&self, other: &Self) -> bool {
        self.fast.starts_with(&other.fast)
            && self.ring.starts_with(&other.ring)
            && self.slow.starts_with(&other.slow)
            && self.counter.starts_with(&other.counter)
            && self.events.starts_with(&other.events)
            && self.process.starts_with(&other.process)
    }
}

fn rows<R: Row>(reader: &Reader) -> Result<Vec<R>, StoreError> {
    let batches: Vec<Vec<R>> = reader.batches::<R>().collect::<Result<_, _>>()?;
    assert!(batches.iter().all(|batch| !batch.is_empty()));
    Ok(batches.into_iter().flatten().collect())
}

/// A copy that nobody has locked, as after the end of the writing process.
fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy_dir(&path, &target);
        } else if path.ends_with("reserve") {
            fs::write(target, b"reserve").unwrap();
        } else {
            fs::copy(&path, target).unwrap();
        }
    }
}

/// Names of all files below a folder.
fn names(dir: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            names.push(format!("{}/", path.file_name().unwrap().to_str().unwrap()));
            names.extend(self::names(&path));
        } else {
            names.push(path.file_name().unwrap().to_str().unwrap().to_owned());
        }
    }
    names.sort();
    names
}

const CLOSED: [&str; 7] = [
    "counter.parquet",
    "events.parquet",
    "fast.parquet",
    "process.parquet",
    "recording.json",
    "ring.parquet",
    "slow.parquet",
];
