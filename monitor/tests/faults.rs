//! What lanes make of a GPU that misbehaves: a simulated GPU behind a wrapper that spoils its answers.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is a test's report, in its helpers too")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use gpumon_core::clock::{Clock, VirtualClock};
use gpumon_core::rows::{EventKind, EventRow, FastRow, Record, RingRow, SlowRow};
use gpumon_core::units::{Megahertz, Millijoules, Milliwatts, MonoUs, WallUs};
use gpumon_monitor::device::{self, Activity, Device, Identity, Power, PowerSample, ReadError, SlowSensor};
use gpumon_monitor::lane::Outbox;
use gpumon_monitor::record::{Config, Session};

const SECOND: i64 = 1_000_000;

/// A spoiled answer, from one time to another (µs since the recording's start, roughly).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    PowerFails,
    PowerGarbage,
    Lost,
    LostForAWhile,
    RingUnread,
    CounterResets,
    SlowFails,
}

struct Faulty {
    inner: Arc<dyn Device>,
    clock: Arc<VirtualClock>,
    fault: Fault,
    from: MonoUs,
    to: MonoUs,
    slow_calls: AtomicU32,
}

impl Faulty {
    fn is_lost(&self) -> bool {
        self.now(Fault::Lost) || self.now(Fault::LostForAWhile)
    }

    fn now(&self, fault: Fault) -> bool {
        self.fault == fault && (self.from..self.to).contains(&self.clock.mono())
    }
}

impl Device for Faulty {
    fn identity(&self) -> &Identity {
        self.inner.identity()
    }
    fn power(&self) -> Result<Power, ReadError> {
        if self.is_lost() {
            return Err(ReadError::Lost("it fell off the bus".into()));
        }
        if self.now(Fault::PowerFails) {
            return Err(ReadError::Transient("unknown error".into()));
        }
        let power = self.inner.power()?;
        let garbage = Some(Milliwatts(4_000_000));
        Ok(if self.now(Fault::PowerGarbage) { Power { instant: garbage, ..power } } else { power })
    }
    fn sm_clock(&self) -> Result<Megahertz, ReadError> {
        self.inner.sm_clock()
    }
    fn power_samples(&self, newer_than: WallUs, into: &mut Vec<PowerSample>) -> Result<(), ReadError> {
        if self.is_lost() {
            return Err(ReadError::Lost("it fell off the bus".into()));
        }
        if self.now(Fault::RingUnread) {
            return Err(ReadError::Transient("busy".into()));
        }
        self.inner.power_samples(newer_than, into)
    }
    fn energy_counter(&self) -> Result<Millijoules, ReadError> {
        let energy = self.inner.energy_counter()?;
        Ok(if self.now(Fault::CounterResets) { Millijoules(17) } else { energy })
    }
    fn slow(&self, sensor: SlowSensor) -> Result<i64, ReadError> {
        if sensor == SlowSensor::Fan {
            self.slow_calls.fetch_add(1, Ordering::Relaxed);
        }
        match sensor {
            _ if self.is_lost() => Err(ReadError::Lost("it fell off the bus".into())),
            SlowSensor::Temperature if self.now(Fault::SlowFails) => Err(ReadError::Transient("no".into())),
            _ => self.inner.slow(sensor),
        }
    }
    fn activity(&self) -> Result<Activity, ReadError> {
        self.inner.activity()
    }
    fn can_return(&self) -> bool {
        self.fault == Fault::LostForAWhile
    }
    fn attach_again(&self) -> Result<(), ReadError> {
        if self.is_lost() { Err(ReadError::Lost("it fell off the bus".into())) } else { Ok(()) }
    }
}

#[derive(Default)]
struct Rows {
    fast: Vec<FastRow>,
    ring: Vec<RingRow>,
    slow: Vec<SlowRow>,
    events: Vec<EventRow>,
    /// GPU and epoch of each counter reading.
    epochs: Vec<(i32, i32)>,
    /// Steps the wall clock by this many µs once a fast row at or after this time comes by.
    step: Option<(Arc<VirtualClock>, i64, i64)>,
}

impl Outbox for Rows {
    fn put(&mut self, record: Record) {
        match record {
            Record::Fast(r) => {
                if let Some((clock, _, by_us)) = self.step.take_if(|(_, at_us, _)| r.mono_us >= *at_us) {
                    clock.step_wall_us(by_us);
                }
                self.fast.push(r);
            }
            Record::Ring(r) => self.ring.push(r),
            Record::Slow(r) => self.slow.push(*r),
            Record::Counter(r) => self.epochs.push((r.gpu, r.epoch)),
            Record::Event(r) => self.events.push(*r),
            Record::Process(_) => {}
        }
    }
}

/// Twenty seconds of two GPUs, the first of which misbehaves from 5 s to 9 s.
fn record(fault: Fault, step_wall_us: Option<i64>) -> (Rows, u32) {
    let clock = Arc::new(VirtualClock::new(WallUs(1_800_000_000_000_000)));
    let open = || device::open("sim:h200", clock.clone()).unwrap().remove(0);
    let start = clock.mono().plus_us(100_000);
    // The counter is read at 10 s, so its fault has to be there then.
    let from_s = if fault == Fault::CounterResets { 8 } else { 5 };
    let faulty = Arc::new(Faulty {
        inner: open(),
        clock: clock.clone(),
        fault,
        from: start.plus_us(from_s * SECOND),
        to: start.plus_us((from_s + 4) * SECOND),
        slow_calls: AtomicU32::new(0),
    });
    let devices: Vec<Arc<dyn Device>> = vec![faulty.clone(), open()];
    let config = Config { rate_hz: 10.0, command: vec![], host: "test".into() };
    let mut session = Session::prepare(&devices, clock.as_ref(), &config).unwrap();
    let mut rows = Rows { step: step_wall_us.map(|by| (clock.clone(), 7 * SECOND, by)), ..Rows::default() };
    session.simulate(&clock, 20 * SECOND, &mut rows);
    let of_first =
        |kind: EventKind| rows.events.iter().filter(|e| e.kind == kind && e.gpu == Some(1)).count();
    if step_wall_us.is_none() {
        assert_eq!(rows.fast.iter().filter(|r| r.gpu == 1).count(), 200, "the other GPU goes on");
        assert_eq!(of_first(EventKind::ReadFailed), 0);
    }
    (rows, faulty.slow_calls.load(Ordering::Relaxed))
}

fn events(rows: &Rows, kind: EventKind) -> Vec<&EventRow> {
    rows.events.iter().filter(|e| e.kind == kind).collect()
}

#[test]
fn a_healthy_gpu_makes_no_events() {
    let (rows, fan_calls) = record(Fault::None, None);
    assert!(rows.events.is_empty(), "{:?}", rows.events);
    assert_eq!(fan_calls, 1, "an unsupported sensor is asked once");
}

#[test]
fn failed_readings_are_null_and_one_event_with_its_span() {
    let (rows, _) = record(Fault::PowerFails, None);
    let null = rows.fast.iter().filter(|r| r.gpu == 0 && r.power_instant_mw.is_none()).count();
    assert_eq!(null, 40);
    assert!(rows.fast.iter().filter(|r| r.gpu == 0).all(|r| r.sm_mhz.is_some()), "the clock was readable");
    let failed = events(&rows, EventKind::ReadFailed);
    assert_eq!(failed.len(), 1);
    assert_eq!(failed[0].count, Some(40));
    assert_eq!(failed[0].detail.as_deref(), Some("unknown error"));
    assert_eq!((failed[0].from_us, failed[0].to_us), (Some(5 * SECOND), Some(8_900_000)));
}

#[test]
fn garbage_is_null_and_counted() {
    let (rows, _) = record(Fault::PowerGarbage, None);
    assert!(rows.fast.iter().all(|r| r.power_instant_mw.is_none_or(|mw| mw < 2_100_000)));
    let odd = events(&rows, EventKind::Implausible);
    assert_eq!((odd.len(), odd[0].count), (1, Some(40)));
}

#[test]
fn one_slow_sensor_failing_leaves_the_others() {
    let (rows, _) = record(Fault::SlowFails, None);
    let failing: Vec<_> = rows.slow.iter().filter(|r| r.gpu == 0 && r.temp_c.is_none()).collect();
    assert!(failing.len() >= 38);
    assert!(failing.iter().all(|r| r.mem_mhz.is_some() && r.pstate.is_some()));
    assert_eq!(events(&rows, EventKind::ReadFailed).len(), 1);
}

#[test]
fn a_lost_gpu_ends_its_own_lanes_only() {
    let (rows, _) = record(Fault::Lost, None);
    let lost = events(&rows, EventKind::GpuLost);
    assert_eq!(lost.len(), 1);
    assert!(lost[0].detail.as_deref().unwrap().contains("fell off the bus"));
    assert!(rows.fast.iter().filter(|r| r.gpu == 0).all(|r| r.mono_us < 5 * SECOND));
    assert!(rows.ring.iter().filter(|r| r.gpu == 0).all(|r| r.mono_us < 6 * SECOND));
}

#[test]
fn a_gpu_that_comes_back_is_read_on_and_the_gap_has_its_span() {
    let (rows, _) = record(Fault::LostForAWhile, None);
    assert_eq!(events(&rows, EventKind::GpuLost).len(), 1, "{:?}", rows.events);
    let gaps = events(&rows, EventKind::Gap);
    assert_eq!(gaps.len(), 1, "{:?}", rows.events);
    let (from, to) = (gaps[0].from_us.unwrap(), gaps[0].to_us.unwrap());
    assert!((5 * SECOND..=5_100_000).contains(&from) && (9 * SECOND..=10 * SECOND).contains(&to), "{gaps:?}");
    let fast: Vec<i64> = rows.fast.iter().filter(|r| r.gpu == 0).map(|r| r.mono_us).collect();
    assert_eq!(fast.len() as i64 + gaps[0].count.unwrap(), 200, "each tick is a row or in the gap");
    assert!(fast.iter().all(|at| *at < from || *at >= to));
    assert!(fast.windows(2).all(|w| w[0] < w[1]) && *fast.last().unwrap() > 19 * SECOND);
    for gpu_rows in [
        rows.ring.iter().filter(|r| r.gpu == 0).map(|r| r.mono_us).max(),
        rows.slow.iter().filter(|r| r.gpu == 0 && r.temp_c.is_some()).map(|r| r.mono_us).max(),
    ] {
        assert!(gpu_rows.unwrap() > 19 * SECOND, "all lanes go on");
    }
    assert_eq!(events(&rows, EventKind::RingLost).len(), 1, "the ring holds less than four seconds");
}

#[test]
fn overwritten_ring_readings_are_an_event() {
    // Four seconds without a drain: the ring holds 2.4 s.
    let (rows, _) = record(Fault::RingUnread, None);
    let lost = events(&rows, EventKind::RingLost);
    assert_eq!(lost.len(), 1, "{:?}", rows.events);
    let (from, to) = (lost[0].from_us.unwrap(), lost[0].to_us.unwrap());
    assert!(from < 5 * SECOND && to > 6 * SECOND, "{from} to {to}");
    let between = rows.ring.iter().filter(|r| r.gpu == 0 && r.mono_us > from && r.mono_us < to).count();
    assert_eq!(between, 0, "the span that the event names is the span without readings");
}

#[test]
fn a_counter_that_jumps_begins_an_epoch() {
    let (rows, _) = record(Fault::CounterResets, None);
    // Read at 0, 10 and 20 s and at the end: at 10 s it is near zero, at 20 s far above what was drawn.
    assert_eq!(events(&rows, EventKind::CounterReset).len(), 2, "{:?}", rows.events);
    assert_eq!(rows.epochs, [(0, 0), (1, 0), (0, 1), (1, 0), (0, 2), (1, 0)]);
}

#[test]
fn a_stepped_wall_clock_neither_loses_nor_doubles_readings() {
    for by_us in [-3_600 * SECOND, 3_600 * SECOND, -30_000, 30_000] {
        let (rows, _) = record(Fault::None, Some(by_us));
        let steps = events(&rows, EventKind::ClockStep);
        assert_eq!(steps.len(), 2, "one a GPU: {:?}", rows.events);
        assert!((steps[0].count.unwrap() - by_us).abs() < 1_000);
        for gpu in [0, 1] {
            let times: Vec<i64> = rows.ring.iter().filter(|r| r.gpu == gpu).map(|r| r.mono_us).collect();
            assert!(times.windows(2).all(|w| w[0] < w[1]), "in order, each once ({by_us})");
            assert!((995..=1001).contains(&times.len()), "{} readings ({by_us})", times.len());
            assert!(times.windows(2).all(|w| w[1] - w[0] < 60_000), "no gap ({by_us})");
        }
    }
}
