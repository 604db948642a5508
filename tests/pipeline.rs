//! Profile, fit, predict, place: the whole chain on simulated models, and what it says of bad input.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is a test's report, in its helpers too")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

const WORKLOAD: &str = "[cluster]\ngpu = \"a100\"\nsharing = \"mig\"\n
[[model]]\nname = \"resnet50-like\"\nlatency_slo_ms = 60\nrate_rps = 600\nrun = [\"serve\", \"it's a model\"]\n
[[model]]\nname = \"bert-like\"\nlatency_slo_ms = 120\nrate_rps = 60\nrun = [\"serve\", \"bert\"]\n";

/// gpumon in a folder of its own.
struct Desk(tempfile::TempDir);

impl Desk {
    fn new() -> Self {
        let desk = Self(tempfile::tempdir().unwrap());
        fs::write(desk.path().join("w.toml"), WORKLOAD).unwrap();
        desk
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn gpumon(&self, args: &str) -> Output {
        let args = args.split_whitespace();
        Command::new(env!("CARGO_BIN_EXE_gpumon")).args(args).current_dir(self.path()).output().unwrap()
    }

    #[track_caller]
    fn works(&self, args: &str) -> String {
        let output = self.gpumon(args);
        assert!(output.status.success(), "{args}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    #[track_caller]
    fn fails(&self, args: &str, says: &str) {
        let output = self.gpumon(args);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(matches!(output.status.code(), Some(1 | 2)), "{args}: {:?}", output.status);
        assert!(stderr.contains(says) && !stderr.contains("panicked"), "{args}: {stderr}");
    }
}

#[test]
fn a_workload_becomes_a_plan() {
    let desk = Desk::new();
    desk.works("profile --device sim:a100 -w w.toml -o p.parquet --design lhs:0.2");
    let quality = desk.works("fit p.parquet -o m.json");
    assert!(quality.contains("simulated") && quality.contains("bert-like"), "{quality}");

    fs::write(
        desk.path().join("points.csv"),
        "model,batch_size,mig_slices,frequency,latency\nbert-like,4,2,900,7\n",
    )
    .unwrap();
    let predicted = desk.works("predict m.json --points points.csv");
    let mut lines = predicted.lines();
    let header = lines.next().unwrap();
    assert!(
        header.starts_with(
            "model,batch_size,mig_slices,frequency,pred_avg_power_draw,pred_avg_power_draw_low,"
        )
    );
    assert!(header.ends_with(",pred_latency_p99_high,extrapolated,simulated"), "{header}");
    let row: Vec<&str> = lines.next().unwrap().split(',').collect();
    assert_eq!((row.len(), lines.next()), (21, None));
    assert_eq!(row[19..], ["false", "true"]);
    let (low, value, high) =
        (row[5].parse::<f64>().unwrap(), row[4].parse::<f64>().unwrap(), row[6].parse::<f64>().unwrap());
    assert!(low < value && value < high && value > 30.0);

    for (source, name) in [("--profile p.parquet", "measured"), ("--models m.json", "predicted")] {
        desk.works(&format!(
            "place -w w.toml {source} --objective average-power -o {name}.json --emit sh --emit-to {name}"
        ));
        let plan = fs::read_to_string(desk.path().join(format!("{name}.json"))).unwrap();
        let plan: Value = serde_json::from_str(&plan).unwrap();
        assert_eq!((&plan["system"], &plan["simulated"]), (&"enertune".into(), &true.into()));
        let gpus = plan["gpus"].as_array().unwrap();
        let served: usize = gpus.iter().map(|g| g["partitions"].as_array().unwrap().len()).sum();
        assert_eq!(served, 2);
        assert!(plan["total"]["average_power_w"].as_f64().unwrap() > 30.0);
        let scripts: Vec<_> =
            fs::read_dir(desk.path().join(name)).unwrap().map(|f| f.unwrap().path()).collect();
        assert_eq!(scripts.len(), gpus.len());
        for script in scripts {
            assert!(Command::new("sh").arg("-n").arg(&script).status().unwrap().success());
        }
    }
    desk.fails("place -w w.toml --models m.json -o measured.json", "--force");
    desk.fails("fit p.parquet -o m.json", "--force");
    desk.fails("profile --device sim:a100 -w w.toml -o p.parquet", "exists already");
}

#[test]
fn a_sweep_can_be_recorded_and_held_out_points_seen() {
    let desk = Desk::new();
    desk.works("profile --device sim:a100 -w w.toml -o p.csv --design lhs:0.1 --record sweep");
    let summary: Value = serde_json::from_str(&desk.works("summary sweep --json")).unwrap();
    let rows = fs::read_to_string(desk.path().join("p.csv")).unwrap().lines().count() - 1;
    assert_eq!(summary["events"]["mark"], rows, "a mark a row");
    assert_eq!((&summary["simulated"], &summary["missed_ticks"]), (&true.into(), &0.into()));
    desk.works("fit p.csv -o m.json --held-out h.csv");
    let held_out = fs::read_to_string(desk.path().join("h.csv")).unwrap();
    let (header, first) = (held_out.lines().next().unwrap(), held_out.lines().nth(1).unwrap());
    assert!(
        header.starts_with("model,batch_size,mig_slices,share,frequency,avg_power_draw,pred_avg_power_draw,")
    );
    let cells: Vec<&str> = first.split(',').collect();
    let (measured, predicted): (f64, f64) = (cells[5].parse().unwrap(), cells[6].parse().unwrap());
    assert!((predicted / measured - 1.0).abs() < 0.5, "{first}");
    desk.fails("fit p.csv -o m2.json --held-out h.csv", "--force");
    desk.fails("profile --device sim:a100 -w w.toml -o p2.csv --record sweep", "exists");
    assert!(!desk.path().join("m2.json").exists() && !desk.path().join("p2.csv").exists());
    fs::write(desk.path().join("p3.csv.journal"), "").unwrap();
    desk.fails("profile --device sim:a100 -w w.toml -o p3.csv --record sweep3", "leave --record out");
}

#[test]
fn an_infeasible_model_is_named_with_what_is_nearest() {
    let desk = Desk::new();
    fs::write(desk.path().join("tight.toml"), WORKLOAD.replace("120", "0.001")).unwrap();
    desk.works("profile --device sim:a100 -w w.toml -o p.csv --design lhs:0.1");
    desk.fails("place -w tight.toml --profile p.csv -o plan.json", "bert-like");
    assert!(!desk.path().join("plan.json").exists(), "nothing is left under the final name");
    desk.fails("place -w w.toml --profile p.csv --system nobody", "enertune");
    desk.fails("place -w w.toml --profile p.csv --load -1", "--load");
    desk.fails("place -w w.toml --profile p.csv --objective speed", "energy-per-request");
}

#[test]
fn bad_files_are_named_with_line_and_column() {
    let desk = Desk::new();
    let write = |name: &str, text: &str| fs::write(desk.path().join(name), text).unwrap();
    let header =
        "model,batch_size,mig_slices,frequency,avg_power_draw,dynamic_power_draw,throughput,latency\n";
    write("negative.csv", &format!("{header}m,1,1,900,50,-5,10,100\n"));
    write("short.csv", &format!("{header}m,1,1\n"));
    write("empty.csv", "");
    write("nan.csv", &format!("{header}m,1,1,900,50,5,NaN,100\n"));
    write("infinite.csv", &format!("{header}m,1,1,900,50,5,10,100\nm,2,1,900,50,5,inf,100\n"));
    write("missing.csv", &format!("{header}m,1,1,900,50,5,10,\n"));
    write("word.csv", &format!("{header}m,two,1,900,50,5,10,100\n"));
    write("unknown.toml", &WORKLOAD.replace("bert-like", "no-such-model"));
    write("nothing.toml", "[cluster]\ngpu = \"a100\"\n");
    write("load.toml", &WORKLOAD.replace("rate_rps = 60\n", "rate_rps = 60\nmax_load = 0\n"));
    desk.works("profile --device sim:a100 -w w.toml -o good.csv --design lhs:0.1");
    desk.works("fit good.csv -o good.json --form physical");
    write("gpu.toml", &WORKLOAD.replace("a100", "b7"));
    write("future.json", "{\"schema\": 99, \"gpumon_version\": \"9.9\"}");
    for (args, says) in [
        ("fit negative.csv -o m.json", "line 2"),
        ("fit short.csv -o m.json", "line 2"),
        ("fit empty.csv -o m.json", "empty"),
        ("fit nan.csv -o m.json", "line 2, column `throughput`"),
        ("fit infinite.csv -o m.json", "line 3, column `throughput`"),
        ("fit missing.csv -o m.json", "line 2, column `latency`"),
        ("fit word.csv -o m.json", "line 2, column `batch_size`"),
        (
            "place -w unknown.toml --models good.json -o plan.json",
            "no model `no-such-model`; it has resnet50-like",
        ),
        ("place -w unknown.toml --profile good.csv -o plan.json", "`no-such-model` has no usable row"),
        ("profile --device sim:a100 -w unknown.toml -o p.csv", "sim:resnet50-like"),
        ("place -w nothing.toml --profile good.csv -o plan.json", "no [[model]] is listed"),
        ("place -w load.toml --profile good.csv -o plan.json", "max_load of `bert-like`"),
        ("place -w w.toml --profile good.csv --emit sh", "--emit-to"),
        ("fit nowhere.csv -o m.json", "nowhere.csv"),
        ("place -w gpu.toml --profile negative.csv", "cluster.gpu"),
        ("place -w w.toml", "--models"),
        ("predict future.json --points short.csv", "99"),
        ("profile --device sim:a100 -w w.toml -o p.txt", "p.txt"),
        ("profile -w w.toml -o p.csv --device odd", "sim:"),
        ("profile --device sim:a100 -w w.toml -o p.csv --slices 5", "5"),
    ] {
        desk.fails(args, says);
    }
    for never in ["m.json", "p.csv", "plan.json", "plan-sh"] {
        assert!(!desk.path().join(never).exists(), "{never}");
    }
}

#[test]
fn a_fit_that_misses_its_own_points_is_named_and_a_good_one_is_not() {
    let desk = Desk::new();
    let mut rows = String::from(
        "model,batch_size,mig_slices,frequency,avg_power_draw,dynamic_power_draw,throughput,latency\n",
    );
    for (number, batch) in [1, 2, 4, 8, 16, 32].into_iter().enumerate() {
        for slices in [1, 2, 3, 4, 7] {
            // The lawful one takes the slices' share of 1 ms an item; the other's throughput has no law.
            let watts = 10 * slices;
            let mut row = |model: &str, rate: f64| {
                let ms = 1e3 * f64::from(batch) / rate;
                rows += &format!("{model},{batch},{slices},900,{},{watts},{rate},{ms}\n", 50 + watts);
            };
            row("lawful", 1000.0 * f64::from(slices) / 7.0);
            row("lawless", 10_f64.powi((number as i32 * 5 + slices * 3) % 4));
        }
    }
    fs::write(desk.path().join("p.csv"), rows).unwrap();
    let output = desk.gpumon("fit p.csv -o m.json");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    let line = said.lines().find(|line| line.contains("points left out of the fit are missed by batch time"));
    assert!(line.is_some_and(|line| line.contains("`lawless`") && line.contains("--held-out")), "{said}");
    assert!(!said.lines().any(|line| line.contains("`lawful`") && line.contains("missed by")), "{said}");
}
