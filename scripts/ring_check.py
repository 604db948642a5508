#!/usr/bin/env python3
"""Checks a recording's ring against its length and against the energy counter. Needs pyarrow.

Prints one JSON line: readings, their spacing, the largest gap, and the ring's integral (three rules: a
reading stands for the time before it, after it, or half of each) against the energy counter between the
counter's first and last reading. The counter moves in steps of 100 ms, so over 60 s it is itself known
to about 0.2 %.
"""

import json
import statistics
import sys

import pyarrow.parquet as parquet


def main(name: str) -> None:
    header = json.load(open(f"{name}/recording.json", encoding="utf-8"))
    ring = parquet.read_table(f"{name}/ring.parquet").to_pydict()
    counter = parquet.read_table(f"{name}/counter.parquet").to_pydict()
    fast = parquet.read_table(f"{name}/fast.parquet").to_pydict()
    times = ring["mono_us"]
    spacing = [b - a for a, b in zip(times, times[1:])]
    median = statistics.median(spacing)
    start, end = counter["mono_us"][0], counter["mono_us"][-1]
    counted = (counter["energy_mj"][-1] - counter["energy_mj"][0]) / (end - start) * 1e6

    def mean_mw(weight_of_later: float) -> float:
        energy = covered = 0.0
        points = list(zip(times, ring["power_mw"]))
        for (t0, p0), (t1, p1) in zip(points, points[1:]):
            length = max(0, min(t1, end) - max(t0, start))
            energy += (weight_of_later * p1 + (1 - weight_of_later) * p0) * length
            covered += length
        return energy / covered

    lateness = sorted(fast["lateness_us"])
    print(
        json.dumps(
            {
                "duration_s": header["duration_us"] / 1e6,
                "ring_readings": len(times),
                "spacing_median_ms": median / 1e3,
                "expected_readings": round(header["duration_us"] / median, 1),
                "gap_max_ms": max(spacing) / 1e3,
                "gaps_over_60_ms": sum(s > 60_000 for s in spacing),
                "counter_mean_w": round(counted / 1e3, 3),
                **{
                    f"ring_{rule}_vs_counter_percent": round(100 * (mean_mw(weight) / counted - 1), 3)
                    for rule, weight in (("before", 1.0), ("after", 0.0), ("halves", 0.5))
                },
                "fast_rows": len(lateness),
                "lateness_p99_us": lateness[int(0.99 * len(lateness))],
                "fast_distinct_instant_per_s": round(
                    sum(a != b for a, b in zip(fast["power_instant_mw"], fast["power_instant_mw"][1:]))
                    / header["duration_us"]
                    * 1e6,
                    2,
                ),
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1])
