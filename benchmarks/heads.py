"""Coalitions of heads by replay, against whole forward passes in batches and one coalition at a time.

python -m benchmarks.heads [--json] [--layers 12] [speed | batch]
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
from diabat.attention.heads.players import key_value_groups
from diabat.attention.heads.replay import Replay

PLAYERS, ROUNDS, BATCH = 8, 3, 16
SHAPES = ((64, 32), (128, 32), (256, 64))  # width, tokens
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
    with replay.switch.opened():
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
    ways: dict[str, tuple[int, bool]] = {"replay": (BATCH, False), "whole": (BATCH, True), "one": (1, True)}
    for width, length in SHAPES:
        replay, tokens = Replay(decoder(layers, width, length), "uniform", 1e-5), torch.arange(length)
        replay.groups = key_value_groups(replay.decoder.sites, layers // 2)
        difference = table(replay, tokens, masks, BATCH, whole=False) - table(
            replay, tokens, masks, 1, whole=True
        )
        found: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name, (batch, whole) in ways.items():
                found[name].append(layers_of(replay, tokens, masks, batch, whole=whole))
        least = {name: min(times) for name, times in found.items()}
        rows.append(
            {
                "width": width, "T": length, "replay [s]": least["replay"],
                "whole passes, batched [s]": least["whole"], "one at a time [s]": least["one"],
                "batched / replay": least["whole"] / least["replay"], "its limit": 2 * layers / (layers + 1),
                "one at a time / replay": least["one"] / least["replay"],
                "largest difference of logits": float(difference.abs().max()),
            }
        )  # fmt: skip
    return rows


def batches(layers: int) -> list[dict[str, Any]]:
    """Seconds and peak memory of the tables of all layers by batch size, each in a process of its own."""
    rows = []
    for width, length in SHAPES[1:]:
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


def one(layers: int, batch: int, width: int, length: int) -> None:
    """Print CPU seconds of replay at one batch size, and its peak memory above that of the model."""
    torch.set_num_threads(1)
    replay = Replay(decoder(layers, width, length), "uniform", 1e-5)
    tokens, masks = torch.arange(length), all_coalitions(PLAYERS)
    replay.groups = key_value_groups(replay.decoder.sites, layers - 1)
    table(replay, tokens, masks[:1], 1, whole=False)
    before = peak_megabytes()
    seconds = min(layers_of(replay, tokens, masks, batch, whole=False) for _ in range(2))
    print(seconds, peak_megabytes() - before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="*", help="speed, batch; all if none is named")
    parser.add_argument("--json", action="store_true", help="one line of JSON per table")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--one", type=int, nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        one(arguments.layers, *arguments.one)
        return
    sections: dict[str, tuple[str, Callable[[int], list[dict[str, Any]]]]] = {
        "speed": (
            "Tables of 2^8 coalitions, every layer in turn, batches of 16, CPU seconds of one thread",
            speed,
        ),
        "batch": ("Replay by batch size, every layer in turn", batches),
    }
    unknown = set(arguments.sections) - sections.keys()
    if unknown:
        parser.error(f"sections: expected some of {', '.join(sections)}, got {', '.join(sorted(unknown))}")
    for name in arguments.sections or sections:
        title, measure = sections[name]
        report(title, measure(arguments.layers))


if __name__ == "__main__":
    main()
