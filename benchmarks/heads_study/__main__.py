"""Games on the heads of a decoder trained for the purpose: dividends, calibration, surrogate fits."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from benchmarks import workers
from benchmarks.heads_study import figures, tables
from benchmarks.heads_study.core import Sizes
from benchmarks.heads_study.stages import STAGES, compute, pieces
from benchmarks.measure import report
from diabat.files import parse_json, read_file, replace_file, to_json


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.heads_study", description=__doc__)
    parser.add_argument("folder", type=Path, help="for the pieces and figures; finished pieces are kept")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2, help="processes of one thread")
    parser.add_argument("--steps", type=int, default=Sizes.steps, help="of each training")
    parser.add_argument(
        "--samples", type=int, default=Sizes.samples, help="of each game on the heads of a layer"
    )
    parser.add_argument("--json", action="store_true", help="one line of JSON per table")
    arguments = parser.parse_args()
    folder, sizes = arguments.folder, Sizes(steps=arguments.steps, samples=arguments.samples)
    folder.mkdir(parents=True, exist_ok=True)
    known = folder / "sizes.json"
    if not known.exists():
        replace_file(known, to_json(asdict(sizes)))
    elif (found := parse_json(read_file(known, 1 << 16))) != asdict(sizes):
        parser.error(f"folder: expected pieces with {asdict(sizes)}, got {found}; choose another folder")
    with workers.started(arguments.workers) as processes:
        for stage in STAGES:
            missing = [piece for piece in pieces(stage, arguments.seeds) if not piece.path(folder).exists()]
            total = STAGES[stage][1](sizes) * len(missing)
            processes.run(stage, [(compute, (piece, folder, sizes)) for piece in missing], total)
    for title, rows in tables.every(folder, arguments.seeds).items():
        report(title, rows)
    figures.draw(folder, arguments.seeds)


if __name__ == "__main__":
    main()
