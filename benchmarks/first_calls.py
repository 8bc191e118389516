"""CPU seconds of the first call of each backend in a fresh process, without and with compiled code on disk.

python -m benchmarks.first_calls [--json]

A call is the moments of one problem of 8 spins, float32.  The cold call has an empty cache of compiled code in a folder
of its own; the warm calls have it from the cold one.  Import of torch and diabat is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile

from benchmarks.measure import report

BACKENDS = ("exact", "mean_field", "dqa", "tempering", "banded", "refine")
_CODE = """
import sys, time, torch, diabat
torch.set_num_threads(1)
g = torch.Generator().manual_seed(0)
J = torch.randn(8, 8, generator=g).triu(1) / 8**0.5
problem = diabat.Ising(torch.randn(1, 8, generator=g), J + J.T)
start = time.process_time()
diabat.sampler(sys.argv[1]).moments(problem, seed=0)
print(time.process_time() - start)
"""


def first_call(backend: str, cache: str) -> float:
    """CPU seconds of the first call in a new process."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": cache, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", _CODE, backend]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    rows = []
    for backend in BACKENDS:
        with tempfile.TemporaryDirectory() as cache:
            cold = first_call(backend, cache)
            warm = min(first_call(backend, cache) for _ in range(5))
        rows.append({"backend": backend, "cold_s": cold, "warm_s": warm})
    if chosen.json:
        print(json.dumps(rows))
        return
    report("First call of each backend, CPU seconds", rows)


if __name__ == "__main__":
    main()
