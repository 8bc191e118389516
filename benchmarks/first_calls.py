"""CPU seconds of the first call of each backend in a fresh process, without and with compiled code on disk.

python -m benchmarks.first_calls [--json]

A call is the moments of one problem of 8 spins, float32; of ``exact``, which compiles nothing for it, also those of 64
problems of 12 spins, without and with the gradients of h and J.  The last row is numba alone: its import and the first
call of an empty function.  The cold call has an empty cache of compiled code in a folder of its own; the warm calls
have it from the cold one.  Import of torch and diabat is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile

from benchmarks.measure import report

# Backend, problems, spins, and whether gradients are computed.
CALLS = {
    **{name: (name, 1, 8, False) for name in ("exact", "mean_field", "dqa", "tempering", "banded", "refine")},
    "exact, 64 problems": ("exact", 64, 12, False),
    "exact, 64 problems, gradients": ("exact", 64, 12, True),
}
_CODE = """
import sys, time, torch, diabat
torch.set_num_threads(1)
g = torch.Generator().manual_seed(0)
problems, n, gradients = (int(word) for word in sys.argv[2:])
J = torch.randn(n, n, generator=g).triu(1) / n**0.5
h, J = torch.randn(problems, n, generator=g), J + J.T
if gradients:
    h.requires_grad_(), J.requires_grad_()
problem = diabat.Ising(h, J)
start = time.process_time()
found = diabat.sampler(sys.argv[1]).moments(problem, seed=0)
if gradients:
    found.probability.sum().backward()
print(time.process_time() - start)
"""


_FLOOR = """
import time, torch, diabat
start = time.process_time()
import numba
numba.njit(lambda: None)()
print(time.process_time() - start)
"""


def first_call(program: list[str], cache: str) -> float:
    """CPU seconds that a new process prints."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": cache, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", *program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    rows = []
    programs = {
        name: [_CODE, backend, str(problems), str(spins), str(int(gradients))]
        for name, (backend, problems, spins, gradients) in CALLS.items()
    }
    for name, program in {**programs, "numba alone": [_FLOOR]}.items():
        with tempfile.TemporaryDirectory() as cache:
            cold = first_call(program, cache)
            warm = min(first_call(program, cache) for _ in range(5))
        rows.append({"call": name, "cold_s": cold, "warm_s": warm})
    if chosen.json:
        print(json.dumps(rows))
        return
    report("First call of each backend, CPU seconds", rows)


if __name__ == "__main__":
    main()
