"""One training step of the paper's Tiny Shakespeare model: softmax against Boltzmann attention of the same size.

python -m benchmarks.training_step [--json]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.measure import paired, report
from diabat.models import Transformer, TransformerOptions

VOCABULARY, BATCH = 61, 64


def training_step(mode: str, window: int, sampler: str = "exact") -> Callable[[], None]:
    """Return a callable that takes one AdamW step on random symbols."""
    torch.manual_seed(0)
    model = Transformer(TransformerOptions(mode=mode), VOCABULARY, VOCABULARY, window, sampler)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    symbols = torch.randint(VOCABULARY, (BATCH, window))
    targets = torch.randint(VOCABULARY, (BATCH, window))

    def step() -> None:
        loss = torch.nn.functional.cross_entropy(model(symbols).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def step_times() -> list[dict[str, Any]]:
    """Pairs of steps in turn, so that the ratio holds when the machine's speed drifts."""
    rows = []
    for window in (4, 8, 12, 16):
        for sampler in ("exact", "mean_field"):
            boltzmann, softmax, ratio = paired(
                training_step("h+J", window, sampler), training_step("softmax", window), rounds=15, inner=3
            )
            rows.append(
                {
                    "T": window, "sampler": sampler, "softmax step [ms]": softmax * 1e3,
                    "h+J step [ms]": boltzmann * 1e3, "ratio": ratio,
                }
            )  # fmt: skip
    return rows


def main() -> None:
    torch.set_num_threads(1)  # as the shipped configurations do
    report(f"Training step, batch {BATCH}, embedding 64, feed-forward 128", step_times())


if __name__ == "__main__":
    main()
