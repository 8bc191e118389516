"""Calibrated attention (GAC) and ACT on a pretrained decoder: accuracy on sets of short questions.

    python -m experiments.heads.sets MODEL SETS
    python -m experiments.gac_study FOLDER MODEL SETS [--layers 5 11 17 23 29] [--json]

Salient groups, α, β, the layers and the heads of ACT are chosen on the validation questions of each set, and reported
on its test questions.  ACT (Yu et al. 2024, "Unveiling and Harnessing Hidden Attention Sinks") calibrates the heads
that answer no worse on validation questions when they alone are calibrated, at α = 5 / tokens and β = 0.4; here those
of the same layers, with averages over the rows that see a column.  Goes on where it stopped.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from diabat.attention.heads import Calibration
from diabat.huggingface.loading import load_decoder
from diabat.runs.heads.analysis import AnalysisOptions, analyse
from diabat.runs.heads.calibration import CalibrationOptions, salient_groups
from diabat.runs.heads.questions import read_questions
from experiments.common import Row, Titled, keep, kept, parser, print_tables, same_settings
from experiments.heads.sets import SETS, batches
from experiments.heads_study import answers, compared, random_groups
from experiments.heads_tasks import Questions

ALPHAS, BETAS, GROUPS = (0.1, 0.2, 0.3), (0.1, 0.5, 0.9), 3
Heads = Mapping[int, tuple[int, ...]]
"""Heads by layer; as a calibration those that are left alone."""


@dataclass
class Study:
    """The folder of the results, the model, the question sets, and the layers that are analysed."""

    folder: Path
    model: str
    sets: Path
    layers: tuple[int, ...]
    _asked: dict[tuple[str, str], list[Questions]] = field(default_factory=dict)

    @cached_property
    def decoder(self) -> tuple[Any, Any]:
        """The model and its tokenizer."""
        return load_decoder(self.model)

    def asked(self, name: str, part: str) -> list[Questions]:
        """Questions of a set by length."""
        if (name, part) not in self._asked:
            rows = [*read_questions(self.sets / f"{name}-{part}.jsonl", None, 0).values()]
            model, tokenizer = self.decoder
            self._asked[name, part] = batches(rows, tokenizer, model.config.vocab_size)
        return self._asked[name, part]

    def answers(self, name: str, part: str, *calibration: Any) -> tuple[Tensor, Tensor]:
        """Right or wrong, and log-odds."""
        return answers(self.decoder[0], self.asked(name, part), *calibration)

    def act(self, name: str, part: str, spared: Heads) -> tuple[Tensor, Tensor]:
        """The same with ACT, whose α depends on the length."""
        options = {"beta": 0.4, "rows": "prompt"}
        each = [
            answers(
                self.decoder[0], [asked], Calibration(spared, min(1.0, 5 / asked.tokens.shape[1]), **options)
            )
            for asked in self.asked(name, part)
        ]
        right, odds = zip(*each, strict=True)
        return torch.cat(right), torch.cat(odds)

    def path(self, stage: str, name: str) -> Path:
        """File of the results of a stage."""
        return self.folder / f"{stage}-{name}.json"

    def read(self, stage: str, name: str) -> Any:
        """Results of a stage."""
        return kept(self.path(stage, name))

    def group(self, name: str, target: str) -> Heads:
        """Salient players of a layer, or of all."""
        found = {row["layer"]: tuple(row["players"]) for row in self.read("games", name)}
        return found if target == "all" else {int(target): found[int(target)]}

    def heads(self, players: Heads) -> dict[int, tuple[int, ...]]:
        """Query heads of key/value groups."""
        config = self.decoder[0].config
        size = config.num_attention_heads // config.num_key_value_heads
        return {n: tuple(size * p + k for p in own for k in range(size)) for n, own in players.items()}


def games(study: Study, name: str) -> list[Row]:
    """Salient group of every layer, by the largest dividend on validation questions."""
    options = AnalysisOptions(layers=study.layers)
    file = study.sets / f"{name}-validation.jsonl"
    found = salient_groups(
        analyse(study.model, file, study.folder / f"games-{name}", options), CalibrationOptions()
    )
    return [
        {"layer": one.layers[0], "players": one.players, "w": one.dividend, "error": one.dividend_error,
         "frequency": one.selection_frequency}
        for one in found
    ]  # fmt: skip


def grid(study: Study, name: str) -> list[Row]:
    """All layers, α and β on validation questions, the salient group exempt."""
    before = study.answers(name, "validation")
    return [
        {"layer": target, "alpha": alpha, "beta": beta}
        | compared(before, study.answers(name, "validation", Calibration(salient, alpha, beta)))
        for target in (*map(str, study.layers), "all")
        for salient in [study.heads(study.group(name, target))]
        for alpha in ALPHAS
        for beta in BETAS
    ]


def act(study: Study, name: str) -> Heads:
    """Heads that ACT leaves alone: those whose calibration loses accuracy, or else log-odds, on validation."""
    before, every = study.answers(name, "validation"), range(study.decoder[0].config.num_attention_heads)
    spared: dict[int, tuple[int, ...]] = {}
    for layer in study.layers:
        for head in every:
            row = compared(
                before, study.act(name, "validation", {layer: tuple(k for k in every if k != head)})
            )
            if (row["accuracy change"], row["v change"]) < (0, 0):
                spared[layer] = (*spared.get(layer, ()), head)
    return {layer: spared.get(layer, ()) for layer in study.layers}


def test(study: Study, name: str) -> list[Row]:
    """Test questions: α = β = 0.1 in all layers, the choice of the validation questions, and ACT."""
    before = study.answers(name, "test")
    best = max(study.read("grid", name), key=lambda row: (row["accuracy"], row["v"]))
    rows = [{"setting": "off", "kind": "off"} | compared(before, before)]
    for setting, target, alpha, beta in (
        ("paper", "all", 0.1, 0.1), ("chosen", best["layer"], best["alpha"], best["beta"])
    ):  # fmt: skip
        group = study.group(name, target)
        players = study.decoder[0].config.num_key_value_heads
        kinds = [("salient", group), ("all heads", dict.fromkeys(group, ()))]
        kinds += [("random", drawn) for drawn in random_groups(group, GROUPS, 0, players)]
        for kind, spared in kinds:
            after = study.answers(name, "test", Calibration(study.heads(spared), alpha, beta))
            rows.append({"setting": setting, "kind": kind} | compared(before, after))
    spared = {int(layer): tuple(heads) for layer, heads in study.read("act", name).items()}
    return [*rows, {"setting": "act", "kind": "act"} | compared(before, study.act(name, "test", spared))]


STAGES: dict[str, Callable[[Study, str], Any]] = {"games": games, "grid": grid, "act": act, "test": test}


def tables(study: Study) -> Titled:
    """Salient groups, what validation chose, and accuracy and log-odds on the test questions."""
    for name in SETS:
        for row in study.read("games", name):
            yield "Salient groups", {"set": name, **row}
    for name in SETS:
        best = max(study.read("grid", name), key=lambda row: (row["accuracy"], row["v"]))
        exempt = sum(len(heads) for heads in study.read("act", name).values())
        yield "Chosen on validation questions", {"set": name, **best, "heads not calibrated by ACT": exempt}
    for what in ("accuracy", "v"):
        for name in SETS:
            found, row = study.read("test", name), Row(set=name)
            for setting, kind in dict.fromkeys((one["setting"], one["kind"]) for one in found):
                own = [one for one in found if (one["setting"], one["kind"]) == (setting, kind)]
                change, error = (
                    fmean(one[f"{what} {column}"] for one in own) for column in ("change", "error")
                )
                row[kind if setting == kind else f"{setting}, {kind}"] = (
                    f"{own[0][what]:.2f}" if kind == "off" else f"{change:+.2f} ± {error:.2f}"
                )
            yield f"{what} on test questions, and changes ± standard error of the paired difference", row


def run(study: Study) -> None:
    """Compute what is missing in the folder."""
    torch.set_num_threads(1)
    same_settings(study.folder, {"layers": list(study.layers)})
    for stage, compute in STAGES.items():
        for name in SETS:
            if not study.path(stage, name).exists():
                keep(study.path(stage, name), compute(study, name))
                print(f"{stage}, {name}", file=sys.stderr)


def main() -> None:
    """Compute what is missing, and print the tables."""
    command = parser(__doc__)
    command.add_argument("folder", type=Path, help="of the results; finished ones are kept")
    command.add_argument("model")
    command.add_argument("sets", type=Path, help="folder of experiments.heads.sets")
    command.add_argument("--layers", type=int, nargs="+", default=[5, 11, 17, 23, 29])
    options = command.parse_args()
    study = Study(options.folder, options.model, options.sets, tuple(options.layers))
    run(study)
    print_tables(tables(study), as_json=options.json)


if __name__ == "__main__":
    main()
