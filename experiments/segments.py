"""Segments of unknown ends: a task whose answer needs the posterior of a hidden Markov chain (docs/chains.md).

    python -m experiments.segments FOLDER           # ceilings, trainings, the best start and recipe of each model
    python -m experiments.segments FOLDER --models  # ceilings alone

Sequences and ceilings are those of experiments/hidden_segments.py.  A training takes 32 sequences a step, at rates that
fall to 0 by a cosine, by recipes of experiments/chains.py.  Its numbers are those of 2,000 sequences.  The last table
has the start and the recipe of each model that are best on 1,000 others.  Every training is one file in the folder, and
is not done again.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from torch import Tensor, nn
from torch.nn import functional as F

from diabat.attention import CouplingInit
from diabat.models.transformer import Transformer, TransformerOptions
from experiments import hidden_segments as task
from experiments.chains import RECIPES, answered, groups, mean
from experiments.common import Backward, Row, calls, keep, kept, parser, report, same_settings
from experiments.rivals import Convolved, Scanned, Softmax

STEPS, BATCH, TESTED = 1500, 32, {"validation": 1000, "test": 2000}
RATES = ("decay 0.01", "decay 30 of q, k")


def chain(couplings: str, J: float, **options: str) -> Row:
    """A chain whose couplings begin at J."""
    init = CouplingInit(mean=4 * J if couplings == "gates" else J)
    return {"relative": True, "couplings": couplings, "coupling_init": init, **options}


def convolved(names: str, taps: int, start: str, **options: int | bool) -> Row:
    """Softmax with convolutions that start near the ``identity`` or as ``torch`` draws them."""
    return {"mode": "softmax", "convolved": (names, taps, start), **options}


MODELS: dict[str, dict[str, Row]] = {
    "chain, gates": {f"J {J}": chain("gates", J) for J in (0.75, 1.5, 0.25)},
    "softmax": {p: {"mode": "softmax", "positions": p} for p in ("none", "rope")},
    "softmax, keys and values scanned from both sides": {
        f"g {g}": {"mode": "softmax", "scanned": ("kv", 2, g)} for g in (0.9, 0.1)
    },
    "softmax, keys scanned from both sides": {
        f"g {g}": {"mode": "softmax", "scanned": ("k", 2, g)} for g in (0.9, 0.1)
    },
    **{
        f"softmax, keys convolved, {taps} around": {
            start: convolved("k", taps, start, centred=True) for start in ("identity", "torch")
        }
        for taps in (15, 31, 7)
    },
    "chain, distance": {f"J {J}": chain("distance", J) for J in (0.75, 1.5)},
    "chain, tokens": {f"J {J}": chain("tokens", J) for J in (0.75, 1.5)},
    "softmax, two layers": {"rope": {"mode": "softmax", "positions": "rope", "num_layers": 2}},
    "softmax, two layers, q, k, v convolved, 7": {
        start: convolved("qkv", 7, start, num_layers=2) for start in ("identity", "torch")
    },
    **{
        f"softmax, {'q, k, v' if names == 'qkv' else 'keys'} convolved, {taps}": {
            start: convolved(names, taps, start) for start in ("identity", "torch")
        }
        for names, taps in (("qkv", 15), ("qkv", 7), ("k", 15), ("k", 7), ("k", 3))
    },
    **{
        f"softmax, {words} scanned": {
            f"g {g}": {"mode": "softmax", "scanned": (over, 1, g)} for g in (0.9, 0.1)
        }
        for over, words in (("kv", "keys and values"), ("k", "keys"))
    },
    "chain, gates, odds": {"J 0.75": chain("gates", 0.75, weights="odds")},
}
"""Options by model and start; without positions unless they say otherwise.  Rivals first, then variants."""


class Centred(Convolved):
    """Convolutions over as many tokens behind as before; only the last position may ask."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for filters in self.convolutions.parameters():
            filters.data = filters.roll(-(self.taps // 2), -1)  # the identity is in the middle

    def _convolved(self, name: str, tokens: Tensor) -> Tensor:
        half = self.taps // 2
        return super()._convolved(name, F.pad(tokens, (0, 0, 0, half)))[:, half:]


def ceiling_rows(folder: Path) -> list[Row]:
    """Right answers of the ceilings on the test set, and the nats of Bayes, unless they are there."""
    path = folder / "ceilings.json"
    if not path.exists():
        right: dict[str, list[float]] = {}
        nats = []
        for x, answers in sequences("test"):
            for name, scores in task.ceilings(x):
                right.setdefault(name, []).append((scores.argmax(1) == answers).double().mean().item())
                if name == "Bayes":
                    nats.append(F.nll_loss(scores.log(), answers).item())
        rows: list[Row] = [{"": name, "test": statistics.fmean(found)} for name, found in right.items()]
        keep(path, [{**row, "nats": statistics.fmean(nats) if row[""] == "Bayes" else None} for row in rows])
    return kept(path)


def sequences(part: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of 50 sequences and their answers that no training sees, of ``validation`` or ``test``."""
    generator = torch.Generator().manual_seed(10_000 + [*TESTED].index(part))
    return (task.draw(50, generator) for _ in range(TESTED[part] // 50))


def built(options: Row, seed: int) -> Transformer:
    """A model of width 64 with torch's own initial weights."""
    options = {"positions": "none", **options}
    filters, scans = options.pop("convolved", None), options.pop("scanned", None)
    centred = options.pop("centred", False)
    torch.manual_seed(seed)
    made = TransformerOptions(embed_dim=64, ffn_dim=128, dropout=0.0, **options)
    backend = "banded" if "relative" in options else "exact"
    model = Transformer(made, task.BLANK + 1 + task.KINDS, task.VALUES, task.LENGTH + 1, backend)
    sizes = 64, 1, task.LENGTH + 1
    rotary = made.positions == "rope"
    for block in model.all_blocks() if made.mode == "softmax" else ():
        if filters is not None:
            block.attention = (Centred if centred else Convolved)(*sizes, *filters, rotary=rotary)
        elif scans is not None:
            block.attention = Scanned(*sizes, *scans, rotary=rotary)
        else:
            block.attention = Softmax(*sizes, rotary=rotary)
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            module.reset_parameters()
    return model


def one(
    folder: Path, name: str, start: str, recipe: str, seed: int, steps: int, device: str
) -> tuple[tuple[str, str, str], Row]:
    """One training, unless its result is there."""
    path = folder / f"{name}, {start}, {recipe} {seed}.json"
    if not path.exists():
        torch.set_num_threads(1)
        model = built(MODELS[name][start], seed).to(device)
        generator = torch.Generator().manual_seed(seed)
        rate, decay_of_scores, _ = RECIPES[recipe]
        optimiser = torch.optim.AdamW(groups(model, decay_of_scores), rate, fused=device != "cpu")
        falling = torch.optim.lr_scheduler.LambdaLR(
            optimiser, lambda s: (1 + math.cos(math.pi * s / steps)) / 2
        )
        backward, began = Backward(model, answered, device), time.process_time()
        for _ in range(steps):
            inputs, targets = task.draw(BATCH, generator)
            backward(inputs, targets[:, None])
            optimiser.step()
            falling.step()
        cost = 1e3 * (time.process_time() - began) / steps
        row: Row = {"CPU ms a step": cost if device == "cpu" else None}
        row["parameters"] = sum(parameter.numel() for parameter in model.parameters())
        for part in TESTED:
            with torch.no_grad():
                found = [(model.eval()(x.to(device))[:, -1].cpu(), y) for x, y in sequences(part)]
            logits, answers = (torch.cat(tensors) for tensors in zip(*found, strict=True))
            row[part] = (logits.argmax(1) == answers).double().mean().item()
            row[f"{part}, nats"] = F.cross_entropy(logits.double(), answers).item()
        keep(path, row)
    return (name, start, recipe), kept(path)


def summary(rows: Sequence[Row]) -> Row:
    """Means over seeds, and σ of the right answers."""
    found = {key: mean(row[key] for row in rows) for key in rows[0]}
    right = [row["test"] for row in rows]
    return {"seeds": len(rows), **found, "σ": statistics.stdev(right) if len(right) > 1 else None}


def main() -> None:
    """Train what is not there, and print the tables: ceilings, all trainings, the best of each model."""
    made = parser(__doc__, study=True)
    made.add_argument("--models", nargs="*", default=[*MODELS], metavar="MODEL", help="none: ceilings alone")
    made.add_argument("--recipes", nargs="+", default=RATES, choices=RATES)
    made.add_argument("--steps", type=int, default=STEPS)
    options = made.parse_args()
    if unknown := set(options.models) - set(MODELS):
        raise SystemExit(f"--models: expected {', '.join(MODELS)}, got {', '.join(sorted(unknown))}.")
    same_settings(options.folder, {"steps": options.steps})
    report("ceilings", ceiling_rows(options.folder), as_json=options.json)
    settings = [
        (name, start, recipe)
        for recipe in options.recipes
        for name in options.models
        for start in MODELS[name]
    ]
    jobs = [
        (options.folder, *setting, seed, options.steps, options.device)
        for seed in range(options.seeds)
        for setting in settings
    ]
    rows: dict[tuple[str, str, str], list[Row]] = {setting: [] for setting in settings}
    for setting, row in track(calls(one, jobs, options.workers), "segments", len(jobs)):
        rows[setting].append(row)
    found = [
        {"": name, "start": start, "recipe": recipe, **summary(rows[name, start, recipe])}
        for name, start, recipe in sorted(settings, key=lambda setting: options.models.index(setting[0]))
    ]
    report("trainings", found, as_json=options.json)
    best = {row[""]: row for row in sorted(found, key=lambda row: row["validation"])}
    report("best", [best[name] for name in options.models], as_json=options.json)


if __name__ == "__main__":
    main()
