"""Associative recall: what one layer with couplings can do that one layer of softmax cannot (docs/recall.md).

    python -m experiments.recall FOLDER --only pairs      # accuracy against pairs, by model
    python -m experiments.recall FOLDER --only width      # against the width of the model
    python -m experiments.recall FOLDER --only start      # initial couplings, positions, queries
    python -m experiments.recall FOLDER --only samplers   # trained on one sampler, evaluated on the others
    python -m experiments.recall FOLDER --only recipes    # rate of J, curriculum, start, by backend
    python -m experiments.recall FOLDER --only anywhere   # pairs at random places, windows of relative positions
    python -m experiments.recall FOLDER --only hardware   # a strict stand-in of a processor from start to end

Every training is one file in the folder, and is not done again.  A training ends at 99.5 % on 1,000 validation
sequences or after --steps steps of 128 sequences; the numbers are those of 1,000 test sequences.
"""

from __future__ import annotations

import statistics
import time
from argparse import Namespace
from collections.abc import Sequence
from functools import partial

import torch
from rich.progress import track
from torch import Tensor, nn
from torch.nn import functional as F

import diabat
from diabat.attention import BoltzmannAttention, CouplingInit, coupling_parameters
from diabat.checks import ArgumentError
from diabat.lab.models.transformer import Transformer, TransformerOptions
from diabat.lab.tasks import RecallOptions, Task
from diabat.lab.training.evaluate import evaluate, token_loss
from experiments.common import Row, calls, once, parser, report, run_script, same_settings

BATCH, EVERY, SOLVED = 128, 25, 0.995
NEIGHBOURS, BOUND = CouplingInit(mean=0.5, max_distance=1), CouplingInit(mean=1.0, max_distance=1)
BAND: Row = {"bandwidth": 1, "coupling_init": NEIGHBOURS}
ANNEAL_OPTIONS: Row = {"engine": "native", "annealing_time_ns": 5.0, "precision": "single"}
ANNEAL: Row = {"backend": "dqa", **ANNEAL_OPTIONS}

MODELS: dict[str, Row] = {
    "softmax": {"mode": "softmax"},
    "softmax, two layers": {"mode": "softmax", "num_layers": 2},
    "softmax, keys convolved": {"mode": "softmax", "convolved": "k"},
    "softmax, q, k, v convolved": {"mode": "softmax", "convolved": "qkv"},
    "h": {"mode": "h"},
    "h+J": {"coupling_init": NEIGHBOURS},
    "h+J+K": {"mode": "h+J+K", "coupling_init": NEIGHBOURS},
    "h+J, band of 1": {"sampler": {"backend": "banded"}, **BAND},
    "h+J, band of 1, odds": {"sampler": {"backend": "banded"}, "readout": "odds", **BAND},
    "h+J, band of 1, mean field": {"sampler": {"backend": "mean_field"}, **BAND},
    "h+J of the last 8 keys": {
        "relative": True, "attention_window": 8, "far": "independent", "coupling_init": NEIGHBOURS,
    },
}  # fmt: skip
MOST_PAIRS = {"h+J": 8, "h+J+K": 4}
"""Enumeration of 2^T states ends here."""

WIDTHS = [name for name in MODELS if name.startswith("softmax") or name.endswith("band of 1")]

OWN_INIT: Row = {"own_init": True}
"""Weights as torch draws them, symbols N(0, 1): with our N(0, .02²) two layers of softmax take thousands of steps."""

STARTS: dict[str, CouplingInit | None] = {
    "J = 0": None,
    "N(0, .1²)": CouplingInit(std=0.1),
    "N(0, .3²)": CouplingInit(std=0.3),
    "neighbours N(0, .3²)": CouplingInit(std=0.3, max_distance=1),
    "neighbours -.5": CouplingInit(mean=-0.5, max_distance=1),
    "neighbours +.25": CouplingInit(mean=0.25, max_distance=1),
    "neighbours +.5": NEIGHBOURS,
    "neighbours +1": BOUND,
}

SAMPLERS: dict[str, Row] = {
    "exact": {"backend": "exact"},
    "mean_field": {"backend": "mean_field"},
    "anneal of 5 ns, adjoint": {**ANNEAL, "gradient": "adjoint"},
    "anneal of 5 ns, straight through": {**ANNEAL, "gradient": "straight_through"},
    "boltzmann-8": {"backend": "dqa", "engine": "native", "schedule": "boltzmann-8", "gradient": "adjoint"},
    "100 reads of 5 ns": {**ANNEAL, "gradient": "straight_through", "num_reads": 100},
    "refine of 5 ns, 100 reads": {"backend": "refine", "sampler": "dqa", "options": ANNEAL_OPTIONS, "num_reads": 100},
    "boltzmann-8, 1000 reads, covariance": {
        "backend": "dqa", "schedule": "boltzmann-8", "precision": "single", "gradient": "covariance", "num_reads": 1000,
    },
    "tempering, 100 reads, covariance": {"backend": "tempering", "gradient": "covariance", "num_reads": 100},
}  # fmt: skip

STAND_IN: Row = {
    "backend": "dimod", "sampler": "diabat.samplers.dimod.tiled:TiledComposite",
    "options": {
        "child": "diabat.testing.strict_qpu:StrictMockQPU",
        "child_options": {
            "topology_type": "zephyr", "topology_shape": [12, 4], "beta": 10.0, "sweeps": 32, "tied_below": -1.5,
        },
        "spins": 5, "fields": "ancilla",
    },
    "parameters": {"fast_anneal": True, "annealing_time": 0.005},
    "beta": 10.0, "law": "boltzmann", "gradient": "covariance", "num_reads": 100,
}  # fmt: skip
"""2 pairs and a query: tiles of 5 spins and an ancilla."""

RECIPES: dict[str, Row] = {
    "J rate .02": {},
    "J rate .002": {"coupling_rate": 2e-3},
    "J rate .1": {"coupling_rate": 0.1},
    "from 1 to 16 pairs": {"task": {"min_pairs": 1, "queries": 1}},
    "16 pairs, 1 query": {"task": {"queries": 1}},
    "neighbours +1": {"model": {"coupling_init": BOUND}},
    "neighbours +1, J rate .1": {"coupling_rate": 0.1, "model": {"coupling_init": BOUND}},
    "J = 0": {"model": {"coupling_init": None}},
}

BACKENDS: dict[str, Row] = {
    "banded": {"sampler": {"backend": "banded"}},
    "banded, odds": {"sampler": {"backend": "banded"}, "readout": "odds"},
    "mean field": {"sampler": {"backend": "mean_field"}},
}

EVERYWHERE: Row = {"relative": True, "attention_window": 12, "coupling_init": NEIGHBOURS}
"""J by the distances of two keys from the query."""


OWN = {name: {**model, **OWN_INIT} for name, model in MODELS.items()}
MANY: Row = {"pairs": 16, "queries": 4}
EVERY_PLACE: dict[str, Row] = {
    **{name: OWN[name] for name in MODELS if name.startswith("softmax")},
    **{f"{name}{odds}": {**model, **OWN_INIT, **({"readout": "odds"} if odds else {})}
       for name, model in (("h+J, J per position", MODELS["h+J"]), ("h+J, windows", EVERYWHERE))
       for odds in ("", ", odds")},
}  # fmt: skip

TABLES: dict[str, dict[str, Row]] = {
    "pairs": {
        f"{pairs:2} pairs, {name}": {"task": {**MANY, "pairs": pairs, "symbols": max(16, pairs)}, "model": model}
        for pairs in (4, 8, 16, 32, 64)
        for name, model in OWN.items()
        if pairs <= MOST_PAIRS.get(name, pairs)
    },
    "width": {
        f"width {width:3}, {name}": {"task": MANY, "model": OWN[name], "width": width}
        for width in (16, 32, 64, 128)
        for name in WIDTHS
    },
    "start": {
        f"{positions}, {queries} queries, {name}": {
            "task": {"pairs": 4, "queries": queries}, "model": {"positions": positions, "coupling_init": start},
        }
        for positions in ("rope", "learned")
        for queries in (1, 4)
        for name, start in STARTS.items()
    },
    "samplers": {
        f"trained by {name}": {
            "task": {"pairs": 4}, "model": {"coupling_init": NEIGHBOURS, "sampler": sampler}, "then": SAMPLERS,
        }
        for name, sampler in SAMPLERS.items()
    },
    "recipes": {
        f"{backend}, {name}": {
            **recipe, "task": {**MANY, **recipe.get("task", {})},
            "model": {**BAND, **options, **OWN_INIT, **recipe.get("model", {})},
        }
        for backend, options in BACKENDS.items()
        for name, recipe in RECIPES.items()
    },
    "anywhere": {
        f"3 pairs and 3 fillers, {name}": {"task": {"pairs": 3, "filler": 3, "queries": 3}, "model": model}
        for name, model in EVERY_PLACE.items()
    },
    "hardware": {
        "a strict stand-in, 2 pairs": {
            "task": {"pairs": 2, "num_train": 2000, "num_validation": 100, "num_test": 200},
            "model": {"coupling_init": NEIGHBOURS, "sampler": STAND_IN},
            "then": {"exact": SAMPLERS["exact"]}, "batch": 32,
        }
    },
}  # fmt: skip
"""Settings of the trainings of every table, by their names."""


def built(options: Row, task: Task, width: int, seed: int) -> Transformer:
    """A model of one block, unless the options say otherwise, with weights drawn from the seed.

    Options are those of a Transformer, the ``sampler``, ``own_init``, and ``convolved``: ``k`` or ``qkv``.
    """
    sizes_of: Row = {"embed_dim": width, "ffn_dim": 2 * width, "dropout": 0.0}
    options = sizes_of | {"positions": "rope", "readout": "probability", "far": "none"} | options
    sampler, own_init = options.pop("sampler", SAMPLERS["exact"]), options.pop("own_init", False)
    convolved = options.pop("convolved", "")
    torch.manual_seed(seed)
    sizes = (task.vocab_size, task.num_classes, task.window)
    model = Transformer(TransformerOptions(**options), *sizes, diabat.sampler(sampler["backend"]))
    use(model, sampler)
    if own_init:
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                module.reset_parameters()
    if convolved:
        model.options.attention(task.window, None)  # draws: seeds give the numbers of the pages
        for layer in model.attention_layers():
            assert isinstance(layer, BoltzmannAttention)
            convolve(layer, convolved)
    return model


def convolve(layer: BoltzmannAttention, names: str) -> None:
    """Let causal depthwise convolutions of 3 tokens follow the projections ``q``, ``k`` or ``v`` of a layer."""
    for name, projection in (("q", layer.query), ("k", layer.key), ("v", layer.value)):
        if name in names:
            size = layer.embed_dim
            projection.add_module("filters", nn.Conv1d(size, size, 3, groups=size, bias=False))
            projection.register_forward_hook(_convolved)


def _convolved(projection: nn.Module, _: tuple[Tensor], features: Tensor) -> Tensor:
    """Features side by side: twice as fast as ``Conv1d`` on a processor."""
    rows = F.pad(features, (0, 0, 2, 0)).mT[:, :, None]
    weight = projection.get_parameter("filters.weight")[:, :, None]
    return F.conv2d(rows, weight, groups=features.shape[-1])[:, :, 0].mT


def use(model: Transformer, sampler: Row) -> None:
    """Give every attention layer a sampler."""
    options = dict(sampler)
    backend, reads = options.pop("backend"), options.pop("num_reads", None)
    gradient = options.pop("gradient", "auto")
    for layer in model.attention_layers():
        layer.use_sampler(diabat.sampler(backend, **options), gradient=gradient, num_reads=reads)


def train(model: Transformer, task: Task, seed: int, steps: int, coupling_rate: float, batch: int) -> Row:
    """Train until the model recalls, and measure it on the test set; couplings have their rate, and no decay."""
    couplings = coupling_parameters(model)
    others = [parameter for parameter in model.parameters() if parameter not in {*couplings}]
    own: Row = {"params": couplings, "lr": coupling_rate, "weight_decay": 0.0}
    optimiser = torch.optim.AdamW([own, {"params": others}], 2e-3)
    generator = torch.Generator().manual_seed(seed)
    began, reached, step = time.process_time(), None, 0
    while step < steps:
        chosen = torch.randint(len(task.train), (batch,), generator=generator)
        inputs, targets = task.train.batch(chosen)
        optimiser.zero_grad()
        token_loss(model(inputs), targets).backward()
        optimiser.step()
        step += 1
        if step % EVERY == 0:
            accuracy = evaluate(model, task.validation)[1]
            reached = step if reached is None and accuracy >= 0.99 else reached
            if accuracy >= SOLVED:
                break
    cost, size = 1e3 * (time.process_time() - began) / step, sum(p.numel() for p in model.parameters())
    row = {"accuracy": recalled(model, task), "steps to 99 %": reached}
    return row | {"CPU ms a step": cost, "parameters": size}


def recalled(model: Transformer, task: Task) -> float:
    """Accuracy on the test set."""
    assert task.test is not None
    return evaluate(model, task.test)[1]


def one(job: Row, seed: int, options: Namespace) -> Row:
    """One training."""
    task = RecallOptions(**job["task"]).build()
    model = built(job["model"], task, job.get("width", 64), seed)
    try:
        row = train(model, task, seed, options.steps, job.get("coupling_rate", 2e-2), job.get("batch", BATCH))
        for other, sampler in job.get("then", {}).items():
            use(model, sampler)
            row[other] = recalled(model, task)
    except ArgumentError as error:  # fields have grown beyond what the backend can program
        return {"refused": str(error)}
    return row


def kept_row(table: str, name: str, seed: int, options: Namespace) -> tuple[tuple[str, int], Row]:
    """A training, from its file if that is there, behind its name and seed."""
    path = options.folder / table / f"{name} {seed}.json".replace("/", "_")
    return (name, seed), once(path, partial(one, TABLES[table][name], seed, options))


def summary(name: str, rows: Sequence[Row]) -> Row:
    """Means over seeds; steps are the median of the seeds that reached 99 %."""
    means: Row = {"": name, "seeds": len(rows), "refused": sum("refused" in row for row in rows)}
    rows = [row for row in rows if "refused" not in row]
    if not rows:
        return means
    means["solved"] = sum(row["accuracy"] >= 0.99 for row in rows)
    for key in rows[0]:
        values = [row[key] for row in rows if row[key] is not None]
        means[key] = (statistics.median if "steps" in key else statistics.fmean)(values) if values else None
    accuracies = [row["accuracy"] for row in rows]
    means["σ"] = statistics.stdev(accuracies) if len(rows) > 1 else None
    return means


def main() -> None:
    """Train what is not there, and print the tables."""
    command = parser(__doc__, study=True)
    every: Row = {"default": [*TABLES], "choices": [*TABLES], "help": "; ".join(TABLES), "metavar": "NAME"}
    command.add_argument("--only", nargs="+", **every)
    command.add_argument("--steps", type=int, default=600, help="most steps of a training")
    options = command.parse_args()
    same_settings(options.folder, {"steps": options.steps})
    torch.set_num_threads(1)
    seeds = range(options.seeds)
    for table in options.only:
        jobs = [(table, name, seed, options) for seed in seeds for name in TABLES[table]]
        rows = dict(track(calls(kept_row, jobs, options.workers), table, len(jobs)))
        shown = [summary(name, [rows[name, seed] for seed in seeds]) for name in TABLES[table]]
        report(table, shown, as_json=options.json)


if __name__ == "__main__":
    run_script(main)
