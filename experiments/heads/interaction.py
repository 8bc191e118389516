"""How the heads of a decoder interact on texts, layer by layer: ω, ρ, G, Γ, shared information and communities.

    python -m experiments.heads.interaction MODEL texts.jsonl --adapter runs/game/adapter --figure interaction.png

A line of the file is {"text": ...}, where every token is a target, or {"text": ..., "completion": ...}, where only
tokens of the completion are.  Communities are found in the batches of even position and tested on the others.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import diabat
from diabat.heads import HeadInteractions
from diabat.huggingface.loading import load_adapter, load_decoder
from diabat.plots import new_figure, save_figure
from experiments.common import Row, parser, report
from experiments.heads.communities import communities, within_against_between

MATRICES = ("omega", "rho", "G", "written", "reachable")


def read_batches(path: Path, tokenizer: Any, batch_size: int, max_length: int) -> list[dict[str, Tensor]]:
    """Texts as batches padded on the right; -100 where a token is no target."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.strip():
            given = json.loads(line)
            text, completion = given["text"], given.get("completion", "")
            found = tokenizer(
                text + completion, return_offsets_mapping=True, truncation=True, max_length=max_length
            )
            # A token that reaches into the completion is a target, also if it starts in the text.
            start = len(text) if completion else -1
            counts = [end > start for _, end in found["offset_mapping"]]
            ids = found["input_ids"]
            rows.append((ids, [i if there else -100 for i, there in zip(ids, counts, strict=True)]))
    return [_padded(rows[at : at + batch_size]) for at in range(0, len(rows), batch_size)]


def _padded(rows: list[tuple[list[int], list[int]]]) -> dict[str, Tensor]:
    def filled(values: list[list[int]], padding: int) -> Tensor:
        return torch.tensor([row + [padding] * (width - len(row)) for row in values])

    width = max(len(ids) for ids, _ in rows)
    return {
        "input_ids": filled([ids for ids, _ in rows], 0),
        "attention_mask": filled([[1] * len(ids) for ids, _ in rows], 0),
        "labels": filled([labels for _, labels in rows], -100),
    }


def measure(model: Any, batches: list[dict[str, Tensor]], given: argparse.Namespace) -> list[Row]:
    """One row per layer."""
    interactions = HeadInteractions(model, given.layers)
    even, odd, every = (interactions.measure(part) for part in (batches[::2], batches[1::2], batches))
    rows = []
    for layer, found in every.items():
        G, shared = found.G, found.information
        labels = communities(even[layer].G, diabat.sampler(given.sampler), seed=given.seed)
        advantage, p_value = within_against_between(odd[layer].G, labels)
        pairs = torch.triu_indices(len(G), len(G), 1)
        rows.append({
            "layer": layer, "tokens": found.tokens, "gamma": found.gamma, "invariant_gamma": found.invariant_gamma,
            "total_correlation": None if shared is None else shared.total_correlation,
            "free_riding": None if shared is None else float(shared.free_riding.max()),
            "diagonal_correlation": float(found.diagonal_correlation[pairs[0], pairs[1]].mean()),
            "labels": labels.tolist(), "advantage": advantage, "p_value": p_value,
            **{name: getattr(found, name).tolist() for name in MATRICES},
        })  # fmt: skip
    return rows


def draw(rows: list[Row], path: Path) -> None:
    """G of every layer without its diagonal, heads by community, on one scale."""
    maps = []
    for row in rows:
        order = torch.tensor(row["labels"]).argsort(stable=True)
        maps.append(torch.tensor(row["G"])[order][:, order].fill_diagonal_(torch.nan))
    most = max(float(G.nan_to_num().abs().max()) for G in maps)
    columns = min(6, len(rows))
    lines = -(-len(rows) // columns)
    figure = new_figure(2.2 * columns + 1, 2.2 * lines + 0.5)
    axes = figure.subplots(lines, columns, squeeze=False).flatten()
    for axis, row, G in zip(axes, rows, maps, strict=False):
        image = axis.imshow(G.numpy(), cmap="RdBu_r", vmin=-most, vmax=most)
        axis.set_title(f"layer {row['layer']}, Γ {row['gamma']:.3f}", fontsize=8)
        heads = torch.tensor(row["labels"]).argsort(stable=True).tolist()
        axis.set_xticks(range(len(heads)), heads, fontsize=6)
        axis.set_yticks(range(len(heads)), heads, fontsize=6)
        axis.set_xlabel("head", fontsize=7)
    for axis in axes[len(rows) :]:
        axis.set_axis_off()
    figure.colorbar(image, ax=axes.tolist(), label="G of two heads", shrink=0.8)
    save_figure(figure, path)


def main(arguments: list[str] | None = None) -> None:
    """Load the model, measure, and print."""
    command = parser(__doc__)
    command.add_argument("model")
    command.add_argument("data", type=Path)
    command.add_argument("--adapter", type=Path)
    command.add_argument("--layers", type=int, nargs="+")
    command.add_argument("--batch-size", type=int, default=8)
    command.add_argument("--max-length", type=int, default=1024)
    command.add_argument("--sampler", default="tempering", help="backend that finds communities")
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--figure", type=Path)
    given = command.parse_args(arguments)
    model, tokenizer = load_decoder(given.model)
    model = model if given.adapter is None else load_adapter(model, given.adapter)
    rows = measure(model, read_batches(given.data, tokenizer, given.batch_size, given.max_length), given)
    if given.figure is not None:
        draw(rows, given.figure)
    if not given.json:
        rows = [{key: value for key, value in row.items() if key not in MATRICES} for row in rows]
    report(f"Head interaction of {given.model}", rows, as_json=given.json)


if __name__ == "__main__":
    main()
