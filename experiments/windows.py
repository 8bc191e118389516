"""Finished runs of windows-shakespeare: loss, loss on sequences four times as long, far weight, speed of the training.

The far weight is what each layer gives to keys before the last 16, mean over heads and queries that have such keys.

    python -m experiments.windows FOLDER [--json]      # --output of experiments.reproduce windows-shakespeare
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor, nn

from diabat.config import load_config
from diabat.models import Transformer
from diabat.runs import Run, evaluate_run, load_run
from diabat.tasks import Task
from diabat.training import is_finished
from diabat.training.folder import METRICS
from experiments.common import Row, parser, report

FACTOR, WINDOW, SEQUENCES = 4, 16, 40


@torch.no_grad()
def far_weight(run: Run) -> str:
    """Share of the weight of every layer beyond the window, first layer first."""
    assert isinstance(run.model, Transformer)
    assert isinstance(run.task, Task)
    found: list[str] = []

    def measure(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        handles.pop(0).remove()  # of this layer, which is called again
        weights = layer(inputs[0], need_weights=True)[1]
        far = torch.ones(weights.shape[-2:]).tril(-WINDOW)
        found.append(f"{float((weights * far).sum(-1)[..., WINDOW:].mean()):.2f}")

    handles = [layer.register_forward_pre_hook(measure) for layer in run.model.attention_layers()]
    run.model(run.task.validation.inputs[:SEQUENCES])
    return ", ".join(found)


def row(folder: Path) -> Row | None:
    """Losses in nats per character; characters of training per second of processor time, validation included.

    None for a run that is not finished.
    """
    config = load_config(folder / "config.json")
    context, options = config.task.window, config.training
    if not is_finished(folder, options):
        return None
    run = load_run(folder)
    longer = load_run(folder, [f"task.window={FACTOR * context}"])
    last = json.loads((folder / METRICS).read_text(encoding="utf-8").splitlines()[-1])
    loss, long_loss = evaluate_run(run).loss, evaluate_run(longer).loss
    return {
        "run": folder.name,
        "context": context,
        "loss": f"{loss:.4f}",
        f"loss at {FACTOR * context}": f"{long_loss:.4f}",
        "difference": f"{long_loss - loss:+.4f}",
        "far weight": far_weight(run),
        f"at {FACTOR * context}": far_weight(longer),
        "characters/s": round(last["step"] * options.batch_size * context / last["cpu_s"]),
    }


def main() -> None:
    """Print a row for every finished run."""
    command = parser(__doc__)
    command.add_argument("folder", type=Path)
    options = command.parse_args()
    runs = sorted(path.parent for path in options.folder.glob("reproduce-windows-shakespeare/*/config.json"))
    rows = [found for found in map(row, runs) if found is not None]
    report("Windows of 16 keys on Tiny Shakespeare", rows, as_json=options.json)


if __name__ == "__main__":
    main()
