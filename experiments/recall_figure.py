"""The figure of `make demo`: learned couplings, one query without and with them, and the learning curves.

python -m experiments.recall_figure FOLDER     # of the runs softmax, exact and dqa; writes FOLDER/recall.png
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from diabat.attention import BoltzmannAttention
from diabat.lab.models.explanation import explain_decoder
from diabat.lab.models.transformer import Transformer
from diabat.lab.runs.finished import Run, load_run
from diabat.plots import COLOURS, Line, Panel, draw_panel, new_figure, save_figure, tidy
from experiments.common import parser, run_script

TEXT = "aGcAdFbBd"
RUNS = {"softmax": "softmax", "exact": "h + J, exact", "dqa": "h + J, 5 ns anneal"}


def main() -> None:
    """Draw the figure."""
    command = parser(__doc__)
    command.add_argument("folder", type=Path, help="of the three runs")
    folder = command.parse_args().folder
    run = load_run(folder / "exact")
    assert isinstance(run.model, Transformer)
    layer = run.model.attention_layers()[0]
    assert isinstance(layer, BoltzmannAttention)
    couplings = layer.couplings.matrix()
    assert couplings is not None
    J, bound = couplings[0, 0].detach(), _weights(run)
    layer.couplings.hold(0)
    figure = new_figure(13.5, 3.9)
    axes = figure.subplots(1, 3, width_ratios=(1.1, 1.4, 1.2))
    _draw_couplings(figure, axes[0], J)
    _draw_weights(axes[1], {"J set to 0": _weights(run), "learned J": bound})
    curves = [_curve(folder / name, label, look) for look, (name, label) in enumerate(RUNS.items())]
    settings = {"xlabel": "training step", "ylabel": "accuracy", "ylim": (0, 1.03), "title": "One layer each"}
    draw_panel(axes[2], Panel(curves, settings=settings))
    axes[2].legend(frameon=False, loc="lower right")
    print(f"Figure: {save_figure(figure, folder / 'recall.png')}")


def _weights(run: Run) -> Tensor:
    """Attention of the last position over the text."""
    form = run.task.text
    assert form is not None
    assert isinstance(run.model, Transformer)
    return explain_decoder(run.model, form.encode(TEXT), TEXT, form.classes).attention[0, 0, -1]


def _curve(folder: Path, label: str, look: int) -> Line:
    """Validation accuracy of every epoch against the step."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    epochs = [entry for line in lines if (entry := json.loads(line))["event"] == "epoch"]
    return Line([entry["step"] for entry in epochs], [entry["accuracy"] for entry in epochs], label, look)


def _draw_couplings(figure: Any, axis: Any, J: Tensor) -> None:
    bound, places = float(J.abs().max()), range(len(J))
    image = axis.imshow(J.numpy(), cmap="RdBu_r", vmin=-bound, vmax=bound)
    figure.colorbar(image, ax=axis, label="$J_{jk}$")
    axis.set_xticks(places, TEXT)
    axis.set_yticks(places, TEXT)
    axis.set(title="Learned couplings between positions", xlabel="token at k", ylabel="token at j")


def _draw_weights(axis: Any, weights_by_label: dict[str, Tensor]) -> None:
    for look, (label, weights) in enumerate(weights_by_label.items()):
        places = [place + 0.4 * look - 0.2 for place in range(len(weights))]
        colour = ("0.7", COLOURS[1])[look]
        axis.bar(places, weights.tolist(), 0.4, label=label, color=colour, zorder=3)
    axis.set_xticks(range(len(TEXT)), TEXT)
    axis.set_title(f"Attention of the query “{TEXT[-1]}”, whose value is “{TEXT[TEXT.index(TEXT[-1]) + 1]}”")
    axis.set(xlabel="token", ylabel="attention weight")
    axis.legend(frameon=False)
    tidy(axis, "y")


if __name__ == "__main__":
    run_script(main)
