"""What calibrated attention costs: a prompt in one pass, and tokens generated one by one, off and on.

python -m benchmarks.heads_calibration [--json] [--layers 12] [--rounds 5]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.measure import report
from diabat.attention.heads import Calibration
from diabat.huggingface import disable_gac, enable_gac

TOKENS = 16


def decoder(layers: int) -> Any:
    """A Llama with random weights: width 512, 16 heads in 8 key/value groups."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": layers}
    heads: dict[str, Any] = {"num_attention_heads": 16, "num_key_value_heads": 8}
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=1000, max_position_embeddings=4096, **sizes, **heads)
    ).eval()


def states(model: Any, layers: int) -> dict[str, Callable[[], None]]:
    """What is compared, each by the call that brings it about."""
    every = {layer: () for layer in range(layers)}

    def plain(name: str) -> Callable[[], None]:
        def switch() -> None:
            disable_gac(model)
            model.set_attn_implementation(name)

        return switch

    def on(setting: Calibration) -> Callable[[], None]:
        def switch() -> None:
            disable_gac(model)
            enable_gac(model, setting)

        return switch

    def off() -> None:
        model.set_attn_implementation("sdpa")
        enable_gac(model, Calibration(every))
        disable_gac(model)

    return {
        "sdpa": plain("sdpa"),
        "sdpa, switched on and off again": off,
        "eager": plain("eager"),
        "gac, nothing calibrated": plain("gac"),
        "gac, one layer": on(Calibration({layers // 2: range(4)})),
        "gac, all layers, half of the heads": on(Calibration({layer: range(8) for layer in range(layers)})),
        "gac, all heads, running": on(Calibration(every)),
        "gac, all heads, prompt": on(Calibration(every, rows="prompt")),
        "gac, all heads, uniform": on(Calibration(every, redistribution="uniform")),
    }


def prefill(model: Any, ids: Tensor) -> float:
    """CPU seconds of one pass over prompts [B, T]."""
    start = time.process_time()
    model(ids, logits_to_keep=1, use_cache=True)
    return time.process_time() - start


def decode(model: Any, ids: Tensor) -> float:
    """CPU seconds per token behind prompts [B, T]."""
    cache = model(ids, logits_to_keep=1, use_cache=True).past_key_values
    start = time.process_time()
    for _ in range(TOKENS):
        model(ids[:, -1:], past_key_values=cache)
    return (time.process_time() - start) / TOKENS


def costs(layers: int, rounds: int) -> list[dict[str, Any]]:
    """Least seconds over rounds in which all states take their turn."""
    torch.set_num_threads(1)
    model = decoder(layers)
    rows = []
    for measure, batch, length in ((prefill, 4, 128), (prefill, 1, 512), (decode, 4, 128), (decode, 1, 512)):
        ids = torch.randint(1000, (batch, length))
        least: dict[str, float] = {}
        for _ in range(rounds):
            for name, switch in states(model, layers).items():
                switch()
                with torch.no_grad():
                    least[name] = min(least.get(name, float("inf")), measure(model, ids))
        for name, seconds in least.items():
            rows.append(
                {
                    "what": measure.__name__, "batch": batch, "tokens": length, "attention": name,
                    "CPU ms": seconds * 1e3, "/ sdpa": seconds / least["sdpa"], "/ eager": seconds / least["eager"],
                }
            )  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    title = f"Calibrated attention, {arguments.layers} layers of width 512, CPU time of one thread"
    report(title, costs(arguments.layers, arguments.rounds))


if __name__ == "__main__":
    main()
