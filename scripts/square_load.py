#!/usr/bin/env python3
"""A square-wave GPU load: bf16 matrix products for ON ms, then nothing for OFF ms, again and again.

Needs PyTorch with CUDA. Periods start on an absolute grid, so the load keeps its period whatever
one burst takes; the number of products in a burst follows the measured length of the last ones.
Prints one JSON line at the end: the bursts' mean length and the share of time under load.
"""

import argparse
import json
import sys
import time


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--on-ms", type=float, default=37.0, help="length of a burst, ms (default 37)")
    parser.add_argument("--off-ms", type=float, default=61.0, help="pause after a burst, ms (default 61)")
    parser.add_argument("--duration", type=float, default=60.0, help="whole length, s (default 60)")
    parser.add_argument("--size", type=int, default=4096, help="edge of the square matrices (default 4096)")
    args = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("square_load.py: PyTorch is not installed for this python3", file=sys.stderr)
        return 1
    if not torch.cuda.is_available():
        print("square_load.py: PyTorch sees no CUDA GPU", file=sys.stderr)
        return 1

    a = torch.randn(args.size, args.size, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(args.size, args.size, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(a)

    def burst(products: int) -> float:
        begin = time.perf_counter()
        for _ in range(products):
            torch.mm(a, b, out=out)
        torch.cuda.synchronize()
        return time.perf_counter() - begin

    burst(20)
    per_product = burst(100) / 100
    on, period = args.on_ms / 1e3, (args.on_ms + args.off_ms) / 1e3
    lengths = []
    start = time.perf_counter()
    for k in range(int(args.duration / period)):
        time.sleep(max(0.0, start + k * period - time.perf_counter()))
        products = max(1, round(on / per_product))
        took = burst(products)
        per_product += 0.1 * (took / products - per_product)
        lengths.append(took)
    mean_ms = 1e3 * sum(lengths) / len(lengths)
    print(json.dumps({"bursts": len(lengths), "mean_on_ms": round(mean_ms, 3), "duty": round(mean_ms / 1e3 / period, 4)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
