"""The pieces of the study: each is computed from the files of those before it, and is a JSON file of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from benchmarks.heads_study.calibrating import Asked, Groups, compared, random_groups
from benchmarks.heads_study.decoder import HEADS, LAYERS, LENGTHS, TASKS, decoder, questions, train
from diabat.attention.games.draws import sized_coalitions
from diabat.attention.games.tables import all_coalitions
from diabat.attention.heads import Calibration, Dividends, HeadCoalitions, common, fit_surrogate, max_dividend
from diabat.files import read_file, replace_file, seal, unseal
from diabat.huggingface import disable_gac, enable_gac

ALPHAS, BETAS = (0.05, 0.1, 0.2, 0.3), (0.1, 0.3, 0.5, 0.7, 0.9)
PAPER: dict[str, Any] = {"alpha": 0.1, "beta": 0.1}
EVERY = "all"
TARGETS = (*map(str, range(LAYERS)), EVERY)
REACHES = tuple(LENGTHS)
PAIR = (2, 3)
_FITTED, _HELD, _MOST_BYTES = 550, 1000, 1 << 26
# Kinds of questions, so that no two purposes share any.
_EVALUATION, _DIVIDENDS, _VALIDATION, _TEST = range(1, 5)
Advance = Callable[[int], None]


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Attributes:
        steps: Steps of the training.
        samples: Questions of a game on the heads of one layer.
        pair_samples: Questions of a game on two layers, and of one before and after calibration.
        validation: Questions of each length on which α, β and the layer are chosen, at least.
        test: Fresh questions of each length on which the choice is measured, at least.
        groups: Random groups.
        evaluation: Questions of each length that say how good a decoder is, at least.
    """

    steps: int = 3000
    samples: int = 128
    pair_samples: int = 32
    validation: int = 128
    test: int = 384
    groups: int = 20
    evaluation: int = 1000


@dataclass(frozen=True)
class Piece:
    """One file of the study: its stage, and the seed, the task and the layer (or "all") that it belongs to."""

    stage: str
    seed: int
    task: str = ""
    target: str = ""

    def path(self, folder: Path) -> Path:
        """Its file in the folder of the study."""
        parts = [part for part in (self.stage, self.task, self.target) if part]
        return folder / f"seed-{self.seed}" / f"{'-'.join(parts)}.json"

    def read(self, folder: Path) -> dict[str, Any]:
        """Content of its file.

        Raises:
            OSError: There is none.
            ValueError: It was changed.
        """
        return unseal(read_file(self.path(folder), _MOST_BYTES))


def pieces(stage: str, seeds: int) -> list[Piece]:
    """All pieces of a stage."""
    by_seed = [(seed, task) for seed in range(seeds) for task in TASKS]
    if stage == "decoder":
        return [Piece(stage, seed) for seed in range(seeds)]
    if stage in ("pair", "sums"):
        return [Piece(stage, seed, task) for seed, task in by_seed]
    targets = TARGETS[:-1] if stage == "dividends" else TARGETS
    return [Piece(stage, seed, task, target) for seed, task in by_seed for target in targets]


def compute(piece: Piece, folder: Path, sizes: Sizes, advance: Advance) -> None:
    """Compute a piece and write its file."""
    torch.set_num_threads(1)
    piece.path(folder).parent.mkdir(parents=True, exist_ok=True)
    found = STAGES[piece.stage][0](piece, folder, sizes, advance)
    replace_file(piece.path(folder), seal(found))


def _decoder(piece: Piece, folder: Path, sizes: Sizes, advance: Advance) -> dict[str, Any]:
    """Train, and measure accuracies on fresh questions."""
    model = train(piece.seed, sizes.steps, advance)
    replace_file(_weights(folder, piece.seed), save(dict(model.state_dict())))
    return accuracies(model, piece.seed, sizes)


def accuracies(model: Any, seed: int, sizes: Sizes) -> dict[str, Any]:
    """Accuracy and mean v on questions of every task and all lengths."""
    found: dict[str, dict[str, float]] = {"accuracy": {}, "v": {}}
    for task in TASKS:
        for reach in REACHES:
            asked = questions(task, reach, sizes.evaluation, _seed(_EVALUATION, seed))
            right, odds = Asked(model, asked).answers()
            found["accuracy"][f"{task}, {reach}"] = 100 * float(right.double().mean())
            found["v"][f"{task}, {reach}"] = float(odds.mean())
    return found


def _dividends(piece: Piece, folder: Path, sizes: Sizes, advance: Advance) -> dict[str, Any]:
    """The game on the heads of one layer: largest dividend, its noise, sums by order, R² of fits to half of it."""
    samples = _samples(piece, sizes.samples)
    game = HeadCoalitions(
        _model(folder, piece.seed), samples, layer=int(piece.target), batch_size=64, progress=_each(advance)
    )
    tables = game.sample_table()
    found = Dividends.of_tables(tables)
    top, mean = found.largest(), tables.mean(0)
    sums, errors = found.order_sums()
    two = found.largest(least_size=2)
    return {
        "players": list(max_dividend(found)),
        "w": float(found.value[top]),
        "error": float(found.standard_error[top]),
        "frequency": float(found.argmax_frequency()[top]),
        "players of two or more": list(max_dividend(found, least_size=2)),
        "w of two or more": float(found.value[two]),
        "frequency of two or more": float(found.argmax_frequency(least_size=2)[two]),
        "intersection": list(common(found, share=1)),
        "common to half": list(common(found, share=0.5)),
        "sums": sums.tolist(),
        "errors of sums": errors.tolist(),
        "v full": float(mean[-1]),
        "v empty": float(mean[0]),
        **_explained(all_coalitions(HEADS), tables, piece.seed),
    }


def _explained(coalitions: Tensor, tables: Tensor, seed: int) -> dict[str, Any]:
    """R² on one half of the coalitions of fits to the other, for the mean over samples and for single samples."""
    order = torch.randperm(len(coalitions), generator=torch.Generator().manual_seed(seed))
    fitted, held = order.chunk(2)
    found: dict[str, Any] = {}
    for name, pairs in (("linear", False), ("pairs", True)):

        def explained(v: Tensor, pairs: bool = pairs) -> float:
            model = fit_surrogate(coalitions[fitted], v[fitted], pairs=pairs)
            return model.explained(coalitions[held], v[held])

        found[f"R² {name}, mean"] = explained(tables.mean(0))
        found[f"R² {name}, samples"] = [explained(v) for v in tables]
    return found


def _pair(piece: Piece, folder: Path, sizes: Sizes, advance: Advance) -> dict[str, Any]:
    """16 players of two layers: R² of fits to 550 coalitions on 1,000 others."""
    everyone = torch.ones(2 * HEADS, dtype=torch.bool)
    drawn = sized_coalitions(everyone, 2 * (_FITTED + _HELD), piece.seed, stratified=False)
    different = torch.unique(drawn, dim=0)
    mixed = torch.randperm(len(different), generator=torch.Generator().manual_seed(piece.seed))
    coalitions = different[mixed[: _FITTED + _HELD]]
    samples = _samples(piece, sizes.pair_samples)
    game = HeadCoalitions(
        _model(folder, piece.seed), samples, layer=list(PAIR), batch_size=64, progress=_each(advance)
    )
    values = game.value(coalitions)
    found = {}
    for name, pairs in (("linear", False), ("pairs", True)):
        model = fit_surrogate(coalitions[:_FITTED], values[:_FITTED], pairs=pairs)
        found[f"R² {name}"] = model.explained(coalitions[_FITTED:], values[_FITTED:])
    return found


def _grid(piece: Piece, folder: Path, sizes: Sizes, advance: Advance) -> dict[str, Any]:
    """All α and β on validation questions, with the salient group and with none."""
    model, salient = _model(folder, piece.seed), salient_groups(folder, piece)
    rows = []
    for reach in REACHES:
        asked = Asked(
            model,
            questions(piece.task, reach, sizes.validation, _seed(_VALIDATION, piece.seed)),
            min(salient),
        )
        before = asked.answers()
        for alpha in ALPHAS:
            for beta in BETAS:
                for kind, groups in (("salient", salient), ("no group", dict.fromkeys(salient, ()))):
                    after = asked.answers(Calibration(groups, alpha, beta))
                    row = {"reach": reach, "alpha": alpha, "beta": beta, "kind": kind}
                    rows.append(row | compared(before, after))
                    advance(1)
    return {"rows": rows}


def _test(piece: Piece, folder: Path, sizes: Sizes, advance: Advance) -> dict[str, Any]:
    """Fresh questions: α = β = 0.1 for every target, and the best of the grid for the target it belongs to."""
    model, salient = _model(folder, piece.seed), salient_groups(folder, piece)
    others = random_groups(salient, sizes.groups, piece.seed)
    none: Groups = dict.fromkeys(salient, ())
    rows = []
    for reach in REACHES:
        asked = Asked(model, questions(piece.task, reach, sizes.test, _seed(_TEST, piece.seed)), min(salient))
        before = asked.answers()
        best = chosen(folder, piece.seed, piece.task, reach)
        settings: list[tuple[str, dict[str, Any]]] = [
            ("paper", {**PAPER, "rows": "running"}),
            ("prompt", {**PAPER, "rows": "prompt"}),
        ]
        if best["target"] == piece.target:
            settings.append(("chosen", {"alpha": best["alpha"], "beta": best["beta"]}))
        for name, options in settings:
            kinds = [("salient", salient), ("no group", none)]
            kinds += [("random", group) for group in others if name != "prompt"]
            for kind, groups in kinds:
                after = asked.answers(Calibration(groups, **options))
                rows.append({"reach": reach, "setting": name, "kind": kind} | compared(before, after))
                advance(1)
        rows.append({"reach": reach, "setting": "off", "kind": "off"} | compared(before, before))
    return {"rows": rows}


def _sums(piece: Piece, folder: Path, sizes: Sizes, advance: Advance) -> dict[str, Any]:
    """Σ_S w(S) and v(N) of the layer with the largest dividend, before and after its calibration."""
    model = _model(folder, piece.seed)
    by_layer = [Piece("dividends", piece.seed, piece.task, target).read(folder) for target in TARGETS[:-1]]
    layer = max(range(LAYERS), key=lambda layer: by_layer[layer]["w"])
    parts = questions(piece.task, "known", sizes.pair_samples, _seed(_DIVIDENDS, piece.seed))
    samples = [sample for part in parts for sample in part.samples()]
    asked = Asked(model, parts)
    found: dict[str, Any] = {"layer": layer}
    for name in ("before", "after"):
        calibration = Calibration({layer: by_layer[layer]["players"]}, **PAPER) if name == "after" else None
        right, odds = asked.answers(calibration)
        if calibration is not None:
            enable_gac(model, calibration)
        game = HeadCoalitions(model, samples, layer=layer, batch_size=64, progress=_each(advance))
        table = game.table()
        found[name] = {
            "sum of w": float(Dividends.of_tables(table[None]).value.sum()),
            "v(∅)": float(table[0]),
            "v(N)": float(odds.mean()),
            "accuracy": 100 * float(right.double().mean()),
        }
    disable_gac(model)
    return found


def salient_groups(folder: Path, piece: Piece) -> dict[int, tuple[int, ...]]:
    """Players of the largest dividend, in the layer of a piece or in all layers."""
    layers = TARGETS[:-1] if piece.target == EVERY else (piece.target,)
    found = {
        int(layer): Piece("dividends", piece.seed, piece.task, layer).read(folder)["players"]
        for layer in layers
    }
    return {layer: tuple(players) for layer, players in found.items()}


def chosen(folder: Path, seed: int, task: str, reach: str) -> dict[str, Any]:
    """The target, α and β of the highest accuracy with the salient group on validation questions; ties go by v."""
    rows = [
        {"target": target, **row}
        for target in TARGETS
        for row in Piece("grid", seed, task, target).read(folder)["rows"]
        if row["reach"] == reach and row["kind"] == "salient"
    ]
    return max(rows, key=lambda row: (row["accuracy"], row["v"]))


def _seed(purpose: int, seed: int) -> int:
    return 1_000_000 * purpose + seed


def _weights(folder: Path, seed: int) -> Path:
    return folder / f"seed-{seed}" / "decoder.safetensors"


def _model(folder: Path, seed: int) -> Any:
    model = decoder()
    path = _weights(folder, seed)
    model.load_state_dict(load(read_file(path, _MOST_BYTES)))
    return model.eval()


def _samples(piece: Piece, count: int) -> list[dict[str, Any]]:
    """``count`` questions of all known lengths, in a random order."""
    asked = questions(piece.task, "known", count, _seed(_DIVIDENDS, piece.seed))
    samples = [sample for part in asked for sample in part.samples()]
    order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(piece.seed))
    return [samples[int(index)] for index in order[:count]]


def _each(advance: Advance) -> Callable[[int, int], None]:
    """A callback of a game that passes on what is new."""
    last = 0

    def update(done: int, total: int) -> None:
        nonlocal last
        advance(done - last if done > last else done)
        last = done

    return update


Compute = Callable[[Piece, Path, Sizes, Advance], dict[str, Any]]
STAGES: dict[str, tuple[Compute, Callable[[Sizes], int]]] = {
    "decoder": (_decoder, lambda sizes: sizes.steps),
    "dividends": (_dividends, lambda sizes: sizes.samples << HEADS),
    "pair": (_pair, lambda sizes: sizes.pair_samples * (_FITTED + _HELD)),
    "grid": (_grid, lambda sizes: 2 * len(REACHES) * len(ALPHAS) * len(BETAS)),
    "test": (_test, lambda sizes: len(REACHES) * (4 + sizes.groups)),
    "sums": (_sums, lambda sizes: 2 * sizes.pair_samples << HEADS),
}
"""What computes a piece of each stage, and about how many steps of progress that is."""
