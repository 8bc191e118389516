"""NaN in the data, and clocks that are set back."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from diabat.training import trainer
from fuzz.faults.session import difference, newest_checkpoint, session
from fuzz.tiny import tiny_model, tiny_task, tiny_train

_HOUR = 3600.0


def not_a_number(folder: Path) -> Iterator[str]:
    """One example of the training or of the validation data becomes NaN; then the data are corrected."""
    straight = folder / "straight"
    session(straight)
    for split, value in (("train", math.nan), ("validation", math.nan), ("train", math.inf)):
        run = folder / f"{split}-{value}"
        first = session(run, max_steps=3)
        newest = newest_checkpoint(run)
        bad = session(run, train=_poisoned, split=split, value=value)
        named = any(word in bad.text for word in ("finite", "nan", "inf", "NaN"))
        if first.kind != "done" or bad.kind != "sentence" or not named:
            yield f"{split}: expected a sentence that names the values that are not finite, got {bad.kind}: {bad.text}"
        if (newest_checkpoint(run) or "") < (newest or "-"):
            yield f"{split}: {newest} is gone"
        again = session(run)
        yield difference(run, straight) if again.kind == "done" else f"does not resume: {again.text}"


def _poisoned(folder: Path, *, split: str, value: float, weights: int, **options: Any) -> None:
    """Train with one example whose features are not finite: the last one of the split."""
    task = tiny_task()
    model = tiny_model(task, seed=weights)
    bad = (task.train if split == "train" else task.validation).inputs[-1]

    def poison(module: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if inputs[0].shape[-1] != len(bad) or model.training != (split == "train"):
            return output
        return torch.where((inputs[0] == bad).all(-1)[:, None, None], value, output)

    model.symbols.register_forward_hook(poison)
    tiny_train(folder, model=model, **options)


def clock_set_back(folder: Path) -> Iterator[str]:
    """The clocks go back by an hour between two sessions, and in the middle of one; times never decrease."""
    straight = folder / "straight"
    session(straight)
    for name, sessions in (("between", ((1, 0.0, 0.0), (3, -_HOUR, 0.0))), ("within", ((3, 0.0, -_HOUR),))):
        run = folder / name
        for epochs, before, jump in sessions:
            ending = session(run, train=_with_clock, max_epochs=epochs, before=before, jump=jump)
            if ending.kind != "done":
                yield f"{name}: expected a run that ends, got {ending.kind}: {ending.text}"
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        for key in ("wall_s", "cpu_s"):
            times = [line[key] for line in lines]
            if times != sorted(times) or times[0] < 0 or times[-1] > _HOUR:
                yield f"{name}: expected {key} that never decreases, got {times}"
        yield difference(run, straight)


def _with_clock(folder: Path, *, before: float, jump: float, **options: Any) -> None:
    """Train with clocks that are off by ``before``, and jump once more after some readings."""
    readings = [0]

    def off(real: Any) -> Any:
        def read() -> float:
            readings[0] += 1
            return real() + before + (jump if readings[0] > 12 else 0.0)

        return read

    names = ("time", "monotonic", "process_time", "perf_counter")
    clocks = SimpleNamespace(**{name: off(getattr(time, name)) for name in names})
    setattr(trainer, "time", clocks)  # noqa: B010 (a name that the module does not export)
    tiny_train(folder, **options)
