"""What a finished run has learned: its couplings, its learning curve, and one word of brackets answered."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from diabat.config.loading import load_config
from diabat.config.schema import Config
from diabat.ising import pack_couplings
from diabat.models.transformer_options import TransformerOptions
from diabat.runs.finished import load_run
from diabat.tasks.base import IGNORED, Split
from diabat.tasks.brackets import CLOSE, OPEN, BracketOptions
from diabat.training import load_model
from diabat.training.evaluate import predict
from diabat.training.report import METRICS

_PAIRS = ".coupling_pairs"


def stored_config(folder: Path) -> Config:
    """Configuration of a run; nothing it names is imported."""
    return load_config(folder / "config.json", trust=True)


def learned_couplings(folder: Path) -> Tensor | None:
    """Mean over layers and heads of the couplings with the lowest validation loss, symmetric, float64 [T, T].

    None if the model has none, or is not a :class:`~diabat.models.Transformer`.
    """
    config = stored_config(folder)
    options = config.model
    if not isinstance(options, TransformerOptions):
        return None
    found = [tensor for name, tensor in load_model(folder).items() if name.endswith(_PAIRS)]
    if not found:
        return None
    window = config.task.window if options.attention_window is None else options.attention_window
    return pack_couplings(torch.cat(found).double(), window, options.bandwidth).mean(0)


def distance_profile(couplings: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Couplings by distance d = 1 .. T-1 over runs and pairs: mean J, standard deviation of J, mean |J|, each [T-1].

    Args:
        couplings: Symmetric J of several runs, [R, T, T].
    """
    of_distance = [couplings.diagonal(d, dim1=-2, dim2=-1).flatten() for d in range(1, couplings.shape[-1])]
    mean = torch.stack([J.mean() for J in of_distance])
    deviation = torch.stack([J.std(correction=0) for J in of_distance])
    return mean, deviation, torch.stack([J.abs().mean() for J in of_distance])


def learning_curve(folder: Path) -> tuple[str, list[float]]:
    """Name of the metric of a run, and its value after every epoch."""
    lines = [json.loads(line) for line in (folder / METRICS).read_text(encoding="utf-8").splitlines()]
    epochs = [line for line in lines if line["event"] == "epoch"]
    metric = "accuracy" if "accuracy" in (epochs[0] if epochs else {}) else "perplexity"
    return metric, [line[metric] for line in epochs]


@dataclass(frozen=True, eq=False)
class BracketExample:
    """One validation word of bracket matching with the model's answers.

    Attributes:
        symbols: ``(``, ``)`` or a dot for each position.
        closing: Positions of the closing brackets, int64 [n].
        targets: Positions of their opening brackets, int64 [n].
        probabilities: P(position) at each closing bracket, float32 [n, T].
    """

    symbols: tuple[str, ...]
    closing: Tensor
    targets: Tensor
    probabilities: Tensor

    @property
    def correct(self) -> Tensor:
        """Whether the most probable position is the right one, bool [n]."""
        return self.probabilities.argmax(-1) == self.targets


def bracket_example(folder: Path) -> BracketExample | None:
    """Answer the validation word with the most pairs, the first of them; None for other tasks."""
    if not isinstance(stored_config(folder).task, BracketOptions):
        return None
    run = load_run(folder)
    data = run.task.validation
    assert isinstance(data, Split)
    word = int((data.targets != IGNORED).sum(-1).argmax())
    chosen = Split(data.inputs[word : word + 1], data.targets[word : word + 1])
    logits, targets = predict(run.model, chosen, seed=run.config.training.seed)
    closing = (targets[0] != IGNORED).nonzero()[:, 0]
    names = {OPEN: "(", CLOSE: ")"}
    symbols = tuple(names.get(int(symbol), "·") for symbol in chosen.inputs[0])
    return BracketExample(symbols, closing, targets[0, closing], logits[0, closing].softmax(-1))
