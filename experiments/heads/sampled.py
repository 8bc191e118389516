"""Sampled Shapley values of the heads of one layer against its full table, and the approximators of shapiq.

    python -m experiments.heads.sampled MODEL --questions ioi.jsonl --layer 23
    diabat heads attribute MODEL ioi.jsonl

Questions on indirect objects are written to the file, for the second command as well.  Errors are root mean squares
over heads and seeds, at equal numbers of evaluations: shapiq takes a coalition on all questions, diabat a draw on one.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from diabat.attention.games import shapley
from diabat.heads import HeadCoalitions
from diabat.heads.games.attribution import sampled_shapley
from diabat.huggingface.loading import load_decoder
from experiments.common import needed, parser, report

NAMES = ("Mary", "John", "Tom", "Anna", "Paul", "Kate", "James", "Sarah", "Mark", "Lisa")
TEXTS = (
    "When {0} and {1} went to the store, {2} gave a drink to",
    "After {0} and {1} had lunch at the cafe, {2} handed the keys to",
    "While {0} and {1} were working at the office, {2} sent a letter to",
    "Then {0} and {1} went to the garden, and {2} passed a ball to",
)
APPROXIMATORS = ("PermutationSamplingSV", "KernelSHAP", "SVARM", "StratifiedSamplingSV", "kADDSHAP")


def indirect_objects(count: int) -> list[dict[str, Any]]:
    """Questions with the right name first or second; in ``corrupted`` a third person is the giver."""
    asked = []
    for k in range(count):
        write, step = TEXTS[k % len(TEXTS)].format, 1 + k // len(NAMES)
        right, giver, other = (NAMES[(k + far) % len(NAMES)] for far in (0, step, 5))
        first = (right, giver) if k // len(TEXTS) % 2 else (giver, right)
        choices = {"choices": [f" {right}", f" {giver}"], "answer": 0}
        asked.append({"prompt": write(*first, giver), "corrupted": write(*first, other), **choices})
    return asked


def main(arguments: list[str] | None = None) -> None:
    """Write the questions, evaluate the table, and print the errors."""
    command = parser(__doc__)
    command.add_argument("model")
    command.add_argument("--questions", type=Path, required=True)
    command.add_argument("--layer", type=int, default=23)
    command.add_argument("--seeds", type=int, default=20)
    given, shapiq = command.parse_args(arguments), needed("shapiq", "bench")
    warnings.simplefilter("ignore")  # of shapiq, about few coalitions
    asked = indirect_objects(16)
    given.questions.write_text("".join(f"{json.dumps(question)}\n" for question in asked))
    model, tokenizer = load_decoder(given.model)
    game = HeadCoalitions(model, asked, layer=given.layer, heads_per_player=1, tokenizer=tokenizer)
    values, n = game.table().numpy(), game.num_players
    exact, bits, rows = shapley(game.table()).numpy(), 1 << np.arange(n), []
    for coalitions in (20, 40, 80, 160):
        found: dict[str, list[Any]] = {name: [] for name in ("diabat", *APPROXIMATORS)}
        for seed in range(given.seeds):
            draws = len(asked) * coalitions // (n + 1) // 2 * 2
            found["diabat"].append(sampled_shapley(game, draws, seed=seed).value.numpy() - exact)
            for name in APPROXIMATORS:
                approximator = getattr(shapiq.approximator, name)(n=n, random_state=seed)
                result = approximator.approximate(coalitions, lambda m: values[np.atleast_2d(m) @ bits])
                found[name].append([result[i,] - exact[i] for i in range(n)])
        errors = {name: float(np.square(difference).mean() ** 0.5) for name, difference in found.items()}
        rows.append({"coalitions": coalitions, **errors})
    title = f"v(∅) {values[0]:.2f}, v(N) {values[-1]:.2f}, errors of Shapley values {exact.round(2).tolist()}"
    report(title, rows, as_json=given.json)


if __name__ == "__main__":
    main()
