"""A worker of gpumon's protocol (docs/worker-protocol.md) without a GPU: a batch is a sleep. To read, and to test with."""

import argparse
import json
import os
import queue
import sys
import threading
import time

arguments = argparse.ArgumentParser()
arguments.add_argument("--ms", type=float, default=2.0, help="time of a batch, ms")
arguments.add_argument("--max-batch", type=int, default=64, help="larger batches do not fit")
arguments.add_argument("--environment", help="append the CUDA variables of each load to this file")
options = arguments.parse_args()
asks = queue.Queue()


def say(**message):
    print(json.dumps(message), flush=True)


def read():
    for line in sys.stdin:
        asks.put(json.loads(line))
    asks.put({"op": "quit"})


def batch():
    began = time.perf_counter_ns()
    time.sleep(options.ms / 1e3)
    return (time.perf_counter_ns() - began) / 1e3


def run(seconds):
    end, told, times = time.monotonic() + seconds, time.monotonic(), []
    while True:
        times.append(batch())
        done = time.monotonic() >= end or (not asks.empty() and asks.get()["op"] in ("stop", "quit"))
        if done or time.monotonic() - told >= 0.05:
            say(batches_us=times, done=done)
            told, times = time.monotonic(), []
        if done:
            return


threading.Thread(target=read, daemon=True).start()
say(version=1, name="reference", ops=["context", "load", "unload", "batch", "run", "stop", "memory", "quit"])
loaded = 0
while True:
    ask = asks.get()
    match ask["op"]:
        case "load" if ask["batch"] > options.max_batch:
            say(error={"kind": "does_not_fit", "message": f"a batch of {ask['batch']}"})
        case "load":
            loaded = ask["batch"]
            if options.environment:
                with open(options.environment, "a") as file:
                    cuda = {key: value for key, value in os.environ.items() if key.startswith("CUDA")}
                    file.write(json.dumps(cuda) + "\n")
            say(memory_bytes=loaded << 20)
        case "batch":
            took_us = batch()
            say(id=ask.get("id"), batch_us=took_us, met=took_us <= ask.get("deadline_us", float("inf")))
        case "run":
            run(ask["seconds"])
        case "memory":
            say(memory_bytes=loaded << 20)
        case "context" | "unload":
            say()
        case "stop":
            pass
        case "quit":
            sys.exit()
        case other:
            say(error={"kind": "failed", "message": f"`{other}` is no op of this worker"})
