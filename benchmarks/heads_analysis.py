"""``diabat heads analyse`` on a Llama of 12 layers: what it adds to the evaluation of coalitions, and a second call.

python -m benchmarks.heads_analysis [--json] [--samples 20] [--layers 12]
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from typer.testing import CliRunner

from benchmarks.measure import report
from diabat.attention.heads import replay
from diabat.cli import app
from diabat.runs.heads.analysis import measure as analysis
from diabat.studies import heads as study

TOKENS = 10


def write_model(folder: Path, layers: int) -> None:
    """A Llama of random weights, 512 wide with 16 heads in 8 key/value groups."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1000, hidden_size=512, intermediate_size=1024, num_hidden_layers=layers,
        num_attention_heads=16, num_key_value_heads=8,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)


def write_questions(file: Path, samples: int) -> None:
    """Random questions with four choices."""
    draw = random.Random(0)
    rows = [
        {"input_ids": [draw.randrange(1000) for _ in range(TOKENS)], "choices": [3, 9, 27, 81], "label": 27}
        for _ in range(samples)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def timed(seconds: defaultdict[str, float], name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function; its CPU time is added up."""

    def call(*arguments: Any, **named: Any) -> Any:
        start = time.process_time()
        try:
            return function(*arguments, **named)
        finally:
            seconds[name] += time.process_time() - start

    return call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--layers", type=int, default=12)
    options = parser.parse_args()
    torch.set_num_threads(1)
    seconds: defaultdict[str, float] = defaultdict(float)
    replay.Replay.prefix = timed(seconds, "model", replay.Replay.prefix)  # type: ignore[method-assign]
    replay.Replay.suffix = timed(seconds, "model", replay.Replay.suffix)  # type: ignore[method-assign]
    analysis.__dict__["measure_game"] = timed(seconds, "games", study.measure_game)
    study.plot_dividends = timed(seconds, "figures", study.plot_dividends)
    study.plot_heat_maps = timed(seconds, "figures", study.plot_heat_maps)
    rows = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_model(folder / "model", options.layers)
        write_questions(folder / "q.jsonl", options.samples)
        command = [
            "heads",
            "analyse",
            str(folder / "model"),
            "--data",
            str(folder / "q.jsonl"),
            "--no-progress",
        ]
        for call in ("analysed", "read"):
            seconds.clear()
            start = time.process_time()
            done = CliRunner().invoke(app, [*command, "--out", str(folder / "out")])
            assert done.exit_code == 0, done.stderr
            whole = time.process_time() - start
            others = whole - seconds["games"] - seconds["figures"]
            rows.append(
                {
                    "call": call,
                    "whole s": whole,
                    "model s": seconds["model"],
                    "dividends and values s": seconds["games"] - seconds["model"],
                    "figures s": seconds["figures"],
                    "loading and the rest s": others,
                    "model share": seconds["model"] / whole,
                }
            )
    report(f"diabat heads analyse, {options.layers} layers, {options.samples} samples, CPU seconds", rows)


if __name__ == "__main__":
    main()
