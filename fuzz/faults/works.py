"""What is stopped and repeated: a training, an analysis of heads, and saving models."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from diabat.lab.training import TrainingError, load_model
from diabat.lab.training.folder import LATEST
from fuzz.faults.session import Ending, saved_step
from fuzz.properties import REFUSALS, refusal_flaw
from fuzz.tiny import analyse, decoder, tiny_train


@dataclass(frozen=True)
class Work:
    """Work that goes on in its folder after a fault, and ends as if there had been none.

    ``run`` begins, or goes on with, the work in a folder; ``lost`` says what a fault has lost before that, from the
    folder and the ending; ``difference`` is the first one of two folders of finished work; both are empty for none.  A
    sweep takes ``every`` so manieth operation, unless another number is asked for.
    """

    run: Callable[[Path], Any]
    difference: Callable[[Path, Path], str]
    lost: Callable[[Path, Ending], str] = lambda folder, ending: ""
    every: int = 4


def train(folder: Path, **options: Any) -> None:
    """Six steps, four checkpoints, and two validations."""
    tiny_train(folder, resume=folder.exists(), **{"max_epochs": 2, **options})


def _lost(folder: Path, ending: Ending) -> str:
    """The checkpoint loads and is not older than it was, and errors are sentences."""
    if ending.kind == "raw":
        return f"an error that is not a sentence: {ending.text}"
    if ending.step >= 0 or (folder / LATEST).exists():
        try:
            load_model(folder, "latest")
        except TrainingError as error:
            return f"the checkpoint does not load: {error}"
    return f"step {ending.step} is gone" if saved_step(folder) < ending.step else ""


def difference(folder: Path, straight: Path) -> str:
    """Describe the first bitwise difference of two runs, except times; empty if there is none."""
    if _metrics(folder) != _metrics(straight):
        return "metrics.jsonl differs"
    for which in ("latest", "best"):
        a, b = load_model(folder, which), load_model(straight, which)
        if a.keys() != b.keys() or not all(torch.equal(a[name], b[name]) for name in a):
            return f"the {which} weights differ"
    left = [path.name for path in folder.rglob(".tmp-*")]
    return f"left over: {', '.join(left)}" if left else ""


def _metrics(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in ("wall_s", "cpu_s")} for line in lines]


def _save_model(folder: Path) -> None:
    """A converted model and the calibration of its heads."""
    from diabat.heads import Calibration, disable_gac, enable_gac, save_gac
    from diabat.huggingface import convert

    convert(decoder.__wrapped__(), window=3, sampler="mean_field").save_pretrained(folder / "model")
    plain = decoder.__wrapped__()
    plain.save_pretrained(folder / "plain")
    enable_gac(plain, Calibration({0: [1]}))
    save_gac(plain, folder / "plain")
    disable_gac(plain)


def _unreadable(folder: Path, ending: Ending) -> str:
    """Models load or are refused in a sentence, and what is written whole or not at all is whole."""
    from diabat.heads import load_gac
    from diabat.heads.commands.analysis import read_analysis
    from diabat.heads.games.store import ValueStore
    from diabat.huggingface import load_decoder

    values = folder / "values.safetensors"
    for name, load in {
        "values.safetensors": lambda: ValueStore.read(values).analysis and read_analysis(values),
        "model/model.safetensors": lambda: load_decoder(str(folder / "model")),
        "plain/gac.json": lambda: load_gac(load_decoder(str(folder / "plain"))[0], folder / "plain"),
    }.items():
        if (folder / name).exists():
            try:
                load()
            except REFUSALS as error:
                if (flaw := refusal_flaw(error)) or name != "model/model.safetensors":
                    return f"{name} does not load: {flaw} {error}"
    return ""


def _differing(names: Sequence[str], folder: Path, straight: Path) -> str:
    differ = [n for n in names if (folder / n).read_bytes() != (straight / n).read_bytes()]
    return f"{', '.join(differ)} differs" if differ else ""


_MODELS = ("model/model.safetensors", "model/config.json", "plain/gac.json")
WORKS = {
    "training": Work(train, difference, _lost, every=1),
    "heads": Work(analyse, partial(_differing, ["values.safetensors"]), _unreadable),
    "models": Work(_save_model, partial(_differing, _MODELS), _unreadable),
}
