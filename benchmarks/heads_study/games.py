"""Games on the heads of the decoder: dividends, fits of surrogates, and a game before and after calibration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.heads_study.asked import Asked
from benchmarks.heads_study.core import (
    DIVIDENDS,
    PAPER,
    TARGETS,
    Advance,
    Piece,
    Sizes,
    load_model,
    samples_of,
    seed_of,
)
from benchmarks.heads_study.decoder import HEADS, LAYERS, questions
from diabat.attention.games.draws import sized_coalitions
from diabat.attention.games.tables import all_coalitions
from diabat.attention.heads import Calibration, Dividends, HeadCoalitions, common, fit_surrogate, max_dividend
from diabat.huggingface import disable_gac, enable_gac

PAIR = (2, 3)
FITTED, HELD = 550, 1000


def dividends(piece: Piece, folder: Path, sizes: Sizes, advance: Advance) -> dict[str, Any]:
    """The game on the heads of one layer: largest dividend, its noise, sums by order, R² of fits to half of it."""
    samples = samples_of(piece, sizes.samples)
    game = HeadCoalitions(
        load_model(folder, piece.seed),
        samples,
        layer=int(piece.target),
        batch_size=64,
        progress=_each(advance),
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
        **explained(all_coalitions(HEADS), tables, piece.seed),
    }


def explained(coalitions: Tensor, tables: Tensor, seed: int) -> dict[str, Any]:
    """R² on one half of the coalitions of fits to the other, for the mean over samples and for single samples."""
    order = torch.randperm(len(coalitions), generator=torch.Generator().manual_seed(seed))
    fitted, held = order.chunk(2)
    found: dict[str, Any] = {}
    for name, pairs in (("linear", False), ("pairs", True)):

        def score(v: Tensor, pairs: bool = pairs) -> float:
            model = fit_surrogate(coalitions[fitted], v[fitted], pairs=pairs)
            return model.explained(coalitions[held], v[held])

        found[f"R² {name}, mean"] = score(tables.mean(0))
        found[f"R² {name}, samples"] = [score(v) for v in tables]
    return found


def pair(piece: Piece, folder: Path, sizes: Sizes, advance: Advance) -> dict[str, Any]:
    """16 players of two layers: R² of fits to 550 coalitions on 1,000 others."""
    everyone = torch.ones(2 * HEADS, dtype=torch.bool)
    drawn = sized_coalitions(everyone, 2 * (FITTED + HELD), piece.seed, stratified=False)
    different = torch.unique(drawn, dim=0)
    mixed = torch.randperm(len(different), generator=torch.Generator().manual_seed(piece.seed))
    coalitions = different[mixed[: FITTED + HELD]]
    samples = samples_of(piece, sizes.pair_samples)
    game = HeadCoalitions(
        load_model(folder, piece.seed), samples, layer=list(PAIR), batch_size=64, progress=_each(advance)
    )
    values = game.value(coalitions)
    found = {}
    for name, pairs in (("linear", False), ("pairs", True)):
        model = fit_surrogate(coalitions[:FITTED], values[:FITTED], pairs=pairs)
        found[f"R² {name}"] = model.explained(coalitions[FITTED:], values[FITTED:])
    return found


def sums(piece: Piece, folder: Path, sizes: Sizes, advance: Advance) -> dict[str, Any]:
    """Σ_S w(S) and v(N) of the layer with the largest dividend, before and after its calibration."""
    model = load_model(folder, piece.seed)
    by_layer = [Piece("dividends", piece.seed, piece.task, target).read(folder) for target in TARGETS[:-1]]
    layer = max(range(LAYERS), key=lambda layer: by_layer[layer]["w"])
    parts = questions(piece.task, "known", sizes.pair_samples, seed_of(DIVIDENDS, piece.seed))
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


def _each(advance: Advance) -> Callable[[int, int], None]:
    """A callback of a game that passes on what is new."""
    last = 0

    def update(done: int, total: int) -> None:
        nonlocal last
        advance(done - last if done > last else done)
        last = done

    return update
