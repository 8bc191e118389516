"""``python -m fuzz.faults``: every fault, one after the other; see ``--help``."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import torch

from fuzz.faults import game, heads, kills, repeated, surprises
from fuzz.faults.session import session
from fuzz.faults.sweep import OPTIONS, WAYS, count, half_way, sweep
from fuzz.tiny import tiny_train

Case = tuple[str, str]
"""How the session with the fault ended, and what was lost, if anything."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the selected parts; return 1 if anything was lost."""
    options = argparse.ArgumentParser(prog="python -m fuzz.faults")
    options.add_argument("--only", action="append", choices=PARTS, help="one of the parts; may be repeated")
    options.add_argument("--every", type=int, default=1, help="sweep every so manieth operation only")
    options.add_argument("--how", action="append", choices=WAYS, help="one of the ways; may be repeated")
    options.add_argument("--kills", type=int, default=50, help="number of kills")
    options.add_argument("--seed", type=int, default=0, help="seed of the moments of the kills")
    given = options.parse_args(arguments)
    torch.set_num_threads(1)
    findings = []
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        tiny_train(Path(folder) / "warm")  # compiled and imported before anything is forked
        for part in given.only or PARTS:
            for name, total, cases in PARTS[part](Path(folder) / part, given):
                findings += _tell(name, total, cases)
    print("\n".join(findings) or "Nothing was lost.")
    return int(bool(findings))


def _sweep(folder: Path, given: argparse.Namespace) -> Iterator[tuple[str, int, Iterable[Case]]]:
    folder.mkdir()
    session(folder / "straight", **OPTIONS)
    begun = half_way(folder / "half")
    for kind, base in (("new run", None), ("resumed run", begun)):
        operations = count(folder / "work", base)
        print(f"{kind}: {len(operations)} operations: {_counts(operations)}")
        moments = range(1, len(operations) + 1, given.every)
        for how in given.how or WAYS:
            cases = sweep(folder / "work", folder / "straight", how, iter(moments), base)
            yield f"{kind}, {how}", len(moments), cases


def _counts(names: Iterable[str]) -> str:
    return ", ".join(f"{number} {name}" for name, number in Counter(names).most_common())


def _plain(name: str, run: Callable[..., Iterator[str]], total: int) -> Callable[..., Iterator]:
    def part(folder: Path, given: argparse.Namespace) -> Iterator[tuple[str, int, Iterable[Case]]]:
        folder.mkdir()
        yield name, total, (("seen", lost) for lost in run(folder))

    return part


def _kills(folder: Path, given: argparse.Namespace) -> Iterator[tuple[str, int, Iterable[Case]]]:
    folder.mkdir()
    yield "kill -9", given.kills, (("killed", lost) for lost in kills.kills(folder, given.kills, given.seed))


def _repeated(work: repeated.Work) -> Callable[..., Iterator]:
    def part(folder: Path, given: argparse.Namespace) -> Iterator[tuple[str, int, Iterable[Case]]]:
        folder.mkdir()
        work.run(folder / "warm", resume=False)
        yield from repeated.sweep(work, folder, given.how or WAYS, given.every)
        yield f"{work.name}, kill -9", given.kills, repeated.kills(work, folder, given.kills, given.seed)

    return part


PARTS = {
    "sweep": _sweep,
    "kills": _kills,
    "torchrun": _plain("a worker of torchrun killed", kills.torchrun, 2),
    "nan": _plain("NaN in the data", surprises.not_a_number, 3),
    "game": _repeated(game.WORK),
    "heads": _repeated(heads.WORK),
}


def _tell(name: str, total: int, cases: Iterable[Case]) -> list[str]:
    """Run cases with progress and the time left on standard error; print their counts, return the findings."""
    begun, endings, findings = time.monotonic(), Counter[str](), []
    for number, (ending, lost) in enumerate(cases, 1):
        endings[ending] += 1
        if lost:
            findings.append(f"{name}, case {number}: {lost}")
        left = (time.monotonic() - begun) / number * (total - number)
        if sys.stderr.isatty():
            print(f"\r{name}: {number}/{total}, {left:.0f} s left ", end="", file=sys.stderr, flush=True)
    seconds = time.monotonic() - begun
    print(
        f"{name}: {sum(endings.values())} faults ({_counts(endings)}), {len(findings)} findings, {seconds:.0f} s"
    )
    return findings


if __name__ == "__main__":
    sys.exit(main())
