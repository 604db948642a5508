//! What the stages after recording do with input and output that is not as it should be.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is a test's report, in its helpers too")]

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

const HEADER: &str =
    "model,batch_size,mig_slices,frequency,avg_power_draw,dynamic_power_draw,throughput,latency\n";
const WORKLOAD: &str = "[cluster]\ngpu = \"a100\"\nsharing = \"mig\"\n
[[model]]\nname = \"m\"\nlatency_slo_ms = 60\nrate_rps = 100\nrun = [\"serve\", \"m\"]\n";
const BASE: &str = "frequency_mhz,static_w,fan_w,idle_w\n600,30,0,10\n900,35,0,15\n1200,40,0,20\n";

/// gpumon in a folder of its own.
struct Desk(tempfile::TempDir);

impl Desk {
    /// With a workload, base powers, and a profile of MIG slices and one of MPS shares.
    fn new() -> Self {
        let desk = Self(tempfile::tempdir().unwrap());
        desk.write("w.toml", WORKLOAD);
        desk.write("mps.toml", &WORKLOAD.replace("\"mig\"", "\"mps\""));
        desk.write("base.csv", BASE);
        desk.write("mig.csv", &profile("m", true));
        desk.write("mps.csv", &profile("m", false));
        desk
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    fn files(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(folder)).unwrap();
        let mut names: Vec<_> =
            entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    fn gpumon(&self, args: &str) -> Output {
        let args = args.split_whitespace();
        Command::new(env!("CARGO_BIN_EXE_gpumon")).args(args).current_dir(self.0.path()).output().unwrap()
    }

    /// Standard output and standard error.
    #[track_caller]
    fn works(&self, args: &str) -> (String, String) {
        let Output { status, stdout, stderr } = self.gpumon(args);
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let (stdout, stderr) = (text(stdout), text(stderr));
        assert!(status.success(), "{args}: {stderr}");
        (stdout, stderr)
    }

    #[track_caller]
    fn fails(&self, args: &str, says: &str) {
        let before = listing(self.0.path());
        let output = self.gpumon(args);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(matches!(output.status.code(), Some(1 | 2)), "{args}: {:?}, {stderr}", output.status);
        assert!(stderr.contains(says) && !stderr.contains("panicked"), "{args}: {stderr}");
        assert_eq!(listing(self.0.path()), before, "{args}: something has changed");
    }
}

/// Every file below a folder with its text.
fn listing(folder: &Path) -> Vec<(PathBuf, Option<Vec<u8>>)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(listing(&path));
        }
        all.push((path.clone(), fs::read(&path).ok()));
    }
    all.sort();
    all
}

/// Rows of a model that obeys a simple law.
fn profile(model: &str, mig: bool) -> String {
    let mut text = HEADER.to_owned();
    if !mig {
        text = text.replace("mig_slices", "share");
    }
    for mhz in [600, 900, 1200] {
        for share in if mig { [1.0, 2.0, 4.0, 7.0] } else { [0.2, 0.4, 0.6, 1.0] } {
            for batch in [1, 4, 16] {
                let sms = if mig { share / 7.0 } else { share };
                let ms = 1.0 + 1.5e3 * f64::from(batch) / (sms * f64::from(mhz));
                let dynamic_w = 0.1 * sms * f64::from(mhz);
                let base_w = 20.0 + f64::from(mhz) / 30.0;
                let rate = 1e3 * f64::from(batch) / ms;
                let _ = writeln!(
                    text,
                    "{model},{batch},{share},{mhz},{:.4},{dynamic_w:.4},{rate:.4},{ms:.4}",
                    base_w + dynamic_w
                );
            }
        }
    }
    text
}

#[test]
fn models_of_shares_are_placed_under_mps() {
    let desk = Desk::new();
    desk.works("fit mps.csv -o mps.json --base-power base.csv --form physical");
    desk.works("place --system dedicated -w mps.toml --models mps.json -o plan.json");
    let plan: Value = serde_json::from_str(&desk.read("plan.json")).unwrap();
    let pct = plan["gpus"][0]["partitions"][0]["share_pct"].as_f64().unwrap();
    assert!([20.0, 40.0, 60.0, 100.0].iter().any(|p| (p - pct).abs() < 1e-6), "{pct}");

    desk.works("fit mig.csv -o mig.json --base-power base.csv --form physical");
    desk.fails("place --system dedicated -w mps.toml --models mig.json", "fitted on MIG instances only");
    desk.fails("place -w w.toml --models mps.json", "fitted on shares that are no MIG instances");
    desk.fails("place -w w.toml --models mig.json --batches 64", "batches from 1 to 16");
    desk.write("slow.toml", &WORKLOAD.replace("sharing", "frequencies_mhz = [300]\nsharing"));
    desk.fails("place -w slow.toml --models mig.json", "from 600 to 1200 MHz, and none of the clocks 300");
}

#[test]
fn base_power_between_known_clocks_is_linear_for_models_only() {
    let desk = Desk::new();
    desk.works("fit mig.csv -o m.json --base-power base.csv --form physical");
    desk.write("between.toml", &WORKLOAD.replace("sharing", "frequencies_mhz = [750]\nsharing"));
    for base in ["", " --base-power base.csv"] {
        let (plan, _) = desk.works(&format!("place -w between.toml --models m.json{base}"));
        let plan: Value = serde_json::from_str(&plan).unwrap();
        assert_eq!(plan["gpus"][0]["base_w"].as_f64(), Some(45.0), "{plan}");
    }
    desk.fails("place -w between.toml --profile mig.csv --base-power base.csv", "no base power at 750 MHz");
}

#[test]
fn the_cheapest_plan_says_that_it_is_proven() {
    let desk = Desk::new();
    let place = "place -w w.toml --profile mig.csv --base-power base.csv";
    let (plan, said) = desk.works(&format!("{place} --system optimal"));
    assert!(said.contains("proven to be the cheapest"), "{said}");
    let plan: Value = serde_json::from_str(&plan).unwrap();
    assert_eq!((&plan["total"]["proven"], &plan["total"]["bound"]), (&true.into(), &plan["cost"]));
    let (_, said) = desk.works(&format!("{place} --system dedicated"));
    assert!(!said.contains("proven"), "{said}");
}

#[test]
fn gpulets_takes_turns_in_a_plan_but_not_in_run_scripts() {
    let desk = Desk::new();
    let names = ["a", "b", "c", "d", "e"];
    let head = WORKLOAD.split("[[model]]").next().unwrap().to_owned();
    let of = |name: &str| {
        format!("[[model]]\nname = \"{name}\"\nlatency_slo_ms = 100\nrate_rps = 20\nrun = [\"true\"]\n")
    };
    let models: String = names.map(of).concat();
    for (sharing, mig, place_key) in [("mig", true, "slices"), ("mps", false, "share_pct")] {
        desk.write("five.toml", &(head.replace("\"mig\"", &format!("\"{sharing}\"")) + &models));
        for name in names {
            desk.write(&format!("{name}.csv"), &profile(name, mig));
        }
        let files = names.map(|name| format!("--profile {name}.csv ")).concat();
        let place = format!("place --system gpulets -w five.toml {files} --base-power base.csv");
        let (plan, said) = desk.works(&place);
        assert!(said.contains("gpulets: 1 GPU"), "{said}");
        let plan: Value = serde_json::from_str(&plan).unwrap();
        let partitions = plan["gpus"][0]["partitions"].as_array().unwrap();
        assert_eq!(partitions.len(), 5);
        let shares: std::collections::BTreeSet<String> = partitions
            .iter()
            .map(|p| format!("{} {}", p["turn"]["partition"], p[place_key].as_f64().unwrap()))
            .collect();
        assert_eq!(shares.len(), 2, "{shares:?}");
        assert!(partitions.iter().all(|p| p["turn"]["round_ms"].as_f64().is_some_and(|ms| ms <= 100.0)));
        desk.fails(&format!("{place} -o plan.json --emit sh"), "takes turns with others in one partition");
        assert!(!desk.path("plan.json").exists());
    }
}

#[test]
fn no_usable_row_says_why() {
    let desk = Desk::new();
    let base = "--base-power base.csv";
    desk.write("n.csv", &profile("n", true));
    desk.fails(&format!("place -w w.toml --profile n.csv {base}"), "the profile has no row of it");
    desk.fails(&format!("place -w w.toml --profile mps.csv {base}"), "none of its rows is of a MIG instance");
    desk.fails(
        &format!("place --system dedicated -w mps.toml --profile mig.csv {base}"),
        "its rows are of MIG instances",
    );
    desk.write("clock.toml", &WORKLOAD.replace("sharing", "frequencies_mhz = [900]\nsharing"));
    desk.write("one.csv", &format!("{HEADER}m,1,1,600,50,10,100,10\nm,2,1,600,51,11,100,10\n"));
    desk.fails(&format!("place -w clock.toml --profile one.csv {base}"), "they are at 600 MHz");
    desk.write("equal.csv", &format!("{HEADER}m,1,1,600,50,50,100,10\nm,2,1,600,51,51,100,10\n"));
    desk.fails(&format!("place -w w.toml --profile equal.csv {base}"), "has a dynamic power");
}

#[test]
fn outputs_that_are_inputs_or_each_other_are_refused() {
    let desk = Desk::new();
    desk.works("fit mig.csv -o m.json --base-power base.csv --form physical");
    symlink("mig.csv", desk.path("link.csv")).unwrap();
    fs::hard_link(desk.path("mig.csv"), desk.path("hard.csv")).unwrap();
    symlink("new.json", desk.path("dangling.json")).unwrap();
    fs::create_dir(desk.path("s")).unwrap();
    for args in [
        "fit mig.csv -o mig.csv --force",
        "fit mig.csv -o link.csv --force",
        "fit link.csv -o hard.csv --force",
        "fit mig.csv -o new.json --base-power base.csv --held-out base.csv --force",
        "fit mig.csv -o same.json --held-out ./same.json --force",
        "fit mig.csv -o new.json --held-out dangling.json --force",
        "fit mig.csv -o - --held-out -",
        "place -w w.toml --models m.json -o m.json --force",
        "place -w w.toml --models m.json -o w.toml --force",
        "place -w w.toml --models m.json -o s/gpu0.sh --emit sh --emit-to s --force",
        "profile --device sim:a100 -w w.toml -o same.csv --record same.csv",
    ] {
        desk.fails(args, "of the same command");
    }
    fs::copy(desk.path("w.toml"), desk.path("x.csv.journal")).unwrap();
    desk.fails("profile --device sim:a100 -w x.csv.journal -o x.csv", "of the same command");
}

#[test]
fn a_plan_and_its_scripts_appear_together_or_not_at_all() {
    let desk = Desk::new();
    let place = "place -w w.toml --profile mig.csv --base-power base.csv --emit sh";
    desk.write("norun.toml", &WORKLOAD.replace("run = ", "# run = "));
    desk.fails(&place.replace("w.toml", "norun.toml").replace("sh", "sh -o p.json"), "has no `run`");
    fs::create_dir_all(desk.path("s/gpu0.sh")).unwrap();
    desk.fails(&format!("{place} -o p.json --emit-to s --force"), "is a folder");
    fs::remove_dir(desk.path("s/gpu0.sh")).unwrap();

    // A larger plan left more scripts.
    desk.works(&format!("{place} -o p.json --emit-to s"));
    let script = desk.read("s/gpu0.sh");
    assert!(!script.contains("Simulated"));
    desk.write("s/gpu7.sh", &script);
    desk.write("s/notes.txt", "mine");
    fs::remove_file(desk.path("s/gpu0.sh")).unwrap();
    desk.fails(&format!("{place} -o q.json --emit-to s"), "gpu7.sh` is not of this plan");
    desk.works(&format!("{place} -o q.json --emit-to s --force"));
    assert_eq!(desk.files("s"), ["gpu0.sh", "notes.txt"]);
    desk.write("s/gpu8.sh", "echo mine\n");
    desk.fails(&format!("{place} -o q.json --emit-to s --force"), "gpumon did not write it");
    desk.fails(&format!("{place} -o new.json --emit-to w.toml/x"), "w.toml/x");
    assert!(!desk.path("new.json").exists());
}

#[test]
fn manifests_and_mig_configurations_are_written_beside_the_plan() {
    let desk = Desk::new();
    let place = "place -w w.toml --profile mig.csv --base-power base.csv";
    let (_, said) =
        desk.works(&format!("{place} -o p.json --emit k8s --image registry.example/w:1 --gpu-memory-gb 80"));
    assert!(said.contains("GPU 0: label its node gpumon/gpu-0=true"), "{said}");
    let list: Value = serde_json::from_str(&desk.read("p-k8s/gpu0.json")).unwrap();
    let container = &list["items"][0]["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(
        (&container["command"][0], &container["image"]),
        (&"serve".into(), &"registry.example/w:1".into())
    );
    let (_, said) =
        desk.works(&format!("{place} -o q.json --emit mig-parted --gpu-memory-gb 80 --emit-to m"));
    assert!(said.contains("mig-parted cannot say where instances start"), "{said}");
    assert!(desk.read("m/mig-parted.yaml").contains("- devices: [0]\n      mig-enabled: true\n"));

    desk.works("place --system dedicated -w mps.toml --profile mps.csv --base-power base.csv -o r.json --emit k8s --image w");
    assert_eq!(desk.files("r-k8s"), ["device-plugin.json", "gpu0.json"]);

    let k8s = format!("{place} -o new.json --emit k8s --gpu-memory-gb 80");
    desk.fails(&k8s, "`m` has no `image` in the workload");
    desk.write("image.toml", &format!("{WORKLOAD}image = \"w:2\"\n"));
    desk.write("name.toml", &format!("{WORKLOAD}image = \"w 2\"\n"));
    desk.works(&k8s.replace("w.toml", "image.toml").replace("new", "named"));
    desk.fails(&k8s.replace("w.toml", "name.toml"), "image of `m`");
    desk.fails(
        &format!("{place} -o new.json --emit mig-parted"),
        "40 or 80 GB; say which with --gpu-memory-gb",
    );
    desk.fails(&format!("{place} -o new.json --emit sh --image w"), "--image means nothing to --emit sh");
    desk.fails(&format!("{place} -o new.json --emit mig-parted --image w"), "--image means nothing");
    desk.fails(&format!("{place} -o new.json --emit sh --gpu-memory-gb 80"), "--gpu-memory-gb means nothing");
    desk.fails(&format!("{place} -o new.json --emit k8s --image= "), "expected a container image");
    desk.fails(&format!("{place} -o new.json --emit helm"), "mig-parted");
    desk.fails(&format!("{place} --emit k8s --image w"), "--emit-to");
    desk.fails(
        "place --system dedicated -w mps.toml --profile mps.csv --base-power base.csv -o new.json --emit mig-parted",
        "`m` on GPU 0 has a share by MPS",
    );
    desk.write("norun.toml", &WORKLOAD.replace("run = ", "# run = "));
    desk.fails(&format!("{k8s} --image w").replace("w.toml", "norun.toml"), "has no `run`");

    // Files of another plan, and files of others.
    let k8s = format!("{k8s} --image w --emit-to s");
    fs::create_dir(desk.path("s")).unwrap();
    desk.write("s/gpu9.json", &desk.read("p-k8s/gpu0.json"));
    desk.write("s/notes.json", "{}");
    desk.fails(&k8s, "gpu9.json` is not of this plan");
    desk.works(&format!("{k8s} --force"));
    assert_eq!(desk.files("s"), ["gpu0.json", "notes.json"]);
    desk.write("s/device-plugin.json", "{}");
    desk.fails(&format!("{k8s} --force"), "gpumon did not write it");
    fs::remove_file(desk.path("s/device-plugin.json")).unwrap();
    fs::remove_file(desk.path("s/gpu0.json")).unwrap();
    fs::create_dir(desk.path("s/gpu0.json")).unwrap();
    desk.fails(&format!("{k8s} --force"), "is a folder");
}

#[test]
fn a_running_plan_is_tuned_to_another_demand() {
    let desk = Desk::new();
    let from = "-w w.toml --profile mig.csv --base-power base.csv";
    desk.works(&format!("place {from} --objective average-power -o plan.json"));
    let plan = |name: &str| serde_json::from_str::<Value>(&desk.read(name)).unwrap();
    let before = plan("plan.json");
    let gpu = |plan: &Value| plan["gpus"][0].clone();
    let place = |plan: &Value| {
        ["model", "slices", "start_slot", "processes"].map(|k| plan["gpus"][0]["partitions"][0][k].clone())
    };

    // Nothing has changed.
    let (_, said) = desk.works(&format!("tune plan.json {from} -o same.json"));
    assert!(said.contains("GPU 0: no change of demand, left at"), "{said}");
    assert_eq!(gpu(&plan("same.json")), gpu(&before));

    // More load: a higher clock or a larger batch in the same place.
    let (json, said) = desk.works(&format!("tune plan.json {from} --load 1.5 -o more.json --json"));
    let report: Value = serde_json::from_str(&json).unwrap();
    let more = plan("more.json");
    assert_eq!((place(&more), &report["plan"]), (place(&before), &more));
    assert_eq!(more["gpus"][0]["partitions"][0]["rate_rps"].as_f64(), Some(150.0));
    assert_eq!(more["inputs"][0]["name"], "plan.json");
    let change = &report["gpus"][0];
    assert_eq!(
        (&change["triggered"], &change["frequency_mhz"]),
        (&true.into(), &gpu(&more)["frequency_mhz"])
    );
    assert_eq!(
        (change["frequency_mhz_before"].as_u64(), change["frequency_mhz"].as_u64()),
        (Some(600), Some(900))
    );
    assert_eq!((&report["cost"], &report["cost_untuned"]), (&more["cost"], &Value::Null));
    assert!(said.contains("GPU 0: 600 to 900 MHz") && said.contains("would not meet the demand"), "{said}");

    // And back, from standard output to standard input's place; carbon alone; scripts of the tuned plan.
    let (text, _) = desk.works(&format!("tune more.json {from} --load 1"));
    assert_eq!(gpu(&serde_json::from_str(&text).unwrap()), gpu(&before));
    let (json, _) = desk.works(&format!("tune plan.json {from} --carbon-g-per-kwh 50 --json"));
    let report: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&report["gpus"][0]["triggered"], report["plan"]["carbon_g_per_kwh"].as_f64()),
        (&true.into(), Some(50.0))
    );
    desk.works(&format!("tune plan.json {from} --load 1.5 -o t.json --emit sh"));
    assert!(desk.read("t-sh/gpu0.sh").contains("mhz=900"));

    desk.write("future.json", "{\"schema\": 99, \"gpumon_version\": \"9.9\"}");
    desk.write("odd.json", &desk.read("plan.json").replace("average-power", "speed"));
    desk.write("dirty.json", &desk.read("plan.json").replace("\"pue\": 1.1", "\"pue\": -1.0"));
    desk.write("other.toml", &WORKLOAD.replace("name = \"m\"", "name = \"n\""));
    desk.write("n.csv", &profile("n", true));
    desk.write("one.csv", &format!("{HEADER}m,1,7,600,50,10,900,1\n"));
    for (args, says) in [
        (format!("plan.json {from} --load 40"), "`m`: rate binds"),
        (format!("plan.json {from} --load 3"), "place anew with gpumon place"),
        (format!("plan.json {from} --load 0"), "--load 0"),
        (format!("plan.json {from} --carbon-g-per-kwh=-1"), "at least 0"),
        (format!("plan.json {from} --carbon-g-per-kwh 1e300"), "cluster.carbon_g_per_kwh"),
        (format!("plan.json {from} -o plan.json --force"), "of the same command"),
        (format!("plan.json {from} -o - --json"), "leave one out"),
        (format!("plan.json {from} -o same.json"), "--force"),
        (format!("nowhere.json {from}"), "cannot read the plan `nowhere.json`"),
        (format!("w.toml {from}"), "not a plan"),
        (format!("future.json {from}"), "schema 99"),
        (format!("odd.json {from}"), "objective `speed`"),
        (format!("dirty.json {from}"), "what the plan `dirty.json` or the command line has"),
        ("plan.json -w other.toml --profile n.csv --base-power base.csv".into(), "does not serve `n`"),
        ("plan.json -w mps.toml --profile mps.csv --base-power base.csv".into(), "shares GPUs by `mig`"),
        (
            "plan.json -w w.toml --profile one.csv --base-power base.csv".into(),
            "which the profile does not have",
        ),
        ("plan.json -w w.toml".into(), "--models"),
    ] {
        desk.fails(&format!("tune {args}"), says);
    }
}

#[test]
fn predictions_say_where_they_are_extrapolated() {
    let desk = Desk::new();
    desk.works("fit mig.csv -o m.json --base-power base.csv --form physical");
    let points =
        "model,batch_size,mig_slices,share,frequency\n@idle,0,,1,600\nm,4,2,0.2857,900\nm,64,2,0.2857,900\n";
    desk.write("points.csv", points);
    let (text, notices) = desk.works("predict m.json --points points.csv");
    let last: Vec<&str> = text.lines().map(|line| line.rsplit(',').nth(1).unwrap()).collect();
    assert_eq!(last, ["extrapolated", "false", "true"]);
    assert!(
        notices.contains("1 rows of the idle GPU") && notices.contains("1 of 2 points lie outside"),
        "{notices}"
    );
    let (text, _) = desk.works("predict m.json --points points.csv --json");
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["points"][1]["extrapolated"], true);
    assert_eq!((&json["simulated"], &json["points"][0]["batch_size"]), (&false.into(), &4.into()));
    assert!(json["points"][0]["pred_latency_low"].as_f64() <= json["points"][0]["pred_latency"].as_f64());
    desk.works("fit mps.csv -o mps.json --base-power base.csv --form physical");
    assert!(desk.works("predict mps.json --points mps.csv").0.starts_with("model,batch_size,share,"));
}

#[test]
fn points_may_have_several_processes_in_a_share() {
    let desk = Desk::new();
    let mut profile = String::from("Mig instance,Batch size,Workload Number,Throughput,Latency\n");
    for (slices, batch, n) in [1, 2, 3, 4, 7].iter().flat_map(|s| {
        [1, 4, 16].iter().flat_map(move |b| [1, 2, 3].iter().map(move |n| (f64::from(*s), f64::from(*b), *n)))
    }) {
        let n = f64::from(n);
        let own_s = n * ((3e-3 / n).powi(3) + (1e-3 * batch / slices).powi(3)).cbrt();
        profile += &format!("{slices},{batch},{n},{},{own_s:.3}\n", batch / own_s);
    }
    desk.write("parva.csv", &profile);
    let (text, notices) = desk.works("fit parva.csv -o n.json --form physical --held-out out.csv");
    assert!(!format!("{text}{notices}").contains("processes"), "{text}{notices}");
    assert!(desk.read("out.csv").starts_with("model,batch_size,mig_slices,share,frequency,processes,"));
    let head = "model,batch_size,mig_slices,frequency,processes\n";
    desk.write("p.csv", &format!("{head}parva,4,2,1410,\nparva,4,2,1410,3\nparva,4,2,1410,9\n"));
    let (text, notices) = desk.works("predict n.json --points p.csv");
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!((rows[0][4], rows[1][4], rows[2][4]), ("processes", "1", "3"));
    assert!(notices.contains("1 of 3 points lie outside"), "{notices}");
    let (text, _) = desk.works("predict n.json --points p.csv --json");
    let json: Value = serde_json::from_str(&text).unwrap();
    let of = |i: usize, figure: &str| json["points"][i][figure].as_f64().unwrap();
    assert_eq!(json["points"][1]["processes"], 3);
    assert!(of(1, "pred_throughput") > 1.2 * of(0, "pred_throughput"));
    assert!(of(1, "pred_latency") > 1.2 * of(0, "pred_latency"));
    desk.write("bad.csv", &format!("{head}parva,4,2,1410,0\n"));
    desk.fails("predict n.json --points bad.csv", "`processes` is `0`");
    desk.write("set.csv", &format!("set,{head}1,parva,4,2,1410,2\n"));
    desk.fails("predict n.json --points set.csv --together", "one process each");
    desk.write("none.csv", "model,batch_size,mig_slices,frequency,processes\nparva,4,2,1410,\n");
    assert!(!desk.works("predict n.json --points none.csv").0.contains("processes"));
}

#[test]
fn one_document_on_standard_output_or_none() {
    let desk = Desk::new();
    let (text, _) = desk.works("place -w w.toml --profile mig.csv --base-power base.csv --json -o p.json");
    assert_eq!(text, desk.read("p.json"));
    let place = "place -w w.toml --profile mig.csv --base-power base.csv";
    assert!(serde_json::from_str::<Value>(&desk.works(&format!("{place} --json")).0).is_ok());
    desk.fails(&format!("{place} --json -o -"), "leave one out");
    desk.fails("fit mig.csv -o - --json", "leave one out");
    desk.fails("fit mig.csv -o m.json --held-out - --json", "leave one out");
    let (text, table) = desk.works("fit mig.csv -o - --form physical");
    assert!(serde_json::from_str::<Value>(&text).is_ok() && table.contains("median error"));
}

#[test]
fn another_kind_of_gpu_than_the_workloads_is_refused() {
    let desk = Desk::new();
    desk.write("h200.toml", &WORKLOAD.replace("a100", "h200"));
    desk.fails(
        "profile --device sim:a100 -w h200.toml -o p.csv",
        "(simulated)`, an a100, but cluster.gpu of the workload is `h200`",
    );
    let named =
        profile("m", true).replace("model,", "gpu_name,model,").replace("\nm,", "\nNVIDIA A100-SXM4-80GB,m,");
    desk.write("named.csv", &named);
    let place = "--base-power base.csv -w h200.toml";
    desk.fails(&format!("place {place} --profile named.csv"), "profiled on `NVIDIA A100-SXM4-80GB`, an a100");
    desk.works("fit named.csv -o m.json --form physical");
    desk.fails(&format!("place {place} --models m.json"), "fitted on `NVIDIA A100-SXM4-80GB`, an a100");
}

#[test]
fn mps_shares_are_swept_and_placed() {
    let desk = Desk::new();
    for sharing in ["mig", "mps"] {
        let name = "name = \"bert-like\"";
        let text = WORKLOAD.replace("name = \"m\"", name).replace("\"mig\"", &format!("\"{sharing}\""));
        desk.write(&format!("{sharing}-sim.toml"), &text);
    }
    desk.fails("profile --device sim:a100 -w mps-sim.toml -o p.csv --slices 1,2", "--slices is for MIG");
    desk.fails("profile --device sim:a100 -w mig-sim.toml -o p.csv --shares 50", "--shares is for MPS");
    let (json, _) = desk.works(
        "profile --device sim:a100 -w mps-sim.toml -o p.csv --shares 25,50,100 --design lhs:0.3 --json",
    );
    let report: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&report["simulated"], &report["finished"]), (&true.into(), &true.into()));
    let text = desk.read("p.csv");
    assert_eq!(report["rows"], text.lines().count() - 1);
    assert!(text.contains(",mps,0.25,") && !text.contains(",mig,"), "{text}");
    desk.works("fit p.csv -o m.json --held-out h.csv");
    assert!(desk.read("h.csv").lines().nth(1).unwrap().ends_with(",true"));
    desk.works("place --system dedicated -w mps-sim.toml --models m.json -o plan.json --emit sh");
    assert!(desk.read("plan-sh/gpu0.sh").contains("\n# Simulated: "));
    let (text, notices) = desk.works("predict m.json --points p.csv");
    assert!(text.starts_with("model,batch_size,share,") && notices.contains("rows of the idle GPU"));
}

#[test]
fn a_stopped_sweep_says_how_it_goes_on() {
    let desk = Desk::new();
    let text = WORKLOAD.replace("name = \"m\"", "name = \"bert-like\"");
    desk.write("sim.toml", &text);
    for (record, signal, says) in [
        ("", "HUP", "; the same command goes on from there"),
        (" --record rec", "INT", "the same command without --record goes on from there; the recording `rec`"),
        (" --record rec2", "TERM", "without --record goes on"),
    ] {
        // A signal that arrives before the first row stops the sweep there; the full design takes long enough.
        let script = format!(
            "exec 2>err; rm -f p.csv.journal; {} profile --device sim:a100 -w sim.toml -o p.csv{record} & \
             until [ -s p.csv.journal ]; do sleep 0.01; done; kill -{signal} $!; wait $!",
            env!("CARGO_BIN_EXE_gpumon")
        );
        let status = Command::new("bash").args(["-mc", &script]).current_dir(desk.path("")).status().unwrap();
        let notices = desk.read("err");
        assert_eq!(status.code(), Some(130), "{signal}: {notices}");
        assert!(notices.contains(says), "{signal}: {notices}");
        assert!(!desk.path("p.csv").exists());
    }
    desk.works("summary rec --json");
    desk.fails("profile --device sim:a100 -w sim.toml -o p.csv --record rec3", "leave --record out");
    desk.works("profile --device sim:a100 -w sim.toml -o p.csv");
}

#[test]
fn names_cannot_steer_the_terminal_and_repeats_across_files_are_told() {
    let desk = Desk::new();
    desk.write("steer.csv", &profile("\u{1b}[31mred", true));
    let (table, _) = desk.works("fit steer.csv -o steer.json --form physical");
    assert!(table.contains("\\u{1b}[31mred") && !table.contains('\u{1b}'), "{table}");
    desk.write("few.csv", &format!("{HEADER}\u{7}bell,1,1,600,50,5,10,100\n"));
    desk.fails("fit few.csv -o few.json", "\\u{7}bell");
    fs::copy(desk.path("mig.csv"), desk.path("again.csv")).unwrap();
    let (_, notices) = desk.works("fit mig.csv again.csv -o m.json --form physical");
    assert!(notices.contains("again.csv: 36 points stand in an earlier profile too"), "{notices}");
    desk.works("fit mig.csv -o m1.json --form physical");
    for args in [
        "predict m1.json --points nowhere.csv",
        "fit nowhere.csv -o x.json",
        "predict x.json --points few.csv",
    ] {
        let told = String::from_utf8(desk.gpumon(args).stderr).unwrap();
        assert_eq!(told.matches("No such file").count(), 1, "{told}");
    }
}

#[test]
fn the_simulated_example_runs_as_it_stands() {
    let desk = Desk::new();
    let page = include_str!("../docs/pipeline.md");
    let block = page.split("<!-- simulated -->\n```sh\n").nth(1).unwrap().split("```").next().unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_gpumon")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let run =
        Command::new("bash").args(["-euc", block]).env("PATH", path).current_dir(desk.path("")).output();
    let output = run.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains(",extrapolated,simulated"));
    assert!(desk.path("simulated/plan-sh/gpu0.sh").exists());
}

#[test]
fn damaged_parquet_is_named() {
    let desk = Desk::new();
    let mut bytes = b"PAR1".to_vec();
    bytes.extend([0x15; 64]);
    bytes.extend([40, 0, 0, 0]);
    bytes.extend(b"PAR1");
    fs::write(desk.path("p.parquet"), bytes).unwrap();
    desk.fails("fit p.parquet -o m.json", "`p.parquet`: not readable as Parquet");
}

#[test]
fn values_out_of_range_are_said_with_the_range() {
    let desk = Desk::new();
    let place = "place -w w.toml --profile mig.csv --base-power base.csv";
    desk.fails(&format!("{place} --load 1e-308"), "from 1e-6 to 1e6");
    desk.fails(&format!("{place} --gpus -1"), "1..");
    desk.fails("fit mig.csv -o m.json --holdout -0.5", "between 0 and 1");
    desk.fails("fit mig.csv -o m.json --cap-w -5", "positive number of watts");
    desk.fails("profile --device sim:a100 -w w.toml -o p.csv --slices -1", "1..=7");
    desk.fails(&format!("{place} --batches -1"), "1..=1000000");
    desk.write("base2.csv", "frequency_mhz,static_w,fan_w,idle_w\n600,x,0,1\n");
    desk.fails(&place.replace("base.csv", "base2.csv"), "`base2.csv`: line 2, column `static_w`: found `x`");
    let output = desk.gpumon("predict m.json --points points.csv");
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot read the model file `m.json`"));
    desk.write("tiny.toml", &WORKLOAD.replace("100", "1e-308").replace("a1e-308", "a100"));
    desk.fails(&place.replace("w.toml", "tiny.toml"), "rate_rps of `m`");
    desk.write("run.toml", &WORKLOAD.replace("\"serve\"", "\"A=1\""));
    desk.fails(&place.replace("w.toml", "run.toml"), "run of `m`");
}
