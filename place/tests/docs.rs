//! The generated parts of docs/placing.md; `GPUMON_BLESS=1` writes them anew.

mod synthetic;

use std::fmt::Write as _;

use gpumon_place::cost::OBJECTIVES;
use gpumon_place::plan::Input;
use gpumon_place::policy::POLICIES;
use gpumon_place::{Ask, Objective, Problem, place};

#[test]
fn the_page_shows_what_there_is() {
    let mut objectives = String::from("| objective | cost of a GPU | unit |\n|---|---|---|\n");
    for objective in OBJECTIVES {
        let _ = writeln!(objectives, "| `{objective}` | {} | {} |", objective.formula(), objective.unit());
    }
    let mut systems = String::from("| system | what it does |\n|---|---|\n");
    for policy in POLICIES {
        let _ = writeln!(systems, "| `{}` | {} |", policy.name(), policy.about());
    }
    let (workload, rows) = synthetic::workload(2);
    let base = synthetic::base();
    let problem = Problem::new(&Ask::new(&workload, &rows, &base, Objective::EnergyPerRequest)).unwrap();
    let mut plan = place(&problem, "enertune").unwrap();
    plan.inputs.push(Input::new("workload", b"made up"));
    let plan = format!("```json\n{}```\n", plan.to_json().unwrap());

    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/placing.md");
    let kept = std::fs::read_to_string(path).unwrap();
    let mut page = kept.clone();
    for (name, text) in [("objectives", objectives), ("systems", systems), ("plan", plan)] {
        let open = format!("<!-- {name} -->\n");
        let from = page.find(&open).unwrap() + open.len();
        let to = from + page[from..].find("<!-- end -->").unwrap();
        page.replace_range(from..to, &text);
    }
    if std::env::var_os("GPUMON_BLESS").is_some() {
        std::fs::write(path, &page).unwrap();
    } else {
        assert!(kept == page, "docs/placing.md is out of date; GPUMON_BLESS=1 writes it anew");
    }
}
