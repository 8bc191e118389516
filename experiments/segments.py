"""Segments of unknown ends: a task whose answer needs the posterior of a hidden Markov chain (docs/chains.md).

    python -m experiments.segments FOLDER           # ceilings, trainings, the best start and recipe of each model
    python -m experiments.segments FOLDER --models  # ceilings alone

Sequences and ceilings are those of experiments/hidden_segments.py.  A training takes 32 sequences a step, at rates that
fall to 0 by a cosine, by recipes of experiments/chains.py.  Its numbers are those of 2,000 sequences.  The last table
has the start and the recipe of each model that are best on 1,000 others.  Every training is one file in the folder, and
is not done again.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from diabat.attention import CouplingInit
from experiments import hidden_segments as task
from experiments.chains import trained
from experiments.common import Row, by_name, means, once, parser, report, same_settings
from experiments.rivals import built

STEPS, BATCH, TESTED = 1500, 32, {"validation": 1000, "test": 2000}
RATES = ("decay 0.01", "decay 30 of q, k")
Setting = tuple[str, str, str]
"""Model, start, recipe."""


def chain(couplings: str, J: float, **options: str) -> Row:
    """A chain whose couplings begin at J."""
    init = CouplingInit(mean=4 * J if couplings == "gates" else J)
    return {"relative": True, "couplings": couplings, "coupling_init": init, **options}


def convolved(names: str, taps: int, kind: str = "convolved", **options: int) -> dict[str, Row]:
    """Softmax with convolutions that start near the ``identity`` or as ``torch`` draws them."""
    return {
        start: {"mode": "softmax", kind: (names, taps, start), **options} for start in ("identity", "torch")
    }


def scanned(names: str, directions: int) -> dict[str, Row]:
    """Softmax with scans from one side or both."""
    return {f"g {g}": {"mode": "softmax", "scanned": (names, directions, g)} for g in (0.9, 0.1)}


MODELS: dict[str, dict[str, Row]] = {
    "chain, gates": {f"J {J}": chain("gates", J) for J in (0.75, 1.5, 0.25)},
    "softmax": {p: {"mode": "softmax", "positions": p} for p in ("none", "rope")},
    "softmax, keys and values scanned from both sides": scanned("kv", 2),
    "softmax, keys scanned from both sides": scanned("k", 2),
    **{f"softmax, keys convolved, {taps} around": convolved("k", taps, "centred") for taps in (15, 31, 7)},
    "chain, distance": {f"J {J}": chain("distance", J) for J in (0.75, 1.5)},
    "chain, tokens": {f"J {J}": chain("tokens", J) for J in (0.75, 1.5)},
    "softmax, two layers": {"rope": {"mode": "softmax", "positions": "rope", "num_layers": 2}},
    "softmax, two layers, q, k, v convolved, 7": convolved("qkv", 7, num_layers=2),
    **{f"softmax, q, k, v convolved, {taps}": convolved("qkv", taps) for taps in (15, 7)},
    **{f"softmax, keys convolved, {taps}": convolved("k", taps) for taps in (15, 7, 3)},
    "softmax, keys and values scanned": scanned("kv", 1),
    "softmax, keys scanned": scanned("k", 1),
    "chain, gates, odds": {"J 0.75": chain("gates", 0.75, weights="odds")},
}
"""Options by model and start; without positions unless they say otherwise.  Rivals first, then variants."""


def ceilings() -> list[Row]:
    """Right answers of the ceilings on the test set, and the nats of Bayes."""
    right: dict[str, list[float]] = {}
    nats = []
    for x, answers in sequences("test"):
        for name, scores in task.ceilings(x):
            right.setdefault(name, []).append((scores.argmax(1) == answers).double().mean().item())
            if name == "Bayes":
                nats.append(F.nll_loss(scores.log(), answers).item())
    mean = {"Bayes": statistics.fmean(nats)}
    return [
        {"": name, "test": statistics.fmean(found), "nats": mean.get(name)} for name, found in right.items()
    ]


def sequences(part: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of 50 sequences and their answers that no training sees, of ``validation`` or ``test``."""
    generator = torch.Generator().manual_seed(10_000 + [*TESTED].index(part))
    return (task.draw(50, generator) for _ in range(TESTED[part] // 50))


def one(folder: Path, setting: Setting, seed: int, steps: int, device: str) -> tuple[Setting, Row]:
    """One training, unless its result is there."""
    name, start, recipe = setting

    def result() -> Row:
        sizes = task.BLANK + 1 + task.KINDS, task.VALUES, task.LENGTH + 1
        model, generator = built(MODELS[name][start], *sizes, seed), torch.Generator().manual_seed(seed)

        def draw(_: int) -> tuple[Tensor, Tensor]:
            inputs, targets = task.draw(BATCH, generator)
            return inputs, targets[:, None]

        row = trained(model, draw, recipe, steps, device)
        for part in TESTED:
            with torch.no_grad():
                found = [(model(x.to(device))[:, -1].cpu(), y) for x, y in sequences(part)]
            logits, answers = (torch.cat(tensors) for tensors in zip(*found, strict=True))
            row[part] = (logits.argmax(1) == answers).double().mean().item()
            row[f"{part}, nats"] = F.cross_entropy(logits.double(), answers).item()
        return row

    return setting, once(folder / f"{name}, {start}, {recipe} {seed}.json", result)


def main() -> None:
    """Train what is not there, and print the tables: ceilings, all trainings, the best of each model."""
    made = parser(__doc__, study=True)
    made.add_argument("--models", nargs="*", default=[*MODELS], metavar="MODEL", help="none: ceilings alone")
    made.add_argument("--steps", type=int, default=STEPS)
    options = made.parse_args()
    if unknown := set(options.models) - set(MODELS):
        raise SystemExit(f"--models: expected {', '.join(MODELS)}, got {', '.join(sorted(unknown))}.")
    same_settings(options.folder, {"steps": options.steps})
    report("ceilings", once(options.folder / "ceilings.json", ceilings), as_json=options.json)
    settings = [
        (name, start, recipe) for name in options.models for recipe in RATES for start in MODELS[name]
    ]
    jobs = [
        (options.folder, setting, seed, options.steps, options.device)
        for seed in range(options.seeds)
        for setting in settings
    ]
    rows = by_name(one, jobs, options.workers, "segments")
    found = [
        {"": name, "start": start, "recipe": recipe, **means(rows[name, start, recipe], "test")}
        for name, start, recipe in settings
    ]
    report("trainings", found, as_json=options.json)
    best = {row[""]: row for row in sorted(found, key=lambda row: row["validation"])}
    report("best", [best[name] for name in options.models], as_json=options.json)


if __name__ == "__main__":
    main()
