//! `gpumon export`, the whole binary on recordings of simulated GPUs.
#![allow(clippy::unwrap_used, reason = "helpers of tests may unwrap as tests may")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::OnceLock;
use std::time::Duration;

use assert_cmd::Command;
use gpumon_core::rows::{CounterRow, EventRow, FastRow, RingRow, SlowRow};
use gpumon_monitor::store::{Reader, Row};
use parquet::file::reader::{FileReader, SerializedFileReader};
use serde_json::Value;

const WIDE: &str = "time,gpu,uuid,mono_us,lateness_us,power_instant_mw,power_average_mw,sm_mhz,fresh,\
    ring_power_mw,ring_age_us,mem_mhz,temp_c,mem_temp_c,util_gpu_pct,util_mem_pct,mem_used_bytes,pstate,\
    event_reasons,fan_pct,mem_power_mw,sm_util_pct,sm_occupancy_pct,tensor_util_pct,dram_util_pct,\
    pcie_tx_mib_per_s,pcie_rx_mib_per_s,energy_mj,window";
const GMONITOR: &str = "timestamp,temp,clock_sm_mhz,clock_graphics_mhz,clock_mem_mhz,clock_mem_max_mhz,\
    power_draw_mW,power_limit_mW,energy_draw_j,util_sm,util_mem,mem_used_bytes,mem_free_bytes,pstate,\
    clock_throttle_reason_active";
const BINARY: &str = env!("CARGO_BIN_EXE_gpumon");

fn gpumon(args: &[&str]) -> Output {
    Command::new(BINARY).args(args).output().unwrap()
}

fn done(args: &[&str]) -> String {
    let output = gpumon(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn refused(args: &[&str], code: i32) -> String {
    let output = gpumon(args);
    assert_eq!(output.status.code(), Some(code), "{args:?}");
    assert!(output.stdout.is_empty(), "{args:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A recording of two simulated GPUs under a square wave, 3 s long.
fn recording() -> &'static Path {
    static RECORDING: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    &RECORDING
        .get_or_init(|| {
            let dir = tempfile::tempdir().unwrap();
            let spec = dir.path().join("two.toml");
            let load = "[load]\nkind = \"square\"\non_ms = 37\noff_ms = 61\nlevel = 1.0\n";
            fs::write(&spec, format!("base = \"h200\"\ncount = 2\n{load}")).unwrap();
            let (device, path) = (format!("sim:{}", text(&spec)), dir.path().join("rec"));
            done(&["record", "--device", &device, "-o", text(&path), "--duration", "3", "--rate", "20"]);
            (dir, path)
        })
        .1
}

fn name() -> &'static str {
    text(recording())
}

fn rows<R: Row>(path: &Path) -> Vec<R> {
    Reader::open(path).unwrap().batches::<R>().flat_map(Result::unwrap).collect()
}

/// The fields of each line but the first, which is checked.
fn csv(text: &str, header: &str) -> Vec<Vec<String>> {
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some(header));
    lines.map(|line| line.split(',').map(str::to_owned).collect()).collect()
}

fn json_lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn shown<T: ToString>(value: Option<T>) -> String {
    value.map_or(String::new(), |v| v.to_string())
}

#[test]
fn the_wide_table_has_every_tick_and_the_rest_as_of_then() {
    let table = csv(&done(&["export", name()]), WIDE);
    let fast = rows::<FastRow>(recording());
    let ring = rows::<RingRow>(recording());
    let slow = rows::<SlowRow>(recording());
    let counter = rows::<CounterRow>(recording());
    let header = Reader::open(recording()).unwrap().header().clone();
    assert_eq!(table.len(), fast.len());
    assert!(fast.len() > 80);
    let columns: Vec<&str> = WIDE.split(',').collect();
    for (line, tick) in table.iter().zip(&fast) {
        let cell = |name: &str| line[columns.iter().position(|c| *c == name).unwrap()].clone();
        assert_eq!(line.len(), columns.len());
        assert_eq!(cell("gpu"), tick.gpu.to_string());
        assert_eq!(cell("uuid"), header.gpus[tick.gpu as usize].uuid);
        assert_eq!(cell("mono_us"), tick.mono_us.to_string());
        assert_eq!(cell("power_average_mw"), shown(tick.power_average_mw));
        assert_eq!(cell("fresh"), tick.fresh.to_string());
        let reading = ring.iter().rfind(|r| r.gpu == tick.gpu && r.mono_us <= tick.mono_us);
        assert_eq!(cell("ring_power_mw"), shown(reading.map(|r| r.power_mw)));
        assert_eq!(cell("ring_age_us"), shown(reading.map(|r| tick.mono_us - r.mono_us)));
        let slow = || slow.iter().filter(|r| r.gpu == tick.gpu && r.mono_us <= tick.mono_us);
        assert_eq!(cell("temp_c"), shown(slow().next_back().and_then(|r| r.temp_c)));
        assert_eq!(cell("event_reasons"), shown(slow().next_back().and_then(|r| r.event_reasons)));
        // Read once a second only: the last that there is.
        let counters = slow().rfind(|r| r.sm_util_pct.is_some()).and_then(|r| r.sm_util_pct);
        assert_eq!(cell("sm_util_pct").parse().ok(), counters);
        let energy = counter.iter().rfind(|r| r.gpu == tick.gpu && r.mono_us <= tick.mono_us);
        assert_eq!(cell("energy_mj"), shown(energy.map(|r| r.energy_mj)));
        assert_eq!(cell("window"), "");
        let time = cell("time");
        assert!(time.len() == 27 && time.ends_with('Z') && &time[10..11] == "T", "{time}");
        let wall_us = header.start_wall_us.0 + tick.mono_us;
        assert_eq!(time[20..26].parse(), Ok(wall_us % 1_000_000));
    }
}

#[test]
fn one_gpu_and_a_span_can_be_chosen() {
    let table = csv(&done(&["export", name(), "--gpu", "1", "--window", "1..2"]), WIDE);
    let fast = rows::<FastRow>(recording());
    let wanted = fast.iter().filter(|r| r.gpu == 1 && (1_000_000..2_000_000).contains(&r.mono_us));
    assert_eq!(
        table.iter().map(|line| line[3].clone()).collect::<Vec<_>>(),
        wanted.map(|r| r.mono_us.to_string()).collect::<Vec<_>>()
    );
    assert!(table.iter().all(|line| line[1] == "1" && !line[9].is_empty()));
    assert!(refused(&["export", name(), "--gpu", "2"], 1).contains("2 GPUs, numbers 0 to 1"));
}

#[test]
fn parquet_says_where_it_comes_from() {
    let dir = tempfile::tempdir().unwrap();
    for (args, table, count) in [
        (&["--wide"][..], "wide", rows::<FastRow>(recording()).len()),
        (&["--table", "ring"][..], "ring", rows::<RingRow>(recording()).len()),
    ] {
        let file = dir.path().join(format!("{table}.parquet"));
        done(&[&["export", name(), "-o", text(&file)], args].concat());
        let reader = SerializedFileReader::new(fs::File::open(&file).unwrap()).unwrap();
        let meta = reader.metadata().file_metadata();
        let pairs = meta.key_value_metadata().unwrap();
        let value = |key: &str| pairs.iter().find(|kv| kv.key == key).and_then(|kv| kv.value.clone());
        assert_eq!(value("gpumon.simulated").as_deref(), Some("true"));
        assert_eq!(value("gpumon.table").as_deref(), Some(table));
        assert!(value("gpumon.recording").unwrap().contains("\"uuid\""));
        assert_eq!(value("gpumon.segments"), None);
        assert_eq!(usize::try_from(meta.num_rows()), Ok(count));
        assert_eq!(reader.get_row_iter(None).unwrap().map(Result::unwrap).count(), count);
        let columns = meta.schema_descr().columns();
        let time = columns.iter().find(|c| c.name() == "time").unwrap();
        assert!(format!("{:?}", time.logical_type_ref()).contains("Timestamp"), "{time:?}");
    }
}

#[test]
fn a_table_is_exported_as_it_is() {
    let ring = json_lines(&done(&["export", name(), "--table", "ring", "--format", "jsonl"]));
    let kept = rows::<RingRow>(recording());
    assert_eq!(ring.len(), kept.len());
    for (line, row) in ring.iter().zip(&kept) {
        assert_eq!(line["mono_us"], row.mono_us);
        assert_eq!(line["power_mw"], row.power_mw);
        let time = line["time"].as_str().unwrap();
        assert!(time.len() == 27 && time.ends_with('Z'), "{time}");
    }
    let slow = json_lines(&done(&["export", name(), "--table", "slow", "--format", "jsonl"]));
    assert!(slow.iter().all(|line| line.get("fan_pct") == Some(&Value::Null)));
    let events = done(&["export", name(), "--table", "events"]);
    assert!(events.starts_with("mono_us,gpu,kind,name,from_us,to_us,count,detail\n"));
    assert_eq!(events.lines().count(), 1 + rows::<EventRow>(recording()).len());
    let wide = json_lines(&done(&["export", name(), "--format", "jsonl"]));
    assert_eq!(wide[0].as_object().unwrap().len(), WIDE.split(',').count());
}

#[test]
fn gmonitor_has_the_columns_of_the_daemon_and_their_units() {
    let table = csv(&done(&["export", name(), "--format", "gmonitor", "--gpu", "0"]), GMONITOR);
    let wide = csv(&done(&["export", name(), "--gpu", "0"]), WIDE);
    assert_eq!(table.len(), wide.len());
    for (line, wide) in table.iter().zip(&wide) {
        assert_eq!((line[0].len(), line[3].as_str(), line[5].as_str()), (19, "", ""));
        assert_eq!((&line[1], &line[2], &line[6]), (&wide[12], &wide[7], &wide[6]));
        assert_eq!(line[7], "700000");
        let millijoules = line[8].parse::<f64>().ok().map(|j| (j * 1e3).round() as i64);
        assert_eq!(millijoules, wide[27].parse().ok());
        assert_eq!((&line[9], &line[13], &line[14]), (&wide[14], &wide[17], &wide[18]));
    }
    let last = table.last().unwrap();
    let bytes = last[11].parse::<i64>().unwrap() + last[12].parse::<i64>().unwrap();
    assert_eq!(bytes, 143_771 * 1024 * 1024);
    let error = refused(&["export", name(), "--format", "gmonitor"], 1);
    assert!(error.contains("2 GPUs") && error.contains("--gpu INDEX"), "{error}");
}

#[test]
fn what_exists_is_kept_unless_forced() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.csv");
    fs::write(&file, "mine").unwrap();
    let error = refused(&["export", name(), "-o", text(&file)], 1);
    assert!(error.contains("a.csv` exists") && error.contains("--force"), "{error}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
    done(&["export", name(), "-o", text(&file), "--force"]);
    assert!(fs::read_to_string(&file).unwrap().starts_with(WIDE));
    // An error leaves nothing behind.
    let picture = dir.path().join("b.svg");
    let error = refused(&["export", name(), "-o", text(&picture), "--window", "60.."], 1);
    assert!(error.contains("nothing to draw"), "{error}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn damage_is_told_and_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let broken = dir.path().join("broken");
    fs::create_dir(&broken).unwrap();
    for file in fs::read_dir(recording()).unwrap().map(Result::unwrap) {
        fs::copy(file.path(), broken.join(file.file_name())).unwrap();
    }
    fs::write(broken.join("ring.parquet"), "not a table").unwrap();
    for ending in ["csv", "jsonl", "parquet", "svg"] {
        let file = dir.path().join(format!("a.{ending}"));
        let error = refused(&["export", text(&broken), "-o", text(&file)], 1);
        assert!(error.contains("ring.parquet` is damaged"), "{error}");
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn arguments_that_do_not_go_together_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let svg = dir.path().join("a.svg");
    assert!(refused(&["export", name(), "--format", "xml"], 2).contains("gmonitor"));
    assert!(refused(&["export", name(), "--format", "parquet"], 2).contains("-o"));
    assert!(refused(&["export", name(), "--table", "ring", "-o", text(&svg)], 2).contains("--table"));
    let inside = recording().join("fast.parquet");
    let error = refused(&["export", name(), "-o", text(&inside), "--force"], 1);
    assert!(error.contains("inside the recording"), "{error}");
    assert!(refused(&["export", name(), "-o", text(dir.path())], 1).contains("is a folder"));
    assert!(refused(&["export", text(dir.path())], 1).contains("recording"));
}

#[test]
fn the_picture_shows_both_curves_of_each_gpu() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("power.svg");
    done(&["export", name(), "-o", text(&file)]);
    let picture = fs::read_to_string(&file).unwrap();
    let xml = roxmltree::Document::parse(&picture).unwrap();
    // The legend shows each curve once, each GPU's panel once.
    let lines: Vec<_> = xml.descendants().filter(|n| n.has_tag_name("polyline")).collect();
    let length = |n: &roxmltree::Node| n.attribute("points").unwrap().split_whitespace().count();
    for colour in ["#5A5A5A", "#0072B2"] {
        let curves: Vec<_> = lines.iter().filter(|n| n.attribute("stroke") == Some(colour)).collect();
        assert_eq!(curves.len(), 3, "{colour}");
        assert_eq!(curves.iter().filter(|n| (50..=4000).contains(&length(n))).count(), 2, "{colour}");
    }
    let words: String = xml.descendants().filter(|n| n.is_text()).filter_map(|n| n.text()).collect();
    for word in ["NVIDIA H200 (simulated)", "3.0 s", "1 s average", "ring", "power (W)", "(s)", "GPU 1"] {
        assert!(words.contains(word), "{word} in {words}");
    }
    let fonts: BTreeSet<_> = xml.descendants().filter_map(|n| n.attribute("font-family")).collect();
    assert_eq!(fonts, BTreeSet::from(["sans-serif"]));
    assert!(!picture.contains("href") && !picture.contains("<script"));
}

#[test]
fn a_killed_recording_is_exported_up_to_its_last_flush() {
    let dir = tempfile::tempdir().unwrap();
    let (live, killed) = (dir.path().join("live"), dir.path().join("killed"));
    let mut recorder = std::process::Command::new(BINARY)
        .args(["record", "--device", "sim:h200", "-o", text(&live), "--duration", "60"])
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(3500));
    Command::new("cp").args(["-r", text(&live), text(&killed)]).assert().success();
    let of_live = gpumon(&["export", text(&live)]);
    recorder.kill().unwrap();
    recorder.wait().unwrap();
    let table = csv(&done(&["export", text(&killed)]), WIDE);
    assert!(table.len() >= 10, "{}", table.len());
    assert_eq!(table.len(), rows::<FastRow>(&killed).len());
    assert!(csv(&String::from_utf8(of_live.stdout).unwrap(), WIDE).len() >= table.len());
    assert!(done(&["export", text(&killed), "--format", "svg"]).contains("<polyline"));
    assert_eq!(csv(&done(&["export", text(&killed), "--format", "gmonitor"]), GMONITOR).len(), table.len());
}

#[test]
fn the_guide_names_the_columns() {
    let guide = include_str!("../docs/export.md");
    let schema = include_str!("../docs/schema.md");
    for column in WIDE.split(',').chain(GMONITOR.split(',')) {
        let in_a_lane = schema.contains(&format!("| `{column}` |"));
        assert!(in_a_lane || guide.contains(&format!("`{column}`")), "{column}");
    }
}
