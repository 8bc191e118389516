"""NaN in the data."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fuzz.faults.session import difference, saved_step, session
from fuzz.tiny import tiny_model, tiny_task, tiny_train


def not_a_number(folder: Path) -> Iterator[str]:
    """One example of the training or of the validation data becomes NaN; then the data are corrected."""
    straight = folder / "straight"
    session(straight)
    for split, value in (("train", math.nan), ("validation", math.nan), ("train", math.inf)):
        run = folder / f"{split}-{value}"
        first = session(run, max_steps=3)
        step = saved_step(run)
        bad = session(run, train=_poisoned, split=split, value=value)
        named = any(word in bad.text for word in ("finite", "nan", "inf", "NaN"))
        if first.kind != "done" or bad.kind != "sentence" or not named:
            yield f"{split}: expected a sentence that names the values that are not finite, got {bad.kind}: {bad.text}"
        if saved_step(run) < step:
            yield f"{split}: step {step} is gone"
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
