"""Cost of the analysis of large models: coalitions, FLOP, memory and hours, computed from the sizes of the models.

    python -m experiments.heads_cost [--tokens 100] [--samples 300] [--sets 8] [--batch 16] [--flops NAME=1e14 ...]

FLOP count two per multiply-add of every matrix product.  Tables of all coalitions of every layer in turn, as
``HeadCoalitions`` evaluates them with ``value="log_odds"``.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from experiments.common import Row, parser, report


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
# Assumed: 60 % of the peak of float32 products and 40 % of that of bfloat16, as the vendor states them.
ASSUMED = {
    "CPU core, float32": 1.6e11,  # measured: products of matrices on one thread
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


def costs(options: argparse.Namespace) -> list[Row]:
    """What the analysis of every model takes."""
    samples, rows = options.samples * options.sets, list[Row]()
    for name, sizes in MODELS.items():
        row: Row = {"model": name, "players": sizes.groups}
        row["coalitions"] = float(samples * sizes.layers * 2**sizes.groups)
        for way, replay in (("replay", True), ("direct", False)):
            row[f"blocks, {way}"] = float(samples * block_evaluations(sizes, replay=replay))
            row[f"FLOP, {way}"] = float(
                samples * analysis_flops(sizes, options.tokens, options.batch, replay=replay)
            )
        row["float32 [GB]"], row["bfloat16 [GB]"] = 4e-9 * sizes.parameters, 2e-9 * sizes.parameters
        row["batch [GB]"] = 1e-9 * batch_bytes(sizes, min(options.batch, 2**sizes.groups), options.tokens)
        rows.append(row)
    return rows


def hours(rows: list[Row], given: list[tuple[str, float]]) -> list[Row]:
    """Hours of the replay by what does the work, at the FLOP per second that it sustains."""
    speeds = ASSUMED | dict(given)
    return [{"model": "FLOP/s", **speeds}] + [
        {
            "model": row["model"],
            **{what: row["FLOP, replay"] / speed / 3600 for what, speed in speeds.items()},
        }
        for row in rows
    ]


def named_number(text: str) -> tuple[str, float]:
    """Read NAME=NUMBER."""
    name, _, number = text.rpartition("=")
    return name or text, float(number)


def main() -> None:
    """Print both tables."""
    command = parser(__doc__)
    command.add_argument("--tokens", type=int, default=100, help="mean length of a prompt")
    command.add_argument("--samples", type=int, default=300, help="samples of a set")
    command.add_argument("--sets", type=int, default=8, help="sets that are pooled")
    command.add_argument("--batch", type=int, default=16, help="coalitions in a forward pass")
    command.add_argument(
        "--flops", type=named_number, nargs="*", default=[], help="sustained FLOP/s, NAME=NUMBER"
    )
    options = command.parse_args()
    rows = costs(options)
    title = f"{options.sets} sets of {options.samples} samples of {options.tokens} tokens, every layer"
    report(title, rows, as_json=options.json)
    report("Hours", hours(rows, options.flops), as_json=options.json)


if __name__ == "__main__":
    main()
