"""Build diabat/circuits/data/annealing_schedules.npz from a CSV of D-Wave's published schedules.

Usage: python scripts/build_schedules.py CSV

The CSV has the columns solver, protocol, s, A_GHz, B_GHz (others are ignored). The archive holds one float64
array [points, 3] (s, A_GHz, B_GHz) per solver and protocol, under the key "solver.protocol". The same CSV
gives the same bytes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from diabat.circuits.schedule_csv import from_csv
from diabat.circuits.schedules import PROTOCOLS, SHEETS

TARGET = Path(__file__).parents[1] / "diabat" / "circuits" / "data" / "annealing_schedules.npz"


def main(csv_path: str) -> None:
    """Write the archive and print its size."""
    tables = {}
    for solver in SHEETS:
        for protocol in PROTOCOLS:
            table = from_csv(csv_path, solver=solver, protocol=protocol)
            tables[f"{solver}.{protocol}"] = np.stack([table.s, table.A_GHz, table.B_GHz], axis=1)
    TARGET.parent.mkdir(exist_ok=True)
    np.savez_compressed(TARGET, allow_pickle=False, **tables)
    print(f"{TARGET.name}: {len(tables)} tables, {TARGET.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python scripts/build_schedules.py CSV")
    main(sys.argv[1])
