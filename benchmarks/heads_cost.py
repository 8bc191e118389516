"""Cost of the analysis of large models: coalitions, FLOP, memory and hours, computed from the sizes of the models.

python -m benchmarks.heads_cost [--json] [--tokens 100] [--samples 300] [--sets 8] [--batch 16]
                                [--flops NAME=1e14 ...] [cost | hours | memory]

FLOP count two per multiply-add of every matrix product.  ``cost`` and ``hours`` compute what a table of all coalitions
of every layer in turn takes, as ``HeadCoalitions`` evaluates it with ``value="log_odds"``; ``memory`` compares the
formula of the memory of a batch with the allocations of decoders that fit here.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import profile

from benchmarks.heads import decoder
from benchmarks.measure import report
from diabat.attention.games.tables import all_coalitions
from diabat.attention.heads.decoder import key_value_groups
from diabat.attention.heads.replay import Replay


@dataclass(frozen=True)
class Sizes:
    """Sizes of a decoder with gated feed-forward networks, as ``config.json`` names them.

    Attributes:
        width: ``hidden_size``.
        inner: ``intermediate_size``.
        layers: ``num_hidden_layers``.
        heads: ``num_attention_heads``; each of width / heads.
        groups: ``num_key_value_heads``, the players of a layer.
        vocabulary: ``vocab_size``.
        tied: ``tie_word_embeddings``.
        bias: Whether queries, keys and values have a bias.
    """

    width: int
    inner: int
    layers: int
    heads: int
    groups: int
    vocabulary: int
    tied: bool = False
    bias: bool = False

    @property
    def keys(self) -> int:
        """Width of the keys, and of the values."""
        return self.groups * self.width // self.heads

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        projections = 2 * self.width * (self.width + self.keys) + self.bias * (self.width + 2 * self.keys)
        block = projections + 3 * self.width * self.inner + 2 * self.width
        embeddings = (1 if self.tied else 2) * self.vocabulary * self.width
        return embeddings + self.layers * block + self.width


# From config.json of meta-llama/Llama-3.1-8B-Instruct and Qwen/Qwen2.5-{0.5B,7B,14B,32B}-Instruct on the Hub.
MODELS = {
    "Llama-3.1-8B": Sizes(4096, 14336, 32, 32, 8, 128256),
    "Qwen2.5-0.5B": Sizes(896, 4864, 24, 14, 2, 151936, tied=True, bias=True),
    "Qwen2.5-7B": Sizes(3584, 18944, 28, 28, 4, 152064, bias=True),
    "Qwen2.5-14B": Sizes(5120, 13824, 48, 40, 8, 152064, bias=True),
    "Qwen2.5-32B": Sizes(5120, 27648, 64, 40, 8, 152064, bias=True),
}
# Assumed, not measured: 60 % of the peak of float32 products and 40 % of that of bfloat16, as the vendor states them.
ASSUMED = {
    "A100, float32": 0.6 * 19.5e12,
    "H100, float32": 0.6 * 67e12,
    "H100, bfloat16": 0.4 * 989e12,
}


def block_flops(sizes: Sizes, rows: int, tokens: int, attended: int) -> int:
    """FLOP of one block on ``rows`` sequences, whose attention is computed for ``attended`` of them."""
    weights = 2 * sizes.width * (sizes.width + sizes.keys) + 3 * sizes.width * sizes.inner
    return 2 * rows * tokens * weights + 4 * attended * sizes.width * tokens**2


def layer_flops(sizes: Sizes, layer: int, tokens: int, batch: int, *, replay: bool = True) -> int:
    """FLOP of all coalitions of one layer for one sample, in batches."""
    coalitions, head = 2**sizes.groups, 2 * sizes.width * sizes.vocabulary
    full = [batch] * (coalitions // batch) + [coalitions % batch] * bool(coalitions % batch)
    # In the layer of the players all rows are alike: attention and the uniform means [T, T] @ values of one row.
    first = sum(block_flops(sizes, rows, tokens, 1) + 2 * sizes.keys * tokens**2 for rows in full)
    others = sizes.layers - 1 - (layer if replay else 0)
    total = first + others * block_flops(sizes, coalitions, tokens, coalitions) + coalitions * head
    return total + (layer * block_flops(sizes, 1, tokens, 1) + head) * replay


def analysis_flops(sizes: Sizes, tokens: int, batch: int, *, replay: bool = True) -> int:
    """FLOP of all coalitions of every layer in turn for one sample."""
    layers = range(sizes.layers)
    return sum(layer_flops(sizes, layer, tokens, batch, replay=replay) for layer in layers)


def block_evaluations(sizes: Sizes, *, replay: bool = True) -> int:
    """Blocks times sequences of the same: N L (L + 1) / 2 and the prefixes, or N L²."""
    n, depth = 2**sizes.groups, sizes.layers
    return n * depth * (depth + 1) // 2 + depth * (depth - 1) // 2 if replay else n * depth**2


def batch_bytes(sizes: Sizes, rows: int, tokens: int, *, eager: bool = False) -> int:
    """Largest memory of a batch of coalitions in float32 above that of the parameters, with sdpa or eager attention.

    Besides what a stage of a block holds, there are the states behind the prefix and those of the embedding,
    [rows, T, width] each, and the mask, [rows, T, T].  The attention of the layer with the players is that of one row.
    """
    states, inner = rows * tokens * sizes.width, rows * tokens * sizes.inner
    keys, maps = rows * tokens * sizes.keys, rows * sizes.heads * tokens**2
    # Input of the block, sum with the attention, normalised; activated gate, up, and their product.
    feed_forward = 3 * states + 3 * inner + (maps if eager else 0)  # the block still holds the maps
    # Input, normalised, queries; keys and values, as they are and repeated for every query head.
    attention = 5 * states + 2 * keys
    # Output; or scores with the mask, and weights.
    attention += 2 * maps if eager else states
    logits = rows * (sizes.vocabulary + sizes.width)
    kept = 2 * states + rows * tokens**2
    return 4 * (kept + max(feed_forward, attention, logits))


def cost(options: argparse.Namespace) -> list[dict[str, Any]]:
    """What the analysis of every model takes."""
    samples, rows = options.samples * options.sets, []
    for name, sizes in MODELS.items():
        ways = {"replay": True, "direct": False}
        together = min(options.batch, 2**sizes.groups)
        blocks = {f"blocks, {way}": samples * block_evaluations(sizes, replay=r) for way, r in ways.items()}
        flops = {f"FLOP, {way}": _flops(sizes, options, replay=r) for way, r in ways.items()}
        rows.append(
            {
                "model": name,
                "players": sizes.groups,
                "coalitions": float(samples * sizes.layers * 2**sizes.groups),
                **{way: float(count) for way, count in (blocks | flops).items()},
                "float32 [GB]": 4e-9 * sizes.parameters,
                "bfloat16 [GB]": 2e-9 * sizes.parameters,
                "batch [GB]": 1e-9 * batch_bytes(sizes, together, options.tokens),
            }
        )
    return rows


def hours(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Hours of the analysis of every model by what does the work, at the FLOP per second that it sustains."""
    speeds = {"one CPU core, matmul": core_flops(), **ASSUMED, **dict(options.flops)}
    rows: list[dict[str, Any]] = [{"model": "FLOP/s", **speeds}]
    for name, sizes in MODELS.items():
        flops = _flops(sizes, options)
        rows.append({"model": name, **{what: flops / speed / 3600 for what, speed in speeds.items()}})
    return rows


def _flops(sizes: Sizes, options: argparse.Namespace, *, replay: bool = True) -> float:
    return float(options.samples * options.sets) * analysis_flops(
        sizes, options.tokens, options.batch, replay=replay
    )


def core_flops(size: int = 1024, rounds: int = 5) -> float:
    """FLOP per second of a product of float32 matrices on one thread, the best of some rounds."""
    torch.set_num_threads(1)
    a, b = torch.randn(size, size), torch.randn(size, size)
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


SMALL = ((64, 32), (256, 64), (256, 256), (512, 32))  # width, tokens


def memory(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The formula of memory against allocations, for decoders of random weights."""
    torch.set_num_threads(1)
    rows = []
    for width, tokens in SMALL:
        for attention in ("sdpa", "eager"):
            model = decoder(4, width, tokens)
            model.set_attn_implementation(attention)
            expected = batch_bytes(sizes_of(model), options.batch, tokens, eager=attention == "eager")
            measured = peak_bytes(model, options.batch, tokens)
            rows.append(
                {
                    "width": width, "T": tokens, "batch": options.batch, "attention": attention,
                    "formula [MB]": 1e-6 * expected, "measured [MB]": 1e-6 * measured,
                    "formula / measured": expected / measured,
                }
            )  # fmt: skip
    return rows


def sizes_of(model: Any) -> Sizes:
    """Sizes of a Llama or a Qwen2."""
    c = model.config
    return Sizes(
        c.hidden_size, c.intermediate_size, c.num_hidden_layers, c.num_attention_heads, c.num_key_value_heads,
        c.vocab_size, c.tie_word_embeddings, bias=c.model_type == "qwen2",
    )  # fmt: skip


def peak_bytes(model: Any, rows: int, tokens: int) -> int:
    """Largest sum of what is allocated at a time while a batch of coalitions of the second layer is replayed."""
    replay, ids = Replay(model, "mean", 1e-5), torch.arange(tokens)
    replay.groups = key_value_groups(replay.decoder.sites, 1)
    present = all_coalitions(len(replay.groups))[:rows]
    with replay.ablation.applied():
        states = replay.prefix(ids)
        replay.suffix(states, ids, present[:1], torch.tensor([-1]))
        with profile(profile_memory=True) as profiler:
            replay.suffix(states, ids, present, torch.tensor([-1]))
    # The public averages have sums per operator only; a peak needs the allocations in their order.
    events: Sequence[Any] = profiler.profiler.kineto_results.events()
    changes = [(event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"]
    held, peak = 0, 0
    for _, change in sorted(changes, key=lambda event: event[0]):
        held += change
        peak = max(peak, held)
    return peak


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sections", nargs="*", help="cost, hours, memory; all if none is named")
    parser.add_argument("--json", action="store_true", help="one line of JSON per table")
    parser.add_argument("--tokens", type=int, default=100, help="mean length of a prompt")
    parser.add_argument("--samples", type=int, default=300, help="samples of a set")
    parser.add_argument("--sets", type=int, default=8, help="sets that are pooled")
    parser.add_argument("--batch", type=int, default=16, help="coalitions in a forward pass")
    parser.add_argument("--flops", type=_speed, nargs="*", default=[], help="sustained FLOP/s, NAME=NUMBER")
    options = parser.parse_args()
    data = f"{options.sets} sets of {options.samples} samples of {options.tokens} tokens, every layer"
    known = {
        "cost": (data, cost),
        "hours": (f"Hours, {data}", hours),
        "memory": ("Memory of a batch, formula and allocations", memory),
    }
    for name in options.sections or known:
        if name not in known:
            parser.error(f"sections: expected some of {', '.join(known)}, got {name}")
        title, measure = known[name]
        report(title, measure(options))


def _speed(text: str) -> tuple[str, float]:
    name, _, number = text.rpartition("=")
    return name or text, float(number)


if __name__ == "__main__":
    main()
