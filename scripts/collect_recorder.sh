#!/usr/bin/env bash
# Measures the recorder on a machine with an NVIDIA GPU, PyTorch and nvidia-ml-py: what it keeps, what
# it costs, and what a plain polling loop gets beside it. Changes nothing on the GPU. Takes 7 minutes.
#
#   scripts/collect_recorder.sh GPUMON OUT [MEASUREMENT…]
#
# GPUMON is the binary, OUT a folder for the results. MEASUREMENTs are some of idle-default square-default
# square-1000hz idle-1000hz beside; without any, all. SECONDS_EACH=60 sets their length.
set -euo pipefail
gpumon=${1:?the gpumon binary}
out=${2:?a folder for the results}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
seconds=${SECONDS_EACH:-60}
shift 2
wanted=" ${*:-idle-default square-default square-1000hz idle-1000hz beside} "

{
  date -u +%Y-%m-%dT%H:%M:%SZ
  nvidia-smi --query-gpu=name,uuid,driver_version,power.limit --format=csv
  uname -r
  "$gpumon" --version
  "$gpumon" devices
} | tee "$out/machine.txt"

# name, rate, load: 'idle' or the arguments of square_load.py
measure() {
  local name=$1 rate=$2
  shift 2
  case "$wanted" in *" $name "*) ;; *) return 0 ;; esac
  local load=
  if [ "$1" != idle ]; then
    python3 "$here/square_load.py" "$@" --duration $((seconds + 20)) >"$work/load.json" &
    load=$!
    sleep 15
  fi
  "$gpumon" record -o "$work/$name" --rate "$rate" --duration "$seconds" --json >"$work/$name.json"
  if [ -n "$load" ]; then
    wait "$load"
  else
    echo '"idle"' >"$work/load.json"
  fi
  result "$name"
}

# One line in results.jsonl: the summary, the load, and what ring_check.py finds.
result() {
  python3 "$here/ring_check.py" "$work/$1" >"$work/check.json"
  python3 - "$1" "$work/$1.json" "$work/load.json" "$work/check.json" <<'PY' | tee -a "$out/results.jsonl"
import json, sys
name, *files = sys.argv[1:]
summary, load, check = (json.load(open(f)) for f in files)
cost = summary["own_cost"]
cpu = 100 * cost["cpu_s"] / summary["duration_s"]
print(json.dumps({"name": name, "cpu_percent_of_a_core": round(cpu, 3), "load": load, "check": check, "summary": summary}))
PY
}

measure idle-default 10 idle
measure square-default 10 --on-ms 37 --off-ms 61
measure square-1000hz 1000 --on-ms 37 --off-ms 61
measure idle-1000hz 1000 idle

# A plain loop beside gpumon at its default rate.
case "$wanted" in
*" beside "*)
  python3 "$here/square_load.py" --duration $((seconds + 20)) >"$work/load.json" &
  load=$!
  sleep 15
  "$gpumon" record -o "$work/beside" --duration "$seconds" --json >"$work/beside.json" &
  python3 "$here/naive_loop.py" --duration "$seconds" --output "$work/naive.csv" | tee "$out/naive.json"
  wait
  result beside
  ;;
esac
(cd "$work" && find . -mindepth 1 -maxdepth 1 -type d -print0 | tar --null -czf "$out/recordings.tar.gz" -T -)
