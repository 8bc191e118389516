"""Coalitions of heads by replay, against whole forward passes in batches and one coalition at a time.

python -m benchmarks.heads [--json] [--layers 12] [speed | batch | shapiq]

``shapiq`` compares dividends with those of that library, which has to be installed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.games import peak_megabytes
from benchmarks.measure import report
from diabat.attention.games.tables import all_coalitions
from diabat.attention.heads import Dividends
from diabat.attention.heads.decoder import key_value_groups
from diabat.attention.heads.replay import Replay

PLAYERS, ROUNDS, BATCHES = 8, 3, (16, 64)
SHAPES = ((64, 32), (128, 32))  # width, tokens
LARGER = (256, 64)
LAST = torch.tensor([-1])


def decoder(layers: int, width: int, length: int) -> Any:
    """A Llama of random weights with as many key/value heads as query heads."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512, hidden_size=width, intermediate_size=4 * width, num_hidden_layers=layers,
        num_attention_heads=PLAYERS, num_key_value_heads=PLAYERS, max_position_embeddings=length,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def table(replay: Replay, tokens: Tensor, masks: Tensor, batch: int, *, whole: bool) -> Tensor:
    """Last logits of coalitions, by replay or by whole passes."""
    with replay.ablation.applied():
        if whole:
            parts = [replay.direct(tokens, part, LAST) for part in masks.split(batch)]
        else:
            states = replay.prefix(tokens)
            parts = [replay.suffix(states, tokens, part, LAST) for part in masks.split(batch)]
    return torch.cat(parts)[:, 0]


def layers_of(replay: Replay, tokens: Tensor, masks: Tensor, batch: int, *, whole: bool) -> float:
    """CPU seconds of the table of every layer in turn."""
    start = time.process_time()
    for layer in replay.decoder.sites:
        replay.groups = key_value_groups(replay.decoder.sites, layer)
        table(replay, tokens, masks, batch, whole=whole)
    return time.process_time() - start


def speed(layers: int) -> list[dict[str, Any]]:
    """All layers: replay, whole passes in the same batches, and one coalition at a time, in turn."""
    torch.set_num_threads(1)
    masks, rows = all_coalitions(PLAYERS), []
    for width, length in SHAPES:
        replay, tokens = Replay(decoder(layers, width, length), "mean", 1e-5), torch.arange(length)
        replay.groups = key_value_groups(replay.decoder.sites, layers // 2)
        alone = table(replay, tokens, masks, 1, whole=True)
        ways = [(1, True), *((batch, whole) for batch in BATCHES for whole in (False, True))]
        found: dict[tuple[int, bool], list[float]] = {way: [] for way in ways}
        for _ in range(ROUNDS):
            for batch, whole in ways:
                found[batch, whole].append(layers_of(replay, tokens, masks, batch, whole=whole))
        replay.groups = key_value_groups(replay.decoder.sites, layers // 2)
        least = {way: min(times) for way, times in found.items()}
        for batch in BATCHES:
            difference = table(replay, tokens, masks, batch, whole=False) - alone
            rows.append(
                {
                    "width": width, "T": length, "batch": batch, "replay [s]": least[batch, False],
                    "whole passes [s]": least[batch, True], "one at a time [s]": least[1, True],
                    "whole / replay": least[batch, True] / least[batch, False], "its limit": 2 * layers / (layers + 1),
                    "one / replay": least[1, True] / least[batch, False],
                    "difference of logits": float(difference.abs().max()),
                }
            )  # fmt: skip
    return rows


def batches(layers: int) -> list[dict[str, Any]]:
    """Seconds and peak memory of the tables of all layers by batch size, each in a process of its own."""
    rows = []
    for width, length in (SHAPES[-1], LARGER):
        for batch in (1, 4, 16, 64, 256):
            one = [str(number) for number in (batch, width, length)]
            out = subprocess.run(
                [sys.executable, "-m", "benchmarks.heads", "--layers", str(layers), "--one", *one],
                capture_output=True, text=True, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
            )  # fmt: skip
            seconds, megabytes = map(float, out.stdout.split())
            rows.append(
                {"width": width, "T": length, "batch": batch, "replay [s]": seconds, "peak [MB]": megabytes}
            )
    return rows


def dividends(layers: int) -> list[dict[str, Any]]:
    """Dividends of random tables against the Möbius transform of shapiq."""
    import shapiq

    rows = []
    for n in (6, 8, 10, 12):
        v = torch.randn(1, 1 << n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
        powers = 1 << torch.arange(n).numpy()
        computer = shapiq.ExactComputer(
            lambda masks, v=v, powers=powers: v[0].numpy()[masks.astype(int) @ powers], n
        )
        theirs, ours = computer("Moebius", order=n), Dividends.of_tables(v).value
        ours[0] += v[0, 0]  # they do not subtract v of nobody
        differences = [
            abs(float(theirs[members]) - float(ours[sum(1 << i for i in members)]))
            for members in theirs.interaction_lookup
        ]
        rows.append({"players": n, "coalitions": len(differences), "largest difference": max(differences)})
    return rows


def one(layers: int, batch: int, width: int, length: int) -> None:
    """Print CPU seconds of replay at one batch size, and its peak memory above that of the model."""
    torch.set_num_threads(1)
    replay = Replay(decoder(layers, width, length), "mean", 1e-5)
    tokens, masks = torch.arange(length), all_coalitions(PLAYERS)
    replay.groups = key_value_groups(replay.decoder.sites, layers - 1)
    table(replay, tokens, masks[:1], 1, whole=False)
    before = peak_megabytes()
    seconds = min(layers_of(replay, tokens, masks, batch, whole=False) for _ in range(2))
    print(seconds, peak_megabytes() - before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="*", help="speed, batch, shapiq; the first two if none is named")
    parser.add_argument("--json", action="store_true", help="one line of JSON per table")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--one", type=int, nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        one(arguments.layers, *arguments.one)
        return
    sections: dict[str, tuple[str, Callable[[int], list[dict[str, Any]]]]] = {
        "speed": (
            "Tables of 2^8 coalitions, every layer in turn, CPU seconds of one thread",
            speed,
        ),
        "batch": ("Replay by batch size, every layer in turn", batches),
        "shapiq": ("Dividends of random tables against shapiq", dividends),
    }
    unknown = set(arguments.sections) - sections.keys()
    if unknown:
        parser.error(f"sections: expected some of {', '.join(sections)}, got {', '.join(sorted(unknown))}")
    for name in arguments.sections or ("speed", "batch"):
        title, measure = sections[name]
        report(title, measure(arguments.layers))


if __name__ == "__main__":
    main()
