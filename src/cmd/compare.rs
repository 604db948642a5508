//! `gpumon compare`: every system's plan for each objective and load, side by side.
//!
//! Rule: everything is planned, checked and judged by one cost model before anything is written. A system without a plan for a load has
//! its reason in place of figures; where no system has any plan, the command fails with the first reason.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use anyhow::{Context, Result, anyhow, bail};
use gpumon_place::compare::{Answer, Questions, answers, cases};
use gpumon_place::cost::{OBJECTIVES, Objective};
use gpumon_place::policy::{POLICIES, Policy, policy};
use gpumon_place::problem::Ask;

use super::plans::{Source, check_load, input};
use super::{DONE, INTERRUPTED, inputs};
use crate::cli::pipeline::CompareArgs;
use crate::export::file::is_stdout;
use crate::output::{self, note};
use crate::report::compare::{self as page, Comparison};
use crate::signals;

/// Compares, and writes what was asked for.
pub fn run(args: &CompareArgs) -> Result<u8> {
    let to_stdout = [&args.output, &args.html].into_iter().flatten().filter(|path| is_stdout(path)).count();
    if to_stdout + usize::from(args.json) > 1 {
        bail!("only one of -o -, --html - and --json can have standard output");
    }
    let questions = questions(args)?;
    let read = || args.source.files().map(PathBuf::as_path);
    let single = || [&args.output, &args.html].into_iter().flatten().map(PathBuf::as_path);
    inputs::distinct(read(), single())?;
    let source = Source::read(&args.source)?;
    let ask = Ask { time_limit: args.time_limit, ..source.ask(&args.source, Objective::default()) };
    let hashes = args.source.files().map(input).collect::<Result<Vec<_>>>()?;
    let stop = signals::stop_flag()?;
    let answers = answers(&ask, &questions, || stop.load(Ordering::SeqCst));
    source.failed()?;
    let Some(mut answers) = answers else { return Ok(INTERRUPTED) };
    for plan in answers.iter_mut().flat_map(|a| &mut a.plan) {
        plan.inputs.clone_from(&hashes);
    }
    let Some(plan) = answers.iter().find_map(|a| a.plan.as_ref().ok()) else {
        let reason = answers.iter().find_map(|a| a.plan.as_ref().err()).map_or("", String::as_str);
        return Err(anyhow!("{reason}")).context("no system has a plan");
    };

    let comparison =
        Comparison::new(plan, args.source.gpus.or(source.workload.cluster.gpus), cases(&answers));
    let json = serde_json::to_string_pretty(&comparison)? + "\n";
    let html = args.html.as_ref().map(|_| page::html(&comparison, &answers)).transpose()?;
    let plans =
        args.plans.as_deref().map(|folder| plan_files(folder, &answers)).transpose()?.unwrap_or_default();
    let mut files: Vec<(&Path, &str)> = Vec::new();
    files.extend(args.output.as_deref().map(|path| (path, json.as_str())));
    files.extend(args.html.as_deref().zip(html.as_deref()));
    files.extend(plans.iter().map(|(path, text)| (path.as_path(), text.as_str())));
    inputs::distinct(read(), files.iter().map(|(path, _)| *path))?;
    if let Some(folder) = &args.plans {
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot make the folder `{}`", folder.display()))?;
    }
    inputs::write_all(&files, args.force)?;
    for reason in reasons(&answers) {
        note(reason);
    }
    if args.json {
        output::print(&json)?;
    } else if to_stdout == 0 {
        output::print(&page::tables(&comparison))?;
    }
    Ok(DONE)
}

/// Systems, objectives and loads, each once and in the order given.
fn questions(args: &CompareArgs) -> Result<Questions> {
    let mut systems: Vec<&dyn Policy> = Vec::new();
    for name in &args.systems {
        let system = policy(name)?;
        if !systems.iter().any(|s| s.name() == system.name()) {
            systems.push(system);
        }
    }
    if systems.is_empty() {
        systems = POLICIES.to_vec();
    }
    let mut objectives: Vec<Objective> = Vec::new();
    let asked = if args.objectives.is_empty() { OBJECTIVES } else { &args.objectives };
    for objective in asked {
        if !objectives.contains(objective) {
            objectives.push(*objective);
        }
    }
    let mut loads = Vec::new();
    for &load in &args.loads {
        check_load("--loads", load)?;
        if !loads.contains(&load) {
            loads.push(load);
        }
    }
    Ok(Questions { systems, objectives, loads })
}

fn plan_files(folder: &Path, answers: &[Answer]) -> Result<Vec<(PathBuf, String)>> {
    let mut files = Vec::new();
    for answer in answers {
        if let Ok(plan) = &answer.plan {
            let name = format!("{}-{}-{}.json", answer.system, answer.objective, page::percent(answer.load));
            files.push((folder.join(name), plan.to_json()?));
        }
    }
    Ok(files)
}

/// Why systems have no plans, each reason once, with the loads that it holds for.
fn reasons(answers: &[Answer]) -> Vec<String> {
    let mut loads: BTreeMap<(&str, &str), Vec<String>> = BTreeMap::new();
    for answer in answers {
        if let Err(reason) = &answer.plan {
            let load = page::percent(answer.load);
            let known = loads.entry((answer.system, reason)).or_default();
            if !known.contains(&load) {
                known.push(load);
            }
        }
    }
    let words = |((system, reason), loads): ((&str, &str), Vec<String>)| {
        format!("gpumon: {system} has no plan at load {} %: {reason}", loads.join(", "))
    };
    loads.into_iter().map(words).collect()
}
