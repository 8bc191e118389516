"""Relative couplings on one thread: time per token against causal softmax attention, padding, and decoding.

python -m benchmarks.relative_windows [--batch 1] [--rounds 15] [--json]

Attention proper, without projections: one head, 64 features, sequences of 512 tokens, forward and backward.  Calls of
a row are timed in turn with causal ``scaled_dot_product_attention``; each is the least CPU time of all rounds.

- ``exact``: weights from probabilities.  ``odds``: from odds.  ``far odds``: with all keys before the window.
- ``fields and mixing``: the same with a sigmoid in place of the sampler (mode ``h``): scores, mask and mixing.
- ``left-padded``: 16 sequences with up to half of their tokens padding, another mask at every step, against the same
  without padding; both per position.
- ``step``: one token after another through a layer of 8 heads and width 64 with its projections, after prompts of both
  lengths.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.measure import report
from diabat import BoltzmannAttention

LENGTH, FEATURES = 512, 64
WINDOWS = (8, 12, 16)
KINDS: dict[str, dict[str, Any]] = {
    "exact": {},
    "odds": {"weights": "odds"},
    "far odds": {"weights": "odds", "far": "independent"},
    "fields and mixing": {"mode": "h"},
}


def layer(heads: int, window: int, **options: Any) -> BoltzmannAttention:
    """A relative layer with couplings that are not zero."""
    built = BoltzmannAttention(FEATURES, heads, window, relative=True, **options)
    if built.coupling_pairs is not None:
        nn.init.normal_(built.coupling_pairs, std=0.3)
    return built


def fastest(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """CPU seconds of each call, in turn."""
    best = dict.fromkeys(calls, math.inf)
    for call in calls.values():
        call()
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.thread_time()
            call()
            best[name] = min(best[name], time.thread_time() - start)
    return best


def attention(batch: int, rounds: int) -> list[dict[str, Any]]:
    """Microseconds per token of each kind and window, and the ratio to causal softmax."""
    q, k, v = (torch.randn(batch, 1, LENGTH, FEATURES, requires_grad=True) for _ in range(3))
    cotangent = torch.randn(batch, 1, LENGTH, FEATURES)

    def softmax() -> None:
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        torch.autograd.grad(y, (q, k, v), cotangent)

    rows = []
    for window in WINDOWS:
        calls: dict[str, Callable[[], Any]] = {"softmax": softmax}
        for name, options in KINDS.items():
            calls[name] = _pass(layer(1, window, **options), (q, k, v), cotangent[:, 0])
        best = fastest(calls, rounds)
        for name, seconds in best.items():
            us = 1e6 * seconds / (batch * LENGTH)
            rows.append({"T": window, "attention": name, "us": us, "ratio": seconds / best["softmax"]})
    return rows


def _pass(
    built: BoltzmannAttention, qkv: tuple[Tensor, Tensor, Tensor], cotangent: Tensor
) -> Callable[[], Any]:
    built.output = nn.Identity()  # type: ignore[assignment]  # leaves attention proper
    q, k, v = (t.detach()[:, 0].requires_grad_() for t in qkv)  # of one head
    leaves = [q, k, v, *(p for p in (built.coupling_pairs,) if p is not None)]
    return lambda: torch.autograd.grad(built._attend(q, k, v, None)[0], leaves, cotangent)


def padding(rounds: int, batch: int = 16) -> list[dict[str, Any]]:
    """Microseconds per position of a whole layer with and without padding on the left."""
    x, rows = torch.randn(batch, LENGTH, FEATURES), []
    lengths = iter(torch.randint(LENGTH // 2, (10_000, batch)))

    def plain(built: BoltzmannAttention) -> None:
        built(x).sum().backward()

    def padded(built: BoltzmannAttention) -> None:
        mask = torch.arange(LENGTH) < next(lengths)[:, None]
        built(x, mask).sum().backward()

    for window in WINDOWS:
        built = layer(1, window)
        best = fastest({"plain": partial(plain, built), "padded": partial(padded, built)}, rounds)
        us = {name: 1e6 * seconds / (batch * LENGTH) for name, seconds in best.items()}
        rows.append({"T": window, **us, "ratio": us["padded"] / us["plain"]})
    return rows


@torch.no_grad()
def decoding(rounds: int) -> list[dict[str, Any]]:
    """Milliseconds of one step after short and long prompts."""
    rows = []
    for window in WINDOWS:
        for name in ("exact", "odds", "far odds"):
            built, row = layer(8, window, **KINDS[name]), dict[str, Any](T=window, attention=name)
            for length in (64, 4096):
                x = torch.randn(1, length, FEATURES)
                with_far = BoltzmannAttention(
                    FEATURES, 8, window, relative=True, mode="softmax", far=built.far
                )
                state = with_far.prefill(x)[1]
                found = fastest({"step": _steps(built, x[:, 0], state)}, 4 * rounds)
                row[f"after {length}"] = 1e3 * found["step"]
            rows.append(row)
    return rows


def _steps(built: BoltzmannAttention, token: Tensor, state: Any) -> Callable[[], None]:
    """Each call decodes one more token."""

    def step() -> None:
        nonlocal state
        state = built.step(token, state)[1]

    return step


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    report(f"attention, us per token, batch {chosen.batch}", attention(chosen.batch, chosen.rounds))
    report("left padding, 16 sequences, us per position", padding(max(3, chosen.rounds // 3)))
    report("decoding, 8 heads, ms per step", decoding(chosen.rounds))


if __name__ == "__main__":
    main()
