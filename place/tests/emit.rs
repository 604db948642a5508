//! Manifests and MIG configurations: what Kubernetes' own schemas say of them, names, counts, and what is refused.

// Helpers of tests may panic as tests do.
#![allow(clippy::unwrap_used)]

mod synthetic;

use std::collections::BTreeMap;
use std::collections::HashSet;
use std::sync::LazyLock;

use gpumon_core::geometry::SEVEN_SLICES;
use gpumon_core::workload::{Sharing, Workload};
use gpumon_place::candidate::Share;
use gpumon_place::emit::{
    EMITTERS, Emission, EmitError, Emitter as _, Order, k8s::K8s, mig_parted::MigParted,
};
use gpumon_place::plan::{Gpu, Partition, Plan};
use gpumon_place::{Ask, Objective, Problem, place};
use jsonschema::Validator;
use proptest::prelude::*;
use serde_json::{Value, json};

const IMAGE: Option<&str> = Some("registry.example/worker:1");

/// A model, its share and how many processes.
type Shared = (String, Share, u32);

/// A plan made by hand: per GPU its clock and its partitions.
fn plan(gpus: &[(u32, Vec<Shared>)]) -> (Plan, Workload) {
    let (mut workload, rows) = synthetic::workload(1);
    let base = synthetic::base();
    let problem = Problem::new(&Ask::new(&workload, &rows, &base, Objective::Power)).unwrap();
    let mut plan = place(&problem, "dedicated").unwrap();
    let like = plan.gpus[0].partitions[0].clone();
    let mut names = HashSet::new();
    let model = workload.models.remove(0);
    let mut whole = |&(frequency_mhz, ref shares): &(u32, Vec<Shared>)| {
        let slices: Vec<u8> = shares.iter().filter_map(|(_, share, _)| share.slices()).collect();
        let starts = SEVEN_SLICES.place(&slices).unwrap_or_else(|| vec![0; slices.len()]);
        let partition = |(i, (name, share, processes)): (usize, &Shared)| {
            if names.insert(name.clone()) {
                workload.models.push(gpumon_core::workload::Model { name: name.clone(), ..model.clone() });
            }
            let share_pct = if let Share::Percent(pct) = share { Some(*pct) } else { None };
            let start_slot = share.slices().map(|_| starts[i]);
            let (model, slices, processes) = (name.clone(), share.slices(), *processes);
            Partition {
                model,
                slices,
                share_pct,
                start_slot,
                processes,
                batch: 4,
                rate_rps: 30.0,
                ..like.clone()
            }
        };
        let partitions = shares.iter().enumerate().map(partition).collect();
        Gpu { frequency_mhz, partitions, ..plan.gpus[0].clone() }
    };
    plan.gpus = gpus.iter().map(&mut whole).collect();
    let mig = gpus.iter().all(|(_, shares)| shares.iter().all(|(_, share, _)| share.slices().is_some()));
    plan.sharing = if mig { Sharing::Mig } else { Sharing::Mps };
    (plan, workload)
}

fn mig(name: &str, slices: u8) -> Shared {
    (name.into(), Share::Slices(slices), 1)
}

fn mps(name: &str, pct: f64) -> Shared {
    (name.into(), Share::Percent(pct), 1)
}

fn order<'a>(plan: &'a Plan, workload: &'a Workload) -> Order<'a> {
    Order { image: IMAGE, memory_gb: Some(40), ..Order::new(plan, workload) }
}

fn k8s(plan: &Plan, workload: &Workload) -> Result<Emission, EmitError> {
    K8s.emit(&order(plan, workload))
}

/// The objects in the files, each held against the published schema of its kind.
fn objects(emission: &Emission) -> Vec<Value> {
    let mut all = Vec::new();
    for file in &emission.files {
        let list: Value = serde_json::from_str(&file.text).unwrap();
        assert_eq!((&list["kind"], &list["apiVersion"]), (&"List".into(), &"v1".into()));
        assert!(K8s.wrote(file.text.as_bytes()) && K8s.could_be(&file.name), "{}", file.name);
        all.extend(list["items"].as_array().unwrap().iter().cloned());
    }
    for object in &all {
        let found: Vec<String> = violations(object);
        assert_eq!(found, Vec::<String>::new(), "{object}");
    }
    all
}

/// What Kubernetes 1.37's strict schemas have against an object.
fn violations(object: &Value) -> Vec<String> {
    static SCHEMAS: LazyLock<BTreeMap<&str, Validator>> = LazyLock::new(|| {
        let mut schema: Value = serde_json::from_str(include_str!("kubernetes/v1.37.json")).unwrap();
        [("Deployment", "io.k8s.api.apps.v1.Deployment"), ("ConfigMap", "io.k8s.api.core.v1.ConfigMap")]
            .map(|(kind, name)| {
                schema["$ref"] = format!("#/$defs/{name}").into();
                (kind, jsonschema::validator_for(&schema).unwrap())
            })
            .into()
    });
    let schema = &SCHEMAS[object["kind"].as_str().unwrap()];
    schema.iter_errors(object).map(|e| format!("{}: {e}", e.instance_path())).collect()
}

/// RFC 1123: 1 to 63 lower-case letters, digits and hyphens, a letter or digit at both ends.
fn is_label(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=63).contains(&name.len())
        && name.chars().all(inner)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

/// What Kubernetes makes of an argument when no variable of that name is known: `$$` is one `$`.
fn expanded(text: &str) -> String {
    let mut out = String::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c == '$' {
            match chars.peek() {
                Some('$') => drop(chars.next()),
                Some('(') => return "a reference".into(),
                _ => {}
            }
        }
        out.push(c);
    }
    out
}

fn env<'a>(deployment: &'a Value, name: &str) -> Option<&'a str> {
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    let found = container["env"].as_array().unwrap().iter().find(|v| v["name"] == name)?;
    found["value"].as_str()
}

fn limits(deployment: &Value) -> &Value {
    &deployment["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
}

#[test]
fn the_schemas_do_find_what_is_wrong() {
    let (plan, workload) = plan(&[(600, vec![mig("m", 3)])]);
    let good = objects(&k8s(&plan, &workload).unwrap()).remove(0);
    for (pointer, value) in [
        ("/spec/replicas", json!("two")),
        ("/spec/selector", json!({ "match": {} })),
        ("/spec/template/spec/containers/0/env", json!({ "A": "b" })),
        ("/spec/template/spec/containers/0/command", json!("sh -c x")),
        ("/spec/template/spec/containers/0", json!({ "image": "x" })),
        ("/metadata/annotations/gpumon~1batch", json!(4)),
        ("/apiVersion", json!("extensions/v1beta1")),
    ] {
        let mut bad = good.clone();
        *bad.pointer_mut(pointer).unwrap() = value;
        assert!(!violations(&bad).is_empty(), "{pointer}");
    }
    let mut bad = good;
    bad["spec"]["unknown"] = json!(1);
    assert!(!violations(&bad).is_empty(), "keys that the API does not know");
}

#[test]
fn a_mig_plan_is_a_deployment_a_partition() {
    let (mut plan, workload) =
        plan(&[(600, vec![mig("bert", 4), mig("GPT_2", 3)]), (1410, vec![mig("bert", 7)])]);
    plan.simulated = true;
    let emission = k8s(&plan, &workload).unwrap();
    let names: Vec<&str> = emission.files.iter().map(|f| f.name.as_str()).collect();
    assert_eq!(names, ["gpu0.json", "gpu1.json"]);
    let all = objects(&emission);
    let of = |pointer: &str| all.iter().map(|d| d.pointer(pointer).unwrap().clone()).collect::<Vec<_>>();
    assert_eq!(of("/metadata/name"), ["gpu0-bert", "gpu0-gpt-2", "gpu1-bert"]);
    let asked = ["4g.20gb", "3g.20gb", "7g.40gb"].map(|p| json!({ format!("nvidia.com/mig-{p}"): "1" }));
    assert_eq!(all.iter().map(|d| limits(d).clone()).collect::<Vec<_>>(), asked);
    assert_eq!(of("/metadata/annotations/gpumon~1frequency-mhz"), ["600", "600", "1410"]);
    assert_eq!(of("/metadata/annotations/gpumon~1start-slot"), ["0", "4", "0"]);
    assert_eq!(of("/metadata/annotations/gpumon~1model")[1], "GPT_2");
    assert_eq!(of("/metadata/annotations/gpumon~1simulated"), ["true"; 3]);
    let says = of("/metadata/annotations/gpumon~1not-carried")[2].to_string();
    assert!(says.contains("chooses which instance") && says.contains("-lgc 1410,1410"), "{says}");
    assert_eq!(of("/spec/template/spec/nodeSelector")[2], json!({ "gpumon/gpu-1": "true" }));
    assert_eq!((env(&all[0], "GPUMON_BATCH"), env(&all[0], "GPUMON_RATE_RPS")), (Some("4"), Some("30")));
    assert_eq!(env(&all[0], "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), None);
    assert!(
        emission.notes[1].contains("gpumon/gpu-1=true") && emission.notes.len() == 2,
        "{:?}",
        emission.notes
    );
}

#[test]
fn an_mps_plan_has_percentages_and_a_plugin_configuration() {
    let two = ("b".to_owned(), Share::Percent(20.0), 2);
    let (plan, workload) =
        plan(&[(600, vec![mps("a", 60.0), two]), (900, vec![mps("c", 30.0)]), (900, vec![mps("d", 80.0)])]);
    let emission = k8s(&plan, &workload).unwrap();
    let all = objects(&emission);
    assert_eq!(all.len(), 5);
    assert_eq!(limits(&all[1]), &json!({ "nvidia.com/gpu": "1" }));
    assert_eq!((&all[0]["spec"]["replicas"], &all[1]["spec"]["replicas"]), (&json!(1), &json!(2)));
    assert_eq!(env(&all[1], "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), Some("20.0000"));
    assert_eq!(env(&all[1], "GPUMON_RATE_RPS"), Some("15"), "each process has its part of the rate");
    let config = &all[4];
    assert_eq!((&config["kind"], config["data"].as_object().unwrap().len()), (&"ConfigMap".into(), 3));
    for (key, replicas) in [("mps-2", 2), ("mps-3", 3)] {
        let config: Value = serde_json::from_str(config["data"][key].as_str().unwrap()).unwrap();
        let resources = json!([{ "name": "nvidia.com/gpu", "replicas": replicas }]);
        assert_eq!(config, json!({ "version": "v1", "sharing": { "mps": { "resources": resources } } }));
    }
    assert_eq!(config["data"]["mps-1"], "{\"sharing\":{},\"version\":\"v1\"}");
    let notes = emission.notes.join("\n");
    assert!(notes.contains("`a` is to have 60.0000 %") && notes.contains("33 % at most"), "{notes}");
    assert!(notes.contains("`d` is to have 80.0000 %") && notes.contains("has the whole GPU"), "{notes}");
    assert!(!notes.contains("`b` is") && !notes.contains("`c` is"), "{notes}");
}

#[test]
fn a_small_manifest_reads_so() {
    let (plan, workload) = plan(&[(600, vec![mig("m", 3)])]);
    let emission = k8s(&plan, &workload).unwrap();
    let kept = include_str!("kubernetes/gpu0.json");
    if std::env::var_os("GPUMON_BLESS").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kubernetes/gpu0.json");
        std::fs::write(path, &emission.files[0].text).unwrap();
    } else {
        assert_eq!(emission.files[0].text, kept, "GPUMON_BLESS=1 writes it anew");
    }
}

#[test]
fn images_come_from_the_workload_or_the_order() {
    let (plan, mut workload) = plan(&[(600, vec![mig("a", 3), mig("b", 3)])]);
    workload.models[1].image = Some("own:2".into());
    let all = objects(&k8s(&plan, &workload).unwrap());
    let images: Vec<&Value> =
        all.iter().map(|d| &d["spec"]["template"]["spec"]["containers"][0]["image"]).collect();
    assert_eq!(images, ["registry.example/worker:1", "own:2"]);
    let without = Order { image: None, ..order(&plan, &workload) };
    assert_eq!(K8s.emit(&without), Err(EmitError::NoImage("a".into())));
}

#[test]
fn what_cannot_be_carried_is_refused_in_words() {
    let says = |result: Result<Emission, EmitError>, words: &str| {
        let text = result.unwrap_err().to_string();
        assert!(text.contains(words), "{text}");
    };
    let (several, workload) = plan(&[(600, vec![("m".into(), Share::Slices(3), 2)])]);
    says(k8s(&several, &workload), "2 processes in one MIG instance");
    assert!(MigParted.emit(&order(&several, &workload)).is_ok(), "counts do not care");
    let (shares, workload) = plan(&[(600, vec![mps("m", 40.0)])]);
    says(MigParted.emit(&order(&shares, &workload)), "`m` on GPU 0 has a share by MPS");
    let (good, mut workload) = plan(&[(600, vec![mig("m", 3)])]);
    for emitter in EMITTERS.iter().filter(|e| e.takes_memory()) {
        let ask = |memory_gb| emitter.emit(&Order { memory_gb, ..order(&good, &workload) });
        says(ask(None), "kind `a100` come with 40 or 80 GB; say which with --gpu-memory-gb");
        says(ask(Some(141)), "--gpu-memory-gb 141");
    }
    let (too_many, other) = plan(&[(600, vec![mig("m", 4), mig("n", 4)])]);
    says(MigParted.emit(&order(&too_many, &other)), "do not fit on GPU 0 together");
    workload.models[0].run = None;
    says(k8s(&good, &workload), "`m` has no `run`");
    workload.models.clear();
    says(k8s(&good, &workload), "which the workload does not list");
}

#[test]
fn only_a_kind_of_one_size_needs_no_memory() {
    let (mut plan, workload) = plan(&[(600, vec![mig("m", 3)])]);
    plan.gpu = "h200".into();
    let order = Order { image: IMAGE, ..Order::new(&plan, &workload) };
    assert_eq!(limits(&objects(&K8s.emit(&order).unwrap())[0]), &json!({ "nvidia.com/mig-3g.71gb": "1" }));
    assert!(MigParted.emit(&order).unwrap().files[0].text.contains("\"3g.71gb\": 1"));
}

#[test]
fn a_mig_configuration_reads_so() {
    let (plan, workload) =
        plan(&[(600, vec![mig("a", 4), mig("b", 3)]), (1410, vec![mig("a", 2), mig("b", 2)])]);
    let emission = MigParted.emit(&order(&plan, &workload)).unwrap();
    assert_eq!(emission.files[0].name, "mig-parted.yaml");
    assert_eq!(
        emission.files[0].text,
        "\
# Written by gpumon from a plan. nvidia-mig-parted apply -f mig-parted.yaml -c gpumon
# Counts of MIG instances only: the driver chooses their start slots, and clocks are locked apart from this file.
version: v1
mig-configs:
  # GPU i of the node as GPU i of the plan
  gpumon:
    # plan: 3g at 4, 4g at 0 (the only way that these counts can stand); clock: nvidia-smi -i GPU -lgc 600,600
    - devices: [0]
      mig-enabled: true
      mig-devices:
        \"3g.20gb\": 1
        \"4g.20gb\": 1
    # plan: 2g at 2, 2g at 4 (one of 3 ways, and the driver chooses); clock: nvidia-smi -i GPU -lgc 1410,1410
    - devices: [1]
      mig-enabled: true
      mig-devices:
        \"2g.10gb\": 2

  # every GPU of the node as GPU 0 of the plan
  gpumon-gpu0:
    # plan: 3g at 4, 4g at 0 (the only way that these counts can stand); clock: nvidia-smi -i GPU -lgc 600,600
    - devices: all
      mig-enabled: true
      mig-devices:
        \"3g.20gb\": 1
        \"4g.20gb\": 1

  # every GPU of the node as GPU 1 of the plan
  gpumon-gpu1:
    # plan: 2g at 2, 2g at 4 (one of 3 ways, and the driver chooses); clock: nvidia-smi -i GPU -lgc 1410,1410
    - devices: all
      mig-enabled: true
      mig-devices:
        \"2g.10gb\": 2
"
    );
    assert_eq!(emission.notes.len(), 1);
    assert!(emission.notes[0].starts_with("GPU 1: mig-parted cannot say where"), "{:?}", emission.notes);
    assert!(MigParted.wrote(emission.files[0].text.as_bytes()) && !MigParted.wrote(b"version: v1\n"));
}

#[test]
fn each_format_knows_its_own_files_and_no_others() {
    let (plan, workload) = plan(&[(600, vec![mig("m", 3)])]);
    for emitter in EMITTERS {
        for file in emitter.emit(&order(&plan, &workload)).unwrap().files {
            for other in EMITTERS {
                let same = other.name() == emitter.name();
                assert_eq!(other.could_be(&file.name), same, "{} {}", other.name(), file.name);
                assert_eq!(other.wrote(file.text.as_bytes()), same, "{} {}", other.name(), file.name);
            }
        }
        for foreign in ["", "gpu.json", "gpux.json", "gpu1.yaml", "notes.txt", "xgpu0.json", "gpu-1.sh"] {
            assert!(!emitter.could_be(foreign), "{} {foreign}", emitter.name());
        }
        for foreign in ["", "{}", "[]", "{\"items\":[]}", "{\"items\":[{}]}", "\u{0}"] {
            assert!(!emitter.wrote(foreign.as_bytes()), "{} {foreign}", emitter.name());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn names_are_labels_and_texts_arrive(
        names in proptest::collection::vec("[^\0@][^\0]{0,80}|[a-zA-Z0-9_.-]{1,70}", 1..8),
        argv in proptest::collection::vec("[^\0]{1,12}|[$()A-Z{}]{1,12}", 1..5),
        shared in any::<bool>(),
    ) {
        let seat = |name: &String| if shared { mps(name, 10.0) } else { mig(name, 1) };
        let same = names.iter().map(seat).collect::<Vec<_>>();
        let (plan, mut workload) = plan(&[(600, same.iter().take(7).cloned().collect()), (900, same[..1].to_vec())]);
        workload.models.iter_mut().for_each(|m| m.run = Some(argv.clone()));
        let all = objects(&k8s(&plan, &workload).unwrap());
        let deployments: Vec<&Value> = all.iter().filter(|o| o["kind"] == "Deployment").collect();
        let partitions: Vec<&Partition> = plan.gpus.iter().flat_map(|g| &g.partitions).collect();
        prop_assert_eq!(deployments.len(), partitions.len());
        let mut seen = HashSet::new();
        for (deployment, partition) in deployments.iter().zip(partitions) {
            let name = deployment["metadata"]["name"].as_str().unwrap();
            prop_assert!(is_label(name) && seen.insert(name.to_owned()), "{}", name);
            for labels in [&deployment["metadata"]["labels"], &deployment["spec"]["template"]["metadata"]["labels"]] {
                prop_assert!(labels.as_object().unwrap().values().all(|v| is_label(v.as_str().unwrap())));
            }
            let selected = &deployment["spec"]["selector"]["matchLabels"]["app.kubernetes.io/instance"];
            prop_assert_eq!(selected, name);
            let command = &deployment["spec"]["template"]["spec"]["containers"][0]["command"];
            let arrives: Vec<String> = command.as_array().unwrap().iter().map(|w| expanded(w.as_str().unwrap())).collect();
            prop_assert_eq!(&arrives, &argv);
            prop_assert_eq!(expanded(env(deployment, "GPUMON_MODEL").unwrap()), partition.model.as_str());
            prop_assert_eq!(&deployment["metadata"]["annotations"]["gpumon/model"], partition.model.as_str());
        }
    }

    #[test]
    fn mig_counts_are_the_plans(sizes in proptest::collection::vec(proptest::sample::select(vec![1u8, 2, 3, 4, 7]), 1..8)) {
        let shares: Vec<_> = sizes.iter().enumerate().map(|(i, s)| mig(&format!("m{i}"), *s)).collect();
        let (plan, workload) = plan(&[(600, shares)]);
        let made = MigParted.emit(&order(&plan, &workload));
        prop_assert_eq!(made.is_ok(), SEVEN_SLICES.place(&sizes).is_some());
        let Ok(emission) = made else { return Ok(()) };
        let (whole, gpu0) = emission.files[0].text.split_once("  gpumon-gpu0:").unwrap();
        for section in [whole, gpu0] {
            let mut counts = BTreeMap::<u8, usize>::new();
            for line in section.lines().filter_map(|l| l.trim().strip_prefix('"')) {
                let (profile, count) = line.split_once("\": ").unwrap();
                let (slices, memory) = profile.split_once("g.").unwrap();
                prop_assert!(memory.ends_with("gb"));
                counts.insert(slices.parse().unwrap(), count.parse().unwrap());
            }
            let mut wanted = BTreeMap::new();
            sizes.iter().for_each(|s| *wanted.entry(*s).or_default() += 1);
            prop_assert_eq!(&counts, &wanted);
        }
        let several = SEVEN_SLICES.placements(&sizes).len() > 1;
        prop_assert_eq!(emission.notes.len(), usize::from(several));
    }
}
