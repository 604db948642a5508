"""Serves a model that only sleeps over the worker protocol (docs/worker-protocol.md), to copy from and to test with.

Rule: JSON lines on standard input and output; a batch sleeps `--ms-per-item` for each of its items. Needs no GPU and nothing
beside Python's standard library.
"""

import argparse
import json
import os
import queue
import sys
import threading
import time

parser = argparse.ArgumentParser()
parser.add_argument("--ms-per-item", type=float, default=1.0)
parser.add_argument("--max-batch", type=int, default=64)
parser.add_argument("--log", help="file to which the environment is added, a JSON object a line")
args = parser.parse_args()
asks, state = queue.Queue(), {"items": 0}


def say(**answer):
    print(json.dumps(answer), flush=True)


def read():
    for line in sys.stdin:
        asks.put(json.loads(line))
    asks.put({"op": "quit"})  # Whoever asked is gone.


def batch_us():
    if not state["items"]:
        raise ValueError("no batch size is loaded")
    began = time.perf_counter_ns()
    time.sleep(state["items"] * args.ms_per_item / 1e3)
    return (time.perf_counter_ns() - began) / 1e3


def run(seconds):
    until, told, times, done = time.monotonic() + seconds, time.monotonic(), [], False
    while not done:
        times.append(batch_us())
        # What comes during a run is `stop`, or the end.
        done = not asks.empty() or time.monotonic() >= until
        if done or time.monotonic() - told >= 0.05:
            say(batches_us=times, done=done)
            told, times = time.monotonic(), []


def answer(ask):
    op = ask["op"]
    if op == "load" and ask["batch"] > args.max_batch:
        say(error={"kind": "does_not_fit", "message": f"a batch of {ask['batch']}, {args.max_batch} is the most"})
    elif op == "load":
        state["items"] = ask["batch"]
        say(memory_bytes=1_000_000 * ask["batch"])
    elif op == "unload":
        state["items"] = 0
        say()
    elif op == "batch":
        took_us, deadline_us = batch_us(), ask.get("deadline_us")
        say(id=ask.get("id"), batch_us=took_us, met=None if deadline_us is None else took_us <= deadline_us)
    elif op == "run":
        run(ask["seconds"])
    elif op == "memory":
        say(memory_bytes=1_000_000 * state["items"])
    elif op in ("context", "quit"):
        say()
    elif op != "stop":  # A `stop` that crossed the end of its run has no answer.
        raise ValueError(f"`{op}` is no op of this worker")


if args.log:
    with open(args.log, "a") as log:
        log.write(json.dumps(dict(os.environ)) + "\n")
threading.Thread(target=read, daemon=True).start()
say(version=1, name="sleep", ops=["context", "load", "unload", "batch", "run", "stop", "memory", "quit"])
while True:
    ask = asks.get()
    try:
        answer(ask)
    except (KeyError, TypeError, ValueError) as error:
        say(error={"kind": "failed", "message": f"{type(error).__name__}: {error}"})
    if ask.get("op") == "quit":
        sys.exit()
