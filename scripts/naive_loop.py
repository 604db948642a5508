#!/usr/bin/env python3
"""What a plain polling loop gets: the eleven values of EnerTune's gmonitor, one row each 5 ms, as CSV.

Reads NVML through nvidia-ml-py in one loop: temperature, SM clock, application graphics clock, memory
clock, application memory clock, power, power limit, energy, memory, P-state, clock-event reasons. Prints
one JSON line: rows and distinct power values a second, gaps between rows, CPU share, bytes a row.
"""

import argparse
import json
import os
import resource
import sys
import time


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--duration", type=float, default=60.0, help="s (default 60)")
    parser.add_argument("--period-ms", type=float, default=5.0, help="sleep after each row, ms (default 5)")
    parser.add_argument("--output", default="naive.csv", help="CSV file (default naive.csv)")
    args = parser.parse_args()
    try:
        import pynvml as nvml
    except ImportError:
        print("naive_loop.py: install nvidia-ml-py for this python3", file=sys.stderr)
        return 1
    nvml.nvmlInit()
    gpu = nvml.nvmlDeviceGetHandleByIndex(0)
    reasons = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None) or nvml.nvmlDeviceGetCurrentClocksThrottleReasons

    def application_clock(kind: int) -> int:
        try:
            return nvml.nvmlDeviceGetApplicationsClock(gpu, kind)
        except nvml.NVMLError:
            return 0

    times, powers = [], []
    usage = resource.getrusage(resource.RUSAGE_SELF)
    start = time.monotonic()
    with open(args.output, "w", encoding="ascii") as out:
        while time.monotonic() - start < args.duration:
            memory = nvml.nvmlDeviceGetMemoryInfo(gpu)
            power = nvml.nvmlDeviceGetPowerUsage(gpu)
            row = (
                time.time_ns(),
                nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
                nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
                application_clock(nvml.NVML_CLOCK_GRAPHICS),
                nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),
                application_clock(nvml.NVML_CLOCK_MEM),
                power,
                nvml.nvmlDeviceGetEnforcedPowerLimit(gpu),
                nvml.nvmlDeviceGetTotalEnergyConsumption(gpu),
                memory.used,
                memory.free,
                nvml.nvmlDeviceGetPerformanceState(gpu),
                reasons(gpu),
            )
            out.write(",".join(map(str, row)) + "\n")
            times.append(time.monotonic())
            powers.append(power)
            time.sleep(args.period_ms / 1e3)
    seconds = time.monotonic() - start
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - usage.ru_utime - usage.ru_stime
    gaps = sorted(b - a for a, b in zip(times, times[1:]))
    changes = sum(a != b for a, b in zip(powers, powers[1:]))
    print(
        json.dumps(
            {
                "seconds": round(seconds, 3),
                "rows_per_s": round(len(times) / seconds, 2),
                "distinct_power_per_s": round(changes / seconds, 2),
                "gap_median_ms": round(1e3 * gaps[len(gaps) // 2], 2),
                "gap_p99_ms": round(1e3 * gaps[int(0.99 * len(gaps))], 2),
                "gap_max_ms": round(1e3 * gaps[-1], 2),
                "cpu_percent_of_a_core": round(100 * cpu / seconds, 2),
                "bytes_per_row": round(os.path.getsize(args.output) / len(times), 1),
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
