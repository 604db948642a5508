//! Run scripts: nothing from a file gets out of its quotes, and everything that is set up is undone.

// Helpers of tests may panic as tests do.
#![allow(clippy::unwrap_used)]

mod synthetic;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use gpumon_core::workload::Workload;
use gpumon_place::emit::sh::{Sh, quote, scripts};
use gpumon_place::emit::{EmitError, Emitted, Emitter as _};
use gpumon_place::plan::Plan;
use gpumon_place::{Ask, Objective, Problem, place};
use proptest::prelude::*;

/// `nvidia-smi` as far as the scripts use it: writes down what it is asked, keeps MIG mode and instances in files.
const NVIDIA_SMI: &str = r#"#!/bin/sh
printf '%s\n' "$*" >> "$STATE/log"
case "$*" in
  -L) echo "GPU 0: Other (UUID: GPU-0)"
      echo "  MIG 1g.5gb Device 0: (UUID: MIG-other)"
      echo "GPU 3: Fake (UUID: GPU-abc)"
      cat "$STATE/mig" 2>/dev/null || : ;;
  *--query-gpu=mig.mode.current*) cat "$STATE/mode" ;;
  *" -cgi "*) n=$(wc -l < "$STATE/mig"); echo "  MIG Device $n: (UUID: MIG-$n)" >> "$STATE/mig" ;;
  *-dgi) : > "$STATE/mig" ;;
  *"-mig 0") echo Disabled > "$STATE/mode" ;;
  *"-mig 1") echo Enabled > "$STATE/mode" ;;
esac
"#;

/// A worker that writes down its arguments and environment, each ended by NUL, then ends with status `$1`'s tail.
const WORKER: &str = r#"#!/bin/sh
printf '%s\0' "$GPUMON_MODEL" "$GPUMON_BATCH" "$GPUMON_RATE_RPS" "$CUDA_VISIBLE_DEVICES" "$@" > "$STATE/seen.$$"
case "$1" in
  fail) exit 7 ;;
  hang) exec sleep 600 ;;
  deaf) trap '' TERM; while :; do sleep 1; done ;;
esac
"#;

fn program(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// A plan for models with these names, started with these arguments.
fn planned(models: &[(String, Vec<String>)]) -> (Plan, Workload) {
    let (mut workload, mut rows) = synthetic::workload(models.len());
    for (i, (name, run)) in models.iter().enumerate() {
        rows.iter_mut().filter(|r| r.model == format!("m{i}")).for_each(|r| r.model = name.clone());
        workload.models[i].name = name.clone();
        workload.models[i].run = Some(run.clone());
    }
    let base = synthetic::base();
    let problem = Problem::new(&Ask::new(&workload, &rows, &base, Objective::Power)).unwrap();
    (place(&problem, "enertune").unwrap(), workload)
}

struct Ground(tempfile::TempDir);

impl Ground {
    fn new(mode: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        program(&folder.path().join("nvidia-smi"), NVIDIA_SMI);
        program(&folder.path().join("worker"), WORKER);
        fs::write(folder.path().join("mode"), mode).unwrap();
        fs::write(folder.path().join("mig"), "").unwrap();
        Self(folder)
    }

    fn worker(&self) -> String {
        self.0.path().join("worker").to_str().unwrap().to_owned()
    }

    fn command(&self, script: &Emitted) -> Command {
        let path = self.0.path().join(&script.name);
        fs::write(&path, &script.text).unwrap();
        let search = std::env::var("PATH").unwrap();
        let mut command = Command::new("sh");
        command.arg(path).arg("3").current_dir(self.0.path());
        command.env("PATH", format!("{}:{search}", self.0.path().display())).env("STATE", self.0.path());
        command
    }

    fn run(&self, script: &Emitted) -> Output {
        self.command(script).output().unwrap()
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.0.path().join(name)).unwrap()
    }

    /// What the workers saw, sorted.
    fn seen(&self) -> Vec<Vec<String>> {
        let files = fs::read_dir(self.0.path()).unwrap().map(|e| e.unwrap().path());
        let seen = files.filter(|p| p.file_name().unwrap().to_string_lossy().starts_with("seen."));
        let words = |p| {
            let text = fs::read_to_string(p).unwrap();
            text.strip_suffix('\0').unwrap().split('\0').map(str::to_owned).collect()
        };
        let mut all: Vec<Vec<String>> = seen.map(words).collect();
        all.sort();
        all
    }
}

fn accepted(script: &Emitted) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("script");
    fs::write(&path, &script.text).unwrap();
    let out = Command::new("sh").arg("-n").arg(&path).output().unwrap();
    assert!(out.status.success(), "{}\n{}", String::from_utf8_lossy(&out.stderr), script.text);
}

const HOSTILE: [&str; 8] = [
    "it's",
    "$(touch canary)",
    "`touch canary`",
    "a\ntouch canary\n",
    "-x --help",
    "'; touch canary; '",
    "\"${IFS}&& touch canary #",
    "\\'\\\n* ~ \u{1F525} \r\t!",
];

#[test]
fn hostile_names_and_arguments_arrive_as_they_are() {
    let ground = Ground::new("Disabled\n");
    let models: Vec<_> = HOSTILE
        .iter()
        .map(|h| ((*h).to_owned(), vec![ground.worker(), (*h).to_owned(), String::new(), "=".into()]))
        .collect();
    let (plan, workload) = planned(&models);
    let mut wanted: Vec<Vec<String>> = Vec::new();
    let mut devices = 0;
    for (script, gpu) in scripts(&plan, &workload).unwrap().iter().zip(&plan.gpus) {
        accepted(script);
        let out = ground.run(script);
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        for (i, p) in gpu.partitions.iter().enumerate() {
            let start = [p.model.clone(), p.batch.to_string(), p.rate_rps.to_string(), format!("MIG-{i}")];
            wanted.push(start.into_iter().chain([p.model.clone(), String::new(), "=".into()]).collect());
            devices += 1;
        }
    }
    wanted.sort();
    assert_eq!(devices, HOSTILE.len());
    assert_eq!(ground.seen(), wanted);
    assert!(!ground.0.path().join("canary").exists());
}

#[test]
fn the_gpu_is_set_up_as_planned_and_put_back() {
    let ground = Ground::new("Disabled\n");
    let run = vec![ground.worker(), "end".to_owned()];
    let (plan, workload) = planned(&[("a".into(), run.clone()), ("b".into(), run)]);
    let script = &scripts(&plan, &workload).unwrap()[0];
    assert!(ground.run(script).status.success());
    let log: Vec<String> = ground.read("log").lines().filter(|l| *l != "-L").map(str::to_owned).collect();
    let mhz = plan.gpus[0].frequency_mhz;
    let mut wanted = vec![
        "mig -i 3 -lgi".to_owned(),
        "-i 3 --query-gpu=mig.mode.current --format=csv,noheader".to_owned(),
        "-i 3 -mig 1".to_owned(),
        "-i 3 --query-gpu=mig.mode.current --format=csv,noheader".to_owned(),
        format!("-i 3 -lgc {mhz},{mhz}"),
    ];
    for p in &plan.gpus[0].partitions {
        let id = [0, 19, 14, 9, 5, 0, 0, 0][usize::from(p.slices.unwrap())];
        wanted.push(format!("mig -i 3 -cgi {id}:{} -C", p.start_slot.unwrap()));
    }
    wanted.extend(["mig -i 3 -dci", "mig -i 3 -dgi", "-i 3 -mig 0", "-i 3 -rgc"].map(str::to_owned));
    assert_eq!(log, wanted);
    assert_eq!((ground.read("mode").as_str(), ground.read("mig").as_str()), ("Disabled\n", ""));
}

#[test]
fn a_failing_worker_stops_the_rest_and_the_gpu_is_put_back() {
    let ground = Ground::new("Enabled\n");
    let run = |what: &str| vec![ground.worker(), what.to_owned()];
    let (plan, workload) = planned(&[("a".into(), run("hang")), ("b".into(), run("fail"))]);
    let all = scripts(&plan, &workload).unwrap();
    assert_eq!(all.len(), 1, "both share a GPU");
    let out = ground.run(&all[0]);
    assert_eq!(out.status.code(), Some(7), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(
        ground.read("log").ends_with("mig -i 3 -dgi\n-i 3 -rgc\n"),
        "MIG mode was on before, so it stays"
    );
}

#[test]
fn a_signal_undoes_everything() {
    let ground = Ground::new("Disabled\n");
    let run = vec![ground.worker(), "hang".to_owned()];
    let (plan, workload) = planned(&[("a".into(), run)]);
    let mut child = ground.command(&scripts(&plan, &workload).unwrap()[0]).spawn().unwrap();
    while ground.seen_files() == 0 {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(143));
    assert!(ground.read("log").ends_with("-i 3 -mig 0\n-i 3 -rgc\n"));
}

#[test]
fn a_worker_that_does_not_listen_is_killed() {
    let ground = Ground::new("Enabled\n");
    let run = |what: &str| vec![ground.worker(), what.to_owned()];
    let (plan, workload) = planned(&[("a".into(), run("deaf")), ("b".into(), run("fail"))]);
    let started = std::time::Instant::now();
    assert_eq!(ground.run(&scripts(&plan, &workload).unwrap()[0]).status.code(), Some(7));
    assert!(started.elapsed().as_secs() >= 9, "it has ten seconds to end");
}

impl Ground {
    fn seen_files(&self) -> usize {
        let files = fs::read_dir(self.0.path()).unwrap();
        files.filter(|e| e.as_ref().unwrap().file_name().to_string_lossy().starts_with("seen.")).count()
    }
}

#[test]
fn a_gpu_with_instances_is_refused_and_left_alone() {
    let ground = Ground::new("Enabled\n");
    fs::write(ground.0.path().join("mig"), "  MIG Device 0: (UUID: MIG-theirs)\n").unwrap();
    let (plan, workload) = planned(&[("a".into(), vec![ground.worker()])]);
    let out = ground.run(&scripts(&plan, &workload).unwrap()[0]);
    assert_eq!(out.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&out.stderr).contains("has MIG instances already"));
    assert_eq!(ground.read("log"), "-L\n");
}

#[test]
fn mps_partitions_get_their_percentage() {
    let ground = Ground::new("Disabled\n");
    program(
        &ground.0.path().join("nvidia-cuda-mps-control"),
        "#!/bin/sh\n[ \"$*\" = -d ] || read -r line\nprintf 'mps %s%s\\n' \"$*\" \"$line\" >> \"$STATE/log\"\n",
    );
    let worker = "printf 'worker %s %s\\n' \"$CUDA_MPS_ACTIVE_THREAD_PERCENTAGE\" \"$CUDA_VISIBLE_DEVICES\" >> \"$STATE/log\"";
    let run = ["sh", "-c", worker].map(str::to_owned).to_vec();
    let (mut plan, workload) = planned(&[("a".into(), run)]);
    let p = &mut plan.gpus[0].partitions[0];
    (p.slices, p.start_slot, p.share_pct) = (None, None, Some(40.0));
    let script = &scripts(&plan, &workload).unwrap()[0];
    accepted(script);
    assert!(ground.run(script).status.success());
    let log = ground.read("log");
    let tail: Vec<&str> = log.lines().skip(1).collect();
    assert_eq!(tail, ["mps -d", "worker 40.0000 3", "mps quit", "-i 3 -rgc"]);
}

#[test]
fn processes_of_an_instance_share_it_by_mps_and_its_rate() {
    let ground = Ground::new("Enabled\n");
    program(
        &ground.0.path().join("nvidia-cuda-mps-control"),
        "#!/bin/sh\n[ \"$*\" = -d ] || read -r line\nprintf 'mps %s%s %s\\n' \"$*\" \"$line\" \
         \"${CUDA_MPS_PIPE_DIRECTORY##*/}\" >> \"$STATE/log\"\n",
    );
    let worker = "printf 'worker %s %s %s\\n' \"$GPUMON_RATE_RPS\" \"$CUDA_VISIBLE_DEVICES\" \
                  \"${CUDA_MPS_PIPE_DIRECTORY##*/}\" >> \"$STATE/log\"";
    let run = ["sh", "-uc", worker].map(str::to_owned).to_vec();
    let (mut plan, workload) = planned(&[("a".into(), run)]);
    let p = &mut plan.gpus[0].partitions[0];
    (p.processes, p.rate_rps) = (3, 30.0);
    let script = &scripts(&plan, &workload).unwrap()[0];
    accepted(script);
    let out = ground.run(script);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let log = ground.read("log");
    let of = |what: &str| log.lines().filter(|l| l.starts_with(what)).collect::<Vec<_>>();
    assert_eq!(of("mps"), ["mps -d MIG-0", "mps quit MIG-0"]);
    assert_eq!(of("worker"), ["worker 10 MIG-0 MIG-0"; 3]);
    let (quit, undone) = (log.find("mps quit").unwrap(), log.find("-dci").unwrap());
    assert!(quit < undone, "the daemon ends before its instance goes");
}

#[test]
fn scripts_are_known_as_ours_and_say_that_they_are_simulated() {
    let (mut plan, workload) = planned(&[("a".into(), vec!["true".into()])]);
    for simulated in [false, true] {
        plan.simulated = simulated;
        let script = &scripts(&plan, &workload).unwrap()[0];
        accepted(script);
        assert!(Sh.wrote(script.text.as_bytes()));
        assert_eq!(script.text.contains("\n# Simulated: "), simulated, "{}", script.text);
        assert!(!script.text.contains("@SIMULATED@"));
    }
    assert!(!Sh.wrote(b"#!/bin/sh\nrm -rf mine\n"));
}

#[test]
fn what_cannot_be_started_is_refused_by_name() {
    let refused = |run: Option<Vec<&str>>| {
        let (plan, mut workload) = planned(&[("a".into(), vec!["true".into()])]);
        workload.models[0].run = run.map(|r| r.into_iter().map(str::to_owned).collect());
        scripts(&plan, &workload).unwrap_err()
    };
    assert_eq!(refused(None), EmitError::NoRun("a".into()));
    assert!(matches!(refused(Some(vec!["A=b"])), EmitError::Program { .. }));
    assert!(matches!(refused(Some(vec!["x", "a\0b"])), EmitError::Program { .. }));
    assert!(matches!(refused(Some(vec![""])), EmitError::Program { .. }));
    let (plan, mut workload) = planned(&[("a".into(), vec!["true".into()])]);
    workload.models[0].name = "b".into();
    assert_eq!(scripts(&plan, &workload), Err(EmitError::UnknownModel("a".into())));
}

#[test]
fn shellcheck_has_nothing_to_say() {
    let Ok(version) = Command::new("shellcheck").arg("--version").output() else {
        eprintln!("skipped: no shellcheck here");
        return;
    };
    assert!(version.status.success());
    let (mut plan, workload) = planned(&[("it's".into(), vec!["true".into(), "$x".into()])]);
    for mps in [false, true] {
        let p = &mut plan.gpus[0].partitions[0];
        p.processes = 2;
        if mps {
            (p.slices, p.start_slot, p.share_pct) = (None, None, Some(40.0));
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gpu0.sh");
        fs::write(&path, &scripts(&plan, &workload).unwrap()[0].text).unwrap();
        // Arguments between single quotes are meant to stay as they are (SC2016).
        let out = Command::new("shellcheck").args(["-s", "sh", "-e", "SC2016"]).arg(&path).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_quoted_word_is_that_word(words in proptest::collection::vec("[^\0]{0,12}|[-'\"$`\\\\\n();&|*?~# ]{0,12}", 1..12)) {
        let quoted: Vec<String> = words.iter().map(|w| quote(w)).collect();
        let out = Command::new("sh").arg("-c").arg(format!("printf '%s\\0' {}", quoted.join(" "))).output().unwrap();
        let text = String::from_utf8(out.stdout).unwrap();
        let arrived: Vec<&str> = text.strip_suffix('\0').unwrap().split('\0').collect();
        prop_assert_eq!(arrived, words);
    }

    #[test]
    fn scripts_of_any_names_are_shell(
        name in "[^\0@][^\0]{0,20}",
        argv in proptest::collection::vec("[^\0=]{1,12}|[-'\"$`\\\\\n();&|]{1,12}", 1..6),
    ) {
        let (plan, workload) = planned(&[(name, argv)]);
        for script in scripts(&plan, &workload).unwrap() {
            accepted(&script);
        }
    }
}
