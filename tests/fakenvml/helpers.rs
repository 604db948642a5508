//! Recording under a script, and what every recording has to keep to.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};

use gpumon_core::header::Header;
use gpumon_core::rows::{EventKind, EventRow, FastRow, RingRow};
use gpumon_core::units::WallUs;
use gpumon_fakenvml::testing::Fake;
use gpumon_monitor::store::{Reader, Row};
use serde_json::Value;

/// Two GPUs that run half a load all the time.
pub const TWO: &str = "gpus = \"half.toml\"\ncount = 2\n";
pub const HALF: &str = "base = \"h200\"\n[load]\nkind = \"constant\"\nlevel = 0.4\n";

pub fn fake(script: &str) -> Fake {
    Fake::with_files(script, &[("half.toml", HALF)]).unwrap()
}

pub fn command(fake: &Fake, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpumon"));
    command.args(args).env_remove("CUDA_VISIBLE_DEVICES").envs(fake.environment());
    command
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
pub fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

pub fn devices(fake: &Fake) -> Output {
    command(fake, &["devices", "--json"]).output().unwrap()
}

pub fn recording(fake: &Fake) -> PathBuf {
    fake.folder().join("recording")
}

pub fn record_args(fake: &Fake, seconds: &str) -> Vec<String> {
    let path = recording(fake).to_str().unwrap().to_owned();
    ["record", "-o", &path, "--duration", seconds, "--json"].map(str::to_owned).to_vec()
}

/// Records under a script: the fake and the summary.
#[track_caller]
pub fn record(script: &str, seconds: &str) -> (Fake, Value) {
    let (fake, summary, _) = record_with(script, seconds, &[], 0);
    (fake, summary)
}

/// The same with more arguments, ending with this exit code; also what went to standard error.
#[track_caller]
pub fn record_with(script: &str, seconds: &str, more: &[&str], code: i32) -> (Fake, Value, String) {
    let fake = fake(script);
    let args = record_args(&fake, seconds);
    let args: Vec<&str> = args.iter().map(String::as_str).chain(more.iter().copied()).collect();
    let output = command(&fake, &args).output().unwrap();
    assert_eq!(output.status.code(), Some(code), "{}", text(&output.stderr));
    (fake, serde_json::from_slice(&output.stdout).unwrap(), text(&output.stderr))
}

/// Sends a signal by its name.
pub fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
}

pub fn rows<R: Row>(path: &Path) -> Vec<R> {
    Reader::open(path).unwrap().batches::<R>().flat_map(Result::unwrap).collect()
}

pub fn events(fake: &Fake, kind: EventKind) -> Vec<EventRow> {
    rows::<EventRow>(&recording(fake)).into_iter().filter(|e| e.kind == kind).collect()
}

/// Every second of GPU `gpu` has its ten fast rows and its fifty ring readings, or nearly.
#[track_caller]
pub fn goes_on(fake: &Fake, gpu: i32, seconds: usize) {
    let of_gpu = |r: &&FastRow| r.gpu == gpu && r.power_instant_mw.is_some();
    let fast = rows::<FastRow>(&recording(fake)).iter().filter(of_gpu).count();
    let ring = rows::<RingRow>(&recording(fake)).iter().filter(|r| r.gpu == gpu).count();
    assert!(fast >= seconds * 10 - 5, "{fast} fast rows of GPU {gpu} in {seconds} s");
    assert!(ring >= seconds * 50 - 35, "{ring} ring readings of GPU {gpu} in {seconds} s");
}

/// The energies are those that the simulation knows to be true, within `within` of them.
#[track_caller]
pub fn energies_are_true(fake: &Fake, summary: &Value, within: f64) {
    let truth = fake.truth().unwrap();
    let header: Header =
        serde_json::from_slice(&std::fs::read(recording(fake).join("recording.json")).unwrap()).unwrap();
    let to = WallUs(header.start_wall_us.0 + header.duration_us.unwrap());
    let gpus = summary["gpus"].as_array().unwrap();
    assert_eq!(gpus.len(), truth.gpus.len());
    for (gpu, sim) in gpus.iter().zip(&truth.gpus) {
        assert_eq!(gpu["uuid"], sim.uuid());
        let true_j = sim.true_energy_mj(truth.at(header.start_wall_us), truth.at(to)) / 1e3;
        let found_j = gpu["energy_j"].as_f64().unwrap();
        assert!((found_j / true_j - 1.0).abs() < within, "{found_j} J, truly {true_j} J");
    }
}
