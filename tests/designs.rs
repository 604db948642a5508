//! Designs of `gpumon profile` on simulated models: adaptive, replayed, in parts, merged.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is a test's report, in its helpers too")]

use std::path::{Path, PathBuf};
use std::process::Command;

use gpumon_core::profile::ProfileRow;
use gpumon_core::profile_io;
use gpumon_fit::active::Belief;
use gpumon_fit::base::BasePower;
use gpumon_fit::point::{Observations, Point};
use serde_json::Value;

const WORKLOAD: &str =
    "[cluster]\ngpu = \"a100\"\nsharing = \"mig\"\nfrequencies_mhz = [210, 510, 810, 1110, 1410]\n
[[model]]\nname = \"resnet50-like\"\nlatency_slo_ms = 60\nrate_rps = 100\n
[[model]]\nname = \"bert-like\"\nlatency_slo_ms = 60\nrate_rps = 100\n";

struct Desk(tempfile::TempDir);

impl Desk {
    fn new() -> Self {
        let desk = Self(tempfile::tempdir().unwrap());
        std::fs::write(desk.path("w.toml"), WORKLOAD).unwrap();
        desk
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Whether it worked, standard output, standard error.
    fn gpumon(&self, args: &str) -> (bool, String, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpumon"));
        let output = command.args(args.split_whitespace()).current_dir(self.0.path()).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.success(), text(output.stdout), text(output.stderr))
    }

    #[track_caller]
    fn works(&self, args: &str) -> String {
        let (worked, stdout, stderr) = self.gpumon(args);
        assert!(worked, "{args}: {stderr}");
        stdout
    }

    #[track_caller]
    fn fails(&self, args: &str, says: &str) {
        let (worked, _, stderr) = self.gpumon(args);
        assert!(!worked && stderr.contains(says), "{args}: {stderr}");
    }

    /// Begins a sweep and kills it once its journal holds so many rows.
    fn stopped(&self, output: &str, more: &str, after: usize) {
        let journal = self.path(&format!("{output}.journal"));
        let args = format!("profile --device sim:a100 -w w.toml -o {output} {more}");
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpumon"));
        command.args(args.split_whitespace()).current_dir(self.0.path()).stderr(std::process::Stdio::null());
        let mut child = command.spawn().unwrap();
        while child.try_wait().unwrap().is_none() {
            let text = std::fs::read_to_string(&journal).unwrap_or_default();
            if text.lines().count() > after {
                child.kill().unwrap();
                child.wait().unwrap();
                break;
            }
        }
        assert!(journal.exists(), "the sweep ended before it was killed");
    }

    fn sweep(&self, output: &str, more: &str) -> String {
        self.works(&format!("profile --device sim:a100 -w w.toml -o {output} {more}"))
    }
}

fn rows(path: &Path) -> Vec<ProfileRow> {
    profile_io::read(path).unwrap().rows
}

/// Medians of the relative errors of batch time and total power at points of `grid` that `measured` lacks, and the larger of
/// what was expected.
fn errors(grid: &[ProfileRow], measured: &[ProfileRow], model: &str) -> ([f64; 2], f64) {
    let all = Observations::of(model, grid);
    let points: Vec<Point> = all.points.iter().map(|o| o.point).collect();
    let before: Vec<ProfileRow> = measured.iter().take_while(|r| r.model != model).cloned().collect();
    let known: Vec<Observations> = ["resnet50-like", "bert-like"]
        .iter()
        .filter(|other| **other != model)
        .map(|other| Observations::of(other, &before))
        .collect();
    let base = BasePower::of_rows(&before).unwrap();
    let mut belief = Belief::new(&points, &known, Some(&base), None).unwrap();
    let mut seen = Vec::new();
    for row in measured.iter().filter(|r| r.model == model) {
        let observation = Observations::of(model, std::slice::from_ref(row)).points.remove(0);
        assert!(belief.see(&observation));
        seen.push(observation.point);
    }
    let mut all_errors = [Vec::new(), Vec::new()];
    for (i, o) in all.points.iter().enumerate().filter(|(_, o)| !seen.contains(&o.point)) {
        let estimate = belief.at(i).unwrap();
        all_errors[0].push((estimate.batch_time_ms / o.batch_time_ms().unwrap() - 1.0).abs());
        all_errors[1].push((estimate.average_w.unwrap() / o.average_w.unwrap() - 1.0).abs());
    }
    let medians = all_errors.map(|mut list| {
        list.sort_by(f64::total_cmp);
        list[list.len() / 2]
    });
    (medians, belief.expected_error().larger())
}

#[test]
fn an_adaptive_sweep_stops_and_its_expected_error_is_honest() {
    let desk = Desk::new();
    desk.sweep("full.csv", "");
    let said: Value =
        serde_json::from_str(&desk.sweep("chosen.csv", "--design adaptive:0.5,err=0.03 --json")).unwrap();
    let (grid, chosen) = (rows(&desk.path("full.csv")), rows(&desk.path("chosen.csv")));
    for model in said["models"].as_array().unwrap() {
        let name = model["model"].as_str().unwrap();
        let points = model["points"].as_u64().unwrap();
        assert!(model["reached"] == true && (5..60).contains(&points), "{model}");
        let ([time, power], expected) = errors(&grid, &chosen, name);
        println!("{name}: {points} points, expected {expected:.4}, in truth {time:.4} and {power:.4}");
        let told = model["expected_error_pct"].as_f64().unwrap() / 100.0;
        assert!((told / expected - 1.0).abs() < 0.1, "{told} {expected}");
        assert!(time < 2.0 * told && power < 2.0 * told, "{name}: {time} {power}, told {told}");
    }
}

#[test]
fn a_replay_takes_the_grid_s_rows_and_says_where_from() {
    let desk = Desk::new();
    desk.sweep("full.parquet", "");
    let text =
        desk.works("profile --from full.parquet -o r.csv --design adaptive:0.05 --models bert-like --json");
    let said: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&said["models"][0]["points"], &said["models"][0]["reached"]), (&8.into(), &Value::Null));
    let (grid, replayed) = (rows(&desk.path("full.parquet")), rows(&desk.path("r.csv")));
    assert_eq!(replayed.len(), 10 + 8);
    let total: f64 = replayed.iter().filter_map(|r| r.wall_s).sum();
    assert!((said["total_s"].as_f64().unwrap() / total - 1.0).abs() < 1e-9);
    for row in &replayed {
        assert!(row.reason.as_deref().is_some_and(|t| t.ends_with("replayed from full.parquet")));
        assert!(grid.iter().any(|g| g.key() == row.key() && g.avg_power_draw == row.avg_power_draw));
    }
    desk.fails("profile --from full.parquet -o r.csv", "exists already");
    desk.fails(
        "profile --from full.parquet -o x.csv --models none",
        "its models are `resnet50-like`, `bert-like`",
    );
    desk.fails("profile --from full.parquet -o x.csv --shard 1/2", "cannot be used with");
    desk.fails("profile -o x.csv", "--workload");
}

#[test]
fn parts_make_the_whole() {
    let desk = Desk::new();
    for part in 1..=3 {
        desk.sweep(&format!("{part}.csv"), &format!("--batches 1,8 --shard {part}/3"));
    }
    desk.sweep("whole.csv", "--batches 1,8");
    desk.works("merge 1.csv 2.csv 3.csv -o all.csv");
    desk.works("merge 3.csv 1.csv 2.csv all.csv -o again.csv");
    let keys = |name: &str| {
        let mut keys: Vec<_> = rows(&desk.path(name)).iter().map(ProfileRow::key).collect();
        keys.sort();
        keys
    };
    assert_eq!(keys("all.csv"), keys("whole.csv"));
    assert_eq!(std::fs::read(desk.path("all.csv")).unwrap(), std::fs::read(desk.path("again.csv")).unwrap());
    desk.fails("merge all.csv whole.csv -o x.csv", "contradict each other");
    desk.fails("merge 1.csv 2.csv -o all.csv", "--force");
    desk.fails("profile --device sim:a100 -w w.toml -o x.csv --shard 4/3", "I from 1 to N");
    desk.fails(
        "profile --device sim:a100 -w w.toml -o x.csv --shard 1/2 --design adaptive:0.1",
        "models of its own",
    );
    desk.fails(
        "profile --device sim:a100 -w w.toml -o x.csv --batches 1 --slices 7 --shard 90/99",
        "fewer points than parts",
    );
}

#[test]
fn simulated_models_at_work_together_slow_each_other_down_the_same_way_each_time() {
    let desk = Desk::new();
    let mps = WORKLOAD.replace("\"mig\"", "\"mps\"");
    let third = "[[model]]\nname = \"densenet-like\"\nlatency_slo_ms = 60\nrate_rps = 100\n";
    std::fs::write(desk.path("w.toml"), format!("{mps}{third}")).unwrap();
    let points = "--shares 29,57 --batches 8,32 --clocks 1110,1410";
    desk.sweep("alone.csv", points);
    let together = format!("{points} --together 5 --alone alone.csv --json");
    let report: Value = serde_json::from_str(&desk.sweep("a.parquet", &together)).unwrap();
    assert_eq!(
        (&report["simulated"], &report["sets"], &report["valid"]),
        (&true.into(), &5.into(), &5.into())
    );
    desk.sweep("b.parquet", &together);
    let read = |name: &str| gpumon_core::set::read(&desk.path(name)).unwrap();
    let rows = read("a.parquet");
    assert_eq!(rows, read("b.parquet"));
    assert!(rows.iter().all(|r| r.simulated == Some(true) && r.valid), "{rows:?}");
    assert!(rows.iter().all(|r| r.slowdown > Some(0.97) && r.dynamic_power_draw > Some(30.0)), "{rows:?}");
    desk.sweep("c.parquet", &format!("{together} --seed 2"));
    assert_ne!(rows, read("c.parquet"));
    // Members of other models than the simulated ones are named.
    std::fs::write(desk.path("w.toml"), mps.replace("bert-like", "mine")).unwrap();
    desk.fails(&format!("profile --device sim:a100 -w w.toml -o d.csv {points} --together 2"), "sim:mine");
}

#[test]
fn an_optimal_design_is_planned_beforehand_shared_out_and_the_same_in_a_replay() {
    let desk = Desk::new();
    desk.sweep("full.csv", "");
    let said: Value = serde_json::from_str(&desk.sweep("six.csv", "--design optimal:0.08 --json")).unwrap();
    for model in said["models"].as_array().unwrap() {
        assert_eq!((&model["points"], &model["expected_error_pct"]), (&12.into(), &Value::Null), "{model}");
    }
    let keys = |name: &str| {
        let mut keys: Vec<_> =
            rows(&desk.path(name)).iter().filter(|r| !r.is_idle()).map(ProfileRow::key).collect();
        keys.sort();
        keys
    };
    let whole = keys("six.csv");
    assert_eq!(whole.len(), 24);
    desk.works("profile --from full.csv -o replayed.csv --design optimal:0.08");
    assert_eq!(keys("replayed.csv"), whole);
    // A plan of known points is shared out as any other.
    for part in 1..=2 {
        desk.sweep(&format!("{part}.csv"), &format!("--design optimal:0.08 --shard {part}/2"));
    }
    desk.works("merge 1.csv 2.csv -o both.csv");
    assert_eq!(keys("both.csv"), whole);
    // What is known of the other model changes the points; a model's own rows do not.
    desk.works("profile --from full.csv -o known.csv --design optimal:0.08 --prior full.csv");
    assert_ne!(keys("known.csv"), whole);
    desk.works("profile --from full.csv -o own.csv --design optimal:0.08 --models bert-like");
    let bert: Vec<ProfileRow> =
        rows(&desk.path("full.csv")).into_iter().filter(|r| r.model != "resnet50-like").collect();
    profile_io::write(&desk.path("bert.csv"), &bert).unwrap();
    let more = "--design optimal:0.08 --models bert-like --prior bert.csv";
    desk.works(&format!("profile --from full.csv -o same.csv {more}"));
    assert_eq!(keys("own.csv"), keys("same.csv"));
    desk.fails(
        "profile --device sim:a100 -w w.toml -o x.csv --design optimal:0.1 --power-limits 200,300",
        "leave --power-limits out",
    );
}

#[test]
fn a_design_that_learns_goes_on_with_what_it_began_with_only() {
    let desk = Desk::new();
    desk.sweep("full.csv", "");
    for (design, says) in [
        ("optimal:0.3", "points are others (space, design, seed, or the prior profiles"),
        ("adaptive:0.3", "depends on the profiles of --prior and on --cap-w"),
    ] {
        let sweep = format!("--design {design} --prior full.csv");
        desk.sweep("whole.csv", &sweep);
        let whole = rows(&desk.path("whole.csv"));
        std::fs::remove_file(desk.path("whole.csv")).unwrap();
        // A journal of the first rows, as a sweep that was stopped leaves it.
        desk.stopped("whole.csv", &sweep, 16);
        desk.fails(&format!("profile --device sim:a100 -w w.toml -o whole.csv --design {design}"), says);
        desk.sweep("whole.csv", &sweep);
        let again = rows(&desk.path("whole.csv"));
        let keys = |rows: &[ProfileRow]| rows.iter().map(ProfileRow::key).collect::<Vec<_>>();
        assert_eq!(keys(&again), keys(&whole));
        std::fs::remove_file(desk.path("whole.csv")).unwrap();
    }
}
