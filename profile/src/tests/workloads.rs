//! Workloads: simulated ones pass the same checks, and each is opened as it is named; the page on profiling lists what there is.

use std::ops::ControlFlow;
use std::sync::Arc;

use gpumon_core::clock::{Clock, VirtualClock};
use gpumon_core::profile::ProfileRow;
use gpumon_core::set::SetRow;
use gpumon_core::share::Share;
use gpumon_core::units::{Megahertz, WallUs};
use gpumon_monitor::device::Device;
use gpumon_simgpu::SimModel;

use super::stage;
use crate::space::Point;
use crate::stage::Stage as _;
use crate::workload::{Context, WorkloadError, of_model, open, torch};

#[test]
fn every_simulated_model_passes_the_same_checks() {
    for model in SimModel::builtins() {
        let mut stage = stage("a100", model.name());
        let workload = stage.workloads[0].as_mut();
        assert_eq!(workload.name(), model.name());
        assert!(matches!(workload.run_batch(), Err(WorkloadError::Failed(_))), "nothing is loaded");
        let point = Point { share: Share::Mig(2), batch: 4, clock: Megahertz(900), limit_w: None };
        let seat = stage.settings.seat(point.share).unwrap();
        workload.load(&point, &seat).unwrap();
        let one_ms = workload.run_batch().unwrap();
        let mut ticks = 0;
        let before = stage.clock.mono();
        let times = workload
            .run(2_000_000, 100_000, &mut |_| {
                ticks += 1;
                ControlFlow::Continue(())
            })
            .unwrap();
        let took_ms = stage.clock.mono().since_us(before) as f64 / 1e3;
        assert!((times.iter().sum::<f64>() - took_ms).abs() < 1.0 && ticks >= 19);
        assert!((times[0] / one_ms - 1.0).abs() < 0.6 && workload.memory_bytes() > Some(0));
        workload.idle(&seat, true).unwrap();
        assert_eq!(stage.device.power().unwrap().average, None);
        workload.quit().unwrap();
        assert!(workload.memory_bytes().is_none());
    }
}

#[test]
fn the_page_lists_the_columns_that_there_are() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/profiling.md");
    let with = |text: String, begin: &str, end: &str, table: String| {
        let (before, rest) = text.split_once(begin).unwrap();
        let (_, after) = rest.split_once(end).unwrap();
        let table = table.split_once("\n\n").unwrap().1;
        format!("{before}{begin}\n{table}\n{end}{after}")
    };
    let text = std::fs::read_to_string(path).unwrap();
    let table = gpumon_core::table::markdown::<ProfileRow>();
    let wanted = with(text, "<!-- columns -->\n", "<!-- end -->", table);
    let sets = gpumon_core::table::markdown::<SetRow>();
    let wanted = with(wanted, "<!-- set columns -->\n", "<!-- set end -->", sets);
    if std::env::var_os("GPUMON_BLESS").is_some() {
        std::fs::write(path, &wanted).unwrap();
    }
    let kept = std::fs::read_to_string(path).unwrap();
    assert!(kept == wanted, "docs/profiling.md differs from the code; see there how to write it anew");
    for model in SimModel::builtins() {
        assert!(kept.contains(&format!("`sim:{}`", model.name())));
    }
}

#[test]
fn unknown_workloads_are_explained() {
    let stage = stage("a100", "bert-like");
    let context = Context { clock: stage.clock.clone(), sim: None, python: None, native: None };
    let explain = |spec: &str| open("m", spec, &context).err().unwrap().to_string();
    assert!(explain("cuda:x").contains("`sim:MODEL`"));
    assert!(explain("sim:alexnet").contains("`sim:resnet50-like`"));
    assert!(explain("sim:bert-like").contains("--device sim:a100"));
}

#[test]
fn models_are_opened_as_the_workload_file_says() {
    let clock: Arc<dyn Clock> = Arc::new(VirtualClock::new(WallUs(0)));
    let context = Context { clock, sim: None, python: Some("/no/python".into()), native: None };
    let argv = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let opened = of_model("m", Some(&argv(&["python3", "w.py"])), &context).unwrap();
    assert_eq!(opened.name(), "m");
    let error = of_model("m", Some(&argv(&["torch:resnet50"])), &context).err().unwrap().to_string();
    assert!(error.contains("`/no/python` cannot be run"), "{error}");
    let error = of_model("m", None, &context).err().unwrap().to_string();
    assert!(error.contains("`torch:m`") && error.contains("`torch:resnet50`"), "{error}");
    for (model, _) in torch::MODELS {
        let page = include_str!("../../../docs/profiling.md");
        assert!(page.contains(&format!("`torch:{model}`")), "docs/profiling.md does not list {model}");
    }
}
