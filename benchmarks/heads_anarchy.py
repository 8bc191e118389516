"""Theorem 2.2 of GAME-LoRA: how often it fails in quadratic games, and inequality (40) on a trained decoder.

python -m benchmarks.heads_anarchy [--json] [--games 8000] [--steps 400] [games | decoder]
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import torch

from benchmarks.measure import report
from benchmarks.small_decoder import draw_batch, trained_decoder
from diabat.attention.heads import HeadInteractions
from diabat.attention.heads.interaction.curvature import measure_curvature
from diabat.attention.heads.interaction.quadratic_games import QuadraticGame, decoupled_heads, random_game


def counterexample() -> dict[str, Any]:
    """Two decoupled heads with ridge."""
    game = decoupled_heads()
    return {
        "game": "two decoupled heads", "games": 1, "admissible": 1, "violate 2.2": int(game.price > game.stated),
        "violate the bound": int(game.price > game.bound), "median price": game.price, "stated": game.stated,
        "bound": game.bound, **{f"({step}) fails": int(not holds) for step, holds in game.steps().items()},
    }  # fmt: skip


def drawn(count: int) -> list[dict[str, Any]]:
    """Random games: all that the theorem admits, and those of them with coupled heads."""
    games = [random_game(seed) for seed in range(count)]
    admitted = [game for game in games if game.stated < math.inf]
    coupled = [game for game in admitted if is_coupled(game)]
    groups = {
        "random": (len(games), admitted),
        "random, coupled heads": (sum(map(is_coupled, games)), coupled),
    }
    rows = [_row(name, whole, part) for name, (whole, part) in groups.items()]
    beyond = sum(game.price > game.bound * (1 + 1e-9) for game in games)
    return [*rows, {**_row("random, admitted or not", len(games), games), "violate 2.2": "", "stated": "",
                    "admissible": len(admitted), "violate the bound": beyond}]  # fmt: skip


def is_coupled(game: QuadraticGame) -> bool:
    """Whether two heads have correlated outputs."""
    return float((game.block_norms - game.block_norms.diagonal().diag()).max()) > 0


def _row(name: str, whole: int, games: list[QuadraticGame]) -> dict[str, Any]:
    def median(values: list[float]) -> float:
        return float(torch.tensor(values, dtype=torch.float64).median())

    return {
        "game": name,
        "games": whole,
        "admissible": len(games),
        "violate 2.2": sum(game.price > game.stated * (1 + 1e-9) for game in games),
        "violate the bound": sum(game.price > game.bound * (1 + 1e-9) for game in games),
        "median price": median([game.price for game in games]),
        "stated": median([game.stated for game in games]),
        "bound": median([game.bound for game in games]),
        **{f"({step}) fails": sum(not game.steps()[step] for game in games) for step in ("45", "49", "52")},
    }


def decoder(steps: int) -> list[dict[str, Any]]:
    """Inequality (40) and the condition of theorem 2.2 on every layer of a trained decoder."""
    model, tokens, _ = trained_decoder(steps)
    batch = draw_batch(tokens[len(tokens) * 9 // 10 :], torch.Generator().manual_seed(1), rows=8)
    interactions = HeadInteractions(model).measure(batch)
    rows = []
    for layer, found in interactions.items():
        curvature = measure_curvature(model, batch, layer, probes=16, tolerance=1e-2)
        ratios = curvature.ratios(found.G)
        own = curvature.block_norms.diagonal()
        lenient = curvature.block_norms.max() / curvature.smoothness
        rows.append({
            "layer": layer, "Γ": found.gamma, "L": curvature.smoothness, "pairs": len(ratios),
            "violate (40)": int((ratios > 1).sum()), "median ratio": float(ratios.median()),
            "smallest": float(ratios.min()), "‖H_ii‖/L": float(own.max()) / curvature.smoothness,
            "violate, L = max ‖H_ij‖": int((ratios > lenient).sum()),
            "least α": curvature.smoothness * found.gamma**2,
            "cross-entropy": found.cross_entropy,
        })  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="?", choices=("games", "decoder"))
    parser.add_argument("--games", type=int, default=8000)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.part != "decoder":
        report("Theorem 2.2 in quadratic games, β_R = β_C = 0", [counterexample(), *drawn(options.games)])
    if options.part != "games":
        report(f"Inequality (40) on a decoder trained for {options.steps} steps", decoder(options.steps))


if __name__ == "__main__":
    main()
