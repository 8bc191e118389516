"""How the heads of a decoder interact on texts, layer by layer: ω, ρ, G, Γ.

    python -m experiments.heads.interaction MODEL texts.jsonl --adapter runs/game/adapter --figure interaction.png

A line of the file is {"text": ...}, where every token is a target, or {"text": ..., "completion": ...}, where only
tokens of the completion are.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from diabat.heads import HeadInteractions
from diabat.huggingface.loading import load_adapter, load_decoder
from diabat.plots import new_figure, save_figure
from experiments.common import Row, parser, report, run_script

MATRICES = ("omega", "rho", "G", "written", "reachable")


def read_batches(path: Path, tokenizer: Any, batch_size: int, max_length: int) -> list[dict[str, Tensor]]:
    """Texts as batches padded on the right; -100 where a token is no target."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.strip():
            entry = json.loads(line)
            text, completion = entry["text"], entry.get("completion", "")
            options = {"return_offsets_mapping": True, "truncation": True, "max_length": max_length}
            encoded = tokenizer(text + completion, **options)
            # A token that reaches into the completion is a target, also if it starts in the text.
            start = len(text) if completion else -1
            counts = [end > start for _, end in encoded["offset_mapping"]]
            ids = torch.tensor(encoded["input_ids"])
            rows.append((ids, ids.where(torch.tensor(counts), -100)))
    return [_padded(rows[at : at + batch_size]) for at in range(0, len(rows), batch_size)]


def _padded(rows: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    ids, labels = ([row[place] for row in rows] for place in (0, 1))
    return {
        "input_ids": pad_sequence(ids, batch_first=True),
        "attention_mask": pad_sequence([torch.ones_like(one) for one in ids], batch_first=True),
        "labels": pad_sequence(labels, batch_first=True, padding_value=-100),
    }


def measure(model: Any, batches: list[dict[str, Tensor]], layers: list[int] | None) -> list[Row]:
    """One row per layer."""
    return [
        {"layer": layer, "tokens": state.tokens, "gamma": state.gamma, "invariant_gamma": state.invariant_gamma,
         **{name: getattr(state, name).tolist() for name in MATRICES}}
        for layer, state in HeadInteractions(model, layers).measure(batches).items()
    ]  # fmt: skip


def draw(rows: list[Row], path: Path) -> None:
    """G of every layer without its diagonal, on one scale."""
    maps = [torch.tensor(row["G"]).fill_diagonal_(torch.nan) for row in rows]
    most = max(float(G.nan_to_num().abs().max()) for G in maps)
    columns = min(6, len(rows))
    lines = -(-len(rows) // columns)
    figure = new_figure(2.2 * columns + 1, 2.2 * lines + 0.5)
    axes = figure.subplots(lines, columns, squeeze=False).flatten()
    for axis, row, G in zip(axes, rows, maps, strict=False):
        image = axis.imshow(G.numpy(), cmap="RdBu_r", vmin=-most, vmax=most)
        axis.set_title(f"layer {row['layer']}, Γ {row['gamma']:.3f}", fontsize=8)
        axis.set_xticks(range(len(G)), range(len(G)), fontsize=6)
        axis.set_yticks(range(len(G)), range(len(G)), fontsize=6)
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
    command.add_argument("--figure", type=Path)
    options = command.parse_args(arguments)
    model, tokenizer = load_decoder(options.model)
    model = model if options.adapter is None else load_adapter(model, options.adapter)
    batches = read_batches(options.data, tokenizer, options.batch_size, options.max_length)
    rows = measure(model, batches, options.layers)
    if options.figure is not None:
        draw(rows, options.figure)
    if not options.json:
        rows = [{key: value for key, value in row.items() if key not in MATRICES} for row in rows]
    report(f"Head interaction of {options.model}", rows, as_json=options.json)


if __name__ == "__main__":
    run_script(main)
