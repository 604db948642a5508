//! Kubernetes manifests: one `List` a GPU with a Deployment a partition; for MPS also a configuration of NVIDIA's device
//! plugin.
//!
//! Rule: `gpu0.json` and on hold a JSON `List` each, which `kubectl apply -f` takes. A Deployment starts its model's worker
//! with exactly the argv of the workload's `run`, in the model's image, on nodes with the label `gpumon/gpu-0` (and so on),
//! and says in annotations what the plan has for it. The container finds `GPUMON_MODEL`, `GPUMON_BATCH` and
//! `GPUMON_RATE_RPS` in its environment; which GPU it sees is the container runtime's to set.
//! Cases:
//! - MIG: a container asks for one instance by its size, `nvidia.com/mig-3g.20gb` (strategy `mixed`). Several processes in
//!   one instance are refused: the plugin gives an instance to one container and does not share it by MPS.
//! - MPS: a container a process, each asks for one `nvidia.com/gpu` and has `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE`.
//!   `device-plugin.json` holds a ConfigMap with a key for each number of containers on a GPU. The plugin lets each
//!   of N containers have at most 1/N of the SMs and of the memory, and a container's own percentage can only lower that; so a
//!   larger share is noted. With one replica it starts no MPS, so a model alone has two, or the whole GPU.
//!
//! Names are RFC 1123 labels: lower-case letters, digits and `-`, at most 63 characters, no two alike. Whatever comes from a
//! file and may be expanded by Kubernetes (argv, environment) has each `$` doubled, which stands for one.
//! What Kubernetes cannot carry is said in the annotation `gpumon/not-carried` and in the notes: it chooses the
//! instance and so the start slot, and locks no clock.
//! Not done: Services, probes, tolerations, namespaces; setting nodes up.
//!
//! Source: `nvidia.com/mig-…` and the sharing options from the README of NVIDIA/k8s-device-plugin ("Shared Access to GPUs":
//! equal parts, whole GPUs only, the same for all GPUs of a node); percentages of clients from NVIDIA's MPS documentation
//! ("will only further constrain the limit set by the control daemon"); `$$` from the Kubernetes reference of
//! `Container.command`.

use std::collections::{BTreeSet, HashSet};

use gpumon_core::workload::is_image;
use serde_json::{Map, Value, json};

use super::{Emission, EmitError, Emitted, Emitter, Order, Place, Seat, numbered, profile_of, seats};
use crate::plan::Gpu;

/// Manifests.
pub struct K8s;

/// File of the device plugin's configuration.
const PLUGIN_FILE: &str = "device-plugin.json";
/// Longest RFC 1123 label, in characters.
const LABEL: usize = 63;
/// The label of everything that gpumon writes.
const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "gpumon");

impl Emitter for K8s {
    fn name(&self) -> &'static str {
        "k8s"
    }

    fn about(&self) -> &'static str {
        "Kubernetes manifests a GPU: a Deployment a partition, for MPS also a configuration of NVIDIA's device plugin"
    }

    fn emit(&self, order: &Order) -> Result<Emission, EmitError> {
        let mut names = HashSet::new();
        let mut emission = Emission::default();
        let mut counts = BTreeSet::new();
        for (index, gpu) in order.plan.gpus.iter().enumerate() {
            let on = OnGpu { order, index, gpu };
            let seats = seats(gpu, order.workload)?;
            let replicas = replicas(&seats);
            counts.extend(replicas);
            let items =
                seats.iter().map(|seat| on.deployment(seat, &mut names)).collect::<Result<Vec<_>, _>>()?;
            emission.files.push(file(format!("gpu{index}.json"), items)?);
            emission.notes.push(on.set_up(replicas));
            emission.notes.extend(seats.iter().filter_map(|seat| on.unlike_the_plan(seat, replicas?)));
        }
        if !counts.is_empty() {
            emission.files.push(file(PLUGIN_FILE.into(), vec![plugin_config(&counts)])?);
        }
        Ok(emission)
    }

    fn could_be(&self, name: &str) -> bool {
        name == PLUGIN_FILE || numbered(name, "gpu", ".json")
    }

    fn wrote(&self, text: &[u8]) -> bool {
        let managed = |item: &Value| item["metadata"]["labels"][MANAGED_BY.0] == MANAGED_BY.1;
        let list = serde_json::from_slice::<Value>(text).unwrap_or_default();
        list["items"].as_array().is_some_and(|items| !items.is_empty() && items.iter().all(managed))
    }

    fn takes_image(&self) -> bool {
        true
    }

    fn takes_memory(&self) -> bool {
        true
    }
}

fn file(name: String, items: Vec<Value>) -> Result<Emitted, EmitError> {
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
    // Maps with text keys and finite numbers always serialise.
    let text = serde_json::to_string_pretty(&list)
        .map_err(|e| EmitError::Inexpressible { format: "JSON", why: e.to_string() })?;
    Ok(Emitted { name, text: text + "\n" })
}

/// One GPU of the plan.
struct OnGpu<'a> {
    order: &'a Order<'a>,
    index: usize,
    gpu: &'a Gpu,
}

impl OnGpu<'_> {
    fn deployment(&self, seat: &Seat, names: &mut HashSet<String>) -> Result<Value, EmitError> {
        let (p, model) = (seat.partition, &seat.partition.model);
        let name = unused_name(&format!("gpu{}-{}", self.index, slug(model)), names);
        let image = seat.model.image.as_deref().or(self.order.image).filter(|image| is_image(image));
        let image = image.ok_or_else(|| EmitError::NoImage(model.clone()))?;
        let mut env = vec![
            variable("GPUMON_MODEL", model),
            variable("GPUMON_BATCH", &p.batch.to_string()),
            variable("GPUMON_RATE_RPS", &seat.rate_rps().to_string()),
        ];
        let (resource, containers) = match seat.place {
            Place::Instance { slices, .. } => {
                if p.processes > 1 {
                    return Err(self.several_processes(seat));
                }
                (format!("nvidia.com/mig-{}", profile_of(self.order, model, slices)?), 1)
            }
            Place::Share(pct) => {
                env.push(variable("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", &format!("{pct:.4}")));
                ("nvidia.com/gpu".to_owned(), p.processes.max(1))
            }
        };
        let command: Vec<String> = seat.argv()?.iter().map(|word| literal(word)).collect();
        let labels = json!({
            "app.kubernetes.io/name": slug(model),
            "app.kubernetes.io/instance": name,
            MANAGED_BY.0: MANAGED_BY.1,
        });
        let selector = json!({ "app.kubernetes.io/instance": name });
        Ok(json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": { "name": name, "labels": labels, "annotations": self.annotations(seat) },
            "spec": {
                "replicas": containers,
                // A new worker cannot start before the old one has left its instance or share.
                "strategy": { "type": "Recreate" },
                "selector": { "matchLabels": selector },
                "template": {
                    "metadata": { "labels": labels },
                    "spec": {
                        "nodeSelector": { self.node_label(): "true" },
                        "containers": [{
                            "name": "worker",
                            "image": image,
                            "command": command,
                            "env": env,
                            "resources": { "limits": { resource: "1" } },
                        }],
                    },
                },
            },
        }))
    }

    fn annotations(&self, seat: &Seat) -> Value {
        let p = seat.partition;
        let mut all = Map::new();
        let mut put = |key: &str, value: String| all.insert(format!("gpumon/{key}"), value.into());
        put("model", p.model.clone());
        put("batch", p.batch.to_string());
        put("rate-rps", p.rate_rps.to_string());
        put("latency-slo-ms", p.latency_slo_ms.to_string());
        put("frequency-mhz", self.gpu.frequency_mhz.to_string());
        let mhz = self.gpu.frequency_mhz;
        let clock = format!("no clock is locked: on the node, nvidia-smi -i GPU -lgc {mhz},{mhz}");
        match seat.place {
            Place::Instance { slices, start } => {
                put("slices", slices.to_string());
                put("start-slot", start.to_string());
                let slot = "Kubernetes chooses which instance of this size, and so the start slot";
                put("not-carried", format!("{slot}; {clock}"));
            }
            Place::Share(pct) => {
                put("share-pct", format!("{pct:.4}"));
                let share = "the device plugin gives every container of a GPU the same part of its SMs and memory at \
                             most, and chooses the GPU";
                put("not-carried", format!("{share}; {clock}"));
            }
        }
        if self.order.plan.simulated {
            put("simulated", "true".into());
        }
        all.into()
    }

    fn node_label(&self) -> String {
        format!("gpumon/gpu-{}", self.index)
    }

    fn several_processes(&self, seat: &Seat) -> EmitError {
        let (model, n) = (&seat.partition.model, seat.partition.processes);
        let why = format!(
            "`{model}` has {n} processes in one MIG instance, and NVIDIA's device plugin gives an instance to one \
             container only; use --emit sh, or a plan with one process an instance"
        );
        EmitError::Inexpressible { format: "Kubernetes", why }
    }

    /// What is to be done for this GPU by hand.
    fn set_up(&self, replicas: Option<u32>) -> String {
        let (index, mhz) = (self.index, self.gpu.frequency_mhz);
        let share = replicas.map_or_else(
            || "make its MIG instances (--emit mig-parted)".to_owned(),
            |n| format!("give the device plugin {PLUGIN_FILE}, and the node nvidia.com/device-plugin.config=mps-{n}"),
        );
        format!(
            "GPU {index}: label its node {}=true, lock its clock there (nvidia-smi -i GPU -lgc {mhz},{mhz}), {share}",
            self.node_label()
        )
    }

    /// Where MPS in Kubernetes gives a model another share than the plan.
    fn unlike_the_plan(&self, seat: &Seat, replicas: u32) -> Option<String> {
        let (Place::Share(pct), index, model) = (seat.place, self.index, &seat.partition.model) else {
            return None;
        };
        let most = 100 / replicas;
        if replicas == 1 {
            (pct < 100.0).then(|| {
                format!(
                    "GPU {index}: `{model}` is to have {pct:.4} % of the SMs, but has the whole GPU: the device plugin \
                     starts no MPS for one container"
                )
            })
        } else {
            (pct > f64::from(most)).then(|| {
                format!(
                    "GPU {index}: `{model}` is to have {pct:.4} % of the SMs, but the device plugin lets each of {replicas} \
                     containers have {most} % at most, and may not keep its rate; after its MPS daemon has started, \
                     `set_default_active_thread_percentage 100` there lifts that"
                )
            })
        }
    }
}

/// How many containers the device plugin is to let onto a GPU; `None` without MPS.
fn replicas(seats: &[Seat]) -> Option<u32> {
    let shares = seats.iter().filter_map(|seat| match seat.place {
        Place::Share(pct) => Some((seat.partition.processes.max(1), pct)),
        Place::Instance { .. } => None,
    });
    let shares: Vec<(u32, f64)> = shares.collect();
    match shares.as_slice() {
        [] => None,
        [(1, pct)] if *pct > 50.0 => Some(1),
        more => Some(more.iter().map(|(n, _)| n).sum::<u32>().max(2)),
    }
}

/// The device plugin's configuration, a key for each number of containers on a GPU.
fn plugin_config(counts: &BTreeSet<u32>) -> Value {
    let config = |n: &u32| {
        let resources = json!([{ "name": "nvidia.com/gpu", "replicas": n }]);
        // With one replica there is nothing to share.
        let sharing = if *n > 1 { json!({ "mps": { "resources": resources } }) } else { json!({}) };
        (format!("mps-{n}"), json!({ "version": "v1", "sharing": sharing }).to_string().into())
    };
    let data: Map<String, Value> = counts.iter().map(config).collect();
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": "gpumon-device-plugin", "labels": { MANAGED_BY.0: MANAGED_BY.1 } },
        "data": data,
    })
}

fn variable(name: &str, value: &str) -> Value {
    json!({ "name": name, "value": literal(value) })
}

/// A text that Kubernetes expands to exactly this one.
fn literal(text: &str) -> String {
    text.replace('$', "$$")
}

/// The letters and digits of a name in lower case, anything else as single hyphens between them; `model` if there are none.
fn slug(name: &str) -> String {
    let words = name.to_ascii_lowercase();
    let words = words.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let mut slug = words.collect::<Vec<_>>().join("-");
    shorten(&mut slug, LABEL);
    if slug.is_empty() { "model".into() } else { slug }
}

/// Cuts a label that has only ASCII characters, without a hyphen at its end.
fn shorten(label: &mut String, most: usize) {
    label.truncate(most);
    label.truncate(label.trim_end_matches('-').len());
}

/// A label that is not in `names` yet: this one, cut, or with a number behind it.
fn unused_name(wanted: &str, names: &mut HashSet<String>) -> String {
    let mut number = 1;
    loop {
        let end = if number == 1 { String::new() } else { format!("-{number}") };
        let mut name = wanted.to_owned();
        shorten(&mut name, LABEL - end.len());
        name += &end;
        if names.insert(name.clone()) {
            return name;
        }
        number += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_labels() {
        for (name, label) in [
            ("resnet50", "resnet50"),
            ("GPT_2 (XL)", "gpt-2-xl"),
            ("--é..ß--", "model"),
            ("", "model"),
            ("a\n$(b)", "a-b"),
        ] {
            assert_eq!(slug(name), label);
        }
        assert_eq!(slug(&"x".repeat(100)).len(), 63);
        assert_eq!(slug(&format!("{}-tail", "x".repeat(62))).len(), 62, "no hyphen at the end");
    }

    #[test]
    fn no_two_names_are_alike() {
        let mut names = HashSet::new();
        let long = "y".repeat(80);
        let made: Vec<String> =
            ["m", "m", "m-2", "m", &long, &long].map(|n| unused_name(n, &mut names)).into();
        assert_eq!(made[..4], ["m", "m-2", "m-2-2", "m-3"]);
        assert_eq!((made[4].len(), made[5].len()), (63, 63));
        assert!(made[5].ends_with("y-2"));
    }
}
