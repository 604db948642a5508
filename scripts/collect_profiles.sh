#!/bin/sh
# Collects a profile of PyTorch models on this machine's GPU: the grid of MPS shares and batch sizes at the default clock,
# sets of models at work together, and some of the points again. Takes up where it was stopped.
#
#   scripts/collect_profiles.sh FOLDER SECONDS
#
# FOLDER keeps the results; a run ends after about SECONDS, in the middle of what it was doing. Each command heats the card first
# (HEAT, 120s by default), because a warm card draws more.
set -u
folder=${1:?usage: collect_profiles.sh FOLDER SECONDS}
seconds=${2:?usage: collect_profiles.sh FOLDER SECONDS}
gpumon=${GPUMON:-target/release/gpumon}
workload=${WORKLOAD:-data/workloads/h200-torch.toml}
heat=${HEAT:-120s}
mkdir -p "$folder"
export XDG_STATE_HOME="$folder/state"
end=$(($(date +%s) + seconds))
nvidia-smi --query-gpu=uuid,name,driver_version,compute_mode,persistence_mode,power.limit,clocks.max.sm --format=csv \
    >"$folder/gpu.csv"

# Runs one command unless its output is there; ends the script when time is up.
step() {
    output=$1
    shift
    [ -e "$output" ] && return
    left=$((end - $(date +%s)))
    [ "$left" -gt 15 ] || exit 0
    echo "== $* ($left s left)" >>"$folder/log.txt"
    timeout --signal=INT "$left" "$gpumon" profile -w "$workload" --clocks default --heat "$heat" "$@" -o "$output" \
        >>"$folder/log.txt" 2>&1
    code=$?
    echo "== ended with $code" >>"$folder/log.txt"
    [ "$code" -eq 0 ] || exit 0
}

step "$folder/grid.parquet" --shares 14,29,43,57,100 --batches 1,2,4,8,16,32
step "$folder/sets.parquet" --shares 14,29,43,57 --batches 1,2,4,8,16,32 \
    --together 40 --alone "$folder/grid.parquet"
step "$folder/repeated.parquet" --shares 14,29,43,57,100 --batches 1,2,4,8,16,32 --design lhs:0.05 --seed 7
