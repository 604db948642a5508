use gpumon_core::header::{Gpu, MigInstance};
use gpumon_core::rows::ProcessRow;
use proptest::prelude::*;

use super::*;

const SECOND: i64 = 1_000_000;

fn gpu(instances: &[(u32, u32)]) -> Gpu {
    let instance = |&(id, slices)| MigInstance { id, slices: Some(slices), uuid: None, start: None };
    Gpu {
        uuid: "GPU-1".into(),
        name: "GPU".into(),
        pci_id: String::new(),
        driver: String::new(),
        power_scope: None,
        power_limit_mw: None,
        mem_total_bytes: None,
        sensors: vec![],
        unsupported: vec![],
        mig_instances: instances.iter().map(instance).collect(),
        characterisation: None,
    }
}

fn row(at_us: i64, pid: i32, mig_instance: Option<i32>, sm_util_pct: Option<f64>) -> ProcessRow {
    let name = Some(format!("p{pid}"));
    let (mem_util_pct, mem_used_bytes) = (None, None);
    ProcessRow { gpu: 0, mono_us: at_us, pid, name, mig_instance, sm_util_pct, mem_util_pct, mem_used_bytes }
}

fn window(from_us: i64, to_us: i64) -> Window {
    Window { name: String::new(), from_us, to_us }
}

/// Feeds rows and readings in order of time; idle power is 100 W.
fn attribute(
    gpu: &Gpu,
    windows: &[Window],
    rows: &[ProcessRow],
    readings: &[(i64, f64)],
    energy_j: f64,
) -> Vec<Option<Attribution>> {
    let mut attributor = Attributor::new(gpu, windows, Some(Idle::given(100.0)), None);
    let mut groups = rows.chunk_by(|a, b| a.mono_us == b.mono_us).peekable();
    for &(at_us, mw) in readings {
        while let Some(rows) = groups.next_if(|rows| rows[0].mono_us <= at_us) {
            attributor.processes(Group { gpu: 0, at_us: rows[0].mono_us, rows: rows.to_vec() });
        }
        attributor.power(at_us, mw);
    }
    attributor.finish(windows.iter().map(|_| Some(energy_j)))
}

fn flat(seconds: i64, mw: f64) -> Vec<(i64, f64)> {
    (0..=seconds * 50).map(|k| (k * 20_000, mw)).collect()
}

#[track_caller]
fn near(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-6 * expected.abs().max(1.0), "{found} for {expected}");
}

fn sum(found: &Attribution) -> f64 {
    found.idle_j + found.unattributed_j + found.parts.iter().map(|p| p.energy_j).sum::<f64>()
}

#[test]
fn energy_above_idle_goes_by_utilisation() {
    let rows: Vec<_> = (1..=4)
        .flat_map(|s| [row(s * SECOND, 7, None, Some(70.0)), row(s * SECOND, 8, None, Some(30.0))])
        .collect();
    let found = attribute(&gpu(&[]), &[window(0, 4 * SECOND)], &rows, &flat(4, 300e3), 1200.0);
    let found = found[0].as_ref().unwrap();
    assert_eq!((found.method, found.idle_source), (Method::SmUtilisation, IdleSource::Given));
    near(found.idle_j, 400.0);
    near(found.parts[0].energy_j, 560.0);
    near(found.parts[1].energy_j, 240.0);
    near(found.parts[0].share_pct, 70.0);
    near(found.unattributed_j, 0.0);
    assert_eq!((found.parts[0].pid, found.parts[0].name.as_deref()), (Some(7), Some("p7")));
}

#[test]
fn what_nobody_did_is_nobodys() {
    // Two seconds of work, one in which no process did anything, one without rows.
    let rows = [
        row(SECOND, 7, None, Some(50.0)),
        row(2 * SECOND, 7, None, Some(1.0)),
        row(3 * SECOND, 7, None, Some(0.0)),
    ];
    let found = attribute(&gpu(&[]), &[window(0, 4 * SECOND)], &rows, &flat(4, 300e3), 1200.0);
    let found = found[0].as_ref().unwrap();
    near(found.parts[0].energy_j, 400.0);
    near(found.unattributed_j, 400.0);
    near(found.idle_j, 400.0);
}

#[test]
fn a_row_after_a_pause_is_about_its_own_second() {
    let rows = [row(SECOND, 7, None, Some(50.0)), row(5 * SECOND, 8, None, Some(50.0))];
    let found = attribute(&gpu(&[]), &[window(0, 5 * SECOND)], &rows, &flat(5, 200e3), 1000.0);
    let found = found[0].as_ref().unwrap();
    near(found.parts.iter().find(|p| p.pid == Some(7)).unwrap().energy_j, 100.0);
    near(found.parts.iter().find(|p| p.pid == Some(8)).unwrap().energy_j, 100.0);
    near(found.unattributed_j, 300.0);
}

#[test]
fn instances_get_their_slices_where_the_driver_is_silent() {
    let at = |s: i64, pid, mig| row(s * SECOND, pid, Some(mig), None);
    // Instance 1 (3 slices) has two processes, instance 2 (2 slices) one, from the second second on.
    let rows = [at(1, 7, 1), at(1, 8, 1), at(2, 7, 1), at(2, 8, 1), at(2, 9, 2)];
    let gpu = gpu(&[(1, 3), (2, 2), (3, 1)]);
    let found = attribute(&gpu, &[window(0, 2 * SECOND)], &rows, &flat(2, 300e3), 600.0);
    let found = found[0].as_ref().unwrap();
    assert_eq!(found.method, Method::SlicesOfBusyInstances);
    let of = |pid| found.parts.iter().find(|p| p.pid == Some(pid)).unwrap().energy_j;
    near(of(7), 100.0 + 60.0);
    near(of(8), 160.0);
    near(of(9), 80.0);
    let instances: Vec<_> =
        found.mig_instances.iter().map(|i| (i.id, i.slices, i.energy_j.round())).collect();
    assert_eq!(instances, [(1, Some(3), 320.0), (2, Some(2), 80.0)]);
    near(sum(found), 600.0);
}

#[test]
fn silence_without_instances_or_of_unknown_size_shares_nothing() {
    for mig in [None, Some(5)] {
        let rows = [row(SECOND, 7, mig, None), row(2 * SECOND, 7, mig, None)];
        let found = attribute(&gpu(&[(1, 3)]), &[window(0, 2 * SECOND)], &rows, &flat(2, 300e3), 600.0);
        let found = found[0].as_ref().unwrap();
        assert_eq!(found.method, Method::None);
        near(found.unattributed_j, 400.0);
        near(found.parts[0].energy_j, 0.0);
    }
}

#[test]
fn many_processes_become_others_and_lose_nothing() {
    let rows: Vec<_> = (1..=20)
        .flat_map(|s| (0..40).map(move |k| row(s * SECOND, 1000 + (s as i32) * 40 + k, None, Some(2.0))))
        .chain([row(21 * SECOND, 7, None, Some(90.0))])
        .collect();
    let found = attribute(&gpu(&[]), &[window(0, 21 * SECOND)], &rows, &flat(21, 300e3), 6300.0);
    let found = found[0].as_ref().unwrap();
    assert_eq!(found.parts.len(), share::KEPT + 1);
    assert_eq!(found.parts[0].pid, Some(7), "the largest stays");
    let others = found.parts.last().unwrap();
    assert_eq!((others.pid, others.name.as_deref()), (None, Some("others")));
    assert!(others.energy_j > 3_000.0);
    near(sum(found), 6300.0);
}

#[test]
fn power_below_idle_is_idle_and_a_crossing_line_is_cut_where_it_crosses() {
    let segment = Segment { from: (0, 50e3), to: (SECOND, 150e3) };
    let (below, above) = segment.split(0, SECOND, 100e3);
    near(above, 0.5 * 0.5 * 50e3 * SECOND as f64);
    near(below + above, 100e3 * SECOND as f64);
    assert_eq!(segment.split(2 * SECOND, 3 * SECOND, 100e3), (0.0, 0.0));
}

#[test]
fn a_span_without_power_has_no_attribution() {
    let found = attribute(&gpu(&[]), &[window(0, SECOND)], &[], &[(10, 1e5)], 100.0);
    assert_eq!(found, [None]);
}

#[test]
fn idle_power_comes_from_idle_processes_or_the_least_power() {
    let mut finder = idle::IdleFinder::default();
    (0..100).for_each(|k| finder.power(k * 20_000, if k < 10 { 79e3 } else { 400e3 }));
    let found = finder.found().unwrap();
    assert_eq!((found.mw, found.source), (79e3, IdleSource::LeastPower));
    (100..150).for_each(|k| finder.power(k * 20_000, 121e3));
    let rows = vec![row(3 * SECOND, 7, None, Some(0.0))];
    finder.processes(&Group { gpu: 0, at_us: 3 * SECOND, rows });
    let found = finder.found().unwrap();
    assert_eq!(found.source, IdleSource::IdleProcesses);
    assert!((found.mw - 121e3).abs() < 100.0, "{found:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn parts_add_up_and_are_never_negative(
        power in proptest::collection::vec((1i64..400_000, 0.0f64..900e3), 2..200),
        rows in proptest::collection::vec(
            (proptest::collection::vec((0i32..5, proptest::option::of(0i32..4), proptest::option::of(0.0f64..100.0)), 0..6), 200_000i64..2_500_000),
            0..20,
        ),
        edges in (0i64..10_000_000, 1i64..20_000_000),
        energy_j in 0.0f64..1e6,
    ) {
        let mut at_us = 0;
        let readings: Vec<_> = power.iter().map(|(step, mw)| { at_us += step; (at_us, *mw) }).collect();
        let mut at_us = 0;
        let rows: Vec<_> = rows.iter().flat_map(|(processes, step)| {
            at_us += step;
            processes.iter().map(|&(pid, mig, util)| row(at_us, pid, mig, util)).collect::<Vec<_>>()
        }).collect();
        let windows = [window(0, i64::MAX / 2), window(edges.0, edges.0 + edges.1)];
        for found in attribute(&gpu(&[(1, 3), (2, 2)]), &windows, &rows, &readings, energy_j).into_iter().flatten() {
            prop_assert!((sum(&found) - energy_j).abs() <= 1e-9 * energy_j.max(1.0), "{found:?}");
            let all = found.parts.iter().map(|p| p.energy_j).chain([found.idle_j, found.unattributed_j]);
            prop_assert!(all.into_iter().all(|j| j >= 0.0 && j.is_finite()));
            let instances: f64 = found.mig_instances.iter().map(|i| i.energy_j).sum();
            prop_assert!(instances <= energy_j * (1.0 + 1e-9) + 1e-9);
        }
    }
}
