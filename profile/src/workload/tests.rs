//! The same checks of every kind of workload, and workers that do what they should not.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use gpumon_core::clock::{RealClock, VirtualClock};
use gpumon_core::share::Share;
use gpumon_core::units::{Megahertz, WallUs};
use gpumon_monitor::device::sim::named;
use gpumon_simgpu::SimModel;

use super::command::{Commanded, Timeouts};
use super::*;

const REFERENCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/reference_worker.py");

/// What the workers of these tests begin with. Their last argument marks them.
const BEGINNING: &str = r#"
import json, os, signal, sys, time
def say(**answer):
    print(json.dumps(answer), flush=True)
def ask():
    line = sys.stdin.readline()
    if not line:
        sys.exit()
    return json.loads(line)["op"]
def until(op):
    asked = ask()
    while asked != op:
        say()
        asked = ask()
"#;
const HELLO: &str = "say(version=1, name='odd', ops=[])\n";

fn point(batch: u32) -> Point {
    Point { share: Share::Mps(50), batch, clock: Megahertz(900), limit_w: None }
}

fn seat() -> Seat {
    Seat { share: Share::Mps(50), env: vec![("SEAT_OF_TEST".into(), "here".into())] }
}

/// A worker that Python runs, and what marks its processes.
fn worker(script: &str) -> (Commanded, String) {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let mark = format!("mark-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::SeqCst));
    let argv = ["python3", "-c", &format!("{BEGINNING}{script}"), &mark].map(str::to_owned);
    let short = Duration::from_millis(1_500);
    let timeouts = Timeouts { hello: 20 * short, answer: short, last_batch: short, quit: short };
    let worker = Commanded::new("odd", argv.to_vec(), Arc::new(RealClock)).with_timeouts(timeouts);
    (worker, mark)
}

/// Processes with this argument.
fn running(mark: &str) -> usize {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|process| std::fs::read(process.path().join("cmdline")).ok());
    lines.filter(|line| line.split(|b| *b == 0).any(|argument| argument == mark.as_bytes())).count()
}

fn run_once(workload: &mut dyn Workload, limit_us: i64) -> Result<Vec<f64>, WorkloadError> {
    workload.run(limit_us, 20_000, &mut |_| ControlFlow::Continue(()))
}

fn failed<T: std::fmt::Debug>(result: Result<T, WorkloadError>) -> String {
    match result {
        Err(WorkloadError::Failed(why)) => why,
        other => panic!("`failed` was expected, not {other:?}"),
    }
}

/// What every workload has to do.
fn passes_the_same_checks(workload: &mut dyn Workload, name: &str, clock: &dyn Clock) {
    let seat = seat();
    assert_eq!(workload.name(), name);
    failed(workload.run_batch());
    failed(run_once(workload, 1_000));
    workload.prepare(std::slice::from_ref(&seat)).unwrap();
    workload.unload().unwrap();
    for round in 0..2 {
        workload.load(&point(4), &seat).unwrap();
        assert!(workload.memory_bytes() > Some(0), "{name}, round {round}");
        let one_ms = workload.run_batch().unwrap();
        let (before, mut told) = (clock.mono(), Vec::new());
        let times = workload.run(300_000, 50_000, &mut |times| {
            told.push(times.to_vec());
            ControlFlow::Continue(())
        });
        let (times, took_ms) = (times.unwrap(), clock.mono().since_us(before) as f64 / 1e3);
        assert!(!told.is_empty() && told.iter().all(|told| times.starts_with(told)), "{name}");
        assert!(one_ms > 0.0 && times.iter().all(|ms| *ms > 0.0 && ms.is_finite()), "{name}");
        assert!(times.iter().sum::<f64>() < took_ms + 1.0, "{name}: {times:?} in {took_ms} ms");
        let mut ticks = 0;
        let times = workload.run(3_600_000_000, 50_000, &mut |_| {
            ticks += 1;
            ControlFlow::Break(())
        });
        assert!(!times.unwrap().is_empty() && ticks == 1, "{name}: it stops when it is told to");
        assert!(!run_once(workload, 1).unwrap().is_empty(), "{name}: one batch is run at least");
        workload.load(&point(2), &seat).unwrap();
        workload.run_batch().unwrap();
        workload.unload().unwrap();
        assert_eq!(workload.memory_bytes(), None, "{name}");
        failed(workload.run_batch());
        workload.idle(&seat, round == 0).unwrap();
        failed(run_once(workload, 1_000));
    }
    workload.load(&point(1), &seat).unwrap();
    workload.quit().unwrap();
    assert_eq!(workload.memory_bytes(), None, "{name}");
    failed(workload.run_batch());
    workload.quit().unwrap();
}

#[test]
fn every_kind_of_workload_passes_the_same_checks() {
    let clock: Arc<dyn Clock> = Arc::new(VirtualClock::new(WallUs(1_700_000_000_000_000)));
    let device = named("a100", &clock).unwrap().remove(0);
    let context = Context { clock: clock.clone(), sim: Some(device), python: None, native: None };
    for model in SimModel::builtins() {
        let mut workload = of_model(model.name(), None, &context).unwrap();
        passes_the_same_checks(workload.as_mut(), model.name(), clock.as_ref());
    }
    let context = Context { clock: Arc::new(RealClock), sim: None, python: None, native: None };
    let argv = ["python3", REFERENCE, "--ms-per-item", "1"].map(str::to_owned);
    let mut workload = of_model("mine", Some(&argv), &context).unwrap();
    passes_the_same_checks(workload.as_mut(), "mine", &RealClock);
}

#[test]
fn a_batch_that_does_not_fit_spoils_its_point_only() {
    let argv = ["python3", REFERENCE, "--max-batch", "8"].map(str::to_owned).to_vec();
    let mut workload = Commanded::new("mine", argv, Arc::new(RealClock));
    let error = workload.load(&point(9), &seat()).unwrap_err();
    assert_eq!(error, WorkloadError::DoesNotFit("a batch of 9, 8 is the most".into()));
    failed(workload.run_batch());
    workload.load(&point(8), &seat()).unwrap();
    workload.run_batch().unwrap();
}

#[test]
fn its_process_has_the_variables_of_its_seat() {
    let (mut workload, _) = worker(
        "say(version=1)\nask()\nsay(error={'kind': 'failed', 'message': os.environ['SEAT_OF_TEST']})\nask()",
    );
    assert_eq!(failed(workload.load(&point(1), &seat())), "here");
}

#[test]
fn a_worker_without_green_contexts_is_not_given_one() {
    let (mut workload, mark) = worker("say(version=1); time.sleep(60)");
    let seat = Seat { share: Share::Green { sms: 16, of: 108 }, ..seat() };
    let error = workload.load(&Point { share: seat.share, ..point(1) }, &seat).unwrap_err();
    assert!(matches!(&error, WorkloadError::Lost(why) if why.contains("makes no green contexts")), "{error}");
    assert_eq!(running(&mark), 0);
    let (mut workload, _) = worker("say(version=1, green=True)\nask()\nsay(note='x' * 300)\nask()");
    workload.load(&Point { share: seat.share, ..point(1) }, &seat).unwrap();
    assert_eq!(workload.note().map(str::len), Some(200));
}

#[test]
fn workers_that_say_no_hello_are_explained_and_leave_nothing() {
    for (script, says) in [
        ("sys.exit('no GPU\\nfor me')", "the worker ended with exit status: 1; it wrote: no GPU | for me"),
        ("print('Loading …', flush=True); time.sleep(60)", "gave no answer of the protocol: `Loading …`"),
        ("say(version=2); time.sleep(60)", "speaks version 2 of the protocol, and gpumon version 1"),
        ("say(name='x'); time.sleep(60)", "no hello with a `version`"),
        ("say(error={'kind': 'fatal', 'message': 'no torch'}); time.sleep(60)", "no torch"),
        ("sys.stdout.write('x' * 3_000_000); time.sleep(60)", "a line of more than 1048576 bytes"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "ended with signal: 11"),
    ] {
        let (mut workload, mark) = worker(script);
        let why = failed(workload.load(&point(1), &seat()));
        assert!(why.contains(says), "{script}: {why}");
        assert_eq!(running(&mark), 0, "{script}");
    }
    let argv = vec!["/no/such/worker".to_owned()];
    let mut absent = Commanded::new("absent", argv, Arc::new(RealClock));
    let why = failed(absent.load(&point(1), &seat()));
    assert!(why.contains("`/no/such/worker` cannot be started"), "{why}");
}

#[test]
fn a_worker_that_hangs_before_its_hello_is_killed_with_what_it_started() {
    let (workload, mark) = worker(
        "import subprocess\nsubprocess.Popen(['sh', '-c', 'sleep 60; :', sys.argv[1]])\ntime.sleep(60)",
    );
    let hello = Duration::from_millis(700);
    let mut workload = workload.with_timeouts(Timeouts { hello, ..Timeouts::default() });
    let why = failed(workload.prepare(&[seat()]));
    assert!(why.contains("did not answer `hello` within 0.7 s"), "{why}");
    assert_eq!(running(&mark), 0);
}

#[test]
fn what_a_worker_does_wrong_in_a_run_fails_the_run_and_the_next_load_starts_another() {
    for (wrong, says) in [
        ("sys.exit('out of luck')", "the worker ended with exit status: 1; it wrote: out of luck"),
        ("print('{\"batches_us\":[NaN]}', flush=True)", "gave no answer of the protocol"),
        ("say(batches_us=[100.0, -1.0])", "a batch of -1 µs"),
        ("say(batches_us=[0])", "a batch of 0 µs"),
        ("say(batches_us=[3.7e9])", "a batch of 3700000000 µs"),
        ("say(batches_us=[])\nsay(batches_us=[1e400])", "gave no answer of the protocol"),
        ("say(batches_us=[1.5] * 400_000)", "a line of more than 1048576 bytes"),
        ("say(error={'kind': 'fatal', 'message': 'CUDA is lost'})", "CUDA is lost"),
    ] {
        let (mut workload, mark) = worker(&format!("{HELLO}until('run')\n{wrong}\ntime.sleep(60)"));
        for _ in 0..2 {
            workload.load(&point(1), &seat()).unwrap();
            let why = failed(run_once(&mut workload, 30_000_000));
            assert!(why.contains(says), "{wrong}: {why}");
            assert_eq!(running(&mark), 0, "{wrong}");
            failed(run_once(&mut workload, 1_000));
        }
    }
}

#[test]
fn an_error_that_is_not_fatal_keeps_the_process() {
    let script = "until('run')\nsay(error={'kind': 'failed', 'message': 'once'})\nuntil('batch')\n\
                  say(batch_us=2000.0)\nuntil('batch')\nsay()\nask()";
    let (mut workload, mark) = worker(&format!("{HELLO}{script}"));
    workload.load(&point(1), &seat()).unwrap();
    assert_eq!(failed(run_once(&mut workload, 1_000_000)), "once");
    assert_eq!(running(&mark), 1);
    workload.load(&point(1), &seat()).unwrap();
    assert_eq!(workload.run_batch(), Ok(2.0));
    let why = failed(workload.run_batch());
    assert!(why.contains("without a time"), "{why}");
    drop(workload);
    assert_eq!(running(&mark), 0);
}

#[test]
fn a_run_that_heeds_no_stop_still_ends_or_is_killed() {
    let (mut workload, _) = worker(&format!(
        "{HELLO}until('run')\nfor _ in range(6):\n    time.sleep(0.05)\n    say(batches_us=[50000.0])\n\
         say(batches_us=[50000.0], done=True)\ntime.sleep(60)"
    ));
    workload.load(&point(1), &seat()).unwrap();
    let times = workload.run(30_000_000, 20_000, &mut |_| ControlFlow::Break(()));
    assert_eq!(times, Ok(vec![50.0; 7]));
    for on in ["say(batches_us=[50000.0])\n    time.sleep(0.05)", "time.sleep(0.05)"] {
        let (mut workload, mark) = worker(&format!("{HELLO}until('run')\nwhile True:\n    {on}"));
        workload.load(&point(1), &seat()).unwrap();
        let times = workload.run(3_000_000_000, 20_000, &mut |_| ControlFlow::Break(()));
        assert!(failed(times).contains("did not end its run"), "{on}");
        assert_eq!(running(&mark), 0);
    }
    let (mut workload, _) = worker(&format!("{HELLO}until('run')\nsay(done=True)\nask()"));
    workload.load(&point(1), &seat()).unwrap();
    assert_eq!(failed(run_once(&mut workload, 1_000)), "no batch ran");
}

#[test]
fn a_worker_that_ignores_quit_or_an_ask_is_killed() {
    let stubborn =
        format!("{HELLO}signal.signal(signal.SIGTERM, signal.SIG_IGN)\nuntil('quit')\ntime.sleep(60)");
    let (mut workload, mark) = worker(&stubborn);
    workload.load(&point(1), &seat()).unwrap();
    assert_eq!(running(&mark), 1);
    workload.quit().unwrap();
    assert_eq!(running(&mark), 0);
    workload.load(&point(1), &seat()).unwrap();
    drop(workload);
    assert_eq!(running(&mark), 0);
    let (mut workload, mark) = worker(&format!("{HELLO}ask()\ntime.sleep(60)"));
    let why = failed(workload.load(&point(1), &seat()));
    assert!(why.contains("did not answer `load` within 1.5 s"), "{why}");
    assert_eq!(running(&mark), 0);
}

#[test]
fn the_protocols_page_has_every_op_kind_and_limit() {
    let page = include_str!("../../../docs/worker-protocol.md");
    let table = |cell: &str| page.contains(&format!("\n| `{cell}` |"));
    for op in ["context", "load", "batch", "run", "stop", "memory", "unload", "quit"] {
        assert!(table(op), "{op}");
    }
    for kind in ["does_not_fit", "failed", "fatal"] {
        assert!(table(kind), "{kind}");
    }
    let Timeouts { hello, answer, last_batch, quit } = Timeouts::default();
    for text in [
        format!(
            "Hello comes within {} minutes, an answer within {} minutes",
            hello.as_secs() / 60,
            answer.as_secs() / 60
        ),
        format!("a run ends within {} minutes after", last_batch.as_secs() / 60),
        format!("a worker has {} seconds", quit.as_secs()),
        format!("the `version` of the protocol ({})", super::wire::VERSION),
    ] {
        assert!(page.contains(&text), "{text}");
    }
}
