//! Workloads of every kind pass the same checks, and a worker that breaks in any way costs its point and no more.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is a test's report, in its helpers too")]

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use gpumon_core::clock::{Clock, RealClock, VirtualClock};
use gpumon_core::share::Share;
use gpumon_core::units::{Megahertz, WallUs};
use gpumon_monitor::device::sim::named;
use gpumon_profile::space::Point;
use gpumon_profile::stage::Seat;
use gpumon_profile::workload::command::{Commanded, Patience};
use gpumon_profile::workload::{Context, Workload, WorkloadError, of_model, open, torch};

const QUICK: Patience = Patience {
    hello: Duration::from_secs(10),
    answer: Duration::from_secs(3),
    last_batch: Duration::from_secs(3),
};
const POINT: Point = Point { share: Share::Mps(29), batch: 4, clock: Megahertz(1410), limit_w: None };

fn seat(share: Share) -> Seat {
    Seat { share, env: vec![("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE".into(), "29".into())] }
}

fn reference(more: &[&str]) -> Commanded {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/reference_worker.py");
    let argv = ["python3", script].iter().chain(more).map(|word| (*word).to_owned()).collect();
    Commanded::new("reference", argv, Arc::new(RealClock))
}

/// A worker that is a few lines of Python. They can `say` and `read`, and begin with the hello said.
fn python(lines: &str) -> (Commanded, String) {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let mark = format!("gpumon-test-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::SeqCst));
    let script = format!(
        "import json, sys, time, signal\n\
         say = lambda **m: print(json.dumps(m), flush=True)\n\
         read = lambda: json.loads(sys.stdin.readline())\n{lines}\n"
    );
    let argv = ["python3".into(), "-c".into(), script, mark.clone()].to_vec();
    (Commanded::new("odd", argv, Arc::new(RealClock)).with_patience(QUICK), mark)
}

const HELLO: &str = "say(version=1)\n";
const LOADED: &str = "say(version=1); read(); say(memory_bytes=5)\n";

fn go(_: &[f64]) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Processes whose command line has this word.
fn alive(word: &str) -> Vec<PathBuf> {
    let has = |path: &PathBuf| {
        let line = std::fs::read(path.join("cmdline")).unwrap_or_default();
        line.split(|b| *b == 0).any(|part| part == word.as_bytes())
    };
    std::fs::read_dir("/proc").unwrap().filter_map(|entry| Some(entry.ok()?.path())).filter(has).collect()
}

fn passes_the_checks(workload: &mut dyn Workload, clock: &dyn Clock) {
    let seats = [seat(Share::Mps(29)), seat(Share::Mps(57))];
    assert!(matches!(workload.run_batch(), Err(WorkloadError::Failed(_))), "nothing is loaded");
    assert!(matches!(workload.run(1_000, 1_000, &mut go), Err(WorkloadError::Failed(_))));
    workload.prepare(&seats).unwrap();
    workload.fits(&POINT).unwrap();
    workload.load(&POINT, &seats[0]).unwrap();
    let one_ms = workload.run_batch().unwrap();
    assert!(one_ms > 0.0 && workload.memory_bytes() > Some(0));
    let (mut ticks, before) = (0, clock.mono());
    let times = workload
        .run(400_000, 50_000, &mut |so_far| {
            ticks += 1;
            assert!(so_far.iter().all(|ms| *ms > 0.0));
            ControlFlow::Continue(())
        })
        .unwrap();
    let took_ms = clock.mono().since_us(before) as f64 / 1e3;
    assert!(times.iter().sum::<f64>() <= took_ms + 1.0 && ticks >= 3, "{ticks} ticks in {took_ms} ms");
    let mut told = 0;
    let times = workload
        .run(60_000_000, 20_000, &mut |so_far| {
            told = so_far.len();
            if told > 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
    assert!(times.len() >= told && told > 0 && clock.mono().since_us(before) < 30_000_000, "it was stopped");
    // Another share, and back: one is loaded at a time.
    workload.load(&Point { share: Share::Mps(57), ..POINT }, &seats[1]).unwrap();
    assert!(workload.run_batch().unwrap() > 0.0);
    workload.unload().unwrap();
    assert!(workload.run_batch().is_err() && workload.memory_bytes().is_none());
    workload.idle(&seats[0], true).unwrap();
    workload.idle(&seats[0], false).unwrap();
    workload.load(&POINT, &seats[0]).unwrap();
    assert!(workload.run_batch().unwrap() > 0.0);
    workload.quit().unwrap();
    assert!(workload.memory_bytes().is_none());
}

#[test]
fn a_simulated_model_passes_the_checks() {
    let clock: Arc<dyn Clock> = Arc::new(VirtualClock::new(WallUs(1_700_000_000_000_000)));
    let device = named("a100", &clock).unwrap().remove(0);
    let context = Context { clock: clock.clone(), sim: Some(device), python: None };
    passes_the_checks(open("sim:bert-like", &context).unwrap().as_mut(), clock.as_ref());
}

#[test]
fn a_command_passes_the_checks() {
    passes_the_checks(&mut reference(&[]), &RealClock);
}

#[test]
fn what_does_not_fit_spoils_its_point_only() {
    let mut workload = reference(&["--max-batch", "8"]);
    let large = Point { batch: 9, ..POINT };
    let error = workload.load(&large, &seat(POINT.share)).unwrap_err();
    assert_eq!(error, WorkloadError::DoesNotFit("a batch of 9".into()));
    workload.load(&POINT, &seat(POINT.share)).unwrap();
    assert!(workload.run_batch().unwrap() >= 2.0);
}

#[test]
fn a_worker_that_does_not_start_is_told_with_its_last_words() {
    let mut missing = Commanded::new("m", vec!["/no/such/program".into()], Arc::new(RealClock));
    let error = missing.load(&POINT, &seat(POINT.share)).unwrap_err().to_string();
    assert!(error.contains("`/no/such/program` cannot be started"), "{error}");
    for (lines, says) in [
        ("sys.exit('no weights at w.bin')", "ended with exit status: 1; it wrote: no weights at w.bin"),
        ("print('hello', flush=True); time.sleep(60)", "gave no answer of the protocol: `hello`"),
        ("print('x' * (1 << 21), flush=True); time.sleep(60)", "a line of more than 1048576 bytes"),
        ("time.sleep(60)", "did not answer `hello` within"),
        ("say(version=2); time.sleep(60)", "version 2 of the protocol"),
        ("say(name='x'); time.sleep(60)", "no hello with a `version`"),
        ("say(error={'kind': 'fatal', 'message': 'no module named torch'})", "no module named torch"),
        (&format!("{HELLO}read()"), "ended with exit status: 0"),
        (&format!("{HELLO}read(); time.sleep(60)"), "did not answer `load` within"),
        (
            &format!("{HELLO}read(); say(error={{'kind': 'failed', 'message': 'odd'}}); time.sleep(60)"),
            "failed: odd",
        ),
    ] {
        let (workload, mark) = python(lines);
        // What hangs at hello need not hang for long; what starts is given time on a busy machine.
        let hello = if says.contains("`hello` within") { Duration::from_secs(1) } else { QUICK.hello };
        let mut workload = workload.with_patience(Patience { hello, ..QUICK });
        let error = workload.load(&POINT, &seat(POINT.share)).unwrap_err();
        assert!(
            matches!(error, WorkloadError::Failed(_)) && error.to_string().contains(says),
            "{lines}: {error}"
        );
        drop(workload);
        assert_eq!(alive(&mark), Vec::<PathBuf>::new(), "{lines}");
    }
}

#[test]
fn a_worker_that_breaks_in_a_run_is_started_anew_at_the_next_point() {
    for (lines, says) in [
        ("read(); say(batches_us=[5.0], done=False); sys.exit('fell over')", "fell over"),
        ("read(); say(batches_us=[5.0, -1.0], done=False); time.sleep(60)", "a batch of -1 µs"),
        ("read(); print('{\"batches_us\":[NaN]}', flush=True); time.sleep(60)", "NaN"),
        ("read(); say(batches_us=[4e9], done=True); time.sleep(60)", "a batch of 4000000000 µs"),
        (
            "read(); say(error={'kind': 'fatal', 'message': 'an illegal access'}); time.sleep(60)",
            "illegal access",
        ),
        ("read(); say(batches_us=[], done=True); time.sleep(60)", "no batch ran"),
        ("read(); time.sleep(60)", "did not end its run"),
        ("read(); say(batches_us=[5.0], done=False); read(); time.sleep(60)", "did not end its run"),
    ] {
        let (mut workload, mark) = python(&format!("{LOADED}{lines}"));
        workload.load(&POINT, &seat(POINT.share)).unwrap();
        let error = workload
            .run(600_000, 20_000, &mut |times| match times.is_empty() {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            })
            .unwrap_err()
            .to_string();
        assert!(error.contains(says), "{lines}: {error}");
        workload.load(&POINT, &seat(POINT.share)).unwrap();
        workload.quit().unwrap();
        assert_eq!(alive(&mark), Vec::<PathBuf>::new(), "{lines}");
    }
}

#[test]
fn a_worker_that_will_not_quit_is_killed_with_what_it_started() {
    let child = "import subprocess; subprocess.Popen(['sleep', '1000', sys.argv[-1]])\n";
    let stubborn = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n";
    // `sleep` refuses the mark as an argument, so a shell holds it.
    let child = child.replace("'sleep', '1000', ", "'sh', '-c', 'sleep 1000; :', ");
    let (mut workload, mark) = python(&format!("{stubborn}{child}{LOADED}time.sleep(1000)"));
    workload.load(&POINT, &seat(POINT.share)).unwrap();
    assert!(alive(&mark).len() >= 2);
    let began = Instant::now();
    workload.quit().unwrap();
    assert!(began.elapsed() < Duration::from_secs(20));
    let gone = (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(20));
        alive(&mark).is_empty()
    });
    assert!(gone, "{:?}", alive(&mark));
}

#[test]
fn models_are_opened_as_the_workload_file_says() {
    let context = Context { clock: Arc::new(RealClock), sim: None, python: Some("/no/python".into()) };
    let argv = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let opened = of_model("m", Some(&argv(&["python3", "w.py"])), &context).unwrap();
    assert_eq!(opened.name(), "m");
    let error = of_model("m", Some(&argv(&["torch:resnet50"])), &context).err().unwrap().to_string();
    assert!(error.contains("`/no/python` cannot be run"), "{error}");
    let error = of_model("m", None, &context).err().unwrap().to_string();
    assert!(error.contains("`torch:m`") && error.contains("`torch:resnet50`"), "{error}");
    for (model, _) in torch::MODELS {
        let page = include_str!("../../docs/profiling.md");
        assert!(page.contains(&format!("`torch:{model}`")), "docs/profiling.md does not list {model}");
    }
}
