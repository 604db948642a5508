#!/usr/bin/env python3
"""Puts power monitors beside each other on one NVIDIA GPU under one load; changes nothing on the GPU.

    python3 scripts/compare_monitors.py GPUMON OUT [PART…]

PARTs are `windows`, `raw` and `throughput`; without any, all. Needs PyTorch with CUDA and nvidia-ml-py; zeus if it is installed.

windows: for each monitor in turn, the same load: fifty windows of 0.5 s, each four bursts of 47 ms and pauses of 78 ms,
between them nothing for 0.3 to 0.6 s (the same random lengths each time). The monitor measures every fifth window. The true
energy of a window is taken to be the mean of all fifty: what the energy counter gives over all of it, less the gaps at the
power of the idle GPU (with a context), which the counter gives over 10 s before. Its steps of 100 ms are 0.2 % of that.
Printed are the error of each window, distinct power values a second and the CPU time of the monitor.

raw: 30 s of bursts of 37 ms each 98 ms, recorded at 1000 Hz, with the times of all bursts; the recording is kept.

throughput: matrix products for SECONDS_EACH=6 s, ten pairs with and without `gpumon record --rate 1000`, by turns.

One JSON object a line goes to OUT/results.jsonl.
"""

import bisect
import csv
import datetime
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BURST_S, PAUSE_S, BURSTS = 0.047, 0.078, 4
WINDOW_S = BURSTS * (BURST_S + PAUSE_S)
WINDOWS, MEASURED_EACH = 50, 5
GAP_S = (0.3, 0.6)
IDLE_S = 10
T9_975 = 2.262157


def load_torch():
    import torch

    if not torch.cuda.is_available():
        sys.exit("compare_monitors.py: PyTorch sees no CUDA GPU")
    a, b = (torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)

    def products(n):
        for _ in range(n):
            torch.mm(a, b, out=out)
        torch.cuda.synchronize()

    products(50)
    begin = time.perf_counter()
    products(500)
    return products, (time.perf_counter() - begin) / 500


class Nothing:
    """No monitor; also what every monitor needs."""

    name = "none"

    def __init__(self, gpumon, work):
        self.gpumon, self.work, self.process = gpumon, work, None

    def start(self):
        pass

    def begin(self, k):
        pass

    def end(self, k):
        pass

    def stop(self):
        """Ends it; CPU time, s, or None."""
        if self.process is None:
            return None
        with open(f"/proc/{self.process.pid}/stat", encoding="ascii") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        self.process.send_signal(signal.SIGINT)
        self.process.wait()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def result(self, windows):
        """Energies, J, of (index, begin, end) in wall-clock seconds, and distinct values a second."""
        return {}


class Gpumon(Nothing):
    name = "gpumon"
    rate = "10"

    def start(self):
        self.recording = self.work / self.name
        shutil.rmtree(self.recording, ignore_errors=True)
        os.environ["XDG_RUNTIME_DIR"] = str(self.work)
        os.environ.pop("GPUMON_SOCKET", None)
        command = [self.gpumon, "record", "--rate", self.rate, "-o", self.recording, "--gpu", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(200):
            found = list(self.work.glob("gpumon-*/marks"))
            if found:
                break
            time.sleep(0.05)
        os.environ["GPUMON_SOCKET"] = str(found[0])
        sys.path.insert(0, str(Path(__file__).parent))
        import gpumon_window

        self.ask = gpumon_window._ask

    def begin(self, k):
        self.ask(f"begin {k}")

    def end(self, k):
        self.ask(f"end {k}")

    def result(self, windows):
        text = subprocess.run([self.gpumon, "summary", self.recording, "--json"], check=True, capture_output=True).stdout
        summary = json.loads(text)
        gpus = {w["name"]: w["gpus"][0] for w in summary["windows"]}
        energies = {k: gpus[str(k)]["energy_j"] for k, _, _ in windows}
        return {
            "energies": energies,
            "intervals": {k: [gpus[str(k)]["energy_low_j"], gpus[str(k)]["energy_high_j"]] for k in energies},
            "distinct_per_s": summary["gpus"][0]["distinct_power_per_s"],
            "characterised": bool(json.loads((self.recording / "recording.json").read_text())["gpus"][0].get("characterisation")),
        }


class Polled(Nothing):
    """A program that writes rows of time and power; each row counts until the next."""

    def rows(self):
        raise NotImplementedError

    def result(self, windows):
        rows = sorted(self.rows())
        times = [t for t, _ in rows]
        energies = {}
        for k, begin, end in windows:
            first = max(bisect.bisect_right(times, begin) - 1, 0)
            energy, at = 0.0, begin
            for (_, watts), later in zip(rows[first:], times[first + 1 :] + [end]):
                until = min(max(later, at), end)
                energy += watts * (until - at)
                at = until
            energies[k] = energy
        changes = sum(1 for (_, a), (_, b) in zip(rows, rows[1:]) if a != b)
        span = times[-1] - times[0]
        return {"energies": energies, "distinct_per_s": changes / span, "rows_per_s": len(rows) / span}


class PlainLoop(Polled):
    name = "plain loop, a row each 5 ms"

    def start(self):
        self.file = self.work / "naive.csv"
        script = Path(__file__).parent / "naive_loop.py"
        command = [sys.executable, script, "--duration", "50", "--output", self.file]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        time.sleep(1)

    def rows(self):
        with open(self.file, encoding="ascii") as rows:
            whole = [line.split(",") for line in rows if line.count(",") == 12 and line.endswith("\n")]
        return [(int(row[0]) / 1e9, int(row[6]) / 1e3) for row in whole]


class Smi(Polled):
    name = "nvidia-smi --loop-ms=20"

    def start(self):
        self.file = self.work / "smi.csv"
        query = ["--query-gpu=timestamp,power.draw", "--format=csv,noheader,nounits", "--loop-ms=20"]
        self.process = subprocess.Popen(["nvidia-smi", "-i", "0", *query, "-f", self.file])
        time.sleep(1)

    def rows(self):
        with open(self.file, encoding="ascii") as rows:
            whole = [row for row in csv.reader(rows) if len(row) == 2]
        stamp = "%Y/%m/%d %H:%M:%S.%f"
        return [(datetime.datetime.strptime(t.strip(), stamp).timestamp(), float(w)) for t, w in whole]


class Zeus(Nothing):
    name = "zeus ZeusMonitor"

    def start(self):
        from zeus.monitor import ZeusMonitor

        self.monitor = ZeusMonitor(gpu_indices=[0], sync_execution_with=[])
        self.energies, self.cpu_s = {}, 0.0

    def begin(self, k):
        before = time.process_time()
        self.monitor.begin_window(str(k), sync_execution=False)
        self.cpu_s += time.process_time() - before

    def end(self, k):
        before = time.process_time()
        self.energies[k] = self.monitor.end_window(str(k), sync_execution=False).total_energy
        self.cpu_s += time.process_time() - before

    def stop(self):
        return self.cpu_s

    def result(self, windows):
        return {"energies": self.energies}


def run_windows(monitor, products, per_product, counter_mj):
    def burst():
        products(max(1, round(BURST_S / per_product)))

    def window(start):
        for k in range(BURSTS):
            time.sleep(max(0.0, start + k * (BURST_S + PAUSE_S) - time.perf_counter()))
            burst()

    def counted(before, after):
        return (after[1] - before[1]) / 1e3, after[0] - before[0]

    time.sleep(2)
    idle_from = next_step(counter_mj)
    time.sleep(IDLE_S)
    idle_j, idle_s = counted(idle_from, next_step(counter_mj))
    idle_w = idle_j / idle_s
    for _ in range(16):  # the GPU gets warm
        window(time.perf_counter())
        time.sleep(PAUSE_S)
    monitor.start()
    time.sleep(1)
    measured, gaps = [], random.Random(7)
    edge = next_step(counter_mj)
    wall = time.time() - time.perf_counter()
    for k in range(WINDOWS):
        time.sleep(gaps.uniform(*GAP_S))
        if k % MEASURED_EACH == 2:
            monitor.begin(k)
            begin = time.perf_counter()
            window(begin)
            time.sleep(max(0.0, begin + WINDOW_S - time.perf_counter()))
            end = time.perf_counter()
            monitor.end(k)
            measured.append((k, wall + begin, wall + end))
        else:
            window(time.perf_counter())
            time.sleep(PAUSE_S)
    time.sleep(GAP_S[1])
    counted_j, span = counted(edge, next_step(counter_mj))
    time.sleep(2)
    cpu_s = monitor.stop()
    truth_j = (counted_j - idle_w * (span - WINDOWS * WINDOW_S)) / WINDOWS
    result = monitor.result(measured)
    # What a window lasts beyond its nominal length is idle.
    true_j = {k: truth_j + idle_w * (end - begin - WINDOW_S) for k, begin, end in measured}
    errors = {k: e / true_j[k] - 1 for k, e in result.get("energies", {}).items()}
    line = {"monitor": monitor.name, "true_window_j": round(truth_j, 3), "idle_w": round(idle_w, 2)}
    if errors:
        absolute = sorted(abs(e) for e in errors.values())
        line["errors_pct"] = {k: round(100 * e, 2) for k, e in errors.items()}
        line["median_abs_error_pct"] = round(100 * (absolute[4] + absolute[5]) / 2, 2)
        line["worst_error_pct"] = round(100 * absolute[-1], 2)
        line["mean_error_pct"] = round(100 * sum(errors.values()) / len(errors), 2)
    if "intervals" in result:
        within = [low <= true_j[k] <= high for k, (low, high) in result["intervals"].items()]
        halves = [(high - low) / 2 / truth_j for low, high in result["intervals"].values()]
        line["truth_within_interval"] = f"{sum(within)} of {len(within)}"
        line["median_half_width_pct"] = round(100 * sorted(halves)[len(halves) // 2], 2)
        line["characterised"] = result["characterised"]
    for key in ("distinct_per_s", "rows_per_s"):
        if key in result:
            line[key] = round(result[key], 1)
    if cpu_s is not None:
        line["cpu_pct_of_a_core"] = round(100 * cpu_s / (span + 4), 2)
    return line


def next_step(counter_mj):
    """When the counter next changes, and its value then."""
    before = counter_mj()
    while (now := counter_mj()) == before:
        pass
    return time.perf_counter(), now


def raw(gpumon, work, out, products, per_product):
    monitor = Gpumon(gpumon, work)
    monitor.rate = "1000"
    monitor.start()
    time.sleep(2)
    bursts, start = [], time.perf_counter()
    for k in range(round(30 / 0.098)):
        time.sleep(max(0.0, start + k * 0.098 - time.perf_counter()))
        begin = time.monotonic()
        products(max(1, round(0.037 / per_product)))
        bursts.append((begin, time.monotonic()))
    time.sleep(2)
    monitor.stop()
    wall = time.time() - time.monotonic()
    (monitor.recording / "bursts.json").write_text(json.dumps({"wall_minus_monotonic_s": wall, "bursts": bursts}))
    shutil.make_archive(str(out / "raw"), "gztar", monitor.recording)
    return {"measurement": "raw", "bursts": len(bursts)}


def throughput(gpumon, work, products, seconds):
    def job():
        done, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < seconds:
            products(200)
            done += 200
        return done / (time.perf_counter() - begin)

    job()
    ratios, cpu_s = [], []
    for pair in range(10):
        rates = {}
        for recorded in (True, False) if pair % 2 else (False, True):
            if recorded:
                monitor = Gpumon(gpumon, work)
                monitor.rate = "1000"
                monitor.start()
                time.sleep(1)
            rates[recorded] = job()
            if recorded:
                cpu_s.append(monitor.stop())
            time.sleep(1)
        ratios.append(rates[True] / rates[False] - 1)
    mean = sum(ratios) / len(ratios)
    sd = math.sqrt(sum((r - mean) ** 2 for r in ratios) / (len(ratios) - 1))
    return {
        "measurement": "throughput with gpumon record --rate 1000 over without, ten pairs by turns",
        "seconds_each": seconds,
        "change_pct": round(100 * mean, 3),
        "within_95_pct": round(100 * T9_975 * sd / math.sqrt(len(ratios)), 3),
        "each_pct": [round(100 * r, 3) for r in ratios],
        "cpu_pct_of_a_core": round(100 * sum(cpu_s) / len(cpu_s) / (seconds + 1), 2),
    }


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    gpumon, out, parts = Path(sys.argv[1]).resolve(), Path(sys.argv[2]), sys.argv[3:]
    out.mkdir(parents=True, exist_ok=True)
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    products, per_product = load_torch()

    def keep(line):
        print(json.dumps(line), flush=True)
        with open(out / "results.jsonl", "a", encoding="utf-8") as results:
            results.write(json.dumps(line) + "\n")

    keep(
        {
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "gpu": pynvml.nvmlDeviceGetName(handle),
            "uuid": pynvml.nvmlDeviceGetUUID(handle),
            "driver": pynvml.nvmlSystemGetDriverVersion(),
            "gpumon": subprocess.run([gpumon, "--version"], capture_output=True, text=True, check=True).stdout.strip(),
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        if not parts or "windows" in parts:
            for kind in (Gpumon, PlainLoop, Smi, Zeus):
                try:
                    monitor = kind(gpumon, work)
                    keep(run_windows(monitor, products, per_product, lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)))
                    if kind is Gpumon:
                        shutil.make_archive(str(out / "windows"), "gztar", monitor.recording)
                except ImportError as missing:
                    keep({"monitor": kind.name, "skipped": str(missing)})
        if not parts or "raw" in parts:
            keep(raw(gpumon, work, out, products, per_product))
        if not parts or "throughput" in parts:
            keep(throughput(gpumon, work, products, float(os.environ.get("SECONDS_EACH", "6"))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
