"""Calibrated attention (GAC) and ACT on a pretrained decoder: accuracy on sets of short questions.

    python -m experiments.heads.sets MODEL SETS
    python -m experiments.gac_study FOLDER MODEL SETS [--layers 5 11 17 23 29] [--json]

Salient groups, α, β, the layers and the heads of ACT are chosen on the validation questions of each set, and reported
on its test questions.  ACT (Yu et al. 2024, "Unveiling and Harnessing Hidden Attention Sinks") calibrates, at
α = 5 / tokens and β = 0.4, the heads that lose nothing on validation questions when they alone are calibrated; here
heads of the same layers, with averages over the rows that see a column.  Goes on where it stopped.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import product
from math import comb, prod
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from diabat.heads import Calibration
from diabat.heads.commands.analysis import AnalysisOptions, analyse
from diabat.heads.commands.calibration import CalibrationOptions, salient_groups
from diabat.heads.games.questions import read_questions
from diabat.huggingface.loading import load_decoder
from diabat.plots import Panel, lines
from experiments.common import Row, Titled, keep, kept, parser, print_tables, run_script, same_settings
from experiments.heads.sets import SETS, Questions, answers, batches

ALPHAS, BETAS, GROUPS = (0.1, 0.2, 0.3), (0.1, 0.5, 0.9), 3
Groups = Mapping[int, tuple[int, ...]]
"""The players or heads of some layers that are not calibrated."""


@dataclass
class Study:
    """The folder of the results, the model, the folder of the question sets, and the layers that are analysed."""

    folder: Path
    model: str
    sets: Path
    layers: tuple[int, ...]

    @cached_property
    def loaded(self) -> tuple[Any, dict[tuple[str, str], list[Questions]]]:
        """The model, and questions by set and part, each by length."""
        model, tokenizer = load_decoder(self.model)
        parts = product(SETS, ("validation", "test"))
        asked = {}
        for n, part in parts:
            rows = [*read_questions(self.sets / f"{n}-{part}.jsonl").values()]
            asked[n, part] = batches(rows, tokenizer, model.config.vocab_size)
        return model, asked

    def answers(self, name: str, part: str, spared: Any = None, *options: float) -> tuple[Tensor, Tensor]:
        """Right or wrong, and log-odds; all heads but ``spared`` are calibrated with α and β, or as by ACT."""
        (model, asked), parts = self.loaded, []
        for one in asked[name, part]:
            act = (min(1.0, 5 / one.tokens.shape[1]), 0.4, "prompt")
            calibration = None if spared is None else Calibration(spared, *(options or act))
            parts.append(answers(model, [one], calibration))
        right, odds = zip(*parts, strict=True)
        return torch.cat(right), torch.cat(odds)

    def path(self, stage: str, name: str) -> Path:
        """File of the results of a stage."""
        return self.folder / f"{stage}-{name}.json"

    def group(self, name: str, target: str) -> Groups:
        """Salient players of a layer, or of all."""
        players = {row["layers"][0]: tuple(row["players"]) for row in kept(self.path("games", name))}
        return players if target == "all" else {int(target): players[int(target)]}

    def chosen(self, name: str) -> Row:
        """Layer, α and β of the highest accuracy on validation questions; ties go by v."""
        return max(kept(self.path("grid", name)), key=lambda row: (row["accuracy"], row["v"]))

    def heads(self, players: Groups) -> Groups:
        """Query heads of key/value groups."""
        config = self.loaded[0].config
        size = config.num_attention_heads // config.num_key_value_heads
        return {n: tuple(size * p + k for p in own for k in range(size)) for n, own in players.items()}


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


def random_groups(salient: Groups, count: int, seed: int, heads: int) -> list[dict[int, tuple[int, ...]]]:
    """Different groups of as many players in each layer, none of them the salient one; fewer if there are no more."""
    most = prod(comb(heads, len(players)) for players in salient.values()) - 1
    generator = torch.Generator().manual_seed(seed)
    groups: list[dict[int, tuple[int, ...]]] = []
    while len(groups) < min(count, most):
        drawn = {
            layer: tuple(sorted(torch.randperm(heads, generator=generator)[: len(players)].tolist()))
            for layer, players in salient.items()
        }
        if drawn not in groups and any(set(drawn[layer]) != set(salient[layer]) for layer in drawn):
            groups.append(drawn)
    return groups


def games(study: Study, name: str) -> list[Row]:
    """Salient group of every layer: the largest dividend on validation questions."""
    file, folder = study.sets / f"{name}-validation.jsonl", study.folder / f"games-{name}"
    analysis = analyse(study.model, file, folder, AnalysisOptions(layers=study.layers))
    return [asdict(group) for group in salient_groups(analysis, CalibrationOptions())]


def grid(study: Study, name: str) -> list[Row]:
    """All layers, α and β on validation questions, the salient group left alone."""
    before, rows = study.answers(name, "validation"), []
    for target, alpha, beta in product((*map(str, study.layers), "all"), ALPHAS, BETAS):
        spared = study.heads(study.group(name, target))
        after = study.answers(name, "validation", spared, alpha, beta)
        rows.append({"layer": target, "alpha": alpha, "beta": beta} | compared(before, after))
    return rows


def act(study: Study, name: str) -> dict[int, list[int]]:
    """Heads that ACT leaves alone: those that lose accuracy, or at equal accuracy log-odds, on validation questions."""
    before, heads = study.answers(name, "validation"), range(study.loaded[0].config.num_attention_heads)
    spared: dict[int, list[int]] = {layer: [] for layer in study.layers}
    for layer, head in product(study.layers, heads):
        others = {layer: tuple(k for k in heads if k != head)}
        row = compared(before, study.answers(name, "validation", others))
        if (row["accuracy change"], row["v change"]) < (0, 0):
            spared[layer].append(head)
    return spared


def test(study: Study, name: str) -> list[Row]:
    """Test questions: α = β = 0.1 in all layers, the choice of the validation questions, and ACT."""
    before, best = study.answers(name, "test"), study.chosen(name)
    rows, players = [{"arm": "off"} | compared(before, before)], study.loaded[0].config.num_key_value_heads
    for setting, target, *options in (("0.1", "all", 0.1, 0.1), ("chosen", *list(best.values())[:3])):
        group = study.group(name, target)
        arms = [("salient", group), ("all heads", dict.fromkeys(group, ()))]
        for arm, spared in arms + [("random", one) for one in random_groups(group, GROUPS, 0, players)]:
            after = study.answers(name, "test", study.heads(spared), *options)
            rows.append({"arm": f"{arm}, {setting}"} | compared(before, after))
    spared = {int(layer): tuple(heads) for layer, heads in kept(study.path("act", name)).items()}
    return [*rows, {"arm": "ACT"} | compared(before, study.answers(name, "test", spared))]


STAGES: dict[str, Callable[[Study, str], Any]] = {"games": games, "grid": grid, "act": act, "test": test}


def run(study: Study) -> None:
    """Compute what is missing in the folder."""
    torch.set_num_threads(1)
    settings = {"model": study.model, "sets": str(study.sets), "layers": list(study.layers)}
    same_settings(study.folder, settings)
    for stage, name in product(STAGES, SETS):
        if not study.path(stage, name).exists():
            keep(study.path(stage, name), STAGES[stage](study, name))
            print(f"{stage}, {name}", file=sys.stderr)


def tables(study: Study) -> Titled:
    """Salient groups, what validation chose, and accuracy and log-odds on the test questions."""
    for name in SETS:
        for row in kept(study.path("games", name)):
            shown = ("layers", "players", "dividend", "dividend_error", "selection_frequency")
            yield "Salient groups", {"set": name} | {column: row[column] for column in shown}
        spared = sum(map(len, kept(study.path("act", name)).values()))
        yield "Chosen on validation questions", {"set": name, **study.chosen(name), "spared by ACT": spared}
        tested = kept(study.path("test", name))
        for what in ("accuracy", "v"):
            row = Row(set=name, off=tested[0][what])
            for arm in dict.fromkeys(one["arm"] for one in tested[1:]):
                own = [one for one in tested if one["arm"] == arm]
                means = [fmean(one[f"{what} {column}"] for one in own) for column in ("change", "error")]
                row[arm] = "{:+.2f} ± {:.2f}".format(*means)
            yield f"Test questions: {what}, and its changes ± standard error of the paired difference", row


def draw(study: Study, path: Path) -> Path:
    """Changes of accuracy on the test questions, a panel per set."""
    panels = []
    for name in SETS:
        tested = kept(study.path("test", name))[1:]
        arms = dict.fromkeys(row["arm"] for row in tested)
        bars = {arm: fmean(row["accuracy change"] for row in tested if row["arm"] == arm) for arm in arms}
        label = "change of accuracy, points" if name == SETS[0] else ""
        panels.append(Panel(bars=bars, settings={"title": name, "ylabel": label, "ylim": (-72, 14)}))
    return lines([panels], path, size=(3.0, 3.2))


def main() -> None:
    """Compute what is missing, print the tables, draw the changes."""
    command = parser(__doc__)
    command.add_argument("folder", type=Path, help="of the results; finished ones are kept")
    command.add_argument("model")
    command.add_argument("sets", type=Path, help="folder of experiments.heads.sets")
    command.add_argument("--layers", type=int, nargs="+", default=[5, 11, 17, 23, 29])
    command.add_argument("--figure", type=Path)
    options = command.parse_args()
    study = Study(options.folder, options.model, options.sets, tuple(options.layers))
    run(study)
    print_tables(tables(study), as_json=options.json)
    if options.figure is not None:
        print(draw(study, options.figure))


if __name__ == "__main__":
    run_script(main)
