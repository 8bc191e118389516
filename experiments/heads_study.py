"""Games on the heads of a decoder trained for the purpose: dividends, calibration (GAC), surrogate fits.

    python -m experiments.heads_study FOLDER [--seeds 3] [--workers 2] [--steps 3000] [--samples 128] [--json]

Goes on where it stopped.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from math import comb, prod
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from diabat.attention.games.tables import all_coalitions
from diabat.heads import (
    Calibration,
    Dividends,
    HeadCoalitions,
    common,
    disable_gac,
    enable_gac,
    fit_surrogate,
    max_dividend,
)
from experiments.common import Row, calls, keep, kept, parser, print_tables, same_settings
from experiments.heads.summaries import size_sums
from experiments.heads_tables import TARGETS, tables
from experiments.heads_tasks import (
    HEADS,
    LAYERS,
    LENGTHS,
    TASKS,
    Questions,
    decoder,
    questions,
    train,
)

ALPHAS, BETAS = (0.05, 0.1, 0.2, 0.3), (0.1, 0.3, 0.5, 0.7, 0.9)
EVALUATION, DIVIDENDS, VALIDATION, TEST = range(1, 5)
"""Purposes of questions; those of different purposes are drawn independently."""
Groups = Mapping[int, tuple[int, ...]]
"""The players of some layers that are not calibrated; players are heads."""


@dataclass(frozen=True)
class Sizes:
    """Steps of the training, and questions: of a game on a layer, and of each length."""

    steps: int = 3000
    samples: int = 128
    validation: int = 128
    test: int = 384
    evaluation: int = 1000
    groups: int = 20  # random ones


@dataclass(frozen=True)
class Place:
    """A task and a seed in the folder of the study."""

    folder: Path
    seed: int
    task: str

    def path(self, stage: str) -> Path:
        """File of the results of a stage."""
        return self.folder / f"seed-{self.seed}" / f"{stage}-{self.task}.json"

    def read(self, stage: str) -> Any:
        """Results of a stage."""
        return kept(self.path(stage))

    def model(self) -> Any:
        """The trained decoder."""
        model = decoder()
        model.load_state_dict(load_file(weights(self.folder, self.seed)))
        return model.eval()

    def questions(self, reach: str, count: int, purpose: int) -> list[Questions]:
        """At least ``count`` questions for a purpose."""
        return questions(self.task, reach, count, 1_000_000 * purpose + self.seed)

    def samples(self, count: int) -> list[dict[str, Any]]:
        """``count`` questions of all known lengths for a game, in a random order."""
        found = [sample for part in self.questions("known", count, DIVIDENDS) for sample in part.samples()]
        order = torch.randperm(len(found), generator=torch.Generator().manual_seed(self.seed))
        return [found[int(index)] for index in order[:count]]

    def salient(self, target: str) -> dict[int, tuple[int, ...]]:
        """Players of the largest dividend, in one layer or in all."""
        found = self.read("dividends")
        return {
            layer: tuple(found[layer]["players"]) for layer in range(LAYERS) if target in ("all", str(layer))
        }

    def chosen(self, reach: str) -> Row:
        """Target, α and β of the highest accuracy with the salient group on validation questions; ties go by v."""
        rows = [row for row in self.read("grid") if (row["reach"], row["kind"]) == (reach, "salient")]
        return max(rows, key=lambda row: (row["accuracy"], row["v"]))


def weights(folder: Path, seed: int) -> Path:
    """File of a decoder."""
    return folder / f"seed-{seed}" / "decoder.safetensors"


@torch.no_grad()
def answers(
    model: Any, parts: list[Questions], calibration: Calibration | None = None
) -> tuple[Tensor, Tensor]:
    """Whether each answer is right, bool [N], and the log-odds v = z_y - logsumexp(others), float64 [N]."""
    if calibration is not None:
        enable_gac(model, calibration)
    right, odds = [], []
    for part in parts:
        found = model(part.tokens, logits_to_keep=1, use_cache=False)
        logits, label = found.logits[:, -1].gather(1, part.choices).double(), part.labels[:, None]
        others = logits.scatter(1, label, -torch.inf).logsumexp(-1)
        right.append(logits.argmax(-1) == part.labels)
        odds.append(logits.gather(1, label)[:, 0] - others)
    disable_gac(model)
    return torch.cat(right), torch.cat(odds)


def compared(before: tuple[Tensor, Tensor], after: tuple[Tensor, Tensor]) -> dict[str, float]:
    """Means after, and the mean of the paired differences with its standard error; accuracies in percent."""
    row: dict[str, float] = {}
    for name, scale, old, new in zip(("accuracy", "v"), (100.0, 1.0), before, after, strict=True):
        change = scale * (new.double() - old.double())
        row |= {
            name: scale * float(new.double().mean()), f"{name} change": float(change.mean()),
            f"{name} error": float(change.std()) / len(change) ** 0.5,
        }  # fmt: skip
    return row


def random_groups(
    salient: Groups, count: int, seed: int, heads: int = HEADS
) -> list[dict[int, tuple[int, ...]]]:
    """Different groups of as many players in each layer, none of them the salient one; fewer if there are no more."""
    most = prod(comb(heads, len(players)) for players in salient.values()) - 1
    generator = torch.Generator().manual_seed(seed)
    found: list[dict[int, tuple[int, ...]]] = []
    while len(found) < min(count, most):
        drawn = {
            layer: tuple(sorted(torch.randperm(heads, generator=generator)[: len(players)].tolist()))
            for layer, players in salient.items()
        }
        if drawn not in found and any(set(drawn[layer]) != set(salient[layer]) for layer in drawn):
            found.append(drawn)
    return found


# Stages: each computes its results from those of the stages before it.


def accuracies(place: Place, sizes: Sizes) -> Row:
    """Accuracy and mean v on fresh questions."""
    found: Row = {}
    for reach in LENGTHS:
        right, odds = answers(place.model(), place.questions(reach, sizes.evaluation, EVALUATION))
        found |= {f"accuracy, {reach}": 100 * float(right.double().mean()), f"v, {reach}": float(odds.mean())}
    return found


def dividends(place: Place, sizes: Sizes) -> list[Row]:
    """Games on the heads of each layer: largest dividend, its noise, sums by order, R² of fits to half of the game."""
    samples, rows = place.samples(sizes.samples), []
    for layer in range(LAYERS):
        tables = HeadCoalitions(place.model(), samples, layer=layer, batch_size=64).sample_table()
        found = Dividends.of(tables, HEADS)
        top, mean = found.largest(), tables.mean(0)
        halves = torch.randperm(len(mean), generator=torch.Generator().manual_seed(place.seed)).chunk(2)
        rows.append({
            "layer": layer, "players": list(max_dividend(found)), "w": float(found.value[top]),
            "error": float(found.standard_error[top]), "frequency": float(found.selection_frequency()[top]),
            "intersection": list(common(found, share=1)), "sums": size_sums(found)[0].tolist(),
            "v(N) - v(∅)": float(mean[-1] - mean[0]), **explained(all_coalitions(HEADS), mean, *halves),
        })  # fmt: skip
    return rows


def explained(coalitions: Tensor, values: Tensor, fitted: Tensor, held: Tensor) -> Row:
    """R² on some of the coalitions of fits to others."""
    return {
        f"R² {name}": fit_surrogate(coalitions[fitted], values[fitted], pairs=pairs).explained(
            coalitions[held], values[held]
        )
        for name, pairs in (("linear", False), ("pairs", True))
    }


def grid(place: Place, sizes: Sizes) -> list[Row]:
    """All α and β on validation questions, with the salient group and with none."""
    model, rows = place.model(), []
    for target in TARGETS:
        salient = place.salient(target)
        for reach in LENGTHS:
            asked = place.questions(reach, sizes.validation, VALIDATION)
            before = answers(model, asked)
            rows += [
                {"target": target, "reach": reach, "alpha": alpha, "beta": beta, "kind": kind}
                | compared(before, answers(model, asked, Calibration(groups, alpha, beta)))
                for alpha in ALPHAS
                for beta in BETAS
                for kind, groups in (("salient", salient), ("no group", dict.fromkeys(salient, ())))
            ]
    return rows


def test(place: Place, sizes: Sizes) -> list[Row]:
    """Fresh questions: α = β = 0.1 for every target, and the best of the grid for the target it belongs to."""
    model, rows = place.model(), []
    for target in TARGETS:
        salient = place.salient(target)
        kinds: list[tuple[str, Groups]] = [("salient", salient), ("no group", dict.fromkeys(salient, ()))]
        kinds += [("random", group) for group in random_groups(salient, sizes.groups, place.seed)]
        for reach in LENGTHS:
            asked = place.questions(reach, sizes.test, TEST)
            before, best = answers(model, asked), place.chosen(reach)
            settings = [("paper", Row(alpha=0.1, beta=0.1))]
            if best["target"] == target:
                settings += [("chosen", Row(alpha=best["alpha"], beta=best["beta"]))]
            rows += [
                {"target": target, "reach": reach, "setting": name, "kind": kind}
                | compared(before, answers(model, asked, Calibration(groups, **options)))
                for name, options in settings
                for kind, groups in kinds
            ]
    return rows


STAGES: dict[str, Callable[[Place, Sizes], Any]] = {
    "accuracies": accuracies, "dividends": dividends, "grid": grid, "test": test,
}  # fmt: skip


def train_decoder(folder: Path, seed: int, steps: int) -> str:
    """Train a decoder and write its weights."""
    path = weights(folder, seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(train(seed, steps).state_dict(), path.with_suffix(".part"))
    path.with_suffix(".part").replace(path)
    return f"decoder, seed {seed}"


def compute(stage: str, place: Place, sizes: Sizes) -> str:
    """Compute a stage and write its results."""
    keep(place.path(stage), STAGES[stage](place, sizes))
    return f"{stage}, {place.task}, seed {place.seed}"


def run(folder: Path, sizes: Sizes, seeds: int, workers: int) -> list[Place]:
    """Compute what is missing in the folder."""
    torch.set_num_threads(1)
    same_settings(folder, asdict(sizes))
    places = [Place(folder, seed, task) for task in TASKS for seed in range(seeds)]
    untrained = [(folder, seed, sizes.steps) for seed in range(seeds) if not weights(folder, seed).exists()]
    for done in calls(train_decoder, untrained, workers):
        print(done, file=sys.stderr)
    for stage in STAGES:
        missing = [(stage, place, sizes) for place in places if not place.path(stage).exists()]
        for done in calls(compute, missing, workers):
            print(done, file=sys.stderr)
    return places


def main() -> None:
    """Compute what is missing, and print the tables."""
    command = parser(__doc__, study=True)
    command.add_argument("--steps", type=int, default=Sizes.steps, help="of each training")
    command.add_argument(
        "--samples", type=int, default=Sizes.samples, help="of each game on the heads of a layer"
    )
    options = command.parse_args()
    sizes = Sizes(steps=options.steps, samples=options.samples)
    places = run(options.folder, sizes, options.seeds, options.workers)
    print_tables(tables(places), as_json=options.json)


if __name__ == "__main__":
    main()
