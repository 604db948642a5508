//! One POSIX shell script a GPU: it sets the GPU up as the plan says, runs the workers, and undoes it all.
//!
//! Rule: a script turns MIG on (or starts MPS), locks the SM clock, creates the instances at the plan's starts, starts
//! every worker with its argv from the workload, waits for them, and on exit, whichever way, stops the workers and
//! puts the GPU back. It takes the GPU's index or UUID as its argument; without one, its own number.
//! Each worker finds in its environment `CUDA_VISIBLE_DEVICES`, `GPUMON_MODEL`, `GPUMON_BATCH` and `GPUMON_RATE_RPS`.
//! Several processes of a partition have equal parts of its rate; in a MIG instance they share it by an MPS daemon of its own.
//! Cases: a GPU that has MIG instances already is refused, since undoing would take those too; MIG mode is put back
//! as it was; a worker that fails stops the rest, and its exit status becomes the script's.
//! Safety: whatever comes from a file stands between single quotes ([`quote`]), and never in a comment; a program
//! whose name has `=` or a NUL byte cannot be written, and is refused.
//! A plan with turns is refused: nothing here starts batches, so nothing would keep the rounds.
//! Not done: rates (the worker or a load generator keeps them); clocks that were locked before are not known to the
//! driver as such, so the undoing unlocks.
//!
//! Source: NVIDIA's `nvidia-smi` and MIG User Guide (profile ids 19, 14, 9, 5, 0 for 1, 2, 3, 4, 7 slices on A100,
//! H100 and H200; `-cgi ID:START`; "MIG with CUDA MPS" for a daemon an instance), and the MPS documentation for its variables.

use std::fmt::Write as _;

use gpumon_core::workload::Workload;

use super::{Emission, EmitError, Emitted, Emitter, Order, Place, Seat, is_mig, numbered, seats};
use crate::plan::{Gpu, Plan};

/// Scripts.
pub struct Sh;

impl Emitter for Sh {
    fn name(&self) -> &'static str {
        "sh"
    }

    fn about(&self) -> &'static str {
        "A shell script a GPU: sets clock and partitions, starts the workers, undoes all of it at the end"
    }

    fn emit(&self, order: &Order) -> Result<Emission, EmitError> {
        Ok(Emission { files: scripts(order.plan, order.workload)?, notes: Vec::new() })
    }

    fn could_be(&self, name: &str) -> bool {
        numbered(name, "gpu", ".sh")
    }

    fn wrote(&self, text: &[u8]) -> bool {
        text.starts_with(b"#!/bin/sh\n# Written by gpumon from a plan.")
    }
}

/// A script for each GPU of the plan, `gpu0.sh` and on.
pub fn scripts(plan: &Plan, workload: &Workload) -> Result<Vec<Emitted>, EmitError> {
    plan.gpus.iter().enumerate().map(|(index, gpu)| script(index, gpu, plan, workload)).collect()
}

/// A shell word that stands for exactly this text. NUL bytes, which no argument can hold, are dropped.
pub fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\0', "").replace('\'', r"'\''"))
}

fn script(index: usize, gpu: &Gpu, plan: &Plan, workload: &Workload) -> Result<Emitted, EmitError> {
    let simulated =
        if plan.simulated { "# Simulated: the plan's figures come from simulated GPUs.\n" } else { "" };
    let mut text = HEAD
        .replace("@SIMULATED@\n", simulated)
        .replace("@INDEX@", &index.to_string())
        .replace("@MHZ@", &gpu.frequency_mhz.to_string());
    text += if is_mig(gpu) { MIG } else { MPS };
    text += "\n# Workers\n";
    for seat in seats(gpu, workload)? {
        worker(&mut text, &seat)?;
    }
    text += TAIL;
    Ok(Emitted { name: format!("gpu{index}.sh"), text })
}

fn worker(text: &mut String, seat: &Seat) -> Result<(), EmitError> {
    let (p, argv) = (seat.partition, seat.argv()?);
    if argv[0].contains('=') {
        let why =
            "starts a program with `=` in its name, which `env` reads as a variable; start it through a link";
        return Err(EmitError::Program { model: p.model.clone(), why });
    }
    // Writing to a String cannot fail.
    let _ = match seat.place {
        Place::Instance { slices, start } => {
            let id = profile_id(slices).ok_or_else(|| EmitError::NoPlace(p.model.clone()))?;
            let mps = if p.processes > 1 { "\nshare_by_mps" } else { "" };
            writeln!(text, "\ninstance {id} {start}   # {slices} of 7 slices{mps}")
        }
        Place::Share(pct) => writeln!(text, "\nshare={pct:.4}"),
    };
    let words: Vec<String> = argv.iter().map(|a| quote(a)).collect();
    let start = format!("start {} {} {}", quote(&p.model), p.batch, seat.rate_rps());
    for _ in 0..p.processes {
        let _ = writeln!(text, "{start} \\\n  {}", words.join(" "));
    }
    Ok(())
}

/// `nvidia-smi`'s id of the GPU instance profile with these slices.
fn profile_id(slices: u8) -> Option<u8> {
    [(1, 19), (2, 14), (3, 9), (4, 5), (7, 0)].iter().find(|(s, _)| *s == slices).map(|(_, id)| *id)
}

const HEAD: &str = r#"#!/bin/sh
# Written by gpumon from a plan. Needs root, or CAP_SYS_ADMIN for nvidia-smi.
@SIMULATED@
# Usage: sh gpu@INDEX@.sh [GPU index or UUID]
set -eu

gpu=${1:-@INDEX@}
mhz=@MHZ@
workers=

say() { printf 'gpumon: %s\n' "$*" >&2; }

# forget PID: takes one off the list of workers.
forget() {
  rest=
  for worker in $workers; do
    [ "$worker" = "$1" ] || rest="$rest $worker"
  done
  workers=$rest
}

# Asks each worker to end, and kills those that have not after ten seconds.
stop_workers() {
  for pid in $workers; do kill "$pid" 2>/dev/null || :; done
  seconds=0
  while [ -n "$workers" ]; do
    for pid in $workers; do
      kill -0 "$pid" 2>/dev/null || forget "$pid"
    done
    [ -n "$workers" ] || break
    if [ "$seconds" -eq 10 ]; then
      for pid in $workers; do kill -9 "$pid" 2>/dev/null || :; done
    fi
    seconds=$((seconds + 1))
    sleep 1
  done
}

# Whatever was done so far is undone, the last first.
undo() {
  status=$?
  trap '' HUP INT TERM
  trap - EXIT
  stop_workers
  put_back || :
  nvidia-smi -i "$gpu" -rgc >/dev/null || say "could not unlock the clock of GPU $gpu"
  exit "$status"
}

# start MODEL BATCH RATE PROGRAM ARGUMENT...
start() {
  model=$1 batch=$2 rate=$3
  shift 3
  say "starting $model"
  with_share env GPUMON_MODEL="$model" GPUMON_BATCH="$batch" GPUMON_RATE_RPS="$rate" "$@" &
  workers="$workers $!"
}
"#;

const MIG: &str = r#"
mig_mode() { nvidia-smi -i "$gpu" --query-gpu=mig.mode.current --format=csv,noheader; }

# UUIDs of this GPU's MIG devices, one a line.
mig_devices() {
  nvidia-smi -L | awk -v gpu="$gpu" '
    $1 == "GPU" { here = ($2 == gpu ":") || index($0, "(UUID: " gpu ")") }
    here && $1 == "MIG" && match($0, /MIG-[^)]*/) { print substr($0, RSTART, RLENGTH) }'
}

# instance PROFILE START: creates one, and leaves its UUID in $device.
instance() {
  before=$(mig_devices)
  pipe=
  nvidia-smi mig -i "$gpu" -cgi "$1:$2" -C
  device=
  for uuid in $(mig_devices); do
    case " $(printf '%s' "$before" | tr '\n' ' ') " in
      *" $uuid "*) ;;
      *) device=$uuid ;;
    esac
  done
  if [ -z "$device" ]; then
    say "no new MIG device on GPU $gpu after creating profile $1 at $2"
    exit 1
  fi
}

# Starts an MPS daemon by which the processes in $device share it.
share_by_mps() {
  [ -n "$folder" ] || folder=$(mktemp -d)
  pipe=$folder/$device
  mkdir "$pipe"
  CUDA_VISIBLE_DEVICES="$device" CUDA_MPS_PIPE_DIRECTORY="$pipe" CUDA_MPS_LOG_DIRECTORY="$pipe" \
    nvidia-cuda-mps-control -d
}

with_share() {
  export CUDA_VISIBLE_DEVICES="$device"
  [ -z "$pipe" ] || export CUDA_MPS_PIPE_DIRECTORY="$pipe" CUDA_MPS_LOG_DIRECTORY="$pipe"
  exec "$@"
}

put_back() {
  if [ -n "$folder" ]; then
    for pipe in "$folder"/*; do
      [ -d "$pipe" ] || continue
      echo quit | CUDA_MPS_PIPE_DIRECTORY="$pipe" CUDA_MPS_LOG_DIRECTORY="$pipe" nvidia-cuda-mps-control >/dev/null ||
        say "could not stop MPS on ${pipe##*/}"
    done
    rm -rf -- "$folder"
  fi
  nvidia-smi mig -i "$gpu" -dci >/dev/null 2>&1 || :
  nvidia-smi mig -i "$gpu" -dgi >/dev/null 2>&1 || :
  if [ "$mode" != Enabled ]; then
    nvidia-smi -i "$gpu" -mig 0 >/dev/null || say "could not turn MIG off on GPU $gpu"
  fi
}

# Set-up
if [ -n "$(mig_devices)" ] || nvidia-smi mig -i "$gpu" -lgi 2>/dev/null | grep -q ' MIG '; then
  say "GPU $gpu has MIG instances already; remove them first (nvidia-smi mig -dci, then -dgi)"
  exit 1
fi
mode=$(mig_mode)
folder=
trap undo EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
if [ "$mode" != Enabled ]; then
  nvidia-smi -i "$gpu" -mig 1
  if [ "$(mig_mode)" != Enabled ]; then
    say "MIG mode of GPU $gpu waits for a reset; stop what uses the GPU and reset it (nvidia-smi -i $gpu -r)"
    exit 1
  fi
fi
# After MIG mode, because a GPU may be reset for that, which unlocks its clock.
nvidia-smi -i "$gpu" -lgc "$mhz,$mhz"
"#;

const MPS: &str = r#"
with_share() {
  export CUDA_VISIBLE_DEVICES="$gpu" CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="$share"
  exec "$@"
}

put_back() {
  echo quit | nvidia-cuda-mps-control >/dev/null || say "could not stop MPS on GPU $gpu"
  rm -rf -- "$folder"
}

# Set-up
folder=$(mktemp -d)
trap undo EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
export CUDA_MPS_PIPE_DIRECTORY="$folder" CUDA_MPS_LOG_DIRECTORY="$folder"
nvidia-smi -i "$gpu" -lgc "$mhz,$mhz"
CUDA_VISIBLE_DEVICES="$gpu" nvidia-cuda-mps-control -d
"#;

const TAIL: &str = r#"
# Wait for all; the first failure ends the script, which stops the rest.
while [ -n "$workers" ]; do
  sleep 1
  for pid in $workers; do
    if ! kill -0 "$pid" 2>/dev/null; then
      forget "$pid"
      wait "$pid"
    fi
  done
done
"#;
