"""CPU time of fine-tuning with the losses of GAME-LoRA against plain LoRA, on a decoder of 12 layers.

python -m benchmarks.game_lora [--json] [--rounds 7] [--width 256] [--profile ARM]
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from benchmarks.measure import report

LAYERS, HEADS, GROUPS, VOCABULARY = 12, 8, 2, 4096
LAYER = 9  # (19 + 1) / 24 of the depth
STEPS = 10  # of a round, so that Nash every 10 steps is solved once in each
ARMS: Mapping[str, Mapping[str, Any]] = {
    "sum, rho of the last step": {"combination": "sum", "rho": "last_step"},
    "sum, fresh rho": {"combination": "sum"},
    "nash every 10, rho of the last step": {"nash_every": 10, "rho": "last_step"},
    "nash every 10, fresh rho": {"nash_every": 10},
    "nash every step": {},
}
WANTED = {
    "sum, rho of the last step": 1.05,
    "nash every 10, rho of the last step": 1.10,
    "nash every step": 1.40,
}


def adapted(width: int) -> Any:
    """A grouped-query decoder of random weights with the adapters of the paper."""
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=width, intermediate_size=4 * width, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=GROUPS, max_position_embeddings=512,
    )  # fmt: skip
    targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
    return get_peft_model(
        LlamaForCausalLM(config), LoraConfig(r=16, lora_alpha=32, lora_dropout=0.1, target_modules=targets)
    ).train()


def training(width: int, options: Mapping[str, Any] | None) -> Callable[[], None]:
    """A function that trains `STEPS` steps; plain LoRA without options."""
    from diabat.huggingface import GameLoss, GameOptions

    model, batch = adapted(width), tokens()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-4)
    game = None
    if options is not None:
        game = GameLoss(
            model, GameOptions(layers=[LAYER], warmup=0.0, cooldown=1.0, **dict(options)), 1_000_000
        )

    def steps() -> None:
        for _ in range(STEPS):
            if game is None:
                model(**batch).loss.backward()
            else:
                with game.capture(batch):
                    cross_entropy = model(**batch).loss
                game.loss(cross_entropy).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            if game is not None:
                game.step()

    return steps


def tokens(rows: int = 4, length: int = 128) -> dict[str, Tensor]:
    ids = torch.randint(VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def cpu_seconds(f: Callable[[], None]) -> float:
    start = time.process_time()
    f()
    return time.process_time() - start


def measured(width: int, rounds: int) -> list[dict[str, Any]]:
    """Every arm in turn with plain LoRA before it, round by round."""
    plain, arms = training(width, None), {name: training(width, options) for name, options in ARMS.items()}
    for f in (plain, *arms.values()):
        f()
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    ratios: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(rounds):
        for name, f in arms.items():
            one, other = cpu_seconds(plain), cpu_seconds(f)
            seconds[name].append(other / STEPS)
            ratios[name].append(other / one)
    return [
        {
            "arm": name,
            "ms per step": 1e3 * statistics.median(seconds[name]),
            "ratio to plain": statistics.median(ratios[name]),
            "lowest": min(ratios[name]),
            "highest": max(ratios[name]),
            "wanted": WANTED.get(name, ""),
        }
        for name in arms
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--profile", choices=[*ARMS])
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if chosen.profile:
        profile = cProfile.Profile()
        f = training(chosen.width, ARMS[chosen.profile])
        f()
        profile.runcall(f)
        pstats.Stats(profile, stream=sys.stdout).sort_stats("tottime").print_stats(25)
    else:
        report(f"GAME-LoRA, {LAYERS} layers of width {chosen.width}", measured(chosen.width, chosen.rounds))


if __name__ == "__main__":
    main()
