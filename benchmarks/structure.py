"""Size of each package, and the functions of ours that one call passes through.

python -m benchmarks.structure [--root FOLDER] [--json]

A call counts every function of diabat that Python enters (compiled kernels count once, at their entry), and the files
they stand in, at the third call of the same kind: imports, compilation and tables that are kept are past by then.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import diabat

HOME = Path(diabat.__file__).parent


def sizes(root: Path = HOME) -> dict[str, tuple[int, int]]:
    """Files and lines of each package directly below the root."""
    found: dict[str, list[int]] = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        entry = found.setdefault(parts[0] if len(parts) > 1 else "(root)", [0, 0])
        entry[0] += 1
        entry[1] += len(path.read_text(encoding="utf-8").splitlines())
    return {name: (files, lines) for name, (files, lines) in found.items()}


def crossed(call: Callable[[], Any]) -> tuple[Counter[str], Counter[str]]:
    """How often each of our functions, and each of our files, is entered by the third call."""
    functions: Counter[str] = Counter()
    files: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(str(HOME)):
            file = str(Path(name).relative_to(HOME))
            files[file] += 1
            functions[f"{file}:{frame.f_code.co_qualname}"] += 1

    call()
    call()
    previous = sys.getprofile()
    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(previous)
    return functions, files


def calls() -> dict[str, Callable[[], Any]]:
    """A forward pass of exact attention, the marginals of an anneal, and one step of training."""
    torch.set_num_threads(1)  # each thread would add its share of the calls
    torch.manual_seed(0)
    x = torch.randn(8, 12, 64)
    layer = diabat.BoltzmannAttention(embed_dim=64, num_heads=1, window=12, sampler="exact")
    dqa = diabat.sampler("dqa", engine="native", annealing_time_ns=5.0)
    problem = diabat.Ising(torch.randn(64, 8), torch.zeros(8, 8))
    optimizer = torch.optim.AdamW(layer.parameters())

    def forward() -> None:
        with torch.no_grad():
            layer(x)

    def step() -> None:
        optimizer.zero_grad()
        layer(x).square().mean().backward()
        optimizer.step()

    return {
        "BoltzmannAttention forward, exact, 8 sequences, T = 12": forward,
        "dqa moments, 64 problems of 8 spins": lambda: dqa.moments(problem),
        "training step of BoltzmannAttention, exact": step,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--root", type=Path, default=HOME, help="count the files of another checkout's package"
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--functions", action="store_true", help="list every function that is entered")
    args = parser.parse_args()
    table = sizes(args.root)
    found = {name: crossed(call) for name, call in calls().items()}
    if args.json:
        print(
            json.dumps(
                {"sizes": table, "calls": {n: [sum(f.values()), len(g)] for n, (f, g) in found.items()}}
            )
        )
        return
    for name, (files, lines) in {**table, "total": _total(table)}.items():
        print(f"{name:16} {files:4} files {lines:6} lines {lines / files:6.0f} per file")
    for name, (functions, files_) in found.items():
        print(f"{name}: {sum(functions.values())} calls, {len(files_)} files")
        if args.functions:
            for function, times in functions.most_common():
                print(f"    {times:3} {function}")


def _total(table: dict[str, tuple[int, int]]) -> tuple[int, int]:
    return sum(files for files, _ in table.values()), sum(lines for _, lines in table.values())


if __name__ == "__main__":
    main()
