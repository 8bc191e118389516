"""Chains of coupled keys over the whole context, against softmax and convolutions (docs/chains.md).

    python -m experiments.chains FOLDER --only gaps     # trained on gaps to 5, tested on gaps to 40
    python -m experiments.chains FOLDER --only anywhere # 6 to 64 pairs at random places, tested at twice the length
    python -m experiments.chains FOLDER --only law      # the kernel against enumeration

A sequence of `gaps` is noise, then five pairs in random order with 0 to G random tokens of 16 between key and value,
then four keys, whose values are asked for.  G grows from 0 to 5 in the first 800 of 3,000 steps of 128 sequences, at
rates that fall to 0 by a cosine.  In `anywhere` a value is behind its key, and pairs stand at random places among
noise; 1,000 steps.  Numbers are those of 1,000 sequences for each G, or length.  Every training is one file in the
folder, and is not done again.  Language: experiments/recall_language.py; speed: python -m benchmarks --only '^chains/'.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from rich.progress import track
from torch import Tensor, nn
from torch.nn import functional as F

import diabat
from diabat.attention import CouplingInit
from diabat.attention.chain import ChainLayer, attend, by_operators
from diabat.attention.weights import masked_softmax, normalised_weights, odds_fields
from diabat.models.transformer import Transformer, TransformerOptions
from diabat.plots import REFERENCE, Line, Panel, lines
from experiments.common import Row, calls, keep, kept, parser, report, same_settings
from experiments.recall import Convolved

VALUES, NOISE, PAIRS, QUERIES = 16, 16, 5, 4
GAP, GROWN, COUPLING_RATE = 5, 800, 1e-2
TESTED = (0, 5, 8, 12, 20, 40)
PLACED = ((6, 48), (16, 96), (64, 256))
"""Pairs and context of `anywhere`."""

CHAIN: Row = {"relative": True, "couplings": "gates", "coupling_init": CouplingInit(mean=6.0)}
SOFTMAX: Row = {"mode": "softmax"}
MODELS: dict[str, Row] = {
    "chain, gates": CHAIN,
    "chain, tokens": {**CHAIN, "couplings": "tokens", "coupling_init": CouplingInit(mean=1.0)},
    "chain, distance": {**CHAIN, "couplings": "distance", "coupling_init": CouplingInit(mean=1.0)},
    "chain, gates, odds": {**CHAIN, "weights": "odds"},
    "softmax": {**SOFTMAX, "positions": "rope"},
    "softmax, two layers": {**SOFTMAX, "positions": "rope", "num_layers": 2},
    "softmax, keys convolved, 2": {**SOFTMAX, "convolved": ("k", 2)},
    "softmax, keys convolved, 3": {**SOFTMAX, "convolved": ("k", 3)},
    "softmax, q, k, v convolved, 3": {**SOFTMAX, "convolved": ("qkv", 3)},
    "softmax, q, k, v convolved, 7": {**SOFTMAX, "convolved": ("qkv", 7)},
    "softmax, two layers, q, k, v convolved, 7": {**SOFTMAX, "convolved": ("qkv", 7), "num_layers": 2},
    "chain, gates, q, k, v convolved, 3": {**CHAIN, "convolved": ("qkv", 3)},
}
RECIPES = {
    "decay 0.01": (2e-3, 0.01, 1),
    "decay 0.01, three times the steps": (2e-3, 0.01, 3),
    "decay 30 of q, k": (8e-3, 30.0, 1),
    "decay 30 of q, k, three times the steps": (8e-3, 30.0, 3),
}
"""Rate of all parameters but the couplings, weight decay of queries and keys (.01 of all others), factor of steps."""

FIGURE = {
    "chain, gates": "chain, gates, decay 30 of q, k",
    "chain, tokens": "chain, tokens, decay 30 of q, k",
    "softmax, two layers": "softmax, two layers, decay 0.01",
    "convolutions of 7, one layer": "softmax, q, k, v convolved, 7, decay 0.01",
    "convolutions of 7, two layers": "softmax, two layers, q, k, v convolved, 7, decay 0.01",
    "softmax": "softmax, decay 0.01",
}
"""Trainings of the figure by their labels."""


class Study(NamedTuple):
    """Sequences and steps of one training; ``keys`` is the number of symbols that keys are drawn from."""

    name: str
    keys: int
    steps: int
    batch: int
    context: int
    sizes: Callable[[int], int]
    tested: Sequence[int]
    draw: Callable[[int, int, torch.Generator], tuple[Tensor, Tensor]]
    title: str


def drawn(
    count: int, keys: int, pairs: int, length: int, first: Tensor, second: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Sequences [B, L] with keys and values at these places, [B, pairs], and the values asked for, [B, queries]."""
    symbols = torch.rand(count, keys, generator=generator).argsort(1)[:, :pairs]
    values = torch.randint(VALUES, (count, pairs), generator=generator)
    found = keys + VALUES + torch.randint(NOISE, (count, length), generator=generator)
    found.scatter_(1, first, symbols)
    found.scatter_(1, second, keys + values)
    asked = torch.rand(count, pairs, generator=generator).argsort(1)[:, :QUERIES]
    found[:, -QUERIES:] = symbols.gather(1, asked)
    return found, values.gather(1, asked)


def with_gaps(count: int, gap: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Noise, then pairs with 0 to ``gap`` tokens between key and value."""
    gaps = torch.randint(gap + 1, (count, PAIRS), generator=generator)
    length = PAIRS * (2 + gap) + QUERIES
    first = length - QUERIES - (gaps + 2).flip(1).cumsum(1).flip(1)
    return drawn(count, VALUES, PAIRS, length, first, first + gaps + 1, generator)


def placed(pairs: int, count: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Pairs at random places."""
    free = length - QUERIES - pairs
    first = torch.rand(count, free, generator=generator).argsort(1)[:, :pairs].sort(1).values
    first = first + torch.arange(pairs)
    return drawn(count, max(VALUES, 2 * pairs), pairs, length, first, first + 1, generator)


def growing(step: int) -> int:
    """The largest gap of a step."""
    return min(GAP, step * GAP // GROWN)


def constant(length: int, step: int) -> int:
    """The same length in every step."""
    return length


def studies(names: Sequence[str], steps: int | None) -> Iterator[Study]:
    """The studies of these names; ``steps`` in place of their own."""
    if "gaps" in names:
        context = PAIRS * (2 + TESTED[-1]) + QUERIES
        yield Study("gaps", VALUES, steps or 3000, 128, context, growing, TESTED, with_gaps, "gaps to {}")
    for pairs, length in PLACED if "anywhere" in names else ():
        name, keys, batch = f"{pairs} pairs in {length}", max(VALUES, 2 * pairs), min(128, 4096 // length)
        sizes, draw, tested = partial(constant, length), partial(placed, pairs), (length, 2 * length)
        yield Study(name, keys, steps or 1000, batch, 2 * length, sizes, tested, draw, "{} tokens")


def built(name: str, study: Study, seed: int) -> Transformer:
    """A model of width 64 without positions, unless the options say otherwise, with torch's own initial weights."""
    options = {"positions": "none", **MODELS[name]}
    convolved = options.pop("convolved", None)
    torch.manual_seed(seed)
    made = TransformerOptions(embed_dim=64, ffn_dim=128, dropout=0.0, **options)
    backend = "banded" if "relative" in options else "exact"
    model = Transformer(made, study.keys + VALUES + NOISE, VALUES, study.context, backend)
    if convolved is not None:
        chain: Row = {} if "relative" not in options else {**CHAIN, "mode": "h+J"}
        for block in model.all_blocks():
            window = None if chain else study.context
            block.attention = Convolved(64, 1, window, *convolved, **{"rotary": False, **chain})
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            module.reset_parameters()
    return model


def right(model: Transformer, study: Study, size: int, count: int = 1_000) -> float:
    """Share of right answers."""
    generator = torch.Generator().manual_seed(7 + size)
    with torch.no_grad():
        parts = [study.draw(125, size, generator) for _ in range(count // 125)]
        found = [(model(x)[:, -QUERIES:].argmax(-1) == y).double().mean().item() for x, y in parts]
    return statistics.fmean(found)


def groups(model: Transformer, decay_of_scores: float) -> list[Row]:
    """Couplings train at a rate of their own, and do not decay; queries and keys decay by a number of their own."""
    parts: dict[str, list[nn.Parameter]] = {"couplings": [], "scores": [], "others": []}
    for name, parameter in model.named_parameters():
        scores = ".attention.query." in name or ".attention.key." in name
        part = "couplings" if ".key_couplings." in name else "scores" if scores else "others"
        parts[part].append(parameter)
    options: dict[str, Row] = {
        "couplings": {"lr": COUPLING_RATE, "weight_decay": 0.0},
        "scores": {"weight_decay": decay_of_scores},
        "others": {"weight_decay": 0.01},
    }
    return [{"params": found, **options[part]} for part, found in parts.items() if found]


def one(folder: Path, study: Study, name: str, recipe: str, seed: int) -> tuple[str, Row]:
    """One training, unless its result is there."""
    title = f"{name}, {recipe}"
    path = folder / study.name / f"{title} {seed}.json"
    if not path.exists():
        torch.set_num_threads(1)
        model, generator = built(name, study, seed), torch.Generator().manual_seed(seed)
        rate, decay_of_scores, longer = RECIPES[recipe]
        steps = longer * study.steps
        optimiser = torch.optim.AdamW(groups(model, decay_of_scores), rate)
        falling = torch.optim.lr_scheduler.LambdaLR(
            optimiser, lambda s: (1 + math.cos(math.pi * s / steps)) / 2
        )
        began = time.process_time()
        for step in range(steps):
            inputs, targets = study.draw(study.batch, study.sizes(step), generator)
            optimiser.zero_grad()
            F.cross_entropy(model(inputs)[:, -QUERIES:].flatten(0, 1), targets.flatten()).backward()
            optimiser.step()
            falling.step()
        row: Row = {"CPU ms a step": 1e3 * (time.process_time() - began) / steps}
        row["parameters"] = sum(parameter.numel() for parameter in model.parameters())
        model.eval()
        keep(path, row | {study.title.format(size): right(model, study, size) for size in study.tested})
    return title, kept(path)


def trained(
    folder: Path, study: Study, names: Sequence[str], recipes: Sequence[str], seeds: int, workers: int
) -> Iterator[Row]:
    """Means over seeds, with σ at the largest size."""
    jobs = [
        (folder, study, name, recipe, seed) for seed in range(seeds) for name in names for recipe in recipes
    ]
    rows: dict[str, list[Row]] = {}
    for title, row in track(calls(one, jobs, workers), study.name, len(jobs)):
        rows.setdefault(title, []).append(row)
    for title, found in rows.items():
        last = [row[study.title.format(study.tested[-1])] for row in found]
        mean = {key: statistics.fmean(row[key] for row in found) for key in found[0]}
        yield {"": title, "seeds": len(found), **mean, "σ": statistics.stdev(last) if len(last) > 1 else None}


def draw_gaps(folder: Path, path: Path) -> Path:
    """Draw right answers by the largest gap, mean ± σ over the seeds in the folder, of the models of the figure."""
    drawn: list[Line] = [Line((GAP, GAP), (0, 100), "longest in training", style=REFERENCE)]
    for label, title in FIGURE.items():
        found = [kept(one) for one in sorted((folder / "gaps").glob(f"{title} [0-9].json"))]
        rows = [[100 * row[f"gaps to {gap}"] for row in found] for gap in TESTED]
        if found:
            spread = [statistics.pstdev(row) for row in rows]
            drawn.append(Line(TESTED, [statistics.fmean(row) for row in rows], label, len(drawn) - 1, spread))
    settings = {"xlabel": "largest gap between key and value", "ylabel": "right answers, %", "ylim": (0, 103)}
    return lines([[Panel(drawn, settings=settings)]], path, size=(6.4, 3.6))


def laws() -> Iterator[Row]:
    """Largest error of weights against enumeration, and of derivatives against the scan in float64, by strength."""
    for strength in (0.1, 1.0, 5.0, 15.0, 40.0):
        for dtype in (torch.float64, torch.float32):
            worst, slope = 0.0, 0.0
            for seed in range(250):
                torch.manual_seed(seed)
                law = ChainLayer(seed % 2 == 0, ("odds", "probability")[seed // 2 % 2])
                keys, fields = 3 + seed % 14, (0.1, 1.0, 10.0)[seed % 3]
                q, k = torch.randn(2, 1, 4, keys, keys, dtype=torch.float64)
                given = [fields * q, k, torch.eye(keys, dtype=torch.float64).expand(1, 4, -1, -1)]
                given.append(strength * torch.randn(1, 4, keys - 1, dtype=torch.float64))
                exact = [t.to(dtype).double().requires_grad_() for t in given]
                terms = [t.to(dtype).requires_grad_() for t in given]
                found = attend(
                    law, terms[0], terms[1], terms[2], terms[3], None
                )  # the weights: values are unit vectors
                worst = max(worst, float((found.detach() - enumerated(law, exact)).abs().max()))
                cotangent = torch.randn(found.shape, dtype=torch.float64)
                by_scan = by_operators(law, exact[0], exact[1], exact[2], exact[3], None)[0]
                pairs = zip(
                    torch.autograd.grad(found, terms, cotangent.to(dtype)),
                    torch.autograd.grad(by_scan, exact, cotangent),
                    strict=True,
                )
                slope = max(slope, *(float((a - b).abs().max() / (1 + b.abs().max())) for a, b in pairs))
            row: Row = {"J": strength, "dtype": str(dtype)[6:], "chains": 1000, "largest error": worst}
            yield row | {"of derivatives": slope}


@torch.no_grad()
def enumerated(law: ChainLayer, terms: list[Tensor]) -> Tensor:
    """Weights [1, H, S, S] by enumeration of all states."""
    q, k, _, J = terms
    keys = k.shape[2]
    scores, visible = q @ k.mT / q.shape[-1] ** 0.5, torch.ones(keys, keys, dtype=torch.bool)
    visible = visible.tril() if law.causal else visible
    h = odds_fields(scores, visible) if law.weights == "odds" else scores
    upper = torch.diag_embed(J, 1)[:, :, None]
    found = diabat.sampler("exact").differentiable_log_odds(
        diabat.Ising(h, upper + upper.mT, visible, check=False)
    )
    return (
        masked_softmax(found, visible)
        if law.weights == "odds"
        else normalised_weights(found.sigmoid(), visible)
    )


def main() -> None:
    """Run what was asked for, and print its tables."""
    made = parser(__doc__, study=True)
    made.add_argument(
        "--only", nargs="+", default=["gaps", "anywhere", "law"], choices=["gaps", "anywhere", "law"]
    )
    made.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    made.add_argument(
        "--recipes", nargs="+", default=list(RECIPES), choices=list(RECIPES), help="rates and decays"
    )
    made.add_argument("--steps", type=int)
    made.add_argument("--figure", type=Path, help="draw right answers of gaps there")
    options = made.parse_args()
    if options.figure:
        options.figure.parent.mkdir(parents=True, exist_ok=True)
    same_settings(options.folder, {"steps": options.steps or 3_000})
    for study in studies(options.only, options.steps):
        found = trained(
            options.folder, study, options.models, options.recipes, options.seeds, options.workers
        )
        report(study.name, list(found), as_json=options.json)
        if options.figure and study.name == "gaps":
            draw_gaps(options.folder, options.figure)
    if "law" in options.only:
        report("law", list(laws()), as_json=options.json)


if __name__ == "__main__":
    main()
