//! The trace that FGD's authors replayed: the same nodes and GPUs for each task, and the same series.
//!
//! Tasks and nodes come in the order of the published run, not from its generator of random numbers.

// Helpers of tests may panic as tests do.
#![allow(clippy::unwrap_used)]

mod reference;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use gpumon_place::policy::fgd::cluster::{Milli, Node, Task};
use gpumon_place::policy::fgd::fragmentation::Expected;
use gpumon_place::policy::fgd::scheduler::{Scheduler, Scorer};

/// Node and GPUs.
type At = (String, Vec<usize>);
type Table = Vec<BTreeMap<String, String>>;

fn table(path: &Path) -> Table {
    csv::Reader::from_path(path).unwrap().deserialize().map(Result::unwrap).collect()
}

fn number(row: &BTreeMap<String, String>, name: &str) -> u64 {
    row[name].parse().unwrap()
}

struct Trace {
    nodes: Vec<Node<Milli>>,
    /// Names of the nodes.
    names: Vec<String>,
    /// The tasks of the trace, by name.
    tasks: HashMap<String, Task<u32>>,
    /// Tasks in the order of arrival, and where each went; nowhere if it failed.
    published: Vec<(String, Option<At>)>,
}

impl Trace {
    fn read(folder: &Path) -> Self {
        let text = std::fs::read_to_string(folder.join("placements_default_seed42.csv")).unwrap();
        let mut prefixes: HashMap<&str, &str> = HashMap::new();
        let mut published = Vec::new();
        for line in text.lines() {
            let cells: Vec<&str> = line.split(',').collect();
            let (task, node, gpus) = (cells[0], cells[1], cells[2]);
            let bound =
                node.split_once('-').filter(|(prefix, _)| !prefix.is_empty()).map(|(prefix, name)| {
                    prefixes.insert(name, prefix);
                    let gpus = gpus.split('-').filter(|g| !g.is_empty()).map(|g| g.parse().unwrap());
                    (name.to_owned(), gpus.collect::<Vec<usize>>())
                });
            published.push((task.to_owned(), bound));
        }
        let mut rows = table(&folder.join("nodes.csv"));
        // Nodes that never won have no prefix in the published run; where they stand among equals does not matter.
        rows.sort_by_key(|row| prefixes.get(row["sn"].as_str()).map_or("~", |p| p).to_owned());
        let node = |row: &BTreeMap<String, String>| Node {
            cpu_milli: number(row, "cpu_milli"),
            memory_mib: number(row, "memory_mib"),
            model: row["model"].clone(),
            gpus: vec![Milli::WHOLE; number(row, "gpu") as usize],
        };
        let task = |row: &BTreeMap<String, String>| Task {
            cpu_milli: number(row, "cpu_milli"),
            memory_mib: number(row, "memory_mib"),
            gpus: number(row, "num_gpu") as usize,
            share: number(row, "gpu_milli") as u32,
            models: row["gpu_spec"].split('|').filter(|m| !m.is_empty()).map(str::to_owned).collect(),
        };
        let tasks = table(&folder.join("tasks_default.csv"));
        Self {
            nodes: rows.iter().map(node).collect(),
            names: rows.iter().map(|row| row["sn"].clone()).collect(),
            tasks: tasks.iter().map(|row| (row["name"].clone(), task(row))).collect(),
            published,
        }
    }

    /// A task; those that were added for more load are named after theirs.
    fn task(&self, name: &str) -> &Task<u32> {
        &self.tasks[name.split("-tuned-").next().unwrap()]
    }

    fn scheduler(&self, scorer: Scorer) -> Scheduler<Milli> {
        let tasks: Vec<_> = self.tasks.values().cloned().collect();
        Scheduler::new(self.nodes.clone(), Expected::new(&tasks), scorer)
    }
}

/// Allocation and fragmentation, %, as they are after each task, means of each integer percent that arrived.
#[derive(Default)]
struct Series(BTreeMap<u64, Vec<(f64, f64)>>);

impl Series {
    fn means(&self) -> BTreeMap<u64, (f64, f64)> {
        let mean = |list: &[(f64, f64)], pick: fn(&(f64, f64)) -> f64| {
            list.iter().map(pick).sum::<f64>() / list.len() as f64
        };
        self.0.iter().map(|(at, list)| (*at, (mean(list, |v| v.0), mean(list, |v| v.1)))).collect()
    }
}

fn hundredths(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

fn published_series(path: &Path) -> BTreeMap<u64, f64> {
    let rows = table(path);
    let row = rows.iter().find(|r| {
        r["workload"] == "openb_pod_list_default" && r["sc_policy"] == "06-FGD" && r["seed"] == "42"
    });
    row.unwrap().iter().filter_map(|(at, value)| Some((at.parse().ok()?, value.parse().ok()?))).collect()
}

#[test]
fn the_published_classes_are_found() {
    let Some(folder) = reference::folder("fgd") else { return };
    let trace = Trace::read(&folder);
    let tasks: Vec<_> = trace.tasks.values().cloned().collect();
    let expected = Expected::new(&tasks);
    let text = std::fs::read_to_string(folder.join("typical_pods_default.txt")).unwrap();
    let theirs: Vec<Vec<&str>> =
        text.lines().map(|l| l.split_whitespace().collect()).filter(|l: &Vec<_>| l.len() == 4).collect();
    assert_eq!((expected.classes.len(), theirs.len()), (35, 35));
    for (class, theirs) in expected.classes.iter().zip(theirs) {
        let ours = format!("{} {} {}", class.cpu_milli, class.share, class.gpus);
        assert_eq!((ours, format!("{:.5}", class.popularity)), (theirs[..3].join(" "), theirs[3].to_owned()));
    }
}

#[test]
fn every_placement_and_both_series_of_a_run_come_out() {
    let Some(folder) = reference::folder("fgd") else { return };
    let trace = Trace::read(&folder);
    let total_milli = 1000 * trace.nodes.iter().map(|n| n.gpus.len() as u64).sum::<u64>();
    let started = std::time::Instant::now();
    let mut cluster = trace.scheduler(Scorer::Published);
    let outcomes: Vec<_> = trace.published.iter().map(|(name, _)| cluster.place(trace.task(name))).collect();
    eprintln!("{} tasks in {:?}", outcomes.len(), started.elapsed());

    let mut equal = 0;
    for (outcome, (_, published)) in outcomes.iter().zip(&trace.published) {
        let ours = outcome.as_ref().map(|b| (trace.names[b.node].clone(), b.gpus.clone()));
        equal += usize::from(ours == *published);
    }
    let placed = outcomes.iter().flatten().count();
    eprintln!("{equal} of {} outcomes equal; {placed} placed", outcomes.len());
    assert_eq!((equal, placed), (10866, 8334));

    let mut cluster = trace.scheduler(Scorer::Published);
    let (mut arrived_milli, mut used_milli) = (0, 0);
    let mut series = Series::default();
    for (name, _) in &trace.published {
        let task = trace.task(name);
        let milli = u64::from(task.share) * task.gpus as u64;
        arrived_milli += milli;
        used_milli += if cluster.place(task).is_some() { milli } else { 0 };
        let pct = |milli: f64| milli / total_milli as f64 * 100.0;
        let free_milli = (total_milli - used_milli) as f64;
        let fragmented = hundredths(100.0 * cluster.fragmented_milli() / free_milli);
        let at = pct(arrived_milli as f64).round_ties_even() as u64;
        series.0.entry(at).or_default().push((hundredths(pct(used_milli as f64)), fragmented));
    }
    let ours = series.means();
    let (allocation, fragmentation) = (
        published_series(&folder.join("expected_allo.csv")),
        published_series(&folder.join("expected_frag_ratio.csv")),
    );
    assert_eq!((allocation.len(), fragmentation.len()), (131, 131));
    let (mut allocation_off, mut fragmentation_off) = (0.0f64, 0.0f64);
    for at in 0..=130 {
        allocation_off = allocation_off.max((hundredths(ours[&at].0) - allocation[&at]).abs());
        fragmentation_off = fragmentation_off.max((ours[&at].1 - fragmentation[&at]).abs());
    }
    eprintln!("allocation off by {allocation_off:.1e} %, fragmentation by {fragmentation_off:.1e} %");
    assert!(allocation_off < 1e-6 && fragmentation_off < 1e-6, "{allocation_off} {fragmentation_off}");
}

#[test]
fn comparing_exactly_allocates_less() {
    let Some(folder) = reference::folder("fgd") else { return };
    let trace = Trace::read(&folder);
    let total_milli = 1000 * trace.nodes.iter().map(|n| n.gpus.len() as u64).sum::<u64>();
    let allocated = |scorer| {
        let mut cluster = trace.scheduler(scorer);
        let mut milli = |name: &String| {
            let task = trace.task(name);
            cluster.place(task).map_or(0, |_| u64::from(task.share) * task.gpus as u64)
        };
        trace.published.iter().map(|(name, _)| milli(name)).sum::<u64>() as f64 / total_milli as f64
    };
    let (published, exact) = (allocated(Scorer::Published), allocated(Scorer::Exact));
    eprintln!(
        "allocation {:.2} % with the published scorer, {:.2} % exactly",
        published * 100.0,
        exact * 100.0
    );
    assert!(published > exact);
}
