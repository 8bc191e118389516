"""Peak memory and time of a fine-tuning step on a model of the shape of Qwen2.5-0.5B with random weights.

python -m benchmarks.game_lora_memory [--json] [--tokens 256] [--steps 3]
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping
from typing import Any

import torch

from benchmarks.measure import report

LAYER = 19
PAPER_STEPS, PAPER_TOKENS = 19_531, 16 * 1024
GPU_FLOPS = 1e14
"""Assumed of a GPU: operations per second that a training sustains."""
# Of plain LoRA, whose frozen weights need the gradients of activations only: 2 forward and 2 backward.
FLOP_PER_PARAMETER = 4
ARMS: Mapping[str, Mapping[str, Any] | None] = {
    "plain LoRA": None,
    "GAME-LoRA, sum, rho of the last step": {"combination": "sum", "rho": "last_step"},
    "GAME-LoRA, Nash every step": {},
}


def adapted() -> Any:
    """The decoder with the adapters of the paper, float32."""
    from peft import LoraConfig, get_peft_model
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=151_936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
        num_key_value_heads=2, tie_word_embeddings=True, max_position_embeddings=1024,
    )  # fmt: skip
    targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
    return get_peft_model(
        Qwen2ForCausalLM(config), LoraConfig(r=16, lora_alpha=32, lora_dropout=0.1, target_modules=targets)
    ).train()


def measured(arm: str, tokens: int, steps: int) -> dict[str, Any]:
    """Steps of one sequence in this process: seconds of each, and the largest resident memory."""
    from diabat.huggingface import GameLoss, GameOptions

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    model, options = adapted(), ARMS[arm]
    built = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-4)
    game = None if options is None else GameLoss(model, GameOptions(layers=[LAYER], **options), steps + 1)
    g = torch.Generator().manual_seed(0)
    times = []
    for _ in range(steps + 1):
        ids = torch.randint(model.config.vocab_size, (1, tokens), generator=g)
        batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
        start = time.perf_counter()
        if game is None:
            model(**batch).loss.backward()
        else:
            with game.capture(batch):
                cross_entropy = model(**batch).loss
            game.loss(cross_entropy).backward()
        optimizer.step()
        optimizer.zero_grad()
        if game is not None:
            game.step()
        times.append(time.perf_counter() - start)
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "built": built,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "seconds": times[1:],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=256, help="of the sequence of a step")
    parser.add_argument("--steps", type=int, default=3, help="behind a first step that is not counted")
    parser.add_argument("--arm", choices=list(ARMS), help="measure this arm alone, in this process")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    if chosen.arm is not None:
        print(json.dumps(measured(chosen.arm, chosen.tokens, chosen.steps)))
        return
    sizes = ["--tokens", str(chosen.tokens), "--steps", str(chosen.steps)]
    found = {}
    for arm in ARMS:
        command = [sys.executable, "-m", "benchmarks.game_lora_memory", "--arm", arm, *sizes]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        found[arm] = json.loads(output.splitlines()[-1])
        print(f"{arm}: done", file=sys.stderr)
    report(f"Steps of 1 x {chosen.tokens} tokens", rows(found, chosen.tokens))


def rows(found: Mapping[str, Mapping[str, Any]], tokens: int) -> list[dict[str, Any]]:
    """One row per arm, with the time of the paper's 320M tokens at the measured speed and at that of a GPU."""
    plain = statistics.median(found["plain LoRA"]["seconds"])
    total = PAPER_STEPS * PAPER_TOKENS
    shown = []
    for arm, result in found.items():
        seconds = statistics.median(result["seconds"])
        flop = FLOP_PER_PARAMETER * result["parameters"] * total
        shown.append({
            "arm": arm, "GB built": result["built"] * 1024 / 1e9, "GB peak": result["peak"] * 1024 / 1e9,
            "s per step": seconds, "ratio": seconds / plain,
            "320M tokens here, days": seconds / tokens * total / 86400,
            "at 1e14 FLOP/s (assumed), hours": flop / GPU_FLOPS * seconds / plain / 3600,
        })  # fmt: skip
    return shown


if __name__ == "__main__":
    main()
