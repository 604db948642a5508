#!/usr/bin/env bash
# Sixteen fake GPUs at 100 Hz, one of which hangs and one of which is lost after five seconds: the other fourteen are
# recorded whole. Prints what each GPU has; fails if anything of the fourteen was dropped.
# Usage: scripts/check_sixteen.sh [SECONDS]   (needs `cargo build -p gpumon -p gpumon-fakenvml`)
set -euo pipefail
seconds=${1:-30}
target=${CARGO_TARGET_DIR:-target}/${PROFILE:-debug}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
ln -s "$(realpath "$target/libgpumon_fakenvml.so")" "$folder/libnvidia-ml.so.1"
cat >"$folder/script.toml" <<'TOML'
gpus = "half.toml"
count = 16
state = "state"
[[fault]]
kind = "hang"
call = "nvmlDeviceGetFieldValues"
gpu = 7
from_ms = 5000
[[fault]]
kind = "vanish"
error = "GPU_IS_LOST"
gpu = 3
from_ms = 5000
TOML
printf 'base = "h200"\n[load]\nkind = "constant"\nlevel = 0.4\n' >"$folder/half.toml"
code=0
LD_LIBRARY_PATH=$folder GPUMON_FAKENVML=$folder/script.toml "$target/gpumon" record -o "$folder/r" --rate 100 \
    --duration "$seconds" --json >"$folder/summary.json" || code=$?
"$target/gpumon" export "$folder/r" --table fast -o "$folder/fast.csv"
"$target/gpumon" export "$folder/r" --table events -o "$folder/events.csv"
python3 - "$folder" "$seconds" "$code" <<'PYTHON'
import collections, csv, json, sys

folder, seconds, code = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
summary = json.load(open(f"{folder}/summary.json"))
rows = collections.Counter(int(r["gpu"]) for r in csv.DictReader(open(f"{folder}/fast.csv")))
missed, kinds = collections.Counter(), collections.Counter()
for event in csv.DictReader(open(f"{folder}/events.csv")):
    gpu = int(event["gpu"]) if event["gpu"] else None
    kinds[event["kind"], gpu] += 1
    if event["kind"] == "missed_ticks":
        missed[gpu] += int(event["count"])
for gpu in range(16):
    ring = summary["gpus"][gpu]["ring_readings"]
    print(f"GPU {gpu:2}: {rows[gpu]} rows + {missed[gpu]} missed of {100 * seconds}, {ring} ring readings")
print("events:", {f"{kind} of GPU {gpu}": n for (kind, gpu), n in sorted(kinds.items(), key=str) if kind != "missed_ticks"})
cost = summary["own_cost"]
print(f"exit code {code}, {cost['cpu_s'] / seconds * 100:.1f} % of a core, p99 lateness {cost['lateness_p99_us']} µs,",
      f"{cost['max_rss_bytes'] / 2**20:.0f} MiB")
healthy = [gpu for gpu in range(16) if gpu not in (3, 7)]
bad = [gpu for gpu in healthy if rows[gpu] + missed[gpu] != 100 * seconds]
bad += [gpu for kind, gpu in kinds if kind not in ("missed_ticks",) and gpu in healthy]
sys.exit(f"not whole: {bad}" if bad or code != 4 else 0)
PYTHON
