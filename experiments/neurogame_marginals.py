"""A trained NeuroGame classifier with marginals from every backend: errors against exact, and the accuracy.

    python -m experiments.neurogame_marginals RUN [--pairs 500] [--tokens 20] [--json]

RUN is the folder of a run with ``model.pooling=neurogame``.  Of its test set the first pairs of at most ``--tokens``
tokens are taken.  Every backend gets the same token states and the same coalitions, hence the same Ising models; only
the marginals differ.  Times include the pooling, the classifier and the explanation, not the encoder.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import diabat
from diabat.attention.neurogame import PAPER_MEAN_FIELD, NeuroGameAttention
from diabat.models import PairClassifier
from diabat.runs import load_run
from diabat.samplers import Sampler
from experiments.common import Row, parser, report

BACKENDS: dict[str, tuple[str, dict[str, Any]]] = {
    "exact": ("exact", {}),
    "mean_field, the paper's 25 iterations": ("mean_field", PAPER_MEAN_FIELD),
    "mean_field, 500 iterations": ("mean_field", {"damping": 0.7, "max_iterations": 500, "tolerance": 1e-6}),
    "tempering, 16 chains of 64 sweeps": ("tempering", {"num_replicas": 1}),
    "tempering, 8 replicas": ("tempering", {}),
    "dqa, boltzmann-8": ("dqa", {"schedule": "boltzmann-8", "precision": "single"}),
}
SEED, BATCH = 0, 32


@torch.no_grad()
def _states(model: PairClassifier, split: Any, chosen: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Token states, hidden positions and labels, batch by batch."""
    for places in chosen.split(BATCH):
        batch, labels = split.batch(places)
        yield model.encode(batch), model.mask(batch), labels


@torch.no_grad()
def _answers(
    model: PairClassifier, states: list[tuple[Tensor, Tensor, Tensor]], sampler: Sampler
) -> tuple[Tensor, Tensor, float]:
    """Marginals of all tokens and heads, whether each pair was classified rightly, and CPU ms per pair."""
    pooling = model.pooling
    assert isinstance(pooling, NeuroGameAttention)
    pooling.use_sampler(sampler)
    alphas, right = [], []
    start = time.process_time()
    for x, hidden, labels in states:
        pooled, told = pooling(x, hidden, need_explanation=True, seed=SEED)
        right.append(model.classifier(pooled).argmax(-1) == labels)
        alphas.append(told.alpha[(~hidden)[:, None].expand(told.alpha.shape)])
    cpu = time.process_time() - start
    correct = torch.cat(right)
    return torch.cat(alphas).double(), correct, 1e3 * cpu / len(correct)


def _row(name: str, alpha: Tensor, right: Tensor, cpu: float, reference: Tensor) -> Row:
    error = (alpha - reference).abs()
    return {
        "backend": name,
        "mean error": float(error.mean()),
        "99th percentile": float(error.quantile(0.99)) if error.numel() < 1 << 24 else float("nan"),
        "largest": float(error.max()),
        "accuracy": float(right.double().mean()),
        "CPU ms per pair": cpu,
    }


def main() -> None:
    """Print a row for every backend."""
    command = parser(__doc__)
    command.add_argument("run")
    command.add_argument("--pairs", type=int, default=500)
    command.add_argument("--tokens", type=int, default=20)
    options = command.parse_args()
    run = load_run(options.run)
    if not (isinstance(run.model, PairClassifier) and isinstance(run.model.pooling, NeuroGameAttention)):
        command.error(f"RUN: expected a run with NeuroGame pooling, got '{options.run}'.")
    split = run.task.validation if run.task.test is None else run.task.test
    chosen = (split.lengths <= options.tokens).nonzero()[: options.pairs, 0]
    if not len(chosen):
        command.error(f"--tokens: expected pairs of at most {options.tokens} tokens, got none.")
    states = list(_states(run.model, split, chosen[split.lengths[chosen].argsort(stable=True)]))
    rows, reference = list[Row](), None
    for name, (backend, chosen_options) in BACKENDS.items():
        alpha, right, cpu = _answers(run.model, states, diabat.sampler(backend, **chosen_options))
        reference = alpha if reference is None else reference
        rows.append(_row(name, alpha, right, cpu, reference))
    title = f"NeuroGame pooling, {len(chosen)} pairs of at most {options.tokens} tokens; errors against exact"
    report(title, rows, as_json=options.json, formats={"accuracy": ".4f"})


if __name__ == "__main__":
    main()
