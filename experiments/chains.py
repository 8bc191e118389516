"""Chains of coupled keys over the whole context, against softmax, convolutions and gated scans (docs/chains.md).

    python -m experiments.chains FOLDER --only gaps      # trained on gaps to 5, tested on gaps to 40
    python -m experiments.chains FOLDER --only anywhere  # 6 to 64 pairs at random places, tested at twice the length
    python -m experiments.chains FOLDER --only records speakers distractors doubles copies
    python -m experiments.chains FOLDER --only cost      # CPU time of a step, and parameters

The tasks are those of experiments/chain_tasks.py.  G grows from 0 to 5 in the first 800 of 3,000 steps of 128
sequences, at rates that fall to 0 by a cosine; pairs at random places take 1,000 steps.  Numbers are those of 1,000
sequences for each G, or length.  Every training is one file in the folder, and is not done again, on a GPU with
--device cuda.  Language: experiments/recall_language.py; speed: python -m benchmarks --only '^chains/'.
"""

from __future__ import annotations

import math
import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from diabat.attention import CouplingInit
from diabat.models.transformer import Transformer
from diabat.plots import REFERENCE, Line, Panel, lines
from experiments import rivals
from experiments.chain_tasks import GAP, NAMES, TESTED, VALUES, Study, studies
from experiments.common import Row, add_choice, every_seed, kept, means, parser, report, same_settings
from experiments.rivals import TAPS
from experiments.training import Backward, parameters_by_name, size_of, step_ms

OWN_RATE, EVERY = 1e-2, 50
"""Rate of couplings, gates and biases, which do not decay; steps between looks at the share of right answers."""

CHAIN: Row = {"couplings": "gates", "coupling_init": CouplingInit(mean=6.0)}
SOFTMAX: Row = {"mode": "softmax"}
CONVOLUTIONS = {
    "keys convolved, 2": ("k", 2),
    "keys convolved, 3": ("k", 3),
    "q, k, v convolved, 3": ("qkv", 3),
}
MODELS: dict[str, Row] = {
    "chain, gates": CHAIN,
    "chain, gates, J = .25": {**CHAIN, "coupling_init": CouplingInit(mean=1.0)},
    "chain, tokens": {**CHAIN, "couplings": "tokens", "coupling_init": CouplingInit(mean=1.0)},
    "chain, distance": {**CHAIN, "couplings": "distance", "coupling_init": CouplingInit(mean=1.0)},
    "chain, gates, odds": {**CHAIN, "readout": "odds"},
    "softmax": {**SOFTMAX, "positions": "rope"},
    "softmax, two layers": {**SOFTMAX, "positions": "rope", "num_layers": 2},
    "softmax, two layers, +4 on the previous token": {
        **SOFTMAX, "num_layers": 2, "relative": True, "attention_window": 2, "far": "independent", "offset_bias": True,
    },
    **{
        f"softmax, {name}" + (f", {start} start" if start != "torch" else ""): {
            **SOFTMAX, "convolved": (*arguments, start),
        }
        for start in TAPS
        for name, arguments in CONVOLUTIONS.items()
    },
    "softmax, q, k, v convolved, 7": {**SOFTMAX, "convolved": ("qkv", 7)},
    "softmax, two layers, q, k, v convolved, 7": {**SOFTMAX, "convolved": ("qkv", 7), "num_layers": 2},
    "softmax, keys scanned": {**SOFTMAX, "scanned": ("k",)},
    "softmax, keys and values scanned": {**SOFTMAX, "scanned": ("kv",)},
    "softmax, two layers, keys scanned": {**SOFTMAX, "scanned": ("k",), "num_layers": 2},
    "chain, gates, q, k, v convolved, 3": {**CHAIN, "convolved": ("qkv", 3)},
}  # fmt: skip
"""Convolutions begin as torch draws them unless the name says how, see `experiments.rivals.TAPS`."""
RECIPES = {
    "decay 0.01": (2e-3, 0.01, 1),
    "decay 0.01, three times the steps": (2e-3, 0.01, 3),
    "decay 0.01, rate 0.008": (8e-3, 0.01, 1),
    "decay 30 of q, k": (8e-3, 30.0, 1),
    "decay 30 of q, k, three times the steps": (8e-3, 30.0, 3),
}
"""Rate of all parameters but the couplings, weight decay of queries and keys (.01 of all others), factor of steps."""

FIGURE = {
    "chain, gates": "chain, gates, decay 30 of q, k",
    "softmax, two layers": "softmax, two layers, decay 0.01",
    "convolutions of 7, one layer": "softmax, q, k, v convolved, 7, decay 0.01",
    "convolutions of 7, two layers": "softmax, two layers, q, k, v convolved, 7, decay 0.01",
    "softmax": "softmax, decay 0.01",
    "softmax, keys scanned": "softmax, keys scanned, decay 30 of q, k",
}
"""Trainings of the figure by their labels."""


def built(name: str, study: Study, seed: int) -> Transformer:
    """A model for the sequences of a study."""
    return rivals.built(MODELS[name], study.symbols, VALUES, study.context, seed)


def right(model: Transformer, study: Study, size: int, count: int = 1_000) -> dict[str, float]:
    """Share of right answers, by part."""
    device, draw = next(model.parameters()).device, study.test or study.draw
    generator, found = torch.Generator().manual_seed(7 + size), []
    with torch.no_grad():
        for _ in range(count // 125):
            inputs, answers = (t.to(device) for t in draw(125, size, generator))
            found.append(model(inputs)[:, -answers.shape[1] :].argmax(-1) == answers)
    hits = torch.cat(found).double().cpu()
    return {part: hits[:, chosen].mean().item() for part, chosen in study.parts.items()}


def groups(model: Transformer, decay_of_scores: float) -> list[Row]:
    """Couplings, gates and biases have a rate of their own and do not decay; decay of queries and keys is given."""
    own = (".couplings.", ".gate_", ".offset_bias"), {"lr": OWN_RATE, "weight_decay": 0.0}
    scores = (".attention.query.", ".attention.key."), {"weight_decay": decay_of_scores}
    return parameters_by_name(model, own, scores)


def answered(logits: Tensor, targets: Tensor) -> Tensor:
    """Loss of the answers, which stand at the end."""
    return F.cross_entropy(logits[:, -targets.shape[1] :].flatten(0, 1), targets.flatten())


def trained(
    model: Transformer, draw: Callable[[int], tuple[Tensor, Tensor]], recipe: str, steps: int, device: str,
    look: Callable[[int], None] = lambda step: None,
) -> Row:  # fmt: skip
    """Train on the sequences that ``draw`` gives for a step; ``look`` is called behind each, and does not count."""
    rate, decay_of_scores, _ = RECIPES[recipe]
    optimiser = torch.optim.AdamW(groups(model.to(device), decay_of_scores), rate, fused=device != "cpu")
    falling = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda s: (1 + math.cos(math.pi * s / steps)) / 2)
    backward, seconds = Backward(model, answered, device), 0.0
    for step in range(steps):
        began = time.process_time()
        backward(*draw(step))
        optimiser.step()
        falling.step()
        seconds += time.process_time() - began
        look(step)
    model.eval()
    return {"CPU ms a step": 1e3 * seconds / steps if device == "cpu" else None, "parameters": size_of(model)}


def one(job: tuple[Study, str, str], seed: int, options: Namespace) -> Row:
    """One training: a study, and the names of a model and a recipe."""
    study, name, recipe = job
    steps, generator = RECIPES[recipe][2] * study.steps, torch.Generator().manual_seed(seed)
    model, reached = built(name, study, seed), list[int]()

    def look(step: int) -> None:
        if not reached and (step + 1) % EVERY == 0 and study.sizes(step) == study.sizes(steps):
            if min(right(model.eval(), study, study.sizes(step), 250).values()) >= 0.9:
                reached.append(step + 1)
            model.train()

    def draw(step: int) -> tuple[Tensor, Tensor]:
        return study.draw(study.batch, study.sizes(step), generator)

    cost = trained(model, draw, recipe, steps, options.device, look)
    row = {"CPU ms a step": cost["CPU ms a step"], "steps to 90 %": [*reached, None][0], **cost}
    for size in study.tested:
        found = right(model, study, size)
        row |= {study.title.format(size) + part: share for part, share in found.items()}
    return row


def table(options: Namespace, study: Study) -> Iterator[Row]:
    """Means over seeds, with σ at the largest size."""
    jobs = {
        f"{name}, {recipe}": (study, name, recipe) for name in options.models for recipe in options.recipes
    }
    for title, rows in every_seed(one, jobs, options, study.name).items():
        yield {"": title, **means(rows, [*rows[0]][-1])}


def cost(names: Sequence[str], study: Study) -> Iterator[Row]:
    """CPU time of a step on one thread, the fastest of ten, and parameters."""
    for name in names:
        model, generator = built(name, study, 0), torch.Generator().manual_seed(0)
        batch = partial(study.draw, study.batch, study.sizes(study.steps), generator)
        backward, optimiser = Backward(model, answered, "cpu"), torch.optim.AdamW(groups(model, 0.01), 1e-3)
        ms = step_ms(lambda: backward(*batch()), optimiser)  # noqa: B023 - called before the next name
        yield {"": name, "parameters": size_of(model), "CPU ms a step": ms}


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


def main() -> None:
    """Run what was asked for, and print its tables."""
    made = parser(__doc__, study=True)
    made.add_argument("--only", nargs="+", default=["gaps", "anywhere"], choices=[*NAMES, "cost"])
    add_choice(made, "--models", MODELS)
    add_choice(made, "--recipes", RECIPES, "rates and decays")
    made.add_argument("--steps", type=int)
    made.add_argument("--figure", type=Path, help="draw right answers of gaps there")
    options = made.parse_args()
    if options.figure:
        options.figure.parent.mkdir(parents=True, exist_ok=True)
    same_settings(options.folder, {"steps": options.steps or 3_000})
    timed = "cost" in options.only
    for study in studies(options.only, options.steps):
        rows = [*(cost(options.models, study) if timed else table(options, study))]
        report(study.name, rows, as_json=options.json)
        if options.figure and study.name == "gaps" and not timed:
            draw_gaps(options.folder, options.figure)


if __name__ == "__main__":
    main()
