"""A training step of a small Llama with couplings against the same model with sdpa, on one thread.

python -m benchmarks.boltzmann_huggingface [--rounds 7] [--length 256] [--batch 4] [--profile 12] [--json]

4 layers, width 256, 8 heads, 4 key/value heads, vocabulary of 512: forward, backward and a step of AdamW.  The models
of a row are timed in turn; times are medians.  ``odds`` has couplings among the last T keys and all keys before them,
``none`` no keys before them.  ``generate`` is one decoded token with a cache, after prompts of 128 tokens.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.measure import report, seconds
from diabat.huggingface import convert, parameter_groups

WINDOWS = (8, 12, 16)
VOCABULARY = 512


def llama(implementation: str = "sdpa") -> Any:
    """A Llama with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=256, intermediate_size=688, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=4, max_position_embeddings=1024,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    model.set_attn_implementation(implementation)
    return model


def coupled(window: int, **options: Any) -> Any:
    """The same with couplings that are not zero."""
    model = convert(llama(), window, **options)
    for name, parameter in model.named_parameters():
        if "coupling_pairs" in name:
            nn.init.normal_(parameter, std=0.2)
    return model


def step(model: Any, tokens: Tensor) -> Callable[[], None]:
    """A step of training."""
    groups = (
        parameter_groups(model, 3e-4, 3e-3) if "boltzmann" in model.config.model_type else model.parameters()
    )
    optimizer = torch.optim.AdamW(groups, lr=3e-4)

    def run() -> None:
        model.train()(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return run


def token(model: Any) -> Callable[[], None]:
    """One token decoded after a prompt; the cache is cut back to the prompt."""
    from transformers import DynamicCache

    cache, ids = DynamicCache(config=model.config), torch.arange(129)[None]
    with torch.no_grad():
        model.eval()(input_ids=ids[:, :128], past_key_values=cache)

    @torch.no_grad()
    def run() -> None:
        model(input_ids=ids[:, 128:], past_key_values=cache)
        cache.crop(-1)

    return run


def models() -> dict[str, Any]:
    """The models that are compared, by name."""
    found = {"sdpa": llama(), "eager": llama("eager")}
    found |= {f"odds, T = {window}": coupled(window) for window in WINDOWS}
    found["odds, T = 12, far none"] = coupled(12, far="none")
    found["probability, T = 12"] = coupled(12, weights="probability")
    return found


def compared(calls: dict[str, Callable[[], None]], rounds: int) -> list[dict[str, Any]]:
    """Medians of calls that are timed in turn, and of their ratios to the first."""
    for call in calls.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(seconds(call))
    base = times["sdpa"]
    return [
        {
            "attention": name,
            "ms": 1e3 * statistics.median(found),
            "ratio to sdpa": statistics.median(a / b for a, b in zip(found, base, strict=True)),
        }
        for name, found in times.items()
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--profile", type=int, metavar="T", help="profile a step at this window instead")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    tokens = torch.randint(
        VOCABULARY, (chosen.batch, chosen.length), generator=torch.Generator().manual_seed(1)
    )
    if chosen.profile is not None:
        run = step(coupled(chosen.profile), tokens)
        run()
        with torch.profiler.profile() as profile:
            run()
        print(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=25))
        return
    shape = f"batch {chosen.batch}, {chosen.length} tokens"
    steps = {name: step(model, tokens) for name, model in models().items()}
    report(f"training step, {shape}", compared(steps, chosen.rounds))
    report("decoded token after 128", compared({n: token(m) for n, m in models().items()}, 5 * chosen.rounds))


if __name__ == "__main__":
    main()
