"""``python -m fuzz.faults``: every fault, one after the other; see ``--help``."""

from __future__ import annotations

import argparse
import math
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from fuzz.faults.disk import Disk, How
from fuzz.faults.session import saved_step, session
from fuzz.faults.works import WORKS, Work, difference, train
from fuzz.tiny import tiny_model, tiny_task, tiny_train

WAYS: tuple[How, ...] = get_args(How)
PARTS = (*WORKS, "nan")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the selected parts; return 1 if anything was lost."""
    options = argparse.ArgumentParser(prog="python -m fuzz.faults")
    options.add_argument("--only", action="append", choices=PARTS, help="one of the parts; may be repeated")
    options.add_argument("--every", type=int, help="sweep every so manieth operation only")
    options.add_argument("--how", action="append", choices=WAYS, help="one of the ways; may be repeated")
    options.add_argument("--kills", type=int, default=50, help="number of kills of each work")
    options.add_argument("--seed", type=int, default=0, help="seed of the moments of the kills")
    given = options.parse_args(arguments)
    torch.set_num_threads(1)
    findings: list[str] = []
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        train(Path(folder) / "warm")  # compiled and imported before anything is forked
        for part in given.only or PARTS:
            here = Path(folder) / part
            here.mkdir()
            if part in WORKS:
                findings += _work(part, WORKS[part], here, given)
            else:
                findings += _tell(part, (("seen", lost) for lost in not_a_number(here)))
    print("\n".join(findings) or "Nothing was lost.")
    return int(bool(findings))


def _work(name: str, work: Work, folder: Path, given: argparse.Namespace) -> Iterator[str]:
    """Sweep a new session and one that goes on from a kill at two thirds of it; then kills at random moments."""
    work.run(folder / "warm")
    straight, run, half = folder / "straight", folder / "run", folder / "half"
    begun = time.monotonic()
    session(straight, work.run)
    seconds = time.monotonic() - begun
    for kind, base in (("new", None), ("resumed", half)):
        _anew(run, base)
        counted = session(run, work.run, disk=Disk(run))
        if counted.kind != "done":
            raise RuntimeError(f"a session without faults failed: {counted.text}")
        total = len(counted.operations)
        print(f"{name}, {kind}: {total} operations: {_counts(counted.operations)}")
        for how in given.how or WAYS:
            moments = range(1, total + 1, given.every or work.every)
            yield from _tell(f"{name}, {kind}, {how}", _sweep(work, run, (how, moments), base))
        if base is None:
            _anew(half, None)
            session(half, work.run, disk=Disk(half, max(1, 2 * total // 3), "killed"))
    yield from _tell(f"{name}, kill -9", _kills(work, run, given, seconds))


def _sweep(work: Work, run: Path, disk: tuple[How, range], base: Path | None) -> Iterator[tuple[str, str]]:
    """For each operation that fails: the ending of the session, and what was lost, if anything."""
    how, moments = disk
    for moment in moments:
        _anew(run, base)
        ending = session(run, work.run, disk=Disk(run, moment, how))
        lost = work.lost(run, ending) or _resumed(work, run)
        yield ending.kind, lost and f"operation {moment} ({ending.fault}): {lost}"


def _kills(work: Work, run: Path, given: argparse.Namespace, seconds: float) -> Iterator[tuple[str, str]]:
    """Kill sessions in one folder at random moments until one of them finishes, then in a new one."""
    moments = random.Random(given.seed)
    _anew(run, None)
    for _ in range(given.kills):
        ending = session(run, work.run, kill_after=moments.uniform(0, 1.2 * seconds))
        lost = work.lost(run, ending)
        if ending.kind != "killed":
            lost = lost or _resumed(work, run)
            _anew(run, None)
        yield ending.kind, lost
    yield "last", _resumed(work, run)


def _resumed(work: Work, run: Path) -> str:
    again = session(run, work.run)
    if again.kind != "done":
        return f"does not resume: {again.text}"
    return work.difference(run, run.with_name("straight"))


def _anew(folder: Path, base: Path | None) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if base is not None and base.exists():
        shutil.copytree(base, folder)


def not_a_number(folder: Path) -> Iterator[str]:
    """One example of the training or of the validation data becomes NaN; then the data are corrected."""
    straight = folder / "straight"
    session(straight, train)
    for split, value in (("train", math.nan), ("validation", math.nan), ("train", math.inf)):
        run = folder / f"{split}-{value}"
        session(run, partial(train, max_steps=3))
        step = saved_step(run)
        bad = session(run, partial(_poisoned, split=split, value=value))
        if bad.kind != "sentence" or not any(word in bad.text for word in ("finite", "nan", "inf", "NaN")):
            yield f"{split}: expected a sentence that names values that are not finite, got {bad.kind}: {bad.text}"
        if saved_step(run) < step:
            yield f"{split}: step {step} is gone"
        again = session(run, train)
        yield difference(run, straight) if again.kind == "done" else f"does not resume: {again.text}"


def _poisoned(folder: Path, *, split: str, value: float) -> None:
    """Train with one example whose features are not finite: the last one of the split."""
    task = tiny_task()
    model = tiny_model(task, seed=99)
    bad = (task.train if split == "train" else task.validation).inputs[-1]

    def poison(module: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if inputs[0].shape[-1] != len(bad) or model.training != (split == "train"):
            return output
        return torch.where((inputs[0] == bad).all(-1)[:, None, None], value, output)

    model.symbols.register_forward_hook(poison)
    tiny_train(folder, resume=True, model=model, max_epochs=2)


def _counts(names: Iterable[str]) -> str:
    return ", ".join(f"{number} {name}" for name, number in Counter(names).most_common())


def _tell(name: str, cases: Iterable[tuple[str, str]]) -> list[str]:
    """Run cases with progress on standard error; print their counts, return the findings."""
    begun, endings, findings = time.monotonic(), Counter[str](), []
    for number, (ending, lost) in enumerate(cases, 1):
        endings[ending] += 1
        if lost:
            findings.append(f"{name}, case {number}: {lost}")
        if sys.stderr.isatty():
            print(f"\r{name}: {number} ", end="", file=sys.stderr, flush=True)
    took = time.monotonic() - begun
    faults = f"{sum(endings.values())} faults ({_counts(endings)})"
    print(f"{name}: {faults}, {len(findings)} findings, {took:.0f} s")
    return findings


if __name__ == "__main__":
    sys.exit(main())
