//! `gpumon compare` and the pages of plans: every system, objective and load, in figures that agree with `gpumon place`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is a test's report, in its helpers too")]

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

const WORKLOAD: &str = "[cluster]\ngpu = \"a100\"\nsharing = \"mig\"\n
[[model]]\nname = \"a\"\nlatency_slo_ms = 60\nrate_rps = 100\n
[[model]]\nname = \"<b>\"\nlatency_slo_ms = 90\nrate_rps = 40\n";
const BASE: &str = "frequency_mhz,static_w,fan_w,idle_w\n600,30,0,10\n1200,40,0,20\n";

/// Times fall with slices and clock; the second model takes twice the first one's.
fn profile() -> String {
    let mut text = String::from(
        "model,batch_size,mig_slices,frequency,avg_power_draw,dynamic_power_draw,throughput,latency\n",
    );
    for (model, slower) in [("a", 1.0), ("<b>", 2.0)] {
        for (batch, slices, mhz) in [1, 4, 8]
            .into_iter()
            .flat_map(|b| [1, 2, 3, 4, 7].into_iter().flat_map(move |s| [600, 1200].map(move |f| (b, s, f))))
        {
            let ms = slower * (4.0 + 12_000.0 * f64::from(batch) / f64::from(slices * mhz));
            let dynamic_w = 10.0 + 0.01 * f64::from(mhz * slices);
            writeln!(
                text,
                "{model},{batch},{slices},{mhz},{},{dynamic_w},{},{ms}",
                50.0 + dynamic_w,
                1e3 * f64::from(batch) / ms
            )
            .unwrap();
        }
    }
    text
}

fn desk() -> tempfile::TempDir {
    let desk = tempfile::tempdir().unwrap();
    for (name, text) in [("w.toml", WORKLOAD), ("base.csv", BASE), ("p.csv", &profile())] {
        fs::write(desk.path().join(name), text).unwrap();
    }
    desk
}

fn gpumon(folder: &Path, args: &str) -> Output {
    let args = args.split_whitespace();
    Command::new(env!("CARGO_BIN_EXE_gpumon")).args(args).current_dir(folder).output().unwrap()
}

#[track_caller]
fn works(folder: &Path, args: &str) -> String {
    let out = gpumon(folder, args);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

#[track_caller]
fn fails(folder: &Path, args: &str) -> String {
    let out = gpumon(folder, args);
    let error = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success() && !error.contains("panicked"), "{error}");
    error
}

const INPUTS: &str = "-w w.toml --profile p.csv --base-power base.csv";

#[test]
fn figures_are_those_of_the_plans() {
    let desk = desk();
    let folder = desk.path();
    let text = works(
        folder,
        &format!("compare {INPUTS} --loads 0.5,1,0.5 --plans plans --html c.html -o c.json --json"),
    );
    assert_eq!(text, fs::read_to_string(folder.join("c.json")).unwrap());
    let comparison: Value = serde_json::from_str(&text).unwrap();
    let cases = comparison["cases"].as_array().unwrap();
    let enertune = |c: &&Value| c["system"] == "enertune";
    assert_eq!(cases.iter().filter(enertune).count(), 6 * 2, "six objectives, two loads");

    for case in cases {
        let (system, objective) = (case["system"].as_str().unwrap(), case["objective"].as_str().unwrap());
        let load = case["load"].as_f64().unwrap();
        let name = format!("plans/{system}-{objective}-{}.json", 100.0 * load);
        if case["figures"].is_null() {
            assert!(!folder.join(&name).exists() && case["error"].is_string(), "{case}");
            continue;
        }
        let plan: Value = serde_json::from_str(&fs::read_to_string(folder.join(name)).unwrap()).unwrap();
        assert_eq!(plan["cost"], case["figures"]["cost"]);
        let base = cases
            .iter()
            .find(|c| c["system"] == "enertune" && c["objective"] == objective && c["load"] == load)
            .unwrap();
        let ratio = case["figures"]["cost"].as_f64().unwrap() / base["figures"]["cost"].as_f64().unwrap();
        assert_eq!(case["to_enertune"]["cost"].as_f64().unwrap(), ratio);
        let proven = case["optimum"]["proven"] == true;
        assert!(
            proven && (case["optimum"]["above_pct"].as_f64().unwrap() > -1e-6 || system == "parvagpu"),
            "{case}"
        );
    }
    let args = format!("place {INPUTS} --system fgd --objective power --load 0.5");
    let placed: Value = serde_json::from_str(&works(folder, &args)).unwrap();
    let compared = fs::read_to_string(folder.join("plans/fgd-power-50.json")).unwrap();
    assert_eq!(placed, serde_json::from_str::<Value>(&compared).unwrap());

    let page = fs::read_to_string(folder.join("c.html")).unwrap();
    assert!(page.contains("&lt;b&gt;") && !page.contains("<b>:"), "text of a file stays text");
    for wanted in ["Planned for power", "The plans at load 50 %", "average power (W)", "GPU 0, "] {
        assert!(page.contains(wanted), "{wanted}");
    }
    assert!(
        !page.contains("<script") && !page.contains("http://")
            || page.matches("http").count() == page.matches("http://www.w3.org").count()
    );
    let table = works(
        folder,
        &format!("compare {INPUTS} --loads 1 --objectives average-power --systems fgd,enertune"),
    );
    assert!(table.contains("Planned for average-power") && table.contains("fgd") && !table.contains("usher"));
}

#[test]
fn plans_are_drawn_below_each_other() {
    let desk = desk();
    let folder = desk.path();
    works(folder, &format!("place {INPUTS} -o one.json"));
    works(folder, &format!("place {INPUTS} --system dedicated -o two.json"));
    let told: Value = serde_json::from_str(&works(folder, "report one.json two.json --json")).unwrap();
    assert_eq!(told["plans"], serde_json::json!(["one.json", "two.json"]));
    let page = fs::read_to_string(folder.join("one.html")).unwrap();
    assert!(
        page.contains("one.json") && page.contains("dedicated: 2 GPUs") && page.contains("least SLO slack")
    );
    let error = fails(folder, "report one.json p.csv -o x.html");
    assert!(error.contains("the plan `p.csv`"), "{error}");
    assert!(fails(folder, "report p.csv one.json -o x.html").contains("one model file, or of plans"));
    fs::write(folder.join("bad.json"), "{\"gpus\":3}").unwrap();
    assert!(fails(folder, "report bad.json").contains("the plan `bad.json`"));
}

#[test]
fn questions_that_have_no_answer() {
    let desk = desk();
    let folder = desk.path();
    let error = fails(folder, &format!("compare {INPUTS} --systems enertune,nothing"));
    assert!(error.contains("no system `nothing`; there are enertune"), "{error}");
    assert!(fails(folder, &format!("compare {INPUTS} --objectives watts")).contains("no objective `watts`"));
    assert!(fails(folder, &format!("compare {INPUTS} --loads 0")).contains("--loads 0"));
    assert!(fails(folder, &format!("compare {INPUTS} -o - --json")).contains("standard output"));
    assert!(fails(folder, &format!("compare {INPUTS} -o p.csv")).contains("is the input"));
    let error = fails(folder, &format!("compare {INPUTS} --loads 1000 --systems enertune,fgd -o c.json"));
    assert!(error.contains("no system has a plan") && error.contains("rate binds"), "{error}");
    assert!(!folder.join("c.json").exists());

    // Where one load has no answer, the others have theirs.
    let out = gpumon(folder, &format!("compare {INPUTS} --loads 1,1000 --systems fgd --objectives power"));
    let error = String::from_utf8(out.stderr).unwrap();
    assert!(out.status.success() && error.contains("fgd has no plan at load 100000 %"), "{error}");
    works(folder, &format!("compare {INPUTS} --loads 1 -o c.json"));
    assert!(fails(folder, &format!("compare {INPUTS} --loads 1 -o c.json")).contains("--force"));
}
