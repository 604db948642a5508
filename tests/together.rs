//! `fit --sets` and `predict --together` on the sets that were measured on an H200.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is a test's report, in its helpers too")]

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use gpumon_core::set;
use serde_json::Value;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data/runs/2026-12-01-h200-profile").join(name)
}

struct Desk(tempfile::TempDir);

impl Desk {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.path().join(name), text).unwrap();
    }

    fn gpumon(&self, args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_gpumon")).args(args).current_dir(self.0.path()).output().unwrap()
    }

    /// Standard output.
    #[track_caller]
    fn works(&self, args: &[&str]) -> String {
        let out = self.gpumon(args);
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    }

    /// What it says when it fails.
    #[track_caller]
    fn fails(&self, args: &[&str]) -> String {
        let out = self.gpumon(args);
        assert_eq!(out.status.code(), Some(1), "{}", String::from_utf8_lossy(&out.stdout));
        String::from_utf8(out.stderr).unwrap()
    }

    fn fit(&self) -> String {
        let (grid, sets) = (data("grid.parquet"), data("sets.parquet"));
        let [grid, sets] = [grid, sets].map(|path| path.display().to_string());
        self.works(&["fit", &grid, "--cap-w", "700", "--sets", &sets, "-o", "m.json"])
    }
}

fn rows(csv: &str) -> Vec<HashMap<String, String>> {
    csv::Reader::from_reader(csv.as_bytes()).deserialize().map(Result::unwrap).collect()
}

#[test]
fn sets_are_fitted_kept_and_predicted_in_the_order_of_the_rows() {
    let desk = Desk::new();
    let said = desk.fit();
    assert!(said.contains("40 sets of models on one GPU, 7 at the power limit"), "{said}");
    for rule in ["contention", "enertune", "additive", "gpulets"] {
        assert!(said.lines().any(|line| line.starts_with(rule)), "{said}");
    }
    let model: Value =
        serde_json::from_str(&std::fs::read_to_string(desk.0.path().join("m.json")).unwrap()).unwrap();
    assert_eq!((&model["schema"], &model["colocation"]["rule"]), (&1.into(), &"contention".into()));

    // The file of sets itself, its members shuffled: last rows first.
    let mut sets = set::read(&data("sets.parquet")).unwrap();
    sets.reverse();
    let path = desk.0.path().join("sets.csv");
    set::write(&path, &sets).unwrap();
    let answers = rows(&desk.works(&["predict", "m.json", "--points", "sets.csv", "--together"]));
    assert_eq!(answers.len(), sets.len());
    let number = |row: &HashMap<String, String>, column: &str| row[column].parse::<f64>().unwrap();
    let (mut power, mut slow, mut limited) = (0.0, 0.0, 0);
    for (row, measured) in answers.iter().zip(&sets) {
        assert_eq!((&row["model"], row["set"].parse()), (&measured.model, Ok(measured.set)));
        for figure in ["pred_slowdown", "pred_latency", "pred_throughput", "pred_avg_power_draw"] {
            let [low, high] = ["low", "high"].map(|end| number(row, &format!("{figure}_{end}")));
            assert!(low <= number(row, figure) && number(row, figure) <= high, "{figure} of {row:?}");
        }
        assert!(number(row, "pred_slowdown") >= 1.0 && number(row, "pred_avg_power_draw_high") <= 700.0);
        power += (number(row, "pred_avg_power_draw") / measured.avg_power_draw.unwrap() - 1.0).abs();
        slow += (number(row, "pred_latency") / measured.latency.unwrap() - 1.0).abs();
        limited += i32::from(row["at_power_limit"] == "true");
        assert_eq!((row["pred_duty"].as_str(), row["simulated"].as_str()), ("1", "false"));
    }
    let n = sets.len() as f64;
    assert!(power / n < 0.03 && slow / n < 0.05, "{} {}", power / n, slow / n);
    assert!(limited > 10, "members of sets at the limit: {limited}");
}

#[test]
fn a_member_alone_is_its_own_prediction_and_json_says_the_same_as_csv() {
    let desk = Desk::new();
    desk.fit();
    desk.write("alone.csv", "set,model,batch_size,share,frequency\nx,gpt,8,0.57,1980\n");
    let alone = rows(&desk.works(&["predict", "m.json", "--points", "alone.csv"]));
    let together = rows(&desk.works(&["predict", "m.json", "--points", "alone.csv", "--together"]));
    let near = |column: &str| {
        let [a, b] = [&alone, &together].map(|rows| rows[0][column].parse::<f64>().unwrap());
        assert!((a / b - 1.0).abs() < 1e-9, "{column}: {a} {b}");
    };
    ["pred_latency", "pred_throughput", "pred_avg_power_draw"].into_iter().for_each(near);
    assert_eq!((together[0]["set"].as_str(), together[0]["pred_slowdown"].as_str()), ("x", "1"));

    let points =
        "set,model,batch_size,share,frequency,rate_rps\n1,gpt,8,0.5,1980,\n1,whisper,8,0.5,1980,40\n";
    desk.write("part.csv", points);
    let csv = rows(&desk.works(&["predict", "m.json", "--points", "part.csv", "--together"]));
    let json = desk.works(&["predict", "m.json", "--points", "part.csv", "--together", "--json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    for (i, row) in csv.iter().enumerate() {
        let point = json["points"][i].as_object().unwrap();
        assert_eq!(point.len(), row.len());
        for column in ["pred_slowdown", "pred_duty", "pred_throughput_low", "pred_avg_power_draw_high"] {
            assert_eq!(point[column].as_f64().unwrap(), row[column].parse::<f64>().unwrap(), "{column}");
        }
    }
    assert_eq!(csv[1]["pred_throughput"], "40");
    assert!(csv[1]["pred_duty"].parse::<f64>().unwrap() < 0.2);
}

#[test]
fn sets_that_cannot_be_are_explained() {
    let desk = Desk::new();
    desk.fit();
    let said = |points: &str| {
        desk.write("p.csv", points);
        desk.fails(&["predict", "m.json", "--points", "p.csv", "--together"])
    };
    let head = "set,model,batch_size,share,frequency\n";
    assert!(
        said("model,batch_size,share,frequency\ngpt,1,0.5,1980\n")
            .contains("line 1: there is no column `set`")
    );
    let wide = said(&format!("{head}7,gpt,1,0.7,1980\n7,bert,1,0.5,1980\n"));
    assert!(wide.contains("set `7` (lines 2, 3): the shares add up to 1.200"), "{wide}");
    let unknown = said(&format!("{head}7,gpt,1,0.5,1980\n7,gptt,1,0.5,1980\n"));
    assert!(unknown.contains("line 3: no model `gptt`") && unknown.contains("it has resnet50"), "{unknown}");
    assert!(said(&format!("{head},gpt,1,0.5,1980\n")).contains("line 2: `set` is empty"));
    let clocks = said(&format!("{head}7,gpt,1,0.5,1980\n7,bert,1,0.5,1500\n"));
    assert!(clocks.contains("one clock for all models"), "{clocks}");
    let mig = "set,model,batch_size,mig_slices,frequency\n1,gpt,1,3,1980\n1,gpt,2,3,1980\n1,bert,1,1,1980\n";
    assert!(said(mig).contains("3 + 3 + 1 slices do not fit"));
    let both =
        "set,model,batch_size,mig_slices,share,frequency\n1,gpt,1,3,0.4286,1980\n1,bert,1,1,0.5,1980\n";
    let both = said(both);
    assert!(both.contains("line 3: `share` is 0.5 beside 1 of 7 slices, which is 0.1429"), "{both}");
    let alone = desk.fails(&["predict", "m.json", "--points", "p.csv"]);
    assert!(alone.contains("line 3: `share` is 0.5 beside"), "{alone}");
    let rate = "set,model,batch_size,share,frequency,rate_rps\n1,gpt,1,0.5,1980,-3\n";
    assert!(said(rate).contains("line 2: `rate_rps` is `-3`"));
}

#[test]
fn sets_that_cannot_be_fitted_are_explained() {
    let desk = Desk::new();
    let sets = set::read(&data("sets.parquet")).unwrap();
    let grid = data("grid.parquet").display().to_string();
    let said = |rows: &[set::SetRow]| {
        set::write(&desk.0.path().join("s.csv"), rows).unwrap();
        desk.fails(&["fit", &grid, "--sets", "s.csv", "-o", "m.json"])
    };
    let mut few: Vec<_> = sets.iter().filter(|r| r.set < 8).cloned().collect();
    few.iter_mut().filter(|r| r.set == 3).for_each(|r| r.valid = false);
    let few = said(&few);
    assert!(few.contains("the sets `s.csv`") && few.contains("7 usable sets, but at least 8"), "{few}");
    assert!(few.contains("1 sets: marked invalid"), "{few}");
    let mut other = sets;
    other[0].gpu_name = Some("NVIDIA A100".into());
    assert!(said(&other).contains("the sets are of `NVIDIA A100`, the models of `NVIDIA H200`"));
    assert!(!desk.0.path().join("m.json").exists());

    // A file without sets still predicts them: nobody slows down, and no bounds are claimed.
    desk.works(&["fit", &grid, "-o", "m.json"]);
    desk.write("p.csv", "set,model,batch_size,share,frequency\n1,gpt,1,0.5,1980\n1,bert,1,0.5,1980\n");
    let out = desk.gpumon(&["predict", "m.json", "--points", "p.csv", "--together"]);
    assert!(String::from_utf8_lossy(&out.stderr).contains("no measured sets"));
    let row = &rows(&String::from_utf8(out.stdout).unwrap())[0];
    assert_eq!((row["pred_slowdown"].as_str(), row["pred_latency_low"].as_str()), ("1", ""));
}

#[test]
fn gpulets_leaves_room_for_the_slowdown_of_measured_sets() {
    let desk = Desk::new();
    desk.fit();
    let model = std::fs::read_to_string(desk.0.path().join("m.json")).unwrap();
    let mut alone: Value = serde_json::from_str(&model).unwrap();
    alone.as_object_mut().unwrap().remove("colocation");
    desk.write("alone.json", &alone.to_string());
    let mut workload = "[cluster]\ngpu = \"h200\"\nsharing = \"mps\"\n".to_owned();
    for name in ["resnet50", "vgg19", "densenet161", "bert", "gpt", "whisper"] {
        workload += &format!("[[model]]\nname = \"{name}\"\nlatency_slo_ms = 120\nrate_rps = 900\n");
    }
    desk.write("w.toml", &workload);
    let place = |models: &str| -> Value {
        let args = ["place", "--system", "gpulets", "-w", "w.toml", "--models", models];
        serde_json::from_str(&desk.works(&args)).unwrap()
    };
    let [together, alone] = ["m.json", "alone.json"].map(place);
    let gpus = |plan: &Value| plan["gpus"].as_array().unwrap().len();
    assert!(gpus(&together) > gpus(&alone), "{} {}", gpus(&together), gpus(&alone));

    // Both partitions of a GPU at the share, batch and rate of the plan, as `predict --together` sees them.
    let mut points = "set,model,batch_size,share,frequency\n".to_owned();
    let mut planned = Vec::new();
    for (set, gpu) in together["gpus"].as_array().unwrap().iter().enumerate() {
        let partitions = gpu["partitions"].as_array().unwrap();
        if partitions.len() != 2 || partitions.iter().any(|p| p.get("turn").is_some()) {
            continue;
        }
        for p in partitions {
            let share = p["share_pct"].as_f64().unwrap() / 100.0;
            points += &format!("{set},{},{},{share},1980\n", p["model"].as_str().unwrap(), p["batch"]);
            planned.push(p.clone());
        }
    }
    desk.write("planned.csv", &points);
    let predicted = rows(&desk.works(&["predict", "m.json", "--points", "planned.csv", "--together"]));
    assert!(predicted.len() >= 4, "{together}");
    for (row, p) in predicted.iter().zip(&planned) {
        let slowed_ms = p["latency_ms"].as_f64().unwrap() * row["pred_slowdown"].parse::<f64>().unwrap();
        assert!(2.0 * slowed_ms <= 120.0 * (1.0 + 1e-9), "{row:?} {p}");
        let able_rps = 1e3 * p["batch"].as_f64().unwrap() / slowed_ms;
        assert!(able_rps >= p["rate_rps"].as_f64().unwrap() * (1.0 - 1e-6), "{able_rps} {row:?} {p}");
    }
}
