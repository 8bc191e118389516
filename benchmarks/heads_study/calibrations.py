"""Calibrations of the decoder: a grid of α and β on validation questions, and chosen settings on fresh ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.heads_study.asked import Asked, Groups, compared, random_groups
from benchmarks.heads_study.core import (
    ALPHAS,
    BETAS,
    PAPER,
    REACHES,
    TEST,
    VALIDATION,
    Advance,
    Piece,
    Sizes,
    chosen,
    load_model,
    salient_groups,
    seed_of,
)
from benchmarks.heads_study.decoder import questions
from diabat.attention.heads import Calibration


def grid(piece: Piece, folder: Path, sizes: Sizes, advance: Advance) -> dict[str, Any]:
    """All α and β on validation questions, with the salient group and with none."""
    model, salient = load_model(folder, piece.seed), salient_groups(folder, piece)
    rows = []
    for reach in REACHES:
        asked = Asked(
            model,
            questions(piece.task, reach, sizes.validation, seed_of(VALIDATION, piece.seed)),
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


def test(piece: Piece, folder: Path, sizes: Sizes, advance: Advance) -> dict[str, Any]:
    """Fresh questions: α = β = 0.1 for every target, and the best of the grid for the target it belongs to."""
    model, salient = load_model(folder, piece.seed), salient_groups(folder, piece)
    others = random_groups(salient, sizes.groups, piece.seed)
    none: Groups = dict.fromkeys(salient, ())
    rows = []
    for reach in REACHES:
        asked = Asked(
            model, questions(piece.task, reach, sizes.test, seed_of(TEST, piece.seed)), min(salient)
        )
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
